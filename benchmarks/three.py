"""How often `compare`, `check` and `triage` keep what they print, on made tables whose truth is known.

python -m benchmarks.three --only compare --tables 1000
python -m benchmarks.three                                  # all, 1,000 tables each

Prints JSON, one line a case. Scores are normal with means 0 and d; so is the truth: the share of false alarms at a
recall, the recall of a cut-off, the precision above one. The printed rule is followed in plain numpy.
"""

import argparse
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

SHARE = 0.2  # of the important class


def draw(num: int, distances: list[float], drawn: np.random.Generator, share: float = SHARE, together: float = 0.7,
         per_group: int = 1) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:  # fmt: skip
    """Labels (N,), log-odds (N,) of models with these distances, and groups (N,); `together`: correlation of models.

    Rows of a group share their label and half of their noise.
    """
    groups = np.arange(num) // per_group
    labels = (drawn.random(groups[-1] + 1) < share).astype(int)[groups]

    def noise() -> np.ndarray:
        if per_group == 1:
            return drawn.normal(size=num)
        return math.sqrt(0.5) * (drawn.normal(size=num) + drawn.normal(size=groups[-1] + 1)[groups])

    common = noise()
    prior = math.log(share / (1 - share))
    scores = []
    for distance in distances:
        value = distance * labels + math.sqrt(together) * common + math.sqrt(1 - together) * noise()
        scores.append(distance * value - distance**2 / 2 + prior)
    return labels, scores, groups


def two_columns(log_odds: np.ndarray) -> np.ndarray:
    """Log-odds as two columns of logits."""
    return np.column_stack([np.zeros_like(log_odds), log_odds])


def true_alarms(distance: float, recall: float, share: float = SHARE) -> float:
    """The share of rows that are false alarms at a recall."""
    return (1 - share) * float(ndtr(-(distance + ndtri(1 - recall))))


def error_of(share: float, num: int) -> float:
    """Standard error of a share of tables."""
    return round(math.sqrt(share * (1 - share) / num), 4)


def compare_tables(num_tables: int, cases: tuple[tuple[Any, ...], ...] | None = None) -> Iterator[dict[str, Any]]:
    """How often "better" and "worse" are said, and how often the interval covers the true difference."""
    from camri.decision.versus import compare

    known = cases or (
        # rows, distance of old and new models, rows a group, goal
        (1000, (2.5, (2.5,)), 1, {"at_least": 0.95}),
        (2000, (2.0, (2.0,)), 5, {"at_least": 0.9}),
        (1000, (2.0, (2.0, 2.0, 2.0)), 1, {"at_least": 0.9}),
        (1000, (2.0, (2.0,)), 1, {}),
        (1000, (2.0, (2.3,)), 1, {"at_least": 0.9}),
        (2000, (2.0, (2.3,)), 5, {"at_least": 0.9}),
        (4000, (2.0, (2.3,)), 1, {"at_least": 0.9}),
    )
    for num, (old, news), per_group, goal in known:
        said, covered = [], []
        for seed in range(num_tables):
            drawn = np.random.default_rng([seed, num, per_group, len(news)])
            labels, scores, groups = draw(num, [old, *news], drawn, per_group=per_group)
            first, *others = map(two_columns, scores)
            found = compare(
                first, {f"new {k}": one for k, one in enumerate(others)}, labels, 1,
                groups=None if per_group == 1 else groups, **goal,
            )  # fmt: skip
            said.append({one.verdict.kind for one in found.candidates[1:] if one.verdict is not None})
            for one, new in zip(found.candidates[1:], news, strict=True):
                assert one.verdict is not None
                gain = one.verdict.gain
                assert gain is not None
                recall = goal.get("at_least")
                truth = 0.0 if recall is None else true_alarms(new, recall) - true_alarms(old, recall)
                covered.append(gain.low <= truth <= gain.high)
        shares = {kind: float(np.mean([kind in one for one in said])) for kind in ("better", "worse", "no_difference")}
        yield {
            "compare": goal, "rows": num, "rows a group": per_group, "old": old, "new": news, "tables": num_tables,
            **{kind: [round(share, 4), error_of(share, num_tables)] for kind, share in shares.items()},
            "covered": round(float(np.mean(covered)), 4),
        }  # fmt: skip


def triage_tables(num_tables: int, cases: tuple[tuple[Any, ...], ...] | None = None) -> Iterator[dict[str, Any]]:
    """How often the true misses and the true precision of the printed rule are as promised, and what is left."""
    from camri import audit
    from camri.report.words import triage_text

    known = cases or (
        # rows, distance, rows a group, misses at most, alarms right at least
        (2000, 2.5, 1, 0.05, 0.9),
        (2000, 2.5, 1, 0.02, 0.8),
        (10000, 2.0, 1, 0.01, 0.95),
        (2000, 2.5, 4, 0.05, 0.9),
    )
    for num, distance, per_group, misses, precision in known:
        kept: dict[str, list[Any]] = {"clears": [], "missed": [], "alarms": [], "precise": [], "to a person": []}
        for seed in range(num_tables):
            drawn = np.random.default_rng([seed, num, per_group, 7])
            labels, (scores,), groups = draw(num, [distance], drawn, per_group=per_group)
            found = audit(
                two_columns(scores), labels, 1, groups=None if per_group == 1 else groups,
                clear_misses_at_most=misses, alarm_precision=precision,
            )  # fmt: skip
            kept["clears"].append(found.workload is not None)
            if found.workload is None:
                continue
            low, high = follow("\n".join(triage_text(found)))
            missed, right = true_shares(low, high, distance)
            kept["missed"].append(missed <= misses)
            kept["alarms"].append(right is not None)
            kept["to a person"].append(found.workload.person.value)
            if right is not None:
                kept["precise"].append(right >= precision)
        means = {name: round(float(np.mean(values)), 4) if values else None for name, values in kept.items()}
        yield {
            "triage": {"clear_misses": misses, "alarm_precision": precision}, "rows": num, "rows a group": per_group,
            "distance": distance, "tables": num_tables, **means,
            "error": error_of(0.95, num_tables),
        }  # fmt: skip


