"""What the pages of a comparison and of a triage draw: curves of several models, and two handles for two cut-offs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from camri.decision.answer import Answer
from camri.decision.curve import trace
from camri.decision.rules import Triage
from camri.report.slider import BOTTOM, LEFT, RIGHT, TOP, script_json
from camri.report.table import BLANK
from camri.report.words import VALUE, triage_code, written

MOST_STATES = 1500
HIGH = "HIGH"  # stands for the cut-off of alarms in the code


@dataclass(frozen=True)
class Line:
    """A model's curve as an SVG path, and its place in the legend."""

    title: str
    path: str
    kind: str


@dataclass(frozen=True)
class Curves:
    """Lines over recall, the band of a difference as a closed path, and ticks as (place, text)."""

    title: str
    lines: tuple[Line, ...]
    band: str
    zero: float | None
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


def make_curves(answer: Answer) -> tuple[Curves, ...]:
    """False alarms of each model at every recall, and the difference of the best new model with its 95 % band."""
    known = [one for one in answer.candidates if one.curve]
    if not known:
        return ()
    recall = np.array([one.recall for one in known[0].curve])
    alarms = [np.array([point.false_alarms for point in one.curve]) for one in known]
    best = next(one for one in known if one.name == answer.verdict.arm)
    kinds = ["before" if one is known[0] else "best" if one is best else "other" for one in known]
    first = _draw("False alarms (% of all rows)", recall, alarms, [one.title for one in known], kinds, None)
    ends = np.array([[point.change.low, point.change.high] for point in best.curve if point.change is not None]).T
    change = best_change = np.array([point.change.value for point in best.curve if point.change is not None])
    title = f"Difference, {best.title} less {known[0].title} (points; band: 95 %)"
    return first, _draw(title, recall, [change], [best.title], ["best"], (ends[0], ends[1], best_change))


def _draw(
    title: str,
    recall: np.ndarray,
    lines: Sequence[np.ndarray],
    names: Sequence[str],
    kinds: Sequence[str],
    band: tuple[np.ndarray, ...] | None,
) -> Curves:
    shown = [*lines, *(() if band is None else band[:2])]
    low, high = min(0.0, *(float(one.min()) for one in shown)), max(0.001, *(float(one.max()) for one in shown))

    def x_of(share: np.ndarray | float) -> np.ndarray:
        return LEFT + (np.asarray(share) - recall[0]) / (recall[-1] - recall[0]) * (RIGHT - LEFT)

    def y_of(share: np.ndarray | float) -> np.ndarray:
        return BOTTOM - (np.asarray(share) - low) / (high - low) * (BOTTOM - TOP)

    def path(x: np.ndarray, y: np.ndarray) -> str:
        return "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in zip(x_of(x).tolist(), y_of(y).tolist(), strict=True))

    closed = ""
    if band is not None:
        closed = path(np.append(recall, recall[::-1]), np.append(band[0], band[1][::-1])) + "Z"
    return Curves(
        title,
        tuple(Line(name, path(recall, one), kind) for name, one, kind in zip(names, lines, kinds, strict=True)),
        closed,
        float(y_of(0.0)) if band is not None else None,
        tuple((round(float(x_of(one)), 1), f"{100 * one:g}") for one in np.round(np.linspace(recall[0], 1, 6), 2)),
        tuple((round(float(y_of(one)), 1), f"{100 * one:g}") for one in _round_numbers(low, high)),
    )


def _round_numbers(low: float, high: float) -> list[float]:
    """A few round numbers from low to high.

    >>> _round_numbers(-0.01, 0.12)
    [0.0, 0.05, 0.1]
    """
    power = 10.0 ** math.floor(math.log10((high - low) / 2))
    step = next(power * unit for unit in (1, 2, 5, 10) if (high - low) / (power * unit) <= 5)
    return [round(k * step, 10) for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True, eq=False)
class Handles:
    """Two cut-offs that move, over states by falling cut-off: number `low` clears up to it, `high` alarms above it.

    data: JSON of (number, rows above it, rows of the class above it) for each state. texts: what is shown at first.
    """

    name: str
    num: int
    num_rows: int
    num_states: int
    low: int
    high: int
    texts: dict[str, str]
    code: str
    data: Markup


def make_handles(answer: Answer) -> Handles | None:
    """The states of both cut-offs on the judged rows; None where nothing may be cleared."""
    rule = answer.point.rule
    if answer.scores is None or answer.workload is None or not isinstance(rule, Triage):
        return None
    curve = trace(answer.scores, "threshold")
    probability = answer.scores.probabilities()[:, 0]
    ((index, low),) = rule.values.items()
    chosen = [int((probability > cut).sum()) for cut in (rule.alarms[index], low)]
    predicted = curve.predicted[:, 0]
    high_at, low_at = (int(np.searchsorted(predicted, num)) for num in chosen)
    some = np.linspace(0, len(predicted) - 1, min(MOST_STATES, len(predicted))).round().astype(int)
    kept = np.unique(np.concatenate([some, [low_at, high_at]]))
    places = {state: place for place, state in enumerate(kept.tolist())}
    numbers = [written(curve.number(state)) for state in kept.tolist()]
    numbers[places[low_at]] = written(low)
    if rule.alarms[index] < 1:
        numbers[places[high_at]] = written(rule.alarms[index])
    elif high_at == 0:
        numbers[0] = "1"
    states = [
        [number, int(predicted[state]), int(curve.hits[state, 0])]
        for number, state in zip(numbers, kept.tolist(), strict=True)
    ]
    num, total = int(curve.num[0]), int(curve.total)
    code = triage_code(answer).replace(f"(own > {written(low)})", f"(own > {VALUE})")
    code = code.replace(f"1 * (own > {written(rule.alarms[index])})", f"1 * (own > {HIGH})")
    looked_up = {"num": num, "rows": total, "code": code, "states": states}
    return Handles(
        answer.source.names[0],
        num,
        total,
        len(states),
        places[low_at],
        places[high_at],
        shown_at(states[places[low_at]], states[places[high_at]], num, total),
        triage_code(answer),
        script_json(looked_up),
    )


def shown_at(low: Sequence[object], high: Sequence[object], num: int, total: int) -> dict[str, str]:
    """What two states show: percentages and counts as text, as the page's script makes them.

    >>> found = shown_at(["0.1", 60, 19], ["1", 0, 0], 20, 100)
    >>> found["cleared"], found["person"], found["right"]
    ('40.0', '60.0', '–')
    """
    (_, above, found), (_, alarms, right) = low, high
    assert isinstance(above, int)
    assert isinstance(found, int)
    assert isinstance(alarms, int)
    assert isinstance(right, int)
    return {
        "cleared": f"{100 * (total - above) / total:.1f}",
        "missed": f"{100 * (num - found) / num:.1f}",
        "missed-count": f"{num - found:,}",
        "alarms": f"{100 * alarms / total:.1f}",
        "right": BLANK if not alarms else f"{100 * right / alarms:.1f}",
        "person": f"{100 * (above - alarms) / total:.1f}",
    }
