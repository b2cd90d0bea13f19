"""Audit a trained model from its scores: what a shift of its important classes would gain, and how sure that is.

A shift is tuned on some rows and judged on others: whole groups on one side, every class on both. What it will do to
accuracy is predicted from calibrated scores as well as counted.
"""

import heapq
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from camri.auditing.result import Audit, ClassResult, Comparison, Price, change_of, expect, share_of, shift_of
from camri.auditing.scores import Checked, check, num_decimals
from camri.data.listing import to_splits
from camri.decision import PRIOR_ROWS, Curve, Prior, Promise, choose_shift, promise, trace
from camri.errors import InputError
from camri.metrics import REST, Array, Scores
from camri.stats import FALL, FEWEST_ROWS
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
SPLIT_SEED = 0


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
    confidence: float = 0.95,
) -> Audit:
    """Find what a trained model's important classes would gain from a shift, judged on rows it was not tuned on.

    scores: (N, C), logits or probabilities (recognised unless `kind` says which); labels: names or indices (N,).
    important: one or several classes that share the shift.
    split: "val" or "test" for each row: the shift is tuned on val and judged on test. By default ten folds take turns
    as the judged one, and the shift that is recommended is tuned on all rows.
    groups: the patient, film or track of each row (N,). A group is tuned on or judged, never both, and its rows count
    for as many independent rows as they are worth. By default rows count as independent.
    max_accuracy_drop: accuracy that may be lost, 0.01 for one percentage point.
    at_least: a recall to guarantee on new rows, with `confidence`: the audit then recommends the smallest shift that
    guarantees it (`camri.decision.promise`), calibrated on all rows, or with a split on those of val.

    On 200 made tables each (300 to 4,000 rows, a tenth of them important) the 95 % intervals held the recommended
    shift's true change for .86 to 1.0 of the tables; it was below them for up to .045 (benchmarks/audit.py).

    >>> drawn = np.random.default_rng(0)
    >>> labels = drawn.integers(0, 3, 600)
    >>> scores = drawn.normal(size=(600, 3)) + 2 * np.eye(3)[labels] - [0, 1.5, 0]
    >>> found = audit(scores, labels, "stop", classes=["limit", "stop", "yield"])
    >>> found.kind, round(found.shift, 2), round(found.recall.value, 2), round(found.accuracy.change.value, 2)
    ('gain', 2.41, 0.43, 0.02)
    """
    if not 0 <= max_accuracy_drop < 1:
        wrong = f"max_accuracy_drop={max_accuracy_drop!r} is not allowed"
        raise InputError(f"{wrong}; give 0 to 1, 0.01 for one percentage point", argument="max_accuracy_drop")
    checked = check(scores, labels, important, classes, kind, groups)
    _doubt_empty(checked)
    every = checked.condense()
    parts, tuned_on = tune_and_judge(checked, split)
    judged = np.sort(np.concatenate([rows for _, rows in parts]))
    whole = np.unique(np.concatenate([tuning for tuning, _ in parts]))
    _refuse_empty(checked, judged, parts)
    made, refusal = None, None
    if at_least is not None:
        made, refusal = _guarantee(checked, every.take(whole), whole, at_least, confidence)
    now, predicted, expected = every.predict(), every.predict(), np.zeros(len(every))
    if made is not None and made.rule is not None:
        parts, tuned_on = [(whole, judged)], tuned_on if len(parts) == 1 else "the rows that the figures are of"
        predicted = follow(checked, shift_of(made))
    for tuning, rows in parts:
        shift, calibration = _tune(every.take(tuning), checked.logits[tuning], max_accuracy_drop)
        if refusal is not None or made is None:
            predicted[rows] = every.take(rows).predict(shift)
        moved = rows[predicted[rows] != now[rows]]
        expected[moved] = calibration.gain(checked.logits[moved], every.important)
    shift, _ = _tune(every.take(whole), checked.logits[whole], max_accuracy_drop)
    here, said, marks = every.take(judged), predicted[judged], checked.groups_of(judged)
    before, after = here.correct(), here.is_right(said)
    own = np.isin(here.labels, every.important)
    recall = change_of(before[own], after[own], here.labels[own], checked.groups_of(judged[own]))
    accuracy = Comparison.of(before, after, marks)
    assert accuracy.change is not None
    drop = expect(accuracy.change, float(expected[judged].mean()), PRIOR_ROWS)
    enough = min(int(here.num.min()), int(every.take(whole).num.min())) >= FEWEST_ROWS
    is_free = accuracy.change.high >= -max_accuracy_drop and drop.cdf(-max_accuracy_drop - FALL) < 0.5
    is_gain = enough and shift > 0 and recall.low > 0 and is_free
    if made is not None and made.rule is not None:
        shift, is_gain = shift_of(made), True

    def precision(index: int) -> Comparison:
        called = [np.flatnonzero(one[judged] == index) for one in (now, predicted)]
        return Comparison(*(share_of(here.labels[rows] == index, checked.groups_of(judged[rows])) for rows in called))

    curve = trace(here)
    return Audit(
        classes=checked.classes,
        important=tuple(checked.classes[index] for index in checked.important),
        scores_are=checked.kind,
        num_rows=len(every),
        tuned_on=tuned_on,
        max_accuracy_drop=max_accuracy_drop,
        kind="gain" if is_gain else "none" if enough else "unknown",
        shift=shift,
        recall=recall,
        accuracy=accuracy,
        drop=drop,
        false_alarms=Comparison.of(here.false_alarms(), here.is_false_alarm(said), marks),
        precision=tuple(map(precision, every.important)),
        by_class=tuple(_by_class(checked, judged, before, after)),
        prices=tuple(_prices(curve, here)),
        curve=curve,
        scores=here,
        num_groups=None if checked.groups is None else len(checked.group_names),
        guarantee=made,
        refusal=refusal,
    )


