"""Audit a trained model from its scores: the decision rule that meets a goal, what it changes, and how sure that is.

A rule is tuned on some rows and judged on others: whole groups on one side, every class on both. What a shift will do
to accuracy is predicted from calibrated scores as well as counted.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from camri.auditing.scores import SPLIT_SEED, SUM_SLACK, Checked, check, num_decimals, to_array, tune_and_judge
from camri.decision import (
    CONFIDENCE,
    PRIOR_ROWS,
    RULES,
    SLACK,
    AtLeast,
    BestRecall,
    Costs,
    Curve,
    DecisionRule,
    Goal,
    LeastCost,
    Prior,
    Promise,
    Shift,
    Threshold,
    best_state,
    cost_of,
    parse_goal,
    promise,
    trace,
)
from camri.errors import InputError
from camri.metrics import Array, Scores, divide, exact
from camri.names import Names
from camri.stats import (
    FALL,
    FEWEST_GROUPS,
    FEWEST_ROWS,
    Estimate,
    RowEstimate,
    Z,
    change_of,
    design_effect,
    expect,
    settle,
    share_of,
)
from camri.text import quoted

SLOPE_SD = 10.0  # of the logits' own spread: it binds only where classes are separable
CONSTANT_SD = 0.5  # without a ridge the constant overfits few rows (docs/log.md)
FEWEST_CALIBRATION_ROWS = 10  # of an important class, and of the others: with fewer nothing is calibrated
MOST_ROWS = 20_000  # enough to fit two numbers; beside more rows the prior hardly counts
TARGETS = (0.8, 0.9, 0.95, 0.98, 0.99, 1.0)  # recalls whose cost is shown
MOST_DRAWS, FEWEST_DRAWS, ROWS_DRAWN = 100, 20, 2_000_000  # of rows, to see what tuning does to the figures


@dataclass(frozen=True)
class Comparison:
    """A share before and after the change of the decision; `change` is None where there are no rows to pair."""

    before: RowEstimate
    after: RowEstimate
    change: RowEstimate | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: None if one is None else one.to_json() for name, one in vars(self).items()}


@dataclass(frozen=True)
class ClassResult:
    """One class's recall before and after."""

    name: str
    important: bool
    recall: Comparison
    mistaken_for: tuple[tuple[str, int], ...]  # before the change, the most frequent first

    def to_json(self) -> dict[str, Any]:
        mistakes = {"mistaken_for": dict(self.mistaken_for)}
        return {"name": self.name, "important": self.important, **self.recall.to_json(), **mistakes}


@dataclass(frozen=True)
class Point:
    """A point of a rule's curve on the judged rows. Picked on the rows it is shown for: optimistic.

    value: of the rule. false_alarms: a share of all rows. precision: the important classes' mean, None where one is
    never predicted.
    """

    value: float
    recall: float
    accuracy: float
    false_alarms: float
    precision: float | None


