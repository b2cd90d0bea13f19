"""Audit a trained model from its scores: the decision rule that meets a goal, what it changes, and how sure that is.

A rule is tuned on some rows and judged on others: whole groups on one side, every class on both. What a shift will do
to accuracy is predicted from calibrated scores as well as counted.
"""

import heapq
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from camri.auditing.result import (
    SPLIT_SEED,
    Audit,
    ClassResult,
    Comparison,
    Point,
    RowEstimate,
    change_of,
    expect,
    settle,
    share_of,
)
from camri.auditing.scores import Checked, check, num_decimals
from camri.data.listing import to_splits
from camri.decision import (
    CONFIDENCE,
    PRIOR_ROWS,
    RULES,
    SLACK,
    AtLeast,
    Costs,
    Curve,
    DecisionRule,
    Goal,
    LeastCost,
    Prior,
    Promise,
    Shift,
    best_state,
    cost_of,
    parse_goal,
    promise,
    trace,
)
from camri.errors import InputError
from camri.metrics import Array, Scores, divide
from camri.stats import FALL, FEWEST_ROWS, Estimate, Z, design_effect
from camri.text import quoted

SLOPE_SD = 10.0  # of the logits' own spread: it binds only where classes are separable
CONSTANT_SD = 0.5  # without a ridge the constant overfits few rows (docs/log.md)
FEWEST_CALIBRATION_ROWS = 10  # of an important class, and of the others: with fewer nothing is calibrated
MOST_ROWS = 20_000  # enough to fit two numbers; beside more rows the prior hardly counts


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


NUM_FOLDS = 10


def tune_and_judge(checked: Checked, split: Sequence[str] | None) -> tuple[list[tuple[Array, Array]], str]:
    """Pairs of rows to tune on and rows to judge, and a description of them."""
    rows = np.arange(len(checked.labels))
    if split is not None:
        if len(split) != len(rows):
            raise InputError(f"{len(rows):,} rows and {len(split):,} split names do not fit; give one a row", "split")
        words = np.array(to_splits(split, "split"))
        _refuse_torn(checked, words)
        if {"val", "test"} <= set(words.tolist()):
            return [(rows[words == "val"], rows[words == "test"])], "the val rows, judged on the test rows"
        rows = rows[words != "train"]
        if not len(rows):
            raise InputError("every row is of the train split; give val or test rows", argument="split")
    fold = draw_folds(checked.labels[rows], checked.groups_of(rows), checked.important)
    pairs = [(rows[fold != number], rows[fold == number]) for number in np.unique(fold).tolist()]
    units = "rows" if checked.groups is None else "groups"
    return pairs, f"the {units} of all folds but one, judged on that one ({len(pairs)}-fold cross-validation)"


def draw_folds(labels: Array, groups: Array | None, important: Sequence[int] = ()) -> Array:
    """A fold for every row, the same on every machine; every class is in every fold, groups stay whole.

    A group belongs to the important class it has most rows of, or else to the class it has most rows of. The largest
    groups come first, each into the fold with the fewest rows of that class. Without groups every row is one.

    >>> draw_folds(np.array([0, 0, 1, 1, 1]), np.array([7, 7, 8, 9, 9])).tolist()
    [0, 0, 2, 1, 1]
    """
    drawn = np.random.default_rng(SPLIT_SEED)
    units = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1].ravel()
    main, own, size = _describe(units, labels, important)
    fold_of_unit = np.full(len(size), -1)
    for index in np.unique(labels).tolist():
        members = drawn.permutation(np.flatnonzero(main == index))
        members = members[np.argsort(-own[members], kind="stable")]
        fold = fold_of_unit[units]
        here = np.bincount(fold[(fold >= 0) & (labels == index)], minlength=NUM_FOLDS)
        every = np.bincount(fold[fold >= 0], minlength=NUM_FOLDS)
        fullness = list(zip(here.tolist(), every.tolist(), range(NUM_FOLDS), strict=True))
        heapq.heapify(fullness)
        for unit, rows, all_rows in zip(members.tolist(), own[members].tolist(), size[members].tolist(), strict=True):
            least, in_all, number = fullness[0]
            fold_of_unit[unit] = number
            heapq.heapreplace(fullness, (least + rows, in_all + all_rows, number))
    return fold_of_unit[units]


