"""Cache of decoded data sets, one file each: written atomically, memory-mapped on reading.

A file is named by a hash of the source files' content, which is itself stored for unchanged files. Layout: 8 bytes
magic, 8 bytes header length, 32 bytes sha256 of the header, the header (JSON), then the arrays, each at a multiple of
64 bytes. The header has every array's position and checksum and the length of the whole file. Images that do not fit in
memory are in a second file, written while they are decoded.
"""

import contextlib
import hashlib
import json
import math
import os
import struct
import tempfile
import time
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from camri.data.dataset import hash_json
from camri.data.parallel import Progress
from camri.data.rows import Rows, Stored
from camri.files import checksum, why_not_read

# A file that changes twice within a tick of the file system's clock keeps its time stamp, so only older ones count.
SETTLED_AFTER_NS = 2_000_000_000
LEFTOVER_AFTER_S = 86_400
MAGIC = b"camri\x00\x00\x01"
ALIGNMENT = 64
PIECE_BYTES = 4 << 20
_PREAMBLE = struct.Struct("<8sQ32s")


def content_hash(files: Sequence[str], root: str, folder: Path, progress: Progress | None = None) -> str:
    """sha256 over the files' names (relative to root) and contents.

    The result is stored in the folder and used again while paths, sizes, times and inodes stay the same.
    """
    states, newest_ns = [], 0
    for file in files:
        try:
            status = os.stat(file)
        except OSError:  # the reader reports missing files and broken links
            states.append((file, -1, 0, 0, 0))
            continue
        states.append((file, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))
        newest_ns = max(newest_ns, status.st_mtime_ns, status.st_ctime_ns)
    stored = folder / f"{hash_json([root, states])}.files"
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(stored.read_bytes())
        if isinstance(known, str) and len(known) == 64:
            return known
    hashes = []
    for number, file in enumerate(files):
        hashes.append([os.path.relpath(file, root), hash_file(file)])
        if progress and (number % 64 == 0 or number + 1 == len(files)):
            progress(number + 1, len(files))
    total = hash_json(hashes)
    if time.time_ns() - newest_ns > SETTLED_AFTER_NS:
        # `write_cache` warns if the folder cannot be written.
        with contextlib.suppress(OSError), contextlib.closing(Draft(stored)) as draft:
            draft.write(json.dumps(total).encode())
            draft.finish()
    return total


def hash_file(file: str | Path, algorithm: str = "sha256") -> str:
    """Hex digest of a file's content; "unreadable" for one that cannot be read."""
    state = hashlib.new(algorithm)
    try:
        if why_not_read(file):
            return state.hexdigest() if os.path.isfile(file) else "unreadable"
        with open(file, "rb", buffering=0) as stream:
            while chunk := stream.read(1 << 20):
                state.update(chunk)
    except OSError:
        return "unreadable"
    return state.hexdigest()


class Draft:
    """A file that is written piece by piece and gets its name when it is complete and on the disk.

    Drafts that killed processes left more than a day ago are removed.
    """

    def __init__(self, path: Path):
        self.path, self.crc = path, 0
        path.parent.mkdir(parents=True, exist_ok=True)
        for leftover in path.parent.glob(".part-*"):
            with contextlib.suppress(OSError):
                if leftover.stat().st_mtime < time.time() - LEFTOVER_AFTER_S:
                    leftover.unlink()
        handle, self.name = tempfile.mkstemp(prefix=".part-", dir=path.parent)
        self.stream = os.fdopen(handle, "wb")

    def write(self, block: bytes | memoryview) -> None:
        self.stream.write(block)
        self.crc = zlib.crc32(block, self.crc)

    def rows(self, shape: tuple[int, ...]) -> Rows:
        """What was written so far, as rows of this shape (N, ...)."""
        self.stream.flush()
        return Rows(Stored(Path(self.name), 0, shape))

    def finish(self) -> None:
        """Give the file its name."""
        self.stream.flush()
        os.fsync(self.stream.fileno())
        os.replace(self.name, self.path)

    def close(self) -> None:
        """Remove the file if it is not finished."""
        with contextlib.suppress(OSError):
            self.stream.close()
        with contextlib.suppress(OSError):
            os.unlink(self.name)


