"""Check a saved decision on new rows: does it find what was promised, does it raise as many alarms, have scores moved?

One look is an exact test. For rows that arrive over time a betting process keeps the error of all looks together
(Waudby-Smith and Ramdas, 2024; Ville's inequality), whenever one looks and stops.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from camri.decision import record
from camri.decision.answer import Answer, Distribution, load_answer
from camri.decision.compare import Arm, Change, Share, share_to_record
from camri.decision.guarantee import chance_of_luck
from camri.decision.joining import recode
from camri.decision.read import Rows, read
from camri.decision.rules import PERSON, AnyRule, LowestCost, Threshold, Triage
from camri.decision.scores import Array, Scores, exact
from camri.decision.stats import share_of, wilson
from camri.decision.verdict import ERROR, Standing, Verdict, conclude_check
from camri.errors import InputError
from camri.files import checksum, replacing

MARGIN = 0.05  # of recall: "holds" means that it is surely not lower than was promised by more than this
MOST_LISTED = 100  # rows to label first
STEPS, GROWTH = 16, 1.3  # shares of misses that are bet on: m, 1.3 m, 1.69 m, … for a promised share of m


@dataclass(frozen=True)
class ClassCheck:
    """What became of one important class.

    recall: on the new rows. floor: the recall that it is tested against: what was guaranteed, else the lower end of
    what was expected. expected: the recall when the decision was made. p: chance of so few hits at the floor.
    missed, num: units (rows or groups), of all looks together; p, p_near and evidence are of these.
    p_near: chance of so many, or more, at the floor less the margin. evidence: by betting, with `since`.
    """

    name: str
    recall: Share
    floor: float
    is_guaranteed: bool
    expected: float | None
    missed: float
    num: int
    p: float
    p_near: float
    evidence: float | None = None


@dataclass(frozen=True)
class Drift:
    """How far the probability of the important class has moved, for all rows ("") or those of a class.

    distance: the largest difference of the two distribution functions (Kolmogorov and Smirnov). is_higher: whether the
    scores are higher than they were.
    """

    name: str
    distance: float
    p: float
    is_higher: bool


@dataclass(frozen=True)
class Check:
    """Whether a decision still does what was promised.

    verdict: "holds", "broken" or "cannot_tell", with how many rows of the class to label. alarms: share of rows that
    are predicted as an important class; precision: of these, how many are right; each with its value when the decision
    was made, and the difference. label_first: rows nearest to the cut-off. looks: how many `since` has counted.
    """

    decision: str
    name: str
    verdict: Verdict
    num_rows: int
    num_groups: int | None
    classes: tuple[ClassCheck, ...]
    alarms: Share
    alarms_then: Share
    alarms_change: Change
    precision: Share | None
    precision_then: Share
    precision_change: Change | None
    drift: tuple[Drift, ...]
    label_first: tuple[int, ...]
    margin: float = MARGIN
    looks: int | None = None
    is_repeated: bool = False

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON."""
        return dict(record.to_json(self))

    def __str__(self) -> str:
        from importlib import import_module

        return str(import_module("camri.report.words").check_text(self))


def check(
    answer: Answer | str | Path,
    scores: ArrayLike,
    labels: Any = None,
    *,
    groups: Any = None,
    since: str | Path | None = None,
    margin: float = MARGIN,
) -> Check:
    """Check on new rows that a decision still finds what was promised.

    Parameters
    ----------
    answer : Answer or path
        What `audit` returned, or the file that `Answer.save` or `camri audit --save` wrote.
    scores : array or data frame (N, C)
        Of the same kind and classes as those that were audited.
    labels : array (N,), optional
        Names or indices. Without them the answer says which rows to label first.
    groups : array (N,), optional
        The patient, film or track of each row.
    since : path, optional
        A file that keeps the counts of all looks. Then the chance that a decision that holds is ever called broken is
        5 % over any number of looks. Rows that were counted before are not counted again.
    margin : float
        "Holds" means that recall is surely not lower than was promised by more than this.

    Returns
    -------
    Check
        `verdict.kind` is "holds", "broken" or "cannot_tell"; `print` shows it in sentences.

    Examples
    --------
    >>> from camri.decision import audit
    >>> drawn = np.random.default_rng(0)
    >>> labels = drawn.integers(0, 2, 4000)
    >>> scores = drawn.normal(size=(4000, 2)) + 1.5 * np.eye(2)[labels]
    >>> found = audit(scores[:2000], labels[:2000], 1, at_least=0.95)
    >>> check(found, scores[2000:], labels[2000:]).verdict.kind
    'holds'
    >>> check(found, scores[2000:] + [0.5, 0], labels[2000:]).verdict.kind
    'broken'
    """
    known = answer if isinstance(answer, Answer) else load_answer(answer)
    source = known.source
    if labels is None:
        if since is not None:
            raise InputError(f"since={str(since)!r} counts labelled rows; give labels too", argument="since")
        return check_unlabelled(known, scores)
    options = {"classes": list(source.classes), "kind": source.scores_are, "groups": groups}
    needs_table = isinstance(rule_of(known)[0], LowestCost)
    rows = read(scores, labels, list(source.names), keeps_table=needs_table, **options)
    return check_rows(known, rows, since=since, margin=margin)


