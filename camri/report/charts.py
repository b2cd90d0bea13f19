"""Records -> charts: curves, equal recall, training, recall of every class; the paper's figures 3, 5 and 6.

First the one look of all charts, with colours that colour-blind readers tell apart, then a function for each figure.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt

from camri.errors import InputError, closest
from camri.methods import BASELINE, METHODS, UNKNOWN_COLORS, UNKNOWN_DASH, title_of
from camri.report.records import (
    CIRCLE_METHODS,
    DEPTH,
    ENDS,
    MOST_CLASSES,
    MOST_DOTS,
    PENALTIES,
    Record,
    Records,
    Source,
    group_by,
)
from camri.study.reader import LEAST_SEEDS, ColumnVerdict, Judged, RunReader, picked
from camri.text import quoted

FORMATS = ("png", "svg", "pdf")
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MOST_BANDS = 3  # methods; with more, only two have a band: overlapping ones cannot be read
BANDED = ("camri", BASELINE)
GAPS = {"mean": "accuracy", "alarms": "false alarms"}  # of a gap's record
FAR = 0.1  # of accuracy: a method that much below has not trained, and would squeeze the scale
ROW_HEIGHT = 22
STRENGTHS = (0.06, 0.6)  # of cells; no stronger, so that the numbers on them have contrast
FEW_CLASSES = 12  # up to here numbers fit into the cells
# Where cells have no numbers: squares in a row, as strong as cells of such a value.
SQUARES = alt.Legend(
    symbolType="square", symbolSize=180, symbolStrokeWidth=0, direction="horizontal", columns=0, tickCount=4
)
# A legend of lines: colour and dash as they are drawn. As dots, dashed outlines look like blots.
NEUTRAL = {"wce": "w = 1 is cross-entropy", "camri": "m = 0 is L2-softmax"}
LINES = alt.Legend(symbolType="stroke", symbolStrokeWidth=2.5, symbolSize=600, symbolOpacity=1)


@dataclass(frozen=True)
class Look:
    """Colours by their use. On the page they are CSS variables, so that one drawing serves light, dark and print."""

    ink: str
    muted: str
    grid: str
    up: str
    down: str
    shade: Callable[[str], str]
    own: tuple[str, ...]
    is_page: bool = False

    def color_of(self, used: Sequence[str]) -> list[str]:
        """The methods' colours; those that have none in the table, as a method of one's own, get one of `own`."""
        strange = [name for name in used if name not in METHODS or METHODS[name].colors == UNKNOWN_COLORS]
        mine = dict(zip(strange, itertools.cycle(self.own), strict=False))
        return [mine.get(name) or self.shade(name) for name in used]

    def config(self) -> dict[str, Any]:
        """The top-level configuration of a Vega-Lite specification."""
        text = {"labelColor": self.ink, "titleColor": self.ink, "labelFontSize": 11, "titleFontWeight": "normal"}
        return {
            "background": "transparent",
            "font": FONT,
            "view": {"stroke": None},
            "axis": {
                **text,
                "gridColor": self.grid,
                "domainColor": self.muted,
                "tickColor": self.muted,
                "titleFontSize": 12,
                "labelLimit": 190,  # the longest title of a method; the page takes less on a phone
            },
            "legend": {
                **text,
                "orient": "bottom",
                "columns": 2,
                "labelLimit": 220,
                "layout": {"bottom": {"direction": "vertical", "anchor": "start"}},  # side by side, phones cut them
            },
            "title": {"color": self.ink, "fontSize": 13, "fontWeight": 600, "anchor": "start", "limit": 320},
            "axisQuantitative": {"tickCount": 6, "labelOverlap": True, "labelSeparation": 6},
            "text": {"color": self.ink},
            "rule": {"color": self.muted},
        }

    def methods(self, used: Sequence[str]) -> tuple[alt.Color, alt.StrokeDash]:
        """Colour and dash of the methods used, the same in every chart."""
        domain = [title_of(name) for name in used]
        colors = self.color_of(used)
        dashes = [list(METHODS[name].dash if name in METHODS else UNKNOWN_DASH) for name in used]
        return (
            alt.Color("method:N", scale=alt.Scale(domain=domain, range=colors), title=None, legend=LINES),
            alt.StrokeDash("method:N", scale=alt.Scale(domain=domain, range=dashes), title=None, legend=LINES),
        )


OWN = {  # colours of methods that have none in the table: print, light page, dark page
    "own-1": ("#6A00F4", "#6a00f4", "#c79bff"),
    "own-2": ("#B07A00", "#a87400", "#ffd166"),
    "own-3": ("#004D40", "#004d40", "#35e0b5"),
}
PRINT = Look(
    "#1a1a1a", "#767676", "#e3e3e3", "#0072B2", "#D55E00",
    lambda name: METHODS[name].colors[0], tuple(colors[0] for colors in OWN.values()),
)  # fmt: skip
PAGE = Look(
    "var(--ink)", "var(--muted)", "var(--grid)", "var(--up)", "var(--down)",
    lambda name: f"var(--m-{name.replace('_', '-')})", tuple(f"var(--{name})" for name in OWN), is_page=True,
)  # fmt: skip


def style_of_methods() -> str:
    """CSS that sets the colour variables of all methods, for light and dark pages."""

    def variables(place: int) -> str:
        known = {f"m-{name.replace('_', '-')}": entry.colors for name, entry in METHODS.items()}
        return " ".join(f"--{name}: {colors[place]};" for name, colors in {**known, **OWN}.items())

    dark = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {variables(2)} }} }}"
    return f":root {{ {variables(1)} }}\n{dark}\n"


@dataclass(frozen=True, eq=False)
class Panel:
    """One drawing, without its size."""

    title: str
    chart: Any
    height: int


@dataclass(frozen=True, eq=False)
class Figure:
    """Drawings with a caption. `records` are the numbers drawn; `across` panels stand side by side in a file.

    apart: channels whose scale each panel has for itself.
    """

    title: str
    caption: str
    panels: tuple[Panel, ...]
    records: tuple[Mapping[str, Any], ...] = ()
    across: int | None = None
    apart: tuple[str, ...] = ("opacity",)


def drawing(records: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """An empty chart of plain records."""
    return alt.Chart({"values": [dict(record) for record in records]})  # of alt.Data, Altair would check every row


def tips(*fields: str) -> list[alt.Tooltip]:
    """Tooltips of fields by name; "recall .3f" is a number in that format."""
    parts = [(*field.split(), None)[:2] for field in fields]
    return [alt.Tooltip(f"{name}:Q", format=form) if form else alt.Tooltip(f"{name}:N") for name, form in parts]


def draw_intervals(base: alt.Chart, along: alt.X, high: str, value: str, look: Look) -> Any:
    """A dashed rule at 0 and, for each row of a chart, an interval that ends at `high` with a dot at `value`."""
    zero = drawing([{"at": 0}]).mark_rule(strokeDash=[4, 3], color=look.muted).encode(x="at:Q")
    line, dot = base.mark_rule(strokeWidth=2.5), base.mark_point(filled=True, size=70, opacity=1)
    return alt.layer(zero, line.encode(along, alt.X2(f"{high}:Q")), dot.encode(alt.X(f"{value}:Q")))


def shorten(name: str, most: int = 16) -> str:
    """A label of at most `most` letters, cut in its middle: long names often differ at their ends only.

    >>> shorten("Stop"), shorten("Speed limit (80km/h)")
    ('Stop', 'Speed…t (80km/h)')
    """
    head = most // 3
    return name if len(name) <= most else f"{name[:head]}…{name[head + 1 - most :]}"


def on_white(color: str, part: float) -> str:
    """A colour of that strength on white paper.

    >>> on_white("#0072B2", 0.6)
    '#66aad1'
    """
    return "#" + "".join(f"{round(255 + part * (int(color[at : at + 2], 16) - 255)):02x}" for at in (1, 3, 5))


def labels(names: Sequence[str]) -> str:
    """A Vega expression that shortens an axis's labels, which are full names."""
    return f"{json.dumps({name: shorten(name) for name in names})}[datum.label] || datum.label"


