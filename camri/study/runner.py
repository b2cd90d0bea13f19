"""Run a study into a folder: train what is not yet done, and store every outcome as its trial ends.

A run folder holds `outcomes.sqlite` and `run.lock`; while it runs, also `progress.json` and checkpoints.
"""

import contextlib
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from camri.data import DataSet
from camri.engine import Hooks, Job, Outcome, Progress, Trial
from camri.engine.replica import make
from camri.engine.spec import identity
from camri.engine.training import stop_on_signals
from camri.errors import InputError, last_line
from camri.files import NO_ROOM
from camri.study import run_folder
from camri.study.combine import place_into
from camri.study.executor import Executor, LocalExecutor
from camri.study.run_folder import facts_of, load_data
from camri.study.spec import Study, rank_classes, resolve
from camri.study.store import FULL_DISK, STORE_FILE, Row, Store, all_but_first, kept_classes, refuse_lost

CHECKPOINTS = "checkpoints"
MISSED = "columns_without"  # the note of how many cross-entropy trials had failed when the classes were found
MARGIN_S = (5.0, 30.0)  # reserve for checkpoints: a tenth of the time limit, but at least and at most this

Listener = Callable[[Outcome], None]  # called with every outcome after it is stored; tracking is one


@dataclass(frozen=True)
class Result:
    """How a run ended: trials of the study by state; `finished` is False if it was stopped."""

    finished: bool
    done: int
    failed: int
    pending: int
    new: int  # ended in this call
    first_error: str | None = None  # of the first trial that failed: its setting, seed and last line
    lost: tuple[Row, ...] = ()  # of the failed trials, those whose process died each time; the next call retries them


class NoBaseline(InputError):
    """Every cross-entropy trial failed, but the important classes are found from them."""

    def __init__(self, folder: Path, sought: str, reason: str):
        super().__init__(
            f"{folder}: every cross-entropy trial failed, so {sought} cannot be found; the first: {reason}; fix that "
            "and train them again with retry_failed=True (--retry-failed)"
        )
        self.reason = reason


def run(
    study: Study,
    out: str | Path,
    executor: Executor | None = None,
    *,
    data: DataSet | None = None,
    retry_failed: bool = False,
    max_wall_s: float | None = None,
    listeners: Sequence[Listener] = (),
    on_progress: Callable[[Progress], None] | None = None,
    beside: Collection[str] = (),
) -> Result:
    """Train what the folder lacks of the study. Called again, it resumes where it was stopped or killed.

    Bad input is refused before anything is written. SIGINT, SIGTERM and `max_wall_s` stop it with checkpoints written.
    `on_progress` gets the progress of the whole study. `beside` names files that a new run's folder may already hold.
    """
    began = time.monotonic()
    executor = executor or LocalExecutor(isolates=True)
    data = load_data(study) if data is None else data
    check(study, data)
    folder = Path(out)
    run_folder.refuse_other_files(folder, STORE_FILE, "run", beside)
    # Signals are caught from here on: one that comes as the cross-entropy trials end stops the trials after them too.
    with run_folder.hold(folder), Store.open(folder, facts_of(study, data)) as store, stop_on_signals() as stopped:
        limit_s = None if max_wall_s is None else max_wall_s - _margin(max_wall_s)
        job = Job(study.training, data, (), study.keep_logits, study.keep_weights, folder / CHECKPOINTS)
        run = _Run(place_into(store, study), job, store, executor, retry_failed, listeners, on_progress)
        run.should_stop = lambda: stopped.is_set() or (limit_s is not None and time.monotonic() - began > limit_s)
        try:
            return run.go()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise InputError(f"{folder}: the disk is full; {FULL_DISK}") from error
        finally:
            with contextlib.suppress(OSError):
                (folder / run_folder.PROGRESS_FILE).unlink()


def _margin(max_wall_s: float) -> float:
    """Seconds before a time limit at which a run begins to stop; at most half of the limit.

    >>> _margin(1500.0), _margin(100.0), _margin(20.0), _margin(4.0)
    (30.0, 10.0, 5.0, 2.0)
    """
    least, most = MARGIN_S
    return min(most, max(least, max_wall_s / 10), max_wall_s / 2)


def check(study: Study, data: DataSet) -> None:
    """Raise InputError if the study cannot be trained on this data."""
    columns = resolve(study, data.classes)
    if columns is None and study.important_from not in data.splits:
        why = f"is found on the {study.important_from} split, which {data.name} does not have"
        raise InputError(
            f"important={', '.join(sorted(study.symbols))} {why}; set val_fraction, or important_from=test",
            argument="important",
        )
    job = Job(study.training, data, () if columns is None else kept_classes(columns, data.num_classes))
    job.check()
    settings = study.unique_settings(columns if columns is not None else study.placeholders())
    make(Trial(settings[0], study.seeds[0]), job)
    counts = data.class_counts("train").tolist()
    more = max((index for setting in settings for index in setting.important), default=0) + 1 - len(counts)
    counts += [1] * more  # placeholders of classes that are yet to be found may be more than there are classes
    for setting in settings:
        try:
            setting.criterion(len(counts), counts)
        except InputError as error:
            raise InputError(f"{setting}: {error}") from error