def check_rows(
    answer: Answer, rows: Rows, name: str = "scores", since: str | Path | None = None, margin: float = MARGIN
) -> Check:
    """Check a decision on rows that were read."""
    if not 0 < margin < 1:
        raise InputError(f"margin={margin!r} is not allowed; give 0 to 1, 0.05 for five points of recall", "margin")
    if rows.kind != answer.source.scores_are:
        wrong = f"{name} has {rows.kind}, and the decision was made for {answer.source.scores_are}"
        raise InputError(f"{wrong}; give the same kind", argument="scores")
    rows = recode(rows, answer.source.classes, name, "the decision")
    rule, then = rule_of(answer)
    said = _predict(rule, rows)
    missed, num, is_whole = _missed(rows, said)
    floors = _floors(answer, then)
    state = None if since is None else _look(Path(since), rule, floors, rows, missed, num)
    if state is not None:
        missed, num = state.totals
    own = tuple(
        _check_class(
            place, answer, rows, said, floors[place], then, float(missed[place]), float(num[place]), is_whole, margin
        )
        for place in range(len(floors))
    )
    if state is not None:
        own = tuple(replace(one, evidence=float(e)) for one, e in zip(own, state.evidence(), strict=True))
        is_broken = bool(max(state.highest) >= len(own) / ERROR)
    else:
        is_broken = min(one.p for one in own) <= ERROR / len(own)
    verdict = conclude_check(
        Standing(is_broken, all(one.p_near <= ERROR for one in own)),
        max(_more_rows(one, int(n), is_whole, margin) for one, n in zip(own, num, strict=True)),
    )
    alarm = np.isin(said, rows.scores.important)
    right = (said == rows.scores.labels)[alarm]
    alarms = share_to_record(share_of(alarm, rows.groups))
    precision = share_to_record(share_of(right, None if rows.groups is None else rows.groups[alarm]))
    alarms_then, precision_then = _alarms_then(answer, then)
    return Check(
        decision=answer.source.name,
        name=name,
        verdict=verdict,
        num_rows=len(rows.scores),
        num_groups=None if rows.groups is None else len(np.unique(rows.groups)),
        classes=own,
        alarms=alarms,
        alarms_then=alarms_then,
        alarms_change=_apart(alarms, alarms_then),
        precision=precision,
        precision_then=precision_then,
        precision_change=_apart(precision, precision_then) if precision.num and precision_then.num else None,
        drift=tuple(_drifts(answer, rows.scores, True)),
        label_first=(),
        margin=margin,
        looks=None if state is None else len(state.looks),
        is_repeated=state is not None and state.is_repeated,
    )


def check_unlabelled(answer: Answer, scores: ArrayLike, name: str = "scores") -> Check:
    """What rows without labels tell: the share of alarms, whether scores have moved, and which rows to label first."""
    table = answer._shares(scores)
    rows = exact(table, np.zeros(len(table), dtype=np.int64), answer.source.important, answer.source.scores_are)
    rule, then = rule_of(answer)
    said = rule.predict(table, answer.source.scores_are)
    alarms = share_to_record(share_of(np.isin(said, answer.source.important)))
    alarms_then, precision_then = _alarms_then(answer, then)
    order = np.argsort(distance_to_cut_off(rule, rows, table, answer.source.scores_are), kind="stable")
    none = Share(None, 0, 0)
    own = tuple(
        ClassCheck(one, none, floor, _has_floor(answer), then.recalls[place].value, 0.0, 0, 1.0, 1.0)
        for place, (one, floor) in enumerate(zip(answer.source.names, _floors(answer, then), strict=True))
    )
    return Check(
        decision=answer.source.name,
        name=name,
        verdict=replace(
            conclude_check(Standing(False, False), max(_more_rows(one, 0, True, MARGIN) for one in own)),
            reason="no_labels",
        ),
        num_rows=len(table),
        num_groups=None,
        classes=own,
        alarms=alarms,
        alarms_then=alarms_then,
        alarms_change=_apart(alarms, alarms_then),
        precision=None,
        precision_then=precision_then,
        precision_change=None,
        drift=tuple(_drifts(answer, rows, False)),
        label_first=tuple(order[:MOST_LISTED].tolist()),
    )