def specification(panel: Panel, look: Look, width: int | str = "container") -> dict[str, Any]:
    """A panel's Vega-Lite specification, to be embedded in a page."""
    drawn = panel.chart.to_dict(validate=False)  # validating a thousand plain records takes seconds
    size = {"width": width, "height": panel.height, "autosize": {"type": "fit-x", "contains": "padding"}}
    return {**drawn, **size, "config": look.config()}


def export(figure: Figure, form: str, width: int = 340) -> bytes:
    """The figure as a PNG (at twice the size), SVG or PDF file; no browser is needed."""
    import vl_convert

    if form not in FORMATS:
        raise InputError(f"format={form!r} is not for a figure; {closest(form, FORMATS)}", argument="format")
    drawn = [panel.chart.properties(title=panel.title, width=width, height=panel.height) for panel in figure.panels]
    # Two or four panels read best as two columns; the paper's confusion matrices and angles stand in rows.
    columns = figure.across or (2 if len(drawn) in (2, 4) else 3)
    apart: Any = dict.fromkeys(figure.apart, "independent")
    whole = alt.concat(*drawn, columns=columns).resolve_scale(**apart)
    specification = {**whole.to_dict(validate=False), "config": {**PRINT.config(), "background": "white"}}
    if form == "svg":
        return vl_convert.vegalite_to_svg(specification).encode()
    if form == "pdf":
        return vl_convert.vegalite_to_pdf(specification)
    return vl_convert.vegalite_to_png(specification, scale=2)