def _describe(units: Array, labels: Array, important: Sequence[int]) -> tuple[Array, Array, Array]:
    """For every unit: the class that it belongs to, how many rows of that class it has, and how many in all."""
    pairs, counts = np.unique(units * (labels.max() + 1) + labels, return_counts=True)
    unit, label = np.divmod(pairs, labels.max() + 1)
    best_last = np.lexsort((-label, counts, np.isin(label, important), unit))
    size = np.bincount(units)
    main, own = np.zeros_like(size), np.zeros_like(size)
    main[unit[best_last]], own[unit[best_last]] = label[best_last], counts[best_last]
    return main, own, size


def _refuse_torn(checked: Checked, words: Array) -> None:
    """Refuse a group in two splits: it would be judged by what it tuned or what the model was trained on."""
    if checked.groups is None:
        return
    first: dict[int, str] = {}
    for group, word in zip(checked.groups.tolist(), words.tolist(), strict=True):
        if first.setdefault(group, word) != word:
            wrong = f"group {checked.group_names[group]!r} has rows in {first[group]} and in {word}"
            raise InputError(f"{wrong}; split by group, or remove its rows from one of them", argument="split")


TARGETS = (0.8, 0.9, 0.95, 0.98, 0.99, 1.0)  # recalls whose cost is shown
MOST_DRAWS, FEWEST_DRAWS, ROWS_DRAWN = 100, 20, 2_000_000  # of rows, to see what tuning does to the figures


def audit(
    scores: ArrayLike,
    labels: ArrayLike,
    important: str | int | Sequence[str | int],
    *,
    classes: Sequence[str] | None = None,
    split: Sequence[str] | None = None,
    groups: ArrayLike | None = None,
    kind: str | None = None,
    max_accuracy_drop: float = 0.0,
    at_least: float | None = None,
    confidence: float = CONFIDENCE,
    cost_matrix: Costs | None = None,
) -> Audit:
    """Find the decision rule that meets a goal for a trained model's important classes, and what it changes.

    scores: (N, C), logits or probabilities (recognised unless `kind` says which), or (S, N, C) of S models of the same
    rows, which then share the rule; labels: names or indices (N,).
    important: one or several classes, which share the rule's value.
    split: "val" or "test" for each row: the rule is tuned on val and judged on test. By default ten folds take turns
    as the judged one, and the rule that is advised is tuned on all rows.
    groups: the patient, film or track of each row (N,). A group is tuned on or judged, never both, and its rows count
    for as many independent rows as they are worth. By default rows count as independent.

    The goal is one of three:
    max_accuracy_drop: the most recall at no more than this loss of accuracy (0.01 is one percentage point), by a shift.
    at_least: a recall to guarantee on new rows, with `confidence`, at the fewest false alarms: by a threshold
    (`camri.decision.promise`), calibrated on all rows, or with a split on those of val.
    cost_matrix: the least mean cost, by either rule: (C, C) numbers or a CSV file, row = true class.

    >>> drawn = np.random.default_rng(0)
    >>> labels = drawn.integers(0, 3, 600)
    >>> scores = drawn.normal(size=(600, 3)) + 2 * np.eye(3)[labels] - [0, 1.5, 0]
    >>> found = audit(scores, labels, "stop", classes=["limit", "stop", "yield"])
    >>> found.kind, found.shift, round(found.recall.value, 2), round(found.accuracy.change.value, 2)
    ('gain', 2.4, 0.43, 0.02)
    """
    checked, split = check(scores, labels, important, classes, kind, groups, split)
    goal = parse_goal(checked.classes, max_accuracy_drop, at_least, cost_matrix, confidence)
    _doubt_empty(checked)
    every = checked.condense()
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
        said[rows] = every.take(rows).predict(tuned.rule if is_cross_fitted else rule)
        moved = rows[said[rows] != now[rows]]
        expected[moved] = tuned.calibration.gain(checked.logits[moved], every.important)
    here = every.take(judged)
    errors = _redraw(checked, final, here, goal) if is_cross_fitted else {}
    figures = _Figures(checked, here, judged, said[judged], here.predict(rule), errors)
    recall, accuracy = figures.recall(), figures.accuracy()
    assert accuracy.change is not None
    seen = change_of(figures.before, figures.after, groups=figures.groups)
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
        false_alarms=figures.false_alarms(),
        precision=tuple(figures.precision(index) for index in every.important),
        cost=cost,
        by_class=tuple(figures.by_class()),
        prices=tuple(_prices(curve, here)),
        both=_both_rules(here, rule, curve),
        scores=here,
        num_groups=None if checked.groups is None else len(checked.group_names),
        guarantee=made,
        refusal=refusal,
    )


