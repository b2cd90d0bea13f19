"""Logits -> probabilities that rows bear out: a slope for all logits and a constant for the important classes.

Which rows tune a shift and which judge it: whole groups on one side, every class on both.

Scores and labels -> what the important classes' recall is, what a shift would add for free, and how sure that is.
"""

import heapq
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from camri.auditing.result import Alarms, Audit, ClassResult, Price, Promise, Rate, compare_rows
from camri.auditing.scores import Checked, check, exact, rows_of
from camri.data.listing import to_splits
from camri.decision import PRIOR_ROWS, Curve, Prior, assure, choose_shift, trace
from camri.errors import InputError
from camri.metrics import Array, Scores
from camri.stats import FALL

SLOPE_SD = 10.0  # of the logits' own spread: it binds only where classes are separable
CONSTANT_SD = 0.5  # a constant that is free would be as lucky as the few rows it is fitted to (docs/log.md)
FEWEST_CALIBRATION_ROWS = 10  # of an important class, and of the others: fewer leave the probabilities as they are
MOST_ROWS = 20_000  # two numbers are known well of so many, and a prior says next to nothing beside more


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

        found = optimize.minimize(
            loss,
            [1.0, 0.0],
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None), (None, None)],
            options={"ftol": 1e-12, "gtol": 1e-8},
        )
        slope, constant = found.x.tolist()
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
SPLIT_SEED = 0


def tune_and_judge(checked: Checked, split: Sequence[str] | None) -> tuple[list[tuple[Array, Array]], str]:
    """Pairs of rows to tune on and rows to judge, and how they came about."""
    rows = np.arange(len(checked.labels))
    if split is not None:
        if len(split) != len(rows):
            raise InputError(f"{len(rows):,} rows and {len(split):,} split names do not fit; give one a row")
        words = np.array(to_splits(split, "split"))
        _refuse_torn(checked, words)
        if {"val", "test"} <= set(words.tolist()):
            return [(rows[words == "val"], rows[words == "test"])], "the val rows; judged on the test rows"
        rows = rows[words != "train"]
        if not len(rows):
            raise InputError(
                "every row is of the train split, on which a model says nothing true; give val or test rows"
            )
    fold = draw_folds(checked.labels[rows], checked.groups_of(rows), checked.important)
    pairs = [(rows[fold != number], rows[fold == number]) for number in np.unique(fold).tolist()]
    if checked.groups is None:
        return pairs, f"nine tenths of the rows, judged on the tenth left out, {NUM_FOLDS} times"
    part = "a tenth" if len(pairs) == NUM_FOLDS else f"one of {len(pairs)} parts"
    return pairs, f"the groups outside of {part}, judged on those inside, {len(pairs)} times"


