"""Decision rules: how scores become a class, how a rule is tuned on held-out data, and which recall it guarantees.

There are two rules. A `Shift` adds a constant to the important classes' scores before the largest wins: it costs the
least accuracy. A `Threshold` predicts an important class where its probability exceeds a value: it has the fewest false
alarms at a recall. Neither needs training. `tune` finds the operating point of a rule for a goal. It tries every
cut-off: predictions change only at the scores of the rows, so sorting the rows once, O(N log N), gives all states.

Rows come as `camri.metrics.Scores`: of stored trials, or made by `exact` from a table of logits or probabilities.

A promise (`promise`, or `tune` with `AtLeast` and a confidence) is a recall that new rows reach with a known
confidence, for any number of rows. A lower cut-off never misses more of an important class, so cut-offs are tested in
order, each at the full error level, and the first that passes is taken: Tong, Feng and Li (2018) for independent rows,
Bates et al. (2021) for groups.
"""

import bisect
import csv
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from os import PathLike
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from camri.errors import InputError, closest
from camri.metrics import REST, Array, Scores, divide, exact, pool
from camri.text import quoted

# With 70 validation rows the fitted model's accuracy on new rows is 2 points below cross-entropy's without a prior, 0.3
# points below with a prior of 250 rows, and equal with 500 (docs/log.md).
PRIOR_ROWS = 500
SLACK = 1e-9  # accuracies are ratios of counts: a smaller difference is rounding


@dataclass(frozen=True)
class _Rule:
    """Base of both rules; `values` is {class index: constant or probability}."""

    values: Mapping[int, float]
    name: ClassVar[str]
    allowed: ClassVar[tuple[float, float, str]]
    effect: ClassVar[tuple[str, str]]  # in words: on an important class, and on the others

    def __post_init__(self) -> None:
        low, high, hint = self.allowed
        if wrong := {index: value for index, value in self.values.items() if not low <= value <= high}:
            raise InputError(f"{type(self).__name__}({wrong}) is not allowed; {hint}", argument="values")
        if not self.values:
            raise InputError(f"{type(self).__name__} has no classes; give {{class index: value}}", argument="values")
        object.__setattr__(self, "values", {int(index): float(self.values[index]) for index in sorted(self.values)})

    def excess(self, scores: Scores) -> Array:
        """How far each important class is above its cut-off, 0 or less where it is not: (N, I)."""
        raise NotImplementedError

    def predict(self, scores: ArrayLike | Scores, kind: str = "logits") -> Array:
        """Predict the class of each row: int (N,).

        scores: (N, C), with `kind` "logits" or "probabilities"; or condensed `Scores`, for which −1 stands for the best
        class that is not important.
        """
        important = tuple(self.values)
        if isinstance(scores, Scores):
            if scores.important != important:
                wrong = f"a rule for the classes {important} does not fit scores of the important classes"
                raise InputError(f"{wrong} {scores.important}; give both the same")
            return scores.winner(self.excess(scores))
        table = np.asarray(scores)
        if table.ndim == 2 and not len(table):
            return np.zeros(0, dtype=np.int64)
        rows = exact(table, np.zeros(table.shape[:1], dtype=np.int64), important, kind)
        assert rows.rest is not None
        return rows.winner(self.excess(rows), rows.rest)

    def to_json(self, classes: Sequence[str] | None = None) -> dict[str, Any]:
        """The rule as plain JSON, with class names if given; `rule_from_json` reads it."""
        names = {index: str(index) if classes is None else classes[index] for index in self.values}
        return {"rule": self.name, "values": {names[index]: value for index, value in self.values.items()}}

    def describe(self, classes: Sequence[str]) -> str:
        """Describe the rule in words, for a model card.

        >>> Shift({1: 1.5}).describe(["limit", "stop"])
        '1.5 is added to the logit of “stop”, then the largest wins'
        >>> Threshold({1: 0.213}).describe(["limit", "stop"])
        '“stop” is predicted where its probability is above 0.213, else the best of the other classes'
        """
        own, rest = self.effect
        parts = [own.format(name=quoted(classes[k]), value=f"{value:.4g}") for k, value in self.values.items()]
        return f"{', '.join(parts)}, {rest}"


@dataclass(frozen=True)
class Shift(_Rule):
    """Add a constant to the logits of important classes; the largest wins. `values`: {class index: constant}.

    For probabilities the constant is added to their logarithm, so they are multiplied by exp(constant).

    >>> Shift({1: 1.5}).predict([[2.0, 1.0], [3.0, 1.0]]).tolist()
    [1, 0]
    """

    name: ClassVar[str] = "shift"
    allowed = (-1e300, 1e300, "give finite numbers")
    effect = ("{value} is added to the logit of {name}", "then the largest wins")

    def excess(self, scores: Scores) -> Array:
        """Each shifted important score minus the best other score: (N, I)."""
        return scores.shifted(list(self.values.values()))


