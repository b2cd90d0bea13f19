"""Decision rules: how scores become a class, tuned on held-out data, and recalls promised for new data.

Two rules, two questions. A `Shift` adds a constant to the important classes' scores before the largest wins: the rule
that costs the least accuracy. A `Threshold` predicts an important class where its probability passes a value: the rule
with the fewest false alarms at a recall. Both move any model along a curve without training. `tune` finds the best
operating point of a rule for a goal; it looks at every cut-off, since between two neighbouring ones no prediction
changes, so sorting the rows once, O(N log N), gives every state there is.

A promise (`assure`, and `tune` with `AtLeast`) holds for new rows with a known confidence, whatever the number of rows.
Misses of an important class only become fewer as the bias grows, so cut-offs are tested from the largest down and the
last that passes is taken, each test at the full error level: Tong, Feng and Li (2018) for independent rows, Bates et
al. (2021) for groups.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from camri.errors import InputError, closest
from camri.metrics import REST, Array, Scores, divide, pool

# With 70 validation rows the model that a fit hands over is two points less accurate on fresh rows than cross-entropy
# without a prior, 0.3 with one of 250 rows, as accurate with 500 (docs/log.md).
PRIOR_ROWS = 500
KINDS = ("logits", "probabilities")
SLACK = 1e-9  # accuracies are ratios of counts: what differs by less is equal


@dataclass(frozen=True, eq=False)
class Curve:
    """All K states of a sweep, by ascending shift: shift (K,), hits and predicted (K, I), correct (K,).

    `shift` is the middle of the stretch in which a state holds, and 0 in the state the model is in without one.
    """

    shift: Array
    hits: Array
    predicted: Array
    correct: Array
    num: Array
    total: int

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

    def reach(self, recall: float | Array) -> Array:
        """The first states with at least such a mean recall, as indices.

        >>> from camri.metrics import condense
        >>> curve = trace(condense(np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]]), [1, 1, 0], (1,)))
        >>> state = curve.reach(0.5)
        >>> float(curve.shift[state]), float(curve.accuracy[state]), curve.precision[state].tolist()
        (2.0, 0.3333333333333333, [0.5])
        """
        if not np.all((np.asarray(recall) >= 0) & (np.asarray(recall) <= 1)):
            raise InputError(f"recall={recall!r} is not allowed; give numbers from 0 to 1", argument="recall")
        return np.searchsorted(self.mean_recall, np.asarray(recall) - SLACK, side="left")


def trace(scores: Scores) -> Curve:
    """The whole recall–accuracy curve under one shift of all important classes.

    >>> from camri.metrics import condense
    >>> curve = trace(condense(np.array([[1.0, 0.0], [0.0, 0.5], [2.0, 0.0]]), [1, 1, 0], (1,)))
    >>> curve.shift.tolist(), curve.mean_recall.tolist(), (curve.correct / 3).round(2).tolist()
    ([-1.5, 0.0, 1.5, 3.0], [0.0, 0.5, 1.0, 1.0], [0.33, 0.67, 1.0, 0.67])
    """
    lead = scores.shifted()
    winner = np.array(scores.important)[lead.argmax(axis=1)]
    return _sweep(scores, -lead.max(axis=1), np.full(len(scores), REST), winner)


def _order(values: Array) -> Array:
    """Indices that sort the values, stable. Leads are float16: as whole numbers they are sorted in a tenth of the time.

    >>> _order(np.array([0.5, -2.0, 0.0, -0.0, -3.0])).tolist()
    [4, 1, 2, 3, 0]
    """
    with np.errstate(over="ignore"):
        half = values.astype(np.float16) + np.float16(0)  # -0 is 0
    if not np.array_equal(half, values):
        return np.argsort(values, kind="stable")
    bits = half.view(np.int16)
    return np.argsort(np.where(bits < 0, np.int16(-(2**15)) - bits, bits), kind="stable")


def _sweep(scores: Scores, breakpoint: Array, before: Array, after: Array) -> Curve:
    """The states of a sweep in which each image goes from one prediction to another above its breakpoint."""
    # No shift reaches an infinite breakpoint: a probability of exactly 0 stays where it is, one of 1 too.
    before, after = np.where(breakpoint == -np.inf, after, before), np.where(breakpoint == np.inf, before, after)
    moving = np.flatnonzero(np.isfinite(breakpoint))
    order = moving[_order(breakpoint[moving])]
    where = breakpoint[order]
    last = np.flatnonzero(np.append(np.diff(where) > 0, len(where) > 0))  # images that change at once change together

    def count(marks_before: Array, marks_after: Array) -> Array:
        gained = np.cumsum(marks_after[order].astype(np.int64) - marks_before[order].astype(np.int64), axis=0)
        start = marks_before.sum(axis=0, keepdims=True, dtype=np.int64)
        return np.concatenate([start, start + gained[last]])

    classes = np.array(scores.important)
    is_before, is_after = before[:, None] == classes, after[:, None] == classes
    own = scores.labels[:, None] == classes
    edges = where[last]
    shift = (
        np.concatenate([edges[:1] - 1.0, (edges[:-1] + edges[1:]) / 2, edges[-1:] + 1.0]) if len(edges) else np.zeros(1)
    )
    shift[np.searchsorted(edges, 0.0, side="left")] = 0.0  # a state holds above its edge, up to and with the next
    return Curve(
        shift=shift,
        hits=count(is_before & own, is_after & own),
        predicted=count(is_before, is_after),
        correct=count(scores.is_right(before), scores.is_right(after)),
        num=scores.num,
        total=len(scores),
    )


@dataclass(frozen=True)
class Prior:
    """What is expected of a model before held-out rows speak: the baseline's accuracy, and no more from luck.

    accuracy and share are the baseline's without a shift: its accuracy, and the share of rows that it gives to
    important classes. num_rows: how many rows this expectation counts for, against those that are held out.
    """

    accuracy: float
    share: float
    num_rows: int

    @staticmethod
    def of(baseline: Scores, num_rows: int = PRIOR_ROWS) -> "Prior":
        """What the baseline's held-out scores lead to expect."""
        return Prior(baseline.accuracy(), float((baseline.predict() != REST).mean()), num_rows)

    def start(self, curve: Curve) -> int:
        """The state in which a model gives as many rows to important classes as the baseline does."""
        return int(np.abs(curve.predicted.sum(axis=1) - self.share * curve.total).argmin())

    def weigh(self, scores: Scores, curve: Curve, num_rows: int, gain: Array | None = None) -> Array:
        """The accuracy to expect in each state of the scores' curve, of so many rows: (K,).

        At the start it is the baseline's, or less where rows show it, or more in so far as rows are many. From there on
        each row that changes counts with what its label says and with what probabilities say, which the luck of rows
        cannot flatter: its gain (N,) is the chance that its best important class is right, less that of its best other
        class. By default it is that of the model's own probabilities.
        """
        predicted, start = curve.predicted.sum(axis=1), self.start(curve)
        if gain is None:
            gain = _own_gain(scores, float(curve.shift[start]))
        order = np.argsort(-scores.shifted().max(axis=1), kind="stable")
        expected = np.concatenate([[0.0], np.cumsum(gain[order])])[predicted] / curve.total
        trust = num_rows / (num_rows + self.num_rows)
        surplus = curve.accuracy[start] - self.accuracy
        seen, thought = (one - one[start] for one in (curve.accuracy, expected))
        return self.accuracy + min(surplus, trust * surplus) + trust * seen + (1 - trust) * thought


