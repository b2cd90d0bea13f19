"""What a method's training changes: as trained, and at equal recall, where a shift that everybody can add is taken out.

The tables are made of the same records, a method of a column each, against cross-entropy of the same seeds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from camri.curves import Figure, Gap, common_range, compare_curves
from camri.metrics import Scores
from camri.report.numbers import Record, ends_of, in_a_hundred, interval_of, p_value, points, spread
from camri.report.reading import Reading, Tried
from camri.report.table import BLANK, Cell, Table, cells, table_by_column
from camri.report.tables import figures
from camri.report.titles import BASELINE, in_order, title_of
from camri.report.verdict import SEED, ColumnVerdict, correct_several, same_scale
from camri.stats import Difference, compare
from camri.study.records import Row
from camri.words import quoted

CHOSEN = "The setting is the method’s best on validation data."


def gap_records(reading: Reading, verdicts: Sequence[ColumnVerdict]) -> list[dict[str, Any]]:
    """A record for each column and method: its setting that is best on validation data against cross-entropy.

    p is of the mean gap, over seeds and test data, corrected for all of them (Holm); p_alarms that of false alarms.
    """
    records = []
    for one in verdicts:
        reading.begin(f"comparing the curves of {quoted(one.column.title)}")
        about = {"column": one.column.number, "important": one.column.title}
        for method in in_order(set(one.own) - {BASELINE}):
            gap = _gap(reading, one, one.own[method])
            if gap is not None:
                records.append({**about, "method": method, "setting": one.own[method].title, **gap})
    for old, new in (("p", "p_holm"), ("p_alarms", "p_alarms_holm")):
        corrected = correct_several([record.pop(old) for record in records])
        for record, p in zip(records, corrected, strict=True):
            record[new] = p
    return records


def _gap(reading: Reading, one: ColumnVerdict, setting: Tried) -> dict[str, Any] | None:
    assert one.baseline is not None
    theirs, control = _by_seed(one.baseline), same_scale(setting, one.settings)
    rows = [row for row in setting.rows if row.seed in theirs]
    if not rows:
        return None

    def scores(rows: Sequence[Row]) -> list[Scores]:
        return [reading.scores(row, "test", one.column) for row in rows]

    arm, baseline = scores(rows), scores([theirs[row.seed] for row in rows])
    plain = [] if control is None else scores([_by_seed(control)[row.seed] for row in rows])
    recall = common_range(baseline, arm, plain)
    labels, groups = reading.run.labels("test"), reading.run.groups("test")

    def over(other: Sequence[Scores], figure: Figure) -> Gap:
        return compare_curves(arm, other, seed=SEED, recall=recall, groups=groups, figure=figure)

    found, alarms = over(baseline, "accuracy"), over(baseline, "alarms")
    own = np.isin(labels, one.column.indices)
    own_groups = None if groups is None else groups[own]
    mine, its = (np.array([s.correct() for s in side]) for side in (arm, baseline))
    differences: dict[str, Difference | None] = {
        "recall_change": compare(mine[:, own], its[:, own], parts=labels[own], groups=own_groups, seed=SEED),
        "accuracy_change": compare(mine, its, groups=groups, seed=SEED),
        "mean": found.mean,
        "first": found.at(0),
        "last": found.at(-1),
        "over_l2softmax": over(plain, "accuracy").mean if plain else None,
        "alarms": alarms.mean,
        "alarms_over_l2softmax": over(plain, "alarms").mean if plain else None,
    }
    record: dict[str, Any] = {
        **figures([float(s.recall().mean()) for s in arm], [s.accuracy() for s in arm]),
        "recall_from": float(recall[0]),
        "recall_to": float(recall[-1]),
        "p": found.mean.p,
        "p_alarms": alarms.mean.p,
        "alarms_of_ce": float(alarms.baseline.mean()),
    }
    for name, difference in differences.items():
        record |= ends_of(name, difference)
    return record


def _by_seed(setting: Tried) -> dict[int, Row]:
    return {row.seed: row for row in setting.rows}


def table_of_trained(records: Sequence[Record]) -> Table:
    """The models as trained against cross-entropy, of the records."""

    def row(one: Record) -> tuple[Cell, ...]:
        numbers = (spread(one, "recall"), interval_of(one, "recall_change"), spread(one, "accuracy"))
        return cells(
            title_of(one["method"]), one["setting"], *numbers, gap_of(one, "accuracy_change"), str(one["num_trials"])
        )

    return table_by_column(
        records,
        "As trained, against cross-entropy: no model is shifted.",
        ("method", "setting", "recall", "gained over CE", "accuracy", "against CE", "trials"),
        row,
        f"Test data. {CHOSEN} Mean ± sd over trials; differences in points of a hundred with "
        "95 % intervals over seeds and test data. CE: cross-entropy.",
    )


def table_of_gaps(records: Sequence[Record]) -> Table:
    """The curves against cross-entropy's, of the records."""

    def row(one: Record) -> tuple[Cell, ...]:
        p = one["p_holm"]
        ends = (("first", "recall_from"), ("last", "recall_to"))
        return (
            *cells(title_of(one["method"]), one["setting"]),
            Cell(gap_of(one, "mean"), bold=one["mean_low"] > 0 and p is not None and p < 0.05),
            *cells(
                p_value(p), ", ".join(f"{points(one[gap], decimals=2)} at {one[recall]:.3f}" for gap, recall in ends)
            ),
            *cells(gap_of(one, "over_l2softmax"), str(one["num_trials"])),
        )

    return table_by_column(
        records,
        "Accuracy at equal recall, against cross-entropy: is the whole curve higher?",
        (
            "method",
            "setting",
            "gap: mean over the range",
            "p (Holm)",
            "at the ends of the range",
            "against L2-softmax at its scale",
            "trials",
        ),
        row,
        "Test data. Every model is shifted until it reaches a recall, cross-entropy’s too, so nothing is chosen here "
        f"but the setting. {CHOSEN} The range: from cross-entropy’s own recall to where half of what a shift can find "
        "is found (of one class, half of its misses). Against L2-softmax: the same mean, but over the cosine head "
        "without a margin. Points of a hundred with 95 % intervals, and p of the mean, over seeds and test data; p "
        "corrected for all rows of the study; bold: above 0, p below 0.05.",
    )