@dataclass(frozen=True)
class Threshold(_Rule):
    """Predict an important class where its probability is above its value, else the best of the other classes.

    `values`: {class index: probability}. If several pass, the one with the largest ratio of odds to threshold odds
    wins.

    >>> Threshold({1: 0.2}).predict([[0.7, 0.25, 0.05], [0.5, 0.1, 0.4]], kind="probabilities").tolist()
    [1, 0]
    """

    name: ClassVar[str] = "threshold"
    allowed = (0.0, 1.0, "give probabilities, from 0 to 1")
    effect = ("{name} is predicted where its probability is above {value}", "else the best of the other classes")

    def excess(self, scores: Scores) -> Array:
        """Log of the ratio of odds to threshold odds, −inf below the threshold: (N, I)."""
        probability, least = scores.probabilities(), np.array(list(self.values.values()))
        passes = probability > least
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = special.logit(probability) - special.logit(np.maximum(least, np.finfo(np.float64).tiny))
        return np.where(passes, np.maximum(factor, np.finfo(np.float64).tiny), -np.inf)


DecisionRule = Shift | Threshold
RULES: dict[str, type[Shift] | type[Threshold]] = {"shift": Shift, "threshold": Threshold}


def rule_from_json(stored: Mapping[str, Any], classes: Sequence[str] | None = None) -> DecisionRule:
    """Read the rule that `to_json` wrote; `classes` if it was written with class names."""
    if stored.get("rule") not in RULES:
        raise InputError(f"rule={stored.get('rule')!r} is unknown; {closest(stored.get('rule'), RULES)}", "rule")
    values = {}
    for name, value in stored["values"].items():
        if classes is not None and name not in classes:
            raise InputError(f"the rule's {name!r} is not a class; {closest(name, classes)}", argument="rule")
        values[int(name) if classes is None else list(classes).index(name)] = float(value)
    return RULES[stored["rule"]](values)


@dataclass(frozen=True, eq=False)
class Curve:
    """All K states of a rule on some rows, in order of how many rows are predicted as important.

    value (K,): the rule's value, in the middle of the interval that gives this state. Shifts ascend, and are 0 for the
    state without a shift; thresholds descend. hits and predicted (K, I), correct and alarms (K,) count rows; alarms are
    rows of no important class that are predicted as one.
    """

    value: Array
    hits: Array
    predicted: Array
    correct: Array
    alarms: Array
    num: Array
    total: float
    sweep: "_Sweep"
    weights: Array | None = None

    @property
    def recall(self) -> Array:
        """Recall of each important class: (K, I)."""
        return divide(self.hits, self.num)

    @property
    def mean_recall(self) -> Array:
        """Recall averaged over the important classes: (K,), never falling along `trace`."""
        return self.recall.mean(axis=1)

    @property
    def precision(self) -> Array:
        """Precision of each important class, nan while it is never predicted: (K, I)."""
        return divide(self.hits, self.predicted)

    @property
    def accuracy(self) -> Array:
        """Accuracy over all classes: (K,)."""
        return self.correct / self.total

    @property
    def before(self) -> "Curve":
        """The curve of a single state, the one without a rule: the largest score wins."""
        scores = self.sweep.scores
        correct, alarms = (np.array([counted().sum()]) for counted in (scores.correct, scores.false_alarms))
        hits, predicted = scores.hits()[None], scores.called()[None]
        return replace(self, value=np.zeros(1), hits=hits, predicted=predicted, correct=correct, alarms=alarms)

    def reach(self, recall: float | Array) -> Array:
        """Index of the first state with at least this mean recall; of each, for an array of recalls.

        >>> from camri.metrics import condense
        >>> curve = trace(condense(np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]]), [1, 1, 0], (1,)))
        >>> state = curve.reach(0.5)
        >>> float(curve.value[state]), float(curve.accuracy[state]), curve.precision[state].tolist()
        (2.0, 0.3333333333333333, [0.5])
        """
        if not np.all((np.asarray(recall) >= 0) & (np.asarray(recall) <= 1)):
            raise InputError(f"recall={recall!r} is not allowed; give numbers from 0 to 1", argument="recall")
        return np.searchsorted(self.mean_recall, np.asarray(recall) - SLACK, side="left")

    def rule(self, state: int) -> DecisionRule:
        """The rule of a state; a threshold is the shortest number that gives it."""
        value = float(self.value[state]) if self.sweep.rule == "shift" else self.number(state)
        return RULES[self.sweep.rule](dict.fromkeys(self.sweep.scores.important, value))

    def find(self, rule: DecisionRule) -> int:
        """The state that a rule of this kind gives; it has one value for all important classes."""
        value = next(iter(rule.values.values()))
        edges = self.sweep.edges[1:-1]
        return int(np.searchsorted(edges, value if self.sweep.rule == "shift" else -value, side="left"))

    def number(self, state: int, as_factor: bool = False) -> float:
        """The shortest number that gives a state: a shift, its exponential (`as_factor`), or a threshold."""
        state %= len(self.value)
        low, high = self.sweep.edges[[state, state + 1]].tolist()
        if self.sweep.rule == "threshold":
            return short_between(-high, -low)
        if self.value[state] == 0:
            return 1.0 if as_factor else 0.0
        if math.isinf(low) or math.isinf(high):
            low, high = (high - 1.0, high) if math.isinf(low) else (low, low + 1.0)
        if as_factor:
            low, high = math.exp(low), math.exp(high)
        return -short_between(-high, -low)  # a state includes its upper edge, not its lower one

    def count(self, outcome: Callable[[Array], Array]) -> Array:
        """Sum over rows of outcome(predictions) (N,), in every state: (K,)."""
        return self.sweep.count(self.sweep.counted(outcome), self.weights)


