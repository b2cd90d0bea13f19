"""How often a guaranteed recall is kept, compared with the first shift that shows such a recall.

python benchmarks/guarantee.py                                # made tables, fresh rows for the truth
python benchmarks/guarantee.py --group-rows 8                 # eight rows a group, half of their noise shared
python benchmarks/guarantee.py --run runs/cat --at-least 0.8  # a run's trials: guaranteed on validation, kept on test?

Prints JSON. `kept` is the share of tables (of a run: of trials) whose true recall (on test images) is at least what was
asked for; `accuracy` is the mean change of accuracy that it costs.
"""

import argparse
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.audit import IMPORTANT, made_rows
from camri.decision import AtLeast, Decision, Scores, exact, trace, tune


def guaranteed(scores: Scores, at_least: float, confidence: float, groups: np.ndarray | None = None) -> Decision | None:
    """The rule that an audit advises, shift or threshold; None where nothing can be guaranteed."""
    point = tune(scores, AtLeast(at_least, confidence), groups=groups)
    return point.rule if point.has_met else None


def seen(scores: Scores, at_least: float) -> float | None:
    """The first shift, from 0 on, with which the mean recall is that high; None where there is none."""
    curve = trace(scores)
    state = int(curve.reach(at_least))
    return max(0.0, float(curve.value[state])) if state < len(curve.value) else None


def judge(shifts: list[Decision | None], truths: list[Scores], at_least: float) -> dict[str, Any]:
    """How many guarantees were made, how many of those were kept, and what they cost."""
    made = [(shift, truth) for shift, truth in zip(shifts, truths, strict=True) if shift is not None]
    recall = np.array([truth.recall(shift) for shift, truth in made])
    cost = [truth.accuracy(shift) - truth.accuracy() for shift, truth in made]
    return {
        "made": f"{len(made)}/{len(shifts)}",
        "kept": float((recall >= at_least).all(axis=1).mean()) if made else None,
        "recall": float(recall.mean()) if made else None,
        "accuracy": float(np.mean(cost)) if made else None,
    }


def on_made_tables(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    fresh = exact(*made_rows(200_000, 0.0, np.random.default_rng(99)), (IMPORTANT,))
    for num_rows in asked.rows:
        shifts: dict[str, list[Decision | None]] = {"guaranteed": [], "guaranteed, without groups": [], "seen": []}
        for seed in range(asked.tables):
            drawn = np.random.default_rng([seed, num_rows])
            scores = exact(*made_rows(num_rows, 0.0, drawn, asked.group_rows), (IMPORTANT,))
            groups = np.arange(num_rows) // asked.group_rows
            shifts["guaranteed"].append(guaranteed(scores, asked.at_least, asked.confidence, groups))
            shifts["guaranteed, without groups"].append(guaranteed(scores, asked.at_least, asked.confidence))
            shifts["seen"].append(seen(scores, asked.at_least))
        if asked.group_rows == 1:
            del shifts["guaranteed, without groups"]
        for name, found in shifts.items():
            yield {"rows": num_rows, "rule": name, **judge(found, [fresh] * len(found), asked.at_least)}


def on_run(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from camri.study.store import open_run

    with open_run(asked.run) as run:
        for column in run.columns():
            for key in dict.fromkeys(planned.key for planned in run.plan(column.number)):
                rows = run.rows(key=key)
                val = [run.scores(row, "val", column.indices) for row in rows]
                test = [run.scores(row, "test", column.indices) for row in rows]
                shifts: dict[str, list[Decision | None]] = {
                    "guaranteed": [guaranteed(one, asked.at_least, asked.confidence) for one in val],
                    "seen": [seen(one, asked.at_least) for one in val],
                }
                for name, found in shifts.items():
                    told = {"important": column.title, "setting": key, "rule": name}
                    yield {**told, **judge(found, test, asked.at_least)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-least", type=float, default=0.9)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 1000, 4000], help="a tenth of them important")
    parser.add_argument("--group-rows", type=int, default=1, help="rows that come together")
    parser.add_argument("--run", help="a run's folder, instead of made tables")
    asked = parser.parse_args()
    found = list(on_made_tables(asked) if asked.run is None else on_run(asked))
    print(json.dumps({"at_least": asked.at_least, "confidence": asked.confidence, "found": found}, indent=1))


if __name__ == "__main__":
    main()
