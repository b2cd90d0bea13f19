"""Records -> the page's charts: curves, equal recall, training, recall of every class."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from camri.methods import BASELINE, title_of
from camri.report.records import DEPTH, MOST_CLASSES, Record, Records
from camri.report.theme import LINES, PRINT, Figure, Look, Panel, drawing, tips
from camri.study.reader import RunReader
from camri.study.verdict import LEAST_SEEDS, ColumnVerdict, Judged, picked
from camri.text import quoted

MOST_BANDS = 3  # methods; with more, only two have a band: overlapping ones cannot be read
BANDED = ("camri", BASELINE)
GAPS = {"mean": "accuracy", "alarms": "false alarms"}  # of a gap's record
FAR = 0.1  # of accuracy: a method that much below has not trained, and would squeeze the scale
ROW_HEIGHT = 22


def draw_curves(columns: Sequence[Record], look: Look = PRINT) -> Figure:
    """Accuracy against recall under the shift, a line a method with a band of one sd."""
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
    return Figure(
        "curve",
        "The curve: what recall costs",
        "Adding a constant to the important class’s score moves any trained model along its line. A line above "
        "cross-entropy’s is a better model; a point further right on the same line is only another shift. Dots: the "
        "models as trained. Lines: mean over trials on test data, each method at its best setting on validation "
        f"data. Bands: ± one standard deviation{'' if banded is None else f' of {banded[0]} and {banded[1]}'}. The "
        "dashed rule is cross-entropy’s accuracy.",
        tuple(panels),
        tuple(records),
    )


def _curve_chart(column: Record, lines: Records, bands: Records, starts: Records, look: Look) -> Any:
    floor, number = column["floor"], column["column"]
    # Of the bands only what stands above the floor: at a recall of 1 one model's spread would take half of the height.
    upper = [one["high"] for one in bands if one["accuracy"] >= floor]
    most = max(upper + [one["accuracy"] for one in (*lines, *starts)], default=1.0)
    shared = alt.Scale(zero=False, nice=False, domain=[floor - DEPTH, min(1.0, most)])
    is_several = column.get("num_important", 1) > 1
    recall = "mean recall of the important classes" if is_several else "recall of the important class"
    x = alt.X("recall:Q", title=recall, scale=alt.Scale(zero=False, nice=False))
    y = alt.Y("accuracy:Q", title="accuracy")
    colors, dashes = look.methods([line["method"] for line in column["lines"]])
    color = alt.Color("method:N", scale=colors, title=None, legend=LINES)
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
    return alt.layer(
        band.encode(
            x,
            alt.Y("low:Q", title="accuracy", scale=shared),
            alt.Y2("high:Q"),
            color,
            opacity=alt.condition(is_single, alt.value(0.12), alt.value(0.02)),
        ),
        rule.encode(y=alt.Y("floor:Q")),
        line.encode(
            x, y, color, strokeDash=alt.StrokeDash("method:N", scale=dashes, title=None, legend=LINES), opacity=faded
        ),
        dots.encode(x, y, color, opacity=faded, tooltip=shown),
        hover.encode(
            x, y, color, opacity=alt.condition(near, alt.value(1.0), alt.value(0.0)), tooltip=shown
        ).add_params(near),
    ).add_params(single)


def draw_gaps(records: Sequence[Record], look: Look = PRINT) -> Figure | None:
    """Accuracy and false alarms at equal recall against cross-entropy, a panel each for a column; None of nothing."""
    far = dict.fromkeys(title_of(one["method"]) for one in records if _is_far(one))
    near = [one for one in records if not _is_far(one)]
    points = [_gap_point(one, name) for one in near for name in GAPS if one.get(name) is not None]
    panels = []
    for number, important in dict.fromkeys((one["column"], one["important"]) for one in near):
        for name, title in GAPS.items():
            own = [point for point in points if (point["column"], point["figure"]) == (number, name)]
            ends = [point[end] for point in points if point["figure"] == name for end in ("low", "high")]
            if own:
                methods = [one["method"] for one in near if one["column"] == number]
                chart = _gap_chart(own, methods, ends, look)
                panels.append(Panel(f"{quoted(important)}: {title}", chart, ROW_HEIGHT * (len(own) + 1)))
    if not panels:
        return None
    left_out = f" Not drawn, as over {100 * FAR:.0f} points less accurate: {', '.join(far)}." if far else ""
    return Figure(
        "gaps",
        "At equal recall",
        "Every model is shifted to the same recalls; test data, mean over the recall range, differences from "
        "cross-entropy in percentage points. Dots: each method at its best setting on validation data. Lines: 95 % "
        "confidence intervals over seeds and test data (from three seeds on), not corrected for multiple comparisons. "
        f"Right of 0: more accurate. Left of 0: fewer false alarms. A line that crosses 0 may be chance.{left_out}",
        tuple(panels),
        tuple(points),
        across=len(GAPS),
    )


def _is_far(one: Record) -> bool:
    return one.get("mean") is not None and one["mean"] < -FAR


def _gap_point(one: Record, name: str) -> dict[str, Any]:
    ends = (f"{name}_low", f"{name}_high") if one["num_trials"] >= LEAST_SEEDS else (name, name)
    values = {"change": one[name], "low": one[ends[0]], "high": one[ends[1]]}
    return {
        "column": one["column"],
        "figure": name,
        "method": title_of(one["method"]),
        "setting": one["setting"],
        "trials": one["num_trials"],
        **{key: round(100 * value, 3) for key, value in values.items()},
    }


def _gap_chart(points: Records, methods: Sequence[str], ends: Sequence[float], look: Look) -> Any:
    """One panel; `ends` are those of all intervals of the figure, so that columns can be compared."""
    colors, _ = look.methods(methods)
    low, high = min(0.0, *ends), max(0.0, *ends)
    room = 0.05 * (high - low)
    base = drawing(points).encode(
        y=alt.Y("method:N", title=None, sort=[one["method"] for one in points]),
        color=alt.Color("method:N", scale=colors, legend=None),
        tooltip=tips("method", "setting", "change", "low", "high", "trials"),
    )
    scale = alt.Scale(domain=[low - room, high + room], nice=False)
    along = alt.X("low:Q", title="percentage points", scale=scale)
    zero = drawing([{"at": 0}]).mark_rule(strokeDash=[4, 3], color=look.muted).encode(x="at:Q")
    line, dot = base.mark_rule(strokeWidth=2.5), base.mark_point(filled=True, size=70, opacity=1)
    return alt.layer(zero, line.encode(along, alt.X2("high:Q")), dot.encode(alt.X("change:Q")))


def draw_epochs(records: Sequence[Record], look: Look = PRINT) -> Figure | None:
    """Recall and accuracy by epoch, two panels a column; None of nothing."""
    panels, points = [], []
    for number in dict.fromkeys(one["column"] for one in records):
        own = [one for one in records if one["column"] == number]
        important = quoted(own[0]["important"])
        titles = {"recall": f"recall of {important}", "accuracy": f"accuracy of models for {important}"}
        for name, title in titles.items():
            drawn = [
                {
                    "column": number,
                    "figure": name,
                    "method": title_of(one["method"]),
                    "setting": one["setting"],
                    "epoch": epoch,
                    "value": value,
                    "trials": one["num_trials"],
                }
                for one in own
                for epoch, value in enumerate(one[name], start=1)
            ]
            points += drawn
            panels.append(Panel(title, _epoch_chart(drawn, [one["method"] for one in own], name, look), 240))
    if not panels:
        return None
    return Figure(
        "training",
        "How training went",
        "Recall of the important class and accuracy on validation data after each epoch: models as trained, mean over "
        "trials, each method at its best setting. A line that still rises at its end needs more epochs. Where a line "
        "jumps at its end, the last model is a random draw: decay the learning rate to 0 or average the weights.",
        tuple(panels),
        tuple(points),
        across=2,
    )


def _epoch_chart(points: Records, methods: Sequence[str], name: str, look: Look) -> Any:
    colors, dashes = look.methods(methods)
    # The first epochs climb from nothing: drawn whole, they would squeeze the rest.
    shown = [one["value"] for one in points if one["epoch"] > points[-1]["epoch"] // 10]
    return (
        drawing(points)
        .mark_line(strokeWidth=1.5, clip=True)
        .encode(
            alt.X("epoch:Q", scale=alt.Scale(nice=False, zero=False), axis=alt.Axis(tickMinStep=1)),
            alt.Y("value:Q", title=name, scale=alt.Scale(domain=[min(shown), max(shown)])),
            alt.Color("method:N", scale=colors, title=None, legend=LINES),
            alt.StrokeDash("method:N", scale=dashes, title=None, legend=LINES),
            tooltip=tips("method", "setting", "epoch", "value .4f", "trials"),
        )
    )


def draw_changes(reading: RunReader, verdicts: Sequence[ColumnVerdict], look: Look = PRINT) -> Figure | None:
    """Change of every class's recall, vs cross-entropy as trained and with a shift; None without a chosen method.

    Of the chosen setting, else of CAMRI's, else of the first method's that is not cross-entropy.
    """
    panels, records = [], []
    for one in verdicts:
        rows = [one.best, one.by_method.get("camri"), *one.by_method.values()] if one.best is not None else []
        row = next((row for row in rows if row is not None and not row.keeps_baseline), None)
        if row is not None:
            found = _change_records(reading, one, row)
            records += found
            title = f"{quoted(one.column.title)}: {picked(one, row, in_words=True)}"
            panels.append(Panel(title, _change_chart(found, look), 60 + 13 * len(found)))
    if not panels:
        return None
    num = len(reading.classes)
    return Figure(
        "changes",
        "Classes that lost recall",
        "Change of every class’s recall in percentage points on test data, with 95 % confidence intervals over seeds "
        "and test data (from three seeds on). The important class is first (diamond), then the largest losses. An "
        "interval that crosses 0 may be chance; 1 in 20 misses it by chance. The change against cross-entropy + shift "
        "is the method’s own."
        + (f" Of {num} classes, the {MOST_CLASSES} that changed most." if num > MOST_CLASSES else ""),
        tuple(panels),
        tuple(records),
    )


def _change_records(reading: RunReader, one: ColumnVerdict, row: Judged) -> Records:
    arms = {"cross-entropy": "baseline", "cross-entropy + shift": "baseline shifted"}
    gains = {title: row.judgement.gains[arm].by_class for title, arm in arms.items()}
    first = gains["cross-entropy"]
    others = sorted((index for index in first if index not in one.column.indices), key=lambda i: first[i].value)
    if len(reading.classes) > MOST_CLASSES:
        kept = sorted(others, key=lambda i: -abs(first[i].value))[: MOST_CLASSES - len(one.column.indices)]
        others = [index for index in others if index in kept]
    has_ends = row.num_seeds >= LEAST_SEEDS
    return [
        {
            "column": one.column.title,
            "class": reading.classes[index],
            "place": place,
            "important": index in one.column.indices,
            "against": title,
            "gain": round(100 * found.value, 3),
            "low": round(100 * (found.low if has_ends else found.value), 3),
            "high": round(100 * (found.high if has_ends else found.value), 3),
        }
        for title, by_class in gains.items()
        for place, index in enumerate([*one.column.indices, *others])
        for found in [by_class[index]]
    ]


def _change_chart(records: Records, look: Look) -> Any:
    order = list(dict.fromkeys(record["class"] for record in sorted(records, key=lambda record: record["place"])))
    domain = list(dict.fromkeys(record["against"] for record in records))
    base = drawing(records).encode(
        y=alt.Y("class:N", sort=order, title=None),
        yOffset=alt.YOffset("against:N", sort=domain),
        color=alt.Color(
            "against:N",
            scale=alt.Scale(domain=domain, range=[look.muted, look.down]),
            title="vs",
            legend=alt.Legend(columns=1),
        ),
        tooltip=tips("class", "against", "gain +.1f", "low +.1f", "high +.1f"),
    )
    axis = alt.X("low:Q", title="Δ recall (percentage points)")
    bars = base.mark_rule(strokeWidth=2).encode(x=axis, x2="high:Q")
    dots = base.mark_point(filled=True, size=50).encode(
        x="gain:Q",
        shape=alt.Shape("important:N", scale=alt.Scale(domain=[True, False], range=["diamond", "circle"]), legend=None),
    )
    zero = drawing([{"x": 0}]).mark_rule(color=look.ink).encode(x="x:Q")
    return alt.layer(zero, bars, dots)