def trace(scores: Scores, rule: str = "shift") -> Curve:
    """The whole recall–accuracy curve of a "shift" or "threshold" with one value for all important classes.

    >>> from camri.metrics import condense
    >>> curve = trace(condense(np.array([[1.0, 0.0], [0.0, 0.5], [2.0, 0.0]]), [1, 1, 0], (1,)))
    >>> curve.value.tolist(), curve.mean_recall.tolist(), (curve.correct / 3).round(2).tolist()
    ([-1.5, 0.0, 1.5, 3.0], [0.0, 0.5, 1.0, 1.0], [0.33, 0.67, 1.0, 0.67])
    """
    return _Sweep(scores, rule).curve()


class _Sweep:
    """Rows in the order in which they become important predictions as a shift rises or a threshold falls.

    In state k the rows up to order[last[k − 1]] are predicted as important. State k holds for shifts from edges[k] to
    edges[k + 1], or thresholds from −edges[k] down to −edges[k + 1]; edges (K + 1,).
    """

    def __init__(self, scores: Scores, rule: str):
        if rule not in RULES:
            raise InputError(f"rule={rule!r} is unknown; {closest(rule, RULES)}", "rule")
        self.scores, self.rule = scores, rule
        margin = scores.shifted() if rule == "shift" else scores.probabilities()
        needed = -margin.max(axis=1)
        if rule == "shift":
            needed[np.isposinf(scores.lead).any(axis=1)] = -np.inf
        else:  # a probability of 1 passes every threshold below 1, and one of 0 passes none
            needed = np.select([needed <= -1.0, needed >= 0.0], [-np.inf, np.inf], needed)
        winner = np.array(scores.important)[margin.argmax(axis=1)]
        # No shift changes an infinite lead: the prediction of a probability of exactly 0 or 1 stays.
        self.before = np.where(needed == -np.inf, winner, REST)
        self.after = np.where(needed == np.inf, REST, winner)
        moving = np.flatnonzero(np.isfinite(needed))
        self.order = moving[_order(needed[moving])]
        needed = needed[self.order]
        # Rows that are equal but for rounding (.3 / .6 and .1 / .2) change together: no number lies between them. Those
        # with a tie for the largest score are kept apart by `exact`: no shift leaves them as argmax has them.
        least = 1e-9 * np.maximum(np.abs(needed[1:]), 1.0) if rule == "shift" else 0.0
        parts = (np.diff(needed) > least) | ((needed[:-1] < 0) & (needed[1:] >= 0))
        self.last = np.flatnonzero(np.append(parts, len(needed) > 0))
        ends = [-np.inf, np.inf] if rule == "shift" else [-1.0, 0.0]
        self.edges = np.concatenate([ends[:1], needed[self.last], ends[1:]])
        self.predicted = [self.counted(partial(np.equal, index)) for index in scores.important]
        self.hits = [self.counted(partial(scores.is_hit, index)) for index in scores.important]
        self.correct, self.alarms = self.counted(scores.is_right), self.counted(scores.is_false_alarm)

    def counted(self, outcome: Callable[[Array], Array]) -> tuple[Array, Array]:
        """The outcome of each row in the first state (N,), and its change as each row of `order` passes."""
        before, after = outcome(self.before), outcome(self.after)
        kind = np.float64 if before.dtype.kind == "f" else np.int64
        return before, after[self.order].astype(kind) - before[self.order]

    def count(self, counted: tuple[Array, Array], weights: Array | None = None, ordered: Array | None = None) -> Array:
        """Sum of an outcome over rows in every state: (K,). weights: of rows (N,); ordered: the same, in `order`."""
        before, gained = counted
        if weights is None:
            start = before.sum(keepdims=True)
        else:
            start = np.atleast_1d(before @ weights)
            gained = gained * (weights[self.order] if ordered is None else ordered)
        return np.concatenate([start, start + np.cumsum(gained)[self.last]])

    def curve(self, weights: Array | None = None) -> Curve:
        """The curve of all states, with rows weighted if `weights` (N,) are given."""
        labels, important = self.scores.labels, self.scores.important
        ordered = None if weights is None else weights[self.order]
        num = [(labels == i).sum() if weights is None else weights[labels == i].sum() for i in important]
        return Curve(
            value=self.value,
            hits=np.stack([self.count(one, weights, ordered) for one in self.hits], axis=1),
            predicted=np.stack([self.count(one, weights, ordered) for one in self.predicted], axis=1),
            correct=self.count(self.correct, weights, ordered),
            alarms=self.count(self.alarms, weights, ordered),
            num=np.array(num),
            total=len(labels) if weights is None else float(weights.sum()),
            sweep=self,
            weights=weights,
        )

    @cached_property
    def value(self) -> Array:
        """The rule's value in every state: (K,)."""
        inner = self.edges[1:-1]
        if self.rule == "threshold":
            return -(self.edges[:-1] + self.edges[1:]) / 2
        if not len(inner):
            return np.zeros(1)
        shift = np.concatenate([inner[:1] - 1.0, (inner[:-1] + inner[1:]) / 2, inner[-1:] + 1.0])
        shift[np.searchsorted(inner, 0.0, side="left")] = 0.0  # a state includes its upper edge
        return shift

    @cached_property
    def start(self) -> int:
        """The state with as many important predictions as without a rule."""
        num = int((self.scores.predict() != REST).sum()) - int((self.before != REST).sum())
        return int(np.searchsorted(self.last, num - 1, side="left")) + 1 if num > 0 else 0


