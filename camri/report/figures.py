"""The paper's figures from a run: confusion and its changes (3), recall and accuracy against the penalty (5).

Fig. 6: features and weight vectors of a model with two features, on the circle.

A store keeps no features. Where logits and weights were kept they are found again: with unit weight vectors W (C, 2)
and scale s the logits are s · W z′, so z′ is the least-squares solution of W z′ = logits / s.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from camri.errors import InputError
from camri.methods import title_of
from camri.metrics import Array
from camri.report.charts import draw_curves, draw_epochs
from camri.report.equal_recall import draw_gaps
from camri.report.theme import LINES, PRINT, Figure, Look, Panel, drawing, labels
from camri.study.reader import RunReader, SettingResults, measure
from camri.study.schema import Row
from camri.study.verdict import ColumnVerdict
from camri.text import quoted

MOST_CLASSES = 20
FEW_CLASSES = 12  # up to here numbers fit into the cells
# A method's penalty: the knob that grows along the horizontal axis, its title, and the unit it is shown in.
PENALTIES = {
    "wce": ("w", "weight w", 1.0),
    "camri": ("m", "margin m (π/64)", np.pi / 64),  # the paper's step for margins
}
# Where cells have no numbers: squares in a row, as strong as cells of such a value.
SQUARES = alt.Legend(
    symbolType="square", symbolSize=180, symbolStrokeWidth=0, direction="horizontal", columns=0, tickCount=4
)


def count_confusion(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> dict[str, Any]:
    """What Fig. 3 draws: cross-entropy's confusion matrix, and the changes by CAMRI, or else the first method."""
    first = next((one for one in verdicts if one.baseline is not None), None)
    if first is None or first.baseline is None:
        raise InputError(f"{reading.folder}: Fig. 3 needs cross-entropy trials and important classes, and has none")
    before = reading.confusion(first.baseline)
    changes = []
    for one in verdicts:
        name = "camri" if one.of("camri") else next((s.method for s in one.settings if s.method != "ce"), "ce")
        setting = one.in_table_one(name) or one.shown(name)
        if setting is not None and name != "ce":
            changes.append((one, setting, reading.confusion(setting) - before))
    kept = _kept(before, changes, len(reading.classes))
    names = [reading.classes[index] for index in kept]
    panels = [
        {
            "title": "(a) cross-entropy",
            "is_change": False,
            "cells": _cells("cross-entropy", before, kept, names, 0.0005),
        }
    ]
    for letter, (one, setting, change) in zip("bcdefghijklmnopqrstuvwxyz", changes, strict=False):
        title = f"({letter}) {quoted(one.column.title)}: {setting.title} − cross-entropy"
        cells = _cells(one.column.title, change, kept, names, 0.0005)
        panels.append({"title": title, "is_change": True, "cells": cells})
    return {"classes": names, "num_classes": len(before), "panels": panels}


def draw_confusion(found: Mapping[str, Any], look: Look = PRINT) -> Figure:
    """The figure of what `count_confusion` found."""
    names, num_classes = found["classes"], found["num_classes"]
    return Figure(
        "confusion",
        "Confusion, and what changed",
        "(a): of each class (row), the percentage that is taken for each class (column). The others: "
        "percentage points more (blue, plus) or fewer (orange, minus) than that. Along the important class’s row, what "
        "was found again; down its column, what it now takes from others. Models as trained, mean over trials."
        + (
            f" Of {num_classes} classes the {len(names)} with the most confusion; columns are in the order of rows."
            if len(names) < num_classes
            else ""
        ),
        tuple(
            Panel(one["title"], _heat(one["cells"], names, look, is_change=one["is_change"]), 24 * len(names) + 40)
            for one in found["panels"]
        ),
        tuple(cell for one in found["panels"] for cell in one["cells"]),
    )


def _kept(before: Array, changes: Sequence[tuple[ColumnVerdict, SettingResults, Array]], num_classes: int) -> list[int]:
    """All classes, or of many the important ones and those that are confused or changed most."""
    if num_classes <= MOST_CLASSES:
        return list(range(num_classes))
    important = {index for one, *_ in changes for index in one.column.indices}
    off = np.nan_to_num(before * (1 - np.eye(num_classes)))
    weight = off.sum(axis=0) + off.sum(axis=1)
    for _, _, change in changes:
        weight = weight + 5 * np.abs(np.nan_to_num(change)).sum(axis=1)
    ranked = sorted(range(num_classes), key=lambda index: (index not in important, -weight[index]))
    return sorted(ranked[:MOST_CLASSES])


def _cells(column: str, shares: Array, kept: Sequence[int], names: Sequence[str], least: float) -> list[dict[str, Any]]:
    return [
        {
            "column": column,
            "true": names[i],
            "predicted": names[j],
            "percent": round(100 * float(shares[row, place]), 2),
        }
        for i, row in enumerate(kept)
        for j, place in enumerate(kept)
        if np.isfinite(shares[row, place]) and abs(shares[row, place]) >= least
    ]