def table_of_alarms(records: Sequence[Record]) -> Table | None:
    """False alarms at equal recall, of the records; None where they were not counted."""
    told = [one for one in records if one.get("alarms") is not None]
    if not told:
        return None

    def row(one: Record) -> tuple[Cell, ...]:
        p, rate = one["p_alarms_holm"], one["alarms_of_ce"]
        return (
            *cells(title_of(one["method"]), one["setting"], in_a_hundred(rate)),
            Cell(gap_of(one, "alarms"), bold=one["alarms_high"] < 0 and p is not None and p < 0.05),
            *cells(f"{points(one['alarms'] / rate, decimals=0)} %" if rate else BLANK, p_value(p)),
            *cells(gap_of(one, "alarms_over_l2softmax"), str(one["num_trials"])),
        )

    return table_by_column(
        told,
        "False alarms at equal recall, against cross-entropy: is the class told from the others more surely?",
        (
            "method",
            "setting",
            "cross-entropy’s",
            "change",
            "that is",
            "p (Holm)",
            "against L2-softmax at its scale",
            "trials",
        ),
        row,
        "Test data. A false alarm: of no important class, and taken for one; in a hundred of all. Shifted to the same "
        f"recalls as in the table above, mean over the range. {CHOSEN} A method may have fewer of them and the same "
        "accuracy: the other classes are then confused with each other more. 95 % intervals and p, over seeds and test "
        "data; p corrected for all rows of the study; bold: fewer, p below 0.05.",
    )


def gap_of(record: Record, name: str) -> str:
    """A difference of accuracies, which are smaller than those of recalls: with two decimals.

    >>> gap_of({"mean": 0.0005, "mean_low": -0.0028, "mean_high": 0.00004}, "mean")
    '+0.05 [−0.28, 0.00]'
    """
    return interval_of(record, name, decimals=2)
