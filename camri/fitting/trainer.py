"""How a fit trains: the trainings it compares, its trials in stores, and the weights of its finals."""

import math
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from camri.data import DataSet
from camri.data.parallel import num_cores
from camri.engine import Hooks, Job, Outcome, Pool, Training, Trial, train
from camri.engine.spec import identity
from camri.errors import InputError, last_line
from camri.files import checksum, replacing
from camri.fitting.budget import Budget
from camri.fitting.request import Request
from camri.methods import Setting, control_of
from camri.selection import Validation
from camri.stats import compare
from camri.study.executor import LocalExecutor
from camri.study.runner import NoBaseline, run
from camri.study.schema import Row, refuse_lost
from camri.study.spec import Column, Grid, Resolved, Study, study
from camri.study.store import STORE_FILE, open_run

# Mirror images are safe for photographs, not for digits, letters and signs: flip only where the data are known.
PHOTOGRAPHS = ("cifar10", "awa2")
SMOOTHING = 0.1
DECAY = 0.999  # of the weights' average; it grows to this from 0.1 over the first steps
ONE_ERROR = 0.683  # level of an interval of one standard error to each side
POOL_START_S = 2.5  # until worker processes train: a few short trials are quicker without them


def trainings_for(data: DataSet, plain: Training) -> dict[str, Training]:
    """name -> training: the plain one first, then the more promising first.

    Images are moved by up to a sixteenth of their side, and mirrored if the data are known to be photographs.
    """
    extras: dict[str, dict[str, object]] = {}
    if data.is_image:
        layout = str(data.provenance.get("layout")).partition(" ")[0]  # "cifar10 python", "awa2 official"
        mirrored = layout in PHOTOGRAPHS or data.name in PHOTOGRAPHS
        pixels = max(1, round(min(data.input_shape[:2]) / 16))
        extras["augmented"] = {"translate_px": pixels, **({"flip": True} if mirrored else {})}
    extras["smoothed"] = {"label_smoothing": SMOOTHING}
    extras["averaged"] = {"average": DECAY}
    every = {name: value for extra in extras.values() for name, value in extra.items()}
    return {"plain": plain, **{n: plain.with_(**extra) for n, extra in extras.items()}, "all": plain.with_(**every)}


def choose_training(baselines: Mapping[str, Validation]) -> str:
    """The training with the best validation accuracy of cross-entropy; the plain one unless another is clearly better.

    Clearly: by more than one standard error over seeds and images. With 250 validation images, of which one is .004 of
    accuracy, the best of five equal trainings would not be the plain one in four of five fits.
    """
    plain = baselines["plain"]
    best, accuracy = "plain", -np.inf
    for name, other in baselines.items():
        seeds = sorted(set(plain.scores) & set(other.scores))
        if name == "plain" or not seeds:
            continue
        mine, theirs = (np.array([one.scores[seed].correct() for seed in seeds]) for one in (other, plain))
        if compare(mine, theirs, seed=0, level=ONE_ERROR).low > 0 and mine.mean() > accuracy:
            best, accuracy = name, mine.mean()
    return best


def describe_training(name: str, training: Training) -> str:
    """What a training adds to the plain one.

    >>> describe_training("smoothed", Training(label_smoothing=0.1))
    'label smoothing 0.1'
    """
    parts = []
    if training.translate_px:
        parts.append(f"random shifts of up to {training.translate_px} px")
    if training.flip:
        parts.append("random flips")
    if training.label_smoothing:
        parts.append(f"label smoothing {training.label_smoothing:g}")
    if training.average:
        parts.append("averaged weights")
    return ", ".join(parts) if parts else f"{name} training"


Point = tuple[str, tuple[float, ...]]  # a method and a value for each of its knobs


class AllFailed(InputError):
    """Every trial that a fit depends on failed."""


class Interrupted(Exception):
    """A signal came; everything that had ended is stored."""


@dataclass(frozen=True)
class Progress:
    """Trials of the current stage that have ended and are planned, and the seconds until the fit ends, if known.

    While data are read, rows are counted instead of trials.
    """

    stage: str
    done: int
    total: int
    left_s: float | None = None