def _order(values: Array) -> Array:
    """Indices of a stable sort. Values that fit float16, as stored leads do, are sorted as int16, ten times faster.

    >>> _order(np.array([0.5, -2.0, 0.0, -0.0, -3.0])).tolist()
    [4, 1, 2, 3, 0]
    """
    with np.errstate(over="ignore"):
        half = values.astype(np.float16) + np.float16(0)  # -0 is 0
    if not np.array_equal(half, values):
        return np.argsort(values, kind="stable")
    bits = half.view(np.int16)
    return np.argsort(np.where(bits < 0, np.int16(-(2**15)) - bits, bits), kind="stable")


def short_between(low: float, high: float) -> float:
    """The number with the fewest digits between `low` and `high`, near their middle; `low` if there is none.

    It is a thousandth of their distance away from both, since they may be rounded themselves. If both are float16 or
    float32 numbers, it separates them in that precision too.

    >>> short_between(0.21341, 0.21398), short_between(0.0, 1.0)
    (0.2137, 0.5)
    """
    middle, apart = (low + high) / 2, (high - low) / 1000
    with np.errstate(over="ignore"):
        kinds = [kind for kind in (np.float16, np.float32) if all(float(kind(end)) == end for end in (low, high))]
        for digits in range(1, 17):
            rounded = float(f"{middle:.{digits}g}")
            if low + apart < rounded < high - apart and all(low <= float(kind(rounded)) < high for kind in kinds):
                return rounded
    return low


@dataclass(frozen=True)
class Prior:
    """Shrinks accuracy that is measured on few held-out rows towards the baseline's.

    accuracy, share: the baseline's accuracy without a shift, and the share of rows it predicts as important.
    num_rows: the weight of this expectation, in rows.
    """

    accuracy: float
    share: float
    num_rows: int

    @staticmethod
    def of(baseline: Scores, num_rows: int = PRIOR_ROWS) -> "Prior":
        """The prior from the baseline's held-out scores."""
        return Prior(baseline.accuracy(), float((baseline.predict() != REST).mean()), num_rows)

    def start(self, curve: Curve) -> int:
        """The state in which a model predicts as many rows as important as the baseline does."""
        return int(np.abs(curve.predicted.sum(axis=1) - self.share * curve.total).argmin())

    def weigh(self, curve: Curve, num_rows: int, gain: Array | None = None) -> Array:
        """Expected accuracy in each state of a curve of `num_rows` rows: (K,).

        At `start` it is the baseline's accuracy. If the rows show a lower one, that is taken; if a higher one, a part
        of it that grows with the number of rows. From there, each row whose prediction changes counts partly by its
        label and partly by its gain (N,): the probability of its best important class minus that of its best other
        class. Gains are the model's by default; unlike labels, they are not overfitted by choosing a shift.
        """
        start = self.start(curve)
        if gain is None:
            gain = _own_gain(curve.sweep.scores, float(curve.value[start]))
        expected = curve.count(lambda said: np.where(said == REST, 0.0, gain)) / curve.total
        trust = num_rows / (num_rows + self.num_rows)
        surplus = curve.accuracy[start] - self.accuracy
        seen, thought = (accuracy - accuracy[start] for accuracy in (curve.accuracy, expected))
        return self.accuracy + min(surplus, trust * surplus) + trust * seen + (1 - trust) * thought


def _own_gain(scores: Scores, shift: float) -> Array:
    """Probability of each row's best important class minus that of its best other class, after a shift: (N,)."""
    lead = np.clip(scores.shifted(shift), -700.0, 700.0)  # infinite where a probability is 0 or 1
    top = np.maximum(lead.max(axis=1), 0.0)
    whole = np.exp(scores.rest_spread - top) + np.exp(lead - top[:, None]).sum(axis=1)
    return (np.exp(lead.max(axis=1) - top) - np.exp(-top)) / whole


@dataclass(frozen=True)
class TunedShift:
    """A chosen shift, one number per class, and its recall and accuracy on the rows it was chosen on.

    `value` is the mean recall. With a prior, `accuracy` is the expected accuracy.
    """

    shift: tuple[float, ...]
    value: float
    recall: tuple[float, ...]
    accuracy: float


