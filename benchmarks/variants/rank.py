"""Rank a run's settings by false alarms at equal recall against cross-entropy, each under both decision rules.

Every model is brought to the same recalls by a threshold on the class's probability, and by a shift of its score;
cross-entropy of the same seeds under the same rule is the baseline. On validation data it serves to choose:

    python -m benchmarks.variants.rank runs/screen --json runs/screen.json
    python -m benchmarks.variants.rank results/scores/columns-small-cifar10.sqlite.xz --split test --recalls 0.9,0.95

The choice: the fewest false alarms under the threshold among settings whose accuracy there is not significantly below
cross-entropy's (95 %, over seeds). `--quick` leaves out intervals over images and p values.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from camri.decision import trace
from camri.metrics import Scores
from camri.selection import common_range, compare_curves
from camri.stats import holm, summarise
from camri.study.reader import RunReader, SettingResults
from camri.study.store import ColumnFacts

RULES = ("threshold", "shift")
FIGURES = ("alarms", "accuracy")


def rank_column(
    reading: RunReader,
    column: ColumnFacts,
    split: str,
    recalls: list[float] | None,
    quick: bool,
    control: str = "ce",
) -> list[dict[str, Any]]:
    """A record for each setting of a column, that of `control` first, then the fewest false alarms first."""
    settings = reading.settings(column)
    (baseline,) = (one for one in settings if one.title == control)
    groups = reading.run.groups(split)

    def scores(one: SettingResults) -> dict[int, Scores]:
        return {row.seed: reading.scores(row, split, column) for row in one.rows}

    theirs = scores(baseline)
    grid = common_range(list(theirs.values())) if recalls is None else np.array(recalls)
    records = []
    for one in settings:
        mine = {seed: found for seed, found in scores(one).items() if seed in theirs}
        if not mine:
            continue
        print(f"{column.title}: {one.title}", file=sys.stderr)
        about = {"column": column.title, "setting": one.title, "method": one.method, "knobs": one.knobs, "split": split}
        sides = list(mine.values()), [theirs[seed] for seed in mine]
        records.append({**about, **compare_sides(*sides, grid, groups, quick)})
    rivals = [record for record in records if record["setting"] != control]
    for rule in RULES if not quick else ():
        corrected = holm([record[rule]["p_alarms"] for record in rivals]) if rivals else []
        for record, p in zip(rivals, corrected, strict=True):
            record[rule]["p_alarms_holm"] = float(p)
    rivals.sort(key=lambda record: record["threshold"]["alarms"])
    return [record for record in records if record["setting"] == control] + rivals


def rank_runs(baseline: RunReader, others: Mapping[str, RunReader], column: int, split: str) -> list[dict[str, Any]]:
    """Cross-entropy of other runs, of another training or ensembles, against that of a run: a record each.

    Trials are paired in the order of their seeds; a run with more has the first of them compared.
    """

    def scores(reading: RunReader) -> list[Scores]:
        facts = reading.columns[column]
        (setting,) = (one for one in reading.settings(facts) if one.method == "ce")
        return [reading.scores(row, split, facts) for row in sorted(setting.rows, key=lambda row: row.seed)]

    theirs, title = scores(baseline), baseline.columns[column].title
    grid, groups, records = common_range(theirs), baseline.run.groups(split), []
    for name, mine in {"cross-entropy": theirs, **{name: scores(one) for name, one in others.items()}}.items():
        num = min(len(mine), len(theirs))
        about = {"column": title, "setting": name, "method": "ce", "knobs": {}, "split": split}
        records.append({**about, **compare_sides(mine[:num], theirs[:num], grid, groups, quick=False)})
    return records


def compare_sides(
    arm: Sequence[Scores], other: Sequence[Scores], grid: np.ndarray, groups: np.ndarray | None, quick: bool
) -> dict[str, Any]:
    """An arm as trained, and its difference to the other under each rule."""
    record: dict[str, Any] = {
        "num_seeds": len(arm),
        "recalls": grid.tolist(),
        "recall_as_trained": float(np.mean([found.recall().mean() for found in arm])),
        "accuracy_as_trained": float(np.mean([found.accuracy() for found in arm])),
    }
    for rule in RULES:
        sides = [arm, other] if rule == "shift" else [[found.odds() for found in side] for side in (arm, other)]
        record[rule] = compare_means(*sides, grid) if quick else compare_with_intervals(*sides, grid, groups)
    return record


def compare_means(arm: Sequence[Scores], other: Sequence[Scores], grid: np.ndarray) -> dict[str, float]:
    """False alarms and accuracy of an arm less the other's, mean over the recalls and over seeds.

    `…_up`: the upper end of a 95 % interval over seeds.
    """
    mine, its = (np.array([_figures(one, grid) for one in side]) for side in (arm, other))
    found = {}
    for place, name in enumerate(FIGURES):
        gap = summarise(mine[:, place] - its[:, place])
        found |= {name: gap.mean, f"{name}_up": gap.high, f"{name}_of_ce": float(its[:, place].mean())}
    return found


def compare_with_intervals(
    arm: Sequence[Scores], other: Sequence[Scores], grid: np.ndarray, groups: np.ndarray | None
) -> dict[str, float]:
    """The same with intervals over seeds and images, and p."""
    found = compare_means(arm, other, grid)
    for figure in FIGURES:
        gap = compare_curves(arm, other, seed=0, recall=grid, groups=groups, figure=figure).mean  # type: ignore[arg-type]
        found |= {f"{figure}_low": gap.low, f"{figure}_high": gap.high, f"p_{figure}": gap.p}
    return found


def _figures(scores: Scores, grid: np.ndarray) -> tuple[float, float]:
    curve = trace(scores)
    states = curve.reach(grid)
    return float(curve.alarms[states].mean() / curve.total), float(curve.accuracy[states].mean())


def choose(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The record with the fewest false alarms under the threshold at cross-entropy's accuracy; None if none."""
    able = [one for one in records if one["threshold"]["accuracy_up"] >= 0 and one["threshold"]["alarms"] < 0]
    return min(able, key=lambda one: one["threshold"]["alarms"], default=None)


