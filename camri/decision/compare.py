"""Arms beside each other on the same rows: figures, paired changes with intervals, and every class's recall.

An arm is a model under a rule, or several seeds of one training. What is judged are predictions, so nothing in here
knows how a rule was chosen.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from camri.decision.scores import REST, Array, Scores
from camri.decision.stats import (
    FALL,
    Difference,
    RowEstimate,
    Z,
    chance_of,
    change_of,
    change_of_counts,
    design_effect,
    expect,
    settle,
    share_of,
    share_of_counts,
    weighted,
)
from camri.decision.stats import compare as bootstrap

SEED = 0  # of every bootstrap: the same predictions give the same evidence
SEEDS_FOR_INTERVALS = 3
MOST_MISTAKES = 5
ONE_ERROR = 0.683  # level of an interval of one standard error to each side


@dataclass(frozen=True)
class Share:
    """A share of rows with its 95 % interval; over several seeds, their mean, without one.

    hits, num: counts; summed over seeds. num_groups: None if rows are independent.
    """

    value: float | None
    hits: int
    num: int
    low: float | None = None
    high: float | None = None
    num_groups: int | None = None


@dataclass(frozen=True)
class Change:
    """A difference with its 95 % interval; no interval below three seeds. gained, lost: rows, of a single model."""

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    gained: int | None = None
    lost: int | None = None

    def __neg__(self) -> "Change":
        low, high = (None if end is None else -end for end in (self.high, self.low))
        return replace(self, value=-self.value, low=low, high=high, gained=self.lost, lost=self.gained)


@dataclass(frozen=True)
class Arm:
    """Figures of one arm on the judged rows.

    recalls, precisions: of each important class. false_alarms: of all rows, those of no important class that are
    predicted as one. cost: mean of a row.
    """

    name: str
    title: str
    num_models: int
    recalls: tuple[Share, ...]
    precisions: tuple[Share, ...]
    accuracy: Share
    false_alarms: Share
    cost: float | None = None

    @property
    def recall(self) -> float:
        """The mean over the important classes."""
        return float(np.mean([one.value for one in self.recalls]))


@dataclass(frozen=True)
class Comparison:
    """Arm `arm` less arm `over`. recall: mean over the important classes.

    chance_of_drop, chance_of_fall: that accuracy drops at all on new rows, or by half a point more than is allowed.
    """

    arm: str
    over: str
    recall: Change
    accuracy: Change
    false_alarms: Change
    cost: Change | None = None
    chance_of_drop: float | None = None
    chance_of_fall: float | None = None


@dataclass(frozen=True)
class ClassResult:
    """One class's recall with the first arm and with the final one; what it was mistaken for before."""

    name: str
    important: bool
    before: Share
    after: Share
    change: Change | None
    mistaken_for: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Evidence:
    """All arms on the same rows, and the comparisons that were asked for. final: the arm that is advised."""

    num_rows: int
    num_seeds: int
    num_groups: int | None
    final: str
    arms: tuple[Arm, ...]
    comparisons: tuple[Comparison, ...]
    classes: tuple[ClassResult, ...]

    def arm(self, name: str) -> Arm | None:
        """The arm of this name; None if there is none."""
        return next((one for one in self.arms if one.name == name), None)

    def compare(self, arm: str, over: str) -> Comparison | None:
        """The comparison of two arms; None if there is none."""
        return next((one for one in self.comparisons if (one.arm, one.over) == (arm, over)), None)

    def without(self, arm: str) -> "Evidence":
        """The evidence less one arm."""
        kept = tuple(one for one in self.comparisons if one.arm != arm)
        return replace(self, arms=tuple(one for one in self.arms if one.name != arm), comparisons=kept)

    @property
    def lost(self) -> tuple[ClassResult, ...]:
        """The classes that surely lost recall, worst first."""
        losers = [one for one in self.classes if one.change is not None and (one.change.high or 0.0) < 0]
        return tuple(sorted(losers, key=lambda one: one.change.value if one.change else 0.0))


