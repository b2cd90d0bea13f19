"""Splits: sizes, whole groups, no lost rows, and the same rows in every version."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from camri.data import Split, hold_out, load, make_test, thin_out
from camri.data.dataset import DataSet, _apportion, assemble, choose_rows, hash_json
from camri.errors import InputError


def rows_of(labels: list[int], groups: list[int] | None = None, **others: list[int]) -> DataSet:
    """A data set whose feature is the row's own number, so that rows can be followed."""

    def split(labels: list[int], groups: list[int] | None, first: int) -> Split:
        features = torch.arange(first, first + len(labels), dtype=torch.float32)[:, None]
        return Split(features, torch.tensor(labels), None if groups is None else torch.tensor(groups))

    splits = {"train": split(labels, groups, 0)}
    splits |= {name: split(rows, None, 10_000) for name, rows in others.items()}
    classes = tuple(f"class {k}" for k in range(max(labels) + 1))
    return assemble("rows", classes, splits, {})


def numbers(split: Split) -> list[int]:
    return split.inputs[:, 0].int().tolist()


def test_each_class_gives_its_share() -> None:
    data = hold_out(rows_of([0] * 100 + [1] * 50 + [2] * 10), fraction=0.2, seed=7)
    assert data.class_counts("val").tolist() == [20, 10, 2]
    assert data.class_counts("train").tolist() == [80, 40, 8]


def test_no_row_is_lost_or_doubled_and_order_is_kept() -> None:
    data = hold_out(rows_of([0, 1] * 40), fraction=0.25)
    assert sorted(numbers(data.splits["train"]) + numbers(data.splits["val"])) == list(range(80))
    assert numbers(data.splits["train"]) == sorted(numbers(data.splits["train"]))
    assert [n % 2 for n in numbers(data.splits["val"])] == data.splits["val"].labels.tolist()


def test_the_rows_drawn_are_pinned() -> None:
    """These rows were drawn when the split was designed; they must be drawn by every version after."""
    data = hold_out(rows_of([0] * 12 + [1] * 12), fraction=0.25, seed=0)
    assert numbers(data.splits["val"]) == PINNED
    assert data.provenance["splits"] == [
        {
            "part": "val",
            "from": "train",
            "asked_rows": 6,
            "rows": 6,
            "seed": 0,
            "by": "class",
            "sha256": hashlib.sha256(np.array(PINNED, "<i8").tobytes()).hexdigest(),
        }
    ]


PINNED = [2, 5, 9, 12, 17, 23]


def test_another_seed_draws_other_rows_and_another_fingerprint() -> None:
    data = rows_of([0] * 50 + [1] * 50)
    first, again, other = hold_out(data, seed=0), hold_out(data), hold_out(data, seed=1)
    assert numbers(first.splits["val"]) == numbers(again.splits["val"])
    assert first.fingerprint == again.fingerprint
    assert numbers(first.splits["val"]) != numbers(other.splits["val"])
    assert len({data.fingerprint, first.fingerprint, other.fingerprint}) == 3


def test_test_rows_are_not_touched() -> None:
    data = rows_of([0] * 20 + [1] * 20, test=[0, 1, 1])
    assert hold_out(data).splits["test"] is data.splits["test"]


