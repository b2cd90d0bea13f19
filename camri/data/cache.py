"""A hash of what files contain, remembered so that unchanged files are not read again.

Decoded data sets on disk: one file each, written whole or not at all, memory-mapped on reading.

Layout: 8 bytes magic, 8 bytes header length, 32 bytes sha256 of the header, the header (JSON), then the arrays,
each at a multiple of 64 bytes. The header lists every array's place and the length of the whole file.
"""

import contextlib
import hashlib
import json
import os
import stat
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from camri.data.dataset import hash_json
from camri.data.parallel import Progress
from camri.files import cache_folder as cache_folder

# A file changed twice within a tick of the file system's clock keeps its time stamp: only older ones are trusted.
SETTLED_AFTER_NS = 2_000_000_000


def content_hash(files: Sequence[str], root: str, memory: Path | None, progress: Progress | None = None) -> str:
    """sha256 over the files' names (relative to root) and contents.

    `memory` is a folder that remembers the answer for these paths, sizes, times and inodes.
    """
    seen, newest_ns = [], 0
    for file in files:
        try:
            status = os.stat(file)
        except OSError:  # a missing file or broken link is the reader's to report
            seen.append((file, -1, 0, 0, 0))
            continue
        seen.append((file, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))
        newest_ns = max(newest_ns, status.st_mtime_ns, status.st_ctime_ns)
    remembered = memory / f"{hash_json([root, seen])}.files" if memory else None
    if remembered and (answer := _recall(remembered)):
        return answer
    hashed = []
    for number, file in enumerate(files):
        hashed.append([os.path.relpath(file, root), _hash_file(file)])
        if progress and (number % 64 == 0 or number + 1 == len(files)):
            progress(number + 1, len(files))
    answer = hash_json(hashed)
    if remembered and time.time_ns() - newest_ns > SETTLED_AFTER_NS:
        # Only a shortcut: a cache folder that cannot be written is told about when data is kept.
        with contextlib.suppress(OSError):
            write_atomically(remembered, lambda stream: stream.write(json.dumps(answer).encode()))
    return answer


def _recall(path: Path) -> str | None:
    try:
        answer = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, str) and len(answer) == 64 else None


def _hash_file(file: str, algorithm: str = "sha256") -> str:
    state = hashlib.new(algorithm)
    try:
        if not stat.S_ISREG(os.stat(file).st_mode):  # to open a pipe would be to wait for ever
            return "unreadable"
        with open(file, "rb", buffering=0) as stream:
            while chunk := stream.read(1 << 20):
                state.update(chunk)
    except OSError:
        return "unreadable"
    return state.hexdigest()


def md5(file: str) -> str:
    """md5 of a file, the checksum in which the official data sets are published."""
    return _hash_file(file, "md5")


MAGIC = b"camri\x00\x00\x01"
ALIGNMENT = 64
_PREAMBLE = struct.Struct("<8sQ32s")


def data_folder() -> Path:
    """$CAMRI_DATA, or the place where this platform keeps users' data."""
    if told := os.environ.get("CAMRI_DATA"):
        return Path(told)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "camri"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "camri" / "data"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "camri"


def write_cache(path: Path, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bool:
    """True when the file stands; a full or read-only disk gives a warning and leaves nothing behind."""

    def write(stream: BinaryIO) -> None:
        places, end = {}, 0
        for name, array in arrays.items():
            places[name] = {"dtype": array.dtype.str, "shape": array.shape, "offset": end}
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
            f"the decoded data cannot be kept in {path.parent} ({error.strerror}); it will be decoded again "
            "next time; set CAMRI_CACHE to a folder with space",
            stacklevel=2,
        )
        return False
    return True


def read_cache(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """(facts, memory-mapped arrays), or None where there is no file that can be believed."""
    try:
        with path.open("rb") as stream:
            magic, header_bytes, checksum = _PREAMBLE.unpack(stream.read(_PREAMBLE.size))
            # Checked before reading: a damaged length must not ask for an exabyte.
            if magic != MAGIC or header_bytes > os.fstat(stream.fileno()).st_size:
                return None
            header = stream.read(header_bytes)
            if hashlib.sha256(header).digest() != checksum:
                return None
            told = json.loads(header)
            start = _PREAMBLE.size + header_bytes
            if os.fstat(stream.fileno()).st_size != start + told["payload_bytes"]:
                return None
            # Copy on write: torch refuses read-only memory, and the file must stay as it is.
            payload = np.memmap(stream, dtype=np.uint8, mode="c") if told["payload_bytes"] else np.empty(0, np.uint8)
    except (OSError, struct.error):
        return None
    arrays = {}
    for name, place in told["arrays"].items():
        shape, dtype, first = tuple(place["shape"]), np.dtype(place["dtype"]), start + place["offset"]
        num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays[name] = np.asarray(payload[first : first + num_bytes]).view(dtype).reshape(shape)
    return told["facts"], arrays


def write_atomically(path: Path, write: Any) -> None:
    """The file appears under its name only when it is complete and on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
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


def _sweep(folder: Path) -> None:
    """Removes what killed writers left behind more than a day ago."""
    for leftover in folder.glob(".part-*"):
        with contextlib.suppress(OSError):
            if leftover.stat().st_mtime < time.time() - 86_400:
                leftover.unlink()
