"""Exact duplicates across splits: which rows, of which splits, and none that only look alike."""

import torch

from camri.data import Split
from camri.data.dataset import DataSet, across_splits, assemble


def data_set(**splits: list[int]) -> DataSet:
    """A data set of one-pixel images."""
    made = {
        part: Split(torch.tensor(values, dtype=torch.uint8).reshape(-1, 1, 1, 1), torch.arange(len(values)) % 2)
        for part, values in splits.items()
    }
    return assemble("pixels", ("a", "b"), made, {})


def test_rows_of_both_splits_are_named() -> None:
    found = across_splits(data_set(train=[1, 2, 3, 2], val=[9, 3], test=[2, 7, 9, 2]))
    assert found == [
        {"splits": ["train", "val"], "rows": [[2, 1]]},
        {"splits": ["train", "test"], "rows": [[1, 0], [1, 3]]},
        {"splits": ["val", "test"], "rows": [[0, 2]]},
    ]


def test_no_duplicates_and_none_within_a_split() -> None:
    assert across_splits(data_set(train=[1, 1, 2], test=[3, 3])) == []


def test_features_too() -> None:
    rows = torch.tensor([[0.5, 1.0], [0.5, 2.0]])
    splits = {"train": Split(rows, torch.tensor([0, 1])), "test": Split(rows[1:], torch.tensor([1]))}
    assert across_splits(assemble("f", ("a", "b"), splits, {})) == [{"splits": ["train", "test"], "rows": [[1, 0]]}]
