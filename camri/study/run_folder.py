"""A run's folder: its lock, its progress file, the study's data and the facts stored about it.

The lock is not filelock's: that records no process id, and only a process with write access can test it.
"""

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from camri.errors import InputError
from camri.files import PART, cannot_write, replacing, take_lock
from camri.study.store import SPLITS, RunFacts

if TYPE_CHECKING:  # reports read runs without torch
    from camri.data import DataSet
    from camri.engine import Progress
    from camri.study.spec import Study

LOCK_FILE = "run.lock"
# A killed process may leave its lock to a child that it was just starting, for some milliseconds: seen with 8 of 150
# runs that were killed in their first 30 ms on a busy machine.
PATIENCE_S = 1.0
PROGRESS_FILE = "progress.json"
PROGRESS_EVERY_S = 2.0


def refuse_other_files(folder: Path, marker: str, kind: str, beside: Collection[str] = ()) -> None:
    """Raise InputError if the folder has no file `marker` (then it is no `kind`) but files other than `beside`."""
    names = [path.name for path in folder.iterdir() if path.suffix != PART] if folder.is_dir() else []
    others = sorted(set(names) - {LOCK_FILE, *beside})
    if others and not (folder / marker).exists():  # tested last: another process may be creating it
        message = f"{folder} holds other files ({others[0]}, …) and no {kind}; choose an empty or new folder"
        raise InputError(message, argument="out")


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock the folder for this process, creating it if needed. The system unlocks it however the process ends."""
    if (folder / LOCK_FILE).exists() and not (folder / LOCK_FILE).is_file():
        raise InputError(f"{folder / LOCK_FILE} is not a file but a folder, pipe or device; remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}); choose another folder for --out") from None
    try:
        try:
            end = time.monotonic() + PATIENCE_S
            while not (taken := take_lock(handle)) and time.monotonic() < end:
                time.sleep(0.01)
        except OSError as error:  # Lustre and NFS, as they are mounted on some clusters; SQLite needs locks too
            why = f"is on a file system that cannot lock files ({error.strerror})"
            raise InputError(f"{folder} {why}; choose a folder on another") from None
        if not taken:
            other = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
            raise InputError(f"{folder} is in use by another process (pid {other}); wait, or choose another folder")
        try:
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
        except OSError as error:
            raise cannot_write(folder / LOCK_FILE, error, "; choose another folder") from None
        yield
    finally:
        os.close(handle)


def holder(folder: Path) -> int | None:
    """The id of the process that holds the folder's lock, 0 if it is unknown; None if the folder is not locked."""
    if not (folder / LOCK_FILE).is_file():
        return None  # opening a pipe would wait for its other end
    try:
        handle = os.open(folder / LOCK_FILE, os.O_RDONLY)
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


def write_progress(folder: Path, progress: "Progress") -> None:
    """Write the progress file. Errors are ignored: the store reports a full disk."""
    with contextlib.suppress(InputError), replacing(folder / PROGRESS_FILE) as part:
        part.write_text(json.dumps(dataclasses.asdict(progress)), encoding="utf-8")


def read_progress(folder: Path) -> "Progress | None":
    """The last progress that was written, or None."""
    from camri.engine import Progress

    try:
        return Progress(**json.loads((folder / PROGRESS_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def load_data(
    study: "Study", progress: Callable[[int, int], None] | None = None, resident: str | int | None = None
) -> "DataSet":
    """The study's data. Splits that the data set lacks are drawn with the study's seed.

    resident: the memory that images may take, as in `camri.data.load`.
    """
    # Imported here: reading needs Pillow, which callers with a data set of their own may not have.
    from camri.data import hold_out, load, make_test, thin_out

    data = load(study.data, **dict(study.data_options), resident=resident, progress=progress)
    if "test" not in data.splits:
        data = make_test(data, fraction=study.test_fraction, seed=study.split_seed)
    if "val" not in data.splits and study.val_fraction:
        data = hold_out(data, "val", study.val_fraction, study.split_seed)
    return thin_out(data, dict(study.thin), study.split_seed) if study.thin else data


def facts_of(study: "Study", data: "DataSet") -> RunFacts:
    """What a run of this study on this data stores once for all outcomes."""
    spec = study.to_json()
    splits = {name: data.splits[name] for name in SPLITS if name in data.splits}
    return RunFacts(
        fingerprint=data.fingerprint,
        classes=data.classes,
        data={
            "name": data.name,
            "provenance": dict(data.provenance),
            "rows": {name: len(split) for name, split in data.splits.items()},
            "input_shape": list(data.input_shape),
        },
        training=spec["training"],
        asked=[spec["important"], study.important_from],
        labels={name: split.labels.cpu().numpy() for name, split in splits.items()},
        groups={name: split.groups.cpu().numpy() for name, split in splits.items() if split.groups is not None},
    )
