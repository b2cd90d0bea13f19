"""Which rows tune a rule and which judge it: folds with every class on both sides and whole groups, or a split."""

import heapq
from collections.abc import Sequence

import numpy as np

from camri.decision.scores import Array

NUM_FOLDS = 10
SPLIT_SEED = 0  # of folds and draws


def draw_folds(labels: Array, groups: Array | None, important: Sequence[int] = ()) -> Array:
    """A fold for every row, the same on every machine; every class is in every fold, groups stay whole.

    A group belongs to the important class it has most rows of, or else to the class it has most rows of. The largest
    groups come first, each into the fold with the fewest rows of that class. Without groups every row is one.

    >>> draw_folds(np.array([0, 0, 1, 1, 1]), np.array([7, 7, 8, 9, 9])).tolist()
    [0, 0, 2, 1, 1]
    """
    return _fold_rows(labels) if groups is None else _fold_groups(labels, groups, important)


def _members(main: Array) -> list[tuple[int, Array]]:
    """(class, its units ascending) of the units' classes."""
    order = np.argsort(main, kind="stable")
    ends = np.flatnonzero(np.diff(main[order])) + 1
    return [(int(main[part[0]]), part) for part in np.split(order, ends)]


def _fold_rows(labels: Array) -> Array:
    """Deal the rows of each class in a drawn order, first to the fold that has the fewest rows so far."""
    drawn, every = np.random.default_rng(SPLIT_SEED), np.zeros(NUM_FOLDS, dtype=np.int64)
    folds = np.empty(len(labels), dtype=np.int64)
    for _, rows in _members(labels):
        turns = np.argsort(every, kind="stable")
        folds[drawn.permutation(rows)] = np.resize(turns, len(rows))
        every += len(rows) // NUM_FOLDS
        every[turns[: len(rows) % NUM_FOLDS]] += 1
    return folds


def _fold_groups(labels: Array, groups: Array, important: Sequence[int]) -> Array:
    drawn = np.random.default_rng(SPLIT_SEED)
    units = np.unique(groups, return_inverse=True)[1].ravel()
    main, own, size = _describe(units, labels, important)
    fold_of_unit = np.full(len(size), -1)
    rows_of = dict(_members(main[units]))
    counts = np.zeros((int(labels.max()) + 1, NUM_FOLDS), dtype=np.int64)  # rows by class and fold, so far
    for index, members in _members(main):
        members = drawn.permutation(members)
        members = members[np.argsort(-own[members], kind="stable")]
        here, every = counts[index], counts.sum(axis=0)
        fullness = list(zip(here.tolist(), every.tolist(), range(NUM_FOLDS), strict=True))
        heapq.heapify(fullness)
        for unit, rows, all_rows in zip(members.tolist(), own[members].tolist(), size[members].tolist(), strict=True):
            least, in_all, number = fullness[0]
            fold_of_unit[unit] = number
            heapq.heapreplace(fullness, (least + rows, in_all + all_rows, number))
        dealt = rows_of[index]
        np.add.at(counts, (labels[dealt], fold_of_unit[units[dealt]]), 1)
    return fold_of_unit[units]


def _describe(units: Array, labels: Array, important: Sequence[int]) -> tuple[Array, Array, Array]:
    """For every unit: the class that it belongs to, how many rows of that class it has, and how many in all."""
    base = int(labels.max()) + 1
    pairs, counts = np.unique(units.astype(np.int64) * base + labels, return_counts=True)
    unit, label = np.divmod(pairs, base)
    best_last = np.lexsort((-label, counts, np.isin(label, important), unit))
    size = np.bincount(units)
    main, own = np.zeros_like(size), np.zeros_like(size)
    main[unit[best_last]], own[unit[best_last]] = label[best_last], counts[best_last]
    return main, own, size
