"""Fig. 2: what four losses look like over the plane of two features, from their equations."""

from collections.abc import Callable
from typing import Any

import altair as alt
import numpy as np
from scipy.special import logsumexp

from camri.decision.scores import Array
from camri.report.charts import Figure, Panel, drawing

WEIGHTS = np.array([[np.cos(a), np.sin(a)] for a in np.deg2rad([90.0, 210.0, 330.0])])  # the first is the label's
EXTENT = 4.0
SCALE = 8.0
# paper: does not state the margin and weight of its figure / here: π/8, the largest of its grid, and 4, the smallest.
MARGIN_RAD = np.pi / 8
WEIGHT = 4.0


def cross_entropy(features: Array, weight: float = 1.0) -> Array:
    """Eq. 1 and 2 for the label 0, unit weight vectors and no bias: (…, 2) -> (…)."""
    logits = features @ WEIGHTS.T
    return weight * (logsumexp(logits, axis=-1) - logits[..., 0])


def margin_softmax(features: Array, margin: float = 0.0, scale: float = SCALE) -> Array:
    """Eq. 11 and 13 for the label 0: (…, 2) -> (…). Past π the angle's cosine falls on, as camri's losses have it.

    >>> margin_softmax(np.array([[0.0, 2.0]]), scale=1.0).round(4).tolist() == [round(np.log(1 + 2 * np.exp(-1.5)), 4)]
    True
    """
    length = np.maximum(np.linalg.norm(features, axis=-1, keepdims=True), 1e-12)
    cos = np.clip(features / length @ WEIGHTS.T, -1.0, 1.0)
    angle = np.arccos(cos[..., 0]) + margin
    turned = np.where(angle <= np.pi, np.cos(angle), -2.0 - np.cos(angle))
    logits = scale * np.concatenate([turned[..., None], cos[..., 1:]], axis=-1)
    return logsumexp(logits, axis=-1) - logits[..., 0]


# Each loss with the one it is compared with: the same without the penalty.
LOSSES: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "cross-entropy": (cross_entropy, cross_entropy),
    "L2-softmax (ArcFace without margin)": (margin_softmax, margin_softmax),
    f"WCE, w = {WEIGHT:g}": (lambda features: cross_entropy(features, WEIGHT), cross_entropy),
    "ArcFace / CAMRI, m = π/8": (lambda features: margin_softmax(features, MARGIN_RAD), margin_softmax),
}


def boundaries() -> list[dict[str, float]]:
    """Where two classes tie and the third is behind: half lines from the middle outwards."""
    found = []
    for i, j in ((0, 1), (1, 2), (2, 0)):
        across = WEIGHTS[i] + WEIGHTS[j]
        end = EXTENT * across / np.abs(across).max()
        found.append({"x": 0.0, "y": 0.0, "x2": round(float(end[0]), 6), "y2": round(float(end[1]), 6)})
    return found


def contours(steps: int = 81) -> Figure:
    """Fig. 2: contours of cross-entropy, WCE, and softmax on the circle without and with a margin, label 0."""
    axis = np.linspace(-EXTENT, EXTENT, steps)
    x, y = np.meshgrid(axis, axis)
    plane = np.stack([x, y], axis=-1)
    half = 0.53 * float(axis[1] - axis[0])  # a little more than half: no seams between neighbours
    panels = []
    for title, (loss, plain) in LOSSES.items():
        parts = np.minimum(1.0, loss(plane) / plain(plane).max())
        corners = np.stack([x - half, y - half, x + half, y + half, parts], axis=-1).reshape(-1, 5).round(4)
        field = [dict(zip(("x", "y", "x2", "y2", "part"), row, strict=True)) for row in corners.tolist()]
        panels.append(Panel(title, _layers(field), 340))
    return Figure(
        "Fig. 2: loss over the feature plane",
        "Loss of an image of class 1 by its two features, in ten steps: yellow high, dark low. Below: each loss with "
        "its penalty, at the levels and colours of the one above (1: its largest). The red arrow is class 1’s weight "
        "vector, black arrows the others’, grey lines the decision boundaries. WCE pushes the levels towards the red "
        "arrow and keeps their angle; the margin narrows the dark valley around it.",
        tuple(panels),
    )


def _layers(field: list[dict[str, float]]) -> Any:
    domain = alt.Scale(domain=[-EXTENT, EXTENT], nice=False)
    x, y = alt.X("x:Q", scale=domain, title="z₁"), alt.Y("y:Q", scale=domain, title="z₂")
    scale = alt.Scale(type="quantize", domain=[0, 1], scheme=alt.SchemeParams("viridis", count=10))
    color = alt.Color("part:Q", scale=scale, title="loss", legend=alt.Legend(orient="right"))
    plane = drawing(field).mark_rect(clip=True, strokeWidth=0).encode(x, y, x2="x2:Q", y2="y2:Q", color=color)
    ties = drawing(boundaries()).mark_rule(color="#bbbbbb", strokeWidth=2).encode(x, y, x2="x2:Q", y2="y2:Q")
    layers = [plane, ties]
    for place, tip in enumerate(2.2 * WEIGHTS):
        ink = "#e8112d" if place == 0 else "black"
        shaft = drawing(arrow(tip))
        name = drawing([{"x": 1.15 * tip[0], "y": 1.15 * tip[1], "name": f"W{'₁₂₃'[place]}"}])
        layers.append(shaft.mark_rule(color=ink, strokeWidth=3, strokeCap="round").encode(x, y, x2="x2:Q", y2="y2:Q"))
        layers.append(name.mark_text(fontSize=13, fontWeight="bold", color=ink).encode(x, y, text="name:N"))
    return alt.layer(*layers)


def arrow(tip: Array) -> list[dict[str, float]]:
    """An arrow from the middle to its tip: a shaft and two barbs, as segments."""
    ends = [(np.zeros(2), tip)]
    for turn in np.deg2rad([155.0, -155.0]):
        along = tip / np.linalg.norm(tip)
        barb = np.array(
            [np.cos(turn) * along[0] - np.sin(turn) * along[1], np.sin(turn) * along[0] + np.cos(turn) * along[1]]
        )
        ends.append((tip, tip + 0.45 * barb))
    return [{"x": float(a[0]), "y": float(a[1]), "x2": float(b[0]), "y2": float(b[1])} for a, b in ends]
