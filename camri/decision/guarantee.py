"""Guarantees: a recall or a budget of alarms that new rows keep, for any number of rows and any scores.

A lower cut-off never misses more of an important class, so cut-offs are tested in order, each at the full error level,
and the first that passes is taken: Tong, Feng and Li (2018) for independent rows, Bates et al. (2021) for groups.
Several classes or places that share a cut-off need no correction: the cut-off is the lowest of those that each of them
asks for, so that if any recall is missed, that of the most demanding one is.

On average over calibration sets a recall takes fewer rows: conformal risk control (Angelopoulos et al., 2024).
A budget of alarms is tested the other way round: from no alarms on, as long as every cut-off passes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy import special

from camri.decision.curve import Curve, Sweep
from camri.decision.goals import AtLeast, Within
from camri.decision.rules import DecisionRule
from camri.decision.scores import Array, Scores

Obstacle = Literal["few_units", "zero_probabilities", "confused_classes"]


@dataclass(frozen=True)
class Place:
    """An important class in one place, such as a hospital: rows found by the rule, of how many, and what is missing."""

    name: str
    important: int
    hits: int
    num: int
    num_units: int
    fewest: int

    @property
    def missing(self) -> int:
        """How many more units it takes at least."""
        return max(0, self.fewest - self.num_units)


@dataclass(frozen=True)
class Guarantee:
    """What new rows keep, and the rule that sees to it; or why none does.

    at_least: the recall asked of each important class; empty for a budget. confidence: None if on average.
    rule: None if there is no guarantee.
    hits, num: rows of each class that the rule finds, of how many; without a rule, the most that any cut-off finds.
    num_units: independent units of each class, rows or groups. fewest: the least number of units that could suffice.
    stuck: rows of each class whose probability is 0, or so near to it that no factor helps.
    places: where the recall is guaranteed in each.
    budget: the share of all rows that may be alarms, or false alarms (`budget_is`).
    """

    at_least: tuple[float, ...]
    confidence: float | None
    rule: DecisionRule | None
    hits: tuple[int, ...]
    num: tuple[int, ...]
    num_units: tuple[int, ...]
    fewest: tuple[int, ...]
    stuck: tuple[int, ...]
    places: tuple[Place, ...] = ()
    budget: float | None = None
    budget_is: str = ""

    @property
    def is_given(self) -> bool:
        """Whether it is guaranteed."""
        return self.rule is not None

    @property
    def missing(self) -> tuple[int, ...]:
        """How many more units of each class it takes at least; 0 where there are enough."""
        return tuple(max(0, least - num) for least, num in zip(self.fewest, self.num_units, strict=True))

    @property
    def obstacle(self) -> Obstacle | None:
        """Why there is no guarantee; None if there is one."""
        if self.is_given:
            return None
        if any(self.missing) or any(one.missing for one in self.places):
            return "few_units"
        return "zero_probabilities" if any(self.stuck) else "confused_classes"


class _Demand(NamedTuple):
    """A recall asked of a class: in one place, or everywhere (None)."""

    place: int  # of the class among the important ones
    recall: float
    rows: Array | None
    name: str


class Calibrator:
    """Tests which states of sweeps have the recall of an `AtLeast` on new rows.

    units (N,): the independent unit of each row. sites (N,): indices into site_names, where each place is asked for.
    """

    def __init__(
        self,
        scores: Scores,
        goal: AtLeast,
        units: Array,
        sites: Array | None = None,
        site_names: Sequence[str] = (),
    ):
        self.scores, self.goal, self.units = scores, goal, units
        self.is_alone = int(units.max()) + 1 == len(units)
        self.sites, self.site_names = sites, tuple(site_names)
        self.level = None if goal.confidence is None else 1 - goal.confidence

    def _demands(self) -> Iterator[_Demand]:
        for place, index in enumerate(self.scores.important):
            recall = self.goal.of(place)
            if self.sites is None:
                yield _Demand(place, recall, None, "")
                continue
            own = self.scores.labels == index
            for site in np.unique(self.sites[own]).tolist():
                yield _Demand(place, recall, own & (self.sites == site), self.site_names[site])

    def is_sure(self, curve: Curve, times: Array | None = None) -> Array:
        """The states that every demand passes: bool (K,)."""
        sure = np.ones(len(curve.states), dtype=bool)
        for demand in self._demands():
            missed, num, is_whole = self._missed(curve, demand, times)
            if not num:
                return np.zeros(len(curve.states), dtype=bool)
            if self.level is None:
                sure &= missed + 1 <= (1 - demand.recall) * (num + 1) + 1e-9
            else:
                sure &= missed <= _most_missed(num, 1 - demand.recall, is_whole, self.level, missed)
        return sure

    def _missed(self, curve: Curve, demand: _Demand, times: Array | None) -> tuple[Array, int, bool]:
        """Missed units of a demand in each state (K,), the number of units, and whether every row is one."""
        if self.is_alone and demand.rows is None and curve.counts.table.dtype.kind == "i":
            num = int(curve.num[demand.place])
            return num - curve.hits[:, demand.place], num, True
        index = self.scores.important[demand.place]
        weight, num, is_whole = self._units_of(demand, times)
        found = (weight > 0) & (_winners(curve.sweep) == index)
        return np.maximum(weight.sum() - curve.sums(found.astype(np.float64), weight), 0.0), num, is_whole

    def _units_of(self, demand: _Demand, times: Array | None = None) -> tuple[Array, int, bool]:
        """Weight of each row of a demand (N,), the number of independent units, and whether every row is one."""
        own = self.scores.labels == self.scores.important[demand.place] if demand.rows is None else demand.rows
        sizes = np.bincount(self.units[own])
        weight = np.zeros(len(own))
        weight[own] = 1.0 / sizes[self.units[own]]
        if times is not None:
            weight = weight * times
        return weight, round(float(weight.sum())), bool(sizes.max(initial=0) == 1)

    def guarantee(self, rule: DecisionRule | None, said: Array, most: Array) -> Guarantee:
        """The guarantee of a rule with its predictions (N,), or its absence; most: the most that any cut-off finds."""
        scores = self.scores
        asked = tuple(self.goal.of(place) for place in range(len(scores.important)))
        stuck = np.isneginf(scores.lead) & (scores.labels[:, None] == np.array(scores.important))
        hits = scores.hits_of(said) if rule is not None else most
        whole = [_Demand(place, recall, None, "") for place, recall in enumerate(asked)]
        num = scores.num.tolist()
        return Guarantee(
            at_least=asked,
            confidence=self.goal.confidence,
            rule=rule,
            hits=tuple(map(int, hits.tolist())),
            num=tuple(num),
            num_units=tuple(num if self.is_alone else (self._units_of(one)[1] for one in whole)),
            fewest=tuple(fewest_units(recall, self.level) for recall in asked),
            stuck=tuple(stuck.sum(axis=0).tolist()),
            places=tuple(self._places(said)) if self.sites is not None else (),
        )

    def _places(self, said: Array) -> Iterator[Place]:
        """Every class in every place, the one with the lowest recall first."""
        found = []
        for demand in self._demands():
            index, rows = self.scores.important[demand.place], demand.rows
            assert rows is not None
            hits, num = int(np.count_nonzero(said[rows] == index)), int(np.count_nonzero(rows))
            least = fewest_units(demand.recall, self.level)
            found.append(Place(demand.name, index, hits, num, self._units_of(demand)[1], least))
        return iter(sorted(found, key=lambda one: (-one.missing, one.hits / one.num)))


class BudgetTester:
    """Tests which states keep the budget of a `Within` on new rows.

    prevalence: the share of rows that are important where the rule will run; None: as in these rows.
    """

    def __init__(self, scores: Scores, goal: Within, units: Array, prevalence: float | None = None):
        self.scores, self.goal, self.units, self.prevalence = scores, goal, units, prevalence
        self.is_other = ~np.isin(scores.labels, scores.important)
        self.level = 1 - goal.confidence

    def is_sure(self, curve: Curve, times: Array | None = None) -> Array:
        """The states, from no alarms on, that pass as all before them do: bool (K,)."""
        del times  # a budget has no bootstrap of its own
        share, confidence = self.goal.share, self.goal.confidence
        is_all = self.goal.alarms is not None
        if self.prevalence is None:
            passes = self._passes(curve, np.full(len(curve.states), share), self.level, everyone=is_all)
        else:
            allowed = np.full(len(curve.states), share)
            level = self.level
            if is_all:  # the alarms that are right are bounded too
                level = self.level / 2
                allowed = allowed - self.prevalence * self._most_recall(curve, 1 - (1 - confidence) / 2)
            limit = allowed / (1 - self.prevalence)
            passes = self._passes(curve, limit, level, everyone=False)
        return np.logical_and.accumulate(passes)

    def _passes(self, curve: Curve, limit: Array, level: float, everyone: bool) -> Array:
        """Whether the share of alarms, of all rows or of the others, is surely below its limit (K,)."""
        among = np.ones(len(self.scores), dtype=bool) if everyone or self.prevalence is None else self.is_other
        counted = among if everyone else self.is_other
        sizes = np.bincount(self.units[among])
        weight = np.zeros(len(among))
        weight[among] = 1.0 / sizes[self.units[among]]
        num = int((sizes > 0).sum())
        alarms = curve.sums(counted.astype(np.float64), weight)
        chance = np.ones(len(limit))
        known = (limit > 0) & (limit < 1)
        whole = bool(sizes.max(initial=0) == 1)
        chance[known] = chance_of_luck(alarms[known], num, limit[known], whole)
        chance[limit >= 1] = 0.0
        return np.asarray(chance <= level)

    def _most_recall(self, curve: Curve, confidence: float) -> Array:
        """An upper bound of the recall in each state: (K,). Groups count as one row each."""
        own = ~self.is_other
        sizes = np.bincount(self.units[own])
        num = int((sizes > 0).sum())
        weight = np.zeros(len(own))
        weight[own] = 1.0 / sizes[self.units[own]]
        hits = np.minimum(np.ceil(curve.sums(own.astype(np.float64), weight) - 1e-9), num)
        return np.where(hits >= num, 1.0, special.betaincinv(hits + 1, np.maximum(num - hits, 1e-300), confidence))

    def guarantee(self, rule: DecisionRule | None, said: Array, most: Array) -> Guarantee:
        """The guarantee of a rule with its predictions (N,), or its absence."""
        hits = self.scores.hits_of(said) if rule is not None else most
        units = len(np.unique(self.units[self.is_other]))
        level, limit = self.level, self.goal.share
        if self.prevalence is not None:
            level = self.level / (2 if self.goal.alarms is not None else 1)
            limit = min(limit / (1 - self.prevalence), 0.999)
        least = math.ceil(math.log(level) / math.log1p(-limit))
        return Guarantee(
            at_least=(),
            confidence=self.goal.confidence,
            rule=rule,
            hits=tuple(map(int, hits.tolist())),
            num=tuple(self.scores.num.tolist()),
            num_units=(units,),
            fewest=(least,),
            stuck=(),
            budget=self.goal.share,
            budget_is="alarms" if self.goal.alarms is not None else "false_alarms",
        )


def fewest_units(recall: float, level: float | None) -> int:
    """The least number of units of a class that can show a recall, all of them found; level None: on average.

    >>> fewest_units(0.9, 0.05), fewest_units(0.95, 0.05), fewest_units(0.95, None)
    (29, 59, 19)
    """
    if level is None:
        return math.ceil(recall / (1 - recall) - 1e-9)
    return math.ceil(math.log(level) / math.log(recall))


def _winners(sweep: Sweep) -> Array:
    return np.array(sweep.scores.important)[sweep.winner]


def _most_missed(num: int, share: float, is_whole: bool, level: float, missed: Array) -> float:
    """The most misses of those in a curve, which never rise along it, that pass the test; −1 if none do."""
    values = np.unique(missed)
    low, high = 0, len(values)  # the chance of luck rises with the misses
    while low < high:
        middle = (low + high) // 2
        passes = chance_of_luck(values[middle], num, share, is_whole) <= level
        low, high = (middle + 1, high) if passes else (low, middle)
    return float(values[low - 1]) if low else -1.0


def chance_of_luck(missed: Array | float, num: int, share: Array | float, is_whole: bool) -> Array:
    """An upper bound on the p-value: the chance of so few misses in `num` units if the true share is `share` or more.

    missed: the number of missed units if each is missed or not (exact, the binomial's tail); else the sum of the missed
    share of each unit (the smaller of Hoeffding's and Bentkus's bounds).

    >>> chance_of_luck(np.array([0, 1]), 59, 0.05, True).round(4).tolist()
    [0.0485, 0.1991]
    >>> chance_of_luck(np.array([0, 0.5]), 59, 0.05, False).round(4).tolist()
    [0.0485, 0.1988]
    """
    if is_whole:
        return _binomial(np.rint(missed), num, share)
    mean = np.minimum(np.asarray(missed) / num, share)
    exponent = special.rel_entr(mean, share) + special.rel_entr(1 - mean, 1 - share)
    bentkus = math.e * _binomial(np.ceil(np.asarray(missed) - 1e-9), num, share)
    return np.minimum(np.exp(-num * exponent), bentkus)


def _binomial(most: Array, num: int, share: Array | float) -> Array:
    """The chance of at most so many of `num`: the binomial's tail, without scipy.stats, whose import takes 0.7 s."""
    return np.where(most >= num, 1.0, special.betainc(np.maximum(num - most, 1e-300), most + 1, 1 - share))