def _own_gain(scores: Scores, shift: float) -> Array:
    lead = scores.shifted(shift)
    top = np.maximum(lead.max(axis=1), 0.0)
    whole = np.exp(scores.rest_spread - top) + np.exp(lead - top[:, None]).sum(axis=1)
    return (np.exp(lead.max(axis=1) - top) - np.exp(-top)) / whole


@dataclass(frozen=True)
class TunedShift:
    """A chosen shift (one number a class) with what it reaches on the data it was chosen on.

    `value` is the mean recall. With a prior, `accuracy` is the expected one.
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
    gain: Array | None = None,
) -> TunedShift | None:
    """Find the shift with the best mean recall at no less than the accuracy floor; None where no shift reaches it.

    scores: held-out data of one model, or of several that share a shift (their counts add up).
    negative: whether a shift may lower the important classes.
    prior: the floor is kept by the expected accuracy instead of that of these rows, whose chance a shift would exploit.
    gain: replaces the model's own probabilities in the prior (see `Prior.weigh`).
    Of equal recalls the smallest shift wins; with a prior, the one nearest to the baseline.

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
    accuracy, distance = curve.accuracy, np.abs(curve.shift)
    if prior is not None:
        num_rows = len(pooled) if isinstance(scores, Scores) else len(scores[0])  # several models of the same rows
        accuracy = prior.weigh(pooled, curve, num_rows, gain)
        distance = np.abs(curve.shift - curve.shift[prior.start(curve)])
    allowed = (accuracy >= accuracy_floor - SLACK) & (curve.shift >= (-np.inf if negative else 0.0))
    if not allowed.any():
        return None
    reached = np.where(allowed, curve.mean_recall, -np.inf)
    state = int(np.where(reached == reached.max(), distance, np.inf).argmin())
    shift = (float(curve.shift[state]),) * len(pooled.important)
    return TunedShift(shift, float(reached[state]), tuple(curve.recall[state].tolist()), float(accuracy[state]))


