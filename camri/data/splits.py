"""Hold-out splits: stratified by class, whole groups at a time, the same on every machine.

The order in which rows are drawn is the order of blake2b(seed, part, unit): no library's random numbers,
so a split survives new versions of numpy, torch and scikit-learn.

Rows that are there twice, found by hash: in two splits, in two classes, or just copied; and groups in two splits.
"""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import torch

from camri.data.dataset import SPLIT_NAMES, DataSet, Split, hash_json
from camri.errors import InputError


def hold_out(dataset: DataSet, part: str = "val", fraction: float = 0.1, seed: int = 0) -> DataSet:
    """The data set with `part` taken out of its train split; every other split stays as it is.

    Each class gives up `fraction` of its rows; where rows have groups, whole groups move, so a part can be
    a little larger or smaller. A class that has a single row (or group) keeps it in train.

    >>> from camri.data import load
    >>> digits = hold_out(load("digits"), fraction=0.1, seed=3)
    >>> {name: len(split) for name, split in digits.splits.items()}
    {'train': 1132, 'val': 126, 'test': 539}
    """
    if part not in ("val", "test"):
        raise InputError(f"part={part!r} cannot be held out; choices: val, test", argument="part")
    if not 0 < fraction < 1:
        raise InputError(f"fraction={fraction!r} must lie between 0 and 1, for example 0.1", argument="fraction")
    return _take(dataset, part, round(fraction * len(dataset.splits["train"])), seed)


def make_test(
    dataset: DataSet, *, fraction: float | None = None, num_rows: int | None = None, seed: int = 0
) -> DataSet:
    """The data set with a test split taken out of train, for data that comes without one.

    Give a fraction (0.3 unless told) or the exact number of rows.
    """
    if num_rows is None:
        return hold_out(dataset, "test", 0.3 if fraction is None else fraction, seed)
    if fraction is not None:
        raise InputError(f"give fraction={fraction!r} or num_rows={num_rows!r}, not both")
    available = len(dataset.splits["train"])
    if not 0 < num_rows < available:
        raise InputError(
            f"num_rows={num_rows!r} must lie between 1 and {available - 1} for {dataset.name}", argument="num_rows"
        )
    return _take(dataset, "test", num_rows, seed)


def thin_out(dataset: DataSet, parts: Mapping[str, float], seed: int = 0) -> DataSet:
    """The data set with only a part of some classes' train rows, {"cat": 0.1} for a tenth; other splits stay.

    For studies of rare classes: what a class loses when it becomes rare is measured on as many rows as before. Where
    rows have groups, whole groups stay.

    >>> from camri.data import load
    >>> digits = load("digits")
    >>> rare = thin_out(digits, {"8": 0.1})
    >>> int(digits.class_counts("train")[8]), int(rare.class_counts("train")[8]), len(rare.splits["test"])
    (122, 12, 539)
    """
    _check_seed(seed)
    if "thinned" in dataset.provenance:  # a second time would have to tell parts of parts
        done = ", ".join(dataset.provenance["thinned"]["parts"])
        raise InputError(f"{dataset.name} is thinned already ({done}); give the parts of all classes at once")
    train = dataset.splits["train"]
    labels = train.labels.numpy()
    kept = np.ones(len(labels), dtype=bool)
    for name, part in parts.items():
        if not isinstance(part, (int, float)) or not 0 < part < 1:
            raise InputError(f"thin {name}={part!r} is not allowed; give a part of its rows between 0 and 1")
        own = np.flatnonzero(labels == dataset.class_index(name))
        num_rows = round(part * len(own))
        if num_rows:
            kept[own] = choose_rows(train.rows(own), dataset.num_classes, num_rows, salt=f"{seed}/thin/{name}")
        if not num_rows or not kept[own].any():  # of a single group none can be kept and left out at once
            what = "rows" if train.groups is None else "rows, whole groups at a time"
            raise InputError(f"thin {name}={part:g} leaves none of its {len(own)} train {what}; give a larger part")
    step = {
        "parts": dict(parts),
        "rows": int(kept.sum()),
        "seed": seed,
        "sha256": hashlib.sha256(np.flatnonzero(kept).astype("<i8").tobytes()).hexdigest(),
    }
    splits = {**dataset.splits, "train": train.rows(np.flatnonzero(kept))}
    told = {**dataset.provenance, "thinned": step}
    return replace(dataset, splits=splits, fingerprint=hash_json([dataset.fingerprint, step]), provenance=told)


