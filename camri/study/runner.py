"""Run a study in a folder: train what is missing and store every outcome as its trial ends.

An executor trains the trials, on this machine or on a cluster. `estimate` predicts the cost of a study.
"""

import contextlib
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from camri import methods
from camri.data import DataSet, Split
from camri.engine import Hooks, Job, Outcome, Pool, Progress, Training, Trial, train, train_job
from camri.engine.replica import make
from camri.engine.spec import batch_size, identity, steps_per_epoch
from camri.engine.training import pick_device, stop_on_signals
from camri.errors import InputError, last_line
from camri.files import NO_ROOM, cannot_write
from camri.study import run_folder
from camri.study.combine import place_into
from camri.study.run_folder import facts_of, load_data
from camri.study.spec import Study, rank_classes, resolve
from camri.study.store import FULL_DISK, STORE_FILE, Row, Store, all_but_first, kept_classes, refuse_lost

CHECKPOINTS = "checkpoints"
MISSED = "columns_without"  # note: how many cross-entropy trials had failed when the important classes were found
MARGIN_S = (5.0, 30.0)  # least and most time reserved for checkpoints, which get a tenth of the time limit
# Data sets of the paper: train rows including validation, (H, W, channels), classes.
KNOWN_DATA = {
    "cifar10": (50_000, (32, 32, 3), 10),
    "gtsrb": (39_209, (48, 48, 3), 43),
    "awa2": (26_157, (64, 64, 3), 50),
    "mnist": (60_000, (28, 28, 1), 10),
}
# Images/s of the authors' CNN, by GPU and image side, eight models side by side, end to end: docs/engine.md.
STORED = {("NVIDIA H200", 32): 80_998.0}

Listener = Callable[[Outcome], None]  # called with every outcome after it is stored


class Executor(Protocol):
    def train(self, trials: Sequence[Trial], job: Job, hooks: Hooks) -> bool:
        """Train the trials, calling the hooks in this process; return whether all of them ended."""


class LocalExecutor:
    """Trains on this machine's GPU or CPU cores. `options` are fields of the job, such as `workers` or `pack_size`.

    With `isolates`, a single CPU worker is a process of its own too, so that a crash ends only its trial. Without it a
    single worker trains in this process, which starts two seconds sooner.
    """

    def __init__(self, device: str = "auto", pool: Pool | None = None, isolates: bool = False, **options: Any):
        self.pool, self.isolates, self.options = pool, isolates, {"device": pick_device(device), **options}

    def train(self, trials: Sequence[Trial], job: Job, hooks: Hooks) -> bool:
        with Pool(self.isolates) if self.pool is None else contextlib.nullcontext(self.pool) as pool:
            return train_job(trials, replace(job, **self.options), hooks, pool)


def find_executor(
    on: str = "local", device: str = "auto", workers: int | None = None, pack_size: int | None = None
) -> Executor:
    """The executor for "local", "ray" (this machine's cluster, started if there is none) or "ray://HOST:PORT".

    It connects at once, so that an unreachable cluster is refused before anything is written.
    """
    if on == "local":
        return LocalExecutor(device, isolates=True, workers=workers, pack_size=pack_size)
    if on == "ray" or on.startswith("ray://"):
        from camri.study.ray_driver import RayExecutor

        return RayExecutor(on, device, workers, pack_size)
    raise InputError(f"on={on!r} is unknown; choices: local, ray, ray://HOST:PORT", argument="on")


@dataclass(frozen=True)
class Result:
    """How a call of `run` ended: the study's trials by status. `finished` is False if it was stopped."""

    finished: bool
    done: int
    failed: int
    pending: int
    new: int  # trials that ended in this call
    first_error: str | None = None  # setting, seed and error of the first failed trial
    lost: tuple[Row, ...] = ()  # failed trials whose process died in every attempt; the next call retries them


