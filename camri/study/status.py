"""Status of a run: counts, time left, and the best setting of each method so far."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from camri.engine import Progress, Training
from camri.engine.spec import identity
from camri.study import run_folder
from camri.study.finalists import Finalist, Pool, rows_by_key
from camri.study.spec import Study
from camri.study.store import Run, open_run


@dataclass(frozen=True)
class Status:
    """A run at one moment. `pid` is the process that runs it; `split` the one that `best` is read from."""

    names: tuple[str, ...]
    total: int
    done: int
    failed: int
    pending: int
    retried: int
    pid: int | None
    progress: Progress | None
    left_s: float | None  # None: no trial has ended yet to estimate it from
    errors: tuple[str, ...]  # of each failed trial: its setting, seed and last line
    columns: tuple[str, ...]
    split: str
    best: tuple[Finalist, ...]


def status(folder: str | Path, with_best: bool = True) -> Status:
    """The status of the run in a folder; it may be running."""
    with open_run(folder) as run:
        rows = run.rows(status=None)
        planned = planned_identities(run)
        counts = Counter(row.status for row in rows if row.identity in planned)
        done, failed = counts["done"], counts["failed"]
        pid = run_folder.holder(Path(folder))
        progress = run_folder.read_progress(Path(folder)) if pid is not None else None
        ended = [row.device_s for row in rows if row.status == "done"]
        pending = len(planned) - done - failed
        estimate = pending * sum(ended) / len(ended) if ended else None
        split = "val" if "val" in run.splits else "test"
        return Status(
            names=tuple(dict.fromkeys(spec["name"] for spec in run.studies)),
            total=len(planned),
            done=done,
            failed=failed,
            pending=pending,
            retried=sum(row.attempts > 1 for row in rows),
            pid=pid,
            progress=progress,
            left_s=progress.left_s if progress is not None else estimate,
            errors=tuple(row.complaint for row in rows if row.status == "failed"),
            columns=tuple(column.title for column in run.columns()),
            split=split,
            best=tuple(best_so_far(run, split)) if with_best else (),
        )


def planned_identities(run: Run) -> set[str]:
    """The identities of all trials that the run's studies plan; made up for classes that are not yet found."""
    columns = [one.resolved for one in run.columns()]
    training = Training.from_json(run.training)
    studies = [Study.from_json(spec) for spec in run.studies]
    return {
        identity(trial, training, run.fingerprint)
        for study in studies
        for trial in study.trials(columns or study.placeholders())
    }


def best_so_far(run: Run, split: str) -> list[Finalist]:
    """The best setting of each method in each column; none before a cross-entropy trial has ended."""
    rows = rows_by_key(run)
    pools = [Pool(run, column, rows, split) for column in run.columns()]
    found = [pool.best(method) for pool in pools if pool.baseline is not None for method in pool.tried]
    return [one for one in found if one is not None]