@dataclass(frozen=True, eq=False)
class Audit:
    """The result of `audit`. All figures are of one decision rule, the one that is advised.

    rule: a shift (added to the important classes' logits, or to the logarithms of their probabilities) or a threshold
    of their probabilities.
    is_cross_fitted: whether each row is judged with a rule that was tuned on other rows. Otherwise the figures are
    those of the rule on the judged rows.
    kind: "gain" where the goal is met: recall surely rises and accuracy does not surely drop, nor probably by more than
    half a point; or the recall is guaranteed; or the cost surely falls. Else "none", or "unknown" with too few rows.
    recall: the change, a mean over the important classes. drop: distribution of the true change of accuracy, shrunk
    toward what calibrated scores predict. false_alarms: of all rows, those of no important class predicted as one.
    precision: of each important class; a share of no rows where it is never predicted.
    cost: mean cost of a row before, after, and its change, with a cost matrix.
    both: each rule at the recall that the advised one has on these rows; empty where they are the same.
    scores_are: "logits" or "probabilities"; unit: 100 for percentages, else 1.
    first_column: of two columns of logits that were made of one score d, 0 for [0, d] and -1 for [-d, d]; else None.
    scores: of the judged rows. tuned_on: how tuning and judging were kept apart. num_models: that share the rule.
    num_groups: None where rows count as independent.
    guarantee: None unless a recall was asked for. Where it cannot be given, `refusal` says why, and everything else is
    as if it had not been asked for.
    """

    classes: tuple[str, ...]
    important: tuple[str, ...]
    scores_are: str
    unit: float
    first_column: int | None
    num_rows: int
    num_models: int
    tuned_on: str
    is_cross_fitted: bool
    goal: Goal
    kind: str
    rule: DecisionRule
    recall: RowEstimate
    accuracy: Comparison
    drop: NormalDist
    false_alarms: Comparison
    precision: tuple[Comparison, ...]
    cost: tuple[float, float, Estimate] | None
    by_class: tuple[ClassResult, ...]
    prices: tuple[Point, ...]
    both: dict[str, Point]
    scores: Scores
    num_groups: int | None
    guarantee: Promise | None
    refusal: str | None

    @property
    def value(self) -> float:
        """The rule's value, the same for all important classes."""
        return next(iter(self.rule.values.values()))

    @property
    def shift(self) -> float | None:
        """What to add to the important logits; None where the rule is a threshold."""
        return self.value if isinstance(self.rule, Shift) else None

    @property
    def factor(self) -> float | None:
        """What to multiply the important probabilities by; None for logits, and where the rule is a threshold."""
        is_factor = self.shift is not None and self.scores_are == "probabilities"
        return float(f"{math.exp(self.value):.12g}") if is_factor else None

    def predict(self, scores: ArrayLike) -> Array:
        """Predict the class index of each row (N, C) by the advised rule: int (N,).

        scores: of the kind that was audited: logits, probabilities or percentages.
        """
        values = to_array(scores)
        if values.ndim != 2 or values.shape[1] != len(self.classes):
            wrong = f"scores of shape {values.shape} do not fit {len(self.classes)} classes"
            raise InputError(f"{wrong}; give (N, {len(self.classes)})", argument="scores")
        shares = values.astype(np.float64) / self.unit
        if self.scores_are == "probabilities" and values.size:
            low, high = shares.min(), shares.max()
            if low < 0 or high > 1 + SUM_SLACK or (self.unit != 1 and shares.sum(axis=1).max() < 0.5):
                kind = "percentages" if self.unit == 100 else "probabilities"
                wrong = f"scores of {values.min():g} to {values.max():g} are no {kind}, which were audited"
                raise InputError(f"{wrong}; give the same kind", argument="scores")
        return self.rule.predict(shares, self.scores_are)

    @property
    def is_changed(self) -> bool:
        """Whether the advised rule is another than taking the largest score."""
        return self.shift != 0.0

    @property
    def is_advised(self) -> bool:
        """Whether that rule is advised: it meets the goal."""
        return self.is_changed and self.kind == "gain"

    @property
    def is_a_choice(self) -> bool:
        """Whether that rule surely raises recall, at an accuracy that is surely or probably lost."""
        return self.is_changed and self.kind == "none" and self.cost is None and self.recall.low > 0

    @property
    def has_after(self) -> bool:
        """Whether there are figures after a change of the decision to show."""
        return self.is_changed and self.kind != "unknown"

    @property
    def own(self) -> tuple[ClassResult, ...]:
        """The results of the important classes."""
        return tuple(one for one in self.by_class if one.important)

    @property
    def max_accuracy_drop(self) -> float:
        """Accuracy that may be lost."""
        return self.goal.max_accuracy_drop if isinstance(self.goal, BestRecall) else 0.0

    @property
    def is_guaranteed(self) -> bool:
        """Whether the rule guarantees the recall that was asked for."""
        return self.guarantee is not None and self.refusal is None

    @property
    def few_groups(self) -> tuple[str, ...]:
        """The important classes whose judged rows come from fewer groups than an interval needs."""
        nums = {one.name: one.recall.before.num_groups for one in self.own}
        return tuple(name for name, num in nums.items() if num is not None and num < FEWEST_GROUPS)

    def to_json(self) -> dict[str, Any]:
        """All figures but the curve, as plain JSON."""
        drops = {"chance_of_drop": self.drop.cdf(0.0), "chance_of_drop_by_half_a_point": self.drop.cdf(-FALL)}
        pairs = zip(self.important, self.precision, strict=True)
        made = self.guarantee
        return {
            "answer": self.kind,
            "important": list(self.important),
            "scores_are": self.scores_are,
            "unit": self.unit,
            "rows": self.num_rows,
            "rows_judged": self.accuracy.before.num,
            "models": self.num_models,
            "groups": self.num_groups,
            "few_groups": list(self.few_groups),
            "tuned_on": self.tuned_on,
            "max_accuracy_drop": self.max_accuracy_drop,
            "rule": self.rule.to_json(self.classes),
            "shift": self.shift,
            "factor": self.factor,
            "accuracy": {**self.accuracy.to_json(), **drops},
            "recall_change": self.recall.to_json(),
            "false_alarms": self.false_alarms.to_json(),
            "precision": [{"name": name, **one.to_json()} for name, one in pairs],
            "cost": None if self.cost is None else [*self.cost[:2], vars(self.cost[2])],
            "classes": [one.to_json() for one in self.by_class],
            "prices": [vars(one) for one in self.prices],
            "both_rules": {name: vars(one) for name, one in self.both.items()},
            "guarantee": None
            if made is None
            else {**vars(made), "rule": made.rule and made.rule.to_json(self.classes), "refusal": self.refusal},
        }