def draw_curves(columns: Sequence[Record], look: Look = PRINT) -> Figure:
    """Accuracy against recall under the shift: a line per method, with a band of one sd."""
    panels, records = [], []
    num_methods = max((len(column["lines"]) for column in columns), default=0)
    banded = [title_of(name) for name in BANDED] if num_methods > MOST_BANDS else None
    for column in columns:
        lines, starts = [], []
        for line in column["lines"]:
            named = {"method": title_of(line["method"]), "setting": line["setting"], "trials": line["num_trials"]}
            recall, accuracy = line["start"]
            starts.append({**named, "recall": recall, "accuracy": accuracy, "floor": column["floor"]})
            lines += [
                {**named, "recall": recall, "accuracy": mean, "low": round(mean - sd, 5), "high": round(mean + sd, 5)}
                for recall, mean, sd in zip(line["recall"], line["mean"], line["sd"], strict=True)
            ]
        records += [{"column": column["column"], **point} for point in lines]
        bands = [point for point in lines if banded is None or point["method"] in banded]
        panels.append(Panel(quoted(column["important"]), _curve_chart(column, lines, bands, starts, look), 340))
    of_bands = "" if banded is None else f" of {banded[0]} and {banded[1]}"
    return Figure(
        "The curve: what recall costs",
        "Adding a constant to the important class’s score moves any trained model along its line. A line above "
        "cross-entropy’s is a better model; a point further right on the same line is only another shift. Dots: the "
        "models as trained. Lines: mean over trials on test data, each method at its best setting on validation "
        f"data. Lines are cut {100 * DEPTH:g} points below cross-entropy’s accuracy. Bands: ± one "
        f"standard deviation{of_bands}. The "
        "dashed rule is cross-entropy’s accuracy.",
        tuple(panels),
        tuple(records),
    )


