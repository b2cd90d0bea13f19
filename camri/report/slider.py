"""The operating-point slider of a page: every decision worth making is counted here; the page only looks it up."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from camri.decision import Curve, DecisionRule, trace
from camri.metrics import Array, Scores
from camri.report.tables import BLANK

MOST_STATES = 2000
BACK = 0.1  # recall below the model's own that is shown state by state; below that, few states are kept
DEPTH = 0.05  # accuracy below the model's own, and false alarms above, that the charts show
VALUE = "VALUE"  # stands for the rule's number in the code
LEFT, TOP, RIGHT, BOTTOM = 46.0, 10.0, 384.0, 194.0  # ends of the lines within a chart's 400 × 218 units


@dataclass(frozen=True)
class State:
    """An operating point: the rule's number, figures in percent as text, counts, and its place in each chart.

    hits: rows of each important class that are found. alarms: false alarms. right: rows that are classified correctly.
    """

    number: str
    recall: str
    precision: str
    alarm_rate: str
    accuracy: str
    hits: tuple[int, ...]
    alarms: int
    right: int
    places: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Chart:
    """A figure against recall: an SVG path, and ticks as (place, text)."""

    title: str
    path: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, eq=False)
class Slider:
    """The states of a rule by rising recall; `start` is the advised one, `before` the model without the rule.

    names, num: the important classes and how many rows each has. codes: {language: code with VALUE for the number};
    code: the same with the advised number. data: JSON that the page's script looks up. note: which rows are counted.
    many: what they are called. label: what `before` is called.
    """

    names: tuple[str, ...]
    num: tuple[int, ...]
    num_rows: int
    states: tuple[State, ...]
    start: int
    now: State
    before: State
    codes: Mapping[str, str]
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

    names: of the important classes. as_factor: whether the code multiplies by its number instead of adding it.

    Of states with the same recall only the first is kept: all others raise more false alarms and are right no more
    often.
    """
    curve = trace(scores, rule.name)
    before = curve.before
    value, chosen = next(iter(rule.values.values())), curve.find(rule)
    is_kept = np.append(True, np.diff(curve.hits.sum(axis=1)) > 0)
    is_kept[chosen] = True
    kept = _thin(np.flatnonzero(is_kept), curve.mean_recall, float(before.mean_recall[0]) - BACK, chosen)
    shares, shares_before = (
        np.stack([own.mean_recall, own.precision.mean(axis=1), own.alarms / own.total, own.accuracy], axis=1)
        for own in (curve, before)
    )
    drawn = [0, 3, 2]  # recall, accuracy, false alarms
    places, charts = _draw(shares[kept][:, drawn], shares_before[0, drawn], shares[chosen, drawn], many)

    def make(own: Curve, state: int, figures: Array, number: str, at: Array) -> State:
        recall, precision, alarm_rate, accuracy = map(_percent, figures.tolist())
        hits, alarms, right = tuple(own.hits[state].tolist()), int(own.alarms[state]), int(own.correct[state])
        places = tuple((float(x), float(y)) for x, y in at)
        return State(number, recall, precision, alarm_rate, accuracy, hits, alarms, right, places)

    def number_of(state: int) -> str:
        if state == chosen:
            return written(math.exp(value) if as_factor else value)
        return written(curve.number(state, as_factor))

    states = tuple(
        make(curve, state, shares[state], number_of(state), places[place]) for place, state in enumerate(kept.tolist())
    )
    start = int(np.flatnonzero(kept == chosen)[0])
    num, num_rows = tuple(curve.num.tolist()), int(curve.total)
    looked_up = {"names": tuple(names), "num": num, "rows": num_rows, "codes": dict(codes)}
    looked_up["states"] = [list(vars(state).values()) for state in states]
    return Slider(
        names=tuple(names),
        num=num,
        num_rows=num_rows,
        states=states,
        start=start,
        now=states[start],
        before=make(before, 0, shares_before[0], "", places[-1]),
        codes=codes,
        code={language: text.replace(VALUE, states[start].number) for language, text in codes.items()},
        # "<" never stands in it, so nothing in it can end the script element.
        data=Markup(json.dumps(looked_up, separators=(",", ":")).replace("<", "\\u003c")),
        charts=charts,
        note=note,
        many=many,
        label=label,
    )


def written(number: float) -> str:
    """A rule's number as code has it.

    >>> written(2.413), written(math.exp(math.log(8.021))), written(0.0)
    ('2.413', '8.021', '0')
    """
    return f"{number:.12g}"


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

    figures (K, 3): recall, accuracy and false alarms as shares. What lies beyond a chart's ends is drawn at them.
    """
    recall, accuracy, alarms = figures.T
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