@dataclass(frozen=True, eq=False)
class Band:
    """Curves of several trials on one grid of recalls: mean and sd over trials (G,); nan where one has no sd."""

    recall: Array
    mean: Array
    sd: Array


def average(curves: Sequence[Curve], recall: Array) -> Band:
    """Accuracy at each recall of the grid, over trials.

    >>> from camri.metrics import condense
    >>> curves = [trace(condense(np.array([[1.0, 0.0], [x, 0.0]]), [1, 0], (1,))) for x in (0.5, 2.0)]
    >>> average(curves, np.array([0.0, 1.0])).mean.tolist()
    [0.5, 0.75]
    """
    grid = np.asarray(recall, dtype=np.float64)
    table = np.array([curve.accuracy[curve.reach(grid)] for curve in curves])
    sd = table.std(axis=0, ddof=1) if len(table) > 1 else np.full(grid.shape, np.nan)
    return Band(grid, table.mean(axis=0), sd)


@dataclass(frozen=True)
class Guarantee:
    """The smallest shift with which every important class has at least such a recall on new data; never below 0.

    shift: None where no shift will do: too few rows, or important classes that are taken for each other too often.
    hits, num: rows of each class that are found with it, of how many; without one, with the largest shift there is.
    num_units: what counts as independent, rows or groups of them. fewest: the least of these that could be enough.
    """

    at_least: float
    confidence: float
    shift: float | None
    hits: tuple[int, ...]
    num: tuple[int, ...]
    num_units: tuple[int, ...]
    fewest: int


def assure(scores: Scores, at_least: float, confidence: float = 0.95, groups: ArrayLike | None = None) -> Guarantee:
    """The smallest shift whose recall on new rows like these is at least that of every important class.

    scores: rows that neither trained nor chose the model. The chance that the promise fails for any class is at most
    1 − confidence; it is shared out among the classes. No assumption about the scores is made, one about the rows:
    they are independent, or, with groups (N,), their groups are. The recall that is promised is then a mean over
    groups, each counting once: of all patients, not of all their pictures.

    >>> from camri.metrics import condense
    >>> rows = np.array([[0.0, lead] for lead in np.linspace(-1.0, 5.0, 100)])
    >>> found = assure(condense(rows, np.ones(100, dtype=int), (1,)), at_least=0.9)
    >>> found.hits, found.num, round(found.shift, 2), found.fewest
    ((96,), (100,), 0.79, 29)
    """
    if not 0 < at_least < 1:
        raise InputError(
            f"at_least={at_least!r} is not allowed; give a recall above 0 and below 1, say 0.95", argument="at_least"
        )
    if not 0.5 <= confidence < 1:
        raise InputError(
            f"confidence={confidence!r} is not allowed; give 0.5 or more and less than 1, say 0.95",
            argument="confidence",
        )
    if not scores.num.all():
        empty = [index for index, num in zip(scores.important, scores.num, strict=True) if not num]
        raise InputError(f"important classes {empty} have no rows: nothing can be promised of them")
    if groups is not None and np.shape(groups) != scores.labels.shape:
        raise InputError(f"groups {np.shape(groups)} do not fit {len(scores)} rows; give one group for each row")
    chance = (1 - confidence) / len(scores.important)
    shifts = trace(scores).shift
    passes, units = shifts >= 0, []
    for i, index in enumerate(scores.important):
        own = scores.labels == index
        weight, num_units, is_whole = _weights(own, None if groups is None else np.asarray(groups)[own])
        units.append(num_units)
        missed = _missed(scores.lead[own].astype(np.float64), i, weight, shifts)
        passes &= chance_of_luck(missed, num_units, 1 - at_least, is_whole) <= chance
    shift = float(shifts[passes.argmax()]) if passes.any() else None
    return Guarantee(
        at_least=at_least,
        confidence=confidence,
        shift=shift,
        hits=tuple(scores.hits(shifts[-1] if shift is None else shift).tolist()),
        num=tuple(scores.num.tolist()),
        num_units=tuple(units),
        fewest=math.ceil(math.log(chance) / math.log(at_least)),
    )


