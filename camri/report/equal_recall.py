"""What a method's training changes: as trained, and at equal recall, where a shift that everybody can add is taken out.

The tables are made of the same records, a method of a column each, against cross-entropy of the same seeds.

The differences at equal recall as a picture: a dot and an interval for each method.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from camri.methods import BASELINE, in_order, title_of
from camri.metrics import Scores
from camri.report.table import (
    BLANK,
    Cell,
    Record,
    Table,
    cells,
    ends_of,
    interval_of,
    p_value,
    percent,
    points,
    spread,
    table_by_column,
)
from camri.report.tables import figures
from camri.report.theme import PRINT, Figure, Look, Panel, drawing
from camri.selection import CurveFigure, Gap, common_range, compare_curves
from camri.stats import Difference, compare
from camri.study.reader import RunReader, SettingResults
from camri.study.schema import Row
from camri.study.verdict import SEED, ColumnVerdict, control_among, correct_several
from camri.text import quoted

CHOSEN = "The setting is the method’s best on validation data."


def gap_records(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> list[dict[str, Any]]:
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


def _gap(reading: RunReader, one: ColumnVerdict, setting: SettingResults) -> dict[str, Any] | None:
    assert one.baseline is not None
    theirs, control = _by_seed(one.baseline), control_among(setting, one.settings)
    rows = [row for row in setting.rows if row.seed in theirs]
    if not rows:
        return None

    def scores(rows: Sequence[Row]) -> list[Scores]:
        return [reading.scores(row, "test", one.column) for row in rows]

    arm, baseline = scores(rows), scores([theirs[row.seed] for row in rows])
    plain = [] if control is None else scores([_by_seed(control)[row.seed] for row in rows])
    recall = common_range(baseline, arm, plain)
    labels, groups = reading.run.labels("test"), reading.run.groups("test")

    def over(other: Sequence[Scores], figure: CurveFigure) -> Gap:
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


def _by_seed(setting: SettingResults) -> dict[int, Row]:
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
            *cells(title_of(one["method"]), one["setting"], percent(rate)),
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


FIGURES = {"mean": "accuracy", "alarms": "false alarms"}  # of a gap's record
FAR = 0.1  # of accuracy: a method so much below has not trained, and would press the others into a line
ROW_HEIGHT = 22


def draw_gaps(records: Sequence[Mapping[str, Any]], look: Look = PRINT) -> Figure | None:
    """Accuracy and false alarms at equal recall against cross-entropy's, a panel each for a column; None of nothing."""
    far = dict.fromkeys(title_of(one["method"]) for one in records if _is_far(one))
    near = [one for one in records if not _is_far(one)]
    drawn = [_point(one, name) for one in near for name in FIGURES if _is_told(one, name)]
    panels = []
    for number, important in dict.fromkeys((one["column"], one["important"]) for one in near):
        for name, title in FIGURES.items():
            points = [one for one in drawn if (one["column"], one["figure"]) == (number, name)]
            if points:
                ends = [end for one in drawn if one["figure"] == name for end in (one["low"], one["high"])]
                chart = _chart(points, [one["method"] for one in near if one["column"] == number], ends, look)
                panels.append(Panel(f"{quoted(important)}: {title}", chart, ROW_HEIGHT * (len(points) + 1)))
    if not panels:
        return None
    left_out = f" Not drawn, as more than {100 * FAR:.0f} points less accurate: {', '.join(far)}." if far else ""
    return Figure(
        "gaps",
        "At equal recall",
        "Every model is shifted to the same recalls; test data, mean over the range, differences from cross-entropy in "
        "points of a hundred. Dots: each method at its best setting on validation data; lines: 95 % intervals over "
        "seeds and test data, not corrected for several rows. More accurate is further right, fewer false alarms is "
        f"further left; a line that crosses 0 may be chance.{left_out}",
        tuple(panels),
        tuple(drawn),
        across=len(FIGURES),
    )


def _is_told(one: Mapping[str, Any], name: str) -> bool:
    return one.get(name) is not None and one.get(f"{name}_low") is not None


def _is_far(one: Mapping[str, Any]) -> bool:
    return _is_told(one, "mean") and one["mean"] < -FAR


def _point(one: Mapping[str, Any], name: str) -> dict[str, Any]:
    values = {"change": one[name], "low": one[f"{name}_low"], "high": one[f"{name}_high"]}
    return {
        "column": one["column"],
        "figure": name,
        "method": title_of(one["method"]),
        "setting": one["setting"],
        "trials": one["num_trials"],
        **{key: round(100 * value, 3) for key, value in values.items()},
    }


def _chart(points: Sequence[Mapping[str, Any]], methods: Sequence[str], ends: Sequence[float], look: Look) -> Any:
    """One panel; `ends` are those of all intervals of the figure, so that columns can be compared."""
    colors, _ = look.methods(methods)
    low, high = min(0.0, *ends), max(0.0, *ends)
    room = 0.05 * (high - low)
    scale = alt.Scale(domain=[low - room, high + room], nice=False)
    base = drawing(points).encode(
        y=alt.Y("method:N", title=None, sort=[one["method"] for one in points]),
        color=alt.Color("method:N", scale=colors, legend=None),
        tooltip=["method:N", "setting:N", "change:Q", "low:Q", "high:Q", "trials:Q"],
    )
    zero = drawing([{"at": 0}]).mark_rule(strokeDash=[4, 3], color=look.muted).encode(x="at:Q")
    along = alt.X("low:Q", title="points of a hundred", scale=scale)
    line, dot = base.mark_rule(strokeWidth=2.5), base.mark_point(filled=True, size=70, opacity=1)
    return alt.layer(zero, line.encode(along, alt.X2("high:Q")), dot.encode(alt.X("change:Q")))
