"""A run folder holds a run and nothing else, and one process at a time writes into it."""

import contextlib
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from camri.errors import InputError
from camri.files import PART, take_lock

FILE_NAME = "run.lock"
# A process that is killed while it starts another leaves its lock to that one for the moment before it becomes another
# program: of 150 runs killed in their first 30 ms on a busy machine, 8 seemed in use for some milliseconds.
PATIENCE_S = 1.0


def refuse_other_files(folder: Path, marker: str, kind: str, beside: Collection[str] = ()) -> None:
    """Nothing; a folder is refused where files lie that are neither of this kind, told by its marker, nor `beside`."""
    if folder.is_dir() and not (folder / marker).exists():
        others = sorted(
            path.name for path in folder.iterdir() if path.name not in (FILE_NAME, *beside) and path.suffix != PART
        )
        if others:
            raise InputError(
                f"{folder} holds other files ({others[0]}, …) and no {kind}; choose an empty or new folder"
            )


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """The folder, made if need be, for this process alone; the system frees it however the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}); choose another folder for --out") from None
    try:
        try:
            end = time.monotonic() + PATIENCE_S
            while not (taken := take_lock(handle)) and time.monotonic() < end:
                time.sleep(0.01)
        except OSError as error:  # Lustre and NFS, as they are mounted on some clusters; SQLite needs locks too
            raise InputError(
                f"{folder} is on a file system that cannot lock files ({error.strerror}); choose a folder on another"
            ) from None
        if not taken:
            other = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
            raise InputError(
                f"{folder} is in use by another process (pid {other}); wait for it, or choose another folder"
            )
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        os.close(handle)


def holder(folder: Path) -> int | None:
    """The process that runs in the folder now; None where none does."""
    try:
        handle = os.open(folder / FILE_NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        if take_lock(handle, shared=True):
            return None
        pid = os.read(handle, 20).decode(errors="replace").strip()
        return int(pid) if pid.isdigit() else 0
    except OSError:  # no locks there
        return None
    finally:
        os.close(handle)