@dataclass(frozen=True)
class Calibration:
    """Logits times the slope, which is at least 0, plus the constant for important classes."""

    slope: float = 1.0
    constant: float = 0.0

    @staticmethod
    def of(logits: Array, labels: Array, important: Sequence[int]) -> "Calibration":
        """The calibration that makes the labels (N,) likeliest, held to finite values by a ridge.

        Minimises Σ −log p(label) + (slope · spread / 10)² / 2 + (constant / 0.5)² / 2 over the rows.

        >>> drawn = np.random.default_rng(0)
        >>> labels = drawn.integers(0, 2, 4000)
        >>> logits = 3 * (drawn.normal(size=(4000, 2)) + 2 * np.eye(2)[labels]) - [0, 1.2]
        >>> Calibration.of(logits, labels, [1])  # the truth: slope 2 / 3, constant 0.8
        Calibration(slope=0.667..., constant=0.783...)
        """
        if len(labels) > MOST_ROWS:
            some = np.random.default_rng(SPLIT_SEED).choice(len(labels), MOST_ROWS, replace=False)
            logits, labels = logits[some], labels[some]
        is_important = np.isin(np.arange(logits.shape[1]), important)
        counts = np.bincount(labels, minlength=logits.shape[1])
        centred = _transposed(logits) - logits.mean(axis=1)
        spread = float(centred.std())
        if min(*counts[is_important], counts[~is_important].sum()) < FEWEST_CALIBRATION_ROWS or not spread:
            return Calibration()
        unit = centred / spread
        own, is_own = unit[labels, np.arange(len(labels))], is_important[labels]
        ridge = np.array([SLOPE_SD, CONSTANT_SD]) ** -2.0

        def loss(both: Array) -> tuple[float, Array]:
            """The mean loss of a row with its share of the ridge, and its derivatives by slope and constant."""
            known = both[0] * unit + both[1] * is_important[:, None]
            top = known.max(axis=0)
            odds = np.exp(known - top)
            whole = odds.sum(axis=0)
            value = np.mean(top + np.log(whole) - both[0] * own - both[1] * is_own)
            by_slope = np.mean((odds * unit).sum(axis=0) / whole - own)
            by_constant = np.mean(odds[is_important].sum(axis=0) / whole - is_own)
            pull = ridge * both / len(labels)
            return value + pull @ both / 2, np.array([by_slope, by_constant]) + pull

        how = {"bounds": [(0.0, None), (None, None)], "options": {"ftol": 1e-12, "gtol": 1e-8}}
        slope, constant = optimize.minimize(loss, [1.0, 0.0], jac=True, method="L-BFGS-B", **how).x.tolist()
        return Calibration(slope / spread, constant)

    def gain(self, logits: Array, important: Sequence[int]) -> Array:
        """The chance that a row's best important class is right, less that of its best other class: (N,)."""
        is_important = np.isin(np.arange(logits.shape[1]), important)
        known = self.slope * _transposed(logits)
        known[is_important] += self.constant
        odds = np.exp(known - known.max(axis=0))
        return (odds[is_important].max(axis=0) - odds[~is_important].max(axis=0)) / odds.sum(axis=0)