@dataclass(frozen=True, eq=False)
class Judged:
    """What an arm does with the judged rows: right, alarm and predicted (S, N); cost (S, N) or None.

    predicted: an important class, or −1 for the best other class.
    """

    title: str
    predicted: Array
    right: Array
    alarm: Array
    cost: Array | None = None

    @staticmethod
    def of(title: str, scores: Sequence[Scores], predicted: Sequence[Array], matrix: Array | None = None) -> "Judged":
        """The arm of models (S,) with these predictions; matrix: of costs (true, predicted)."""
        pairs = list(zip(scores, predicted, strict=True))
        costs = None
        if matrix is not None:
            costs = np.array([matrix[one.labels, one.with_rest(said)] for one, said in pairs])
        return Judged(
            title,
            np.array(predicted),
            np.array([one.is_right(said) for one, said in pairs]),
            np.array([one.is_false_alarm(said) for one, said in pairs]),
            costs,
        )


@dataclass(frozen=True, eq=False)
class Tuning:
    """What tuning on the judged rows does to an arm, for intervals that allow for it.

    final: predictions (N,) of the rule that was tuned on all of them; None where both arms were tuned, as other models
    are: the change itself is settled then. errors: figure or class index -> how far the change on bootstrap draws is
    from that on the rows (B,). expected: change of accuracy that calibrated scores expect,
    worth `prior_rows`. allowed: the drop of accuracy that is allowed.
    """

    final: Array | None
    errors: Mapping[str | int, Array]
    expected: float | None = None
    prior_rows: int = 0
    allowed: float = 0.0


@dataclass(frozen=True, eq=False)
class Judging:
    """The rows that all arms are judged on: the models' scores of them, names, groups (N,) or None.

    over_seeds: whether intervals are about a new training, not about these models. tuning: by arm. strata: (N,) codes
    of parts of the rows and their shares where the rule will run; None where they are as frequent as here.
    """

    scores: Sequence[Scores]
    classes: Sequence[str]
    groups: Array | None = None
    over_seeds: bool = False
    tuning: Mapping[str, Tuning] | None = None
    strata: tuple[Array, Array] | None = None

    @property
    def labels(self) -> Array:
        return self.scores[0].labels

    @property
    def important(self) -> tuple[int, ...]:
        return self.scores[0].important

    def groups_of(self, rows: Any) -> Array | None:
        """The groups of some rows; None where rows are independent."""
        return None if self.groups is None else self.groups[rows]


def compare(arms: Mapping[str, Judged], pairs: Sequence[tuple[str, str]], rows: Judging, final: str) -> Evidence:
    """The evidence of arms on the same rows: their figures, and the comparisons of these pairs.

    The first arm is the present decision; every class's recall is compared between it and the final arm.
    """
    first = next(iter(arms))
    known = [pair for pair in pairs if set(pair) <= set(arms)]
    return Evidence(
        num_rows=len(rows.labels),
        num_seeds=len(arms[first].right),
        num_groups=None if rows.groups is None else len(np.unique(rows.groups)),
        final=final,
        arms=tuple(_arm(name, judged, rows) for name, judged in arms.items()),
        comparisons=tuple(_comparison(arm, over, arms, rows) for arm, over in known),
        classes=tuple(_class_results(arms[first], final, arms[final], rows)),
    )


def outcomes(judged: Judged, rows: Judging, figure: str) -> tuple[Array, Array]:
    """The outcomes (S, n) of an arm by a figure, higher is better, and the part (n,) of each row: parts count alike.

    figure: "recall", "accuracy", "false_alarms" or "cost".
    """
    if figure == "recall":
        own = np.isin(rows.labels, rows.important)
        return judged.right[:, own].astype(np.float64), rows.labels[own]
    whole = np.zeros(len(rows.labels), dtype=int)
    if figure == "accuracy":
        return judged.right.astype(np.float64), whole
    bad = judged.alarm if figure == "false_alarms" else judged.cost
    return -np.asarray(bad, dtype=np.float64), whole


def is_ahead(mine: Judged, theirs: Judged, rows: Judging, figure: str) -> bool:
    """Whether an arm is better than another by more than a standard error over seeds and rows: to choose, not to claim.

    figure: as in `outcomes`.
    """
    (one, parts), (two, _) = (outcomes(arm, rows, figure) for arm in (mine, theirs))
    return bootstrap(one, two, parts=parts, seed=SEED, level=ONE_ERROR).low > 0