def rule_of(answer: Answer) -> tuple[AnyRule, Arm]:
    """The rule that an answer advises, and the figures that were expected of it."""
    if answer.made is not None:
        return answer.made.handed.rule, answer.made.handed.after
    name = answer.evidence.arms[0].name
    if answer.candidates:
        name = answer.advised.name
    elif answer.is_advised:
        name = answer.evidence.final
    arm = answer.evidence.arm(name)
    assert arm is not None
    return answer.rule, arm


def distance_to_cut_off(rule: AnyRule, rows: Scores, table: Array, kind: str) -> Array:
    """How far each row is from another prediction, in log-odds or in expected cost: (N,)."""
    if isinstance(rule, LowestCost):
        known = table if kind == "logits" else np.log(np.maximum(table, np.finfo(np.float64).tiny))
        costs = np.sort(rule.probabilities(known) @ np.array(rule.matrix), axis=1)
        return np.asarray(costs[:, 1] - costs[:, 0])
    values = np.array(list(rule.values.values()))
    if isinstance(rule, Triage):
        values = np.array([*rule.values.values(), *rule.alarms.values()])
    elif not isinstance(rule, Threshold):
        return np.abs(np.asarray(rows.shifted(values))).min(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(special.logit(rows.probabilities()) - special.logit(values))
    return np.nan_to_num(apart, nan=0.0).min(axis=1)


def _predict(rule: AnyRule, rows: Rows) -> Array:
    if not isinstance(rule, LowestCost):
        return rule.predict(rows.scores)
    assert rows.table is not None
    return rule.predict(rows.table)


def _is_found(said: Array, index: int) -> Array:
    """Whether rows of a class are predicted as it, or left to a person."""
    return np.asarray((said == index) | (said == PERSON))


def _floors(answer: Answer, then: Arm) -> tuple[float, ...]:
    """The recall of each important class that is tested: guaranteed, else the lower end of what was expected."""
    if _has_floor(answer) and answer.guarantee is not None:
        return answer.guarantee.at_least
    return tuple(max(0.01, _ends(one)[0]) for one in then.recalls)


def _has_floor(answer: Answer) -> bool:
    """Whether a recall is guaranteed with a confidence, not on average or within a budget of alarms."""
    made = answer.guarantee
    return answer.is_guaranteed and made is not None and made.confidence is not None and bool(made.at_least)


def _ends(one: Share) -> tuple[float, float]:
    if one.low is not None and one.high is not None:
        return one.low, one.high
    return wilson(one.hits, one.num) if one.num else (0.0, 1.0)


def _missed(rows: Rows, said: Array) -> tuple[Array, Array, bool]:
    """Missed units of each important class (I,), units of each (I,), and whether every row is a unit."""
    missed, num = [], []
    for index in rows.scores.important:
        own = rows.scores.labels == index
        wrong = (~_is_found(said[own], index)).astype(np.float64)
        if rows.groups is None:
            missed.append(wrong.sum())
            num.append(float(own.sum()))
            continue
        places = np.unique(rows.groups[own], return_inverse=True)[1]
        sizes = np.bincount(places)
        missed.append(float((np.bincount(places, wrong) / sizes).sum()) if len(sizes) else 0.0)
        num.append(float(len(sizes)))
    return np.array(missed), np.array(num), rows.groups is None


def _check_class(
    place: int, answer: Answer, rows: Rows, said: Array, floor: float, then: Arm, missed: float, num: float,
    is_whole: bool, margin: float,
) -> ClassCheck:  # fmt: skip
    index = rows.scores.important[place]
    own = rows.scores.labels == index
    recall = share_to_record(share_of(_is_found(said[own], index), None if rows.groups is None else rows.groups[own]))
    count = round(num)
    return ClassCheck(
        answer.source.names[place],
        recall,
        floor,
        _has_floor(answer),
        then.recalls[place].value,
        missed,
        count,
        p=float(chance_of_luck(num - missed, count, floor, is_whole)) if count else 1.0,
        p_near=_chance_near(missed, count, floor, is_whole, margin),
    )


def _chance_near(missed: float, num: int, floor: float, is_whole: bool, margin: float) -> float:
    """The chance of so few misses if recall were the floor less the margin."""
    share = min(1 - floor + margin, 1 - 1e-9)
    return float(chance_of_luck(missed, num, share, is_whole)) if num else 1.0


def _more_rows(one: ClassCheck, num: int, is_whole: bool, margin: float) -> int:
    """Rows of a class to label until "holds" is probable (84 %), if recall is as expected."""
    rate = 1 - max(one.expected or 0.0, one.floor)

    def passes(total: int) -> bool:
        misses = math.ceil(total * rate + math.sqrt(total * rate * (1 - rate)))
        return _chance_near(misses, total, one.floor, is_whole, margin) <= ERROR

    low, high = 1, 2
    while not passes(high) and high < 2**24:
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle + 1, high)
    return high - num if high > num else max(num, 10)