def chance_of_luck(missed: Array, num: int, share: float, is_whole: bool) -> Array:
    """The highest chance of missing so little of `num` independent units where truly a `share` or more is missed.

    missed: units, in whole numbers where every unit is missed or not (exact, the binomial's tail), else the sum of
    what is missed of each, 0 to 1 (the smaller of Hoeffding's and Bentkus's bounds).

    >>> chance_of_luck(np.array([0, 1]), 59, 0.05, True).round(4).tolist()
    [0.0485, 0.1991]
    >>> chance_of_luck(np.array([0, 0.5]), 59, 0.05, False).round(4).tolist()
    [0.0485, 0.1988]
    """
    from scipy import stats  # here, for it takes 0.7 s; special.bdtr differs in the twelfth digit

    values, place = np.unique(missed, return_inverse=True)
    if is_whole:
        chance = stats.binom.cdf(np.rint(values), num, share)
    else:
        mean = np.minimum(values / num, share)
        exponent = special.rel_entr(mean, share) + special.rel_entr(1 - mean, 1 - share)
        bentkus = math.e * stats.binom.cdf(np.ceil(values - 1e-9), num, share)
        chance = np.minimum(np.exp(-num * exponent), bentkus)
    return chance[place]


def _weights(own: Array, groups: Array | None) -> tuple[Array, int, bool]:
    """What each row of a class counts, how many units there are, and whether each row is one."""
    if groups is None:
        return np.ones(int(own.sum())), int(own.sum()), True
    _, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return 1.0 / sizes[place.ravel()], len(sizes), bool(sizes.max() == 1)


def _missed(lead: Array, i: int, weight: Array, shifts: Array) -> Array:
    """The weight of the rows (n, I) of important class number i that are missed, for each of the shifts."""
    can_win = lead.argmax(axis=1) == i  # among important classes that share a shift the order stays
    needed = -lead[can_win, i]
    order = np.argsort(needed, kind="stable")
    found = np.concatenate([[0.0], np.cumsum(weight[can_win][order])])
    missed = weight.sum() - found[np.searchsorted(needed[order], shifts, side="left")]
    return np.maximum(missed, 0.0)


# Rules as objects, for raw scores (N, C).


@dataclass(frozen=True)
class _Rule:
    values: Mapping[int, float]
    name: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """The rule as plain JSON; `rule_from_json` reads it."""
        return {"rule": self.name, "values": {str(index): value for index, value in self.values.items()}}


@dataclass(frozen=True)
class Shift(_Rule):
    """Add a constant to the logits of important classes; the largest wins. `values`: {class index: constant}.

    >>> Shift({1: 1.5}).predict([[2.0, 1.0], [3.0, 1.0]]).tolist()
    [1, 0]
    """

    name: ClassVar[str] = "shift"

    def predict(self, scores: ArrayLike, kind: str = "logits") -> Array:
        """The class of each row: int (N,). kind: "logits" or "probabilities"."""
        logits = _to_logits(scores, kind).copy()
        for index, value in self.values.items():
            logits[:, index] += value
        return logits.argmax(axis=1)