def draw_folds(labels: Array, groups: Array | None, important: Sequence[int] = ()) -> Array:
    """A fold for every row, the same on every machine; each class is spread over all of them, groups stay whole.

    A group counts for the important class it has most rows of, or else for the class it has most rows of; the largest
    come first, each into the fold with the fewest rows of that class. Rows without groups are dealt out in turn.

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
    """For every unit: the class that it counts for, how many rows of that class it has, and how many in all."""
    pairs, counts = np.unique(units * (labels.max() + 1) + labels, return_counts=True)
    unit, label = np.divmod(pairs, labels.max() + 1)
    best_last = np.lexsort((-label, counts, np.isin(label, important), unit))
    size = np.bincount(units)
    main, own = np.zeros_like(size), np.zeros_like(size)
    main[unit[best_last]], own[unit[best_last]] = label[best_last], counts[best_last]
    return main, own, size


def _refuse_torn(checked: Checked, words: Array) -> None:
    """Refuse a group in two splits: it would judge what it tuned, or what the model learned by heart."""
    if checked.groups is None:
        return
    first: dict[int, str] = {}
    for group, word in zip(checked.groups.tolist(), words.tolist(), strict=True):
        if first.setdefault(group, word) != word:
            raise InputError(
                f"group {checked.group_names[group]!r} has rows in {first[group]} and in {word}, so these are not "
                "apart; split by group, or remove its rows from one of them"
            )


FEWEST_ROWS = 20  # of an important class: with fewer an interval of its recall is wider than .4
TARGETS = (0.8, 0.9, 0.95, 0.98, 0.99, 1.0)  # recalls whose price is told


def audit(
    scores: ArrayLike,
    labels: ArrayLike,
    important: str | int | Sequence[str | int],
    *,
    classes: Sequence[str] | None = None,
    split: Sequence[str] | None = None,
    groups: ArrayLike | None = None,
    kind: str | None = None,
    tolerance: float = 0.0,
    at_least: float | None = None,
    confidence: float = 0.95,
) -> Audit:
    """What a trained model's important classes could gain from a shift, judged on rows it was not tuned on.

    scores: (N, C), logits or probabilities (told apart unless `kind` says which); labels: names or indices (N,).
    split: "val" or "test" for each row: the shift is then tuned on val and judged on test. Without it each tenth of
    the rows is judged with the shift that the other nine tenths tuned; what is recommended is tuned on all of them.
    groups: the patient, film or track of each row (N,), names or numbers. Groups are then tuned on or judged whole, and
    intervals count rows for as many as they are worth. Without it rows count as independent.
    tolerance: accuracy that may be given up, 0.01 for a point.
    at_least: a recall to promise of new rows, with such a confidence (`camri.decision.assure`): the smallest shift for
    it and what it costs. It is made of all rows, with a split of those of val.

    Of 200 made tables each (300 to 4,000 rows, a tenth of them important, with and without something to gain) the
    recommended shift's true change lay within the 95 % intervals for .86 to 1.0 and below them for up to .045. Halves
    that tune for each other: .76 to 1.0 and up to .095, for a half chooses another shift than the whole. With eight
    rows a group, half of their noise shared: .925 to 1.0 and up to .02 told the groups, .83 to .99 and up to .08 not
    told (benchmarks/audit.py).

    >>> drawn = np.random.default_rng(0)
    >>> labels = drawn.integers(0, 3, 600)
    >>> scores = drawn.normal(size=(600, 3)) + 2 * np.eye(3)[labels] - [0, 1.5, 0]
    >>> found = audit(scores, labels, "stop", classes=["limit", "stop", "yield"])
    >>> found.kind, round(found.shift, 2), round(found.recall.estimate, 2), round(found.accuracy.estimate, 2)
    ('gain', 2.41, 0.43, 0.02)
    """
    if not 0 <= tolerance < 1:
        raise InputError(
            f"tolerance={tolerance!r} is not allowed; give 0 to 1, 0.01 for a point",
            argument="tolerance",
        )
    checked = check(scores, labels, important, classes, kind, groups)
    _doubt_empty(checked)
    every = exact(checked.logits, checked.labels, checked.important)
    parts, tuned_on = tune_and_judge(checked, split)
    judged = np.sort(np.concatenate([rows for _, rows in parts]))
    _refuse_empty(checked, every, judged, parts)
    predicted, tuned = every.predict(), np.zeros(len(every), dtype=bool)
    expected = np.zeros(len(every))
    for tuning, rows in parts:
        tuned[tuning] = True
        part_shift, calibration = _tune(rows_of(every, tuning), checked.logits[tuning], tolerance)
        part = rows_of(every, rows)
        predicted[rows] = part.predict(part_shift)
        moved = predicted[rows] != part.predict()
        expected[rows[moved]] = calibration.gain(checked.logits[rows[moved]], every.important)
    whole = np.flatnonzero(tuned)
    here = rows_of(every, judged)
    before, after = here.correct(), here.is_right(predicted[judged])
    own = np.isin(here.labels, every.important)
    marks = checked.groups_of(judged)
    recall = compare_rows(before[own], after[own], here.labels[own], checked.groups_of(judged[own]))
    accuracy = compare_rows(before, after, groups=marks).expecting(float(expected[judged].mean()), PRIOR_ROWS)
    enough = min(int(here.num.min()), int(rows_of(every, whole).num.min())) >= FEWEST_ROWS
    shift, _ = _tune(rows_of(every, whole), checked.logits[whole], tolerance)
    is_free = accuracy.high >= -tolerance and accuracy.chance_of_fall(tolerance + FALL) < 0.5
    curve = trace(here)
    return Audit(
        classes=checked.classes,
        important=tuple(checked.classes[index] for index in checked.important),
        scores_are=checked.kind,
        num_rows=len(every),
        tuned_on=tuned_on,
        tolerance=tolerance,
        kind="unknown" if not enough else "gain" if shift > 0 and recall.low > 0 and is_free else "none",
        shift=shift,
        recall=recall,
        accuracy=accuracy,
        accuracy_before=Rate.of(before, marks),
        accuracy_after=Rate.of(after, marks),
        alarms=_alarms(here, predicted[judged], marks),
        by_class=tuple(_by_class(checked, judged, before, after)),
        prices=tuple(_prices(curve, here)),
        curve=curve,
        num_groups=None if checked.groups is None else len(checked.group_names),
        promise=None if at_least is None else _promise(checked, every, whole, judged, at_least, confidence),
    )


def _promise(
    checked: Checked, every: Scores, tuning: Array, judged: Array, at_least: float, confidence: float
) -> Promise:
    found = assure(rows_of(every, tuning), at_least, confidence, checked.groups_of(tuning))
    here, marks, shift = rows_of(every, judged), checked.groups_of(judged), found.shift or 0.0
    right = here.correct(shift)
    own = [np.flatnonzero(here.labels == index) for index in every.important]
    return Promise(
        guarantee=found,
        recall=tuple(Rate.of(right[rows], checked.groups_of(judged[rows])) for rows in own),
        accuracy=Rate.of(right, marks),
        precision=_mean(here.precision(shift)),
        false_alarms=Rate.of(here.false_alarms(shift), marks),
    )


def _mean(shares: Array) -> float | None:
    """The mean of the shares; None where one is nan, a share of nothing."""
    return None if np.isnan(shares).any() else float(shares.mean())


def _alarms(scores: Scores, predicted: Array, groups: Array | None) -> Alarms:
    """What the scores take for an important class, and what such predictions with a shift do."""

    def precision(said: Array, index: int) -> Rate:
        own = said == index
        return Rate.of(scores.is_right(said)[own], None if groups is None else groups[own])

    now = scores.predict()
    before, after = scores.is_false_alarm(now), scores.is_false_alarm(predicted)
    return Alarms(
        Rate.of(before, groups),
        Rate.of(after, groups),
        compare_rows(before, after, groups=groups),
        tuple((precision(now, index), precision(predicted, index)) for index in scores.important),
    )


def _tune(scores: Scores, logits: Array, tolerance: float) -> tuple[float, Calibration]:
    """The shift, at least 0, with the best recall at an expected accuracy no lower than allowed; and the calibration.

    What to expect is what the rows show, and what their calibrated probabilities say as if those were 500 rows more.
    """
    calibration = Calibration.of(logits, scores.labels, scores.important)
    found = choose_shift(
        scores,
        accuracy_floor=scores.accuracy() - tolerance,
        prior=Prior.of(scores),
        gain=calibration.gain(logits, scores.important),
    )
    assert found is not None, "no shift at all keeps the accuracy as it is"
    return found.shift[0], calibration


def _doubt_empty(checked: Checked) -> None:
    """Warns where no row has the class that is predicted most: its column may hold ages, or the highest score."""
    counts = np.bincount(checked.logits.argmax(axis=1))
    most = int(counts.argmax())
    if not (checked.labels == most).any():
        warnings.warn(
            f"{checked.classes[most]!r} is predicted for {counts[most]:,} of {len(checked.labels):,} rows, and no row "
            "has that label; if its column holds no scores of a class, drop it",
            stacklevel=3,
        )


def _refuse_empty(checked: Checked, every: Scores, judged: Array, parts: Sequence[tuple[Array, Array]]) -> None:
    for index in checked.important:
        for where, rows in (("judge", judged), *(("tune on", tuning) for tuning, _ in parts)):
            num = int((every.labels[rows] == index).sum())
            if num == 0:
                name = checked.classes[index]
                own = every.labels == index
                apart = "" if checked.groups is None else f", in {len(np.unique(checked.groups[own]))} groups,"
                raise InputError(
                    f"important class {name!r} has {own.sum()} rows in all{apart} and none to {where}; give at least "
                    f"{FEWEST_ROWS}{' in several groups' if apart else ''}"
                )


def _by_class(checked: Checked, judged: Array, before: Array, after: Array) -> Iterator[ClassResult]:
    labels, predicted = checked.labels[judged], checked.logits[judged].argmax(axis=1)
    for index, name in enumerate(checked.classes):
        own = labels == index
        marks = checked.groups_of(judged[own])
        wrong = np.bincount(predicted[own & ~before], minlength=len(checked.classes))
        order = [place for place in np.argsort(-wrong, kind="stable").tolist() if wrong[place]]
        yield ClassResult(
            name,
            index in checked.important,
            Rate.of(before[own], marks),
            Rate.of(after[own], marks),
            compare_rows(before[own], after[own], groups=marks) if own.any() else None,
            tuple((checked.classes[place], int(wrong[place])) for place in order[:5]),
        )


def _prices(curve: Curve, scores: Scores) -> Iterator[Price]:
    """What more recall costs than the model has now: at the highest accuracy, then recall by recall."""
    start = int(np.flatnonzero(curve.shift == 0.0)[0])
    now = float(curve.mean_recall[start])
    states = [start + int(curve.accuracy[start:].argmax()), *(int(curve.reach(target)) for target in TARGETS)]
    last = start
    for state in states:
        # Important classes taken for each other stay so: their mean recall ends below 1.
        if last < state < len(curve.shift) and curve.mean_recall[state] > now:
            last = state
            yield Price(
                float(curve.mean_recall[state]),
                float(curve.shift[state]),
                float(curve.accuracy[state]),
                float(scores.false_alarms(curve.shift[state]).mean()),
                _mean(curve.precision[state]),
            )
