"""How far a run is: told to who watches it, and left in the run folder for `camri study status`."""

import contextlib
import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from camri.engine import Progress

FILE_NAME = "progress.json"
EVERY_S = 2.0


@dataclass(frozen=True)
class Report:
    """A run's progress over the whole study, earlier calls included."""

    done: int
    failed: int
    running: int
    total: int
    part: float  # of all epochs of all trials, 0 to 1
    images_per_s: float
    left_s: float
    accuracy: float | None  # mean validation accuracy of the running trials
    recall: float | None  # mean validation recall of their important classes


def of_whole(progress: Progress, ended_before: int, done: int, failed: int, whole: int) -> Report:
    """A call's progress as the whole study's: trials that had ended before it count, and those still to come.

    >>> half = Progress(done=0, running=2, total=2, part=0.5, images_per_s=9.0, left_s=10.0)
    >>> of_whole(half, ended_before=1, done=1, failed=0, whole=4).left_s
    20.0
    """
    trained = progress.total * progress.part
    a_trial_s = progress.left_s / (progress.total - trained) if trained < progress.total else 0.0
    return Report(
        done=done,
        failed=failed,
        running=progress.running,
        total=whole,
        part=(ended_before + trained) / whole,
        images_per_s=progress.images_per_s,
        left_s=a_trial_s * (whole - ended_before - trained),
        accuracy=progress.accuracy,
        recall=progress.recall,
    )


def write(folder: Path, report: Report) -> None:
    """Nothing; the report lies in the folder. A full disk is for the store to complain of."""
    temporary = folder / f"{FILE_NAME}.part"
    with contextlib.suppress(OSError):
        temporary.write_text(json.dumps(dataclasses.asdict(report)), encoding="utf-8")
        os.replace(temporary, folder / FILE_NAME)


def read(folder: Path) -> Report | None:
    """The last report; None where there is none."""
    try:
        return Report(**json.loads((folder / FILE_NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def remove(folder: Path) -> None:
    for name in (FILE_NAME, f"{FILE_NAME}.part"):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
