"""How far a run is: told to who watches it, and left in the run folder for `camri study status`."""

import contextlib
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from camri.engine import Progress
from camri.errors import InputError
from camri.files import replacing

FILE_NAME = "progress.json"
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


def write(folder: Path, report: Report) -> None:
    """Nothing; the report lies in the folder. A full disk is for the store to complain of."""
    with contextlib.suppress(InputError), replacing(folder / FILE_NAME) as part:
        part.write_text(json.dumps(dataclasses.asdict(report)), encoding="utf-8")


def read(folder: Path) -> Report | None:
    """The last report; None where there is none."""
    try:
        return Report(**json.loads((folder / FILE_NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / FILE_NAME).unlink()