def _curve_chart(column: Record, lines: Records, bands: Records, starts: Records, look: Look) -> Any:
    floor, number = column["floor"], column["column"]
    # Of the bands only what stands above the floor: at a recall of 1 one model's spread would take half of the height.
    upper = [record["high"] for record in bands if record["accuracy"] >= floor]
    most = max(upper + [record["accuracy"] for record in (*lines, *starts)], default=1.0)
    shared = alt.Scale(zero=False, nice=False, domain=[floor - DEPTH, min(1.0, most)])
    is_several = column.get("num_important", 1) > 1
    recall = "mean recall of the important classes" if is_several else "recall of the important class"
    x = alt.X("recall:Q", title=recall, scale=alt.Scale(zero=False, nice=False))
    y = alt.Y("accuracy:Q", title="accuracy")
    color, dash = look.methods([line["method"] for line in column["lines"]])
    # A plain value, set by buttons below the drawing: a legend of several layers takes neither clicks nor keys.
    # Empty: all methods are equally strong.
    single = alt.param(name=f"picked{number}", value="")
    is_single = f"{single.name} == '' || datum.method == {single.name}"
    near = alt.selection_point(on="pointerover", clear="pointerout", empty=False, name=f"near{number}")
    shown = tips("method", "setting", "recall .3f", "accuracy .4f", "trials")
    faded = alt.condition(is_single, alt.value(1.0), alt.value(0.12))
    band = drawing(bands).mark_area(opacity=0.1, clip=True)
    line = drawing(lines).mark_line(strokeWidth=2, clip=True)
    hover = drawing(lines).mark_point(filled=True, size=150)  # an unseen target that a finger or a mouse meets
    rule = drawing([{"floor": floor}]).mark_rule(strokeDash=[4, 3], color=look.muted)
    dots = drawing(starts).mark_point(filled=True, size=90, stroke=look.ink, strokeWidth=1, clip=True)
    layers = [
        band.encode(
            x,
            alt.Y("low:Q", title="accuracy", scale=shared),
            alt.Y2("high:Q"),
            color,
            opacity=alt.condition(is_single, alt.value(0.12), alt.value(0.02)),
        ),
        rule.encode(y=alt.Y("floor:Q")),
        line.encode(x, y, color, dash, opacity=faded),
        dots.encode(x, y, color, opacity=faded, tooltip=shown),
    ]
    if look.is_page:  # in a file the unseen targets would be most of its bytes
        seen = alt.condition(near, alt.value(1.0), alt.value(0.0))
        layers.append(hover.encode(x, y, color, opacity=seen, tooltip=shown).add_params(near))
    return alt.layer(*layers).add_params(single)


def draw_gaps(records: Sequence[Record], look: Look = PRINT) -> Figure:
    """Accuracy and false alarms at equal recall against cross-entropy, two panels per column."""
    far = dict.fromkeys(title_of(record["method"]) for record in records if _is_far(record))
    near = [record for record in records if not _is_far(record)]
    points = [_gap_point(record, name) for record in near for name in GAPS if record.get(name) is not None]
    columns, panels = group_by(near, "column"), []
    for (number, name), own in group_by(points, "column", "figure").items():
        ends = [point[end] for point in points if point["figure"] == name for end in ("low", "high")]
        chart = _gap_chart(own, [record["method"] for record in columns[number]], ends, look)
        title = f"{quoted(columns[number][0]['important'])}: {GAPS[name]}"
        panels.append(Panel(title, chart, ROW_HEIGHT * (len(own) + 1)))
    left_out = f" Not drawn, as over {100 * FAR:.0f} points less accurate: {', '.join(far)}." if far else ""
    return Figure(
        "At equal recall",
        "Every model is shifted to the same recalls; test data, mean over the recall range, differences from "
        "cross-entropy in percentage points. Dots: each method at its best setting on validation data. Lines: 95 % "
        "confidence intervals over seeds and test data (from three seeds on), not corrected for multiple comparisons. "
        f"Right of 0: more accurate. Left of 0: fewer false alarms. A line that crosses 0 may be chance.{left_out}",
        tuple(panels),
        tuple(points),
        across=len(GAPS),
    )


def _is_far(record: Record) -> bool:
    return record.get("mean") is not None and record["mean"] < -FAR


