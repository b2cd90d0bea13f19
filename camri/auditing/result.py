"""What an audit finds, as values: shares and changes with their intervals, and the audit itself."""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy import special

from camri.decision import BestRecall, DecisionRule, Goal, Promise, Shift
from camri.metrics import Array, Scores
from camri.stats import FALL, FEWEST_GROUPS, Estimate, Z, design_effect, wilson

SPLIT_SEED = 0  # of folds and draws


@dataclass(frozen=True)
class RowEstimate(Estimate):
    """A share of `num` rows, or the change of one, with its 95 % interval.

    hits: rows that count; of a change, rows gained. lost: of a change, rows lost; None for a share.
    num_groups: None where rows count as independent. num_independent: how many independent rows the rows are worth.
    normal: distribution of the true change; None for a share.
    """

    num: int
    hits: int
    lost: int | None = None
    num_groups: int | None = None
    num_independent: float = 0.0
    normal: NormalDist | None = None

    def to_json(self) -> dict[str, Any]:
        if self.lost is not None:
            counts = {"gained": self.hits, "lost": self.lost, "num": self.num}
        else:
            counts = {"hits": self.hits, "num": self.num}
            counts |= {} if self.num_groups is None else {"groups": self.num_groups}
        return {"value": self.value if self.num else None, "low": self.low, "high": self.high, **counts}


def share_of(hit: Array, groups: Array | None = None) -> RowEstimate:
    """The share of bool outcomes (N,) that are true, with its Wilson interval; groups (N,) widen it.

    >>> found = share_of(np.arange(10) < 8)
    >>> found.value, round(found.low, 3), round(found.high, 3), (found.hits, found.num)
    (0.8, 0.49, 0.943, (8, 10))
    """
    hits, num = int(hit.sum()), len(hit)
    num_groups = None if groups is None else len(np.unique(groups))
    if not num:
        return RowEstimate(math.nan, 0.0, 1.0, 0, 0, num_groups=num_groups)
    effect = 1.0 if groups is None else design_effect(hit, groups)
    low, high = wilson(hits / effect, num / effect)
    return RowEstimate(hits / num, low, high, num, hits, num_groups=num_groups, num_independent=num / effect)


def change_of(before: Array, after: Array, labels: Array | None = None, groups: Array | None = None) -> RowEstimate:
    """after − before of bool outcomes (N,); with labels (N,) the mean over classes of their changes.

    Agresti and Min (2005): half a row is added to each of the four kinds of rows, then the interval is Wald's. Where
    no row changed it is still an interval, unlike a bootstrap's. Rows in groups (N,) count as many independent rows as
    their changes are worth (`camri.stats.design_effect`).

    >>> found = change_of(np.array([True] * 8 + [False] * 2), np.array([True] * 9 + [False]))
    >>> found.value, round(found.low, 3), round(found.high, 3), (found.hits, found.lost, found.num)
    (0.1, -0.143, 0.309, (1, 0, 10))
    """
    effect = 1.0 if groups is None else design_effect(after.astype(int) - before, groups, labels)
    gained, lost = after & ~before, before & ~after
    marks = np.zeros(len(before), dtype=int) if labels is None else labels
    values, centres, variances = [], [], []
    for part in (marks == mark for mark in np.unique(marks)):
        values.append((int(gained[part].sum()) - int(lost[part].sum())) / part.sum())
        num, up, down = ((one[part].sum() / effect) for one in (np.ones_like(part), gained, lost))
        num, up, down = num + 2, up + 0.5, down + 0.5
        centres.append((up - down) / num)
        variances.append((up + down - (up - down) ** 2 / num) / num**2)
    centre, sd = float(np.mean(centres)), math.sqrt(sum(variances)) / len(values)
    return RowEstimate(
        float(np.mean(values)),
        max(-1.0, centre - Z * sd),
        min(1.0, centre + Z * sd),
        len(before),
        int(gained.sum()),
        lost=int(lost.sum()),
        num_independent=len(before) / effect,
        normal=NormalDist(centre, sd),
    )


def expect(change: RowEstimate, expected: float, num_rows: int) -> NormalDist:
    """The distribution of the true change, shrunk toward an expected change worth `num_rows` rows.

    Rows that show a gain are more often than not lucky, and their own distribution ignores that. On made tables of 300
    rows that showed a gain, accuracy dropped by more than half a point in 40 %: the rows alone predict 20 %, shrunk
    32 %. Over all such tables the squared error of the prediction falls from .25 to .14 (docs/log.md).
    """
    assert change.normal is not None
    trust = change.num_independent / (change.num_independent + num_rows)
    return NormalDist(trust * change.normal.mean + (1 - trust) * expected, change.normal.stdev)


def settle(change: RowEstimate, final: RowEstimate, errors: Array, num_own: int) -> RowEstimate:
    """The cross-fitted change with an interval for the advised rule, which counts that it was tuned.

    final: the change with the advised rule on the rows it was tuned on. errors (B,): how far that is off where rows are
    drawn and the rule is tuned anew: their mean is what tuning flatters, their spread what it makes uncertain. The
    interval is around the middle between the cross-fitted change and the final one less what flatters it. num_own: rows
    of the rarest important class; tuning rests on them, so the interval is Student's with as many degrees of freedom.
    """
    assert final.normal is not None
    assert change.normal is not None
    corrected = final.normal.mean - float(errors.mean())
    centre, apart = (corrected + change.normal.mean) / 2, abs(corrected - change.normal.mean) / 2
    normal = NormalDist(centre, math.hypot(max(final.normal.stdev, float(errors.std(ddof=1))), apart))
    half = float(special.stdtrit(max(num_own - 1, 1), 0.975)) * normal.stdev
    low, high = centre - half, centre + half
    low, high = max(-1.0, min(low, change.value)), min(1.0, max(high, change.value))
    return replace(change, low=low, high=high, normal=normal)


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
    scores: of the judged rows. tuned_on: how tuning and judging were kept apart. num_models: that share the rule.
    num_groups: None where rows count as independent.
    guarantee: None unless a recall was asked for. Where it cannot be given, `refusal` says why, and everything else is
    as if it had not been asked for.
    """

    classes: tuple[str, ...]
    important: tuple[str, ...]
    scores_are: str
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
    def is_changed(self) -> bool:
        """Whether the advised rule is another than taking the largest score."""
        return self.shift != 0.0

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
            "rows": self.num_rows,
            "rows_judged": self.accuracy.before.num,
            "models": self.num_models,
            "groups": self.num_groups,
            "few_groups": list(self.few_groups),
            "tuned_on": self.tuned_on,
            "max_accuracy_drop": self.max_accuracy_drop,
            "rule": self.rule.to_json(),
            "shift": self.shift,
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
            else {**vars(made), "rule": made.rule and made.rule.to_json(), "refusal": self.refusal},
        }
