"""Data sets as tensors: uint8 images or float features, labels and class names; held-out splits; copies of images.

Splits are held out by class and keep groups and copies together. Rows are drawn in the order of
blake2b(seed, split, unit), not by a library's random numbers: a split is the same on every machine and with every
version.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch

from camri.data.listing import clean_name
from camri.data.rows import Inputs, Rows, blocks, row_hash, take
from camri.errors import InputError, closest
from camri.text import Noun, noun_of

SPLIT_NAMES = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of one split of a data set.

    inputs: uint8 (N, H, W, C) images or float32 (N, D) features, as `Rows` if they stay on disk. labels: int64 (N,).
    groups: int64 (N,) or None. Rows of one group, such as the frames of a GTSRB track, belong together.
    """

    inputs: Inputs
    labels: torch.Tensor
    groups: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, indices: np.ndarray) -> "Split":
        """The rows at the indices, in that order. Images in memory are copied, those on disk stay there."""
        index = torch.from_numpy(np.ascontiguousarray(indices, dtype=np.int64))
        groups = None if self.groups is None else self.groups[index]
        return Split(take(self.inputs, index), self.labels[index], groups)

    def digests(self) -> dict[str, str]:
        """sha256 of the bytes of each array."""
        digests = {}
        for name, array in vars(self).items():
            if array is not None:
                state = hashlib.sha256()
                for block in blocks(array):
                    state.update(block.contiguous().numpy().data)
                digests[name] = state.hexdigest()
        return digests


@dataclass(frozen=True, eq=False)
class DataSet:
    """A named data set with its splits: "train", and "val" and "test" if there are any.

    `fingerprint` is a sha256 that changes with any pixel, label, class name or split. `provenance` is plain JSON:
    where the data came from, the options it was read with, and how each split was drawn. `resident` is how many bytes
    of images may be held in memory, the GPU's or this machine's; None: a share of what is free.

    >>> from camri.data import load
    >>> digits = load("digits")
    >>> digits.num_classes, digits.input_shape, len(digits.splits["train"])
    (10, (8, 8, 1), 1258)
    >>> digits.class_index("7")
    7
    """

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, Split]
    fingerprint: str
    provenance: Mapping[str, Any] = field(default_factory=dict)
    resident: int | None = None

    def __repr__(self) -> str:
        rows = ", ".join(f"{len(split)} {part}" for part, split in self.splits.items())
        return f"DataSet({self.name!r}, {self.num_classes} classes, {rows}, shape {self.input_shape})"

    @property
    def is_image(self) -> bool:
        """True for uint8 images, False for features."""
        return self.splits["train"].inputs.dtype == torch.uint8

    @property
    def noun(self) -> Noun:
        """The word for an input: image or row. Features of a frozen backbone are called images."""
        return noun_of(self.provenance.get("backbone", {}).get("input_shape", self.input_shape))

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(H, W, C) of an image, or (D,) of a feature row."""
        return tuple(self.splits["train"].inputs.shape[1:])

    def class_index(self, name: str) -> int:
        """The index of the class with this name."""
        try:
            return self.classes.index(clean_name(str(name)))
        except ValueError:
            hint = closest(name, self.classes)
            raise InputError(f"class {name!r} is not in {self.name}; {hint}") from None

    def class_counts(self, split: str) -> torch.Tensor:
        """Rows per class of a split: int64 (C,)."""
        if split not in self.splits:
            raise InputError(f"{self.name} has no split {split!r}; {closest(split, self.splits)}")
        return torch.bincount(self.splits[split].labels, minlength=self.num_classes)


def assemble(
    name: str, classes: tuple[str, ...], splits: Mapping[str, Split], provenance: Mapping[str, Any]
) -> DataSet:
    """Build a DataSet and compute its fingerprint and digests from its content."""
    ordered = {part: splits[part] for part in SPLIT_NAMES if part in splits}
    digests = {part: split.digests() for part, split in ordered.items()}
    shapes = {part: list(split.inputs.shape) for part, split in ordered.items()}
    return DataSet(name, classes, ordered, hash_json([classes, shapes, digests]), {**provenance, "sha256": digests})


def hash_json(value: object) -> str:
    """sha256 of a JSON value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def epoch_order(num_rows: int, generator: torch.Generator, device: torch.device | str) -> torch.Tensor:
    """A random order of the rows for one epoch: int64 (num_rows,) on the device."""
    return torch.randperm(num_rows, generator=generator, device=device)


