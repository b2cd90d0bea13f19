"""Every operating point of a rule on some rows, from one sort.

Predictions change only at the scores of the rows, so the sorted rows give all states of a rule. Rows that change at the
same cut-off are counted together, by what their change does to the figures. All figures of a state are sums of these
counts, and so are those of a fold or of a bootstrap draw: one sort serves all of them.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from camri.decision.rules import RULES, DecisionRule
from camri.decision.scores import REST, Array, Scores, divide
from camri.errors import InputError, closest

SLACK = 1e-9  # figures are ratios of counts: a smaller difference is rounding
ROUNDING = 3e-7  # relative, of what is computed in float32
MOST_CUTS = 2**15  # cut-offs that are told apart; of more, those at which important rows are found are kept first


@dataclass(frozen=True, eq=False)
class Counts:
    """Rows of a sweep, counted by what happens to them: (K + 1, 2, J).

    First the state that makes a row an important prediction, of which the last never comes; then whether argmax
    predicts it as important; then its kind: the important class that would be predicted (I) and the row's own status,
    its important class (I), else whether the best other class is right or wrong; J = I · (I + 2).
    """

    table: Array

    @cached_property
    def flips(self) -> Array:
        """Rows that become important predictions as a state begins, by kind: (K + 1, J)."""
        return self.table.sum(axis=1)

    @cached_property
    def plain(self) -> Array:
        """Rows by whether argmax predicts them as important, and kind: (2, J)."""
        return self.table.sum(axis=0)

    def without(self, part: "Counts") -> "Counts":
        """The counts of the other rows."""
        return Counts(self.table - part.table)

    def drawn(self, drawn: np.random.Generator) -> "Counts":
        """The counts of a bootstrap draw: of n rows each drawn Poisson(1) times, Poisson(n) are drawn."""
        table, known = np.zeros_like(self.table), self.table > 0
        table[known] = drawn.poisson(self.table[known])
        return Counts(table)


class Sweep:
    """The order in which rows become important predictions as a shift rises or a threshold falls.

    State k holds for values from upper[k − 1] to lower[k], the last cut-off of the rows before it and the first of
    those after it; a state includes its upper edge. place (N,): the state from which a row is an important prediction.
    """

    def __init__(self, scores: Scores, rule: str):
        if rule not in RULES:
            raise InputError(f"rule={rule!r} is unknown; {closest(rule, RULES)}", "rule")
        self.scores, self.rule = scores, rule
        margin = scores.shifted() if rule == "shift" else scores.probabilities()
        needed = -(margin[:, 0] if margin.shape[1] == 1 else margin.max(axis=1))
        if rule == "shift":
            needed[np.isposinf(scores.lead).any(axis=1)] = -np.inf
        else:  # a probability of 1 passes every threshold below 1, and one of 0 passes none
            needed = np.select([needed <= -1.0, needed >= 0.0], [-np.inf, np.inf], needed)
        # No shift changes an infinite lead: the prediction of a probability of exactly 0 or 1 stays.
        is_moving = np.isfinite(needed)
        moving = _order(needed) if is_moving.all() else np.flatnonzero(is_moving)
        if len(moving) < len(needed):
            moving = moving[_order(needed[moving])]
        cuts = needed[moving]
        starts = _starts(cuts, rule, rule == "threshold" and scores.probability is not None)
        if len(starts) > MOST_CUTS:
            starts = _thinned(starts, cuts, np.isin(scores.labels, scores.important)[moving])
        ends = np.append(starts, len(cuts))[1:] - 1
        self.lower, self.upper = cuts[starts], cuts[ends]
        self.place = np.zeros(len(scores), dtype=np.int32)
        self.place[moving] = np.repeat(np.arange(1, len(starts) + 1, dtype=np.int32), ends - starts + 1)
        self.place[np.isposinf(needed)] = len(starts) + 1
        self.winner = 0 if margin.shape[1] == 1 else margin.argmax(axis=1)
        self.kind = self._kinds()

    def _kinds(self) -> Array:
        num = len(self.scores.important)
        status = np.where(self.scores.rest_right, num, num + 1).astype(np.int32)
        for place, index in enumerate(self.scores.important):
            status[self.scores.labels == index] = place
        return status + np.asarray(self.winner * (num + 2), dtype=np.int32)

    @property
    def num_states(self) -> int:
        return len(self.lower) + 1

    @property
    def num_kinds(self) -> int:
        num = len(self.scores.important)
        return num * (num + 2)

    @cached_property
    def is_plain(self) -> Array:
        """Whether argmax predicts a row as important: bool (N,)."""
        return np.asarray(self.scores.predict() != REST)

    @cached_property
    def _cell(self) -> Array:
        """Where a row is counted: (N,)."""
        return (self.place * 2 + self.is_plain) * np.int32(self.num_kinds) + self.kind

    def counts(self, weights: Array | None = None, rows: Array | None = None) -> Counts:
        """Count all rows, or some; each once or with its weight (N,)."""
        chosen: Any = slice(None) if rows is None else rows
        size = (self.num_states + 1) * 2 * self.num_kinds
        cells = np.bincount(self._cell[chosen], None if weights is None else weights[chosen], minlength=size)
        return Counts(cells.reshape(-1, 2, self.num_kinds))

    def counts_by(self, parts: Array) -> list[Counts]:
        """The counts of each part 0, 1, … (N,) of the rows, such as folds."""
        num, size = int(parts.max()) + 1, (self.num_states + 1) * 2 * self.num_kinds
        if num * size > 2**26:  # many classes: one after another
            return [self.counts(rows=np.flatnonzero(parts == part)) for part in range(num)]
        tables = np.bincount(parts.astype(np.int64) * size + self._cell, minlength=num * size)
        return [Counts(table) for table in tables.reshape(num, -1, 2, self.num_kinds)]

    def sums(self, delta: Array, weights: Array | None = None, rows: Array | None = None) -> Array:
        """The sum of a row's delta (N,) over the rows that are important predictions in each state: (K,)."""
        chosen: Any = slice(None) if rows is None else rows
        values = delta[chosen] if weights is None else delta[chosen] * weights[chosen]
        return np.cumsum(np.bincount(self.place[chosen], values, minlength=self.num_states + 1)[:-1])

    def curve(self, counts: Counts | None = None) -> "Curve":
        """The curve of all rows, or of those that were counted: states that do the same to them are one."""
        if counts is None:
            return Curve(self, self.counts(), np.arange(self.num_states))
        return Curve(self, counts, np.append(0, np.flatnonzero(counts.flips[1:-1].any(axis=1)) + 1))


