"""Training the studies of a fit within its budget; their outcomes are stored, so a killed fit resumes."""

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
from camri.decision.scores import Scores, exact
from camri.engine import Hooks, Job, Outcome, Pool, Training, Trial, train
from camri.engine.outcome import Progress as StudyProgress
from camri.engine.spec import identity
from camri.errors import InputError, last_line
from camri.files import checksum, replacing
from camri.fitting.budget import START_S, Budget
from camri.fitting.judge import Held, has_learnt
from camri.fitting.request import Progress, Request
from camri.methods import Setting, control_of, setting
from camri.study import run_folder
from camri.study.run_folder import facts_of
from camri.study.runner import LocalExecutor, NoBaseline, run
from camri.study.spec import Column, Grid, Resolved, Study, study
from camri.study.store import STORE_FILE, Row, Run, Store, open_run, refuse_lost

# Mirror images are safe for photographs, not for digits, letters and signs: flip only where the data are known.
PHOTOGRAPHS = ("cifar10", "awa2")
# Wider networks to try, each with four times the weights of the one before. For tables, hidden layers of 256 and 512
# were no better than 128 (docs/log.md).
WIDTHS = {"wide": 32, "wider": 64}
MORE_DROPOUT = 0.3  # for small noisy tables; of 14,400 rows 0.1 is as good
SMOOTHING = 0.1
DECAY = 0.999  # of the weights' average; it grows to this from 0.1 over the first steps
CE = setting("ce")


def changes_of(data: DataSet, plain: Training) -> dict[str, dict[str, Any]]:
    """Changes of the training that may help everyone, in the order in which they are tried.

    The network of a table gets more dropout. Images are moved by up to a sixteenth of their side, and mirrored if the
    data are known to be photographs. The small CNN is made wider, twice.

    >>> from camri.data import load
    >>> list(changes_of(load("digits"), Training(model="small")))
    ['moved', 'wide', 'wider', 'smooth']
    """
    changes: dict[str, dict[str, Any]] = {}
    if plain.model == "features":
        options = {**dict(plain.model_options), "dropout": MORE_DROPOUT}  # initial weights stay
        changes["dropout"] = {"model_options": tuple(sorted(options.items()))}
    if data.is_image:
        layout = str(data.provenance.get("layout")).partition(" ")[0]  # "cifar10 python", "awa2 official"
        mirrored = layout in PHOTOGRAPHS or data.name in PHOTOGRAPHS
        flip = {"flip": True} if mirrored else {}
        changes["moved"] = {"translate_px": max(1, round(min(data.input_shape[:2]) / 16)), **flip}
    if plain.model == "small" and not plain.model_options:
        changes |= {name: {"model_options": (("width", width),)} for name, width in WIDTHS.items()}
    changes["smooth"] = {"label_smoothing": SMOOTHING, "average": DECAY}
    return changes


def change(data: DataSet, plain: Training, names: Sequence[str]) -> Training:
    """The training with these changes."""
    changes = changes_of(data, plain)
    for name in names:
        plain = plain.with_(**changes[name])
    return plain


def describe_training(training: Training) -> str:
    """What a training adds to the plain one.

    >>> describe_training(Training(label_smoothing=0.1)), describe_training(Training())
    ('label smoothing 0.1', 'plain')
    """
    options = dict(training.model_options)
    parts = [f"width {options['width']}"] if "width" in options else []
    if options.get("dropout") == MORE_DROPOUT:
        parts.append(f"dropout {MORE_DROPOUT}")
    if training.translate_px:
        parts.append(f"random moves of up to {training.translate_px} px")
    if training.flip:
        parts.append("random flips")
    if training.label_smoothing:
        parts.append(f"label smoothing {training.label_smoothing:g}")
    if training.average:
        parts.append("averaged weights")
    return ", ".join(parts) or "plain"


def rises(models: Sequence[Held], before: Sequence[Held]) -> bool:
    """Whether validation accuracy is higher than before by more than a standard error over rows."""
    seeds = {one.seed for one in models} & {one.seed for one in before}
    if not seeds:
        return False
    means = [np.mean([m.scores["val"].correct() for m in side if m.seed in seeds], axis=0) for side in (models, before)]
    gained = means[0] - means[1]
    return bool(gained.mean() > gained.std(ddof=1) / math.sqrt(len(gained)))