def _heat(records: Sequence[dict[str, Any]], names: Sequence[str], look: Look, is_change: bool) -> Any:
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
        tooltip=["true:N", "predicted:N", alt.Tooltip("percent:Q", format="+.1f" if is_change else ".1f")],
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


def measure_penalty(verdicts: Sequence[ColumnVerdict]) -> list[dict[str, Any]]:
    """What Fig. 5 draws: recall and accuracy of each column, method and penalty, where there are two penalties."""
    records = []
    for one in verdicts:
        for found in (_penalty_records(one, method) for method in PENALTIES):
            if len({record["penalty"] for record in found}) >= 2:
                records += found
    return records


def draw_penalty(records: Sequence[dict[str, Any]], look: Look = PRINT) -> Figure | None:
    """The figure of what `measure_penalty` found; None of nothing."""
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
        "one standard deviation, models as trained, test data. A method that only trades goes up in one line and "
        "down in the other; the paper’s claim is that for CAMRI accuracy stays level.",
        tuple(panels),
        tuple(records),
    )


def draw(part: str, records: Any, look: Look = PRINT) -> Figure | None:
    """The figure of a run's or a results folder's records of that part; None of nothing to draw."""
    makers: dict[str, Callable[[Any, Look], Figure | None]] = {
        "curves": draw_curves,
        "gaps": draw_gaps,
        "confusion": draw_confusion,
        "penalty": draw_penalty,
        "training": draw_epochs,
        "circle": draw_circle,
    }
    return makers[part](records, look)


def _penalty_records(one: ColumnVerdict, method: str) -> list[dict[str, Any]]:
    shown = one.in_table_one(method) or one.shown(method)
    if shown is None:
        return []
    knob, _, unit = PENALTIES[method]
    fixed = {name: shown.value(name) for name in shown.knobs if name != knob}
    records = []
    for setting in one.of(method):
        if all(setting.value(name) == value for name, value in fixed.items()):
            found = measure(setting, one.column.indices)
            for name, values in (("recall", found.recall), ("accuracy", found.accuracy)):
                mean, sd = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
                records.append(
                    {
                        "number": one.column.number,
                        "column": one.column.title,
                        "method": method,
                        "setting": setting.title,
                        "scale": fixed.get("s"),
                        "penalty": round(setting.value(knob) / unit, 6),
                        "figure": name,
                        "mean": round(mean, 5),
                        "sd": round(sd, 5),
                        "low": round(mean - sd, 5),
                        "high": round(mean + sd, 5),
                        "trials": len(values),
                    }
                )
    return records


def _penalty_chart(records: Sequence[dict[str, Any]], title: str, ends: tuple[float, float], look: Look) -> Any:
    domain = ["recall", "accuracy"]
    scale = alt.Scale(zero=False, domain=list(ends))
    base = drawing(records).encode(
        x=alt.X("penalty:Q", title=title),
        color=alt.Color(
            "figure:N",
            scale=alt.Scale(domain=domain, range=[look.up, look.down]),
            title=None,
            legend=LINES,
        ),
    )
    band = base.mark_area(opacity=0.16).encode(alt.Y("low:Q", title=None, scale=scale), alt.Y2("high:Q"))
    line = base.mark_line(point={"filled": True, "size": 45}).encode(
        alt.Y("mean:Q", title=None, scale=scale),
        strokeDash=alt.StrokeDash(
            "figure:N", scale=alt.Scale(domain=domain, range=[[1, 0], [5, 3]]), title=None, legend=LINES
        ),
        tooltip=[
            "setting:N",
            "figure:N",
            alt.Tooltip("mean:Q", format=".4f"),
            alt.Tooltip("sd:Q", format=".4f"),
            "trials:Q",
        ],
    )
    return alt.layer(band, line)


METHODS = ("l2softmax", "arcface", "camri")
HEAD = "head.weight"
MOST_DOTS = 150  # a class: more only hide each other


def recover(logits: Array, weight: Array) -> Array:
    """Unit features (N, 2) from logits (N, C) of a cosine head and its weight (C, 2), whatever the scale.

    >>> weight = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, -1.0]])
    >>> recover(8 * np.array([[0.6, 0.8, -1.4 / 2**0.5]]), weight).round(3).tolist()
    [[0.6, 0.8]]
    """
    unit = weight / np.linalg.norm(weight, axis=1, keepdims=True)
    features = np.asarray(logits, np.float64) @ np.linalg.pinv(unit).T
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def room(weight: Array, index: int) -> float:
    """Degrees between a weight vector's two neighbours on the circle, where it lies between them.

    Shared evenly it is 720 / C. With weight (C, 2):

    >>> weight = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [0.0, -1.0]])
    >>> room(weight, 1)
    180.0
    """
    angles = np.degrees(np.arctan2(weight[:, 1], weight[:, 0]))
    apart = np.delete(angles - angles[index], index) % 360
    return float(apart.min() + 360 - apart.max())


