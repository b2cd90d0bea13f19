"""Atomic writes, locks on files and folders, temporary folders, and where data and caches are kept."""

import contextlib
import errno
import glob
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from camri.errors import InputError

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a full disk, a quota, a limit on a file's size
STDOUT = "-"  # the name of standard output
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
    """Give a temporary file to write to, which takes the path's place at the end; on an error it is removed.

    A file that is replaced keeps its mode, a link leads to the new file, and what is read-only is refused. A pipe or
    device gets the content instead, as does standard output, under any name or "-". Every writer has a file of its
    own. What killed writers left is removed after a day.
    """
    try:
        if _is_stream(path):
            with scratch_folder() as folder:
                yield folder / "content"
                with open(folder / "content", "rb") as content, _stream(path) as stream:
                    shutil.copyfileobj(content, stream)
        else:
            target = Path(os.path.realpath(path))
            refuse_unwritable(target)
            with _part_of(target) as part:
                yield part
                _put(part, target)
    except OSError as error:
        raise cannot_write(path, error, remedy) from None


def _is_stream(path: Path) -> bool:
    """Whether the path is no file that can be replaced, but a pipe, a device or a file that a process has open."""
    if str(path) == STDOUT:
        return True
    with contextlib.suppress(FileNotFoundError):
        mode = path.stat().st_mode
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or _open_file(path) is not None
    return False


def _open_file(path: Path) -> tuple[str, str] | None:
    """The process and its number of the file, if the path leads to an open file of a process, as /dev/stdout does."""
    while path.is_symlink():
        if found := re.fullmatch(r"/proc/(\d+)/(?:task/\d+/)?fd", os.path.realpath(path.parent)):
            return found[1], path.name
        path = path.parent / os.readlink(path)
    return None


def _stream(path: Path) -> contextlib.AbstractContextManager[IO[bytes]]:
    """Open a pipe or device to write to it, and a file that this process has open where it was written last."""
    sys.stdout.flush()
    if str(path) == STDOUT:
        return contextlib.nullcontext(sys.stdout.buffer)
    process, number = _open_file(path) or ("", "")
    return os.fdopen(os.dup(int(number)), "wb") if process == str(os.getpid()) else open(path, "ab")


def refuse_unwritable(path: Path) -> None:
    """Raise OSError for a folder, and for a file that is read-only, also for root."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not (path.stat().st_mode & 0o222 and os.access(path, os.W_OK)):
        raise PermissionError(errno.EACCES, "it is read-only")


@contextlib.contextmanager
def _part_of(path: Path) -> Iterator[Path]:
    """A new name beside the path; what has it at the end is removed, and what killed writers left a day ago."""
    name = path.name[:40]  # a longer one might have no room for the ending
    part = path.with_name(f"{name}.{secrets.token_hex(4)}{PART}")
    for leftover in path.parent.glob(f"{glob.escape(name)}.*{PART}"):
        with contextlib.suppress(OSError):
            if leftover.stat().st_mtime < time.time() - 86_400:
                leftover.unlink()
    try:
        yield part
    finally:
        with contextlib.suppress(OSError):  # it was renamed, or never written
            part.unlink()


def _put(part: Path, path: Path) -> None:
    """Give the part the path's name, once it is on the disk, with the mode and owner of the file that it replaces."""
    with open(part, "rb+") as stream:
        os.fsync(stream.fileno())
    if path.exists():
        before = path.stat()
        with contextlib.suppress(OSError, AttributeError):  # only root may; Windows has no owners
            os.chown(part, before.st_uid, before.st_gid)
        part.chmod(stat.S_IMODE(before.st_mode))
    os.replace(part, path)


def why_not_read(file: str | Path) -> str | None:
    """Why the file must not be read: it may never end. None if it can, or is not there.

    So it is with pipes and devices, and with some files of /proc, which say that they are empty.
    """
    try:
        about = os.stat(file)
    except (OSError, ValueError):  # a name that no file can have
        return None
    if not stat.S_ISREG(about.st_mode):
        return "is not a file but a folder, pipe or device"
    return None if about.st_size else "is empty"


def refuse_special(file: str | Path, remedy: str = "give a file") -> None:
    """Raise InputError if the file must not be read, as it may never end."""
    if why := why_not_read(file):
        raise InputError(f"{file} {why}; {remedy}")


def cannot_write(path: Path, error: OSError, remedy: str) -> InputError:
    """The error for a path that cannot be written; if the disk is full, the remedy is to make room."""
    if error.errno in NO_ROOM:
        remedy = "; make room and run the same command again"
    return InputError(f"{path} cannot be written ({error.strerror or error}){remedy}")


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