@dataclass(frozen=True, eq=False)
class Tuned:
    """A rule, the curve of the rows it was tuned on, how a state of such a curve is chosen, and their calibration."""

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
        curve = min((curve, trace(scores, "threshold")), key=lambda one: float(one.count(costs).min()))

        def choose(curve: Curve) -> int:
            return int(curve.count(costs).argmin())

    else:
        gain = calibration.gain(logits, scores.important)

        def choose(curve: Curve) -> int:
            return _free_state(curve, gain, getattr(goal, "max_accuracy_drop", 0.0))

    return Tuned(written_rule(curve, choose(curve), checked.kind), curve, choose, calibration)


def _free_state(curve: Curve, gain: Array, max_accuracy_drop: float) -> int:
    """The state, from no shift on, with the best recall at the expected accuracy that is allowed.

    The expected accuracy is what the rows show, combined with what calibrated probabilities predict; these count as
    much as 500 rows.
    """
    start = int(np.flatnonzero(curve.value == 0.0)[0])
    prior = Prior(float(curve.accuracy[start]), float(curve.predicted[start].sum() / curve.total), PRIOR_ROWS)
    expected = prior.weigh(curve, len(curve.sweep.scores), gain)
    state = best_state(curve, expected, prior.accuracy - max_accuracy_drop, prior=prior)
    assert state is not None, "no shift keeps the accuracy"
    return state


def written_rule(curve: Curve, state: int, kind: str) -> DecisionRule:
    """The rule of a state, with the shortest number that people can put into their code."""
    is_factor = kind == "probabilities" and curve.sweep.rule == "shift"
    number = curve.number(state, is_factor)
    value = math.log(number) if is_factor else number
    return RULES[curve.sweep.rule](dict.fromkeys(curve.sweep.scores.important, value))