def find_circle(reading: RunReader) -> list[dict[str, Any]]:
    """What Fig. 6 draws of a run with two features, whose logits and weights were kept: a panel for each method.

    A panel has the weight vectors (spokes) and features (dots) of one model. Of several models it is that of the
    median accuracy (validation, if there is any): one may have collapsed. `models` has the accuracy and the first
    important class's room of every one.
    """
    if not reading.columns:
        raise InputError(f"{reading.folder}: Fig. 6 needs the important classes, and they are not known yet")
    column = reading.columns[0]
    panels = []
    for method in METHODS:
        for setting in reading.settings(column, method)[:1]:
            weights = {row.seed: _weight(reading, setting, row) for row in setting.rows}
            split = "val" if reading.has_validation else "test"
            ranked = sorted(setting.rows, key=lambda row: (row.accuracy[split], row.seed))
            drawn = ranked[(len(ranked) - 1) // 2]
            dots, spokes = _model(reading, drawn, weights[drawn.seed], column.indices)
            models = [
                {"seed": row.seed, "accuracy": row.accuracy["test"], "room": room(weights[row.seed], column.indices[0])}
                for row in setting.rows
            ]
            about = {"method": method, "title": f"{title_of(method)}: {setting.title}", "important": column.names[0]}
            panels.append({**about, "drawn": drawn.seed, "models": models, "dots": dots, "spokes": spokes})
    if not panels:
        raise InputError(f"{reading.folder}: Fig. 6 draws {', '.join(METHODS)}, and the run has none of them")
    return panels


def draw_circle(panels: Sequence[Mapping[str, Any]], look: Look = PRINT) -> Figure:
    """The figure of what `find_circle` found."""
    rooms = [
        f"{title_of(one['method'])} " + ", ".join(f"{m['room']:.1f}° ({m['accuracy']:.3f})" for m in one["models"])
        for one in panels
    ]
    return Figure(
        "circle",
        "Fig. 6: features on the circle",
        "Unit features (dots) and weight vectors (lines) of one model a method, that of the median accuracy; the "
        "important class in orange. The more room between its line and the neighbours’, the better it is separated. "
        f"Room of “{panels[0]['important']}” between its neighbours, and test accuracy, model by model: "
        f"{'; '.join(rooms)}. Shared evenly it would be {720 / len(panels[0]['spokes']):.0f}°.",
        tuple(Panel(one["title"], _chart(one["dots"], one["spokes"], look), 340) for one in panels),
        tuple({"panel": one["method"], **point} for one in panels for point in (*one["spokes"], *one["dots"])),
    )


def _weight(reading: RunReader, setting: SettingResults, row: Row) -> Array:
    """The head's weight (C, 2)."""
    weights = reading.run.weights(row)
    if weights is None or "test" not in reading.run.logits(row):
        raise InputError(
            f"{reading.folder}: Fig. 6 needs features, and the outcomes of {setting.title} keep none; run the study "
            "with [keep] logits = true, weights = true"
        )
    if HEAD not in weights or weights[HEAD].shape[1] != 2:
        raise InputError(f"{reading.folder}: Fig. 6 needs a model with two features (model_options num_features = 2)")
    return weights[HEAD]


def _model(reading: RunReader, row: Row, weight: Array, important: Sequence[int]) -> tuple[list[Any], list[Any]]:
    features, labels = recover(reading.run.logits(row)["test"], weight), reading.run.labels("test")
    dots, spokes = [], []
    unit = weight / np.linalg.norm(weight, axis=1, keepdims=True)
    for index, name in enumerate(reading.classes):
        kind = "important" if index in important else "other"
        spokes.append(
            {"class": name, "kind": kind, "x": float(unit[index, 0]), "y": float(unit[index, 1]), "line": True}
        )
        for x, y in features[labels == index][:MOST_DOTS]:
            dots.append({"class": name, "kind": kind, "x": round(float(x), 4), "y": round(float(y), 4), "line": False})
    return dots, spokes


def _chart(dots: list[Any], spokes: list[Any], look: Look) -> Any:
    domain = alt.Scale(domain=[-1.15, 1.15], nice=False)
    x, y = alt.X("x:Q", scale=domain, title="z′₁"), alt.Y("y:Q", scale=domain, title="z′₂")
    color = alt.condition("datum.kind == 'important'", alt.value(look.down), alt.value(look.muted))
    tips = [alt.Tooltip("class:N")]
    lines = drawing([{**one, "x0": 0, "y0": 0} for one in spokes]).mark_rule(strokeWidth=2)
    points = drawing(dots).mark_point(filled=True, size=12, opacity=0.35)
    names = drawing([{**one, "tx": 1.1 * one["x"], "ty": 1.1 * one["y"]} for one in spokes]).mark_text(fontSize=10)
    return alt.layer(
        points.encode(x, y, color=color, tooltip=tips),
        lines.encode(
            alt.X("x0:Q", scale=domain), alt.Y("y0:Q", scale=domain), x2="x:Q", y2="y:Q", color=color, tooltip=tips
        ),
        names.encode(alt.X("tx:Q", scale=domain), alt.Y("ty:Q", scale=domain), text="class:N", color=color),
    )
