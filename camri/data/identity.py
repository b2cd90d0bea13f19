"""A hash of what files contain, remembered so that unchanged files are not read again."""

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from camri.data.cache import write_atomically
from camri.data.dataset import hash_json
from camri.data.parallel import Progress

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