def _gap_point(record: Record, name: str) -> dict[str, Any]:
    """A difference of a gap's record, as it is drawn."""
    return {
        "column": record["column"],
        "figure": name,
        "method": title_of(record["method"]),
        "setting": record["setting"],
        "trials": record["num_trials"],
        **_in_points("change", [record[f"{name}{end}"] for end in ENDS], record["num_trials"]),
    }


def _in_points(name: str, change: Sequence[float], num_seeds: int) -> dict[str, float]:
    """A difference (value, low, high) in percentage points; below three seeds its interval is empty."""
    drawn = change if num_seeds >= LEAST_SEEDS else [change[0]] * 3
    return {key: round(100 * end, 3) for key, end in zip((name, "low", "high"), drawn, strict=True)}


def _gap_chart(points: Sequence[Record], methods: Sequence[str], ends: Sequence[float], look: Look) -> Any:
    """One panel; `ends` are those of all intervals of the figure, so that columns can be compared."""
    low, high = min(0.0, *ends), max(0.0, *ends)
    room = 0.05 * (high - low)
    base = drawing(points).encode(
        y=alt.Y("method:N", title=None, sort=[record["method"] for record in points]),
        color=look.methods(methods)[0].legend(None),
        tooltip=tips("method", "setting", "change", "low", "high", "trials"),
    )
    scale = alt.Scale(domain=[low - room, high + room], nice=False)
    along = alt.X("low:Q", title="percentage points", scale=scale)
    return draw_intervals(base, along, "high", "change", look)


def draw_epochs(records: Sequence[Record], look: Look = PRINT) -> Figure:
    """Recall and accuracy by epoch, two panels per column."""
    panels, points = [], []
    for number, own in group_by(records, "column").items():
        important = quoted(own[0]["important"])
        titles = {"recall": f"recall of {important}", "accuracy": f"accuracy of models for {important}"}
        for name, title in titles.items():
            drawn = [
                {
                    "column": number,
                    "figure": name,
                    "method": title_of(record["method"]),
                    "setting": record["setting"],
                    "epoch": epoch,
                    "value": value,
                    "trials": record["num_trials"],
                }
                for record in own
                for epoch, value in enumerate(record[name], start=1)
            ]
            points += drawn
            panels.append(Panel(title, _epoch_chart(drawn, [record["method"] for record in own], name, look), 240))
    return Figure(
        "How training went",
        "Recall of the important class and accuracy on validation data after each epoch: models as trained, mean over "
        "trials, each method at its best setting. A line that still rises at its end needs more epochs. Where a line "
        "jumps at its end, the last model is a random draw: decay the learning rate to 0 or average the weights.",
        tuple(panels),
        tuple(points),
        across=2,
    )


