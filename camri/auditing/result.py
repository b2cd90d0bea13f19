"""How sure a change is that the same rows show before and after: shares of rows gained and lost.

What an audit finds, as values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from camri.decision import Curve, Guarantee
from camri.metrics import Array
from camri.stats import FALL, design_effect, wilson

LEVEL = 0.95


@dataclass(frozen=True)
class Change:
    """A share of rows after, less before, with its 95 % interval; `gained` and `lost` are the rows that changed.

    worth: how many independent rows the rows count for. centre, sd: of the normal distribution that chances are of.
    """

    estimate: float
    low: float
    high: float
    gained: int
    lost: int
    num: int
    worth: float
    centre: float
    sd: float

    def chance_of_fall(self, epsilon: float = 0.0) -> float:
        """The probability that the true change is below −epsilon."""
        return float(special.ndtr((-epsilon - self.centre) / self.sd))

    def expecting(self, change: float, num_rows: int) -> "Change":
        """The same with chances that weigh an expected change as so many rows; the interval is the rows' own.

        Rows that show a gain were lucky more often than not, and their chance alone does not know that: of made tables
        of 300 rows that showed one, accuracy fell by more than half a point in .40. Rows alone told .20, so they tell
        .32; over all such tables the squared error of the chance falls from .25 to .14 (docs/log.md).
        """
        trust = self.worth / (self.worth + num_rows)
        return replace(self, centre=trust * self.centre + (1 - trust) * change)


def compare_rows(before: Array, after: Array, labels: Array | None = None, groups: Array | None = None) -> Change:
    """after − before of bool outcomes (N,); with labels (N,) the mean over classes of their changes.

    Agresti and Min (2005): half a row is added to each of the four kinds of rows, then the interval is Wald's. Where
    no row changed it is still an interval, which a bootstrap's is not. Rows in groups (N,) count for as many as their
    changes are worth (`camri.stats.design_effect`).

    >>> found = compare_rows(np.array([True] * 8 + [False] * 2), np.array([True] * 9 + [False]))
    >>> found.estimate, round(found.low, 3), round(found.high, 3), (found.gained, found.lost, found.num)
    (0.1, -0.143, 0.309, (1, 0, 10))
    """
    effect = 1.0 if groups is None else design_effect(after.astype(int) - before, groups, labels, LEVEL)
    marks = np.zeros(len(before), dtype=int) if labels is None else labels
    parts = [_part(before[marks == mark], after[marks == mark], effect) for mark in np.unique(marks)]
    gained, lost, num = (sum(column) for column in zip(*((p[0], p[1], p[2]) for p in parts), strict=True))
    estimate = float(np.mean([(one[0] - one[1]) / one[2] for one in parts]))
    centre = float(np.mean([one[3] for one in parts]))
    sd = math.sqrt(sum(one[4] for one in parts)) / len(parts)
    half = float(special.ndtri((1 + LEVEL) / 2)) * sd
    return Change(
        estimate, max(-1.0, centre - half), min(1.0, centre + half), gained, lost, num, num / effect, centre, sd
    )


def _part(before: Array, after: Array, effect: float) -> Sequence[float]:
    """(gained, lost, rows, centre, variance) of one class."""
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    num, up, down = len(before) / effect + 2, gained / effect + 0.5, lost / effect + 0.5
    return gained, lost, len(before), (up - down) / num, (up + down - (up - down) ** 2 / num) / num**2


FEWEST_GROUPS = 10  # with an important class: nine variances of groups tell little about those of other groups


@dataclass(frozen=True)
class Rate:
    """A share, `hits` of `num`, with its Wilson interval; rows in groups count for as many as they are worth."""

    hits: int
    num: int
    num_groups: int | None = None
    effect: float = 1.0

    @staticmethod
    def of(hit: Array, groups: Array | None) -> "Rate":
        """The rate of bool outcomes (N,), which may come in groups (N,)."""
        hits, num = int(hit.sum()), len(hit)
        if groups is None:
            return Rate(hits, num)
        return Rate(hits, num, len(np.unique(groups)), design_effect(hit, groups) if num else 1.0)

    @property
    def value(self) -> float:
        return self.hits / self.num if self.num else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.hits / self.effect, self.num / self.effect) if self.num else (0.0, 1.0)

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        found = {
            "value": self.value if self.num else None,
            "hits": self.hits,
            "num": self.num,
            "low": low,
            "high": high,
        }
        return found if self.num_groups is None else {**found, "groups": self.num_groups}


@dataclass(frozen=True)
class ClassResult:
    """One class's recall as it is and with the shift, on rows that the shift was not tuned on."""

    name: str
    important: bool
    before: Rate
    after: Rate
    change: Change | None  # None without rows
    mistaken_for: tuple[tuple[str, int], ...]  # as it is, the most frequent first


