"""Every setting of a run by false alarms at equal recall against cross-entropy, under both free decision rules.

Every model is brought to the same recalls by a threshold on the class's probability, and by a shift of its score;
cross-entropy of the same seeds under the same rule is the baseline. On validation data it serves to choose.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from camri.decision import trace
from camri.decision.scores import Array, Scores
from camri.decision.stats import holm, summarise
from camri.errors import InputError, closest
from camri.selection import CurveFigure, common_range, compare_curves
from camri.study.reader import SEED, RunReader
from camri.study.store import ColumnFacts

RULES = ("threshold", "shift")
FIGURES: tuple[CurveFigure, ...] = ("alarms", "accuracy")
SPLITS = ("test", "val")


def rank_settings(
    reading: RunReader, split: str = "test", recalls: Sequence[float] | None = None, control: str = "ce"
) -> list[dict[str, Any]]:
    """The records of every column, one column after the other."""
    if split not in SPLITS:
        raise InputError(f"split={split!r} has no scores; {closest(split, SPLITS)}", argument="split")
    if split == "val" and not reading.has_validation:
        raise InputError("no validation data were held out; rank by --split test", argument="split")
    records = []
    for column in reading.columns:
        reading.begin(f"ranking the settings of {column.title}")
        records += rank_column(reading, column, split, recalls, control=control)
    return records


def rank_column(
    reading: RunReader,
    column: ColumnFacts,
    split: str,
    recalls: Sequence[float] | None = None,
    *,
    quick: bool = False,
    control: str = "ce",
) -> list[dict[str, Any]]:
    """A record for each setting of a column, that of `control` first, then the fewest false alarms first.

    quick: without intervals over images and p values.
    """
    settings = reading.settings(column)
    baseline = next((one for one in settings if one.title == control), None)
    if baseline is None:
        titles = [one.title for one in settings]
        raise InputError(f"control={control!r} is no setting of {column.title}; {closest(control, titles)}", "control")
    groups = reading.run.groups(split)
    theirs = {row.seed: reading.scores(row, split, column) for row in baseline.rows}
    grid = common_range(list(theirs.values())) if recalls is None else np.array(recalls)
    records = []
    for one in settings:
        mine = {row.seed: reading.scores(row, split, column) for row in one.rows if row.seed in theirs}
        if mine:
            about = {"column": column.title, "setting": one.title, "method": one.method, "knobs": one.knobs}
            sides = list(mine.values()), [theirs[seed] for seed in mine]
            records.append({**about, "split": split, **compare_sides(*sides, grid, groups, quick)})
    rivals = [record for record in records if record["setting"] != control]
    for rule in RULES if rivals and not quick else ():
        corrected = holm([record[rule]["p_alarms"] for record in rivals])
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
        records.append({**about, **compare_sides(mine[:num], theirs[:num], grid, groups)})
    return records


def compare_sides(
    arm: Sequence[Scores], other: Sequence[Scores], grid: Array, groups: Array | None, quick: bool = False
) -> dict[str, Any]:
    """An arm as trained, and its difference to the other under each rule."""
    record: dict[str, Any] = {
        "num_seeds": len(arm),
        "recalls": grid.tolist(),
        "recall_as_trained": float(np.mean([found.recall().mean() for found in arm])),
        "accuracy_as_trained": float(np.mean([found.accuracy() for found in arm])),
    }
    for rule in RULES:
        one, two = (list(side) if rule == "shift" else [found.odds() for found in side] for side in (arm, other))
        record[rule] = compare_means(one, two, grid) if quick else compare_with_intervals(one, two, grid, groups)
    return record


def compare_means(arm: Sequence[Scores], other: Sequence[Scores], grid: Array) -> dict[str, float]:
    """False alarms and accuracy of an arm less the other's, mean over the recalls and over seeds.

    `…_up`: the upper end of a 95 % interval over seeds.
    """
    mine, its = (np.array([_figures(one, grid) for one in side]) for side in (arm, other))
    found: dict[str, float] = {}
    for place, name in enumerate(FIGURES):
        gap = summarise(mine[:, place] - its[:, place])
        found |= {name: gap.mean, f"{name}_up": gap.high, f"{name}_of_ce": float(its[:, place].mean())}
    return found


def compare_with_intervals(
    arm: Sequence[Scores], other: Sequence[Scores], grid: Array, groups: Array | None
) -> dict[str, float]:
    """The same with intervals over seeds and images, and p."""
    found = compare_means(arm, other, grid)
    for figure in FIGURES:
        gap = compare_curves(arm, other, seed=SEED, recall=grid, groups=groups, figure=figure).mean
        found |= {f"{figure}_low": gap.low, f"{figure}_high": gap.high, f"p_{figure}": gap.p}
    return found


def _figures(scores: Scores, grid: Array) -> tuple[float, float]:
    curve = trace(scores)
    states = curve.reach(grid)
    return float(curve.alarms[states].mean() / curve.total), float(curve.accuracy[states].mean())