def _class_results(first: Judged, final: str, last: Judged, rows: Judging) -> Iterator[ClassResult]:
    if rows.over_seeds or rows.groups is not None:
        present = np.unique(rows.labels).tolist()
        for index in present if rows.over_seeds else range(len(rows.classes)):
            yield _class_result(index, first, final, last, rows)
        return
    num_classes, tuning = len(rows.classes), (rows.tuning or {}).get(final)
    num = np.bincount(rows.labels, minlength=num_classes)
    before, after = first.right[0], last.right[0]
    hits = [np.bincount(rows.labels, right, minlength=num_classes).astype(int) for right in (before, after)]
    moves = _moves(before, after, rows.labels, num_classes)
    finals = moves
    if tuning is not None and tuning.final is not None:
        finals = _moves(before, rows.scores[0].is_right(tuning.final), rows.labels, num_classes)
    mistakes = _all_mistakes(first, rows)
    for index, name in enumerate(rows.classes):
        before_it, after_it = (share_to_record(share_of_counts(int(one[index]), int(num[index]))) for one in hits)
        change = None
        if num[index] and first is not last:
            found = change_of_counts(num[[index]], moves[0][[index]], moves[1][[index]])
            # The only important class: the same figure as recall, the same interval.
            figure = "recall" if rows.important == (index,) else index
            if tuning is not None and figure in tuning.errors:
                settled = change_of_counts(num[[index]], finals[0][[index]], finals[1][[index]])
                found = settle(found, settled, tuning.errors[figure], int(rows.scores[0].num.min()))
            change = Change(found.value, found.low, found.high, gained=found.hits, lost=found.lost)
        yield ClassResult(name, index in rows.important, before_it, after_it, change, mistakes.get(index, ()))


def _moves(before: Array, after: Array, labels: Array, num_classes: int) -> tuple[Array, Array]:
    """Rows of each class that are gained and lost: (C,) both."""
    gained, lost = after & ~before, before & ~after
    up, down = (np.bincount(labels[one], minlength=num_classes) for one in (gained, lost))
    return up, down


def _all_mistakes(first: Judged, rows: Judging) -> dict[int, tuple[tuple[str, int], ...]]:
    """What the rows of each class were predicted as instead, the most frequent first."""
    rest = rows.scores[0].rest
    if rest is None:
        return {}
    missed = np.flatnonzero(~first.right[0])
    said = first.predicted[0][missed]
    said = np.where(said == REST, rest[missed], said).astype(np.int64)
    pairs, counts = np.unique(rows.labels[missed] * np.int64(len(rows.classes)) + said, return_counts=True)
    true, wrong = np.divmod(pairs, len(rows.classes))
    found: dict[int, tuple[tuple[str, int], ...]] = {}
    for place in np.lexsort((wrong, -counts)).tolist():
        kept = found.get(int(true[place]), ())
        if len(kept) < MOST_MISTAKES:
            found[int(true[place])] = (*kept, (rows.classes[int(wrong[place])], int(counts[place])))
    return found


def _arm(name: str, judged: Judged, rows: Judging) -> Arm:
    own = [rows.labels == index for index in rows.important]
    said = [judged.predicted == index for index in rows.important]
    return Arm(
        name,
        judged.title,
        len(judged.right),
        recalls=tuple(_share(judged.right[:, one], rows, one) for one in own),
        precisions=tuple(_precision(truth, called, rows) for truth, called in zip(own, said, strict=True)),
        accuracy=_share(judged.right, rows, slice(None)),
        false_alarms=_share(judged.alarm, rows, slice(None)),
        cost=None if judged.cost is None else _mean_cost(judged.cost, rows),
    )


def _mean_cost(cost: Array, rows: Judging) -> float:
    return float(cost.mean()) if rows.strata is None else _mean_and_error(cost[0], rows)[0]


def _share(hit: Array, rows: Judging, among: Any) -> Share:
    """A share of rows (S, n), with an interval if it is of one model."""
    if len(hit) > 1 or rows.over_seeds:
        num = hit.size
        return Share(float(hit.mean()) if num else None, int(hit.sum()), num)
    if rows.strata is not None and isinstance(among, slice):
        return share_to_record(weighted(list(_by_stratum(share_of, rows, hit[0])), rows.strata[1]))
    return share_to_record(share_of(hit[0], rows.groups_of(among)))


