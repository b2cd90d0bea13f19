"""Images that stay on disk and are read by the batch, and how much memory images may take.

Rows are read with `preadv`, not through a memory map. Pages of a map count as memory of the process until the system
takes them back, so memory would have no bound. And if the file is cut short or the disk fails, a map ends the process
by a signal instead of an error.
"""

import hashlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from camri.errors import InputError

BLOCK_BYTES = 64 << 20  # of rows that are in memory at once where all rows are read in turn
SHARE = 0.5  # of the free memory that images may take: splits copy them, and training needs some too
SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(?:B|([KMGT])(i?)B)?")


class Store(Protocol):
    """Where rows (N, ...) are kept: `read` copies the rows with these numbers into an array."""

    how: str  # they are read, in words
    hashes: Sequence[bytes] | None  # of the rows, if known
    shape: tuple[int, ...]

    def read(self, rows: np.ndarray, out: np.ndarray) -> None: ...


class Stored:
    """A uint8 array (N, ...) in a file, from the offset on. Unpickling opens the file again."""

    how = "streamed from the cache"
    hashes: Sequence[bytes] | None = None

    def __init__(self, path: Path, offset: int, shape: tuple[int, ...]):
        self.path, self.offset, self.shape = path, offset, shape
        try:
            self.handle = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}); run the same command again") from None

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            os.close(self.handle)

    def __reduce__(self) -> tuple[Any, ...]:
        return Stored, (self.path, self.offset, self.shape)

    def read(self, rows: np.ndarray, out: np.ndarray) -> None:
        size, target = math.prod(self.shape[1:]), memoryview(out.reshape(-1).data)
        starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)  # one read for each run of consecutive rows
        firsts = (starts * size).tolist()
        ends, places = [*firsts[1:], len(rows) * size], (self.offset + rows[starts] * size).tolist()
        # For small rows the interpreter takes most of the time: one slice and one call each.
        for at, end, place in zip(firsts, ends, places, strict=False):
            part = target[at:end]
            got = os.preadv(self.handle, (part,), place)
            while got < end - at:
                more = os.preadv(self.handle, (part[got:],), place + got)
                if not more:
                    raise InputError(f"{self.path} was cut short while it was in use; run the same command again")
                got += more


class Rows:
    """uint8 rows (N, ...) on disk: indexing reads them as a tensor, `take` selects some without reading.

    >>> path = Path(__import__("tempfile").mkdtemp()) / "rows"
    >>> _ = path.write_bytes(bytes(range(12)))
    >>> rows = Rows(Stored(path, 0, (4, 3)))
    >>> rows[torch.tensor([3, 0])].tolist(), rows.take(slice(1, 3))[0].tolist()
    ([[9, 10, 11], [0, 1, 2]], [3, 4, 5])
    """

    dtype = torch.uint8

    def __init__(self, store: Store, index: np.ndarray | None = None):
        self.store = store
        self.index = np.arange(store.shape[0]) if index is None else index

    def __len__(self) -> int:
        return len(self.index)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.index), *self.store.shape[1:])

    @property
    def ndim(self) -> int:
        return len(self.store.shape)

    def take(self, key: Any) -> "Rows":
        """Select the rows at an index, a slice or a mask; they stay on disk."""
        return Rows(self.store, self.index[np.asarray(key) if isinstance(key, torch.Tensor) else key])

    def read(self, key: Any, out: np.ndarray) -> None:
        """Read the rows at the index into an array (len(key), ...)."""
        self.store.read(self.index[np.asarray(key)], out)

    def __getitem__(self, key: Any) -> torch.Tensor:
        rows = self.index[np.asarray(key) if isinstance(key, torch.Tensor) else key]
        out = np.empty((*np.shape(rows), *self.store.shape[1:]), np.uint8)
        self.store.read(np.atleast_1d(rows), out)
        return torch.from_numpy(out)

    def numpy(self) -> np.ndarray:
        """Read all rows into memory."""
        return self[:].numpy()


Inputs = torch.Tensor | Rows


def take(inputs: Inputs, key: Any) -> Inputs:
    """Select rows: a tensor is indexed, `Rows` stay on disk."""
    return inputs.take(key) if isinstance(inputs, Rows) else inputs[key]


def num_bytes(inputs: Inputs) -> int:
    """Bytes that the inputs take in memory."""
    return math.prod(inputs.shape) * inputs.dtype.itemsize


def blocks(inputs: Inputs) -> Iterator[torch.Tensor]:
    """Yield all rows in order, in blocks of at most `BLOCK_BYTES`."""
    step = max(1, BLOCK_BYTES * len(inputs) // max(1, num_bytes(inputs)))
    for start in range(0, len(inputs), step):
        yield inputs[start : start + step]


def row_hash(row: np.ndarray) -> bytes:
    """Hash of a row's content, to find copies."""
    return hashlib.blake2b(row.data, digest_size=16).digest()


def parse_size(size: str | int | None) -> int | None:
    """Bytes of "2GiB", "500 MB" or a whole number; None stays None.

    >>> parse_size("2GiB"), parse_size("1.5MB"), parse_size(7)
    (2147483648, 1500000, 7)
    """
    if size is None:
        return None
    match = SIZE.fullmatch(str(size).strip())
    if match is None or isinstance(size, bool):
        raise InputError(f"resident={size!r} is not a size; for example 2GiB or 500MB", argument="resident")
    if not hasattr(os, "preadv"):
        raise InputError(f"resident={size!r} needs Linux or macOS; leave it out", argument="resident")
    number, prefix, is_binary = match.groups(default="")
    power = "KMGT".index(prefix) + 1 if prefix else 0
    return int(float(number) * (1024 if is_binary else 1000) ** power)


def memory_for_images() -> int:
    """Bytes of images that may be in memory: half of what this machine, or its container, has free."""
    free = [math.inf]
    try:
        with open("/proc/meminfo") as lines:
            free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
        for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
            if os.path.exists(limit) and (text := Path(limit).read_text().strip()).isdigit():
                free.append(int(text))
    except OSError:
        pass
    if free == [math.inf] and hasattr(os, "sysconf"):  # macOS
        free.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return int(SHARE * min(free)) if min(free) < math.inf else 1 << 62
