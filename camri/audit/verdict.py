"""Scores and labels -> what the important classes' recall is, what a shift would add for free, and how sure that is."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from camri.audit.change import compare_rows
from camri.audit.result import Audit, ClassResult, Price, Rate
from camri.audit.scores import Checked, check, exact, rows_of
from camri.data.labels import SPLIT_ALIASES
from camri.errors import InputError, closest
from camri.metrics import Array, Scores
from camri.posthoc import Curve, choose_shift, trace

NUM_FOLDS = 10
FEWEST_ROWS = 20  # of an important class: with fewer an interval of its recall is wider than .4
TARGETS = (0.8, 0.9, 0.95, 0.98, 0.99, 1.0)  # recalls whose price is told
SPLIT_SEED = 0


def audit(
    scores: ArrayLike,
    labels: ArrayLike,
    important: str | int | Sequence[str | int],
    *,
    classes: Sequence[str] | None = None,
    split: Sequence[str] | None = None,
    kind: str | None = None,
    tolerance: float = 0.0,
) -> Audit:
    """What a trained model's important classes could gain from a shift, judged on rows it was not tuned on.

    scores: (N, C), logits or probabilities (told apart unless `kind` says which); labels: names or indices (N,).
    split: "val" or "test" for each row: the shift is then tuned on val and judged on test. Without it each tenth of
    the rows is judged with the shift that the other nine tenths tuned; what is recommended is tuned on all of them.
    tolerance: accuracy that may be given up, 0.01 for a point.

    Of 200 made tables each (300 to 4,000 rows, a tenth of them important, with and without something to gain) the
    recommended shift's true change lay within the 95 % intervals for .85 to .995 and below them for up to .045. Halves
    that tune for each other: .77 to .995 and up to .115, for a half chooses another shift than the whole
    (benchmarks/audit.py). Rows count as independent: frames of one film are fewer than they look.

    >>> drawn = np.random.default_rng(0)
    >>> labels = drawn.integers(0, 3, 600)
    >>> scores = drawn.normal(size=(600, 3)) + 2 * np.eye(3)[labels] - [0, 1.5, 0]
    >>> found = audit(scores, labels, "stop", classes=["limit", "stop", "yield"])
    >>> found.kind, round(found.shift, 2), round(found.recall.estimate, 2), round(found.accuracy.estimate, 2)
    ('gain', 2.41, 0.43, 0.01)
    """
    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance={tolerance!r} (--keep-accuracy) is not allowed; give 0 to 1, 0.01 for a point")
    checked = check(scores, labels, important, classes, kind)
    every = exact(checked.logits, checked.labels, checked.important)
    parts, tuned_on = _parts(checked, split)
    judged = np.sort(np.concatenate([rows for _, rows in parts]))
    _refuse_empty(checked, every, judged, parts)
    after = np.zeros(len(every), dtype=bool)
    for tuning, rows in parts:
        after[rows] = rows_of(every, rows).correct(_tune(rows_of(every, tuning), tolerance))
    whole = np.unique(np.concatenate([tuning for tuning, _ in parts]))
    before = every.correct()[judged]
    after, here = after[judged], rows_of(every, judged)
    own = np.isin(here.labels, every.important)
    recall = compare_rows(before[own], after[own], here.labels[own])
    accuracy = compare_rows(before, after)
    enough = min(int(here.num.min()), int(rows_of(every, whole).num.min())) >= FEWEST_ROWS
    shift = _tune(rows_of(every, whole), tolerance)
    is_gain = shift > 0 and recall.low > 0 and accuracy.high >= -tolerance
    curve = trace(here)
    return Audit(
        classes=checked.classes,
        important=tuple(checked.classes[index] for index in checked.important),
        scores_are=checked.kind,
        num_rows=len(every),
        tuned_on=tuned_on,
        tolerance=tolerance,
        kind="unknown" if not enough else "gain" if is_gain else "none",
        shift=shift,
        recall=recall,
        accuracy=accuracy,
        accuracy_before=Rate(int(before.sum()), len(before)),
        accuracy_after=Rate(int(after.sum()), len(after)),
        by_class=tuple(_by_class(checked, judged, before, after)),
        prices=tuple(_prices(curve)),
        curve=curve,
    )


def _tune(scores: Scores, tolerance: float) -> float:
    """The shift with the best recall at no less than the rows' own accuracy, less the tolerance; at least 0."""
    found = choose_shift(scores, accuracy_floor=scores.accuracy() - tolerance)
    assert found is not None, "no shift at all keeps the accuracy as it is"
    return found.shift[0]


def _parts(checked: Checked, split: Sequence[str] | None) -> tuple[list[tuple[Array, Array]], str]:
    """Pairs of rows to tune on and rows to judge, and how they came about."""
    rows = np.arange(len(checked.labels))
    if split is not None:
        if len(split) != len(rows):
            raise InputError(f"{len(rows):,} rows and {len(split):,} split names do not fit; give one a row")
        words = np.array([SPLIT_ALIASES.get(str(word).strip().lower(), "") for word in split])
        if unknown := [str(word) for word, known in zip(split, words.tolist(), strict=True) if not known]:
            raise InputError(f"{unknown[0]!r} is no split; {closest(unknown[0], ('val', 'test'))}")
        if {"val", "test"} <= set(words.tolist()):
            return [(rows[words == "val"], rows[words == "test"])], "the val rows; judged on the test rows"
        rows = rows[words != "train"]
        if not len(rows):
            raise InputError(
                "every row is of the train split, on which a model says nothing true; give val or test rows"
            )
    fold = _folds(checked.labels[rows])
    return [
        (rows[fold != number], rows[fold == number]) for number in np.unique(fold).tolist()
    ], f"nine tenths of the rows, judged on the tenth left out, {NUM_FOLDS} times"


def _folds(labels: Array) -> Array:
    """A fold for every row, the same on every machine; each class is spread over all of them."""
    drawn = np.random.default_rng(SPLIT_SEED)
    fold = np.zeros(len(labels), dtype=int)
    start = 0
    for index in np.unique(labels):
        rows = drawn.permutation(np.flatnonzero(labels == index))
        fold[rows] = (start + np.arange(len(rows))) % NUM_FOLDS
        start += len(rows)
    return fold


def _refuse_empty(checked: Checked, every: Scores, judged: Array, parts: Sequence[tuple[Array, Array]]) -> None:
    for index in checked.important:
        for where, rows in (("judge", judged), *(("tune on", tuning) for tuning, _ in parts)):
            num = int((every.labels[rows] == index).sum())
            if num == 0:
                name = checked.classes[index]
                total = int((every.labels == index).sum())
                raise InputError(
                    f"important class {name!r} has {total} rows in all and none to {where}; give at least {FEWEST_ROWS}"
                )


def _by_class(checked: Checked, judged: Array, before: Array, after: Array) -> Iterator[ClassResult]:
    labels, predicted = checked.labels[judged], checked.logits[judged].argmax(axis=1)
    for index, name in enumerate(checked.classes):
        own = labels == index
        num = int(own.sum())
        wrong = np.bincount(predicted[own & ~before], minlength=len(checked.classes))
        order = [place for place in np.argsort(-wrong, kind="stable").tolist() if wrong[place]]
        yield ClassResult(
            name,
            index in checked.important,
            Rate(int(before[own].sum()), num),
            Rate(int(after[own].sum()), num),
            compare_rows(before[own], after[own]) if num else None,
            tuple((checked.classes[place], int(wrong[place])) for place in order[:5]),
        )


def _prices(curve: Curve) -> Iterator[Price]:
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
                float(np.mean(curve.precision[state])),
            )