def advised(shift: float, scores_are: str) -> float:
    """The number to use in one's own code: the factor of a probability, or what is added to a logit.

    Four digits, rounded up: a smaller shift might break a guarantee.

    >>> advised(2.29341, "logits"), advised(0.0012, "logits"), advised(0.83, "probabilities"), advised(0.0, "logits")
    (2.294, 0.0012, 2.294, 0.0)
    """
    value = math.exp(shift) if scores_are == "probabilities" else shift
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    steps = round(value / unit)
    return float(f"{(steps if steps * unit >= value else steps + 1) * unit:.4g}")


def follow(checked: Checked, shift: float) -> Array:
    """Predictions by the printed instruction, −1 for the classes that are not important: int (N,)."""
    number, mask = advised(shift, checked.kind), np.isin(np.arange(len(checked.classes)), checked.important)
    moved = (
        checked.values * np.where(mask, number, 1.0)
        if checked.kind == "probabilities"
        else checked.values + mask * number
    )
    winner = moved.argmax(axis=1)
    return np.where(mask[winner], winner, REST)


def _guarantee(
    checked: Checked, scores: Scores, rows: Array, at_least: float, confidence: float
) -> tuple[Promise, str | None]:
    """The guarantee calibrated on these rows, and why it cannot be given; None where it can."""
    groups = checked.groups_of(rows)
    made = promise(scores, at_least, confidence, rule="shift", groups=groups, negative=False)
    if made.rule is not None:
        return made, None
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


def _tune(scores: Scores, logits: Array, max_accuracy_drop: float) -> tuple[float, Calibration]:
    """The shift, at least 0, with the best recall at the expected accuracy that is allowed; and the calibration.

    The expected accuracy is what the rows show, combined with what calibrated probabilities predict; these count as
    much as 500 rows.
    """
    calibration = Calibration.of(logits, scores.labels, scores.important)
    gain, floor = calibration.gain(logits, scores.important), scores.accuracy() - max_accuracy_drop
    tuned = choose_shift(scores, accuracy_floor=floor, prior=Prior.of(scores), gain=gain)
    assert tuned is not None, "no shift at all keeps the accuracy"
    return tuned.shift[0], calibration


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


def _by_class(checked: Checked, judged: Array, before: Array, after: Array) -> Iterator[ClassResult]:
    labels, predicted = checked.labels[judged], checked.logits[judged].argmax(axis=1)
    for index, name in enumerate(checked.classes):
        own = labels == index
        wrong = np.bincount(predicted[own & ~before], minlength=len(checked.classes))
        order = [place for place in np.argsort(-wrong, kind="stable").tolist() if wrong[place]]
        mistakes = tuple((checked.classes[place], int(wrong[place])) for place in order[:5])
        recall = Comparison.of(before[own], after[own], checked.groups_of(judged[own]))
        yield ClassResult(name, index in checked.important, recall, mistakes)


def _prices(curve: Curve, scores: Scores) -> Iterator[Price]:
    """Points of the curve with more recall than now: the most accurate one, then one for each target."""
    start = int(np.flatnonzero(curve.value == 0.0)[0])
    now = float(curve.mean_recall[start])
    states = [start + int(curve.accuracy[start:].argmax()), *(int(curve.reach(target)) for target in TARGETS)]
    last = start
    for state in states:
        # Important classes that are confused with each other stay so: their mean recall ends below 1.
        if last < state < len(curve.value) and curve.mean_recall[state] > now:
            last = state
            yield Price(
                float(curve.mean_recall[state]),
                float(curve.value[state]),
                float(curve.accuracy[state]),
                float(scores.false_alarms(curve.value[state]).mean()),
                None if np.isnan(curve.precision[state]).any() else float(curve.precision[state].mean()),
            )