def to_float(inputs: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """uint8 (B, H, W, C) -> float (B, C, H, W) in [0, 1]; float features are returned unchanged.

    The axes are permuted as a view, so the result is in channels_last memory format.

    >>> to_float(torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8)).flatten()
    tensor([0.0000, 0.2000, 1.0000])
    """
    if inputs.dtype != torch.uint8:
        return inputs
    return inputs.permute(0, 3, 1, 2).to(dtype).div_(255)


def hold_out(dataset: DataSet, part: str = "val", fraction: float = 0.1, seed: int = 0) -> DataSet:
    """Move a fraction of the train split into a new split; other splits stay as they are.

    Each class gives up `fraction` of its rows. If rows have groups, whole groups move, so the new split can be a
    little larger or smaller. A class with a single row (or group) keeps it in train.

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
    """Move rows of train into a test split: a fraction (default 0.3) or an exact number of rows."""
    if num_rows is None:
        return hold_out(dataset, "test", 0.3 if fraction is None else fraction, seed)
    if fraction is not None:
        raise InputError(f"give fraction={fraction!r} or num_rows={num_rows!r}, not both")
    available = len(dataset.splits["train"])
    if not 0 < num_rows < available:
        raise InputError(f"num_rows={num_rows!r} must lie between 1 and {available - 1}", argument="num_rows")
    return _take(dataset, "test", num_rows, seed)


def thin_out(dataset: DataSet, parts: Mapping[str, float], seed: int = 0) -> DataSet:
    """Keep only a part of some classes' train rows, {"cat": 0.1} for a tenth; other splits stay as they are.

    For studies of rare classes: the test rows stay, so recall is measured as precisely as before. If rows have groups,
    whole groups are kept.

    >>> from camri.data import load
    >>> digits = load("digits")
    >>> rare = thin_out(digits, {"8": 0.1})
    >>> int(digits.class_counts("train")[8]), int(rare.class_counts("train")[8]), len(rare.splits["test"])
    (122, 12, 539)
    """
    _check_seed(seed)
    if "thinned" in dataset.provenance:  # a part of a part would be hard to report
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
        if not num_rows or not kept[own].any():  # a single group is never split
            unit = "rows" if train.groups is None else "rows in whole groups"
            raise InputError(f"thin {name}={part:g} leaves none of its {len(own)} train {unit}; give a larger part")
    step = {"parts": dict(parts), "rows": int(kept.sum()), "seed": seed, "sha256": _hash_rows(kept)}
    return replace(
        dataset,
        splits={**dataset.splits, "train": train.rows(np.flatnonzero(kept))},
        fingerprint=hash_json([dataset.fingerprint, step]),
        provenance={**dataset.provenance, "thinned": step},
    )


def _take(dataset: DataSet, part: str, num_rows: int, seed: int) -> DataSet:
    if part in dataset.splits:
        raise InputError(f"{dataset.name} already has a {part} split of {len(dataset.splits[part])} rows; use that one")
    _check_seed(seed)
    train = dataset.splits["train"]
    has_copies = train.groups is None and dataset.provenance.get("copies_in_train", 0) > 0
    # Copies stay together: a model must not be tested on an image that it was trained on.
    units = torch.from_numpy(first_copies(train)) if has_copies else train.groups
    taken = choose_rows(replace(train, groups=units), dataset.num_classes, num_rows, salt=f"{seed}/{part}")
    if not taken.any():
        unit = "row" if units is None else "group"
        raise InputError(f"{dataset.name} is too small to hold out a {part} split: no class can spare a {unit}")
    step: dict[str, Any] = {
        "part": part,
        "from": "train",
        "asked_rows": num_rows,
        "rows": int(taken.sum()),
        "seed": seed,
        "by": "class" if units is None else "class, copies together" if has_copies else "class and group",
        "sha256": _hash_rows(taken),
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
    splits = {**dataset.splits, "train": train.rows(np.flatnonzero(~taken)), part: train.rows(np.flatnonzero(taken))}
    provenance = {**dataset.provenance, "splits": [*dataset.provenance.get("splits", []), step]}
    if has_copies:
        provenance["copies_in_train"] = count_copies(splits["train"])
    ordered = {name: splits[name] for name in SPLIT_NAMES if name in splits}
    fingerprint = hash_json([dataset.fingerprint, step])
    return replace(dataset, splits=ordered, fingerprint=fingerprint, provenance=provenance)


def _hash_rows(mask: np.ndarray) -> str:
    return hashlib.sha256(np.flatnonzero(mask).astype("<i8").tobytes()).hexdigest()


def _check_seed(seed: object) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed={seed!r} must be a whole number", argument="seed")


def choose_rows(split: Split, num_classes: int, num_rows: int, salt: str) -> np.ndarray:
    """Choose `num_rows` rows in the classes' proportions: bool (N,).

    A group counts for the class that most of its rows have.
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
    # Take a group if that brings its class nearer to the target. Always take the first of several.
    wanted = (2 * (targets[classes] - before) >= rows) | is_first
    taken = np.zeros(len(names), dtype=bool)
    taken[order] = wanted & ~is_last & (targets[classes] > 0)
    return taken[unit_of_row.ravel()]


def _majority_class(unit_of_row: np.ndarray, labels: np.ndarray, num_units: int) -> np.ndarray:
    """The most frequent label of each unit, the smaller one on a tie: (U,)."""
    pairs, counts = np.unique(np.stack([unit_of_row, labels]), axis=1, return_counts=True)
    best_last = np.lexsort((-pairs[1], counts, pairs[0]))
    winners = np.zeros(num_units, dtype=np.int64)
    winners[pairs[0][best_last]] = pairs[1][best_last]
    return winners


def _apportion(class_rows: np.ndarray, num_rows: int) -> np.ndarray:
    """Rows to take from each class in proportion to its size, `num_rows` in all, by largest remainder: (C,).

    Each class keeps at least one row, and gives at least one if `num_rows` suffices.
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
    """Exact duplicates between splits: [{"splits": ["train", "test"], "rows": [[train row, test row], …]}].

    A test row that equals several train rows is listed with the first of them.
    """
    hashes = {name: row_hashes(split) for name, split in dataset.splits.items()}
    duplicates: list[dict[str, Any]] = []
    for first, second in combinations(dataset.splits, 2):
        first_row = {key: row for row, key in reversed(list(enumerate(hashes[first])))}
        pairs = [[first_row[key], row] for row, key in enumerate(hashes[second]) if key in first_row]
        if pairs:
            duplicates.append({"splits": [first, second], "rows": pairs})
    return duplicates


def first_copies(split: Split) -> np.ndarray:
    """For each row the first row with the same content, itself if there is none before: int64 (N,)."""
    first_row: dict[bytes, int] = {}
    return np.array([first_row.setdefault(key, row) for row, key in enumerate(row_hashes(split))], dtype=np.int64)


def count_copies(split: Split) -> int:
    """The number of rows that equal an earlier one."""
    return int(np.count_nonzero(first_copies(split) != np.arange(len(split))))


def row_hashes(split: Split) -> list[bytes]:
    """Hash of each row's content."""
    inputs = split.inputs
    if isinstance(inputs, Rows) and inputs.store.hashes is not None:
        return [inputs.store.hashes[row] for row in inputs.index.tolist()]
    return [row_hash(row) for block in blocks(inputs) for row in block.contiguous().numpy()]


def copy_notes(
    dataset: DataSet, duplicates: Sequence[Mapping[str, Any]], names: Mapping[str, Sequence[str]]
) -> list[str]:
    """Notes on copies of images in two splits or in two classes, which distort results.

    duplicates: from `across_splits`. names: of the rows of each split, if known.
    """

    def called(part: str, row: int) -> str:
        return names[part][row] if part in names else f"row {row} of {part}"

    notes = []
    for pair in duplicates:
        (first, second), (first_row, second_row) = pair["splits"], pair["rows"][0]
        notes.append(
            f"{len(pair['rows']):,} of {len(dataset.splits[second]):,} {second} images are exact copies of {first} "
            f"images ({called(second, second_row)} is {called(first, first_row)}), so results on them look too good; "
            "if the data are yours, remove them from one split"
        )
    for part, split in dataset.splits.items():
        labels, first_of = split.labels.numpy(), first_copies(split)
        torn = np.flatnonzero(labels != labels[first_of]).tolist()
        if torn:
            row, first_row = torn[0], int(first_of[torn[0]])
            notes.append(
                f"{len(torn):,} images of {part} are also in another class: {called(part, row)} is "
                f"{dataset.classes[labels[row]]!r}, its copy {called(part, first_row)} is "
                f"{dataset.classes[labels[first_row]]!r}; remove the wrong ones"
            )
    return notes


def group_notes(dataset: DataSet) -> list[str]:
    """A note for each pair of splits that have groups in common."""
    notes = []
    for first, second in combinations(dataset.splits, 2):
        groups, others = dataset.splits[first].groups, dataset.splits[second].groups
        if groups is None or others is None:
            continue
        is_shared = np.isin(others.numpy(), groups.numpy())
        if is_shared.any():
            notes.append(
                f"{len(np.unique(others.numpy()[is_shared])):,} of the {len(others.unique()):,} groups of {second} are "
                f"also in {first}, with {int(is_shared.sum()):,} of its {len(others):,} rows, so results on them look "
                "too good; put each group into one split"
            )
    return notes
