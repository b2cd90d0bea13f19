"""Records -> the paper's figures: confusion (3), recall and accuracy against the penalty (5), the circle (6)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt

from camri.errors import InputError
from camri.methods import title_of
from camri.report.charts import draw_curves, draw_epochs, draw_gaps
from camri.report.records import PENALTIES, Record
from camri.report.results import Source
from camri.report.theme import LINES, PRINT, Figure, Look, Panel, drawing, labels, tips
from camri.text import quoted

FEW_CLASSES = 12  # up to here numbers fit into the cells
# Where cells have no numbers: squares in a row, as strong as cells of such a value.
SQUARES = alt.Legend(
    symbolType="square", symbolSize=180, symbolStrokeWidth=0, direction="horizontal", columns=0, tickCount=4
)


def draw_confusion(found: Record, look: Look = PRINT) -> Figure:
    """Fig. 3: cross-entropy's confusion matrix, and what each column's method changes in it."""
    names, num_classes = found["classes"], found["num_classes"]
    few = f" Of {num_classes} classes, the {len(names)} with the most confusion." if len(names) < num_classes else ""
    return Figure(
        "confusion",
        "Confusion, and what changed",
        "(a): of each true class (row), the percentage predicted as each class (column). The others: percentage points "
        "more (blue, plus) or fewer (orange, minus) than that. The important class’s row shows what is now found, its "
        f"column what it now takes from other classes. Models as trained, mean over trials.{few}",
        tuple(
            Panel(one["title"], _heat(one["cells"], names, look, is_change=one["is_change"]), 24 * len(names) + 40)
            for one in found["panels"]
        ),
        tuple(cell for one in found["panels"] for cell in one["cells"]),
    )


def _heat(records: Sequence[Record], names: Sequence[str], look: Look, is_change: bool) -> Any:
    most = max((abs(record["percent"]) for record in records), default=1.0)
    base = drawing(records).encode(
        x=alt.X(
            "predicted:N",
            scale=alt.Scale(domain=list(names)),
            title="predicted",
            axis=alt.Axis(labelAngle=-90, labelLimit=110, labelExpr=labels(names), labelOverlap=True),
        ),
        y=alt.Y("true:N", scale=alt.Scale(domain=list(names)), title="true",
                axis=alt.Axis(labelLimit=110, labelExpr=labels(names))),
        tooltip=tips("true", "predicted", "percent +.1f" if is_change else "percent .1f"),
    )  # fmt: skip
    # Opacity over the page’s own background, and not a scale between two colours: it reads the same in the dark; no
    # stronger than 0.6, so that the numbers on it have contrast in both.
    scale = alt.Scale(domain=[0, most], range=[0.06, 0.6])
    signs = [("points fewer", "<", look.down)] if is_change else []
    signs.insert(0, ("points more" if is_change else "percent of the row’s class", ">=", look.up))
    has_numbers = len(names) <= FEW_CLASSES
    cells = [
        base.transform_filter(f"datum.percent {sign} 0")
        .transform_calculate(size="abs(datum.percent)")
        .mark_rect(color=color)
        .encode(opacity=alt.Opacity("size:Q", scale=scale, title=title, legend=None if has_numbers else SQUARES))
        for title, sign, color in signs
    ]
    if not has_numbers:
        return alt.layer(*cells).resolve_scale(opacity="independent")  # a legend of each colour
    shown = base.transform_filter("abs(datum.percent) >= 0.05" if is_change else "datum.percent >= 0.5")
    form = alt.Text("percent:Q", format="+.1f" if is_change else ".0f")
    return alt.layer(*cells, shown.mark_text(fontSize=9, color=look.ink).encode(text=form))


def draw_penalty(records: Sequence[Record], look: Look = PRINT) -> Figure | None:
    """Fig. 5: recall and accuracy as the penalty grows; None of nothing."""
    panels = []
    for number in dict.fromkeys(record["number"] for record in records):
        own = [record for record in records if record["number"] == number]
        # One vertical scale for the panels of a column: side by side they are there to be compared.
        ends = [record[end] for record in own for end in ("low", "high")]
        for method in dict.fromkeys(record["method"] for record in own):
            found = [record for record in own if record["method"] == method]
            at = f", s = {found[0]['scale']:g}" if found[0]["scale"] is not None else ""
            title = f"{quoted(found[0]['column'])}: {title_of(method)}{at}"
            panels.append(Panel(title, _penalty_chart(found, PENALTIES[method][1], (min(ends), max(ends)), look), 220))
    if not panels:
        return None
    return Figure(
        "penalty",
        "Recall and accuracy against the penalty",
        "Recall of the important class (solid) and accuracy (dashed) as the penalty grows: mean over trials, bands ± "
        "one standard deviation, models as trained, test data. A method that only trades one for the other "
        "has one line rising and one falling; the paper claims that CAMRI’s accuracy stays level.",
        tuple(panels),
        tuple(records),
    )


def _penalty_chart(records: Sequence[Record], title: str, ends: tuple[float, float], look: Look) -> Any:
    domain = ["recall", "accuracy"]
    scale = alt.Scale(zero=False, domain=list(ends))
    base = drawing(records).encode(
        x=alt.X("penalty:Q", title=title),
        color=alt.Color(
            "figure:N", scale=alt.Scale(domain=domain, range=[look.up, look.down]), title=None, legend=LINES
        ),
    )
    band = base.mark_area(opacity=0.16).encode(alt.Y("low:Q", title=None, scale=scale), alt.Y2("high:Q"))
    line = base.mark_line(point={"filled": True, "size": 45}).encode(
        alt.Y("mean:Q", title=None, scale=scale),
        strokeDash=alt.StrokeDash(
            "figure:N", scale=alt.Scale(domain=domain, range=[[1, 0], [5, 3]]), title=None, legend=LINES
        ),
        tooltip=tips("setting", "figure", "mean .4f", "sd .4f", "trials"),
    )
    return alt.layer(band, line)


def draw_circle(panels: Sequence[Record], look: Look = PRINT) -> Figure:
    """Fig. 6: features and weight vectors of a model with two features, a panel a method."""
    rooms = [
        f"{title_of(one['method'])} " + ", ".join(f"{m['room']:.1f}° ({m['accuracy']:.3f})" for m in one["models"])
        for one in panels
    ]
    return Figure(
        "circle",
        "Fig. 6: features on the circle",
        "Unit features (dots) and weight vectors (lines) of each method’s model of median accuracy; the "
        "important class in orange. The more room between its neighbours’ lines, the better it is separated. Room of "
        f"{quoted(panels[0]['important'])} (test accuracy) of every model: {'; '.join(rooms)}. Shared evenly it would "
        f"be {720 / len(panels[0]['spokes']):.0f}°.",
        tuple(Panel(one["title"], _circle_chart(one["dots"], one["spokes"], look), 340) for one in panels),
        tuple({"panel": one["method"], **point} for one in panels for point in (*one["spokes"], *one["dots"])),
    )


def _circle_chart(dots: list[Any], spokes: list[Any], look: Look) -> Any:
    domain = alt.Scale(domain=[-1.15, 1.15], nice=False)
    x, y = alt.X("x:Q", scale=domain, title="z′₁"), alt.Y("y:Q", scale=domain, title="z′₂")
    color = alt.condition("datum.kind == 'important'", alt.value(look.down), alt.value(look.muted))
    lines = drawing([{**one, "x0": 0, "y0": 0} for one in spokes]).mark_rule(strokeWidth=2)
    points = drawing(dots).mark_point(filled=True, size=12, opacity=0.35)
    names = drawing([{**one, "tx": 1.1 * one["x"], "ty": 1.1 * one["y"]} for one in spokes]).mark_text(fontSize=10)
    return alt.layer(
        points.encode(x, y, color=color, tooltip=tips("class")),
        lines.encode(
            alt.X("x0:Q", scale=domain),
            alt.Y("y0:Q", scale=domain),
            x2="x:Q",
            y2="y:Q",
            color=color,
            tooltip=tips("class"),
        ),
        names.encode(alt.X("tx:Q", scale=domain), alt.Y("ty:Q", scale=domain), text="class:N", color=color),
    )


DRAWERS: Mapping[str, Callable[[Any, Look], Figure | None]] = {
    "curves": draw_curves,
    "gaps": draw_gaps,
    "confusion": draw_confusion,
    "penalty": draw_penalty,
    "training": draw_epochs,
    "circle": draw_circle,
}
LACKING = {  # why there is nothing to draw
    "gaps": "the figure of gaps needs a method and cross-entropy with the same seeds",
    "penalty": "Fig. 5 needs WCE or CAMRI trials with at least two penalties",
    "training": "the figure of training needs validation recalls of each epoch",
}


def draw(part: str, source: Source, look: Look = PRINT) -> Figure:
    """The figure of a part of a run or of a results folder; InputError where there is nothing to draw."""
    figure = DRAWERS[part](source.records(part), look)
    if figure is None:
        raise InputError(f"{LACKING[part]}, and there are none")
    return figure