class Trainer:
    """Trains studies on the request's device within the budget and reports progress."""

    def __init__(
        self,
        request: Request,
        budget: Budget,
        on_progress: Callable[[Progress], None] | None,
        is_stopping: Callable[[], bool],
        pool: Pool,
    ):
        self.request, self.budget, self.on_progress = request, budget, on_progress
        self.is_stopping, self.pool = is_stopping, pool
        self.is_cpu = request.device.type == "cpu"
        self.alone_s = None if budget.expected_s is None else budget.expected_s * num_cores()  # a trial in one process
        self.stage, self.first, self.total = "starting", 0, 0

    def begin(self, stage: str, total: int = 0, first: int | None = None) -> None:
        """Begin a stage of `total` trials; `first` trials had ended before it, all so far by default."""
        self.stage, self.total = stage, total
        self.first = self.budget.num_ended if first is None else first
        self.report()

    def report(self) -> None:
        """Call the listener with the progress."""
        if self.on_progress is not None:
            done = self.budget.num_ended - self.first
            self.on_progress(Progress(self.stage, done, max(self.total, done), self.budget.left_s()))

    def train(
        self,
        asked: Study,
        folder: Path,
        *,
        until_s: float = math.inf,
        is_enough: Callable[[], bool] = lambda: True,
        weights: Path | None = None,
        beside: Collection[str] = (),
    ) -> bool:
        """Train the study's trials that its folder lacks. Returns False if the time was up first.

        until_s: when to stop, by the budget's clock, though not before `is_enough`. weights: folder for the trained
        weights. beside: files that the run's folder may hold. Raises :class:`Interrupted` after a signal.
        """
        if self.is_stopping():
            raise Interrupted
        workers = self._workers(len(asked.trials(asked.placeholders())))
        local = LocalExecutor(str(self.request.device), workers=workers, pool=self.pool)
        executor = FitExecutor(local, lambda: self.budget.passed_s() >= until_s, is_enough, weights)
        began, began_core_s = time.monotonic(), time.process_time()
        pool_s, pool_core_s = self.pool.wall_s, self.pool.core_s

        def count(outcome: Outcome) -> None:
            self.budget.record_end()
            self.alone_s = outcome.device_s
            self.report()

        # A failed trial stays failed: the same command must come to the same end.
        try:
            result = run(
                asked,
                folder,
                executor,
                data=self.request.data,
                listeners=[count],
                on_progress=lambda _: self.report(),
                beside=beside,
            )
        except NoBaseline as end:
            raise all_failed("cross-entropy", end.reason, self.request.out) from end
        refuse_lost(result.lost, self.request.out, "the next step of the fit")
        wall_s, core_s = self.pool.wall_s - pool_s, self.pool.core_s - pool_core_s
        if not wall_s:
            wall_s, core_s = time.monotonic() - began, time.process_time() - began_core_s
        if self.is_cpu and result.new and core_s > 0:
            self.budget.slowness = max(1.0, wall_s / core_s)
        if not result.finished and self.is_stopping():
            raise Interrupted
        return result.finished

    def _workers(self, num_trials: int) -> int | None:
        """1 if a worker pool would not pay; it stays, so all trials that are left may pay for its start."""
        if not self.is_cpu or self.alone_s is None or self.pool.wall_s:
            return None
        saved_s = max(num_trials, self.budget.trials_left()) * self.alone_s * (1 - 1 / num_cores())
        return None if saved_s > POOL_START_S * self.budget.slowness else 1


@dataclass(frozen=True)
class FitExecutor:
    """An executor that stops when the time is up and there is enough, and writes trained weights to files.

    A file is written before its outcome is stored: a process killed in between trains that trial again.
    """

    inner: LocalExecutor
    is_time_up: Callable[[], bool]
    is_enough: Callable[[], bool]
    weights: Path | None

    def train(self, trials: Sequence[Trial], job: Job, hooks: Hooks) -> bool:
        """Train the trials. Returns whether all have ended."""
        enough = self.is_enough()  # checked after each outcome only: it may read the store

        def end(outcome: Outcome) -> None:
            nonlocal enough
            if self.weights is not None and outcome.weights is not None:
                path = file_of(self.weights, outcome.trial, outcome.training, outcome.fingerprint)
                write_weights(path, outcome.weights)
                outcome = replace(outcome, weights=None)
            hooks.on_outcome(outcome)
            enough = enough or self.is_enough()

        def should_stop() -> bool:
            return hooks.should_stop() or (enough and self.is_time_up())

        job = replace(job, keep_weights=self.weights is not None)
        return self.inner.train(trials, job, replace(hooks, on_outcome=end, should_stop=should_stop))


