"""Files that are there whole or not at all, and folders that one process has for itself."""

import contextlib
import errno
import glob
import os
import secrets
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from camri.errors import InputError

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a full disk, a quota, a limit on a file's size
PART = ".part"  # how the name of a file ends that is being written, or was when its writer was killed
SCRATCH = "camri-scratch-"  # how the name of a temporary folder begins: no user's own folder may be called so


def checksum(*contents: Any) -> int:
    """CRC-32 of bytes or contiguous arrays, one after another: it tells damage, not malice.

    >>> checksum(b"123456789"), checksum(b"1234", b"56789")
    (3421780262, 3421780262)
    """
    crc = 0
    for content in contents:
        crc = zlib.crc32(memoryview(content).cast("B") if memoryview(content).nbytes else b"", crc)
    return crc


@contextlib.contextmanager
def replacing(path: Path, remedy: str = "") -> Iterator[Path]:
    """A file beside the path to write to, which takes the path's place at the end; nothing of it stays otherwise.

    No two writers have the same one. What killed writers left is removed after a day.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        for leftover in path.parent.glob(f"{glob.escape(path.name)}.*{PART}"):
            with contextlib.suppress(OSError):
                if leftover.stat().st_mtime < time.time() - 86_400:
                    leftover.unlink()
        yield part
        os.replace(part, path)
    except OSError as error:
        raise cannot_write(path, error, remedy) from None
    finally:
        with contextlib.suppress(OSError):  # it has moved, or was never there
            part.unlink()


def cannot_write(path: Path, error: OSError, remedy: str, argument: str | None = None) -> InputError:
    """The error of a path that cannot be written; where the disk is full, its remedy is to make room and go on."""
    if error.errno in NO_ROOM:
        remedy = "; make room and run the same command again"
    return InputError(f"{path} cannot be written ({error.strerror or error}){remedy}", argument)


def take_lock(handle: int, shared: bool = False) -> bool:
    """Whether the open file or folder is locked for this process; the system frees it however the process ends.

    Shared, others may hold it so too. On Windows always true; an OSError where the file system has no locks.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[bool | None]:
    """Whether this process alone is in the folder until the end; None where the file system has no locks to tell by."""
    if fcntl is None:  # and a folder cannot be opened
        yield None
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            taken = take_lock(handle)
        except OSError:
            taken = None
        yield taken
    finally:
        os.close(handle)


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder, removed at the end; and so are those that killed processes have left."""
    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        with contextlib.suppress(OSError):  # another user's, or removed meanwhile
            if left.stat().st_mtime < time.time() - 60:  # a newer one's owner may be about to lock it
                with alone_in(left) as is_alone:
                    if is_alone:
                        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as name, alone_in(Path(name)):
        yield Path(name)


def data_folder() -> Path:
    """$CAMRI_DATA, or where this platform keeps users' data."""
    return _user_folder("CAMRI_DATA", "XDG_DATA_HOME", ".local/share", "Library/Application Support", "data")


def cache_folder() -> Path:
    """$CAMRI_CACHE, or where this platform keeps caches."""
    return _user_folder("CAMRI_CACHE", "XDG_CACHE_HOME", ".cache", "Library/Caches", "cache")


def _user_folder(variable: str, xdg_variable: str, linux: str, macos: str, windows: str) -> Path:
    if chosen := os.environ.get(variable):
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / macos / "camri"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "camri" / windows
    return Path(os.environ.get(xdg_variable) or Path.home() / linux) / "camri"
