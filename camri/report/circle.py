"""Fig. 6: features and weight vectors of a model with two features, on the circle.

A store keeps no features. Where logits and weights were kept they are found again: with unit weight vectors W (C, 2)
and scale s the logits are s · W z′, so z′ is the least-squares solution of W z′ = logits / s.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from camri.errors import InputError
from camri.metrics import Array
from camri.report.reading import Reading, Tried
from camri.report.theme import PRINT, Figure, Look, Panel, drawing
from camri.report.titles import TITLES
from camri.study.records import Row

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


def find_circle(reading: Reading) -> list[dict[str, Any]]:
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
            about = {"method": method, "title": f"{TITLES[method]}: {setting.title}", "important": column.names[0]}
            panels.append({**about, "drawn": drawn.seed, "models": models, "dots": dots, "spokes": spokes})
    if not panels:
        raise InputError(f"{reading.folder}: Fig. 6 draws {', '.join(METHODS)}, and the run has none of them")
    return panels


def draw_circle(panels: Sequence[Mapping[str, Any]], look: Look = PRINT) -> Figure:
    """The figure of what `find_circle` found."""
    rooms = [
        f"{TITLES[one['method']]} " + ", ".join(f"{m['room']:.1f}° ({m['accuracy']:.3f})" for m in one["models"])
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


def _weight(reading: Reading, setting: Tried, row: Row) -> Array:
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


def _model(reading: Reading, row: Row, weight: Array, important: Sequence[int]) -> tuple[list[Any], list[Any]]:
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