def show(records: list[dict[str, Any]]) -> str:
    """The records of one column as a Markdown table; false alarms in % of cross-entropy's, accuracy in points."""
    first = records[0]
    of = {rule: f"{100 * first[rule]['alarms_of_ce']:.2f} %" for rule in RULES}
    lines = [
        f"{first['column']}, recalls {first['recalls'][0]:.3f} to {first['recalls'][-1]:.3f}; cross-entropy's false "
        f"alarms {of['threshold']} of all images with a threshold, {of['shift']} with a shift",
        "",
        "| setting | n | false alarms, threshold | accuracy, threshold | false alarms, shift | accuracy, shift "
        "| recall, accuracy as trained |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in records:
        cells = [one["setting"], str(one["num_seeds"])]
        for rule in RULES:
            cells += [_span(one[rule], "alarms", 100 / one[rule]["alarms_of_ce"], 1) + " %"]
            cells += [_span(one[rule], "accuracy", 100, 2)]
        cells += [f"{100 * one['recall_as_trained']:.1f}, {100 * one['accuracy_as_trained']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    chosen = choose(records[1:])
    return "\n".join([*lines, "", f"Chosen: {chosen and chosen['setting']}", ""])


def _span(found: dict[str, float], name: str, scale: float, decimals: int) -> str:
    low, high = (found.get(f"{name}{end}") for end in ("_low", "_high"))
    mean = f"{scale * found[name]:+.{decimals}f}"
    return (
        mean if low is None or high is None else f"{mean} [{scale * low:+.{decimals}f}, {scale * high:+.{decimals}f}]"
    )


def write_json(path: Path, records: list[dict[str, Any]]) -> None:
    """Write the records, numbers with seven digits."""
    text = json.dumps(json.loads(json.dumps(records), parse_float=lambda text: float(f"{float(text):.7g}")), indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    from tools.releases import unpacked  # which imports this module

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder, or a file of results/scores")
    parser.add_argument("--split", default="val", choices=["val", "test"])
    parser.add_argument("--recalls", type=lambda text: [float(word) for word in text.split(",")], default=None)
    parser.add_argument("--control", default="ce", help="the setting to compare with, by its title")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    asked = parser.parse_args()
    records = []
    with unpacked(asked.run) as store, RunReader(store) as reading:
        for column in reading.columns:
            found = rank_column(reading, column, asked.split, asked.recalls, asked.quick, asked.control)
            print(show(found))
            records += found
    if asked.json is not None:
        write_json(asked.json, records)


if __name__ == "__main__":
    main()