def follow(text: str) -> tuple[float, float | None]:
    """Both cut-offs of the sentence that a triage prints."""
    low = re.search(r"is at most ([\d.e-]+);", text)
    high = re.search(r"where it is above ([\d.e-]+);", text)
    assert low is not None
    return float(low[1]), None if high is None else float(high[1])


def true_shares(low: float, high: float | None, distance: float, share: float = SHARE) -> tuple[float, float | None]:
    """The share of the class that is cleared, and the share of alarms that are right."""

    def value_of(probability: float) -> float:
        return (math.log(probability / (1 - probability)) + distance**2 / 2 - math.log(share / (1 - share))) / distance

    missed = float(ndtr(value_of(low) - distance)) if low > 0 else 0.0
    if high is None:
        return missed, None
    own, other = share * ndtr(distance - value_of(high)), (1 - share) * ndtr(-value_of(high))
    return missed, float(own / (own + other))


def check_tables(num_tables: int) -> Iterator[dict[str, Any]]:
    """How often a decision that holds is called broken, in one look and in many, and how soon a drop is seen."""
    from camri import audit, check

    floor, distance = 0.9, 2.0
    for num, drop in ((100, 0.0), (1000, 0.0), (1000, 0.05), (5000, 0.05)):
        said = []
        for seed in range(num_tables):
            drawn = np.random.default_rng([seed, num, 3])
            labels, (scores,), _ = draw(2000, [distance], drawn)
            found = audit(two_columns(scores), labels, 1, at_least=floor)
            labels, (scores,), _ = draw(num, [distance], drawn)
            own = scores[labels == 1]
            rule = found.rule
            ((_, value),) = rule.values.items()
            cut = -value if rule.name == "shift" else math.log(value / (1 - value))
            # Moved so that the true recall of this rule is the floor, less the drop.
            spread, mean = distance, distance**2 / 2 + math.log(SHARE / (1 - SHARE))
            scores[labels == 1] = own + cut - spread * ndtri(1 - floor + drop) - mean
            said.append(check(found, two_columns(scores), labels).verdict.kind)
        shares = {kind: round(said.count(kind) / num_tables, 4) for kind in ("holds", "broken", "cannot_tell")}
        yield {"check": "one look", "floor": floor, "drop": drop, "rows": num, "tables": num_tables, **shares}
    yield from watched(num_tables, floor, [(0.0, 0), (0.05, 0), (0.05, 50), (0.1, 0)])


def watched(num_tables: int, floor: float, cases: list[tuple[float, int]], num_looks: int = 1000, rows: int = 10,
            ) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Looks at 10 new rows of the class each: how often, and after how many rows, the recall is called broken.

    drop: how far recall is below the floor, from look `start` on.
    """
    from camri.decision.check import wealth
    from camri.decision.guarantee import chance_of_luck

    for drop, start in cases:
        seen, naive = [], 0
        for seed in range(num_tables):
            drawn = np.random.default_rng([seed, int(1000 * drop), start])
            rates = np.where(np.arange(num_looks) < start, 1 - floor, 1 - floor + drop)
            missed = drawn.binomial(rows, rates).astype(float)
            num = np.full(num_looks, float(rows))
            totals = rows * np.arange(1, num_looks + 1)
            hits = totals - np.cumsum(missed)
            naive += bool(any(chance_of_luck(h, n, floor, True) <= 0.05 for h, n in zip(hits, totals, strict=True)))
            looks = range(1, num_looks + 1)
            seen.append(next((k for k in looks if wealth(missed[:k], num[:k], floor) >= 20), None))
        found = sorted(rows * (k - start) for k in seen if k is not None and k > start)
        yield {
            "check": f"{num_looks} looks at {rows} rows", "floor": floor, "drop": drop, "from look": start,
            "tables": num_tables, "broken": round(float(np.mean([k is not None for k in seen])), 4),
            "broken before the drop": round(float(np.mean([k is not None and k <= start for k in seen])), 4),
            "rows until seen (median, 90 %)": [found[len(found) // 2], found[int(0.9 * len(found))]] if found else None,
            "broken, the exact test at every look": round(naive / num_tables, 4),
        }  # fmt: skip


COMMANDS = {"compare": compare_tables, "check": check_tables, "triage": triage_tables}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--only", choices=[*COMMANDS], nargs="+", default=[*COMMANDS])
    asked = parser.parse_args()
    for name in asked.only:
        for found in COMMANDS[name](asked.tables):
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