class NoBaseline(InputError):
    """Every cross-entropy trial failed, so "worst", "second" or "median" cannot be found."""

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
    """Train the study's trials that the folder lacks. Called again, it resumes a run that was stopped or killed.

    Bad input is refused before anything is written. SIGINT, SIGTERM and `max_wall_s` stop it after checkpoints are
    written. `on_progress` gets the progress of the whole study. `beside` names files that may be in a new run's folder.
    """
    began = time.monotonic()
    executor = executor or LocalExecutor(isolates=True)
    data = load_data(study) if data is None else data
    check(study, data)
    folder = Path(out)
    run_folder.refuse_other_files(folder, STORE_FILE, "run", beside)
    # Signals are caught from here on: one that comes between two groups of trials stops the second group too.
    with run_folder.hold(folder), Store.open(folder, facts_of(study, data)) as store, stop_on_signals() as stopped:
        limit_s = None if max_wall_s is None else max_wall_s - _margin(max_wall_s)
        job = Job(study.training, data, (), study.keep_logits, study.keep_weights, folder / CHECKPOINTS)

        def should_stop() -> bool:
            return stopped.is_set() or (limit_s is not None and time.monotonic() - began > limit_s)

        placed = place_into(store, study)
        try:
            return _Run(placed, job, store, executor, retry_failed, listeners, on_progress, should_stop).go()
        except OSError as error:
            if error.errno in NO_ROOM:
                raise InputError(f"{folder}: the disk is full; {FULL_DISK}") from error
            if not str(error.filename or "").startswith(str(folder)):
                raise
            raise cannot_write(folder, error, "; check the disk and run the same command again") from error
        finally:
            with contextlib.suppress(OSError):
                (folder / run_folder.PROGRESS_FILE).unlink()


def _margin(max_wall_s: float) -> float:
    """How many seconds before a time limit a run begins to stop; at most half of the limit.

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
    counts += [1] * more  # there may be more placeholders for "worst" etc. than classes
    for setting in settings:
        try:
            setting.criterion(len(counts), counts)
        except InputError as error:
            raise InputError(f"{setting}: {error}") from error


@dataclass(eq=False)
class _Run:
    """One call of :func:`run` on an open store."""

    study: Study
    job: Job
    store: Store
    executor: Executor
    retry_failed: bool
    listeners: Sequence[Listener]
    on_progress: Callable[[Progress], None] | None
    should_stop: Callable[[], bool]

    def __post_init__(self) -> None:
        self.data, self.folder = self.job.data, self.store.path.parent
        self.statuses = self.store.statuses()
        failed = self.store.rows(status="failed")
        self.retried = {row.identity for row in failed if self.retry_failed or row.is_lost}  # until they end again
        self.num_new = 0
        self.names: set[str] = set()  # identities of the study's trials; made up until its classes are known
        self.progress_written = 0.0

    def go(self) -> Result:
        # Columns that an earlier call has found are kept.
        if self.retry_failed and self.store.note(MISSED):
            self.store.forget_columns()
        columns = [column.resolved for column in self.store.columns()] or resolve(self.study, self.data.classes)
        self.store.add_study(self.study, columns)
        if columns is None:
            guess = self.study.placeholders()
            baseline = [trial for trial in self.study.trials(guess) if trial.setting.method == "ce"]
            self.names = set(map(self._identity, self.study.trials(guess)))
            if not self._train(baseline, all_but_first(self.data.num_classes)):
                return self._result(finished=False)
            columns = resolve(self.study, self.data.classes, self._find_symbols())
            self.store.add_study(self.study, columns)
        assert columns is not None
        trials = self.study.trials(columns)
        self.names = set(map(self._identity, trials))
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

    def _count(self, names: Iterable[str]) -> Counter[str]:
        return Counter(self.statuses[name] for name in names if name in self.statuses)

    def _train(self, trials: Sequence[Trial], important: tuple[int, ...]) -> bool:
        """Train the trials that are missing or retried; return whether all of them ended."""
        named = {self._identity(trial): trial for trial in trials}
        pending = {name: trial for name, trial in named.items() if name in self.retried or name not in self.statuses}
        if not pending:
            return True
        before, total = self._count(self.names - pending.keys()), len(self.names)

        def report(progress: Progress) -> None:
            whole = progress.within(before["done"], before["failed"], total)
            if self.on_progress is not None:
                self.on_progress(whole)
            if time.monotonic() - self.progress_written > run_folder.PROGRESS_EVERY_S:
                self.progress_written = time.monotonic()
                run_folder.write_progress(self.folder, whole)

        hooks = Hooks(self._store, report, self.should_stop)
        return self.executor.train(list(pending.values()), replace(self.job, important=important), hooks)

    def _identity(self, trial: Trial) -> str:
        return identity(trial, self.study.training, self.data.fingerprint)

    def _store(self, outcome: Outcome) -> None:
        name = self._identity(outcome.trial)
        self.store.add(name, outcome)
        self.statuses[name] = outcome.status
        self.retried.discard(name)
        self.num_new += 1
        for listener in self.listeners:
            listener(outcome)

    def _result(self, finished: bool) -> Result:
        counts = self._count(self.names)
        failed = [row for row in self.store.rows(status="failed") if row.identity in self.names]
        return Result(
            finished,
            done=counts["done"],
            failed=counts["failed"],
            pending=len(self.names) - counts["done"] - counts["failed"],
            new=self.num_new,
            first_error=failed[0].complaint if failed else None,
            lost=tuple(row for row in failed if row.is_lost),
        )


@dataclass(frozen=True)
class Cost:
    """Device time of a study, and the source of the throughput it was computed from."""

    device: str
    images_per_s: float
    source: str
    trial_s: float
    total_s: float


def estimate(study: Study, device: torch.device, workers: int) -> Cost:
    """Estimate the study's cost on the device from a stored throughput, or else from a short measurement."""
    rows, shape, num_classes = _data_of(study)
    images = study.training.epochs * steps_per_epoch(study.training, rows) * batch_size(study.training, rows)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{workers} CPU cores"
    stored = STORED.get((name, shape[0])) if study.training.model == "paper" else None
    if stored is not None:
        rate, source = stored, "stored: measured before on this kind of GPU"
    else:
        rate = measure(study.training, shape, num_classes, device)
        source = "measured just now"
        if device.type == "cpu" and workers > 1:
            rate, source = rate * workers, f"measured just now in one process, times {workers}"
    num_trials = len(study.trials(study.placeholders()))
    return Cost(name, rate, source, images / rate, num_trials * images / rate)


