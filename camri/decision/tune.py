"""The chooser: the only place that picks an operating point.

Of the states that meet a goal it takes the best by the goal's own order; of equals the one that changes the fewest
predictions. It never lowers the recall of an important class, unless the goal is a cost. Every door uses it: an audit,
the estimator, a fit and a study find the same rule on the same rows.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from camri.decision.calibrate import Calibration, Probabilities
from camri.decision.curve import SLACK, Counts, Curve, Sweep
from camri.decision.goals import AtLeast, Goal, LeastCost, MostRecall, Within
from camri.decision.guarantee import BudgetTester, Calibrator, Guarantee
from camri.decision.rules import RULES, AnyRule, LowestCost, Shift, Threshold, argmax_of, is_argmax
from camri.decision.scores import REST, Array, Scores, divide, pool
from camri.errors import InputError, closest

# With 70 validation rows the fitted model's accuracy on new rows is 2 points below cross-entropy's without a prior, 0.3
# points below with a prior of 250 rows, and equal with 500 (docs/log.md).
PRIOR_ROWS = 500
MANY = 200  # times the prior's rows: with more the prior moves accuracies by less than half a percent of their change
HALF = 0.5  # a probability above it is the largest: argmax finds what such a threshold finds
SEED = 0


@dataclass(frozen=True)
class Present:
    """The present decision, which a changed one is measured by.

    accuracy: its share of right rows. share: of rows that it predicts as important. recall: of each important class.
    """

    accuracy: float
    share: float
    recall: tuple[float, ...] = field(default=(), compare=False)

    @staticmethod
    def of(scores: Scores) -> "Present":
        """The ordinary decision of a model: its largest score wins."""
        predicted = scores.predict()
        recall = tuple(divide(scores.hits(), scores.num).tolist())
        return Present(float(scores.is_right(predicted).mean()), float((predicted != REST).mean()), recall)


@dataclass(frozen=True, eq=False)
class Outlook:
    """What a goal may know of the states of a curve: (K,) each.

    accuracy: as expected of new rows. present: the present decision's. cost: mean of a row, for a cost. is_sure: the
    states that guarantee the recall that is asked for, if a confidence is asked for too.
    """

    curve: Curve
    accuracy: Array
    present: float
    cost: Array | None = None
    is_sure: Array | None = None


@dataclass(frozen=True, eq=False)
class Chosen:
    """A rule that was chosen on some rows, with its worth by the goal; state: of the curve, None for another rule.

    has_met: whether it meets the goal; else it is argmax.
    """

    rule: AnyRule
    worth: float
    accuracy: float
    curve: Curve
    state: int | None
    has_met: bool = True


@dataclass(frozen=True)
class OperatingPoint:
    """A tuned rule and its figures on the rows it was tuned on.

    rule: argmax where nothing meets the goal; `has_met` tells. recall, precision: of each important class; None where
    it is never predicted.
    false_alarms: share of all rows that are of no important class but predicted as one. cost: mean of a row.
    rank: compares operating points of several models by the goal; the higher is better.
    spread: 5 % and 95 % quantiles of the rule's value over bootstrap draws of the rows, or of their groups, that chose
    a rule of its kind; None for a decision by costs, which has no such value.
    guarantee: for `AtLeast` with a confidence; it tells why there is none.
    """

    rule: AnyRule
    has_met: bool
    recall: tuple[float, ...]
    precision: tuple[float | None, ...]
    accuracy: float
    false_alarms: float
    cost: float | None
    rank: tuple[float, ...]
    spread: tuple[float, float] | None = None
    guarantee: Guarantee | None = None


def tune(
    scores: Scores | Sequence[Scores],
    goal: Goal,
    *,
    rule: str = "auto",
    groups: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    num_draws: int = 0,
    **options: Any,
) -> OperatingPoint:
    """Find the operating point that meets the goal at the lowest cost; without one, the rule is argmax.

    Tries every cut-off (of more than 131,072, as many evenly spaced ones).

    Parameters
    ----------
    scores : held-out rows of one model, or of several models of the same rows that share a rule (`exact`, `condense`).
    goal : `MostRecall`, `AtLeast` or `LeastCost`.
    rule : "shift", "threshold" or "auto": what the goal tries.
    groups : the independent units (N,), such as patients or films, for a guarantee and for the spread.
    weights : weight of each row (N,) in figures and goals; a guarantee ignores them.
    num_draws : bootstrap draws of the rows for the spread.
    options : of `Tuner`: table, prior_rows, present, keeps_recall, as_factor.

    Examples
    --------
    >>> from camri.decision.scores import exact
    >>> rows = exact([[0.8, 0.2], [0.7, 0.3], [0.6, 0.4], [0.9, 0.1]], [0, 1, 1, 0], [1], kind="probabilities")
    >>> tune(rows, AtLeast(1.0, is_seen=True)).rule
    Threshold(values={1: 0.25})
    """
    tuner = Tuner(scores, goal, rule=rule, groups=groups, weights=weights, **options)
    return tuner.point(tuner.choose(), num_draws)


class Tuner:
    """Chooses rules for a goal on some rows: on all of them, on folds, on bootstrap draws.

    Parameters
    ----------
    table : log-scores of all classes (N, C), for `LowestCost`.
    prior_rows : for the most recall, the weight in rows of what calibrated scores expect of accuracy. Without it a
        shift tuned on few rows overfits them, and loses accuracy on new rows.
    present : the decision whose accuracy is to be kept; by default argmax of these scores.
    keeps_recall : whether recall may not fall below that of argmax; False for a model whose argmax is nobody's present
        decision. Where a recall is asked for, it may not fall below the present decision's.
    as_factor : whether a shift is written as a factor of probabilities.
    sites : indices (N,) into names of places, in each of which a recall is asked for.
    prevalence : the share of important rows where the rule will run, for a budget of alarms; weights say the same.
    """

    def __init__(
        self,
        scores: Scores | Sequence[Scores],
        goal: Goal,
        *,
        rule: str = "auto",
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        table: Array | None = None,
        prior_rows: int = PRIOR_ROWS,
        present: Present | None = None,
        keeps_recall: bool = True,
        as_factor: bool = False,
        sites: tuple[Array, Sequence[str]] | None = None,
        prevalence: float | None = None,
    ) -> None:
        if rule not in ("auto", *RULES):
            raise InputError(f"rule={rule!r} is unknown; {closest(rule, ['auto', *RULES])}", "rule")
        self.scores, self.units, self.num_models = _pooled(scores, groups)
        self.goal, self.table, self.as_factor = goal, table, as_factor
        self.weights = None if weights is None else np.tile(_weights(weights, self.num_rows), self.num_models)
        self.prior_rows = prior_rows if isinstance(goal, MostRecall) and self.num_rows < MANY * prior_rows else 0
        self.present = present
        self.keeps_recall = keeps_recall and not isinstance(goal, (LeastCost, Within))
        self.names = tuple(goal.rules) if rule == "auto" else (rule,)
        self.tester: Calibrator | BudgetTester | None = None
        if isinstance(goal, AtLeast) and not goal.is_seen:
            self.tester = Calibrator(self.scores, goal, self.units, *(sites or ()))
        if isinstance(goal, Within):
            self.tester = BudgetTester(self.scores, goal, self.units, prevalence)
        if isinstance(goal, (AtLeast, Within)) and len(self.names) > 1:
            self.names = (fewer_alarms(self).sweep.rule,)

    @property
    def num_rows(self) -> int:
        """Rows of each model."""
        return len(self.scores) // self.num_models

    @cached_property
    def sweeps(self) -> dict[str, Sweep]:
        """The sweep of each rule that is tried."""
        return {name: self.sweep(name) for name in self.names if name in RULES}

    def sweep(self, name: str) -> Sweep:
        """The sweep of a rule; made once."""
        made: dict[str, Sweep] = self.__dict__.setdefault("_made", {})
        if name not in made:
            made[name] = Sweep(self.scores, name)
        return made[name]

    def choose(
        self,
        rows: Array | None = None,
        counts: dict[str, Counts] | None = None,
        times: Array | None = None,
        knows: "Knows | None" = None,
    ) -> Chosen:
        """The rule that meets the goal on all rows, or on some.

        rows: of which, with counts of them by rule if they are known. times (N,): how often each row was drawn.
        """
        knows = knows or self.know(rows)
        weights = _product(self.weights, times)
        found: list[Chosen] = []
        for name, sweep in self.sweeps.items():
            curve = sweep.curve(sweep.counts(weights, rows) if counts is None else counts[name])
            if curve.num.all():
                found.append(self._choose_state(curve, knows, weights, rows, times))
            elif not found:
                return self._plain(curve, knows, weights, rows, has_met=False)
        if isinstance(self.goal, LeastCost) and knows.probabilities is not None and "lowest_cost" in self.names:
            found.append(self._choose_class(found[0].curve, knows, weights, rows))
        plain = self._plain(found[0].curve, knows, weights, rows, has_met=False)
        met = [one for one in found if one.has_met]
        if not met:
            return plain
        best = max(met, key=lambda one: one.worth)
        if isinstance(self.goal, LeastCost):
            return best if best.worth > plain.worth + SLACK else self._met(plain)
        return best

    def plain(self) -> Chosen:
        """The ordinary decision, argmax."""
        sweep = next(iter(self.sweeps.values()))
        return self._plain(sweep.curve(sweep.counts(self.weights)), self.know(), self.weights, None, has_met=True)

    def _choose_state(
        self, curve: Curve, knows: "Knows", weights: Array | None, rows: Array | None, times: Array | None
    ) -> Chosen:
        """The best state of a curve."""
        outlook = self._outlook(curve, knows, weights, rows, times)
        allowed = self.goal.allowed(outlook)
        if self.keeps_recall:
            # Not only on these rows: a negative shift that loses none of them loses some on new rows.
            allowed = allowed & (curve.hits >= curve.before.hits - SLACK).all(axis=1)
            allowed[: curve.start] = False
        elif self.present is not None and self.present.recall and isinstance(self.goal, AtLeast):
            # Fewer false alarms at a lower recall than the present one are no gain.
            allowed = allowed & (curve.hits >= curve.num * np.array(self.present.recall) - SLACK).all(axis=1)
        if not allowed.any():
            return self._plain(curve, knows, weights, rows, has_met=False)
        worth = np.where(allowed, self.goal.worth(outlook), -np.inf)
        best = np.flatnonzero(worth >= worth.max() - SLACK)
        moved = np.abs(curve.predicted[best].sum(axis=1) - curve.predicted[self._start(curve)].sum())
        state = int(best[moved.argmin()])
        chosen = Chosen(
            curve.rule(state, self.as_factor), float(worth[state]), float(outlook.accuracy[state]), curve, state
        )
        if is_argmax(chosen.rule):
            return chosen
        plain = self._plain(curve, knows, weights, rows, has_met=True)
        if isinstance(chosen.rule, Threshold) and self._is_as_good(plain, chosen, outlook):
            return plain
        return chosen

    def _is_as_good(self, plain: Chosen, chosen: Chosen, outlook: Outlook) -> bool:
        """Whether argmax, which is no threshold, is as good as the one that was chosen."""
        if not self.keeps_recall:
            return False
        is_no_worse = plain.worth >= chosen.worth - SLACK
        if not isinstance(self.goal, AtLeast):
            return is_no_worse
        if min(chosen.rule.values.values()) >= HALF:  # argmax finds what the rule finds, and more on new rows
            return True
        if outlook.is_sure is not None:
            return is_no_worse and bool((outlook.is_sure & (outlook.curve.value >= HALF)).any())
        before = outlook.curve.before
        return is_no_worse and bool(self.goal.allowed(Outlook(before, before.accuracy, outlook.present))[0])

    def _start(self, curve: Curve) -> int:
        """The state that does what the present decision does, or predicts as many rows as important."""
        if self.present is None or not self.prior_rows:
            return curve.start
        return int(np.abs(curve.predicted.sum(axis=1) - self.present.share * curve.total).argmin())

    def _outlook(
        self, curve: Curve, knows: "Knows", weights: Array | None, rows: Array | None, times: Array | None
    ) -> Outlook:
        present = float(curve.before.accuracy[0]) if self.present is None else self.present.accuracy
        accuracy, cost, is_sure = curve.accuracy, None, None
        if self.prior_rows:
            accuracy = self._expected(curve, knows, present, weights, rows)
        if isinstance(self.goal, LeastCost):
            base, delta = self._costs(curve.sweep)
            chosen: Any = slice(None) if rows is None else rows
            total = base[chosen].sum() if weights is None else base[chosen] @ weights[chosen]
            cost = (total + curve.sums(delta, weights, rows)) / curve.total
        if self.tester is not None:
            is_sure = self.tester.is_sure(curve, times)
        return Outlook(curve, accuracy, present, cost, is_sure)

    def _expected(
        self, curve: Curve, knows: "Knows", present: float, weights: Array | None, rows: Array | None
    ) -> Array:
        """Expected accuracy in each state: (K,).

        At the start it is the present accuracy. If the rows show a lower one there, that is taken; if a higher one, a
        part of it that grows with the number of rows. From there, each row whose prediction changes counts partly by
        its label and partly by its gain: the calibrated probability of its best important class minus that of its best
        other class. Unlike labels, these are not overfitted by choosing a shift.
        """
        start, num_rows = self._start(curve), (len(self.scores) if rows is None else len(rows)) // self.num_models
        expected = curve.sums(knows.gain, weights, rows) / curve.total
        trust = num_rows / (num_rows + self.prior_rows)
        surplus = curve.accuracy[start] - present
        seen, thought = (accuracy - accuracy[start] for accuracy in (curve.accuracy, expected))
        return np.asarray(present + min(surplus, trust * surplus) + trust * seen + (1 - trust) * thought)

    def know(self, rows: Array | None = None) -> "Knows":
        """Fit what is known beside the labels to all rows, or to some."""
        if self.prior_rows:
            own = self.scores if rows is None else self.scores.take(rows)
            weights = None if self.weights is None else self.weights if rows is None else self.weights[rows]
            return Knows(gain=Calibration.of(own, weights).gain(self.scores))
        if isinstance(self.goal, LeastCost) and self.table is not None:
            chosen: Any = slice(None) if rows is None else rows
            return Knows(probabilities=Probabilities.of(self.table[chosen], self.scores.labels[chosen]))
        return Knows()

    def _costs(self, sweep: Sweep) -> tuple[Array, Array]:
        """The cost of each row (N,) if it is predicted as its best other class, and what an important class adds."""
        kept: dict[str, Any] = self.__dict__.setdefault("_kept", {})
        if sweep.rule not in kept:
            costs = cost_of(self.scores, np.asarray(self.goal.matrix))  # type: ignore[union-attr]
            base = costs(np.full(len(self.scores), REST))
            own = np.array(self.scores.important)[np.broadcast_to(sweep.winner, len(self.scores))]
            kept[sweep.rule] = base, costs(own) - base
        found: tuple[Array, Array] = kept[sweep.rule]
        return found

    def _choose_class(self, curve: Curve, knows: "Knows", weights: Array | None, rows: Array | None) -> Chosen:
        """The rule that predicts the class with the least expected cost."""
        assert isinstance(self.goal, LeastCost)
        assert knows.probabilities is not None
        assert self.table is not None
        matrix = tuple(tuple(map(float, row)) for row in np.asarray(self.goal.matrix))
        rule = LowestCost(matrix, knows.probabilities, dict.fromkeys(self.scores.important, 0.0))
        chosen: Any = slice(None) if rows is None else rows
        said, labels = rule.predict(self.table[chosen]), self.scores.labels[chosen]
        costs, times = np.asarray(self.goal.matrix)[labels, said], None if weights is None else weights[chosen]
        worth = -float(np.average(costs, weights=times))
        return Chosen(rule, worth, float(np.average(said == labels, weights=times)), curve, None)

    def _plain(self, curve: Curve, knows: "Knows", weights: Array | None, rows: Array | None, has_met: bool) -> Chosen:
        """The ordinary decision, argmax."""
        accuracy = float(curve.before.accuracy[0])
        worth = -np.inf
        if isinstance(self.goal, LeastCost):
            costs = cost_of(self.scores, np.asarray(self.goal.matrix))(self.scores.predict())
            chosen: Any = slice(None) if rows is None else rows
            worth = -float(np.average(costs[chosen], weights=None if weights is None else weights[chosen]))
        elif curve.num.all():
            outlook = Outlook(curve.before, curve.before.accuracy, accuracy)
            worth = float(self.goal.worth(outlook)[0])
        return Chosen(argmax_of(self.scores.important), worth, accuracy, curve, None, has_met)

    @staticmethod
    def _met(plain: Chosen) -> Chosen:
        return Chosen(plain.rule, plain.worth, plain.accuracy, plain.curve, plain.state)

    def cross_fit(self, fold: Array) -> tuple[Array, Array]:
        """Predictions (N,) of each row by a rule that was chosen on the rows of the other folds 0, 1, … (N,).

        Also what calibrated scores expect of each row's changed prediction (N,), by the calibration of those rows.
        """
        said, expected = self.scores.predict(), np.zeros(len(self.scores))
        now = said.copy()
        by_rule = {}
        if self.weights is None:
            by_rule = {name: sweep.counts_by(fold) for name, sweep in self.sweeps.items()}
        for number in np.unique(fold).tolist():
            rows, others = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
            counts = {name: self._all(name).without(parts[number]) for name, parts in by_rule.items()} or None
            knows = self.know(others)
            said[rows] = self.predict(self.choose(others, counts, knows=knows).rule, rows)
            if knows.gain is not None:
                expected[rows] = np.where(said[rows] != now[rows], knows.gain[rows], 0.0)
        return said, expected

    def _all(self, name: str) -> Counts:
        kept: dict[str, Counts] = self.__dict__.setdefault("_counted", {})
        if name not in kept:
            kept[name] = self.sweeps[name].counts()
        return kept[name]

    def predict(self, rule: AnyRule, rows: Array | None = None) -> Array:
        """The prediction of a rule for all rows or some: an important class, or −1 for the best other class.

        A rule of costs may predict any class; the best other class is −1 there too.
        """
        own = self.scores if rows is None else self.scores.take(rows)
        if not isinstance(rule, LowestCost):
            return rule.predict(own)
        assert self.table is not None
        assert own.rest is not None
        said = rule.predict(self.table if rows is None else self.table[rows])
        return np.where(said == own.rest, REST, said)

    def redraw(self, num_draws: int) -> Iterator[Chosen]:
        """The rules chosen on bootstrap draws of the rows, or of their groups."""
        drawn, knows = np.random.default_rng(SEED), self.know()
        is_alone = len(self.scores) == int(self.units.max()) + 1
        for _ in range(num_draws):
            if is_alone and self.tester is None and self.weights is None and not isinstance(self.goal, LeastCost):
                counts = {name: self._all(name).drawn(drawn) for name in self.sweeps}
                yield self.choose(counts=counts, knows=knows)
            else:
                times = drawn.poisson(1.0, int(self.units.max()) + 1)[self.units].astype(np.float64)
                yield self.choose(times=times, knows=knows)

    def point(self, chosen: Chosen, num_draws: int = 0) -> OperatingPoint:
        """The operating point of a chosen rule, with its figures on all rows."""
        said = self.predict(chosen.rule)
        scores, weights = self.scores, self.weights

        def share(hit: Array, among: Array | None = None) -> float:
            part = hit if among is None else hit[among]
            times = None if weights is None else weights if among is None else weights[among]
            return float(np.average(part, weights=times))

        def precision(index: int) -> float | None:
            called = said == index
            is_known = called.any() if weights is None else weights[called].any()
            return share(scores.labels == index, called) if is_known else None

        recall = tuple(share(said == index, scores.labels == index) for index in scores.important)
        cost = None
        if isinstance(self.goal, LeastCost):
            cost = share(cost_of(scores, np.asarray(self.goal.matrix))(said))
        draws = self.redraw(0 if isinstance(chosen.rule, LowestCost) else num_draws)
        same = [one.rule.values for one in draws if one.has_met and type(one.rule) is type(chosen.rule)]
        values = [next(iter(one.values())) for one in same]
        ends = tuple(np.quantile(values, [0.05, 0.95]).tolist()) if values else None
        moved = sum(map(abs, chosen.rule.values.values())) if isinstance(chosen.rule, Shift) else 0.0
        return OperatingPoint(
            rule=chosen.rule,
            has_met=chosen.has_met,
            recall=recall,
            precision=tuple(map(precision, scores.important)),
            accuracy=share(scores.is_right(said)),
            false_alarms=share(scores.is_false_alarm(said)),
            cost=cost,
            rank=(chosen.worth if chosen.has_met else -math.inf, chosen.accuracy, 0.0 - moved),
            spread=ends,
            guarantee=self._guarantee(chosen, said),
        )

    def _guarantee(self, chosen: Chosen, said: Array) -> Guarantee | None:
        if self.tester is None:
            return None
        assert isinstance(chosen.rule, (Shift, Threshold))
        most = next(iter(self.sweeps.values())).curve().hits[-1]
        return self.tester.guarantee(chosen.rule if chosen.has_met else None, said, most)


@dataclass(frozen=True, eq=False)
class Knows:
    """What was fitted beside the labels: the gain of each row (N,), or calibrated probabilities for costs."""

    gain: Any = None
    probabilities: Probabilities | None = None


def fewer_alarms(tuner: Tuner) -> Curve:
    """The curve of the rule with fewer false alarms, on average over recalls from a half up.

    Not at the one recall that is wanted: that would pick the rule that is better by chance, and break guarantees.
    """
    curves = [tuner.sweep(name).curve() for name in ("threshold", "shift")]
    recalls = np.linspace(0.5, max(0.5, min(float(curve.mean_recall[-1]) for curve in curves)), 50)
    reached = [curve.reach(recalls).clip(max=len(curve.states) - 1) for curve in curves]
    alarms = [float(curve.alarms[states].mean()) for curve, states in zip(curves, reached, strict=True)]
    return curves[int(np.argmin(alarms))]


def cost_of(scores: Scores, matrix: Array) -> Any:
    """A function from predictions (N,), a class or −1 for the best other class, to the cost of each (N,)."""
    labels, rest = scores.labels, scores.rest
    if rest is None:
        raise InputError("costs need the scores of all classes; give `exact` ones", argument="scores")
    most = max(labels.max(), rest.max(), *scores.important)
    if most >= len(matrix):
        wrong = f"cost_matrix of shape {matrix.shape} does not fit class {most}"
        raise InputError(f"{wrong}; give a row and a column for each class", argument="cost_matrix")
    return lambda said: matrix[labels, np.where(said == REST, rest, said)]


def _product(one: Array | None, other: Array | None) -> Array | None:
    return other if one is None else one if other is None else one * other


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


def _weights(weights: ArrayLike, num_rows: int) -> Array:
    given = np.asarray(weights, dtype=np.float64)
    if given.shape != (num_rows,) or not np.isfinite(given).all() or (given < 0).any() or not given.any():
        raise InputError(
            f"weights {given.shape} do not fit; give {num_rows} numbers of at least 0, not all of them 0", "weights"
        )
    return given