@dataclass(frozen=True, eq=False)
class Curve:
    """All K states of a rule on some rows, in order of how many rows are predicted as important.

    states (K,): those of the sweep. Figures count rows, or add their weights: hits and predicted (K, I), correct and
    alarms (K,); alarms are rows of no important class that are predicted as one.
    """

    sweep: Sweep
    counts: Counts
    states: Array

    @cached_property
    def _passed(self) -> Array:
        """Rows that are important predictions, by class predicted and status: (K, I, I + 2)."""
        num = len(self.num)
        return np.cumsum(self.counts.flips[:-1], axis=0)[self.states].reshape(len(self.states), num, num + 2)

    @cached_property
    def _statuses(self) -> Array:
        """All rows by status: (I + 2,)."""
        num = len(self.sweep.scores.important)
        return self.counts.plain.sum(axis=0).reshape(num, num + 2).sum(axis=0)

    @cached_property
    def num(self) -> Array:
        """Rows of each important class: (I,)."""
        return self._statuses[:-2]

    @property
    def total(self) -> float:
        """All rows."""
        return self._statuses.sum().item()

    @cached_property
    def hits(self) -> Array:
        return self._passed[:, np.arange(len(self.num)), np.arange(len(self.num))]

    @cached_property
    def predicted(self) -> Array:
        return self._passed.sum(axis=2)

    @cached_property
    def correct(self) -> Array:
        return self._statuses[-2] + self.hits.sum(axis=1) - self._passed[:, :, -2].sum(axis=1)

    @cached_property
    def alarms(self) -> Array:
        return self._passed[:, :, -2:].sum(axis=(1, 2))

    @property
    def recall(self) -> Array:
        """Recall of each important class: (K, I)."""
        return divide(self.hits, self.num)

    @property
    def mean_recall(self) -> Array:
        """Recall averaged over the important classes: (K,), never falling along the curve."""
        return self.recall.mean(axis=1)

    @property
    def precision(self) -> Array:
        """Precision of each important class, nan while it is never predicted: (K, I)."""
        return divide(self.hits, self.predicted)

    @property
    def accuracy(self) -> Array:
        """Accuracy over all classes: (K,)."""
        return self.correct / self.total

    @cached_property
    def before(self) -> "Curve":
        """The curve of a single state, the one without a rule: the largest score wins."""
        table = np.zeros_like(self.counts.table[:2])
        table[0, 1], table[1, 0] = self.counts.plain[1], self.counts.plain[0]
        return replace(self, counts=Counts(table), states=np.zeros(1, dtype=int))

    @cached_property
    def edges(self) -> tuple[Array, Array]:
        """Where each state begins and ends: (K,) both."""
        before, after = self.sweep.upper[self.states[1:] - 1], self.sweep.lower[self.states[1:] - 1]
        ends = (-np.inf, np.inf) if self.sweep.rule == "shift" else (-1.0, 0.0)
        return np.append(ends[0], before), np.append(after, ends[1])

    @cached_property
    def value(self) -> Array:
        """The rule's value in every state, the middle of its interval: (K,). 0 for the state without a shift."""
        low, high = self.edges
        if self.sweep.rule == "threshold":
            return -(low + high) / 2
        if len(self.states) == 1:
            return np.zeros(1)
        shift = np.concatenate([high[:1] - 1.0, (low[1:-1] + high[1:-1]) / 2, low[-1:] + 1.0])
        shift[self._no_shift] = 0.0
        return shift

    @property
    def _no_shift(self) -> int:
        return int(np.searchsorted(self.edges[1][:-1], 0.0, side="left"))

    @cached_property
    def start(self) -> int:
        """The state of the present decision: of a threshold, the one with as many important predictions."""
        if self.sweep.rule == "shift":
            return self._no_shift
        num = self.counts.plain[1].sum()
        return int(np.searchsorted(self.predicted.sum(axis=1), num, side="left").clip(max=len(self.states) - 1))

    def sums(self, delta: Array, weights: Array | None = None, rows: Array | None = None) -> Array:
        """The sum of a row's delta over the important predictions in each state: (K,). See `Sweep.sums`."""
        return self.sweep.sums(delta, weights, rows)[self.states]

    def reach(self, recall: float | Array) -> Array:
        """Index of the first state with at least this mean recall; of each, for an array of recalls.

        >>> from camri.decision.scores import condense
        >>> curve = trace(condense(np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]]), [1, 1, 0], (1,)))
        >>> state = curve.reach(0.5)
        >>> float(curve.value[state]), float(curve.accuracy[state]), curve.precision[state].tolist()
        (2.0, 0.3333333333333333, [0.5])
        """
        if not np.all((np.asarray(recall) >= 0) & (np.asarray(recall) <= 1)):
            raise InputError(f"recall={recall!r} is not allowed; give numbers from 0 to 1", argument="recall")
        return np.searchsorted(self.mean_recall, np.asarray(recall) - SLACK, side="left")

    def rule(self, state: int, as_factor: bool = False) -> DecisionRule:
        """The rule of a state, with the shortest number that gives it; a shift's may be a factor of probabilities."""
        number = self.number(state, as_factor)
        value = math.log(number) if as_factor and self.sweep.rule == "shift" else number
        return RULES[self.sweep.rule](dict.fromkeys(self.sweep.scores.important, value))

    def find(self, rule: DecisionRule) -> int:
        """The state that a rule of this kind gives; it has one value for all important classes."""
        value = next(iter(rule.values.values()))
        value = value if self.sweep.rule == "shift" else -value
        return int(np.searchsorted(self.edges[1][:-1], value, side="left"))

    def number(self, state: int, as_factor: bool = False) -> float:
        """The shortest number that gives a state: a shift, its exponential (`as_factor`), or a threshold."""
        state %= len(self.states)
        low, high = (float(edge[state]) for edge in self.edges)
        if self.sweep.rule == "threshold":
            return short_between(-high, -low)
        if self.value[state] == 0:
            return 1.0 if as_factor else 0.0
        if math.isinf(low) or math.isinf(high):
            low, high = (high - 1.0, high) if math.isinf(low) else (low, low + 1.0)
        if as_factor:
            low, high = math.exp(low), math.exp(high)
        return -short_between(-high, -low)  # a state includes its upper edge, not its lower one