def choose_shift(
    scores: Scores | Sequence[Scores],
    *,
    accuracy_floor: float,
    negative: bool = False,
    prior: Prior | None = None,
) -> TunedShift | None:
    """Find the shift with the best mean recall at or above the accuracy floor; None if no shift reaches it.

    scores: held-out rows of one model, or of several that share a shift (their counts add up).
    negative: whether a shift may lower the important classes.
    prior: compare the expected accuracy with the floor, not that of these rows, which a shift would overfit.

    >>> from camri.metrics import condense
    >>> scores = condense(np.array([[1.0, 0.0], [3.0, 0.0], [2.0, 0.0]]), [1, 1, 0], (1,))
    >>> choose_shift(scores, accuracy_floor=0.6)
    TunedShift(shift=(4.0,), value=1.0, recall=(1.0,), accuracy=0.6666666666666666)
    >>> choose_shift(scores, accuracy_floor=0.7) is None
    True
    """
    if not accuracy_floor <= 1 + SLACK:
        raise InputError(
            f"accuracy_floor={accuracy_floor!r} is not allowed; give a share of at most 1, say 0.9",
            argument="accuracy_floor",
        )
    pooled = scores if isinstance(scores, Scores) else pool(scores)
    if not pooled.num.all():
        empty = [index for index, num in zip(pooled.important, pooled.num, strict=True) if not num]
        raise InputError(f"important classes {empty} have no held-out data: their shift cannot be chosen")
    curve = trace(pooled)
    num_rows = len(pooled) if isinstance(scores, Scores) else len(scores[0])  # several models share their rows
    accuracy = curve.accuracy if prior is None else prior.weigh(curve, num_rows)
    state = best_state(curve, accuracy, accuracy_floor, negative=negative, prior=prior)
    if state is None:
        return None
    shift = (float(curve.value[state]),) * len(pooled.important)
    recall = tuple(curve.recall[state].tolist())
    return TunedShift(shift, float(curve.mean_recall[state]), recall, float(accuracy[state]))


def best_state(
    curve: Curve, accuracy: Array, floor: float, *, negative: bool = False, prior: Prior | None = None
) -> int | None:
    """The state of a shift's curve with the best mean recall whose accuracy (K,) reaches the floor; None if none does.

    Among equal recalls the smallest shift wins; with a prior, the one nearest to the prior's start.
    """
    allowed = (accuracy >= floor - SLACK) & (curve.value >= (-np.inf if negative else 0.0))
    if not allowed.any():
        return None
    reached = np.where(allowed, curve.mean_recall, -np.inf)
    distance = np.abs(curve.value - (0.0 if prior is None else curve.value[prior.start(curve)]))
    return int(np.where(reached == reached.max(), distance, np.inf).argmin())


@dataclass(frozen=True)
class BestRecall:
    """The most recall with an accuracy at most `max_accuracy_drop` below that without a rule.

    prior_rows: for a shift, the weight in rows of the expectation that no shift raises accuracy (see `Prior`). Without
    it a shift tuned on few rows overfits them, and loses accuracy on new rows.
    """

    max_accuracy_drop: float = 0.0
    prior_rows: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.max_accuracy_drop < 1:
            wrong = f"max_accuracy_drop={self.max_accuracy_drop!r} is not allowed"
            raise InputError(f"{wrong}; give 0 to 1, 0.01 for one percentage point", argument="max_accuracy_drop")


@dataclass(frozen=True)
class AtLeast:
    """The fewest false alarms at this recall of every important class; with a `confidence`, promised for new rows."""

    recall: float
    confidence: float | None = None

    def __post_init__(self) -> None:
        is_allowed = 0 < self.recall < 1 or (self.recall == 1 and self.confidence is None)
        if not is_allowed:
            raise InputError(
                f"at_least={self.recall!r} is not allowed; give a recall above 0 and below 1, say 0.95", "at_least"
            )
        if self.confidence is not None and not 0.5 <= self.confidence < 1:
            wrong = f"confidence={self.confidence!r} is not allowed"
            raise InputError(f"{wrong}; give 0.5 or more and less than 1, say 0.95", argument="confidence")


@dataclass(frozen=True, eq=False)
class LeastCost:
    """The least mean cost; matrix (C, C): row = true class, column = predicted class."""

    matrix: ArrayLike

    def __post_init__(self) -> None:
        matrix = np.asarray(self.matrix, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
            wrong = f"cost_matrix of shape {matrix.shape} is not allowed"
            raise InputError(f"{wrong}; give finite numbers (C, C): true class, predicted class", "cost_matrix")
        object.__setattr__(self, "matrix", matrix)


Goal = BestRecall | AtLeast | LeastCost
Costs = str | PathLike[str] | Sequence[Sequence[float]]
CONFIDENCE = 0.95


def parse_goal(
    classes: Sequence[str],
    max_accuracy_drop: float | None = None,
    at_least: float | None = None,
    cost_matrix: Costs | None = None,
    confidence: float | None = CONFIDENCE,
) -> Goal:
    """Make the goal from at most one of `max_accuracy_drop`, `at_least` and `cost_matrix`.

    >>> parse_goal(["a", "b"], at_least=0.95)
    AtLeast(recall=0.95, confidence=0.95)
    """
    asked = {"max_accuracy_drop": max_accuracy_drop or None, "at_least": at_least, "cost_matrix": cost_matrix}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"give one goal, not {' and '.join(given)}", argument=given[1])
    if at_least is not None:
        return AtLeast(at_least, confidence)
    if cost_matrix is not None:
        return LeastCost(read_costs(cost_matrix, classes))
    return BestRecall(max_accuracy_drop or 0.0)