def _data_of(study: Study) -> tuple[int, tuple[int, ...], int]:
    """Train rows, input shape and number of classes. The paper's data sets need not be there."""
    if study.data in KNOWN_DATA and not study.data_options:
        rows, shape, num_classes = KNOWN_DATA[study.data]
        return round(rows * (1 - study.val_fraction)), shape, num_classes
    data = load_data(study)
    resolve(study, data.classes)  # refuses unknown classes
    return len(data.splits["train"]), data.input_shape, data.num_classes


def measure(training: Training, shape: tuple[int, ...], num_classes: int, device: torch.device) -> float:
    """Images/s of cross-entropy trials on random images, without start-up: 8 at once on a GPU, one on a CPU."""
    # Short epochs on a GPU would mostly measure what comes once per epoch: curves, random draws and evaluation.
    num, batches = (8, 32) if device.type == "cuda" else (1, 1)
    rows = batches * training.batch_size
    data = _random_data(rows, shape, num_classes)
    trials = [Trial(methods.setting("ce"), seed) for seed in range(num)]

    def timed(epochs: int) -> float:
        began = time.perf_counter()
        train(trials, data, device, training=training.with_(epochs=epochs), workers=1, pack_size=num)
        return time.perf_counter() - began

    timed(1)
    return rows * num / _slope(timed)


def _slope(timed: Callable[[int], float], least_s: float = 0.5, most: int = 4096) -> float:
    """Seconds per epoch: the time of a long call minus that of a short one, each the faster of two."""
    short, epochs = min(timed(1), timed(1)), 2
    while True:
        more = timed(1 + epochs) - short
        if more >= least_s:
            more = min(more, timed(1 + epochs) - short)
        if more >= least_s or epochs >= most:
            return max(more, 1e-9) / epochs
        epochs *= 4


def _random_data(rows: int, shape: tuple[int, ...], num_classes: int) -> DataSet:
    drawn = torch.Generator().manual_seed(0)

    def split(num: int) -> Split:
        labels = torch.randint(0, num_classes, (num,), generator=drawn)
        if len(shape) == 1:
            return Split(torch.randn((num, *shape), generator=drawn), labels)
        return Split(torch.randint(0, 256, (num, *shape), generator=drawn, dtype=torch.uint8), labels)

    names = tuple(str(index) for index in range(num_classes))
    return DataSet("made", names, {"train": split(rows), "test": split(2)}, "made")