@dataclass(frozen=True)
class Price:
    """The first point of the curve with at least such a recall: on the rows it is shown for, so it is optimistic.

    false_alarms: a share of all rows. precision: the important classes' mean, None where one is never predicted.
    """

    recall: float
    shift: float
    accuracy: float
    false_alarms: float
    precision: float | None


@dataclass(frozen=True)
class Alarms:
    """What is taken for an important class, as it is and with the shift, on rows that the shift was not tuned on.

    before, after: false alarms (of no important class, and taken for one) of all rows. precision: of the rows that are
    taken for each important class those that are of it, (before, after); a class that is never predicted has none.
    """

    before: Rate
    after: Rate
    change: Change
    precision: tuple[tuple[Rate, Rate], ...]


@dataclass(frozen=True)
class Promise:
    """A guarantee, made of the rows to tune on, and what its shift gives on the judged rows.

    recall: of each important class. precision: their mean, None where one is never predicted. false_alarms: of all
    rows. Without a shift that keeps the promise these are the figures of the model as it is.
    """

    guarantee: Guarantee
    recall: tuple[Rate, ...]
    accuracy: Rate
    precision: float | None
    false_alarms: Rate

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self.guarantee),
            "recall": [one.to_json() for one in self.recall],
            "accuracy": self.accuracy.to_json(),
            "precision": self.precision,
            "false_alarms": self.false_alarms.to_json(),
        }


@dataclass(frozen=True, eq=False)
class Audit:
    """What `audit` found.

    shift: what to add to the important classes' scores (their logits, or the logarithms of their probabilities).
    recall, accuracy: the changes that such a shift brings on rows it was not tuned on; recall is the mean over the
    important classes. kind: "gain" where recall surely rises and accuracy does not surely fall, nor probably by more
    than half a point; "none"; or "unknown" where there are too few rows. tuned_on: how tuning and judging were kept
    apart. num_groups: None where rows count as independent. promise: the recall that was asked for, None where none
    was.
    """

    classes: tuple[str, ...]
    important: tuple[str, ...]
    scores_are: str
    num_rows: int
    tuned_on: str
    tolerance: float
    kind: str
    shift: float
    recall: Change
    accuracy: Change
    accuracy_before: Rate
    accuracy_after: Rate
    alarms: Alarms
    by_class: tuple[ClassResult, ...]
    prices: tuple[Price, ...]
    curve: Curve
    num_groups: int | None = None
    promise: Promise | None = None

    @property
    def few_groups(self) -> tuple[ClassResult, ...]:
        """The important classes whose judged rows come from fewer groups than an interval needs."""
        return tuple(
            one
            for one in self.by_class
            if one.important and one.before.num_groups is not None and one.before.num_groups < FEWEST_GROUPS
        )

    def to_json(self) -> dict[str, Any]:
        """Everything but the curve's every state, as plain JSON."""
        return {
            "answer": self.kind,
            "important": list(self.important),
            "scores_are": self.scores_are,
            "rows": self.num_rows,
            "rows_judged": self.accuracy_before.num,
            "groups": self.num_groups,
            "few_groups": [one.name for one in self.few_groups],
            "tuned_on": self.tuned_on,
            "keep_accuracy": self.tolerance,
            "shift": self.shift,
            "accuracy": {
                "before": self.accuracy_before.to_json(),
                "after": self.accuracy_after.to_json(),
                "change": _plain(self.accuracy),
                "chance_of_fall": self.accuracy.chance_of_fall(),
                "chance_of_fall_by_half_a_point": self.accuracy.chance_of_fall(FALL),
            },
            "recall_change": _plain(self.recall),
            "false_alarms": {
                "before": self.alarms.before.to_json(),
                "after": self.alarms.after.to_json(),
                "change": _plain(self.alarms.change),
            },
            "precision": [
                {"name": name, "before": before.to_json(), "after": after.to_json()}
                for name, (before, after) in zip(self.important, self.alarms.precision, strict=True)
            ],
            "classes": [
                {
                    "name": one.name,
                    "important": one.important,
                    "before": one.before.to_json(),
                    "after": one.after.to_json(),
                    "change": None if one.change is None else _plain(one.change),
                    "mistaken_for": dict(one.mistaken_for),
                }
                for one in self.by_class
            ],
            "prices": [vars(one) for one in self.prices],
            "promise": None if self.promise is None else self.promise.to_json(),
        }


def _plain(change: Change) -> dict[str, Any]:
    return {name: getattr(change, name) for name in ("estimate", "low", "high", "gained", "lost", "num")}