def read_costs(source: Costs, classes: Sequence[str]) -> Array:
    """Read costs (C, C), row = true class, column = predicted class, from numbers or a CSV file.

    The first line of a file names the predicted classes; each other line begins with the true class.
    """

    def refuse(problem: str) -> InputError:
        return InputError(f"cost_matrix={source}: {problem}", argument="cost_matrix")

    if isinstance(source, (str, PathLike)):
        try:
            with open(source, newline="", encoding="utf-8-sig") as file:
                (_, *predicted), *lines = [line for line in csv.reader(file) if line]
            rows = [[*map(float, line[1:])] for line in lines]
            if any(len(row) != len(predicted) for row in rows):
                raise ValueError("lines differ in length")
        except OSError as error:
            raise refuse(f"it cannot be read ({error.strerror})") from None
        except (ValueError, IndexError, csv.Error) as error:
            raise refuse(
                f"it is no table of costs ({error}); give a CSV file with class names in row and column"
            ) from None
        true = [line[0] for line in lines]
        for what, names in (("row", true), ("column", predicted)):
            if (problem := _misnamed(what, names, classes)) is not None:
                raise refuse(problem)
        source = [[rows[true.index(name)][predicted.index(other)] for other in classes] for name in classes]
    table, num = np.asarray(source, dtype=np.float64), len(classes)
    if table.shape != (num, num) or not np.isfinite(table).all():
        raise InputError(
            f"cost_matrix has shape {table.shape}; give {num} × {num} finite numbers, row = true class",
            argument="cost_matrix",
        )
    return table


def _misnamed(what: str, names: Sequence[str], classes: Sequence[str]) -> str | None:
    """What is wrong with the names of a cost matrix's rows or columns; None if each class has one.

    >>> _misnamed("row", ["stop", "go", "stop"], ["go", "stop"])
    "class 'stop' has 2 rows; keep one"
    """
    counts, known = Counter(names), set(classes)
    if twice := [name for name in counts if counts[name] > 1 and name in known]:
        return f"class {twice[0]!r} has {counts[twice[0]]:,} {what}s; keep one"
    if unknown := [name for name in counts if name not in known]:
        return f"{what} {unknown[0]!r} is no class; {closest(unknown[0], classes)}; rename or remove it"
    if missing := [name for name in classes if name not in counts]:
        return f"class {missing[0]!r} is missing: it has no {what}; add one, named like it"
    return None


@dataclass(frozen=True)
class Promise:
    """A recall that every important class has on new rows, and the rule that reaches it.

    rule: None if no rule does: too few rows, important classes that are confused with each other, or probabilities of
    0, which no rule finds.
    hits, num: rows of each class that the rule finds, of how many; without a rule, the most that any cut-off finds.
    num_units: independent units of each class, rows or groups. fewest: the least number of units that could suffice.
    """

    at_least: float
    confidence: float
    rule: DecisionRule | None
    hits: tuple[int, ...]
    num: tuple[int, ...]
    num_units: tuple[int, ...]
    fewest: int


@dataclass(frozen=True, eq=False)
class OperatingPoint:
    """A tuned rule and its figures on the rows it was tuned on.

    recall, precision: of each important class. false_alarms: share of all rows that are of no important class but
    predicted as one. cost: mean cost of a row, for `LeastCost`.
    spread: 5 % and 95 % quantiles of the rule's value over bootstrap draws of the rows, or of their groups.
    promise: for `AtLeast` with a confidence.
    """

    rule: DecisionRule
    recall: tuple[float, ...]
    precision: tuple[float, ...]
    accuracy: float
    false_alarms: float
    cost: float | None
    spread: tuple[float, float]
    promise: Promise | None = None