def _by_stratum(estimate: Any, rows: Judging, *outcomes: Array) -> Iterator[RowEstimate]:
    """An estimate of outcomes (N,) in each part of the rows."""
    assert rows.strata is not None
    for part in range(len(rows.strata[1])):
        own = rows.strata[0] == part
        yield estimate(*(one[own] for one in outcomes), groups=rows.groups_of(own))


def _precision(truth: Array, called: Array, rows: Judging) -> Share:
    if len(called) == 1 and not rows.over_seeds:
        if rows.strata is not None:
            return _precision_there(truth, called[0], rows)
        return share_to_record(share_of(truth[called[0]], rows.groups_of(called[0])))
    hits, num = int((called & truth).sum()), int(called.sum())
    return Share(hits / num if num else None, hits, num)


def _precision_there(truth: Array, called: Array, rows: Judging) -> Share:
    """Precision where the classes are as frequent as the strata say: right / (right + wrong) of the alarms."""
    right, wrong = (_mass(called, part, rows) for part in (truth, ~truth))
    hits, num = int((called & truth).sum()), int(called.sum())
    if not right.value + wrong.value:
        return Share(None, hits, num)
    value = right.value / (right.value + wrong.value)
    least, most = max(right.low, 1e-12), max(wrong.low, 1e-12)
    centre = math.log(max(wrong.value, most) / max(right.value, least))
    up = math.hypot(math.log(max(wrong.high, most) / max(wrong.value, most)), math.log(max(right.value, least) / least))
    down = math.hypot(
        math.log(max(wrong.value, most) / most), math.log(max(right.high, least) / max(right.value, least))
    )
    low, high = (1 / (1 + math.exp(centre + move)) for move in (up, -down))
    return Share(value, hits, num, min(low, value), max(high, value), right.num_groups)


def _mass(called: Array, among: Array, rows: Judging) -> RowEstimate:
    """The share of all rows where the rule will run that are called, of those among some rows here."""
    assert rows.strata is not None
    parts, shares = rows.strata
    inside = [among & (parts == part) for part in range(len(shares))]
    known = [one for one in range(len(shares)) if inside[one].any()]
    there = np.array([shares[one] * inside[one].sum() / (parts == one).sum() for one in known])
    return weighted([share_of(called[inside[one]], rows.groups_of(inside[one])) for one in known], there)


def share_to_record(found: RowEstimate) -> Share:
    """The share as a record."""
    value = found.value if found.num else None
    return Share(value, found.hits, found.num, found.low, found.high, found.num_groups)


def _comparison(arm: str, over: str, arms: Mapping[str, Judged], rows: Judging) -> Comparison:
    mine, theirs = arms[arm], arms[over]
    own = np.isin(rows.labels, rows.important)
    tuning = (rows.tuning or {}).get(arm)
    accuracy = _changed("accuracy", mine.right, theirs.right, rows, tuning)
    chances: dict[str, float] = {}
    if tuning is not None and tuning.expected is not None:
        seen = change_of(theirs.right[0], mine.right[0], groups=rows.groups)
        if rows.strata is not None:
            seen = weighted(list(_by_stratum(change_of, rows, theirs.right[0], mine.right[0])), rows.strata[1])
        drop = expect(seen, tuning.expected, tuning.prior_rows)
        chances = {"chance_of_drop": drop.cdf(0.0), "chance_of_fall": drop.cdf(-tuning.allowed - FALL)}
    return Comparison(
        arm,
        over,
        recall=_changed("recall", mine.right, theirs.right, rows, tuning, own, rows.labels[own]),
        accuracy=accuracy,
        false_alarms=_changed("false_alarms", mine.alarm, theirs.alarm, rows, tuning),
        cost=None if mine.cost is None or theirs.cost is None else _cost(mine.cost, theirs.cost, rows, tuning),
        **chances,
    )