def _take(dataset: DataSet, part: str, num_rows: int, seed: int) -> DataSet:
    if part in dataset.splits:
        raise InputError(f"{dataset.name} has a {part} split of {len(dataset.splits[part])} rows already; use that one")
    _check_seed(seed)
    train = dataset.splits["train"]
    has_copies = train.groups is None and dataset.provenance.get("copies_in_train", 0) > 0
    # A copied image would else be trained on in one copy and judged in the other.
    units = torch.from_numpy(first_copies(train)) if has_copies else train.groups
    taken = choose_rows(replace(train, groups=units), dataset.num_classes, num_rows, salt=f"{seed}/{part}")
    if not taken.any():
        raise InputError(
            f"{dataset.name} is too small to hold out a {part} split: no class can spare one of its "
            f"{'rows' if units is None else 'groups'}"
        )
    step: dict[str, Any] = {
        "part": part,
        "from": "train",
        "asked_rows": num_rows,
        "rows": int(taken.sum()),
        "seed": seed,
        "by": "class" if units is None else "class, copies together" if has_copies else "class and group",
        "sha256": hashlib.sha256(np.flatnonzero(taken).astype("<i8").tobytes()).hexdigest(),
    }
    labels = train.labels.numpy()
    kept_only = np.setdiff1d(labels, labels[taken])
    if len(kept_only):
        why = f"a class keeps its last {'row' if train.groups is None else 'group'} in train"
        if num_rows < dataset.num_classes:
            why = f"{num_rows:,} rows are too few for {dataset.num_classes:,} classes"
        warnings.warn(
            f"{len(kept_only)} classes of {dataset.name} have no rows in {part}: {why}; the first is "
            f"{dataset.classes[int(kept_only[0])]!r}",
            stacklevel=3,
        )
    splits = {
        **dataset.splits,
        "train": train.rows(np.flatnonzero(~taken)),
        part: train.rows(np.flatnonzero(taken)),
    }
    told = {**dataset.provenance, "splits": [*dataset.provenance.get("splits", []), step]}
    if has_copies:
        told["copies_in_train"] = count_copies(splits["train"])
    ordered = {name: splits[name] for name in SPLIT_NAMES if name in splits}
    return replace(dataset, splits=ordered, fingerprint=hash_json([dataset.fingerprint, step]), provenance=told)


def _check_seed(seed: object) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed={seed!r} must be a whole number", argument="seed")


def choose_rows(split: Split, num_classes: int, num_rows: int, salt: str) -> np.ndarray:
    """Which rows to take, bool (N,): `num_rows` of them, spread over the classes as the rows are.

    A group goes to the class that most of its rows have.
    """
    labels = split.labels.numpy()
    units = np.arange(len(labels)) if split.groups is None else split.groups.numpy()
    names, unit_of_row, unit_rows = np.unique(units, return_inverse=True, return_counts=True)
    unit_class = _majority_class(unit_of_row.ravel(), labels, len(names))
    class_rows = np.bincount(unit_class, weights=unit_rows, minlength=num_classes).astype(np.int64)
    targets = _apportion(class_rows, num_rows)

    drawn = np.array([_draw(salt, int(name)) for name in names], dtype=np.uint64)
    order = np.lexsort((names, drawn, unit_class))
    rows, classes = unit_rows[order], unit_class[order]
    is_first = np.concatenate([[True], classes[1:] != classes[:-1]])
    is_last = np.concatenate([is_first[1:], [True]])
    rows_before = np.cumsum(rows) - rows
    before = rows_before - rows_before[is_first][np.cumsum(is_first) - 1]
    # A group is taken when that leaves its class nearer to the target; the first of several in any case.
    wanted = (2 * (targets[classes] - before) >= rows) | is_first
    taken = np.zeros(len(names), dtype=bool)
    taken[order] = wanted & ~is_last & (targets[classes] > 0)
    return taken[unit_of_row.ravel()]


def _majority_class(unit_of_row: np.ndarray, labels: np.ndarray, num_units: int) -> np.ndarray:
    """The most frequent label of each unit, the smaller one where two tie: (U,)."""
    pairs, counts = np.unique(np.stack([unit_of_row, labels]), axis=1, return_counts=True)
    best_last = np.lexsort((-pairs[1], counts, pairs[0]))
    winners = np.zeros(num_units, dtype=np.int64)
    winners[pairs[0][best_last]] = pairs[1][best_last]
    return winners


def _apportion(class_rows: np.ndarray, num_rows: int) -> np.ndarray:
    """Whole rows per class in proportion (largest remainder) that add up to `num_rows`: (C,).

    A class keeps a row; it also gives one, wherever `num_rows` suffices for that.
    """
    shares, remainders = np.divmod(class_rows * num_rows, class_rows.sum())
    shares[np.argsort(-remainders, kind="stable")[: num_rows - shares.sum()]] += 1
    most = np.maximum(class_rows - 1, 0)
    least = np.minimum(most, 1) if num_rows >= np.count_nonzero(most) else np.zeros_like(most)
    shares = np.clip(shares, least, most)
    while (surplus := int(shares.sum()) - num_rows) != 0:
        movable = np.flatnonzero(shares > least if surplus > 0 else shares < most)
        if not len(movable):
            break
        largest_first = movable[np.argsort(-shares[movable], kind="stable")][: abs(surplus)]
        shares[largest_first] -= np.sign(surplus)
    return shares


def _draw(salt: str, unit: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{salt}/{unit}".encode(), digest_size=8).digest(), "big")


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