def test_groups_stay_whole() -> None:
    groups = [k // 10 for k in range(400)]
    data = hold_out(rows_of([0] * 200 + [1] * 200, groups), fraction=0.1, seed=5)
    train, val = data.splits["train"].groups, data.splits["val"].groups
    assert train is not None
    assert val is not None
    assert not set(train.tolist()) & set(val.tolist())
    assert data.class_counts("val").tolist() == [20, 20]
    assert data.provenance["splits"][0]["by"] == "class and group"


def test_a_group_larger_than_the_share_is_still_taken_once() -> None:
    data = hold_out(rows_of([0] * 30 + [1] * 300, [0] * 15 + [1] * 15 + list(range(2, 302))), fraction=0.1)
    assert data.class_counts("val").tolist() == [15, 30]


@pytest.mark.parametrize(("fraction", "counts"), [(0.14, [10, 14]), (0.16, [20, 16])])
def test_a_group_is_taken_where_that_comes_nearer_to_the_share(fraction: float, counts: list[int]) -> None:
    groups = [k // 10 for k in range(100)] + list(range(10, 110))  # of ten rows in class 0, of one row in class 1
    data = hold_out(rows_of([0] * 100 + [1] * 100, groups), fraction=fraction)
    assert data.class_counts("val").tolist() == counts


def test_a_part_with_fewer_rows_than_classes_says_so() -> None:
    with pytest.warns(
        UserWarning, match=r"2 classes of rows have no rows in val: 3 rows are too few for 5 .* 'class 3'"
    ):
        hold_out(rows_of([k // 3 for k in range(15)]), fraction=0.2)


def test_a_class_with_one_row_keeps_it_in_train() -> None:
    with pytest.warns(UserWarning, match=r"1 classes of rows have no rows in val: .* last row .* 'class 1'"):
        data = hold_out(rows_of([0] * 20 + [1]), fraction=0.5)
    assert data.class_counts("train").tolist()[1] == 1
    assert data.class_counts("val").tolist()[1] == 0


def test_a_class_with_one_group_keeps_it_in_train() -> None:
    with pytest.warns(UserWarning, match=r"last group in train; the first is 'class 1'"):
        data = hold_out(rows_of([0] * 20 + [1] * 10, [k // 2 for k in range(20)] + [99] * 10), fraction=0.4)
    assert data.class_counts("train").tolist() == [12, 10]
    assert data.class_counts("val").tolist() == [8, 0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(2, 40), min_size=2, max_size=12),
    st.floats(0.05, 0.6),
    st.integers(0, 2**70),
)
def test_exact_sizes(class_sizes: list[int], fraction: float, seed: int) -> None:
    labels = [k for k, size in enumerate(class_sizes) for _ in range(size)]
    wanted = max(len(class_sizes), round(fraction * len(labels)))
    wanted = min(wanted, len(labels) - len(class_sizes))
    data = make_test(rows_of(labels), num_rows=wanted, seed=seed)
    counts = data.class_counts("test").numpy()
    assert counts.sum() == wanted
    assert (counts >= 1).all()
    exact = np.array(class_sizes) * wanted / len(labels)
    floor_at_one = np.clip(exact, 1, np.array(class_sizes) - 1)
    assert (np.abs(counts - floor_at_one) <= 1 + len(class_sizes) / 2).all()


@pytest.mark.parametrize(
    ("class_rows", "num_rows", "shares"),
    [
        ([50, 30, 20], 7, [4, 2, 1]),  # 3.5, 2.1 and 1.4
        ([1, 10, 11, 12, 13], 25, [0, 5, 6, 6, 8]),  # the first cannot give its 0.53; the largest does
        ([1000, 2, 2], 3, [1, 1, 1]),  # every class gives one
        ([1000, 2, 2], 2, [2, 0, 0]),  # unless there are more classes than rows to give
        ([2, 2, 0], 4, [1, 1, 0]),  # a class keeps one
    ],
)
def test_shares_by_hand(class_rows: list[int], num_rows: int, shares: list[int]) -> None:
    assert _apportion(np.array(class_rows), num_rows).tolist() == shares


def test_a_group_over_two_classes_counts_for_its_larger_one() -> None:
    labels, groups = [0, 0, 1, 1, 1, 0, 0, 1], [5, 5, 5, 6, 6, 7, 7, 8]
    taken = choose_rows(Split(torch.zeros(8, 1), torch.tensor(labels), torch.tensor(groups)), 2, 3, "s")
    by_group = {group: {bool(t) for t, g in zip(taken, groups, strict=True) if g == group} for group in groups}
    assert all(len(values) == 1 for values in by_group.values())
    assert sum(by_group[5] | set()) + sum(by_group[7]) == 1  # one of class 0's two groups
    assert sum(by_group[6]) + sum(by_group[8]) == 1


def test_a_hundred_thousand_classes_are_quick() -> None:
    labels = np.repeat(np.arange(100_000), 3)
    split = Split(torch.zeros(300_000, 1), torch.from_numpy(labels))
    taken = choose_rows(split, 100_000, 100_000, "0/val")
    assert np.bincount(labels[taken], minlength=100_000).tolist() == [1] * 100_000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"part": "train"}, "part='train' cannot be held out; choices: val, test"),
        ({"fraction": 1.5}, r"fraction=1.5 must lie between 0 and 1"),
        ({"fraction": 0.0}, r"fraction=0.0 must lie between 0 and 1"),
        ({"seed": 0.5}, "seed=0.5 must be a whole number"),
        ({"seed": True, "part": "val"}, "seed=True must be a whole number"),
        ({"part": "test"}, "digits already has a test split of 539 rows"),
    ],
)
def test_bad_arguments(arguments: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        hold_out(load("digits"), **arguments)


def test_a_test_split_has_the_rows_the_fraction_or_three_in_ten() -> None:
    data = rows_of([0] * 20 + [1] * 20)
    for asked, num_rows in (({}, 12), ({"fraction": 0.5}, 20), ({"num_rows": 39}, 38)):  # each class keeps one
        assert len(make_test(data, **asked).splits["test"]) == num_rows


def test_make_test_refuses_impossible_sizes() -> None:
    with pytest.raises(InputError, match="num_rows=0 must lie between 1 and 3"):
        make_test(rows_of([0, 0, 1, 1]), num_rows=0)
    with pytest.raises(InputError, match="num_rows=4 must lie between 1 and 3"):
        make_test(rows_of([0, 0, 1, 1]), num_rows=4)
    with pytest.raises(InputError, match="not both"):
        make_test(rows_of([0, 0, 1, 1]), num_rows=1, fraction=0.1)
    with pytest.raises(InputError, match="no class can spare a row"):
        make_test(rows_of([0, 1]), num_rows=1)


def test_thinning_keeps_a_part_of_the_named_classes_and_all_else() -> None:
    data = rows_of([0] * 100 + [1] * 40 + [2] * 10, test=[0, 1, 1])
    for seed in (0.5, True, "3"):
        with pytest.raises(InputError, match=rf"^seed={seed!r} must be a whole number"):
            thin_out(data, {"class 1": 0.1}, seed=seed)
    rare = thin_out(data, {"class 1": 0.1, "class 2": 0.5}, seed=3)
    assert rare.class_counts("train").tolist() == [100, 4, 5]
    kept = numbers(rare.splits["train"])
    assert kept == sorted(kept)
    assert kept[:100] == list(range(100))
    assert rare.splits["test"] is data.splits["test"]
    assert thin_out(data, {"class 2": 0.5, "class 1": 0.1}, seed=3).fingerprint != data.fingerprint
    again, other = (thin_out(data, {"class 1": 0.1, "class 2": 0.5}, seed=seed) for seed in (3, 4))
    assert (again.fingerprint, numbers(again.splits["train"])) == (rare.fingerprint, kept)
    assert numbers(other.splits["train"]) != kept
    assert rare.provenance["thinned"]["parts"] == {"class 1": 0.1, "class 2": 0.5}
    assert rare.provenance["thinned"]["rows"] == 109


def test_the_rows_that_thinning_keeps_are_pinned() -> None:
    """They were drawn when thinning was designed; they must be drawn by every version after."""
    data = rows_of([0, 1] * 12, test=[0, 1])
    rare = thin_out(hold_out(data, fraction=0.25), {"class 1": 0.5})
    assert numbers(rare.splits["train"]) == THINNED
    before = numbers(hold_out(data, fraction=0.25).splits["train"])
    places = [before.index(row) for row in THINNED]
    step = {
        "parts": {"class 1": 0.5},
        "rows": 13,
        "seed": 0,
        "sha256": hashlib.sha256(np.array(places, "<i8").tobytes()).hexdigest(),
    }
    assert rare.provenance["thinned"] == step
    assert rare.provenance["splits"] == hold_out(data, fraction=0.25).provenance["splits"]
    assert rare.fingerprint == hash_json([hold_out(data, fraction=0.25).fingerprint, step])
    assert (rare.name, rare.classes, list(rare.splits)) == (data.name, data.classes, ["train", "val", "test"])
    assert thin_out(data, {"class 1": 0.5}, seed=0).fingerprint == thin_out(data, {"class 1": 0.5}).fingerprint


THINNED = [3, 4, 6, 8, 10, 11, 13, 14, 16, 18, 20, 22, 23]


def test_each_class_is_thinned_on_its_own() -> None:
    """What else is thinned does not matter to a class, nor does the order."""
    data = rows_of([0] * 40 + [1] * 40 + [2] * 9)
    both = numbers(thin_out(data, {"class 0": 0.25, "class 1": 0.25}).splits["train"])
    turned = numbers(thin_out(data, {"class 1": 0.25, "class 0": 0.25}).splits["train"])
    alone = numbers(thin_out(data, {"class 1": 0.25}).splits["train"])
    assert both == turned
    assert [row for row in both if row >= 40] == [row for row in alone if row >= 40]
    ones, noughts = [row - 40 for row in both if 40 <= row < 80], [row for row in both if row < 40]
    assert len(ones) == len(noughts) == 10
    assert ones != noughts
    assert len(thin_out(data, {"class 2": 0.06}).splits["train"]) == 81  # 0.54 rows of 9 are one


def test_thinning_keeps_whole_groups() -> None:
    data = rows_of([0] * 6 + [1] * 30, groups=[0] * 6 + [1 + n // 5 for n in range(30)])
    kept = thin_out(data, {"class 1": 0.3}).splits["train"]
    groups = kept.groups[kept.labels == 1]
    assert torch.unique(groups, return_counts=True)[1].tolist() == [5, 5]
    with pytest.raises(InputError, match=r"thin class 0=0\.5 leaves none of its 6 train rows in whole groups"):
        thin_out(data, {"class 0": 0.5})


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"class 1": 0}, "thin class 1=0 is not allowed; give a part of its rows between 0 and 1"),
        ({"class 1": 1.0}, "thin class 1=1.0 is not allowed"),
        ({"class 1": True}, "thin class 1=True is not allowed"),
        ({"class 1": "0.5"}, "thin class 1='0.5' is not allowed"),
        ({"class 2": 0.5}, "thin class 2=0.5 leaves none of its 0 train rows"),
        ({"class 1": 0.1}, "thin class 1=0.1 leaves none of its 4 train rows; give a larger part"),
        ({"clas 1": 0.5}, "class 'clas 1' is not in rows; did you mean 'class 1'"),
    ],
)
def test_impossible_thinning_is_refused(parts: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        thin_out(rows_of([0] * 8 + [1] * 4 + [3] * 2), parts)


def test_a_data_set_is_thinned_once_with_all_its_parts():
    rare = thin_out(load("digits"), {"8": 0.5, "3": 0.1})
    with pytest.raises(InputError, match=r"digits is thinned already \(8, 3\); give the parts of all classes at once"):
        thin_out(rare, {"8": 0.5})
