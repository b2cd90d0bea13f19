"""The paper's Table I from a run, and beside it its honest version: chosen on validation data, with controls.

Each is made in two steps: a run -> records (plain numbers, which `results` also keeps) -> the table.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from camri.errors import InputError
from camri.report.numbers import Record, ends_of, interval_of, p_value, spread
from camri.report.reading import Reading, measure
from camri.report.table import BLANK, Cell, Table, cells, table_by_column
from camri.report.titles import in_order, title_of
from camri.report.verdict import ColumnVerdict, Judged, correct_several, gain_over_shifted
from camri.select import OPTIMISTIC, Measured, PaperChoice, mark_best
from camri.stats import Difference, summarise

ROLES = {"camri": "(proposal)", "ce": "(baseline)"}
Gains = tuple[Difference | None, Difference | None, float | None]  # of recall, of accuracy, and p
# One column of Table I: its title, the data set's, the paper's choice of each method, and the numbers of its settings.
PaperColumn = tuple[str, str, Mapping[str, PaperChoice | None], Mapping[str, Measured]]


def table_one(runs: Sequence[tuple[Reading, Sequence[ColumnVerdict]]]) -> Table:
    """Table I as the paper prints it, of one run or of several side by side."""
    return paper_table([paper_records(*run) for run in runs])


def paper_records(reading: Reading, verdicts: Sequence[ColumnVerdict]) -> list[dict[str, Any]]:
    """The numbers of Table I: one record for each column and method, in the table's order of methods."""
    columns: list[PaperColumn] = []
    for one in verdicts:
        if one.baseline is None:
            raise InputError(f"{reading.folder}: Table I needs cross-entropy trials, and there are none")
        shown = {method: one.in_table_one(method) for method in one.paper}
        numbers = {m: measure(setting, one.column.indices) for m, setting in shown.items() if setting is not None}
        columns.append((one.column.title, reading.name, one.paper, numbers))
    records = records_of_columns(columns, reading.methods())
    for record in records:
        setting = verdicts[record["column"]].in_table_one(record["method"])
        record["setting"] = None if setting is None else setting.title
    return records


def records_of_columns(columns: Sequence[PaperColumn], methods: Sequence[str]) -> list[dict[str, Any]]:
    """The records of Table I of given choices."""
    # As in the paper, L2-softmax has no row of its own: it is the m = 0 of CAMRI's and ArcFace's grids.
    rows = [method for method in methods if method != "l2softmax"]
    records = []
    for number, (title, data, paper, numbers) in enumerate(columns):
        bold = mark_best({method: paper.get(method) for method in rows})
        for method in rows:
            choice = paper.get(method)
            record: dict[str, Any] = {"data": data, "column": number, "important": title, "method": method}
            record["setting"] = None if choice is None else choice.key
            if choice is not None:
                record |= figures(numbers[method].recall, numbers[method].accuracy)
            records.append({**record, "bold": method in bold})
    return records


def paper_table(runs: Sequence[Sequence[Record]]) -> Table:
    """Table I of some runs' records: recall above, accuracy below; blank where no setting kept the accuracy."""
    columns = {(run, one["column"]): one for run, records in enumerate(runs) for one in records}
    if not columns:
        raise InputError("Table I needs important classes, and they are not known yet: cross-entropy trials come first")
    found = {(run, one["column"], one["method"]): one for run, records in enumerate(runs) for one in records}
    groups, shown = [], []
    for method in in_order({method for *_, method in found}):
        recalls, accuracies = [Cell(title_of(method))], [Cell(ROLES.get(method, ""))]
        for place in columns:
            record = found.get((*place, method))
            is_blank = record is None or record["setting"] is None
            recalls.append(
                Cell(BLANK) if record is None or is_blank else Cell(spread(record, "recall"), record["bold"])
            )
            accuracies.append(Cell(BLANK) if record is None or is_blank else Cell(spread(record, "accuracy")))
            if record is not None:
                shown.append(record)
        groups.append((tuple(recalls), tuple(accuracies)))
    names = [one["data"] for one in columns.values()]
    return Table(
        caption=f"Table I, as the paper prints it ({OPTIMISTIC}).",
        header=("method", *(one["important"] for one in columns.values())),
        groups=tuple(groups),
        records=tuple(shown),
        notes=(
            "Recall of the important class above, accuracy below: mean ± sd over trials on the test data. Of each "
            "method’s settings whose mean accuracy is not below cross-entropy’s, the one with the highest mean recall; "
            f"{BLANK} where there is none; bold: the highest recall of a column.",
        ),
        spans=tuple((name, len(list(group))) for name, group in itertools.groupby(names)),
    )


def figures(recalls: Sequence[float], accuracies: Sequence[float]) -> dict[str, Any]:
    """Mean and sd of recall and accuracy over trials, and how many they are."""
    found = {"recall": summarise(recalls), "accuracy": summarise(accuracies)}
    numbers = {f"{name}_{part}": getattr(one, part) for name, one in found.items() for part in ("mean", "sd")}
    return {**numbers, "num_trials": len(recalls)}


