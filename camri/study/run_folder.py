"""A run folder holds a run and nothing else, and one process at a time writes into it.

How far a run is: told to who watches it, and left in the run folder for `camri study status`.

A study's data set, and what all its outcomes share.
"""

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from camri.data import DataSet, hold_out, make_test, thin_out
from camri.engine import Progress
from camri.errors import InputError
from camri.files import PART, replacing, take_lock
from camri.study.schema import SPLITS, RunFacts
from camri.study.spec import Study

LOCK_FILE = "run.lock"
# A process that is killed while it starts another leaves its lock to that one for the moment before it becomes another
# program: of 150 runs killed in their first 30 ms on a busy machine, 8 seemed in use for some milliseconds.
PATIENCE_S = 1.0


def refuse_other_files(folder: Path, marker: str, kind: str, beside: Collection[str] = ()) -> None:
    """Nothing; a folder is refused where files lie that are neither of this kind, told by its marker, nor `beside`."""
    if folder.is_dir() and not (folder / marker).exists():
        others = sorted(
            path.name for path in folder.iterdir() if path.name not in (LOCK_FILE, *beside) and path.suffix != PART
        )
        if others:
            raise InputError(
                f"{folder} holds other files ({others[0]}, …) and no {kind}; choose an empty or new folder",
                argument="out",
            )


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """The folder, made if need be, for this process alone; the system frees it however the process ends."""
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


PROGRESS_FILE = "progress.json"
EVERY_S = 2.0


@dataclass(frozen=True)
class Report(Progress):
    """A run's progress over the whole study, earlier calls included; `done` are those that ended well."""

    failed: int = 0


def of_whole(progress: Progress, ended_before: int, done: int, failed: int, whole: int) -> Report:
    """A call's progress as the whole study's: trials that had ended before it count, and those still to come.

    >>> half = Progress(done=0, running=2, total=2, part=0.5, images_per_s=9.0, trial_s=10.0)
    >>> of_whole(half, ended_before=1, done=1, failed=0, whole=4).left_s
    20.0
    """
    part = (ended_before + progress.total * progress.part) / whole
    return Report(**{**dataclasses.asdict(progress), "done": done, "failed": failed, "total": whole, "part": part})


def write_progress(folder: Path, report: Report) -> None:
    """Nothing; the report lies in the folder. A full disk is for the store to complain of."""
    with contextlib.suppress(InputError), replacing(folder / PROGRESS_FILE) as part:
        part.write_text(json.dumps(dataclasses.asdict(report)), encoding="utf-8")


def read_progress(folder: Path) -> Report | None:
    """The last report; None where there is none."""
    try:
        return Report(**json.loads((folder / PROGRESS_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def remove_progress(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / PROGRESS_FILE).unlink()


def load_data(study: Study, progress: Callable[[int, int], None] | None = None) -> DataSet:
    """The study's data with its splits: the data set's own where it has them, otherwise drawn by the study's seed."""
    from camri.data import load  # the readers need Pillow, which who brings a data set along need not have

    data = load(study.data, **dict(study.data_options), progress=progress)
    if "test" not in data.splits:
        data = make_test(data, fraction=study.test_fraction, seed=study.split_seed)
    if "val" not in data.splits and study.val_fraction:
        data = hold_out(data, "val", study.val_fraction, study.split_seed)
    return thin_out(data, dict(study.thin), study.split_seed) if study.thin else data


def facts_of(study: Study, data: DataSet) -> RunFacts:
    """What a run of this study on this data holds once for all outcomes."""
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