def _transposed(logits: Array) -> Array:
    """(N, C) -> (C, N): 900,000 rows of ten classes take 0.10 s so, and 0.17 s as they are."""
    return np.ascontiguousarray(logits.T)


def audit(
    scores: ArrayLike,
    labels: ArrayLike,
    important: str | int | Sequence[str | int],
    *,
    classes: Names | None = None,
    split: Sequence[str] | None = None,
    groups: ArrayLike | None = None,
    kind: str | None = None,
    max_accuracy_drop: float = 0.0,
    at_least: float | None = None,
    confidence: float | None = None,
    cost_matrix: Costs | None = None,
) -> Audit:
    """Find the decision rule that meets a goal for a trained model's important classes, and what it changes.

    scores: (N, C), logits or probabilities (recognised unless `kind` says which), or (S, N, C) of S models of the same
    rows, which then share the rule; labels: names or indices (N,).
    classes: the names in the order of the columns, or a mapping between names and indices, such as class_to_idx.
    important: one or several classes, which share the rule's value.
    split: "val" or "test" for each row: the rule is tuned on val and judged on test. By default ten folds take turns
    as the judged one, and the rule that is advised is tuned on all rows.
    groups: the patient, film or track of each row (N,). A group is tuned on or judged, never both, and its rows count
    for as many independent rows as they are worth. By default rows count as independent.

    The goal is one of three:
    max_accuracy_drop: the most recall at no more than this loss of accuracy (0.01 is one percentage point), by a shift.
    at_least: a recall to guarantee on new rows, with `confidence` (default 0.95), at the fewest false alarms: by a
    shift or a threshold (`camri.decision.promise`), calibrated on all rows, or with a split on those of val.
    cost_matrix: the least mean cost, by either rule: (C, C) numbers or a CSV file, row = true class.

    >>> drawn = np.random.default_rng(0)
    >>> labels = drawn.integers(0, 3, 600)
    >>> scores = drawn.normal(size=(600, 3)) + 2 * np.eye(3)[labels] - [0, 1.5, 0]
    >>> found = audit(scores, labels, "stop", classes=["limit", "stop", "yield"])
    >>> found.kind, found.shift, round(found.recall.value, 2), round(found.accuracy.change.value, 2)
    ('gain', 2.4, 0.43, 0.02)
    """
    checked, split = check(scores, labels, important, classes, kind, groups, split)
    if confidence is not None and at_least is None:
        wrong = f"confidence={confidence!r} is for a recall to guarantee"
        raise InputError(f"{wrong}; give it with at_least, or leave it out", argument="confidence")
    sure = CONFIDENCE if confidence is None else confidence
    goal = parse_goal(checked.classes, max_accuracy_drop, at_least, cost_matrix, sure)
    _doubt_empty(checked)
    if isinstance(goal, LeastCost):
        _doubt_costs(checked, np.asarray(goal.matrix))
    every = _condense(checked)
    parts, tuned_on = tune_and_judge(checked, split)
    judged = np.sort(np.concatenate([rows for _, rows in parts]))
    whole = np.unique(np.concatenate([tuning for tuning, _ in parts]))
    _refuse_empty(checked, judged, parts)
    final, made, refusal = _tune(checked, every, whole, goal), None, None
    rule = final.rule
    if isinstance(goal, AtLeast):
        made, refusal = _guarantee(checked, every.take(whole), whole, goal)
        rule = made.rule or rule
    is_guaranteed = made is not None and refusal is None
    is_cross_fitted = len(parts) > 1 and not is_guaranteed
    if is_guaranteed and len(parts) > 1:
        parts, tuned_on = [(whole, judged)], "the rows that the figures are of"
    now, said, expected = every.predict(), every.predict(), np.zeros(len(every))
    for tuning, rows in parts:
        tuned = _tune(checked, every, tuning, goal) if is_cross_fitted else final
        said[rows] = (tuned.rule if is_cross_fitted else rule).predict(every.take(rows))
        moved = rows[said[rows] != now[rows]]
        expected[moved] = tuned.calibration.gain(checked.logits[moved], every.important)
    here = every.take(judged)
    errors = _redraw(checked, final, here, goal) if is_cross_fitted else {}
    figures = _Figures(here, checked.groups_of(judged), now[judged], said[judged], rule.predict(here), errors)
    own = np.isin(here.labels, here.important)
    recall = figures.change("recall", here.is_right, own, here.labels[own])
    accuracy = figures.compare("accuracy", here.is_right)
    assert accuracy.change is not None
    seen = change_of(here.is_right(figures.now), here.is_right(figures.said), groups=figures.groups)
    drop = expect(seen, float(expected[judged].mean()), PRIOR_ROWS)
    cost = figures.cost(np.asarray(goal.matrix)) if isinstance(goal, LeastCost) else None
    enough = min(int(here.num.min()), int(final.curve.num.min())) >= FEWEST_ROWS
    is_free = accuracy.change.high >= -max_accuracy_drop and drop.cdf(-max_accuracy_drop - FALL) < 0.5
    is_gain = recall.low > 0 and is_free if cost is None else cost[2].high < 0
    is_gain = is_guaranteed or (enough and is_gain and rule != Shift(dict.fromkeys(every.important, 0.0)))
    curve = trace(here, rule.name)
    return Audit(
        classes=checked.classes,
        important=tuple(checked.classes[index] for index in checked.important),
        scores_are=checked.kind,
        unit=checked.unit,
        first_column=checked.first_column,
        num_rows=len(every),
        num_models=checked.num_models,
        tuned_on=tuned_on,
        is_cross_fitted=is_cross_fitted,
        goal=goal,
        kind="gain" if is_gain else "none" if enough else "unknown",
        rule=rule,
        recall=recall,
        accuracy=accuracy,
        drop=drop,
        false_alarms=figures.compare("false alarms", here.is_false_alarm),
        precision=tuple(figures.precision(index) for index in every.important),
        cost=cost,
        by_class=tuple(figures.by_class(checked.classes, checked.logits[judged].argmax(axis=1))),
        prices=tuple(_prices(curve)),
        both=_both_rules(here, rule, curve),
        scores=here,
        num_groups=None if checked.groups is None else len(checked.group_names),
        guarantee=made,
        refusal=refusal,
    )


