"""The recall–accuracy curve of every method under a shift of the important classes' scores."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from camri.posthoc import Curve, average, trace
from camri.report.reading import BASELINE, TITLES, Planned, Reading, quoted
from camri.report.theme import PRINT, Figure, Look, Panel, drawing
from camri.report.verdict import ColumnVerdict

DEPTH = 0.03  # of accuracy below the baseline's: further down nobody wants to be
BACK = 0.15  # of recall below the least of the models as trained: the curve's other end is of no use


def curves(reading: Reading, verdicts: Sequence[ColumnVerdict], look: Look = PRINT) -> Figure:
    """Accuracy against the important class's recall under the shift, one line a method, with a band of one sd."""
    panels: list[Panel] = []
    records: list[dict[str, Any]] = []
    for one in verdicts:
        methods = [name for name in reading.methods() if one.of(name)]
        found = [(name, setting) for name in methods if (setting := one.shown(name)) is not None]
        lines, starts = _curve_records(reading, one, found)
        records += lines
        colors, dashes = look.methods([name for name, _ in found])
        panels.append(
            Panel(quoted(one.column.title), _curve_chart(lines, starts, colors, dashes, one.column.number, look), 340)
        )
    return Figure(
        "curve",
        "The curve: what recall costs",
        "Adding a constant to the important class’s score moves any trained model along its line. A line above "
        "cross-entropy’s is a better model; a point further right on the same line is only another shift. Dots: the "
        "models as trained. Lines: mean over trials on test images, each method at its best setting on validation "
        "data; bands: ± one standard deviation. The dashed rule is cross-entropy’s accuracy.",
        tuple(panels),
        tuple(records),
    )


def _curve_records(
    reading: Reading, one: ColumnVerdict, found: Sequence[tuple[str, Planned]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    traced: list[tuple[str, Planned, list[Curve]]] = []
    starts = []
    for name, setting in found:
        scores = [reading.scores(row, "test", one.column) for row in setting.rows]
        traced.append((name, setting, [trace(score) for score in scores]))
        recall = float(np.mean([score.recall().mean() for score in scores]))
        starts.append(_point(name, setting, recall, float(np.mean([score.accuracy() for score in scores]))))
    floor = next((s["accuracy"] for s in starts if s["method"] == TITLES[BASELINE]), min(s["accuracy"] for s in starts))
    grid = np.linspace(max(0.0, min(start["recall"] for start in starts) - BACK), 1.0, 121)
    lines = []
    for name, setting, drawn in traced:
        band = average(drawn, grid)
        for recall, mean, sd in zip(band.recall, band.mean, np.nan_to_num(band.sd), strict=True):
            if mean >= floor - DEPTH:
                lines.append(
                    {**_point(name, setting, recall, mean), "low": round(mean - sd, 5), "high": round(mean + sd, 5)}
                )
    for start in starts:
        start["floor"] = floor
    return lines, starts


def _point(method: str, setting: Planned, recall: float, accuracy: float) -> dict[str, Any]:
    return {
        "method": TITLES.get(method, method),
        "setting": setting.title,
        "recall": round(float(recall), 5),
        "accuracy": round(float(accuracy), 5),
        "trials": len(setting.rows),
    }


def _curve_chart(lines: Any, starts: Any, colors: alt.Scale, dashes: alt.Scale, number: int, look: Look) -> Any:
    most = max([one["high"] for one in lines] + [one["accuracy"] for one in starts], default=1.0)
    shared = alt.Scale(zero=False, nice=False, domain=[starts[0]["floor"] - DEPTH, min(1.0, most)])
    x = alt.X("recall:Q", title="recall of the important class", scale=alt.Scale(zero=False, nice=False))
    y = alt.Y("accuracy:Q", title="accuracy")
    color = alt.Color("method:N", scale=colors, title=None, legend=alt.Legend(symbolOpacity=1))
    picked = alt.selection_point(fields=["method"], bind="legend", name=f"picked{number}")
    near = alt.selection_point(on="pointerover", clear="pointerout", empty=False, name=f"near{number}")
    tips = [
        alt.Tooltip("method:N"),
        alt.Tooltip("setting:N"),
        alt.Tooltip("recall:Q", format=".3f"),
        alt.Tooltip("accuracy:Q", format=".4f"),
        alt.Tooltip("trials:Q"),
    ]
    faded = alt.condition(picked, alt.value(1.0), alt.value(0.12))
    base = drawing(lines)
    band = base.mark_area(opacity=0.1, clip=True).encode(
        x,
        alt.Y("low:Q", title="accuracy", scale=shared),
        alt.Y2("high:Q"),
        color,
        opacity=alt.condition(picked, alt.value(0.1), alt.value(0.02)),
    )
    line = base.mark_line(strokeWidth=2, clip=True).encode(
        x, y, color, strokeDash=alt.StrokeDash("method:N", scale=dashes, title=None), opacity=faded
    )
    hover = (
        base.mark_point(filled=True, size=150)  # a target that a finger or a mouse meets; unseen until then
        .encode(x, y, color, opacity=alt.condition(near, alt.value(1.0), alt.value(0.0)), tooltip=tips)
        .add_params(near, picked)
    )
    floor = drawing(starts[:1]).mark_rule(strokeDash=[4, 3], color=look.muted).encode(y=alt.Y("floor:Q"))
    dots = (
        drawing(starts)
        .mark_point(filled=True, size=90, stroke=look.ink, strokeWidth=1)
        .encode(x, y, color, opacity=faded, tooltip=tips)
    )
    return alt.layer(band, floor, line, dots, hover)
