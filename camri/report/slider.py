"""The operating-point slider of a page: every operating point is counted here, and the page looks them up."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from camri.decision import Array, Curve, DecisionRule, Scores, trace
from camri.report.table import BLANK
from camri.report.words import VALUE, written

MOST_STATES = 2000
BACK = 0.1  # recall below the model's own that is shown state by state; below that, few states are kept
DEPTH = 0.05  # accuracy below the model's own, and false alarms above, that the charts show
LEFT, TOP, RIGHT, BOTTOM = 46.0, 10.0, 384.0, 194.0  # ends of the lines within a chart's 400 × 218 units


@dataclass(frozen=True)
class State:
    """An operating point: the rule's number, figures in percent as text, counts, and its place in each chart.

    hits: rows of each important class that are found. alarms: false alarms.
    """

    number: str
    recall: str
    accuracy: str
    alarm_rate: str
    precision: str
    hits: tuple[int, ...]
    alarms: int
    places: list[list[float]]


@dataclass(frozen=True)
class Chart:
    """A figure against recall: an SVG path, and ticks as (place, text)."""

    title: str
    path: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, eq=False)
class Slider:
    """The states of a rule by rising recall; number `start` is `now`, the advised one. `before`: without the rule.

    names, num: the important classes and how many rows each has. code: {language: code} with the advised number.
    data: JSON that the page's script looks up. note: which rows are counted. many: what they are called.
    label: what `before` is called.
    """

    names: Sequence[str]
    num: tuple[int, ...]
    num_rows: int
    states: tuple[State, ...]
    start: int
    now: State
    before: State
    code: Mapping[str, str]
    data: Markup
    charts: tuple[Chart, ...]
    note: str
    many: str
    label: str


def make_slider(
    scores: Scores,
    rule: DecisionRule,
    names: Sequence[str],
    codes: Mapping[str, str],
    *,
    as_factor: bool = False,
    note: str = "",
    many: str = "rows",
    label: str = "as it is",
) -> Slider:
    """Count every operating point of a rule on some rows; `rule` is the advised one.

    names: of the important classes. codes: {language: code with VALUE for the rule's number}. as_factor: whether the
    code multiplies by its number instead of adding it.

    Of states with the same recall only the first is kept: the others have more false alarms and no more correct rows.
    """
    curve = trace(scores, rule.name)
    before = curve.before
    value, chosen = next(iter(rule.values.values())), curve.find(rule)
    is_kept = np.append(True, np.diff(curve.hits.sum(axis=1)) > 0)
    is_kept[chosen] = True
    kept = _thin(np.flatnonzero(is_kept), curve.mean_recall, float(before.mean_recall[0]) - BACK, chosen)
    figures, figures_before = (
        np.stack([own.mean_recall, own.accuracy, own.alarms / own.total, own.precision.mean(axis=1)], axis=1)
        for own in (curve, before)
    )
    places, charts = _draw(figures[kept], figures_before[0], figures[chosen], many)

    def make(own: Curve, state: int, shares: Array, number: str, at: Array) -> State:
        recall, accuracy, alarm_rate, precision = map(_percent, shares.tolist())
        hits, alarms = tuple(own.hits[state].tolist()), int(own.alarms[state])
        return State(number, recall, accuracy, alarm_rate, precision, hits, alarms, at.tolist())

    advised = written(math.exp(value) if as_factor else value)
    numbers = [advised if state == chosen else written(curve.number(state, as_factor)) for state in kept.tolist()]
    states = tuple(
        make(curve, state, figures[state], number, at)
        for state, number, at in zip(kept.tolist(), numbers, places[:-1], strict=True)
    )
    start = int(np.flatnonzero(kept == chosen)[0])
    num, num_rows = tuple(curve.num.tolist()), int(curve.total)
    looked_up = {
        "num": num,
        "rows": num_rows,
        "codes": dict(codes),
        "states": [[*vars(one).values()] for one in states],
    }
    return Slider(
        names=names,
        num=num,
        num_rows=num_rows,
        states=states,
        start=start,
        now=states[start],
        before=make(before, 0, figures_before[0], "", places[-1]),
        code={language: text.replace(VALUE, advised) for language, text in codes.items()},
        data=script_json(looked_up),
        charts=charts,
        note=note,
        many=many,
        label=label,
    )


def script_json(value: Any) -> Markup:
    """The value as JSON for a script element; it has no "<", so nothing in it can end the element."""
    return Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"))


def _thin(states: Array, recall: Array, low: float, chosen: int) -> Array:
    """At most MOST_STATES of the states, by index: both ends, the chosen one, and few whose recall is below `low`."""
    is_low = recall[states] < low
    above = states[~is_low]
    fewest = max(2, min(MOST_STATES // 8 - 3, len(above) // 8))
    kept = [np.array([states[0], chosen, states[-1]])]
    for part, most in ((above, MOST_STATES * 7 // 8), (states[is_low], fewest)):
        kept.append(part[np.linspace(0, len(part) - 1, min(len(part), most)).round().astype(int)])
    return np.unique(np.concatenate(kept))


def _percent(share: float) -> str:
    return BLANK if math.isnan(share) else f"{100 * share:.1f}"


def _draw(figures: Array, before: Array, advised: Array, many: str) -> tuple[Array, tuple[Chart, ...]]:
    """Places (K + 1, 2, 2) of the states and of `before` in both charts, and the charts.

    figures (K, 4): shares: recall, accuracy, false alarms, precision. Points beyond a chart's ends are drawn there.
    """
    recall, accuracy, alarms, _ = figures.T
    reach = np.stack([before, advised])
    x_ends = (max(0.0, float(reach[:, 0].min()) - BACK), float(max(recall.max(), reach[:, 0].max())))
    lowest = max(float(accuracy.min()), float(reach[:, 1].min()) - DEPTH)
    y_ends = {
        "accuracy (%)": (lowest, float(max(accuracy.max(), before[1])) + 0.002),
        f"false alarms (% of all {many})": (0.0, min(float(alarms.max()), float(reach[:, 2].max()) + DEPTH) + 0.002),
    }
    all_points, places, charts = np.vstack([figures, before]), [], []
    x = LEFT + (all_points[:, 0] - x_ends[0]) / max(x_ends[1] - x_ends[0], 1e-9) * (RIGHT - LEFT)
    for column, (title, (low, high)) in enumerate(y_ends.items(), start=1):
        y = BOTTOM - (all_points[:, column] - low) / max(high - low, 1e-9) * (BOTTOM - TOP)
        path = "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in zip(x[:-1].tolist(), y[:-1].tolist(), strict=True))
        inside = np.stack([x.clip(LEFT, RIGHT), y.clip(TOP, BOTTOM)], axis=1)
        places.append(inside.round(1))
        x_ticks = _ticks(*x_ends, lambda share: LEFT + share * (RIGHT - LEFT))
        y_ticks = _ticks(low, high, lambda share: BOTTOM - share * (BOTTOM - TOP))
        charts.append(Chart(title, path, x_ticks, y_ticks))
    return np.stack(places, axis=1), tuple(charts)


def _ticks(low: float, high: float, place: Callable[[float], float]) -> tuple[tuple[float, str], ...]:
    """Three to six round percentages from low to high, each with its place.

    >>> _ticks(0.61, 1.0, float)
    ((0.2, '70'), (0.5, '80'), (0.7, '90'), (1.0, '100'))
    """
    span = 100 * max(high - low, 1e-6)
    power = 10.0 ** math.floor(math.log10(span / 3))
    step = next(power * unit for unit in (1, 2, 5, 10) if span / (power * unit) <= 6)
    marks = np.arange(math.ceil(100 * low / step - 1e-9), math.floor(100 * high / step + 1e-9) + 1) * step
    return tuple((round(place((mark - 100 * low) / span), 1), f"{mark:g}") for mark in marks.round(6).tolist())