def _condense(checked: Checked) -> Scores:
    """The scores to sweep; a probability that no factor can lift, 0 or nearly so, has a lead of −inf."""
    scores = exact(checked.logits, checked.labels, checked.important)
    if checked.kind == "logits":
        return scores
    own = checked.values[:, list(checked.important)]
    is_stuck = (own == 0) | (scores.lead < -np.log(checked.largest_factor))
    return replace(scores, lead=np.where(is_stuck, -np.inf, scores.lead), probability=own)


@dataclass(frozen=True, eq=False)
class Tuned:
    """A tuned rule, the curve of its rows, the function that chooses a state of such a curve, and the calibration."""

    rule: DecisionRule
    curve: Curve
    choose: Callable[[Curve], int]
    calibration: Calibration


def _tune(checked: Checked, every: Scores, rows: Array, goal: Goal) -> Tuned:
    """The rule that meets the goal on some rows; for a guaranteed recall, the shift that is free."""
    scores, logits = every.take(rows), checked.logits[rows]
    calibration = Calibration.of(logits, scores.labels, scores.important)
    curve = trace(scores)
    if isinstance(goal, LeastCost):
        costs = cost_of(scores, np.asarray(goal.matrix))
        curve = min((curve, trace(scores, "threshold")), key=lambda either: float(either.count(costs).min()))

        def choose(curve: Curve) -> int:
            return int(curve.count(costs).argmin())

    else:
        gain = calibration.gain(logits, scores.important)

        def choose(curve: Curve) -> int:
            return _free_state(curve, gain, getattr(goal, "max_accuracy_drop", 0.0))

    return Tuned(_short_rule(curve, choose(curve), checked.kind), curve, choose, calibration)


def _free_state(curve: Curve, gain: Array, max_accuracy_drop: float) -> int:
    """The state, from no shift on, with the best recall at the expected accuracy that is allowed.

    The expected accuracy combines what the rows show with what calibrated probabilities predict, worth 500 rows.
    """
    start = int(np.flatnonzero(curve.value == 0.0)[0])
    prior = Prior(float(curve.accuracy[start]), float(curve.predicted[start].sum() / curve.total), PRIOR_ROWS)
    expected = prior.weigh(curve, len(curve.sweep.scores), gain)
    state = best_state(curve, expected, prior.accuracy - max_accuracy_drop, prior=prior)
    assert state is not None, "no shift keeps the accuracy"
    return state