class _Run:
    """One call of :func:`run` on an open store."""

    def __init__(
        self,
        study: Study,
        job: Job,
        store: Store,
        executor: Executor,
        retry_failed: bool,
        listeners: Sequence[Listener],
        on_progress: Callable[[Progress], None] | None,
    ):
        self.study, self.job, self.data, self.store, self.executor = study, job, job.data, store, executor
        self.retry_failed, self.listeners, self.on_progress = retry_failed, listeners, on_progress
        self.folder = store.path.parent
        self.should_stop: Callable[[], bool] = lambda: False
        self.statuses = store.statuses()
        self.lost = {row.identity for row in store.rows(status="failed") if row.is_lost}  # in an earlier call
        self.ended_here: set[str] = set()
        self.names: dict[str, None] = {}  # identities of all trials of the study; made up until its classes are known
        self.progress_written = 0.0

    def go(self) -> Result:
        # The columns as an earlier call found them, so that they are decided once; or from names alone.
        if self.retry_failed and self.store.note(MISSED):
            self.store.forget_columns()
        columns = [one.resolved for one in self.store.columns()] or resolve(self.study, self.data.classes)
        self.store.add_study(self.study, columns)
        if columns is None:
            guess = self.study.placeholders()
            baseline = [trial for trial in self.study.trials(guess) if trial.setting.method == "ce"]
            self._plan(self.study.trials(guess))
            if not self._train(baseline, all_but_first(self.data.num_classes)):
                return self._result(finished=False)
            columns = resolve(self.study, self.data.classes, self._find_symbols())
            self.store.add_study(self.study, columns)
        assert columns is not None
        trials = self.study.trials(columns)
        self._plan(trials)
        finished = self._train(trials, kept_classes(columns, self.data.num_classes))
        if finished:
            shutil.rmtree(self.folder / CHECKPOINTS, ignore_errors=True)
        return self._result(finished)

    def _find_symbols(self) -> dict[str, int]:
        rows, failed = self.store.rows(method="ce"), self.store.rows(method="ce", status="failed")
        sought = ", ".join(sorted(self.study.symbols))
        refuse_lost(failed, self.folder, sought)
        if not rows:
            raise NoBaseline(self.folder, sought, last_line(failed[0].error))
        self.store.write_note(MISSED, len(failed))
        if failed:
            missed = f"{len(failed)} of {len(failed) + len(rows)} cross-entropy trials, which failed"
            warnings.warn(f"{sought} is found without {missed}; --retry-failed decides again", stacklevel=2)
        return rank_classes([row.recall[self.study.important_from] for row in rows])

    def _plan(self, trials: Sequence[Trial]) -> None:
        self.names = dict.fromkeys(self._identity(trial) for trial in trials)

    def _count(self, names: Iterable[str]) -> Counter[str]:
        return Counter(self.statuses[name] for name in names if name in self.statuses)

    def _train(self, trials: Sequence[Trial], important: tuple[int, ...]) -> bool:
        pending = {name: trial for trial in trials if self._is_pending(name := self._identity(trial))}
        if not pending:
            return True
        before, total = self._count(self.names.keys() - pending.keys()), len(self.names)

        def report(progress: Progress) -> None:
            whole = progress.within(before["done"], before["failed"], total)
            if self.on_progress is not None:
                self.on_progress(whole)
            if time.monotonic() - self.progress_written > run_folder.PROGRESS_EVERY_S:
                self.progress_written = time.monotonic()
                run_folder.write_progress(self.folder, whole)

        hooks = Hooks(self._store, report, lambda: self.should_stop())
        return self.executor.train(list(pending.values()), replace(self.job, important=important), hooks)

    def _identity(self, trial: Trial) -> str:
        return identity(trial, self.study.training, self.data.fingerprint)

    def _is_pending(self, name: str) -> bool:
        status, again = self.statuses.get(name), self.retry_failed or name in self.lost
        return status is None or (status == "failed" and again and name not in self.ended_here)

    def _store(self, outcome: Outcome) -> None:
        name = self._identity(outcome.trial)
        self.store.add(name, outcome)
        self.statuses[name] = outcome.status
        self.ended_here.add(name)
        for listener in self.listeners:
            listener(outcome)

    def _result(self, finished: bool) -> Result:
        counts = self._count(self.names)
        done, failed = counts["done"], counts["failed"]
        errors = [row for row in self.store.rows(status="failed") if row.identity in self.names]
        pending = len(self.names) - done - failed
        first, lost = errors[0].complaint if errors else None, tuple(row for row in errors if row.is_lost)
        return Result(finished, done, failed, pending, len(self.ended_here), first, lost)
