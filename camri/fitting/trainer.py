"""Trainings that a fit tries before any method: what makes cross-entropy itself better.

Where a fit trains: every trial goes through a study's runner into a store, with one clock and one progress.

The finals: cross-entropy, the finalists and their controls with new seeds; and the weights of what they trained.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from camri.data import DataSet
from camri.data.parallel import num_cores
from camri.engine import Hooks, Job, Outcome, Pool, Training, Trial, train
from camri.engine import Progress as EngineProgress
from camri.engine.spec import identity
from camri.errors import InputError, last_line
from camri.files import replacing
from camri.fitting.plan import Pace, slowness
from camri.fitting.request import Request
from camri.methods import Setting
from camri.selection import Validation
from camri.stats import compare
from camri.study.executor import Executor, LocalExecutor
from camri.study.runner import NoBaseline, run
from camri.study.schema import Row
from camri.study.spec import Column, Grid, Resolved, Study, study
from camri.study.store import STORE_FILE, open_run

# Photographs stay what they are in a mirror; digits, letters and signs do not, so it is done where it is known.
PHOTOGRAPHS = ("cifar10", "awa2")
SMOOTHING = 0.1
ONE_ERROR = 0.683  # a level whose interval is one standard error to each side
DECAY = 0.999  # of the weights' average; it grows to this from 0.1 over the first steps


def trainings_for(data: DataSet, plain: Training) -> dict[str, Training]:
    """name -> training, the plain one first, then the more promising first.

    Images are moved by up to a sixteenth of their side; they are mirrored only where the data is known to be
    photographs.
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
    """The training under which cross-entropy has the best validation accuracy; the plain one unless it is surpassed.

    Surpassed: by more than one standard error over seeds and images. Of 250 validation images one is .004 of accuracy:
    the best of five equal trainings would be another one than the plain in four of five fits, for nothing.
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
    """A training's name with what it adds, for people.

    >>> describe("smoothed", Training(label_smoothing=0.1))
    'label smoothing 0.1'
    """
    parts = []
    if training.translate_px:
        parts.append(f"images moved by up to {training.translate_px} px")
    if training.flip:
        parts.append("mirrored")
    if training.label_smoothing:
        parts.append(f"label smoothing {training.label_smoothing:g}")
    if training.average:
        parts.append("averaged weights")
    return ", ".join(parts) if parts else f"{name} training"


Point = tuple[str, tuple[float, ...]]  # a method and a value for each of its knobs


class AllFailed(InputError):
    """No trial of something ended well."""


class Interrupted(Exception):
    """A signal came; everything that had ended is stored."""


@dataclass(frozen=True)
class Progress:
    """How far a fit is: the step it is at, trials ended and planned in all, seconds left as far as can be told.

    While data are read, `unit` is "rows" and these are counted.
    """

    step: str
    done: int
    total: int
    left_s: float | None
    accuracy: float | None = None  # mean validation accuracy of the running trials
    recall: float | None = None
    unit: str = "models"

    @property
    def part(self) -> float:
        return min(1.0, self.done / self.total) if self.total else 0.0


class Trainer:
    """Trains studies on the request's device, tells the progress, and measures the pace."""

    def __init__(
        self,
        request: Request,
        on_progress: Callable[[Progress], None] | None,
        is_stopping: Callable[[], bool],
        pool: Pool,
    ):
        self.request, self.on_progress, self.is_stopping, self.pool = request, on_progress, is_stopping, pool
        self.total = 0  # trials planned in all
        self.ended = 0  # trials that are stored
        self.is_cpu = request.device.type == "cpu"
        self.pace = Pace(num_cores() if self.is_cpu else 1)
        self.last_end = time.monotonic()  # of a call; what is thought until the next counts as its start

    def train(
        self,
        asked: Study,
        folder: Path,
        step: str,
        wrap: Callable[[Executor], Executor] = lambda executor: executor,
        beside: Collection[str] = (),
    ) -> None:
        """Nothing; every trial of the study is in the folder's store. Raises :class:`Interrupted` where one is not."""
        if self.is_stopping():
            raise Interrupted
        num = len(asked.trials(asked.placeholders()))
        workers = self._workers(num)
        executor = wrap(LocalExecutor(str(self.request.device), workers=workers, pool=self.pool))
        began, began_core_s = time.monotonic(), time.process_time()
        pool_s, pool_core_s = self.pool.wall_s, self.pool.core_s
        took: list[float] = []

        def count(outcome: Outcome) -> None:
            self.ended += 1
            took.append(outcome.device_s)
            self.pace.recent.append(outcome.device_s)

        def tell(report: EngineProgress) -> None:
            self.tell(step, report)

        # A failed trial stays failed: the same command must come to the same end.
        try:
            result = run(
                asked, folder, executor, data=self.request.data, listeners=[count], on_progress=tell, beside=beside
            )
        except NoBaseline as end:
            raise all_failed("cross-entropy", end.reason, self.request.out) from end
        ended = time.monotonic()
        if took:
            width = 1 if workers == 1 or len(took) == 1 else self.pace.parallel
            self.pace.hear(took, width, ended - self.last_end)
            if self.is_cpu and width == 1:
                self.pace.slowness = slowness(ended - began, time.process_time() - began_core_s)
            elif self.is_cpu:
                self.pace.slowness = slowness(self.pool.wall_s - pool_s, self.pool.core_s - pool_core_s)
        self.last_end = ended
        if not result.finished:
            raise Interrupted
        self.tell(step)

    def tell(self, step: str, report: EngineProgress | None = None) -> None:
        """Nothing; the listener hears where the fit stands."""
        if self.on_progress is None:
            return
        left = max(self.total - self.ended, 0)
        left_s = self.pace.takes_s(left) if self.pace.trial_s is not None else None
        if left_s is None and report is not None and report.trial_s < float("inf"):
            left_s = left * report.trial_s  # of all trials of the fit, not of this step's alone
        recall, accuracy = (None, None) if report is None else (report.recall, report.accuracy)
        self.on_progress(Progress(step, self.ended, max(self.total, self.ended), left_s, accuracy, recall))

    def _workers(self, num_trials: int) -> int | None:
        # Processes stay for the calls to come, so all trials that are left may pay for their start.
        return 1 if self.pace.width(max(num_trials, self.total - self.ended)) == 1 else None


