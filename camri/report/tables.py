"""How far confidence is from being right, before and after a shift: a table from the judged arms.

Table II: how narrow the classes are, as the sd of the angle between features and their class's weight vector.

What each step of `camri fit` gave, apart: better training, the shift, the method. Read from the run's notes.

The paper's Table I from a run, and beside it its honest version: chosen on validation data, with controls.

Each is made in two steps: a run -> records (plain numbers, which `results` also keeps) -> the table.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from camri.errors import InputError
from camri.methods import in_order, title_of
from camri.report.table import (
    BLANK,
    Cell,
    Record,
    Table,
    cells,
    ends_of,
    interval_of,
    p_value,
    spread,
    table_by_column,
)
from camri.selection import OPTIMISTIC, Measured, PaperChoice, mark_best
from camri.stats import Difference, summarise
from camri.study.reader import RunReader, SettingResults, measure
from camri.study.verdict import ColumnVerdict, Judged, correct_several, gain_over_shifted

ARMS = {"baseline": "cross-entropy", "baseline shifted": "cross-entropy, shifted", "chosen": "chosen, shifted"}


def calibration_table(verdicts: Sequence[ColumnVerdict]) -> Table | None:
    """Expected calibration error of the chosen models and their controls on test images; None without a choice."""
    groups, records, titles = [], [], []
    for one in verdicts:
        if one.best is None:
            continue
        rows = []
        for name, title in ARMS.items():
            arm = one.best.judgement.arms[name]
            error, accuracy = arm.calibration.ece, float(arm.accuracy.mean())
            rows.append(cells(title, f"{error:.4f}", f"{accuracy:.3f}"))
            records.append({"important": one.column.title, "model": title, "ece": error, "accuracy": accuracy})
        groups.append(tuple(rows))
        titles.append(f"important: {one.column.title}")
    if not groups:
        return None
    return Table(
        "Calibration: expected calibration error on test data.",
        ("models", "ECE", "accuracy"),
        tuple(groups),
        tuple(records),
        notes=(
            "The mean distance between a model’s confidence in its guess and how often such guesses are right, over 15 "
            "bins and all trials. A shift, a margin and a scale all move it: calibrate before using probabilities.",
        ),
        titles=tuple(titles),
    )


ANGLES_OF = {"train": "training data", "test": "test data"}
WCE_WEIGHT = 4.0  # the paper measures WCE at this one


def compared(one: ColumnVerdict) -> dict[str, SettingResults | None]:
    """Table II's columns: CAMRI and ArcFace at their Table I settings, WCE at w = 4, L2-softmax at CAMRI's scale, CE.

    Where Table I leaves a cell blank, the method's setting that stands for it in the charts.
    """
    found = {title_of(method): one.in_table_one(method) or one.shown(method) for method in ("camri", "arcface")}
    found["WCE (w = 4)"] = next((s for s in one.of("wce") if s.value("w") == WCE_WEIGHT), None)
    camri = found["CAMRI"]
    plain = [s for s in one.settings if s.method == "l2softmax" or (s.method == "arcface" and s.value("m") == 0)]
    found["L2-softmax"] = next((s for s in plain if camri is None or s.value("s") == camri.value("s")), None)
    found["cross-entropy"] = one.baseline
    return found


def angle_records(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> list[dict[str, Any]]:
    """The numbers of Table II: three records for each column and method."""
    if not verdicts:
        raise InputError(
            "Table II needs important classes, and they are not known yet: cross-entropy trials come first"
        )
    records = []
    for one in verdicts:
        title = one.column.title
        for name, setting in compared(one).items():
            values = [None] * 3 if setting is None else _three(reading, setting, one.column.indices)
            lines = (f"{title} (important)", f"min excl. {title}", f"median excl. {title}")
            records += [
                {
                    "column": one.column.number,
                    "important": title,
                    "line": line,
                    "method": name,
                    "setting": None if setting is None else setting.title,
                    "num_trials": 0 if setting is None else len(setting.rows),
                    "images": reading.angles_of,
                    "sd_rad": value,
                }
                for line, value in zip(lines, values, strict=True)
            ]
    return records


def table_of_angles(records: Sequence[Mapping[str, Any]]) -> Table:
    """Table II of its records: the important class, the minimum and median of the others; the smallest in bold."""
    names = list(dict.fromkeys(one["method"] for one in records))
    groups = []
    for number in dict.fromkeys(one["column"] for one in records):
        own = [one for one in records if one["column"] == number]
        smallest = {n: min((r["sd_rad"] for r in own if r["method"] == n and r["sd_rad"] is not None), default=None)
                    for n in names}  # fmt: skip
        lines: dict[str, list[Cell]] = {}
        for one in own:
            value = one["sd_rad"]
            cell = Cell(BLANK) if value is None else Cell(f"{value:.4f}", bold=value == smallest[one["method"]])
            lines.setdefault(one["line"], []).append(cell)
        groups.append(tuple((Cell(line), *shown) for line, shown in lines.items()))
    return Table(
        caption="Table II. Standard deviation of the angle (radians) between features and their class’s weight vector.",
        header=("class", *names),
        groups=tuple(groups),
        records=tuple(records),
        notes=(
            f"Mean over trials, {ANGLES_OF[records[0]['images']]}; bold: the smallest of a method’s three. CAMRI and "
            "ArcFace at their Table I settings (by validation where that cell is blank), L2-softmax at CAMRI’s scale; "
            f"{BLANK} where it was not trained, or the classes have no data.",
        ),
    )


def _three(reading: RunReader, setting: SettingResults, important: Sequence[int]) -> list[float | None]:
    """sd of the important classes (their mean), minimum and median of the others; None of classes without data."""
    _, sd = reading.angles(setting)
    is_important, is_known = np.isin(np.arange(len(sd)), important), np.isfinite(sd)
    own, others = sd[is_important & is_known], sd[~is_important & is_known]
    return [
        float(statistic(values)) if len(values) else None
        for statistic, values in ((np.mean, own), (np.min, others), (np.median, others))
    ]


NOTE = "steps"  # of the store: header, rows, note and records, written by a fit


def steps_table(reading: RunReader) -> Table | None:
    """The table of steps as the fit wrote it; None for a run that was no fit."""
    steps = reading.run.note(NOTE)
    if not steps:
        return None
    return Table(
        caption="From plain cross-entropy to what was chosen, step by step.",
        header=tuple(steps["header"]),
        groups=(tuple(cells(*row) for row in steps["rows"]),),
        records=tuple(steps["records"]),
        notes=(steps["note"],),
    )


ROLES = {"camri": "(proposal)", "ce": "(baseline)"}
Gains = tuple[Difference | None, Difference | None, float | None]  # of recall, of accuracy, and p
# One column of Table I: its title, the data set's, the paper's choice of each method, and the numbers of its settings.
PaperColumn = tuple[str, str, Mapping[str, PaperChoice | None], Mapping[str, Measured]]


def table_one(runs: Sequence[tuple[RunReader, Sequence[ColumnVerdict]]]) -> Table:
    """Table I as the paper prints it, of one run or of several side by side."""
    return paper_table([paper_records(*run) for run in runs])


def paper_records(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> list[dict[str, Any]]:
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


def honest_table(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> Table | None:
    """Table I chosen on validation data and judged once on test, with its controls; None without validation data."""
    records = honest_records(reading, verdicts)
    return table_of_honest(records) if records else None


def honest_records(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> list[dict[str, Any]]:
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