def _alarms_then(answer: Answer, then: Arm) -> tuple[Share, Share]:
    """The share of rows that were predicted as important when the decision was made, and how many of them rightly."""
    if answer.workload is not None:
        return answer.workload.alarms, answer.workload.precision
    if answer.where.prevalence:
        return _alarms_there(answer, then)
    num, total = sum(one.num for one in then.precisions), then.accuracy.num
    hits = sum(one.hits for one in then.precisions)
    return (
        Share(num / total, num, total, *wilson(num, total)),
        Share(hits / num if num else None, hits, num, *(wilson(hits, num) if num else (0.0, 1.0))),
    )


def _alarms_there(answer: Answer, then: Arm) -> tuple[Share, Share]:
    """As `_alarms_then`, where the classes are as frequent as was said; the counts are those of the audited rows."""
    known = zip(answer.source.important, then.recalls, strict=True)
    total, num = then.accuracy.num, sum(one.num for one in then.precisions)
    shares = [(answer.where.prevalence.get(index, one.num / total), one) for index, one in known]
    right = sum(share * (one.value or 0.0) for share, one in shares)
    wrong = then.false_alarms.value or 0.0
    lower, upper = (
        math.hypot(*(share * abs((one.value or 0.0) - _ends(one)[end]) for share, one in shares)) for end in (0, 1)
    )
    least, most = _ends(then.false_alarms)
    value = right + wrong
    down, up = math.hypot(lower, wrong - least), math.hypot(upper, most - wrong)
    alarms = Share(value, num, total, max(value - down, 0.0), min(value + up, 1.0))
    hits = sum(one.hits for one in then.precisions)
    if not value:
        return alarms, Share(None, hits, num)
    low = (right - lower) / (right - lower + most)
    high = (right + upper) / (right + upper + least)
    return alarms, Share(right / value, hits, num, low, high)


def _apart(now: Share, then: Share) -> Change:
    """The difference of two shares of different rows with Newcombe's interval."""
    assert now.value is not None
    assert then.value is not None
    (low, high), (low_then, high_then) = _ends(now), _ends(then)
    value = now.value - then.value
    down = math.hypot(now.value - low, high_then - then.value)
    return Change(value, value - down, value + math.hypot(high - now.value, then.value - low_then))


def _drifts(answer: Answer, scores: Scores, has_labels: bool) -> list[Drift]:
    """What moved: all rows, and with labels those of each important class. It is told, and decides nothing."""
    best = scores.probabilities().max(axis=1)
    parts = {"": best}
    if has_labels:
        own = zip(answer.source.names, scores.important, strict=True)
        parts |= {name: best[scores.labels == index] for name, index in own}
    return [drift_of(name, values, answer.drawn[name]) for name, values in parts.items()
            if name in answer.drawn and len(values)]  # fmt: skip


def drift_of(name: str, values: Array, then: Distribution) -> Drift:
    """Kolmogorov and Smirnov's test of values (N,) against a distribution that is known at its quantiles.

    Seen at the quantiles alone, the distance is a lower bound, so p is rather too large.

    >>> same = np.random.default_rng(0).normal(size=4000)
    >>> then = Distribution.of(same[:2000])
    >>> drift_of("", same[2000:], then).p > 0.05, drift_of("", same[2000:] + 0.2, then).p < 0.001
    (True, True)
    """
    ordered, knots = np.sort(values), np.array(then.quantiles)
    steps = np.linspace(0, 1, len(knots))
    up_to = np.searchsorted(ordered, knots, side="right") / len(ordered)
    below = np.searchsorted(ordered, knots, side="left") / len(ordered)
    higher, lower = float((steps - up_to).max()), float((below - steps).max())
    distance = max(higher, lower, 0.0)
    worth = len(values) * then.num / (len(values) + then.num)
    return Drift(name, distance, float(special.kolmogorov(math.sqrt(worth) * distance)), higher >= lower)