def tune(
    scores: Scores | Sequence[Scores],
    goal: Goal,
    *,
    rule: str = "auto",
    groups: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    num_draws: int = 20,
) -> OperatingPoint | None:
    """Find the operating point that meets the goal at the lowest cost; None if no cut-off meets it.

    Tries every cut-off.
    scores: held-out rows of one model, or of several models of the same rows that share a rule (`exact`, `condense`).
    rule: "shift", "threshold" or "auto": a shift for recall at an accuracy, a threshold for false alarms and costs.
    groups: the independent units (N,), such as patients or films, for a promise and for the spread.
    weights: weight of each row (N,) in figures and goals; a promise ignores them.

    >>> rows = exact([[0.8, 0.2], [0.7, 0.3], [0.6, 0.4], [0.9, 0.1]], [0, 1, 1, 0], [1], kind="probabilities")
    >>> tune(rows, AtLeast(1.0)).rule
    Threshold(values={1: 0.25})
    """
    if rule not in ("auto", *RULES):
        raise InputError(f"rule={rule!r} is unknown; {closest(rule, ['auto', *RULES])}", "rule")
    if rule == "auto":
        rule = "shift" if isinstance(goal, BestRecall) else "threshold"
    pooled, units, num_models = _pooled(scores, groups)
    given = None if weights is None else np.tile(_checked_weights(weights, len(pooled) // num_models), num_models)
    chooser = _Chooser(_Sweep(pooled, rule), goal, units, num_models)
    state = chooser.choose(given)
    if state is None:
        return None
    curve = chooser.sweep.curve(given)
    draw = np.random.default_rng(0)
    drawn = []
    for _ in range(num_draws):
        times = draw.poisson(1.0, units.max() + 1)[units]
        drawn.append(chooser.choose(times if given is None else times * given, times))
    values = [curve.value[one] for one in drawn if one is not None] or [curve.value[state]]
    low, high = np.quantile(values, [0.05, 0.95])
    return OperatingPoint(
        rule=curve.rule(state),
        recall=tuple(curve.recall[state].tolist()),
        precision=tuple(curve.precision[state].tolist()),
        accuracy=float(curve.accuracy[state]),
        false_alarms=float(curve.alarms[state] / curve.total),
        cost=float(chooser.costs(curve)[state]) if isinstance(goal, LeastCost) else None,
        spread=(float(low), float(high)),
        promise=chooser.promise() if isinstance(goal, AtLeast) and goal.confidence is not None else None,
    )


def promise(
    scores: Scores | Sequence[Scores],
    at_least: float,
    confidence: float = 0.95,
    *,
    rule: str = "threshold",
    groups: ArrayLike | None = None,
    negative: bool = True,
) -> Promise:
    """Find the rule with the fewest false alarms whose recall on new rows is `at_least` this for every important class.

    scores: rows that neither trained nor chose the model. The probability that the promise fails for any class is at
    most 1 − confidence, divided among the classes. Scores may have any distribution, but rows must be independent, or,
    with groups (N,), their groups. The promised recall is then the mean over groups, each counted once: over patients,
    not over their images. For several models it is their mean.

    >>> rows = exact([[0.0, lead] for lead in np.linspace(-1.0, 5.0, 100)], np.ones(100, dtype=int), [1])
    >>> found = promise(rows, at_least=0.9)
    >>> found.hits, found.num, found.rule, found.fewest
    ((96,), (100,), Threshold(values={1: 0.31}), 29)
    """
    pooled, units, num_models = _pooled(scores, groups)
    goal = AtLeast(at_least, confidence)
    return _Chooser(_Sweep(pooled, rule), goal, units, num_models, negative).promise()


def _pooled(scores: Scores | Sequence[Scores], groups: ArrayLike | None) -> tuple[Scores, Array, int]:
    """All models' rows as one, the independent unit of each row (0, 1, …), and the number of models."""
    several = [scores] if isinstance(scores, Scores) else list(scores)
    if not several or any(not np.array_equal(one.labels, several[0].labels) for one in several):
        raise InputError("several models' scores are of different rows; give scores of the same rows, or pool them")
    pooled = several[0] if len(several) == 1 else pool(several)
    num_rows = len(several[0])
    if groups is not None and np.shape(groups) != (num_rows,):
        raise InputError(f"groups {np.shape(groups)} do not fit {num_rows} rows; give one group for each row", "groups")
    if not pooled.num.all():
        empty = [index for index, num in zip(pooled.important, pooled.num, strict=True) if not num]
        raise InputError(f"important classes {empty} have no rows: no rule can be tuned for them", argument="important")
    units = np.arange(num_rows) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1].ravel()
    return pooled, np.tile(units, len(several)), len(several)


def _checked_weights(weights: ArrayLike, num_rows: int) -> Array:
    given = np.asarray(weights, dtype=np.float64)
    if given.shape != (num_rows,) or not np.isfinite(given).all() or (given < 0).any() or not given.any():
        raise InputError(
            f"weights {given.shape} do not fit; give {num_rows} numbers of at least 0, not all of them 0", "weights"
        )
    return given


def cost_of(scores: Scores, matrix: Array) -> Callable[[Array], Array]:
    """A function from predictions (N,), a class or −1 for the best other class, to the cost of each (N,)."""
    labels, rest = scores.labels, scores.rest
    if rest is None:
        raise InputError("costs need the scores of all classes; give `exact` ones", argument="scores")
    most = max(labels.max(), rest.max(), *scores.important)
    if most >= len(matrix):
        wrong = f"cost_matrix of shape {matrix.shape} does not fit class {most}"
        raise InputError(f"{wrong}; give a row and a column for each class", argument="cost_matrix")
    return lambda said: matrix[labels, np.where(said == REST, rest, said)]


class _Chooser:
    """Choose the state of a sweep that meets a goal, on the rows as they are or resampled."""

    def __init__(self, sweep: _Sweep, goal: Goal, units: Array, num_models: int, negative: bool = True):
        self.sweep, self.goal, self.units, self.num_models = sweep, goal, units, num_models
        self.scores = sweep.scores
        self.first = 0 if negative or sweep.rule != "shift" else sweep.start  # the first state that may be chosen
        if isinstance(goal, LeastCost):
            self.cost = sweep.counted(cost_of(self.scores, np.asarray(goal.matrix)))
        if isinstance(goal, BestRecall):
            self.plain = self.scores.correct()
        if isinstance(goal, BestRecall) and goal.prior_rows:
            self.gain = _own_gain(self.scores, 0.0)

    def costs(self, curve: Curve) -> Array:
        """The mean cost of a row in every state: (K,)."""
        return self.sweep.count(self.cost, curve.weights) / curve.total

    def choose(self, weights: Array | None = None, times: Array | None = None) -> int | None:
        """The state that meets the goal; None if none does.

        weights (N,): of rows, in figures. times (N,): how often each row was drawn, for promises.
        """
        goal = self.goal
        if isinstance(goal, AtLeast) and goal.confidence is not None:
            return self.promised(goal, goal.confidence, times)
        curve = self.sweep.curve(weights)
        if not np.all(curve.num > 0):  # a draw without rows of a class
            return None
        if isinstance(goal, LeastCost):
            return self.first + int(self.costs(curve)[self.first :].argmin())
        if isinstance(goal, AtLeast):
            reached = (curve.recall[self.first :] >= goal.recall - SLACK).all(axis=1)
            return self.first + int(reached.argmax()) if reached.any() else None
        accuracy = curve.accuracy
        plain = float(self.plain.mean() if weights is None else self.plain @ weights / curve.total)
        if goal.prior_rows and self.sweep.rule == "shift":
            share = float(curve.predicted[self.sweep.start].sum() / curve.total)
            num_rows = len(self.scores) // self.num_models
            accuracy = Prior(plain, share, goal.prior_rows).weigh(curve, num_rows, self.gain)
        allowed = np.flatnonzero(accuracy >= plain - goal.max_accuracy_drop - SLACK)
        allowed = allowed[allowed >= self.first]
        if not len(allowed):
            return None
        mean = curve.mean_recall[allowed]
        best = allowed[mean >= mean.max() - SLACK]
        best = best[accuracy[best] >= accuracy[best].max() - SLACK]
        return int(best[np.abs(best - self.sweep.start).argmin()])

    def promised(self, goal: AtLeast, confidence: float, times: Array | None = None) -> int | None:
        """The first state whose recall new rows have with this confidence; None if there is none."""
        level, first = (1 - confidence) / len(self.scores.important), self.first
        for index, hits in zip(self.scores.important, self.sweep.hits, strict=True):
            weight, num, is_whole = self._units_of(index, times)
            if not num:
                return None
            missed = np.maximum(weight.sum() - self.sweep.count(hits, weight), 0.0)
            passes = partial(_is_sure, num, 1 - goal.recall, is_whole, level)
            first = bisect.bisect_left(missed, True, lo=first, key=passes)  # misses never increase along the states
            if first == len(missed):
                return None
        return first

    def _units_of(self, index: int, times: Array | None = None) -> tuple[Array, int, bool]:
        """Weight of each row of a class (N,), the number of independent units, and whether every row is one."""
        own = self.scores.labels == index
        sizes = np.bincount(self.units[own])
        weight = np.zeros(len(own))
        weight[own] = 1.0 / sizes[self.units[own]]
        if times is not None:
            weight = weight * times
        return weight, round(float(weight.sum())), bool(sizes.max() == 1)

    def promise(self) -> Promise:
        """The promise as a record; without a rule it tells why."""
        goal = self.goal
        assert isinstance(goal, AtLeast)
        assert goal.confidence is not None
        state = self.promised(goal, goal.confidence)
        curve = self.sweep.curve()
        level = (1 - goal.confidence) / len(self.scores.important)
        return Promise(
            at_least=goal.recall,
            confidence=goal.confidence,
            rule=None if state is None else curve.rule(state),
            hits=tuple(curve.hits[-1 if state is None else state].tolist()),
            num=tuple(self.scores.num.tolist()),
            num_units=tuple(self._units_of(index)[1] for index in self.scores.important),
            fewest=math.ceil(math.log(level) / math.log(goal.recall)),
        )


def _is_sure(num: int, share: float, is_whole: bool, level: float, missed: float) -> bool:
    return bool(chance_of_luck(missed, num, share, is_whole) <= level)


def chance_of_luck(missed: Array | float, num: int, share: float, is_whole: bool) -> Array:
    """An upper bound on the p-value: the chance of so few misses in `num` units if the true share is `share` or more.

    missed: the number of missed units if each is missed or not (exact, the binomial's tail); else the sum of the missed
    share of each unit (the smaller of Hoeffding's and Bentkus's bounds).

    >>> chance_of_luck(np.array([0, 1]), 59, 0.05, True).round(4).tolist()
    [0.0485, 0.1991]
    >>> chance_of_luck(np.array([0, 0.5]), 59, 0.05, False).round(4).tolist()
    [0.0485, 0.1988]
    """
    from scipy import stats  # here: the import takes 0.7 s; special.bdtr differs in the twelfth digit

    if is_whole:
        return stats.binom.cdf(np.rint(missed), num, share)
    mean = np.minimum(np.asarray(missed) / num, share)
    exponent = special.rel_entr(mean, share) + special.rel_entr(1 - mean, 1 - share)
    bentkus = math.e * stats.binom.cdf(np.ceil(np.asarray(missed) - 1e-9), num, share)
    return np.minimum(np.exp(-num * exponent), bentkus)