def write_cache(path: Path, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write the file; on a full or read-only disk warn and leave nothing behind."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    places, end = {}, 0
    for name, array in contiguous.items():
        places[name] = {"dtype": array.dtype.str, "shape": array.shape, "offset": end, "crc": checksum(array)}
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    header = json.dumps({"facts": facts, "arrays": places, "payload_bytes": end}).encode()
    header += b" " * (-(_PREAMBLE.size + len(header)) % ALIGNMENT)
    try:
        with contextlib.closing(Draft(path)) as draft:
            draft.stream.write(_PREAMBLE.pack(MAGIC, len(header), hashlib.sha256(header).digest()) + header)
            for array in contiguous.values():
                draft.stream.write(array.data)
                draft.stream.write(b"\x00" * (-array.nbytes % ALIGNMENT))
            draft.finish()
    except OSError as error:
        warnings.warn(
            f"the decoded data cannot be cached in {path.parent} ({error.strerror}) and will be decoded again next "
            "time; set CAMRI_CACHE to a folder with space",
            stacklevel=2,
        )


def read_cache(path: Path, resident: float = math.inf) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """(facts, arrays); None if the file is missing or damaged.

    Arrays are memory-mapped. Images in a file larger than `resident` bytes stay on disk, as `Stored`.
    """
    try:
        with path.open("rb") as stream:
            file_bytes = os.fstat(stream.fileno()).st_size
            magic, header_bytes, digest = _PREAMBLE.unpack(stream.read(_PREAMBLE.size))
            # Checked before reading: a damaged length must not ask for an exabyte.
            if magic != MAGIC or header_bytes > file_bytes:
                return None
            encoded = stream.read(header_bytes)
            if hashlib.sha256(encoded).digest() != digest:
                return None
            header = json.loads(encoded)
            start = _PREAMBLE.size + header_bytes
            if file_bytes != start + header["payload_bytes"]:
                return None
            # Copy on write: torch refuses read-only memory, and the file must stay as it is.
            payload = np.memmap(stream, dtype=np.uint8, mode="c") if header["payload_bytes"] else np.empty(0, np.uint8)
            arrays: dict[str, Any] = {}
            for name, place in header["arrays"].items():
                shape, dtype, first = tuple(place["shape"]), np.dtype(place["dtype"]), start + place["offset"]
                num_bytes = math.prod(shape) * dtype.itemsize
                if not _is_whole(stream, first, num_bytes, place["crc"]):
                    return None
                if len(shape) == 4 and file_bytes > resident:
                    arrays[name] = Stored(path, first, shape)
                else:
                    arrays[name] = np.asarray(payload[first : first + num_bytes]).view(dtype).reshape(shape)
    except (OSError, struct.error):
        return None
    return header["facts"], arrays


def _is_whole(stream: BinaryIO, first: int, num_bytes: int, expected: int) -> bool:
    """Whether the bytes have this checksum. They are read in pieces: pages of a memory map would stay in memory."""
    crc, left = 0, num_bytes
    stream.seek(first)
    while left and (piece := stream.read(min(left, PIECE_BYTES))):
        crc, left = zlib.crc32(piece, crc), left - len(piece)
    if crc != expected or left:
        warnings.warn(f"{stream.name} is damaged (its checksum differs) and will be made again", stacklevel=3)
    return crc == expected and not left


def read_pixels(path: Path, shape: tuple[int, ...], crc: int) -> Stored | None:
    """The uint8 images (N, H, W, C) in a file; None if it is missing or damaged."""
    try:
        with path.open("rb") as stream:
            return Stored(path, 0, shape) if _is_whole(stream, 0, math.prod(shape), crc) else None
    except OSError:
        return None