def _redraw(checked: Checked, tuned: Tuned, scores: Scores, goal: Goal) -> dict[str, Array]:
    """How far changes are off on the rows that tuned a rule: by class (B, C), of accuracy, false alarms, cost (B,).

    Rows or groups are drawn, the rule is tuned on them, and its changes there are compared with those on all rows: the
    bootstrap of the optimism (Efron). Intervals that ignored the tuning held the change of false alarms of
    .76 to .95 of made tables (docs/audit.md).
    """
    units = np.arange(len(scores))
    if checked.groups is not None:
        units = np.unique(checked.groups, return_inverse=True)[1].ravel()
    drawn, labels, num_classes = np.random.default_rng(SPLIT_SEED), scores.labels, len(checked.classes)
    costs = cost_of(scores, np.asarray(goal.matrix)) if isinstance(goal, LeastCost) else None
    now, right, alarm = scores.predict(), scores.correct().astype(int), scores.false_alarms().astype(int)
    rows = []
    for _ in range(max(FEWEST_DRAWS, min(MOST_DRAWS, ROWS_DRAWN // len(scores)))):
        times = drawn.poisson(1.0, int(units.max()) + 1)[units].astype(np.float64)
        curve = tuned.curve.sweep.curve(times)
        if not curve.num.all():
            continue  # no row of an important class was drawn
        said = scores.predict(tuned.curve.rule(tuned.choose(curve)))
        change, alarms = scores.is_right(said) - right, scores.is_false_alarm(said) - alarm
        cost = np.zeros(len(labels)) if costs is None else costs(said) - costs(now)
        there, here = (
            divide(np.bincount(labels, change * one, num_classes), np.bincount(labels, one, num_classes))
            for one in (times, np.ones(len(labels)))
        )
        share = times / times.sum() - 1 / len(times)
        rows.append((np.nan_to_num(there - here), change @ share, alarms @ share, cost @ share))
    names = ("classes", "accuracy", "false alarms", "cost")
    return {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


class _Figures:
    """Figures on the judged rows: with the largest score, as judged (`said`), and with the advised rule (`final`).

    With errors of `_redraw`, intervals are those of the advised rule and count that it was tuned on these rows.
    """

    def __init__(
        self, checked: Checked, scores: Scores, rows: Array, said: Array, final: Array, errors: dict[str, Array]
    ):
        self.checked, self.scores, self.rows, self.errors = checked, scores, rows, errors
        self.now, self.said, self.final = scores.predict(), said, final
        self.before, self.after = scores.correct(), scores.is_right(said)
        self.groups = checked.groups_of(rows)

    def _change(
        self, outcome: Callable[[Array], Array], errors: Array | None, own: Array, labels: Array | None = None
    ) -> RowEstimate:
        """The change of an outcome of predictions, over the rows `own`."""
        before, after, final = (outcome(one)[own] for one in (self.now, self.said, self.final))
        groups = None if self.groups is None else self.groups[own]
        change = change_of(before, after, labels, groups)
        if errors is None:
            return change
        return settle(change, change_of(before, final, labels, groups), errors, int(self.scores.num.min()))

    def _compare(self, outcome: Callable[[Array], Array], errors: Array | None, own: Array | None = None) -> Comparison:
        own = np.ones(len(self.now), dtype=bool) if own is None else own
        groups = None if self.groups is None else self.groups[own]
        before, after = (share_of(outcome(one)[own], groups) for one in (self.now, self.said))
        return Comparison(before, after, self._change(outcome, errors, own) if own.any() else None)

    def recall(self) -> RowEstimate:
        """The change of recall, a mean over the important classes."""
        own, errors = np.isin(self.scores.labels, self.scores.important), self.errors.get("classes")
        mean = None if errors is None else errors[:, list(self.scores.important)].mean(axis=1)
        return self._change(self.scores.is_right, mean, own, self.scores.labels[own])

    def accuracy(self) -> Comparison:
        return self._compare(self.scores.is_right, self.errors.get("accuracy"))

    def false_alarms(self) -> Comparison:
        return self._compare(self.scores.is_false_alarm, self.errors.get("false alarms"))

    def precision(self, index: int) -> Comparison:
        called = [np.flatnonzero(one == index) for one in (self.now, self.said)]
        truth, groups = self.scores.labels == index, self.groups
        return Comparison(*(share_of(truth[rows], None if groups is None else groups[rows]) for rows in called))

    def cost(self, matrix: Array) -> tuple[float, float, Estimate]:
        """The mean cost of a row before and after, and its change."""
        costs = cost_of(self.scores, matrix)
        before, after, final = (costs(one) for one in (self.now, self.said, self.final))
        effect = 1.0 if self.groups is None else design_effect(final - before, self.groups)
        centre, sd = float((final - before).mean()), float((final - before).std() * math.sqrt(effect / len(final)))
        if (errors := self.errors.get("cost")) is not None:
            centre, sd = centre - float(errors.mean()), max(sd, float(errors.std(ddof=1)))
        value = float((after - before).mean())
        ends = min(value, centre - Z * sd), max(value, centre + Z * sd)
        return float(before.mean()), float(after.mean()), Estimate(value, *ends)

    def by_class(self) -> Iterator[ClassResult]:
        labels, names = self.scores.labels, self.checked.classes
        largest = self.checked.logits[self.rows].argmax(axis=1)
        for index, name in enumerate(names):
            own = labels == index
            wrong = np.bincount(largest[own & ~self.before], minlength=len(names))
            order = [place for place in np.argsort(-wrong, kind="stable").tolist() if wrong[place]]
            mistakes = tuple((names[place], int(wrong[place])) for place in order[:5])
            errors = self.errors.get("classes")
            recall = self._compare(self.scores.is_right, None if errors is None else errors[:, index], own)
            yield ClassResult(name, index in self.checked.important, recall, mistakes)


def _guarantee(checked: Checked, scores: Scores, rows: Array, goal: AtLeast) -> tuple[Promise, str | None]:
    """The guarantee calibrated on these rows, and why it cannot be given; None where it can."""
    assert goal.confidence is not None
    groups = checked.groups_of(rows)
    made = promise(scores, goal.recall, goal.confidence, rule="shift", groups=groups, negative=False)
    if made.rule is not None and not any(made.rule.values.values()):
        return made, None  # the model has it without a change
    curve = fewer_alarms(scores)
    made = promise(scores, goal.recall, goal.confidence, rule=curve.sweep.rule, groups=groups)
    if made.rule is not None:
        return replace(made, rule=written_rule(curve, curve.find(made.rule), checked.kind)), None
    names = [quoted(checked.classes[index]) for index in checked.important]
    few = [f"{name} has {num:,}" for name, num in zip(names, made.num_units, strict=True) if num < made.fewest]
    if few:
        units = "rows" if checked.groups is None else "groups"
        return made, f"it takes at least {made.fewest:,} {units} of a class, and {', '.join(few)}"
    own = scores.labels[:, None] == np.array(checked.important)
    if not (own & np.isneginf(scores.lead)).any():
        most = ", ".join(f"{hit}/{num}" for hit, num in zip(made.hits, made.num, strict=True))
        return (
            made,
            f"even the largest shift finds only {most}, since the rest are predicted as another important class",
        )
    stuck = ", ".join(
        f"{num:,} of {whole:,} rows of {name}"
        for name, num, whole in zip(names, (own & np.isneginf(scores.lead)).sum(axis=0), own.sum(axis=0), strict=True)
        if num
    )
    decimals = num_decimals(checked.values)
    why = "are too extreme" if decimals is None else f"have {decimals} decimal{'s' * (decimals != 1)}"
    return made, (
        f"{stuck} have a probability of 0, or so near to it that no factor helps. The probabilities {why}: ask the "
        "model for logits or more digits"
    )


def _doubt_empty(checked: Checked) -> None:
    """Warn where no row has the class that is predicted most: its column may hold ages, or the highest score."""
    counts = np.bincount(checked.logits.argmax(axis=1))
    most = int(counts.argmax())
    if not (checked.labels == most).any():
        warnings.warn(
            f"{checked.classes[most]!r} is predicted for {counts[most]:,} of {len(checked.labels):,} rows, and no row "
            "has that label; if its column does not hold the scores of a class, drop it",
            stacklevel=3,
        )


def _refuse_empty(checked: Checked, judged: Array, parts: Sequence[tuple[Array, Array]]) -> None:
    """Refuse important classes without rows to tune on or to judge."""
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

    Not at the one recall that is wanted: that would pick the luckier cut-off, and break a guarantee more often.
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


def _prices(curve: Curve, scores: Scores) -> Iterator[Point]:
    """Points of the curve with more recall than now: the most accurate one, then one for each target."""
    now = float(scores.recall().mean())
    first = int(np.searchsorted(curve.mean_recall, now + SLACK))
    if first == len(curve.value):
        return
    best = first + int(curve.accuracy[first:].argmax())
    last = -1
    for state in (best, *(int(curve.reach(target)) for target in TARGETS)):
        # Important classes that are confused with each other stay so: their mean recall ends below 1.
        if max(last, first - 1) < state < len(curve.value):
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