@dataclass(frozen=True)
class Threshold(_Rule):
    """Predict an important class where its probability is above its value, else the best of the other classes.

    `values`: {class index: probability}. Where several pass, the one whose odds exceed its threshold by the largest
    factor wins.

    >>> Threshold({1: 0.2}).predict([[0.7, 0.25, 0.05], [0.5, 0.1, 0.4]], kind="probabilities").tolist()
    [1, 0]
    """

    name: ClassVar[str] = "threshold"

    def predict(self, scores: ArrayLike, kind: str = "logits") -> Array:
        """The class of each row: int (N,). kind: "logits" or "probabilities"."""
        important = tuple(self.values)
        reduced = reduce_scores(scores, important, kind)
        odds = special.logit(list(self.values.values()))
        passes = reduced.odds > odds
        with np.errstate(invalid="ignore"):
            excess = np.where(passes, reduced.odds - odds, -np.inf)
        winner = np.array(important)[excess.argmax(axis=1)]
        return np.where(passes.any(axis=1), winner, reduced.rest)


DecisionRule = Shift | Threshold


def rule_from_json(stored: Mapping[str, Any]) -> DecisionRule:
    """The rule that `to_json` wrote."""
    rules: dict[str, type[Shift] | type[Threshold]] = {"shift": Shift, "threshold": Threshold}
    if stored.get("rule") not in rules:
        raise InputError(f"rule={stored.get('rule')!r} is unknown; {closest(stored.get('rule'), rules)}", "rule")
    return rules[stored["rule"]]({int(index): float(value) for index, value in stored["values"].items()})


@dataclass(frozen=True, eq=False)
class Reduced:
    """What decisions depend on: lead and log-odds of each important class (N, I), the best other class (N,)."""

    lead: Array
    odds: Array
    rest: Array


ROWS_AT_ONCE = 65_536


