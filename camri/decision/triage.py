"""Three ways out: which rows may skip the person, which raise an alarm, and which are left to a person.

Rows are cleared up to the highest cut-off that surely misses few enough of the class, as a recall is guaranteed. Alarms
are raised above the lowest cut-off whose precision is surely high enough: nested cut-offs are tested from few alarms to
many, and what a test had of the error goes on to the next if it passes (Wiens, 2003).
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from camri.decision.answer import Answer, TradeOff, Workload
from camri.decision.audit import distributions_of, keep_apart, source_of
from camri.decision.compare import Evidence, Judged, Judging, compare, share_to_record
from camri.decision.curve import Curve, Sweep
from camri.decision.goals import AtLeast, FewestToPerson
from camri.decision.guarantee import Calibrator, chance_of_luck, fewest_units
from camri.decision.read import Rows
from camri.decision.rules import PERSON, AnyRule, LowestCost, Threshold, Triage, argmax_of
from camri.decision.scores import REST, Array, Scores
from camri.decision.stats import share_of
from camri.decision.tune import OperatingPoint
from camri.decision.verdict import Verdict
from camri.decision.where import Where
from camri.errors import InputError

MISSES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1)  # promises whose workload is shown
PRECISIONS = (0.5, 0.8, 0.9, 0.95, 0.99)
STEP = 1.05  # of the number of alarms, from one test to the next
SPREAD = 2.0  # every test with twice as many alarms as the last such has a share of the error of its own


class Cut(NamedTuple):
    """A state of the curve and its cut-off."""

    state: int
    value: float


def judge_triage(rows: Rows, goal: FewestToPerson, name: str = "scores", where: Where | None = None) -> Answer:
    """Find both cut-offs, and what they do with the judged rows."""
    where = where or Where()
    if where.prevalence:
        wrong = "prevalence does not go with clear_misses_at_most, whose alarms are tested on rows as frequent as these"
        raise InputError(f"{wrong}; leave it out", argument="prevalence")
    if len(rows.scores.important) != 1:
        wrong = f"{len(rows.scores.important)} classes are important"
        raise InputError(f"{wrong}; rows are cleared and alarms raised for one, so name one", argument="important")
    tuning, judged, fold = keep_apart(rows)
    every = np.arange(len(rows.scores))
    work = Sorter.of(rows, every if fold is not None else every[tuning])
    here = rows.scores if fold is not None else rows.scores.take(every[judged])
    groups = rows.groups if fold is not None or rows.groups is None else rows.groups[every[judged]]
    low = work.clear(goal.found)
    high = work.alarm(goal.alarm_precision, goal.confidence, low)
    rule, guarantee = _rule(work, goal, low, high)
    workload = _workload(rule, here, groups, goal, work, high) if isinstance(rule, Triage) else None
    evidence = _evidence(rule, here, rows.classes, groups)
    is_given = low is not None
    return Answer(
        source=source_of(rows, name, len(here)),
        goal=goal,
        point=_point(rule, work.scores, guarantee),
        evidence=evidence,
        verdict=Verdict("clear_and_alarm" if is_given else "cannot_guarantee", "" if is_given else "not_guaranteed"),
        tuned_on="all" if fold is not None else "split",
        workload=workload,
        trade_offs=tuple(work.trade_offs(goal)),
        drawn=distributions_of(here, rows.classes),
        where=where,
        scores=here,
        labels=rows.labels_as,
    )


class Sorter:
    """Finds cut-offs on rows of one important class.

    units (N,): the independent unit of each row. sites: indices (N,) into names of places; in each few are missed.
    """

    def __init__(self, scores: Scores, units: Array, sites: tuple[Array, Sequence[str]] | None = None):
        self.scores, self.units, self.sites = scores, units, sites
        self.curve: Curve = Sweep(scores, "threshold").curve()
        self.is_alone = int(units.max()) + 1 == len(units)

    @staticmethod
    def of(rows: Rows, chosen: Array) -> "Sorter":
        """The sorter of some rows."""
        units = np.arange(len(chosen))
        if rows.groups is not None:
            units = np.unique(rows.groups[chosen], return_inverse=True)[1]
        sites = None if rows.sites is None else (rows.sites[chosen], rows.site_names)
        return Sorter(rows.scores.take(chosen), units, sites)

    def tester(self, goal: AtLeast) -> Calibrator:
        """The test of a recall."""
        return Calibrator(self.scores, goal, self.units, *(self.sites or ()))

    def clear(self, goal: AtLeast) -> Cut | None:
        """The highest cut-off up to which rows may be cleared; None if no cut-off has the recall."""
        sure = self.tester(goal).is_sure(self.curve)
        return None if not sure.any() else self._cut(int(sure.argmax()))

    def alarm(self, precision: float | None, confidence: float, low: Cut | None) -> Cut | None:
        """The lowest cut-off, not below that of clearing, above which alarms are surely right often enough."""
        if precision is None or low is None:
            return None
        passed = [state for state in self.passed(precision, 1 - confidence) if state <= low.state]
        return self._cut(passed[-1]) if passed else None

    @lru_cache  # noqa: B019 (a sorter lives as long as one answer is made)
    def passed(self, precision: float, error: float) -> tuple[int, ...]:
        """The states whose precision is surely high enough, all of them together with this error.

        The numbers of alarms that are tested, and where the error is spread, do not depend on the labels.
        """
        alarms = self.curve.predicted[:, 0]
        most = int(alarms[-1])
        num_shares = max(1, math.floor(math.log(max(most, 2) / fewest_units(precision, error), SPREAD)) + 1)
        own = error / num_shares
        first = fewest_units(precision, own)
        found: list[int] = []
        carried, at, shares = 0.0, float(first), 0
        while at <= most:
            state = int(np.searchsorted(alarms, math.ceil(at)))
            level = own if shares < num_shares and at >= first * SPREAD**shares else 0.0
            shares += level > 0
            carried += level
            if carried and self._chance(state, precision) <= carried:
                found.append(state)
            else:
                carried = 0.0
            at = max(at * STEP, at + 1)
        return tuple(found)

    def _chance(self, state: int, precision: float) -> float:
        """The chance of so few wrong alarms if fewer than this share of them were right."""
        curve = self.curve
        num = int(curve.predicted[state, 0])
        if self.is_alone:
            return float(chance_of_luck(num - float(curve.hits[state, 0]), num, 1 - precision, True))
        called = np.flatnonzero(curve.sweep.place <= curve.states[state])
        wrong = (self.scores.labels[called] != self.scores.important[0]).astype(np.float64)
        places = np.unique(self.units[called], return_inverse=True)[1]
        sizes = np.bincount(places)
        shares = np.bincount(places, wrong) / sizes
        return float(chance_of_luck(float(shares.sum()), len(sizes), 1 - precision, bool(sizes.max() == 1)))

    def _cut(self, state: int) -> Cut:
        return Cut(state, self.curve.number(state))

    def trade_offs(self, goal: FewestToPerson) -> list[TradeOff]:
        """What is left to a person at other promises."""
        total, found = self.curve.total, []
        for misses in MISSES:
            low = self.clear(AtLeast(1 - misses, goal.confidence))
            cleared = None if low is None else 1 - float(self.curve.predicted[low.state, 0]) / total
            for precision in PRECISIONS:
                high = self.alarm(precision, goal.confidence, low)
                alarms = None if high is None else float(self.curve.predicted[high.state, 0]) / total
                person = None if cleared is None or alarms is None else 1 - cleared - alarms
                found.append(TradeOff(misses, precision, cleared, alarms, person))
        return found


def _rule(work: Sorter, goal: FewestToPerson, low: Cut | None, high: Cut | None) -> tuple[AnyRule, Any]:
    """The rule with its guarantee; argmax and the reason where nothing may be cleared."""
    tester, index, most = work.tester(goal.found), work.scores.important[0], work.curve.hits[-1]
    if low is None:
        return argmax_of((index,)), tester.guarantee(None, work.scores.predict(), most)
    threshold = Threshold({index: low.value})
    rule = Triage({index: low.value}, {index: 1.0 if high is None else high.value})
    return rule, tester.guarantee(threshold, work.scores.predict(threshold), most)


def _workload(
    rule: Triage, here: Scores, groups: Array | None, goal: FewestToPerson, work: Sorter, high: Cut | None
) -> Workload:
    said, index = rule.predict(here), here.important[0]
    own, alarm = here.labels == index, said == index

    def share(hit: Array, among: Array | None = None) -> Any:
        rows = slice(None) if among is None else among
        return share_to_record(share_of(hit[rows], None if groups is None else groups[rows]))

    missing = 0
    if goal.alarm_precision is not None and high is None:
        missing = fewest_units(goal.alarm_precision, 1 - goal.confidence)
    return Workload(
        cleared=share(said == REST),
        alarms=share(alarm),
        person=share(said == PERSON),
        missed=share(said == REST, own),
        precision=share(own, alarm),
        lowest_precision=None if high is None else goal.alarm_precision,
        missing=missing,
    )


def _evidence(rule: AnyRule, here: Scores, classes: Sequence[str], groups: Array | None) -> Evidence:
    """Argmax, and every row that is not cleared as if it were an alarm: its recall is what is guaranteed."""
    index = here.important[0]
    said = here.predict() if not isinstance(rule, Triage) else np.where(rule.predict(here) == REST, REST, index)
    arms = {
        "argmax": Judged.of("as it is", [here], [here.predict()]),
        "tuned": Judged.of("not cleared", [here], [said]),
    }
    return compare(arms, [("tuned", "argmax")], Judging([here], classes, groups), final="tuned")


def _point(rule: AnyRule, scores: Scores, guarantee: Any) -> OperatingPoint:
    """The operating point; figures are of the alarms, recall of what is not cleared."""
    assert not isinstance(rule, LowestCost)
    said, index = rule.predict(scores), scores.important[0]
    own, called = scores.labels == index, said == index
    found = called if not isinstance(rule, Triage) else said != REST
    return OperatingPoint(
        rule=rule,
        has_met=isinstance(rule, Triage),
        recall=(float(found[own].mean()),),
        precision=(float(own[called].mean()) if called.any() else None,),
        accuracy=float(scores.is_right(np.where(said == PERSON, scores.labels, said)).mean()),
        false_alarms=float((called & ~own).mean()),
        cost=None,
        rank=(-float((said == PERSON).mean()),),
        guarantee=guarantee,
    )