def accuracy_of(models: Sequence[Held]) -> float:
    """Mean validation accuracy."""
    return float(np.mean([model.scores["val"].accuracy() for model in models]))


Point = tuple[str, tuple[float, ...]]  # a method and a value for each of its knobs


class AllFailed(InputError):
    """Every trial that a fit depends on failed."""


class Interrupted(Exception):
    """A signal came; everything that had ended is stored."""


class Trainer:
    """Trains studies on the request's device within the budget and reports progress."""

    workers: int | None = None  # on a CPU; None: one a core

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
        self.stage = "starting"
        self.part = 0.0  # of the trials of the latest call
        self._known = 0.0, 0.0  # wall and CPU time of the workers' trials before

    def on(self, request: Request, budget: Budget) -> "Trainer":
        """A trainer of another request that reports to the same listener and uses the same workers."""
        trainer = Trainer(request, budget, self.on_progress, self.is_stopping, self.pool)
        trainer.stage, trainer.workers = self.stage, self.workers
        return trainer

    def start_workers(self, is_needed: bool) -> None:
        """Start a process for each core ahead of time, if there is time for that; else this one will train."""
        cores = (self.workers or num_cores()) if self.is_cpu else 1
        if self.budget.is_timed and cores > 1:
            if not self.budget.has_time_for(START_S, 0.3):
                self.workers = cores = 1
            elif is_needed:
                self.pool.start(cores)
        self.budget.num_parallel = cores

    def begin(self, stage: str) -> None:
        """Begin a stage."""
        self.stage = stage
        self.report()

    def report(self) -> None:
        """Call the listener with the progress."""
        if self.on_progress is not None:
            self.on_progress(Progress(self.stage, self.budget.part_done(), self.budget.left_s()))

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
        local = LocalExecutor(str(self.request.device), pool=self.pool, workers=self.workers)
        executor = FitExecutor(local, lambda: self.budget.passed_s() >= until_s, is_enough, weights)
        began, began_core_s = time.monotonic(), time.process_time()
        self.part = 0.0

        def follow(progress: StudyProgress) -> None:
            self.part = progress.part
            self.report()

        def count(outcome: Outcome) -> None:
            self.budget.record_end(outcome.device_s, outcome.epochs_done)
            self.report()

        # A failed trial stays failed: the same command must come to the same end.
        try:
            result = run(
                asked,
                folder,
                executor,
                data=self.request.data,
                listeners=[count],
                on_progress=follow,
                beside=beside,
            )
        except NoBaseline as end:
            raise all_failed("cross-entropy", end.reason, self.request.out) from end
        refuse_lost(result.lost, self.request.out, "the next step of the fit")
        if self.is_cpu and result.new:
            self.note_slowness(time.monotonic() - began, time.process_time() - began_core_s)
        if not result.finished and self.is_stopping():
            raise Interrupted
        return result.finished

    def note_slowness(self, wall_s: float = 0.0, core_s: float = 0.0) -> None:
        """Follow how slow the cores are: by the workers' latest trials, or by these times of this process."""
        known_s, known_core_s = self._known
        self._known = self.pool.wall_s, self.pool.core_s
        if self.pool.wall_s > known_s:
            wall_s, core_s = self.pool.wall_s - known_s, self.pool.core_s - known_core_s
        if core_s > 0:
            self.budget.slowness = max(1.0, wall_s / core_s)


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
    """The store of one training: settings × seeds go in, scores come out."""

    trainer: Trainer
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
            "fit",
            request.source,
            [self.important],
            [Grid.at(method, [values]) for method, values in by_method.items()],
            seeds=list(seeds),
            training=self.training,
            data_options=request.data_options,
            val_fraction=request.inputs.val_fraction,
            test_fraction=request.inputs.test_fraction,
            keep_logits=request.needs_logits,
        )

    def train(
        self,
        points: Sequence[Point],
        seeds: Sequence[int],
        until_s: float = math.inf,
        *,
        least: int = 0,
        weights: Path | None = None,
        beside: Collection[str] = (),
    ) -> bool:
        """Train cross-entropy and these points with these seeds. Returns False if the time was up first.

        least: trials that must be stored before it may stop for time.
        """
        return self.trainer.train(
            self.study(points, seeds),
            self.folder,
            until_s=until_s,
            is_enough=lambda: not least or len(statuses_of([self.folder])) >= least,
            weights=weights,
            beside=beside,
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

    def has_learnt(self, models: Sequence[Held]) -> bool:
        """Whether each of these models of cross-entropy is better than guessing on validation data."""
        with open_run(self.folder) as stored:
            confusion = np.sum([stored.confusion(row, "val") for row in stored.rows(key=CE.key)], axis=0)
        return all(has_learnt(confusion, model) for model in models)

    def models(
        self,
        setting: Setting,
        important: Sequence[int],
        seeds: Collection[int] | None = None,
        splits: Sequence[str] = ("val",),
    ) -> list[Held]:
        """The setting's models that ended well, by seed; test scores are read only by who asks for them."""
        with open_run(self.folder) as stored:
            rows = [row for row in stored.rows(key=setting.key) if seeds is None or row.seed in seeds]
            return [
                Held(row.seed, {split: self._scores(stored, row, split, important) for split in splits})
                for row in sorted(rows, key=lambda row: row.seed)
            ]

    def _scores(self, stored: Run, row: Row, split: str, important: Sequence[int]) -> Scores:
        """Condensed scores; of stored logits if costs need the very class that is predicted."""
        if self.trainer.request.needs_logits:
            return exact(stored.logits(row)[split], stored.labels(split), important)
        return stored.scores(row, split, important)

    def take_from(self, other: "TrainingRun", seeds: Sequence[int]) -> None:
        """Copy cross-entropy's outcomes with these seeds from a run of the same training."""
        asked, data = self.study([], seeds), self.trainer.request.data
        with (
            run_folder.hold(self.folder),
            Store.open(self.folder, facts_of(asked, data)) as store,
            open_run(other.folder) as source,
        ):
            known = store.statuses()
            for row in source.rows(key=CE.key, status=None):
                if row.seed in seeds and row.identity not in known:
                    store.copy(row.identity, source)


def setting_of(point: Point, column: Resolved) -> Setting:
    """The setting of a point for the important classes.

    >>> print(setting_of(("wce", (5.0,)), ((3, 1.0), (4, 0.5))))
    wce w=5,3
    """
    method, values = point
    grid = Grid.at(method, [[values]])
    return grid.setting(next(grid.tried()), column)


def control_point(point: Point, column: Resolved) -> Point | None:
    """The head of a point without its margin; None if its method has no control."""
    setting = control_of(setting_of(point, column))
    return None if setting is None else (setting.method, tuple(value for _, value in setting.knobs))  # type: ignore[misc]


def statuses_of(folders: Sequence[Path]) -> dict[str, str]:
    """Status by identity of the trials in these runs, each once: finals may hold copies."""
    statuses: dict[str, str] = {}
    for folder in folders:
        if (folder / STORE_FILE).exists():
            with open_run(folder) as stored:
                statuses |= stored.statuses()
    return statuses


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


def file_of(folder: Path, trial: Trial, training: Training, fingerprint: str) -> Path:
    return folder / f"{identity(trial, training, fingerprint)}.safetensors"


def write_weights(path: Path, weights: Mapping[str, np.ndarray]) -> None:
    """Write the weights to a file, all or nothing."""
    with replacing(path, "; choose another folder") as part:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = save({name: np.ascontiguousarray(array) for name, array in weights.items()})
        part.write_bytes(content + checksum(content).to_bytes(4, "little"))


def read_weights(path: Path) -> dict[str, np.ndarray] | None:
    """The weights in a file; None if it is gone or damaged, and a damaged one is reported."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if checksum(content[:-4]).to_bytes(4, "little") == content[-4:]:
        return load(content[:-4])
    warnings.warn(f"{path} is damaged (its checksum differs); its model is trained again", stacklevel=2)
    return None


def outcome_with_weights(request: Request, folder: Path, trial: Trial, training: Training) -> Outcome:
    """The trial's outcome with its weights: from its file, or trained again if the file is gone or damaged."""
    data = request.data
    weights = read_weights(file_of(folder, trial, training, data.fingerprint))
    if weights is not None:
        return Outcome(trial, training, data.fingerprint, "done", weights=weights)
    (outcome,) = train([trial], data, request.device, training=training, keep_weights=True, workers=1)
    return outcome
