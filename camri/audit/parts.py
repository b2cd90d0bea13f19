"""Which rows tune a shift and which judge it: whole groups on one side, every class on both."""

import heapq
from collections.abc import Sequence

import numpy as np

from camri.audit.scores import Checked
from camri.data.labels import to_splits
from camri.errors import InputError
from camri.metrics import Array

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