def reduce_scores(scores: ArrayLike, important: Sequence[int], kind: str = "logits") -> Reduced:
    """Reduce raw scores (N, C) to leads over the best other class and log-odds against all other classes.

    Of probabilities both are taken as they stand: one of exactly 0 has a lead of −inf, which no factor moves.
    """
    table = np.asarray(scores)
    if table.ndim != 2 or not 0 < len(important) < table.shape[1]:
        raise InputError(f"scores of shape {table.shape} do not fit {len(important)} important classes; give (N, C)")
    if kind not in KINDS:
        raise InputError(f"kind={kind!r} is unknown; {closest(kind, KINDS)}", "kind")
    own = list(important)
    others = np.setdiff1d(np.arange(table.shape[1]), own)
    lead, odds = (np.empty((len(table), len(own))) for _ in range(2))
    rest = np.empty(len(table), dtype=np.int64)
    for first in range(0, len(table), ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        block = table[part]
        best = block[:, others].argmax(axis=1)
        rest[part] = others[best]
        top = np.take_along_axis(block, rest[part][:, None], axis=1).astype(np.float64)
        mine = block[:, own].astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            if kind == "probabilities":
                lead[part] = np.log(mine) - np.log(top)
                odds[part] = np.log(mine) - np.log1p(-mine)
            else:
                lead[part] = mine - top
                whole = np.exp(block - block.max(axis=1, keepdims=True), dtype=np.float64)
                odds[part] = np.log(whole[:, own]) - np.log(whole.sum(axis=1, keepdims=True) - whole[:, own])
    lead[np.isnan(lead)] = -np.inf  # 0 of 0: nothing speaks for the class
    ahead = (lead == 0) & (np.array(own) < rest[:, None])  # argmax takes the first of equal scores
    return Reduced(np.where(ahead, np.finfo(np.float64).tiny, lead), odds, rest)


def _to_logits(scores: ArrayLike, kind: str) -> Array:
    if kind not in KINDS:
        raise InputError(f"kind={kind!r} is unknown; {closest(kind, KINDS)}", "kind")
    table = np.asarray(scores, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.log(table) if kind == "probabilities" else table


# Goals, and the operating point that meets them.


@dataclass(frozen=True)
class BestRecall:
    """The most recall at an accuracy no more than `max_accuracy_drop` below that of the largest score."""

    max_accuracy_drop: float = 0.0


@dataclass(frozen=True)
class AtLeast:
    """The fewest false alarms at a recall of every important class; with a `confidence`, promised for new rows."""

    recall: float
    confidence: float | None = None


@dataclass(frozen=True, eq=False)
class LeastCost:
    """The least mean cost; matrix (C, C): row = true class, column = predicted class."""

    matrix: Array


Goal = BestRecall | AtLeast | LeastCost


@dataclass(frozen=True, eq=False)
class OperatingPoint:
    """A tuned rule and its figures on the rows it was tuned on.

    recall: of each important class. false_alarms: share of all rows that are of no important class and taken for one.
    spread: 5 % and 95 % quantiles of the rule's value over bootstrap draws of the rows.
    """

    rule: DecisionRule
    recall: tuple[float, ...]
    accuracy: float
    false_alarms: float
    cost: float | None
    spread: tuple[float, float]


def tune(
    scores: ArrayLike,
    labels: ArrayLike,
    important: Sequence[int],
    goal: Goal,
    *,
    rule: str = "auto",
    kind: str = "logits",
    groups: ArrayLike | None = None,
    num_draws: int = 20,
    seed: int = 0,
) -> OperatingPoint | None:
    """Find the operating point that meets the goal at the lowest cost; None if no cut-off meets it.

    Looks at every cut-off. rule: "shift", "threshold" or "auto": a shift for recall at an accuracy, a threshold for
    false alarms and costs. groups: patients or films, for a promise (`AtLeast` with a confidence).

    >>> scores = [[0.8, 0.2], [0.7, 0.3], [0.6, 0.4], [0.9, 0.1]]
    >>> tune(scores, [0, 1, 1, 0], [1], AtLeast(1.0), kind="probabilities").rule
    Threshold(values={1: 0.25})
    """
    chosen = ("shift" if isinstance(goal, BestRecall) else "threshold") if rule == "auto" else rule
    if chosen not in ("shift", "threshold"):
        raise InputError(f"rule={rule!r} is unknown; {closest(rule, ['auto', 'shift', 'threshold'])}", "rule")
    truth = np.asarray(labels)
    own = np.array(important)
    reduced = reduce_scores(scores, important, kind)
    margins = reduced.lead if chosen == "shift" else reduced.odds
    sweep = _Cutoffs(margins, own, reduced.rest, truth, goal, groups)
    figures = sweep.figures()
    if isinstance(goal, AtLeast) and goal.confidence is not None:
        state = sweep.promise(goal, goal.confidence)
    else:
        state = sweep.choose(goal, figures)
    if state is None:
        return None
    draw = np.random.default_rng(seed)
    drawn = [sweep.choose(goal, sweep.figures(draw.poisson(1.0, len(truth)))) for _ in range(num_draws)]
    values = [sweep.value(one, chosen) for one in drawn if one is not None] or [sweep.value(state, chosen)]
    made = (Shift if chosen == "shift" else Threshold)(dict.fromkeys(map(int, own), sweep.value(state, chosen)))
    low, high = np.quantile(values, [0.05, 0.95])
    return OperatingPoint(
        rule=made,
        recall=tuple(figures.recall[state].tolist()),
        accuracy=float(figures.accuracy[state]),
        false_alarms=float(figures.alarms[state]),
        cost=None if figures.cost is None else float(figures.cost[state]),
        spread=(float(low), float(high)),
    )


@dataclass(frozen=True, eq=False)
class _Figures:
    recall: Array
    accuracy: Array
    alarms: Array
    cost: Array | None


class _Cutoffs:
    """Every state of a rule on some rows: in state k, the rows of the k largest margins go to important classes.

    All arrays are in the order of falling margins.
    """

    def __init__(self, margins: Array, own: Array, rest: Array, truth: Array, goal: Goal, groups: ArrayLike | None):
        margin = margins.max(axis=1)
        order = np.argsort(-margin, kind="stable")
        winner = own[margins.argmax(axis=1)][order]
        self.own, self.truth, self.ordered, rest = own, truth[order], margin[order], rest[order]
        self.groups = None if groups is None else np.asarray(groups)[order]
        # A margin of −inf is never passed: no shift moves a probability of exactly 0.
        is_last = np.append(self.ordered[:-1] > self.ordered[1:], True) & (self.ordered > -np.inf)
        self.ends = np.concatenate([[0], np.flatnonzero(is_last) + 1])
        self.baseline_state = int(np.searchsorted(self.ends, np.sum(margin > 0)))
        hit, right_else = winner == self.truth, rest == self.truth
        self.is_own = [self.truth == index for index in own]
        self.hits = [(mine & hit).astype(np.float64) for mine in self.is_own]
        self.right_else, self.gained = right_else.astype(np.float64), hit.astype(np.float64) - right_else
        self.alarm = (~np.isin(self.truth, own)).astype(np.float64)
        self.costs = None
        if isinstance(goal, LeastCost):
            matrix = np.asarray(goal.matrix, dtype=np.float64)
            before = matrix[self.truth, rest]
            self.costs = before, matrix[self.truth, winner] - before

    def _passed(self, values: Array, weights: Array | None) -> Array:
        """The weighted sum of the values of the rows that are passed, in every state."""
        return np.concatenate([[0.0], np.cumsum(values if weights is None else values * weights)])[self.ends]

    def figures(self, weights: Array | None = None) -> _Figures:
        """Recall, accuracy, false alarms and cost in every state; weights (N,) count rows several times."""
        whole = len(self.truth) if weights is None else max(float(weights.sum()), 1.0)

        def total(values: Array) -> float:
            return float(values.sum() if weights is None else values @ weights)

        hits = np.stack([self._passed(one, weights) for one in self.hits], axis=1)
        cost = None
        if self.costs is not None:
            cost = (total(self.costs[0]) + self._passed(self.costs[1], weights)) / whole
        return _Figures(
            recall=divide(hits, np.array([total(mine.astype(np.float64)) for mine in self.is_own])),
            accuracy=(total(self.right_else) + self._passed(self.gained, weights)) / whole,
            alarms=self._passed(self.alarm, weights) / whole,
            cost=cost,
        )

    def choose(self, goal: Goal, figures: _Figures) -> int | None:
        """The state that meets the goal; None where there is none."""
        if isinstance(goal, LeastCost):
            assert figures.cost is not None
            return int(figures.cost.argmin())
        if isinstance(goal, AtLeast):
            reached = (figures.recall >= goal.recall - SLACK).all(axis=1)
            return int(reached.argmax()) if reached.any() else None
        floor = figures.accuracy[self.baseline_state] - goal.max_accuracy_drop
        allowed = np.flatnonzero(figures.accuracy >= floor - SLACK)
        mean = figures.recall[allowed].mean(axis=1)
        best = allowed[mean >= mean.max() - SLACK]
        return int(best[figures.accuracy[best].argmax()])

    def promise(self, goal: AtLeast, confidence: float) -> int | None:
        """The first state whose recall new rows have with this confidence; None where there is none."""
        level = (1 - confidence) / len(self.own)
        passes = np.ones(len(self.ends), dtype=bool)
        for mine, hit in zip(self.is_own, self.hits, strict=True):
            weight, num_units, is_whole = _weights(mine, None if self.groups is None else self.groups[mine])
            every = np.zeros(len(mine))
            every[mine] = weight
            missed = np.maximum(weight.sum() - self._passed(hit, every), 0.0)
            passes &= chance_of_luck(missed, num_units, 1 - goal.recall, is_whole) <= level
        return int(passes.argmax()) if passes.any() else None

    def value(self, state: int, rule: str) -> float:
        """The rule's value in a state: the shortest number between its two cut-offs."""
        end = self.ends[state]
        above = self.ordered[end - 1] if end else np.inf  # the least margin that passes
        below = self.ordered[end] if end < len(self.ordered) else -np.inf  # the largest that does not
        if rule == "shift":
            if above > 0 >= below:
                return 0.0
            return -_short_between(below if below > -np.inf else above - 1.0, above if above < np.inf else below + 1.0)
        low, high = (1 / (1 + np.exp(-np.clip(end, -700, 700))) for end in (below, above))
        return _short_between(low if below > -np.inf else 0.0, high if above < np.inf else 1.0)


def _short_between(low: float, high: float) -> float:
    """The number with the fewest digits above `low` and below `high`, near their middle.

    >>> _short_between(0.21341, 0.21398), _short_between(0.0, 1.0)
    (0.2137, 0.5)
    """
    middle = (low + high) / 2
    for digits in range(1, 17):
        rounded = float(f"{middle:.{digits}g}")
        if low < rounded < high:
            return rounded
    return middle