class TrainingRun:
    """The store of one training: settings × seeds go in, validation scores come out. Test scores are not read here."""

    def __init__(
        self,
        workshop: Trainer,
        name: str,
        training: Training,
        folder: Path,
        important: Column,
        has_baseline: bool = True,
    ):
        self.workshop, self.name, self.training, self.folder = workshop, name, training, folder
        self.important, self.has_baseline = important, has_baseline

    def asked(self, points: Sequence[Point], seeds: Sequence[int]) -> Study:
        """The study of these points with these seeds, and of cross-entropy unless another bench has it."""
        by_method: dict[str, list[tuple[float, ...]]] = {"ce": [()]} if self.has_baseline else {}
        for method, values in points:
            by_method.setdefault(method, []).append(values)
        inputs = self.workshop.request.inputs
        return study(
            f"fit.{self.name}",
            self.workshop.request.source,
            [self.important],
            [Grid.at(method, [values]) for method, values in by_method.items()],
            seeds=list(seeds),
            training=self.training,
            data_options=self.workshop.request.data_options,
            val_fraction=inputs.val_fraction,
            test_fraction=inputs.test_fraction,
        )

    def train(self, points: Sequence[Point], seeds: Sequence[int], step: str) -> None:
        self.workshop.train(self.asked(points, seeds), self.folder, step)

    def column(self) -> Resolved:
        """Indices and strengths of the important classes, as the store has them."""
        with open_run(self.folder) as stored:
            (found,) = stored.columns()
        return found.resolved

    def rows(self, setting: Setting, status: str | None = "done") -> list[Row]:
        with open_run(self.folder) as stored:
            return stored.rows(key=setting.key, status=status)

    def validation(self, setting: Setting, important: Sequence[int]) -> Validation:
        """The setting's validation scores by seed, of those that ended well."""
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
    """Refuse to go on where every trial failed, with what the first one said at last."""
    if rows and all(row.status != "done" for row in rows):
        raise all_failed(what, last_line(rows[0].error), out)


