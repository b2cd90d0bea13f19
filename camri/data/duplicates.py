"""Rows that are there twice, found by hash: in two splits, in two classes, or just copied; and groups in two splits."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from camri.data.dataset import DataSet, Split


def across_splits(dataset: DataSet) -> list[dict[str, Any]]:
    """Exact duplicates between splits: for each pair of splits that shares rows, which rows of both.

    [{"splits": ["train", "test"], "rows": [[train row, test row], …]}]; a test row that equals several train
    rows is listed with the first of them.
    """
    hashes = {name: _hashes(split) for name, split in dataset.splits.items()}
    found: list[dict[str, Any]] = []
    for one, other in combinations(dataset.splits, 2):
        first_row = {key: row for row, key in reversed(list(enumerate(hashes[one])))}
        pairs = [[first_row[key], row] for row, key in enumerate(hashes[other]) if key in first_row]
        if pairs:
            found.append({"splits": [one, other], "rows": pairs})
    return found


def first_copies(split: Split) -> np.ndarray:
    """For each row the first one with the same content, most often itself: int64 (N,)."""
    first_row: dict[bytes, int] = {}
    return np.array([first_row.setdefault(key, row) for row, key in enumerate(_hashes(split))], dtype=np.int64)


def remarks(dataset: DataSet, duplicates: Sequence[Mapping[str, Any]], names: Mapping[str, Sequence[str]]) -> list[str]:
    """A sentence for each way in which copies spoil a data set: rows both trained and judged on, or in two classes.

    `duplicates` is what `across_splits` found; `names` has what the rows are called, by split, where that is known.
    """

    def called(part: str, row: int) -> str:
        return names[part][row] if part in names else f"row {row} of {part}"

    told = []
    for found in duplicates:
        (one, other), (first, second) = found["splits"], found["rows"][0]
        told.append(
            f"{len(found['rows']):,} of {len(dataset.splits[other]):,} {other} images are exact copies of {one} images "
            f"({called(other, second)} is {called(one, first)}), and results on them look better than they are; "
            "where the data are yours, remove them from one of the two"
        )
    for part, split in dataset.splits.items():
        labels, first_of = split.labels.numpy(), first_copies(split)
        torn = np.flatnonzero(labels != labels[first_of]).tolist()
        if torn:
            row, first = torn[0], int(first_of[torn[0]])
            told.append(
                f"{len(torn):,} images of {part} stand in another class too: {called(part, row)} is "
                f"{dataset.classes[labels[row]]!r}, and its copy {called(part, first)} is "
                f"{dataset.classes[labels[first]]!r}; remove the wrong ones"
            )
    return told


def torn_groups(dataset: DataSet) -> list[str]:
    """A sentence for each pair of splits that have groups in common: a model would be judged by what it knows."""
    told = []
    for one, other in combinations(dataset.splits, 2):
        trained, judged = dataset.splits[one].groups, dataset.splits[other].groups
        if trained is None or judged is None:
            continue
        shared = np.intersect1d(trained.numpy(), judged.numpy())
        if len(shared):
            told.append(
                f"{len(shared):,} of the {len(judged.unique()):,} groups of {other} are in {one} too, with "
                f"{int(np.isin(judged.numpy(), shared).sum()):,} of its {len(judged):,} rows, and results on them look "
                "better than they are; give each group to one split"
            )
    return told


def count_copies(split: Split) -> int:
    """How many rows are the same as one before them."""
    return int(np.count_nonzero(first_copies(split) != np.arange(len(split))))


def _hashes(split: Split) -> list[bytes]:
    inputs = split.inputs.contiguous().numpy()
    return [hashlib.blake2b(row.data, digest_size=16).digest() for row in inputs]