def honest_table(reading: Reading, verdicts: Sequence[ColumnVerdict]) -> Table | None:
    """Table I chosen on validation data and judged once on test, with its controls; None without validation data."""
    records = honest_records(reading, verdicts)
    return table_of_honest(records) if records else None


def honest_records(reading: Reading, verdicts: Sequence[ColumnVerdict]) -> list[dict[str, Any]]:
    """The numbers of the honest table, a record a row: a column's methods, then its controls."""
    judged = [(one, m, row) for one in verdicts for m, row in one.by_method.items()]
    if not judged:
        return []
    labels = reading.run.labels("test")
    corrected = correct_several([row.p for *_, row in judged])
    p = {(one.column.number, m): value for (one, m, _), value in zip(judged, corrected, strict=True)}
    records = []
    for one in verdicts:
        for method in in_order(one.by_method):
            row = one.by_method[method]
            gains: Gains = (
                (None, None, None) if row.keeps_baseline else (row.gain, row.accuracy, p[one.column.number, method])
            )
            found = _honest_record(one, title_of(method), picked(one, row), row, "chosen", gains)
            records.append({**found, "method": method, "num_settings": len(one.of(method))})
        for row in _one_for_each_control(one):
            assert row.control is not None
            gains = (gain_over_shifted(row, row.control.key, labels, reading.run.groups("test")), None, None)
            title = f"control: L2-softmax at {title_of(row.final.method)}’s scale"
            records.append(_honest_record(one, title, row.control.title, row, row.control.key, gains))
        first = next(iter(one.by_method.values()), None)
        if first is not None:
            for arm, title in (
                ("baseline shifted", "control: cross-entropy, shifted"),
                ("baseline", "control: cross-entropy"),
            ):
                records.append(_honest_record(one, title, "ce", first, arm, (None, None, None)))
    return records


def _honest_record(one: ColumnVerdict, title: str, setting: str, row: Judged, arm: str, gains: Gains) -> dict[str, Any]:
    found = row.judgement.arms[arm]
    gain, accuracy, p = gains
    record: dict[str, Any] = {
        "column": one.column.number,
        "important": one.column.title,
        "row": title,
        "setting": setting,
        "hits": int(found.hits.sum()),
        "num": int(found.num.sum()),
        **figures(found.recall.mean(axis=1).tolist(), found.accuracy.tolist()),
    }
    return {**record, **ends_of("gain_over_shifted_ce", gain), **ends_of("accuracy_change", accuracy), "p_holm": p}


def table_of_honest(records: Sequence[Record]) -> Table:
    """The honest table of its records."""
    return table_by_column(
        records,
        "Table I, honest: chosen on validation data by other seeds than it is judged by; judged on test.",
        (
            "method", "setting picked (seeds)", "recall", "hits / n", "accuracy",
            "recall gained over shifted CE", "p (Holm)", "accuracy against CE", "trials",
        ),
        _honest_row,
        "Every row but “cross-entropy” has its important scores shifted, each model by what its own validation "
        "scores allow at cross-entropy’s accuracy. A method’s row takes cross-entropy (“ce”) where no setting of "
        "the method was better on validation data. Mean ± sd over trials; differences in points of a hundred with "
        "95 % intervals, and p, over seeds and test data, of the seeds that both have; p corrected for all rows. "
        "CE: cross-entropy. A number in brackets: the seeds that were given that setting.",
    )  # fmt: skip


def _honest_row(one: Record) -> tuple[Cell, ...]:
    p, low = one["p_holm"], one["gain_over_shifted_ce_low"]
    is_sure = p is not None and low is not None and low > 0 and p < 0.05
    return (
        *cells(
            one["row"], one["setting"], spread(one, "recall"), f"{one['hits']}/{one['num']}", spread(one, "accuracy")
        ),
        Cell(interval_of(one, "gain_over_shifted_ce"), bold=is_sure),
        *cells(p_value(p), interval_of(one, "accuracy_change"), str(one["num_trials"])),
    )


def picked(one: ColumnVerdict, row: Judged, in_words: bool = False) -> str:
    """The settings that the judged seeds were given, the most frequent first; of several, each with its seeds."""
    keys = row.judgement.arms["chosen"].keys
    names = {key: one.find(key, row.final.method).title for key in keys}
    counted = sorted(((keys.count(key), name) for key, name in names.items()), key=lambda pair: -pair[0])
    return (
        counted[0][1]
        if len(counted) == 1
        else ", ".join(f"{name} ({_seeds(count) if in_words else count})" for count, name in counted)
    )


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _one_for_each_control(one: ColumnVerdict) -> list[Judged]:
    """Judgements whose L2-softmax control is not shown by one before them."""
    found: dict[str, Judged] = {}
    for row in one.by_method.values():
        if row.control is not None and row.final.method != "l2softmax":
            found.setdefault(row.control.key, row)
    return list(found.values())
