"""The recall–accuracy curve of every method under a shift of the important classes' scores."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from camri.posthoc import Curve, average, trace
from camri.report.reading import Reading
from camri.report.theme import LINES, PRINT, Figure, Look, Panel, drawing
from camri.report.titles import BASELINE, title_of
from camri.report.verdict import ColumnVerdict
from camri.words import quoted

DEPTH = 0.03  # of accuracy below the baseline's: further down nobody wants to be
MOST_BANDS = 3  # methods; the bands of more are mud, so then only two have one
BANDED = ("camri", BASELINE)
BACK = 0.15  # of recall below the least of the models as trained: the curve's other end is of no use


def trace_curves(reading: Reading, verdicts: Sequence[ColumnVerdict]) -> list[dict[str, Any]]:
    """What the curves draw, a column each: its accuracy floor and, for every method, the start and the line."""
    return [_trace(reading, one) for one in verdicts if one.settings]


def _trace(reading: Reading, one: ColumnVerdict) -> dict[str, Any]:
    lines: list[dict[str, Any]] = []
    traced: list[list[Curve]] = []
    for name in [name for name in reading.methods() if one.of(name)]:
        setting = one.shown(name)
        assert setting is not None
        scores = [reading.scores(row, "test", one.column) for row in setting.rows]
        start = np.mean([[score.recall().mean(), score.accuracy()] for score in scores], axis=0)
        lines.append(
            {"method": name, "setting": setting.title, "num_trials": len(scores), "start": start.round(5).tolist()}
        )
        traced.append([trace(score) for score in scores])
    accuracies = {line["method"]: line["start"][1] for line in lines}
    floor = accuracies.get(BASELINE, min(accuracies.values()))
    grid = np.linspace(max(0.0, min(line["start"][0] for line in lines) - BACK), 1.0, 121)
    for line, drawn in zip(lines, traced, strict=True):
        # Of several important classes no common shift finds all images: one class takes some from another.
        band = average(drawn, grid[grid <= min(one.mean_recall[-1] for one in drawn)])
        kept = band.mean >= floor - DEPTH
        for name in ("recall", "mean", "sd"):
            line[name] = np.nan_to_num(getattr(band, name))[kept].round(5).tolist()
    return {
        "column": one.column.number,
        "important": one.column.title,
        "num_important": len(one.column.indices),
        "floor": floor,
        "lines": lines,
    }


def draw_curves(columns: Sequence[Mapping[str, Any]], look: Look = PRINT) -> Figure:
    """Accuracy against recall under the shift, one line a method, with a band of one sd: what `trace_curves` found."""
    panels: list[Panel] = []
    records: list[dict[str, Any]] = []
    num_methods = max((len(column["lines"]) for column in columns), default=0)
    banded = [title_of(name) for name in BANDED] if num_methods > MOST_BANDS else None
    for column in columns:
        lines = [point for line in column["lines"] for point in _points(line)]
        starts = [{**_named(line), **_at(*line["start"]), "floor": column["floor"]} for line in column["lines"]]
        records += [{"column": column["column"], **point} for point in lines]
        colors, dashes = look.methods([line["method"] for line in column["lines"]])
        bands = [point for point in lines if banded is None or point["method"] in banded]
        is_several = column.get("num_important", 1) > 1
        recall = "mean recall of the important classes" if is_several else "recall of the important class"
        chart = _curve_chart(lines, bands, starts, colors, dashes, column["column"], recall, look)
        panels.append(Panel(quoted(column["important"]), chart, 340))
    return Figure(
        "curve",
        "The curve: what recall costs",
        "Adding a constant to the important class’s score moves any trained model along its line. A line above "
        "cross-entropy’s is a better model; a point further right on the same line is only another shift. Dots: the "
        "models as trained. Lines: mean over trials on test data, each method at its best setting on validation "
        f"data; bands: ± one standard deviation{'' if banded is None else f' of {banded[0]} and {banded[1]}'}. The "
        "dashed rule is cross-entropy’s accuracy.",
        tuple(panels),
        tuple(records),
    )


def _points(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {**_named(line), **_at(recall, mean), "low": round(mean - sd, 5), "high": round(mean + sd, 5)}
        for recall, mean, sd in zip(line["recall"], line["mean"], line["sd"], strict=True)
    ]


def _named(line: Mapping[str, Any]) -> dict[str, Any]:
    title = title_of(line["method"])
    return {"method": title, "setting": line["setting"], "trials": line["num_trials"]}


def _at(recall: float, accuracy: float) -> dict[str, float]:
    return {"recall": recall, "accuracy": accuracy}


def _curve_chart(
    lines: Any, bands: Any, starts: Any, colors: alt.Scale, dashes: alt.Scale, number: int, recall: str, look: Look
) -> Any:
    # Of the bands what stands above the floor: at a recall of 1 one model's luck would take half of the height.
    upper = [one["high"] for one in bands if one["accuracy"] >= starts[0]["floor"]]
    most = max(upper + [one["accuracy"] for one in (*lines, *starts)], default=1.0)
    shared = alt.Scale(zero=False, nice=False, domain=[starts[0]["floor"] - DEPTH, min(1.0, most)])
    x = alt.X("recall:Q", title=recall, scale=alt.Scale(zero=False, nice=False))
    y = alt.Y("accuracy:Q", title="accuracy")
    color = alt.Color("method:N", scale=colors, title=None, legend=LINES)
    # A plain value, which buttons below the drawing set: a legend of several layers hears neither clicks nor keys.
    # Empty: all methods are as strong.
    picked = alt.param(name=f"picked{number}", value="")
    is_picked = f"{picked.name} == '' || datum.method == {picked.name}"
    near = alt.selection_point(on="pointerover", clear="pointerout", empty=False, name=f"near{number}")
    tips = [
        alt.Tooltip("method:N"),
        alt.Tooltip("setting:N"),
        alt.Tooltip("recall:Q", format=".3f"),
        alt.Tooltip("accuracy:Q", format=".4f"),
        alt.Tooltip("trials:Q"),
    ]
    faded = alt.condition(is_picked, alt.value(1.0), alt.value(0.12))
    base = drawing(lines)
    band = (
        drawing(bands)
        .mark_area(opacity=0.1, clip=True)
        .encode(
            x,
            alt.Y("low:Q", title="accuracy", scale=shared),
            alt.Y2("high:Q"),
            color,
            opacity=alt.condition(is_picked, alt.value(0.12), alt.value(0.02)),
        )
    )
    line = base.mark_line(strokeWidth=2, clip=True).encode(
        x, y, color, strokeDash=alt.StrokeDash("method:N", scale=dashes, title=None, legend=LINES), opacity=faded
    )
    hover = (
        base.mark_point(filled=True, size=150)  # a target that a finger or a mouse meets; unseen until then
        .encode(x, y, color, opacity=alt.condition(near, alt.value(1.0), alt.value(0.0)), tooltip=tips)
        .add_params(near)
    )
    floor = drawing(starts[:1]).mark_rule(strokeDash=[4, 3], color=look.muted).encode(y=alt.Y("floor:Q"))
    dots = (
        drawing(starts)
        .mark_point(filled=True, size=90, stroke=look.ink, strokeWidth=1, clip=True)
        .encode(x, y, color, opacity=faded, tooltip=tips)
    )
    return alt.layer(band, floor, line, dots, hover).add_params(picked)