def _epoch_chart(points: Records, methods: Sequence[str], name: str, look: Look) -> Any:
    # The first epochs climb from nothing: drawn whole, they would squeeze the rest.
    shown = [record["value"] for record in points if record["epoch"] > points[-1]["epoch"] // 10]
    return (
        drawing(points)
        .mark_line(strokeWidth=1.5, clip=True)
        .encode(
            alt.X("epoch:Q", scale=alt.Scale(nice=False, zero=False), axis=alt.Axis(tickMinStep=1)),
            alt.Y("value:Q", title=name, scale=alt.Scale(domain=[min(shown), max(shown)])),
            *look.methods(methods),
            tooltip=tips("method", "setting", "epoch", "value .4f", "trials"),
        )
    )


def draw_changes(reading: RunReader, verdicts: Sequence[ColumnVerdict], look: Look = PRINT) -> Figure:
    """Change of every class's recall, vs cross-entropy as trained and with a shift; a panel per column with a choice.

    Of the chosen setting, else of CAMRI's, else of the first method's that is not cross-entropy.
    """
    panels, records = [], []
    for verdict in verdicts:
        rows = [verdict.best, verdict.by_method.get("camri"), *verdict.by_method.values()]
        row = next((row for row in rows if row is not None and not row.keeps_baseline), None)
        if row is not None:
            found = _change_records(reading, verdict, row)
            records += found
            title = f"{quoted(verdict.column.title)}: {picked(verdict, row, in_words=True)}"
            panels.append(Panel(title, _change_chart(found, look), 60 + 13 * len(found)))
    num = len(reading.classes)
    return Figure(
        "Classes that lost recall",
        "Change of every class’s recall in percentage points on test data, with 95 % confidence intervals over seeds "
        "and test data (from three seeds on). The important class is first, then the largest losses. An "
        "interval that crosses 0 may be chance; 1 in 20 misses it by chance. The change against cross-entropy + shift "
        "is the method’s own."
        + (f" Of {num} classes, the {MOST_CLASSES} that changed most." if num > MOST_CLASSES else ""),
        tuple(panels),
        tuple(records),
    )


def _change_records(reading: RunReader, verdict: ColumnVerdict, row: Judged) -> Records:
    arms = {"cross-entropy": "baseline", "cross-entropy + shift": "baseline shifted"}
    gains = {title: row.judgement.gains[arm].by_class for title, arm in arms.items()}
    first = gains["cross-entropy"]
    others = sorted((index for index in first if index not in verdict.column.indices), key=lambda i: first[i].value)
    if len(reading.classes) > MOST_CLASSES:
        kept = sorted(others, key=lambda i: -abs(first[i].value))[: MOST_CLASSES - len(verdict.column.indices)]
        others = [index for index in others if index in kept]
    return [
        {
            "column": verdict.column.title,
            "class": reading.classes[index],
            "against": title,
            **_in_points("gain", (change.value, change.low, change.high), row.num_seeds),
        }
        for title, by_class in gains.items()
        for index in (*verdict.column.indices, *others)
        for change in [by_class[index]]
    ]


def _change_chart(records: Records, look: Look) -> Any:
    domain = list(dict.fromkeys(record["against"] for record in records))
    scale = alt.Scale(domain=domain, range=[look.muted, look.down])
    base = drawing(records).encode(
        y=alt.Y("class:N", sort=list(dict.fromkeys(record["class"] for record in records)), title=None),
        yOffset=alt.YOffset("against:N", sort=domain),
        color=alt.Color("against:N", scale=scale, title="vs", legend=alt.Legend(columns=1)),
        tooltip=tips("class", "against", "gain +.1f", "low +.1f", "high +.1f"),
    )
    return draw_intervals(base, alt.X("low:Q", title="Δ recall (percentage points)"), "high", "gain", look)


def draw_confusion(found: Record, look: Look = PRINT) -> Figure:
    """Fig. 3: cross-entropy's confusion matrix, and what each column's method changes in it."""
    names, num_classes = found["classes"], found["num_classes"]
    few = f" Of {num_classes} classes, the {len(names)} with the most confusion." if len(names) < num_classes else ""
    return Figure(
        "Confusion, and what changed",
        "(a): of each true class (row), the percentage predicted as each class (column). The others: percentage points "
        "more (blue, plus) or fewer (orange, minus) than that. The important class’s row shows what is now found, its "
        f"column what it now takes from other classes. Models as trained, mean over trials.{few}"
        + "".join(f" {line}" for line in found.get("notes", ())),
        tuple(
            Panel(part["title"], _heat(part["cells"], names, look, is_change=part["is_change"]), 24 * len(names) + 40)
            for part in found["panels"]
        ),
        tuple(cell for part in found["panels"] for cell in part["cells"]),
        apart=("opacity", "color"),
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
    signs = [("points fewer", "<", look.down)] if is_change else []
    signs.insert(0, ("points more" if is_change else "percent of the row’s class", ">=", look.up))
    has_numbers = len(names) <= FEW_CLASSES
    legend = None if has_numbers else SQUARES

    def strength(title: str, color: str) -> dict[str, Any]:
        """The channel that shows a cell's size."""
        if look.is_page:
            # Opacity over the page’s own background, and not a scale between two colours: it reads the same in the
            # dark.
            scale = alt.Scale(domain=[0, most], range=list(STRENGTHS))
            return {"opacity": alt.Opacity("size:Q", scale=scale, title=title, legend=legend)}
        # In a PDF each mark that lets others shine through takes four times the bytes.
        scale = alt.Scale(domain=[0, most], range=[on_white(color, part) for part in STRENGTHS])
        return {"color": alt.Color("size:Q", scale=scale, title=title, legend=legend)}

    cells = [
        base.transform_filter(f"datum.percent {sign} 0")
        .transform_calculate(size="abs(datum.percent)")
        .mark_rect(color=color)
        .encode(**strength(title, color))
        for title, sign, color in signs
    ]
    if not has_numbers:
        return alt.layer(*cells).resolve_scale(opacity="independent", color="independent")  # a legend of each colour
    shown = base.transform_filter("abs(datum.percent) >= 0.05" if is_change else "datum.percent >= 0.5")
    form = alt.Text("percent:Q", format="+.1f" if is_change else ".0f")
    return alt.layer(*cells, shown.mark_text(fontSize=9, color=look.ink).encode(text=form))


def draw_penalty(found: Sequence[Record], look: Look = PRINT) -> Figure:
    """Fig. 5: recall and accuracy as the penalty grows, a panel for each column and method."""
    panels, records = [], [record for record in found if "why" not in record]
    missing = "; ".join(
        f"{title_of(one['method'])} of {quoted(one['column'])}, {one['why']}" for one in found if "why" in one
    )
    neutral = [NEUTRAL[method] for method in dict.fromkeys(record["method"] for record in records)]
    for own in group_by(records, "number").values():
        # One vertical scale for the panels of a column: side by side they are there to be compared.
        ends = [record[end] for record in own for end in ("low", "high")]
        for method, curve in group_by(own, "method").items():
            at = f", s = {curve[0]['scale']:g}" if curve[0]["scale"] is not None else ""
            title = f"{quoted(curve[0]['column'])}: {title_of(method)}{at}"
            panels.append(Panel(title, _penalty_chart(curve, PENALTIES[method][1], [min(ends), max(ends)], look), 220))
    return Figure(
        "Recall and accuracy against the penalty",
        "Recall of the important class (solid) and accuracy (dashed) as the penalty grows: mean over trials, bands ± "
        f"one standard deviation, models as trained, test data. {', '.join(neutral)}. A method that only trades one "
        "for the other has one line rising and one falling; the paper claims that CAMRI’s accuracy stays level."
        + (f" Not drawn: {missing}." if missing else ""),
        tuple(panels),
        tuple(records),
    )


def _penalty_chart(records: Sequence[Record], title: str, ends: list[float], look: Look) -> Any:
    scale = alt.Scale(zero=False, domain=ends)
    colors, dashes = (
        alt.Scale(domain=["recall", "accuracy"], range=values) for values in ([look.up, look.down], [[1, 0], [5, 3]])
    )
    color = alt.Color("figure:N", scale=colors, title=None, legend=LINES)
    base = drawing(records).encode(x=alt.X("penalty:Q", title=title), color=color)
    band = base.mark_area(opacity=0.16).encode(alt.Y("low:Q", title=None, scale=scale), alt.Y2("high:Q"))
    line = base.mark_line(point={"filled": True, "size": 45}).encode(
        alt.Y("mean:Q", title=None, scale=scale),
        strokeDash=alt.StrokeDash("figure:N", scale=dashes, title=None, legend=LINES),
        tooltip=tips("setting", "figure", "mean .4f", "sd .4f", "trials"),
    )
    return alt.layer(band, line)


def draw_circle(panels: Sequence[Record], look: Look = PRINT) -> Figure:
    """Fig. 6: features and weight vectors of a model with two features, one panel per method."""
    rooms = [
        f"{title_of(part['method'])} " + ", ".join(f"{m['room']:.1f}° ({m['accuracy']:.3f})" for m in part["models"])
        for part in panels
    ]
    return Figure(
        "Fig. 6: features on the circle",
        f"Unit features (dots, at most {MOST_DOTS} of a class) and weight vectors (lines) of each method’s model of "
        "median accuracy (of an even number the better of the middle two); the important class in orange. The more "
        "room between its neighbours’ lines, the better it is separated. Room of "
        f"{quoted(panels[0]['important'])} (test accuracy) of every model: {'; '.join(rooms)}. Shared evenly it would "
        f"be {720 / len(panels[0]['spokes']):.0f}°.{_not_drawn(panels)}",
        tuple(Panel(part["title"], _circle_chart(part["dots"], part["spokes"], look), 340) for part in panels),
        tuple({"panel": part["method"], **point} for part in panels for point in (*part["spokes"], *part["dots"])),
    )


def _not_drawn(panels: Sequence[Record]) -> str:
    """What a run has and Fig. 6 leaves out: methods without trials, further settings, further columns."""
    drawn = {part["method"] for part in panels}
    lacking = [f"{title_of(name)} (not trained)" for name in CIRCLE_METHODS if name not in drawn]
    lacking += [one for part in panels for one in part.get("left_out", ())]
    return f" Not drawn: {', '.join(lacking)}." if lacking else ""


def _circle_chart(dots: Records, spokes: Records, look: Look) -> Any:
    scale = alt.Scale(domain=[-1.15, 1.15], nice=False)
    color = alt.condition("datum.kind == 'important'", alt.value(look.down), alt.value(look.muted))
    # In a PDF each mark that lets others shine through is an image of its own: 3.1 MB for Fig. 6, without 0.1 MB.
    dot = {"filled": True, "size": 12, "fillOpacity": 0.35} if look.is_page else {"filled": True, "size": 6}

    def base(records: Records, x: str, y: str) -> alt.Chart:
        ends = alt.X(f"{x}:Q", scale=scale, title="z′₁"), alt.Y(f"{y}:Q", scale=scale, title="z′₂")
        return drawing(records).encode(*ends, color=color, tooltip=tips("class"))

    drawn = [{**one, "x0": 0, "y0": 0, "tx": 1.1 * one["x"], "ty": 1.1 * one["y"]} for one in spokes]
    return alt.layer(
        base(dots, "x", "y").mark_point(opacity=1, strokeWidth=0, **dot),
        base(drawn, "x0", "y0").mark_rule(strokeWidth=2).encode(x2="x:Q", y2="y:Q"),
        base(drawn, "tx", "ty").mark_text(fontSize=10).encode(text="class:N"),
    )


DRAWERS: Mapping[str, Callable[[Any, Look], Figure]] = {
    "curves": draw_curves,
    "gaps": draw_gaps,
    "confusion": draw_confusion,
    "penalty": draw_penalty,
    "training": draw_epochs,
    "circle": draw_circle,
}
LACKING = {  # why there is nothing to draw
    "curves": "the curve needs trials that succeeded",
    "gaps": "the figure of gaps needs a method and cross-entropy with the same seeds",
    "penalty": "Fig. 5 needs WCE or CAMRI trials with at least two penalties",
    "training": "the figure of training needs validation recalls of each epoch",
}


def draw(part: str, source: Source, look: Look = PRINT) -> Figure:
    """The figure of a part of a run or of a results folder; InputError where there is nothing to draw."""
    figure = DRAWERS[part](source.records(part), look)
    if not figure.panels:
        raise InputError(f"{LACKING[part]}, and there are none")
    if not source.small:
        return figure
    panels = tuple(replace(panel, title=f"small run: {panel.title}") for panel in figure.panels)
    return replace(
        figure, title=f"{figure.title} (small run)", caption=f"{source.small} {figure.caption}", panels=panels
    )