def _short_rule(curve: Curve, state: int, kind: str) -> DecisionRule:
    """The rule of a state, with the shortest number that gives it: people copy it into their code."""
    is_factor = kind == "probabilities" and curve.sweep.rule == "shift"
    number = curve.number(state, is_factor)
    value = math.log(number) if is_factor else number
    return RULES[curve.sweep.rule](dict.fromkeys(curve.sweep.scores.important, value))


def _redraw(checked: Checked, tuned: Tuned, scores: Scores, goal: Goal) -> dict[str | int, Array]:
    """Bootstrap how optimistic changes are on the rows that tuned the rule: errors (B,) by figure and by class index.

    Rows or groups are drawn, the rule is tuned on them, and its changes there are compared with those on all rows
    (Efron's optimism). Intervals that ignore the tuning held the true change of false alarms in .76 to .95 of made
    tables (docs/audit.md).
    """
    units = np.arange(len(scores))
    if checked.groups is not None:
        units = np.unique(checked.groups, return_inverse=True)[1].ravel()
    drawn, labels, num_classes = np.random.default_rng(SPLIT_SEED), scores.labels, len(checked.classes)
    costs = cost_of(scores, np.asarray(goal.matrix)) if isinstance(goal, LeastCost) else None
    now, right, alarm = scores.predict(), scores.correct().astype(int), scores.false_alarms().astype(int)
    by_class, figures = [], []
    for _ in range(max(FEWEST_DRAWS, min(MOST_DRAWS, ROWS_DRAWN // len(scores)))):
        times = drawn.poisson(1.0, int(units.max()) + 1)[units].astype(np.float64)
        curve = tuned.curve.sweep.curve(times)
        if not curve.num.all():
            continue  # no row of an important class was drawn
        said = tuned.curve.rule(tuned.choose(curve)).predict(scores)
        change, alarms = scores.is_right(said) - right, scores.is_false_alarm(said) - alarm
        cost = np.zeros(len(labels)) if costs is None else costs(said) - costs(now)
        there, here = (
            divide(np.bincount(labels, change * counts, num_classes), np.bincount(labels, counts, num_classes))
            for counts in (times, np.ones(len(labels)))
        )
        by_class.append(np.nan_to_num(there - here))
        share = times / times.sum() - 1 / len(times)
        figures.append((change @ share, alarms @ share, cost @ share))
    classes = np.array(by_class)
    recall = classes[:, list(scores.important)].mean(axis=1)
    accuracy, alarms, cost = np.transpose(figures)
    errors: dict[str | int, Array] = {"recall": recall, "accuracy": accuracy, "false alarms": alarms, "cost": cost}
    return errors | dict(enumerate(classes.T))


@dataclass(frozen=True, eq=False)
class _Figures:
    """Figures on the judged rows: with the largest score (`now`), as judged (`said`), with the advised rule (`final`).

    With errors of `_redraw`, intervals are those of the advised rule and count that it was tuned on these rows.
    """

    scores: Scores
    groups: Array | None
    now: Array
    said: Array
    final: Array
    errors: dict[str | int, Array]

    def groups_of(self, rows: Any) -> Array | None:
        """The groups of some rows; None where rows are independent."""
        return None if self.groups is None else self.groups[rows]

    def change(
        self, name: str | int, outcome: Callable[[Array], Array], rows: Any, labels: Array | None = None
    ) -> RowEstimate:
        """The change of an outcome's share of some rows; with labels the mean over classes."""
        before, after, final = (outcome(said)[rows] for said in (self.now, self.said, self.final))
        groups = self.groups_of(rows)
        change = change_of(before, after, labels, groups)
        if name not in self.errors:
            return change
        return settle(change, change_of(before, final, labels, groups), self.errors[name], int(self.scores.num.min()))

    def compare(self, name: str | int, outcome: Callable[[Array], Array], rows: Any = slice(None)) -> Comparison:
        """The outcome's share of some rows before and after."""
        before, after = (share_of(outcome(said)[rows], self.groups_of(rows)) for said in (self.now, self.said))
        return Comparison(before, after, self.change(name, outcome, rows) if before.num else None)

    def precision(self, index: int) -> Comparison:
        """The share of the rows predicted as a class that belong to it, before and after."""
        truth, called = self.scores.labels == index, [said == index for said in (self.now, self.said)]
        return Comparison(*(share_of(truth[rows], self.groups_of(rows)) for rows in called))

    def cost(self, matrix: Array) -> tuple[float, float, Estimate]:
        """The mean cost of a row before and after, and its change."""
        costs = cost_of(self.scores, matrix)
        before, after, final = (costs(said) for said in (self.now, self.said, self.final))
        effect = 1.0 if self.groups is None else design_effect(final - before, self.groups)
        centre, sd = float((final - before).mean()), float((final - before).std() * math.sqrt(effect / len(final)))
        if (errors := self.errors.get("cost")) is not None:
            centre, sd = centre - float(errors.mean()), max(sd, float(errors.std(ddof=1)))
        value = float((after - before).mean())
        ends = min(value, centre - Z * sd), max(value, centre + Z * sd)
        return float(before.mean()), float(after.mean()), Estimate(value, *ends)

    def by_class(self, names: Sequence[str], largest: Array) -> Iterator[ClassResult]:
        """Every class's recall, and what it was mistaken for where the `largest` score (N,) won."""
        missed = ~self.scores.is_right(self.now)
        for index, name in enumerate(names):
            own = self.scores.labels == index
            counts = np.bincount(largest[own & missed], minlength=len(names))
            order = [other for other in np.argsort(-counts, kind="stable").tolist() if counts[other]]
            mistakes = tuple((names[other], int(counts[other])) for other in order[:5])
            recall = self.compare(index, self.scores.is_right, own)
            yield ClassResult(name, index in self.scores.important, recall, mistakes)


def _guarantee(checked: Checked, scores: Scores, rows: Array, goal: AtLeast) -> tuple[Promise, str | None]:
    """The guarantee calibrated on these rows, and why it cannot be given; None where it can."""
    assert goal.confidence is not None
    groups = checked.groups_of(rows)
    curve = fewer_alarms(scores)
    # Only one sequence of rules is tested: argmax before thresholds would be a second try, with a chance of its own.
    made = promise(scores, goal.recall, goal.confidence, rule=curve.sweep.rule, groups=groups, negative=False)
    if made.rule is not None and _finds_no_more(made.rule):
        said = scores.predict()
        hits = tuple(int(((said == index) & (scores.labels == index)).sum()) for index in scores.important)
        return replace(made, rule=Shift(dict.fromkeys(scores.important, 0.0)), hits=hits), None
    if made.rule is not None:
        return replace(made, rule=_short_rule(curve, curve.find(made.rule), checked.kind)), None
    names = [quoted(checked.classes[index]) for index in checked.important]
    few = [f"{name} has {num:,}" for name, num in zip(names, made.num_units, strict=True) if num < made.fewest]
    if few:
        units = "rows" if checked.groups is None else "groups"
        return made, f"it takes at least {made.fewest:,} {units} of a class, and {', '.join(few)}"
    own = scores.labels[:, None] == np.array(checked.important)
    counts = zip(names, (own & np.isneginf(scores.lead)).sum(axis=0), own.sum(axis=0), strict=True)
    stuck = ", ".join(f"{num:,} of {total:,} rows of {name}" for name, num, total in counts if num)
    if not stuck:
        most = ", ".join(f"{hit}/{num}" for hit, num in zip(made.hits, made.num, strict=True))
        why = "the rest are predicted as another important class"
        return made, f"even the largest shift finds only {most}, since {why}"
    decimals = num_decimals(checked.values)
    few_digits = "are whole numbers" if decimals == 0 else f"have {decimals} decimal{'s' * (decimals != 1)}"
    why = "are too extreme" if decimals is None else few_digits
    return made, (
        f"{stuck} have a probability of 0, or so near to it that no factor helps. The probabilities {why}: give "
        "logits, log-probabilities (scikit-learn: predict_log_proba) or more digits"
    )


def _finds_no_more(rule: DecisionRule) -> bool:
    """Whether argmax finds whatever the rule finds, so that what the rule guarantees holds without it."""
    values = rule.values.values()
    if isinstance(rule, Threshold):  # a probability above a half is the largest
        return min(values) >= 0.5
    return not any(values)


def _doubt_empty(checked: Checked) -> None:
    """Warn of classes that are predicted and have no rows: a column may hold something other than scores."""
    counts = np.bincount(checked.logits.argmax(axis=1), minlength=len(checked.classes))
    counts[checked.labels] = 0
    if len(empty := np.flatnonzero(counts)):
        first = int(empty[0])
        more = f" (so with {len(empty) - 1:,} more)" if len(empty) > 1 else ""
        warnings.warn(
            f"{checked.classes[first]!r} is predicted for {counts[first]:,} of {len(checked.labels):,} rows, and no "
            f"row has that label{more}; if its column does not hold the scores of a class, drop it",
            stacklevel=3,
        )


def _doubt_costs(checked: Checked, costs: Array) -> None:
    """Warn of the first mistake that costs less than the right decision: the sign may be wrong."""
    for true, said in np.argwhere(costs < np.diag(costs)[:, None])[:1].tolist():
        name, other = checked.classes[true], checked.classes[said]
        warnings.warn(
            f"in the cost matrix, to predict {other!r} for {name!r} costs {costs[true, said]:g}, less than to be right "
            f"({costs[true, true] + 0.0:g}); check the sign",
            stacklevel=3,
        )


def _refuse_empty(checked: Checked, judged: Array, parts: Sequence[tuple[Array, Array]]) -> None:
    """Refuse important classes without rows to tune on or to judge, and rows of important classes alone."""
    if np.isin(checked.labels[judged], checked.important).all():
        raise InputError(
            f"all {len(judged):,} rows to judge are of important classes, so that no false alarm can be seen; give "
            "rows of the other classes too"
        )
    for index in checked.important:
        own = checked.labels == index
        for purpose, rows in (("judge", judged), *(("tune on", tuning) for tuning, _ in parts)):
            if not own[rows].any():
                where = "" if checked.groups is None else f", in {len(np.unique(checked.groups[own]))} groups,"
                raise InputError(
                    f"important={checked.classes[index]!r} has {own.sum()} rows in all{where} and none to {purpose}; "
                    f"give at least {FEWEST_ROWS}{' in several groups' if where else ''}",
                    argument="important",
                )


def fewer_alarms(scores: Scores) -> Curve:
    """The curve of the rule with fewer false alarms, on average over recalls from a half up.

    Not at the one recall that is wanted: that would pick the rule that is better by chance, and break guarantees.
    """
    curves = [trace(scores, name) for name in ("threshold", "shift")]
    recalls = np.linspace(0.5, max(0.5, min(float(curve.mean_recall[-1]) for curve in curves)), 50)
    reached = [curve.reach(recalls).clip(max=len(curve.value) - 1) for curve in curves]
    alarms = [float(curve.alarms[states].mean()) for curve, states in zip(curves, reached, strict=True)]
    return curves[int(np.argmin(alarms))]


def _point(curve: Curve, state: int) -> Point:
    precision = curve.precision[state]
    return Point(
        float(curve.value[state]),
        float(curve.mean_recall[state]),
        float(curve.accuracy[state]),
        float(curve.alarms[state] / curve.total),
        None if np.isnan(precision).any() else float(precision.mean()),
    )


def _prices(curve: Curve) -> Iterator[Point]:
    """Points of the curve with more recall than now: the most accurate one, then one for each target."""
    first = int(np.searchsorted(curve.mean_recall, curve.before.mean_recall[0] + SLACK))
    if first == len(curve.value):
        return
    last = first - 1
    for state in (first + int(curve.accuracy[first:].argmax()), *map(int, curve.reach(np.array(TARGETS)))):
        # Important classes that are confused with each other stay so: their mean recall ends below 1.
        if last < state < len(curve.value):
            last = state
            yield _point(curve, state)


def _both_rules(scores: Scores, rule: DecisionRule, curve: Curve) -> dict[str, Point]:
    """Each rule at the recall of the advised one on these rows, that one first; empty where they do the same."""
    state = curve.find(rule)
    (other,) = set(RULES) - {rule.name}
    another = trace(scores, other)
    there = int(another.reach(float(curve.mean_recall[state])))
    if there == len(another.value) or np.array_equal(curve.correct, another.correct):
        return {}
    return {rule.name: _point(curve, state), other: _point(another, there)}
