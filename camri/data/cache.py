"""Decoded data sets on disk, one file each: written atomically, memory-mapped on reading.

A file is named by a hash of the source files' content, which is itself remembered for unchanged files. Its layout: 8
bytes magic, 8 bytes header length, 32 bytes sha256 of the header, the header (JSON), then the arrays, each at a
multiple of 64 bytes. The header lists every array's position and checksum and the length of the whole file. Images
that do not fit in memory lie in a second file, which was written as they were decoded.
"""

import contextlib
import hashlib
import json
import math
import os
import stat
import struct
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from camri.data.dataset import hash_json
from camri.data.parallel import Progress
from camri.data.rows import Rows, Stored
from camri.files import checksum

# A file changed twice within a tick of the file system's clock keeps its time stamp: only older ones are trusted.
SETTLED_AFTER_NS = 2_000_000_000
LEFTOVER_AFTER_S = 86_400
MAGIC = b"camri\x00\x00\x01"
ALIGNMENT = 64
PIECE_BYTES = 4 << 20
_PREAMBLE = struct.Struct("<8sQ32s")


def content_hash(files: Sequence[str], root: str, memory: Path | None, progress: Progress | None = None) -> str:
    """sha256 over the files' names (relative to root) and contents.

    `memory` is a folder that stores the result for these paths, sizes, times and inodes.
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
    remembered = memory / f"{hash_json([root, states])}.files" if memory else None
    if remembered:
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(remembered.read_bytes())
            if isinstance(known, str) and len(known) == 64:
                return known
    hashes = []
    for number, file in enumerate(files):
        hashes.append([os.path.relpath(file, root), _hash_file(file)])
        if progress and (number % 64 == 0 or number + 1 == len(files)):
            progress(number + 1, len(files))
    total = hash_json(hashes)
    if remembered and time.time_ns() - newest_ns > SETTLED_AFTER_NS:
        # Only a shortcut: `write_cache` warns if the folder cannot be written.
        with contextlib.suppress(OSError):
            write_atomically(remembered, lambda stream: stream.write(json.dumps(total).encode()))
    return total


def _hash_file(file: str, algorithm: str = "sha256") -> str:
    state = hashlib.new(algorithm)
    try:
        if not stat.S_ISREG(os.stat(file).st_mode):  # opening a pipe would block
            return "unreadable"
        with open(file, "rb", buffering=0) as stream:
            while chunk := stream.read(1 << 20):
                state.update(chunk)
    except OSError:
        return "unreadable"
    return state.hexdigest()


def md5(file: str) -> str:
    """md5 of a file, the checksum that publishers of data sets give."""
    return _hash_file(file, "md5")


def write_cache(path: Path, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write the file; on a full or read-only disk warn and leave nothing behind."""

    def write(stream: BinaryIO) -> None:
        places, end = {}, 0
        for name, array in arrays.items():
            array = np.ascontiguousarray(array)
            places[name] = {"dtype": array.dtype.str, "shape": array.shape, "offset": end, "crc": checksum(array)}
            end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        header = json.dumps({"facts": facts, "arrays": places, "payload_bytes": end}).encode()
        header += b" " * (-(_PREAMBLE.size + len(header)) % ALIGNMENT)
        stream.write(_PREAMBLE.pack(MAGIC, len(header), hashlib.sha256(header).digest()))
        stream.write(header)
        for array in arrays.values():
            stream.write(np.ascontiguousarray(array).data)
            stream.write(b"\x00" * (-array.nbytes % ALIGNMENT))

    try:
        write_atomically(path, write)
    except OSError as error:
        warnings.warn(
            f"the decoded data cannot be cached in {path.parent} ({error.strerror}) and will be decoded again next "
            "time; set CAMRI_CACHE to a folder with space",
            stacklevel=2,
        )


def read_cache(path: Path, resident: float = math.inf) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """(facts, arrays); None if the file is missing or damaged.

    Arrays are memory-mapped. Of a file that is larger than `resident` bytes, images stay on disk, as `Stored`.
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
                num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
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
    """Whether the bytes have this checksum; read a piece at a time, as pages of a map would stay in memory."""
    crc, left = 0, num_bytes
    stream.seek(first)
    while left and (piece := stream.read(min(left, PIECE_BYTES))):
        crc, left = zlib.crc32(piece, crc), left - len(piece)
    if crc != expected or left:
        warnings.warn(f"{stream.name} is damaged (its checksum differs) and will be made again", stacklevel=3)
    return crc == expected and not left


class Draft:
    """A file that decoded images are written to, block by block; it gets its name when the data set is complete."""

    def __init__(self, path: Path, shape: tuple[int, ...]):
        self.path, self.shape, self.crc = path, shape, 0
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, self.name = tempfile.mkstemp(prefix=".part-", dir=path.parent)
        self.stream = os.fdopen(handle, "wb")

    def write(self, block: np.ndarray) -> None:
        self.stream.write(block.data)
        self.crc = zlib.crc32(block.data, self.crc)

    def rows(self) -> Rows:
        """What was written."""
        self.stream.flush()
        return Rows(Stored(Path(self.name), 0, self.shape))

    def finish(self) -> dict[str, Any]:
        """Put the file in its place and return what `read_pixels` needs."""
        self.stream.flush()
        os.fsync(self.stream.fileno())
        os.replace(self.name, self.path)
        return {"shape": self.shape, "crc": self.crc}

    def close(self) -> None:
        """Remove the file if it was not finished."""
        self.stream.close()
        with contextlib.suppress(OSError):
            os.unlink(self.name)


def read_pixels(path: Path, about: Mapping[str, Any]) -> Stored | None:
    """The images of a finished :class:`Draft`; None if its file is missing or damaged."""
    shape = tuple(about["shape"])
    try:
        with path.open("rb") as stream:
            whole = _is_whole(stream, 0, math.prod(shape), about["crc"])
        return Stored(path, 0, shape) if whole else None
    except OSError:
        return None


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file that appears under its name only when it is complete and on the disk.

    Files that killed writers left more than a day ago are removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(".part-*"):
        with contextlib.suppress(OSError):
            if leftover.stat().st_mtime < time.time() - LEFTOVER_AFTER_S:
                leftover.unlink()
    handle, name = tempfile.mkstemp(prefix=".part-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