# ---- rows that arrive over time


@dataclass(frozen=True)
class Look:
    """The counts of one look: missed units and units of each important class, and a checksum of its rows."""

    missed: tuple[float, ...]
    num: tuple[float, ...]
    rows: int


@dataclass(frozen=True)
class Watch:
    """What a decision was watched for, and all looks at it. highest: evidence against each recall, so far."""

    rule: Mapping[str, Any]
    floors: tuple[float, ...]
    looks: tuple[Look, ...] = ()
    highest: tuple[float, ...] = ()
    format: int = 1
    is_repeated: bool = False

    @property
    def totals(self) -> tuple[Array, Array]:
        """Missed units and units of each class, of all looks."""
        return (
            np.sum([one.missed for one in self.looks], axis=0),
            np.sum([one.num for one in self.looks], axis=0),
        )

    def evidence(self) -> Array:
        """The wealth of the bets against each class's recall now: (I,)."""
        missed, num = (np.array([getattr(one, name) for one in self.looks]) for name in ("missed", "num"))
        return np.array([wealth(missed[:, k], num[:, k], floor) for k, floor in enumerate(self.floors)])

    def add(self, look: Look) -> "Watch":
        """The watch with one look more; one at the same rows changes nothing."""
        if any(one.rows == look.rows for one in self.looks):
            return replace(self, is_repeated=True)
        found = replace(self, looks=(*self.looks, look))
        now = found.evidence().tolist()
        before = self.highest or (0.0,) * len(now)
        return replace(found, highest=tuple(max(one, two) for one, two in zip(before, now, strict=True)))


def wealth(missed: Array, num: Array, floor: float) -> float:
    """What bets against a recall of at least `floor` have made of 1 after these looks (L,).

    It has a mean of at most 1 at every look if the recall is kept, and so exceeds 20 with a chance of at most 5 % over
    all looks together. Half of the stake is bet from the first look on, the rest from each later look k with a share of
    1 / (k (k + 1)): a drop that comes late is seen too. Each bet is spread over shares of misses up to 1; of units that
    are missed in part, which makes the bet grow less, the mean stays below 1.

    >>> [wealth(np.array([missed]), np.array([100.0]), 0.95) > 20 for missed in (5.0, 20.0)]
    [False, True]
    """
    share = min(max(1 - floor, 1e-6), 1 - 1e-6)
    bets = np.minimum(share * GROWTH ** np.arange(1, STEPS + 1), (share + 3) / 4)
    # Counts from each start on: (L,) cumulated from the end.
    lost = np.cumsum(missed[::-1])[::-1][:, None]
    kept = np.cumsum((num - missed)[::-1])[::-1][:, None]
    grown = lost * np.log(bets / share) + kept * np.log((1 - bets) / (1 - share))
    start = np.arange(1, len(missed))
    stakes = np.concatenate([[0.5], 0.5 / (start * (start + 1))])
    with np.errstate(over="ignore"):
        return float(stakes @ np.exp(grown).mean(axis=1) + 0.5 / len(missed))


def _look(path: Path, rule: AnyRule, floors: tuple[float, ...], rows: Rows, missed: Array, num: Array) -> Watch:
    """Add a look to the file, whole or not at all, and return what it holds then."""
    content = [np.ascontiguousarray(part) for part in (rows.scores.lead, rows.scores.labels)]
    look = Look(tuple(missed.tolist()), tuple(num.tolist()), checksum(*content))
    state = load_watch(path, rule, floors).add(look)
    if not state.is_repeated:
        with replacing(path, "; choose another file with --since") as part:
            part.write_text(json.dumps(record.to_json(state), indent=1) + "\n", encoding="utf-8")
    return state


def load_watch(path: Path, rule: AnyRule, floors: tuple[float, ...]) -> Watch:
    """Read what was watched so far; a file of another decision is refused."""
    if not path.exists():
        return Watch(rule.to_json(), floors)
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", "since") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise InputError(
            f"{path} is no JSON; give a file that `camri check --since` wrote, or a new one", "since"
        ) from None
    if not isinstance(stored, dict) or "looks" not in stored or stored.get("format") != 1:
        raise InputError(f"{path} is no state of `camri check`; give one that it wrote, or a new one", "since")
    found = record.from_json(Watch, stored, "")
    if found.rule != record.to_json(rule) or found.floors != floors:
        raise InputError(f"{path} watches another decision; give a new file for this one", "since")
    return replace(found, is_repeated=False)
