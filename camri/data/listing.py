"""What a source finds before anything is decoded: the hand-off from the readers to the decoder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class DataWarning(UserWarning):
    """Something about a data set that its owner should know; `camri data show` has it in its summary."""


@dataclass(frozen=True)
class Options:
    """How a data set is to be read; part of the cache's key."""

    size: tuple[int, int] | None = None  # (height, width)
    roi: bool = False
    skip_bad: bool = False
    verify: bool = True
    path_column: str | None = None
    label_column: str | None = None
    group_column: str | None = None
    split_column: str | None = None


@dataclass(frozen=True)
class EncodedImages:
    """Images as files or as the bytes of files.

    boxes: float (N, 4), left, top, right, bottom as fractions of the width and height: what to crop to.
    """

    sources: Sequence[str | memoryview]
    names: Sequence[str]  # what messages call them
    boxes: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.sources)


@dataclass(frozen=True)
class Part:
    """One split: encoded images, uint8 (N, H, W, C) or float32 (N, D); int64 labels; int64 groups or None."""

    inputs: EncodedImages | np.ndarray
    labels: np.ndarray
    groups: np.ndarray | None = None
    names: Sequence[str] | None = None  # what messages call the rows of decoded images


@dataclass(frozen=True)
class Listing:
    """A data set before decoding. `size` is used when the user names none."""

    classes: tuple[str, ...]
    parts: dict[str, Part]
    size: tuple[int, int] | None = None
    test_rows: int | None = None  # to be held out by a seeded split when there is no test part
    facts: dict[str, Any] = field(default_factory=dict)  # for the provenance


@dataclass(frozen=True)
class Found:
    """A recognised layout: which files it depends on, and how to read it."""

    layout: str
    files: Sequence[str]
    read: Callable[[str], Listing]  # given a scratch folder that outlives the decoding
    also: Sequence[str] = ()  # facts outside the files that matter: names of empty folders