def trace(scores: Scores, rule: str = "shift") -> Curve:
    """The whole recall–accuracy curve of a "shift" or "threshold" with one value for all important classes.

    >>> from camri.decision.scores import condense
    >>> curve = trace(condense(np.array([[1.0, 0.0], [0.0, 0.5], [2.0, 0.0]]), [1, 1, 0], (1,)))
    >>> curve.value.tolist(), curve.mean_recall.tolist(), (curve.correct / 3).round(2).tolist()
    ([-1.5, 0.0, 1.5, 3.0], [0.0, 0.5, 1.0, 1.0], [0.33, 0.67, 1.0, 0.67])
    """
    return Sweep(scores, rule).curve()


def _starts(cuts: Array, rule: str, is_given: bool) -> Array:
    """The first place of each group of sorted cut-offs that are passed together."""
    # Rows that are equal but for rounding (.3 / .6 and .1 / .2, or 2.1 and 0.3 + 1.8 in float32) change together: no
    # number lies between them in the precision of the scores. Those with a tie for the largest score are kept apart by
    # `exact`: no shift leaves them as argmax has them. Probabilities that are given are compared as they are.
    size = np.maximum(np.abs(cuts[1:]), 1.0) if rule == "shift" else np.abs(cuts[1:])
    least = 0.0 if is_given else ROUNDING * size
    is_sign = (cuts[:-1] < 0) & (cuts[1:] >= 0)
    return np.flatnonzero(np.append(True, (np.diff(cuts) > least) | is_sign)) if len(cuts) else np.zeros(0, int)