def all_failed(what: str, reason: str, out: Path) -> "AllFailed":
    """The error of a fit that cannot go on; failed trials stay failed in its folder, so that it ends as it ended."""
    return AllFailed(
        f"every trial of {what} failed; the first: {reason}; mend that, and fit into another folder (--out): {out} "
        "keeps its failed trials"
    )


FINALS_FOLDER = "weights"
COSINE = ("camri", "cosface")  # methods whose last knob is a scale: L2-softmax at that scale is their control


def controls_of(finalists: Sequence[Point]) -> list[Point]:
    """L2-softmax at every scale that a finalist with a margin has.

    >>> controls_of([("camri", (0.2, 8.0)), ("wce", (4.0,)), ("cosface", (0.1, 8.0))])
    [('l2softmax', (8.0,))]
    """
    found = dict.fromkeys(("l2softmax", (values[-1],)) for method, values in finalists if method in COSINE)
    return [point for point in found if point not in finalists]


class SaveWeights:
    """An executor that leaves every trained model's weights in a file, and not in the store.

    The file is there before the outcome is stored: a process that is killed in between trains that trial again.
    """

    def __init__(self, inner: Executor, folder: Path):
        self.inner, self.folder = inner, folder

    def train(self, trials: Sequence[Trial], job: Job, hooks: Hooks) -> bool:
        """Whether all trials came to an end."""

        def keep(outcome: Outcome) -> None:
            if outcome.weights is not None:
                path = file_of(self.folder, outcome.trial, outcome.training, outcome.fingerprint)
                write_weights(path, outcome.weights)
            hooks.on_outcome(replace(outcome, weights=None))

        return self.inner.train(trials, replace(job, keep_weights=True), replace(hooks, on_outcome=keep))


class Deadline:
    """An executor that stops in good order when time is up, but not before there is enough."""

    def __init__(self, inner: Executor, is_time_up: Callable[[], bool], is_enough: Callable[[], bool]):
        self.inner, self.is_time_up, self.is_enough = inner, is_time_up, is_enough

    def train(self, trials: Sequence[Trial], job: Job, hooks: Hooks) -> bool:
        """Whether all trials came to an end."""
        enough: list[bool] = []  # asked once after each outcome: it reads the store

        def heard(outcome: Outcome) -> None:
            hooks.on_outcome(outcome)
            enough.clear()

        def should_stop() -> bool:
            if hooks.should_stop():
                return True
            if not self.is_time_up():
                return False
            if not enough:
                enough.append(self.is_enough())
            return enough[0]

        return self.inner.train(trials, job, replace(hooks, on_outcome=heard, should_stop=should_stop))


def file_of(folder: Path, trial: Trial, training: Training, fingerprint: str) -> Path:
    return folder / f"{identity(trial, training, fingerprint)}.safetensors"


def write_weights(path: Path, weights: dict[str, np.ndarray]) -> None:
    """Nothing; the weights are in the file, whole or not at all."""
    with replacing(path, "; choose another folder") as part:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(save({name: np.ascontiguousarray(array) for name, array in weights.items()}))


def outcome_with_weights(request: Request, folder: Path, trial: Trial, training: Training) -> Outcome:
    """The trial's outcome with its weights: from its file, or trained again where the file is gone."""
    data = request.data
    path = file_of(folder, trial, training, data.fingerprint)
    try:
        return Outcome(trial, training, data.fingerprint, "done", weights=load_file(path))
    except (OSError, SafetensorError):
        (outcome,) = train([trial], data, request.device, training=training, keep_weights=True, workers=1)
        return outcome
