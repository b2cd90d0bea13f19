"""Rows that stand in two splits at once, found by hash."""

import hashlib
from itertools import combinations

from camri.data.dataset import DataSet, Split


def across_splits(dataset: DataSet) -> list[dict[str, object]]:
    """Exact duplicates between splits: for each pair of splits that shares rows, which rows of both.

    [{"splits": ["train", "test"], "rows": [[train row, test row], …]}]; a test row that equals several train
    rows is listed with the first of them.
    """
    first_row = {name: _rows_by_hash(split) for name, split in dataset.splits.items()}
    found: list[dict[str, object]] = []
    for one, other in combinations(dataset.splits, 2):
        pairs = [
            [first_row[one][key], row]
            for row, key in enumerate(_hashes(dataset.splits[other]))
            if key in first_row[one]
        ]
        if pairs:
            found.append({"splits": [one, other], "rows": pairs})
    return found


def _rows_by_hash(split: Split) -> dict[bytes, int]:
    rows: dict[bytes, int] = {}
    for row, key in enumerate(_hashes(split)):
        rows.setdefault(key, row)
    return rows


def _hashes(split: Split) -> list[bytes]:
    inputs = split.inputs.contiguous().numpy()
    return [hashlib.blake2b(row.data, digest_size=16).digest() for row in inputs]