def _thinned(starts: Array, cuts: Array, own: Array) -> Array:
    """Fewer places: behind rows of important classes, where recall rises, and evenly spaced ones.

    cuts: of sorted rows; own: whether they are of important classes.
    """
    kept = np.zeros(len(starts) + 1, dtype=bool)
    kept[np.searchsorted(starts, np.flatnonzero(own), side="right")] = True
    behind = np.flatnonzero(kept[:-1])
    kept[behind] = False
    kept[behind[:: -(-2 * len(behind) // MOST_CUTS) or 1]] = True
    kept[:: -(-2 * len(starts) // MOST_CUTS)] = True
    kept[np.searchsorted(cuts[starts], 0.0)] = True  # no shift is a state of its own
    return starts[kept[:-1]]


def _order(values: Array) -> Array:
    """Indices of a stable sort. Values that fit float16, as stored leads do, are sorted as int16, ten times faster.

    >>> _order(np.array([0.5, -2.0, 0.0, -0.0, -3.0])).tolist()
    [4, 1, 2, 3, 0]
    """
    if len(values) > MOST_CUTS and not np.array_equal(values[:1000].astype(np.float16), values[:1000]):
        return np.argsort(values)
    with np.errstate(over="ignore"):
        half = values.astype(np.float16) + np.float16(0)  # -0 is 0
    if not np.array_equal(half, values):
        return np.argsort(values, kind="stable")
    bits = half.view(np.int16)
    return np.argsort(np.where(bits < 0, np.int16(-(2**15)) - bits, bits), kind="stable")


def short_between(low: float, high: float) -> float:
    """The number with the fewest digits between `low` and `high`, near their middle; `low` if there is none.

    It is a thousandth of their distance away from both, or more where they are near, since they may be rounded
    themselves. If both are float16 or float32 numbers, it separates them in that precision too.

    >>> short_between(0.21341, 0.21398), short_between(0.0, 1.0)
    (0.2137, 0.5)
    """
    middle = (low + high) / 2
    apart = max((high - low) / 1000, min((high - low) / 4, ROUNDING / 2 * max(abs(low), abs(high))))
    with np.errstate(over="ignore"):
        kinds = [kind for kind in (np.float16, np.float32) if all(float(kind(end)) == end for end in (low, high))]
        for digits in range(1, 17):
            rounded = float(f"{middle:.{digits}g}")
            if low + apart < rounded < high - apart and all(low <= float(kind(rounded)) < high for kind in kinds):
                return rounded
    return low
