"""Accuracy at equal recall: whether a method's whole curve is above cross-entropy's."""

from collections.abc import Mapping, Sequence
from typing import Any

from camri.curves import compare_curves
from camri.report.reading import BASELINE, TITLES, Planned, Reading
from camri.report.table import BLANK, Cell, Table, cells
from camri.report.tables import figures, spread
from camri.report.verdict import SEED, ColumnVerdict

ENDS = ("", "_low", "_high")


def gap_table(reading: Reading, verdicts: Sequence[ColumnVerdict]) -> Table | None:
    """The table of a run; None where nothing can be compared."""
    records = gap_records(reading, verdicts)
    return table_of_gaps(records) if records else None


def gap_records(reading: Reading, verdicts: Sequence[ColumnVerdict]) -> list[dict[str, Any]]:
    """A record for each column and method: its setting that is best on validation data against cross-entropy."""
    return [
        {"column": one.column.number, "important": one.column.title, "method": method, "setting": setting.title, **gap}
        for one in verdicts
        for method in TITLES
        if method != BASELINE and (setting := one.own.get(method)) is not None
        if (gap := _gap(reading, one, setting)) is not None
    ]


def _gap(reading: Reading, one: ColumnVerdict, setting: Planned) -> dict[str, Any] | None:
    assert one.baseline is not None
    theirs = {row.seed: row for row in one.baseline.rows}
    pairs = [(row, theirs[row.seed]) for row in setting.rows if row.seed in theirs]
    if not pairs:
        return None
    arm, baseline = ([reading.scores(row, "test", one.column) for row in side] for side in zip(*pairs, strict=True))
    found = compare_curves(arm, baseline, seed=SEED)
    recalls, accuracies = [float(s.recall().mean()) for s in arm], [s.accuracy() for s in arm]
    record: dict[str, Any] = {
        **figures(recalls, accuracies),
        "recall_from": float(found.recall[0]),
        "recall_to": float(found.recall[-1]),
    }
    for name, difference in (("mean", found.mean), ("first", found.at[0]), ("last", found.at[-1])):
        ends = (difference.estimate, difference.low, difference.high)
        record |= {f"{name}{end}": value for end, value in zip(ENDS, ends, strict=True)}
    return record


def table_of_gaps(records: Sequence[Mapping[str, Any]]) -> Table:
    """The table of its records."""
    columns = {one["column"]: one["important"] for one in records}
    return Table(
        caption="Accuracy at equal recall, against cross-entropy: is the whole curve higher?",
        header=(
            "method",
            "setting",
            "recall as trained",
            "accuracy as trained",
            "gap: mean over the range",
            "at its lower end",
            "at its upper end",
            "range",
            "trials",
        ),
        groups=tuple(tuple(_row(one) for one in records if one["column"] == number) for number in columns),
        titles=tuple(f"important: {title}" for title in columns.values()),
        words=("setting",),
        records=tuple(records),
        notes=(
            "Test images. Every model is shifted until it reaches a recall, cross-entropy’s too, so nothing is chosen "
            "here but the setting, which is the method’s best on validation images. The range: from cross-entropy’s "
            "own recall to where half of its misses are found. Points of a hundred with 95 % intervals over seeds and "
            "images; bold: above 0, not corrected for being several. As trained: without any shift.",
        ),
    )


def _row(one: Mapping[str, Any]) -> tuple[Cell, ...]:
    lower, upper = f"{one['recall_from']:.3f}", f"{one['recall_to']:.3f}"
    return (
        *cells(TITLES[one["method"]], one["setting"], spread(one, "recall"), spread(one, "accuracy")),
        Cell(gap_of(one, "mean"), bold=one["num_trials"] > 1 and one["mean_low"] > 0),
        *cells(gap_of(one, "first"), gap_of(one, "last"), f"{lower} – {upper}", str(one["num_trials"])),
    )


def gap_of(record: Mapping[str, Any] | None, name: str) -> str:
    """A difference of accuracies in points, with two decimals, and its interval.

    >>> gap_of({"mean": -0.0005, "mean_low": -0.0028, "mean_high": 0.0017}, "mean")
    '−0.05 [−0.28, +0.17]'
    """
    if record is None:
        return BLANK
    estimate, low, high = (f"{100 * record[f'{name}{end}']:+.2f}".replace("-", "−") for end in ENDS)
    return f"{estimate} [{low}, {high}]"
