"""Table II: how narrow the classes are, as the sd of the angle between features and their class's weight vector."""

from collections.abc import Sequence

import numpy as np

from camri.errors import InputError
from camri.report.reading import TITLES, Planned, Reading
from camri.report.table import BLANK, Cell, Table
from camri.report.verdict import ColumnVerdict

WCE_WEIGHT = 4.0  # the paper measures WCE at this one


def compared(one: ColumnVerdict) -> dict[str, Planned | None]:
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


def table_two(reading: Reading, verdicts: Sequence[ColumnVerdict]) -> Table:
    """Table II: sd of the angles of the important class, and the minimum and median of the others; smallest in bold."""
    if not verdicts:
        raise InputError(
            "Table II needs important classes, and they are not known yet: cross-entropy trials come first"
        )
    names = list(compared(verdicts[0]))
    groups, records = [], []
    for one in verdicts:
        title = one.column.title
        lines: dict[str, list[Cell]] = {
            f"{title} (important)": [],
            f"min excl. {title}": [],
            f"median excl. {title}": [],
        }
        for name, setting in compared(one).items():
            values = [None] * 3 if setting is None else _three(reading, setting, one.column.indices)
            smallest = min((value for value in values if value is not None), default=None)
            for (line, shown), value in zip(lines.items(), values, strict=True):
                shown.append(Cell(BLANK) if value is None else Cell(f"{value:.4f}", bold=value == smallest))
                records.append(
                    {
                        "important": title,
                        "line": line,
                        "method": name,
                        "setting": setting and setting.title,
                        "sd_rad": value,
                    }
                )
        groups.append(tuple((Cell(line), *shown) for line, shown in lines.items()))
    return Table(
        caption="Table II. Standard deviation of the angle (radians) between features and their class’s weight vector.",
        header=("class", *names),
        groups=tuple(groups),
        records=tuple(records),
        notes=(
            "Mean over trials, test images; bold: the smallest of a method’s three. CAMRI and ArcFace at their Table I "
            "settings (by validation where that cell is blank), L2-softmax at CAMRI’s scale.",
        ),
    )


def _three(reading: Reading, setting: Planned, important: Sequence[int]) -> list[float]:
    """sd of the important classes (their mean), minimum and median of the others."""
    _, sd = reading.angles(setting)
    is_important = np.isin(np.arange(len(sd)), important)
    others = sd[~is_important]
    return [float(np.nanmean(sd[is_important])), float(np.nanmin(others)), float(np.nanmedian(others))]
