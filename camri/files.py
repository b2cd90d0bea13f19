"""Atomic writes, locks on files and folders, temporary folders, and where data and caches are kept."""

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
PART = ".part"  # ending of a file that is being written
SCRATCH = "camri-scratch-"  # beginning of a temporary folder's name; old ones are removed


def checksum(*contents: Any) -> int:
    """CRC-32 of bytes or contiguous arrays, one after another. It detects damage, not tampering.

    >>> checksum(b"123456789"), checksum(b"1234", b"56789")
    (3421780262, 3421780262)
    """
    crc = 0
    for content in contents:
        crc = zlib.crc32(memoryview(content).cast("B") if memoryview(content).nbytes else b"", crc)
    return crc


@contextlib.contextmanager
def replacing(path: Path, remedy: str = "") -> Iterator[Path]:
    """Give a temporary file to write to, which replaces the path at the end; on an error it is removed.

    Every writer has its own. What killed writers left is removed after a day.
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
        with contextlib.suppress(OSError):  # it was renamed, or never written
            part.unlink()


def cannot_write(path: Path, error: OSError, remedy: str, argument: str | None = None) -> InputError:
    """The error for a path that cannot be written; if the disk is full, the remedy is to make room."""
    if error.errno in NO_ROOM:
        remedy = "; make room and run the same command again"
    return InputError(f"{path} cannot be written ({error.strerror or error}){remedy}", argument)


def take_lock(handle: int, shared: bool = False) -> bool:
    """Lock an open file or folder; False if another process has locked it. The lock ends with the process.

    Several processes may hold a shared lock. Always True on Windows. OSError if the file system has no locks.
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
    """Lock the folder for this process; False if another one has locked it, None if the file system has no locks."""
    if fcntl is None:  # on Windows a folder cannot be opened
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
    """Make a temporary folder and remove it at the end. Those that killed processes left are removed too."""
    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        with contextlib.suppress(OSError):  # another user's, or removed meanwhile
            if left.stat().st_mtime < time.time() - 60:  # the owner of a newer one may not have locked it yet
                with alone_in(left) as is_alone:
                    if is_alone:
                        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as name, alone_in(Path(name)):
        yield Path(name)


def data_folder() -> Path:
    """$CAMRI_DATA, or the platform's folder for user data."""
    return _user_folder("CAMRI_DATA", "XDG_DATA_HOME", ".local/share", "Library/Application Support", "data")


def cache_folder() -> Path:
    """$CAMRI_CACHE, or the platform's folder for caches."""
    return _user_folder("CAMRI_CACHE", "XDG_CACHE_HOME", ".cache", "Library/Caches", "cache")


def _user_folder(variable: str, xdg_variable: str, linux: str, macos: str, windows: str) -> Path:
    if chosen := os.environ.get(variable):
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / macos / "camri"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "camri" / windows
    return Path(os.environ.get(xdg_variable) or Path.home() / linux) / "camri"
