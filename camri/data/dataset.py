"""Data sets as tensors: uint8 images or float features, labels, names, splits; and batches of them on a device."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from camri.data.listing import clean_name
from camri.data.rows import Inputs, blocks, take
from camri.errors import InputError, closest
from camri.text import Noun, noun_of

SPLIT_NAMES = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of one part of a data set.

    inputs: uint8 (N, H, W, C) images or float32 (N, D) features, `Rows` if they stay on disk; labels: int64 (N,);
    groups: int64 (N,) or None; rows of one group (frames of one GTSRB track) belong together.
    """

    inputs: Inputs
    labels: torch.Tensor
    groups: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, indices: np.ndarray) -> "Split":
        """The rows at the indices, in that order: a copy, or a selection of those on disk."""
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
        """The word for its inputs: image or row; features of a frozen backbone are images to their owner."""
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
