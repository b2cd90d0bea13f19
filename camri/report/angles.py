"""Table II: how narrow the classes are, as the sd of the angle between features and their class's weight vector."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from camri.errors import InputError
from camri.report.reading import Reading, Tried
from camri.report.table import BLANK, Cell, Table
from camri.report.titles import TITLES
from camri.report.verdict import ColumnVerdict

ANGLES_OF = {"train": "training data", "test": "test data"}
WCE_WEIGHT = 4.0  # the paper measures WCE at this one


def compared(one: ColumnVerdict) -> dict[str, Tried | None]:
    """Table II's columns: CAMRI and ArcFace at their Table I settings, WCE at w = 4, L2-softmax at CAMRI's scale, CE.

    Where Table I leaves a cell blank, the method's setting that stands for it in the charts.
    """
    found = {TITLES[method]: one.in_table_one(method) or one.shown(method) for method in ("camri", "arcface")}
    found["WCE (w = 4)"] = next((s for s in one.of("wce") if s.value("w") == WCE_WEIGHT), None)
    camri = found["CAMRI"]
    plain = [s for s in one.settings if s.method == "l2softmax" or (s.method == "arcface" and s.value("m") == 0)]
    found["L2-softmax"] = next((s for s in plain if camri is None or s.value("s") == camri.value("s")), None)
    found["cross-entropy"] = one.baseline
    return found


def angle_records(reading: Reading, verdicts: Sequence[ColumnVerdict]) -> list[dict[str, Any]]:
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


def _three(reading: Reading, setting: Tried, important: Sequence[int]) -> list[float | None]:
    """sd of the important classes (their mean), minimum and median of the others; None of classes without data."""
    _, sd = reading.angles(setting)
    is_important, is_known = np.isin(np.arange(len(sd)), important), np.isfinite(sd)
    own, others = sd[is_important & is_known], sd[~is_important & is_known]
    return [
        float(statistic(values)) if len(values) else None
        for statistic, values in ((np.mean, own), (np.min, others), (np.median, others))
    ]
