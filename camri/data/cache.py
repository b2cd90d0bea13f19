"""Decoded data sets on disk, one file each: written atomically, memory-mapped on reading.

A file is named by a hash of the source files' content, which is itself remembered for unchanged files. Its layout: 8
bytes magic, 8 bytes header length, 32 bytes sha256 of the header, the header (JSON), then the arrays, each at a
multiple of 64 bytes. The header lists every array's position and checksum and the length of the whole file.
"""

import contextlib
import hashlib
import json
import os
import stat
import struct
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from camri.data.dataset import hash_json
from camri.data.parallel import Progress
from camri.files import checksum

# A file changed twice within a tick of the file system's clock keeps its time stamp: only older ones are trusted.
SETTLED_AFTER_NS = 2_000_000_000
LEFTOVER_AFTER_S = 86_400
MAGIC = b"camri\x00\x00\x01"
ALIGNMENT = 64
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


def read_cache(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """(facts, memory-mapped arrays); None if the file is missing or damaged."""
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
    except (OSError, struct.error):
        return None
    arrays = {}
    for name, place in header["arrays"].items():
        shape, dtype, first = tuple(place["shape"]), np.dtype(place["dtype"]), start + place["offset"]
        num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        content = np.asarray(payload[first : first + num_bytes])
        if checksum(content) != place["crc"]:
            warnings.warn(f"{path} is damaged (its checksum differs) and is made anew", stacklevel=2)
            return None
        arrays[name] = content.view(dtype).reshape(shape)
    return header["facts"], arrays


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