@dataclass(frozen=True)
class TrainingRun:
    """The store of one training: settings × seeds go in, validation scores come out. Test scores are not read here."""

    trainer: Trainer
    name: str
    training: Training
    folder: Path
    important: Column

    def study(self, points: Sequence[Point], seeds: Sequence[int]) -> Study:
        """The study of cross-entropy and these points with these seeds."""
        by_method: dict[str, list[tuple[float, ...]]] = {"ce": [()]}
        for method, values in points:
            by_method.setdefault(method, []).append(values)
        request = self.trainer.request
        return study(
            f"fit.{self.name}",
            request.source,
            [self.important],
            [Grid.at(method, [values]) for method, values in by_method.items()],
            seeds=list(seeds),
            training=self.training,
            data_options=request.data_options,
            val_fraction=request.inputs.val_fraction,
            test_fraction=request.inputs.test_fraction,
        )

    def train(self, points: Sequence[Point], seeds: Sequence[int], until_s: float = math.inf, least: int = 0) -> bool:
        """Train cross-entropy and these points with these seeds. Returns False if the time was up first.

        least: trials to train before it may stop for time.
        """
        budget = self.trainer.budget
        enough = budget.num_ended + least
        return self.trainer.train(
            self.study(points, seeds), self.folder, until_s=until_s, is_enough=lambda: budget.num_ended >= enough
        )

    def column(self) -> Resolved:
        """Indices and strengths of the important classes, as the store has them."""
        with open_run(self.folder) as stored:
            (column,) = stored.columns()
        return column.resolved

    def rows(self, setting: Setting) -> list[Row]:
        """The setting's outcomes, failed ones too."""
        with open_run(self.folder) as stored:
            return stored.rows(key=setting.key, status=None)

    def validation(self, setting: Setting, important: Sequence[int]) -> Validation:
        """The setting's validation scores by seed, without failed trials."""
        with open_run(self.folder) as stored:
            scores = {row.seed: stored.scores(row, "val", important) for row in stored.rows(key=setting.key)}
        return Validation(setting.key, scores)


def setting_of(point: Point, column: Resolved) -> Setting:
    """The setting of a point for the important classes.

    >>> print(setting_of(("wce", (5.0,)), ((3, 1.0), (4, 0.5))))
    wce w=5,3
    """
    method, values = point
    grid = Grid.at(method, [[values]])
    return grid.setting(next(grid.tried()), column)


def count_trials(folders: Sequence[Path]) -> int:
    """Trials that are stored in these runs, failed ones too."""
    num = 0
    for folder in folders:
        if (folder / STORE_FILE).exists():
            with open_run(folder) as stored:
                num += len(stored.statuses())
    return num


def refuse_failures(rows: Sequence[Row], what: str, out: Path) -> None:
    """Refuse to go on if every trial failed; quote the first error."""
    if rows and all(row.status != "done" for row in rows):
        raise all_failed(what, last_line(rows[0].error), out)


def all_failed(what: str, reason: str, out: Path) -> AllFailed:
    """The error of a fit that cannot continue. Failed trials stay failed in its folder, so it always ends the same."""
    return AllFailed(
        f"every trial of {what} failed; first error: {reason}. Fix it and fit into another folder (--out): {out} keeps "
        "its failed trials"
    )


def controls_of(finalists: Sequence[Point]) -> list[Point]:
    """The controls of the finalists that have one, each once.

    >>> controls_of([("camri", (0.2, 8.0)), ("wce", (4.0,)), ("cosface", (0.1, 8.0))])
    [('l2softmax', (8.0,))]
    """
    # No control depends on the important classes, so any will do.
    settings = filter(None, (control_of(setting_of(point, ((0, 1.0),))) for point in finalists))
    controls: dict[Any, None] = dict.fromkeys((one.method, tuple(value for _, value in one.knobs)) for one in settings)
    return [point for point in controls if point not in finalists]


def file_of(folder: Path, trial: Trial, training: Training, fingerprint: str) -> Path:
    return folder / f"{identity(trial, training, fingerprint)}.safetensors"


def write_weights(path: Path, weights: Mapping[str, np.ndarray]) -> None:
    """Write the weights to a file, all or nothing."""
    with replacing(path, "; choose another folder") as part:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = save({name: np.ascontiguousarray(array) for name, array in weights.items()})
        part.write_bytes(content + checksum(content).to_bytes(4, "little"))


def outcome_with_weights(request: Request, folder: Path, trial: Trial, training: Training) -> Outcome:
    """The trial's outcome with its weights: from its file, or trained again if the file is gone or damaged."""
    data = request.data
    path = file_of(folder, trial, training, data.fingerprint)
    try:
        content = path.read_bytes()
        if checksum(content[:-4]).to_bytes(4, "little") == content[-4:]:
            return Outcome(trial, training, data.fingerprint, "done", weights=load(content[:-4]))
        warnings.warn(f"{path} is damaged (its checksum differs); its model is trained again", stacklevel=2)
    except FileNotFoundError:
        pass
    (outcome,) = train([trial], data, request.device, training=training, keep_weights=True, workers=1)
    return outcome