def _changed(
    name: str | int,
    mine: Array,
    theirs: Array,
    rows: Judging,
    tuning: Tuning | None,
    among: Any = slice(None),
    parts: Array | None = None,
) -> Change:
    """The change of an outcome (S, N) from theirs to mine on some rows; with parts (n,) the mean over them."""
    if len(mine) > 1 or rows.over_seeds:
        units = rows.groups_of(among)
        one, two = (side[:, among].astype(np.float64) for side in (mine, theirs))
        return difference_to_record(bootstrap(one, two, parts=parts, groups=units, seed=SEED))
    before, after, groups = theirs[0][among], mine[0][among], rows.groups_of(among)

    def changed(then: Array) -> RowEstimate:
        if rows.strata is not None and isinstance(among, slice):
            return weighted(list(_by_stratum(change_of, rows, before, then)), rows.strata[1])
        return change_of(before, then, parts, groups)

    change = changed(after)
    p, num_own = None, int(rows.scores[0].num.min())
    if tuning is not None and name in tuning.errors:
        final = change
        if tuning.final is not None:
            outcome = rows.scores[0].is_false_alarm if name == "false_alarms" else rows.scores[0].is_right
            final = changed(outcome(tuning.final)[among])
        change = settle(change, final, tuning.errors[name], num_own)
        p = chance_of(change, num_own) if tuning.final is None else None
    return Change(change.value, change.low, change.high, p, change.hits, change.lost)


def difference_to_record(found: Difference) -> Change:
    """The difference over seeds as a record."""
    if found.num_seeds < SEEDS_FOR_INTERVALS:
        return Change(found.value)
    return Change(found.value, found.low, found.high, found.p)


def _cost(mine: Array, theirs: Array, rows: Judging, tuning: Tuning | None) -> Change:
    """The change of the mean cost of a row."""
    if len(mine) > 1 or rows.over_seeds:
        return difference_to_record(bootstrap(mine, theirs, groups=rows.groups, seed=SEED))
    seen, sd = _mean_and_error((mine - theirs)[0], rows)
    centre = seen
    if tuning is not None and (errors := tuning.errors.get("cost")) is not None:
        if tuning.final is not None:
            centre, sd = _mean_and_error(tuning.errors["final cost"] - theirs[0], rows)
        centre, sd = centre - float(errors.mean()), max(sd, float(errors.std(ddof=1)))
    p = 2 * NormalDist().cdf(-abs(centre) / sd) if tuning is not None and tuning.final is None and sd else None
    return Change(seen, min(seen, centre - Z * sd), max(seen, centre + Z * sd), p)


def _mean_and_error(values: Array, rows: Judging) -> tuple[float, float]:
    """The mean of values (N,) where the rule will run, and its standard error."""
    parts, shares = rows.strata or (np.zeros(len(values), dtype=int), np.ones(1))
    mean, variance = 0.0, 0.0
    for part, share in enumerate(shares.tolist()):
        own = values[parts == part]
        effect = 1.0 if rows.groups is None else design_effect(own, rows.groups[parts == part])
        mean, variance = mean + share * float(own.mean()), variance + share**2 * float(own.var()) * effect / len(own)
    return mean, math.sqrt(variance)


def _class_result(index: int, first: Judged, final: str, last: Judged, rows: Judging) -> ClassResult:
    own = rows.labels == index
    tuning = (rows.tuning or {}).get(final)
    changed = own.any() and first is not last
    figure = "recall" if rows.important == (index,) else index  # the only one: the same figure, the same interval
    return ClassResult(
        rows.classes[index],
        index in rows.important,
        _share(first.right[:, own], rows, own),
        _share(last.right[:, own], rows, own),
        _changed(figure, last.right, first.right, rows, tuning, own) if changed else None,
        _mistakes(own, first, rows),
    )


def _mistakes(own: Array, first: Judged, rows: Judging) -> tuple[tuple[str, int], ...]:
    """What the rows of a class were predicted as instead, by the present decision of a single model."""
    rest = rows.scores[0].rest
    if rest is None or len(first.right) > 1:
        return ()
    missed = own & ~first.right[0]
    said = np.where(first.predicted[0][missed] == REST, rest[missed], first.predicted[0][missed])
    counts = np.bincount(said, minlength=len(rows.classes))
    order = [place for place in np.argsort(-counts, kind="stable").tolist()[:MOST_MISTAKES] if counts[place]]
    return tuple((rows.classes[place], int(counts[place])) for place in order)
