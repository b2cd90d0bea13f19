"""Outcomes of trials, the record of a trial in training, and the progress of all trials of a call."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from camri.decision.counts import accuracy, recall
from camri.decision.scores import Scores, condense
from camri.engine.replica import Evaluation, Job
from camri.engine.spec import Training, Trial


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of one trial; a failed trial has one too, with its error and its curves so far.

    Arrays by split ("val", "test"): `confusion` (C, C), row = true class; `scores`, the condensed scores of the
    important classes; `logits` float16 (N, C) with `keep_logits`; `angle_mean` and `angle_sd` (C,), in radians, between
    the features of a class and that class's weight vector, also for at most 10,000 "train" rows. `curves`, by epoch:
    "train_loss" (E,) and "val_hits" (E, C), the correctly classified validation rows of each class.
    """

    trial: Trial
    training: Training
    fingerprint: str  # of the data
    status: str  # "done" or "failed"
    error: str | None = None
    epochs_done: int = 0
    confusion: dict[str, np.ndarray] = field(default_factory=dict)
    scores: dict[str, Scores] = field(default_factory=dict)
    logits: dict[str, np.ndarray] = field(default_factory=dict)
    angle_mean: dict[str, np.ndarray] = field(default_factory=dict)
    angle_sd: dict[str, np.ndarray] = field(default_factory=dict)
    curves: dict[str, np.ndarray] = field(default_factory=dict)
    wall_s: float = 0.0  # training time, without pauses between two runs
    device_s: float = 0.0  # its share of the device's time: wall_s divided by the number of replicas
    environment: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, np.ndarray] | None = None  # the trained model's state, with `keep_weights`

    def accuracy(self, split: str = "test") -> float:
        return float(accuracy(self.confusion[split]))

    def recall(self, index: int, split: str = "test") -> float:
        return float(recall(self.confusion[split])[index])


@dataclass(frozen=True)
class Progress:
    """Progress of some trials: made by the engine, passed to `on_progress`, stored in a run's folder."""

    done: int  # trials that succeeded
    running: int
    total: int
    part: float  # fraction of all epochs of all trials, 0 to 1
    images_per_s: float  # 0 until it is known
    trial_s: float  # wall time per trial at the current speed; infinite until it is known
    accuracy: float | None = None  # mean validation accuracy of the running trials
    recall: float | None = None  # mean validation recall of the important classes
    failed: int = 0

    @property
    def left_s(self) -> float:
        """Estimated seconds left; infinite until they are known."""
        return self.total * (1 - self.part) * self.trial_s if self.part < 1 else 0.0

    def within(self, done: int, failed: int, total: int) -> "Progress":
        """Progress of `total` trials that include these, of which `done` and `failed` had ended before.

        >>> half = Progress(done=0, running=2, total=2, part=0.5, images_per_s=9.0, trial_s=10.0)
        >>> half.within(done=1, failed=0, total=4).left_s
        20.0
        """
        part = (done + failed + self.total * self.part) / total
        return replace(self, done=self.done + done, failed=self.failed + failed, total=total, part=part)


@dataclass(frozen=True)
class Hooks:
    """Callbacks of a call; they run in the process and thread that made it."""

    on_outcome: Callable[[Outcome], None] = lambda outcome: None  # as each trial ends
    on_progress: Callable[[Progress], None] = lambda progress: None
    should_stop: Callable[[], bool] = lambda: False


class Record:
    """State of a trial in training: epochs done, curves so far, time spent."""

    def __init__(self, trial: Trial, job: Job, environment: dict[str, Any]):
        self.trial, self.job, self.environment = trial, job, environment
        self.epoch = self.step_in_epoch = 0
        self.train_loss: list[float] = []
        self.val_hits: list[list[int]] = []
        self.wall_s = self.device_s = 0.0
        self._since = time.perf_counter()

    def notes(self) -> dict[str, Any]:
        """The part of a checkpoint other than tensors."""
        names = ("epoch", "step_in_epoch", "train_loss", "val_hits", "wall_s", "device_s")
        return {name: getattr(self, name) for name in names}

    def restore(self, notes: dict[str, Any]) -> None:
        for name, value in notes.items():
            if hasattr(self, name):
                setattr(self, name, value)

    def tick(self, replicas: int = 1) -> None:
        """Add the time since the last call."""
        now = time.perf_counter()
        self.wall_s += now - self._since
        self.device_s += (now - self._since) / replicas
        self._since = now

    def end_epoch(self, mean_loss: float, val_hits: list[int]) -> None:
        self.train_loss.append(mean_loss)
        self.val_hits.append(val_hits)
        self.epoch += 1
        self.step_in_epoch = 0

    def failed(self, error: str) -> Outcome:
        self.tick()
        return self._outcome("failed", error=error)

    def done(self, evaluated: Callable[[str], Evaluation], weights: Callable[[], dict[str, np.ndarray]]) -> Outcome:
        """The outcome of a trained model; failed if its scores are not finite."""
        splits = [name for name in ("val", "test") if name in self.job.data.splits]
        results = {name: evaluated(name) for name in splits}
        turned = {"train": evaluated("train"), **results}
        self.tick()
        if not all(np.isfinite(result.logits).all() for result in results.values()):
            return self._outcome("failed", error=f"the trained model's scores are not finite; {self.last_finite()}")
        important = self.job.important
        labels = {name: self.job.data.splits[name].labels.cpu().numpy() for name in splits}
        return self._outcome(
            "done",
            confusion={name: result.confusion for name, result in results.items()},
            scores={n: condense(r.logits, labels[n], important) for n, r in results.items()} if important else {},
            logits={n: r.logits.astype(np.float16) for n, r in results.items()} if self.job.keep_logits else {},
            angle_mean={name: result.angle_mean for name, result in turned.items()},
            angle_sd={name: result.angle_sd for name, result in turned.items()},
            weights=weights() if self.job.keep_weights else None,
        )

    def last_finite(self) -> str:
        finite = [loss for loss in self.train_loss if math.isfinite(loss)]
        return f"last finite mean loss {finite[-1]:.4g} in epoch {len(finite)}" if finite else "no epoch ended before"

    def _outcome(self, status: str, **parts: Any) -> Outcome:
        width = self.job.data.num_classes if "val" in self.job.data.splits else 0
        hits = np.array(self.val_hits, dtype=np.int32).reshape(len(self.val_hits), width)
        return Outcome(
            trial=self.trial,
            training=self.job.training,
            fingerprint=self.job.data.fingerprint,
            status=status,
            epochs_done=self.epoch,
            curves={"train_loss": np.array(self.train_loss, dtype=np.float32), "val_hits": hits},
            wall_s=self.wall_s,
            device_s=self.device_s,
            environment=self.environment,
            **parts,
        )


class Tracker:
    """Track the trials of one call by index and report to its hooks; progress at most ten times a second.

    The clock starts at the end of the first epoch of any trial. The first epochs of trials that run at once do not
    count, since processes start and models are compiled before them. The speed is known after as many more epochs.
    """

    def __init__(self, job: Job, num_trials: int, hooks: Hooks, side_by_side: int, stopped: Callable[[], bool]):
        self._job, self._hooks, self._stopped = job, hooks, stopped
        self._total, self._side_by_side = num_trials, min(side_by_side, num_trials)
        self._epochs: dict[int, int] = {}  # index of a trial -> epochs done
        self._uncounted: dict[int, int] = {}  # its epochs before the clock started, or before this call
        self._val: dict[int, list[int]] = {}
        self._ended: dict[int, str] = {}  # index -> status
        self._began: float | None = None
        self._reported = 0.0

    def should_stop(self) -> bool:
        return self._stopped() or self._hooks.should_stop()

    def epochs(self, records: Mapping[int, Record]) -> None:
        """Record trials that ended an epoch; give those that ended together in one call, or the speed is wrong."""
        for place, record in records.items():
            self._note(place, record.epoch, before=record.epoch - 1)
            if record.val_hits and record.val_hits[-1]:  # empty without a validation split
                self._val[place] = record.val_hits[-1]
        self._report()

    def end(self, place: int, outcome: Outcome) -> None:
        """Report a trial's outcome, then remove its checkpoint: a kill in between must not lose both."""
        self._note(place, outcome.epochs_done, before=0)
        self._ended[place] = outcome.status
        self._val.pop(place, None)
        self._hooks.on_outcome(outcome)
        if (path := self._job.checkpoint_of(outcome.trial)) is not None:
            path.unlink(missing_ok=True)
        self._report(last=self.all_ended)

    @property
    def all_ended(self) -> bool:
        return len(self._ended) == self._total

    def _note(self, place: int, epochs: int, before: int) -> None:
        if self._began is None:
            self._began = time.perf_counter()
        is_of_the_first = len(self._uncounted) < self._side_by_side
        self._uncounted.setdefault(place, epochs if is_of_the_first else before)
        self._epochs[place] = epochs

    def _report(self, last: bool = False) -> None:
        now = time.perf_counter()
        if self._began is None or (now - self._reported < 0.1 and not last):
            return
        self._reported = now
        each, running = self._job.training.epochs, self._epochs.keys() - self._ended.keys()
        epochs_done = each * len(self._ended) + sum(self._epochs[place] for place in running)
        counted = sum(self._epochs.values()) - sum(self._uncounted.values())
        epoch_s = (now - self._began) / counted if counted >= self._side_by_side else float("inf")
        accuracy, recall = self._validation()
        statuses = list(self._ended.values())
        self._hooks.on_progress(
            Progress(
                done=statuses.count("done"),
                failed=statuses.count("failed"),
                running=len(running),
                total=self._total,
                part=epochs_done / (self._total * each),
                images_per_s=self._job.steps_per_epoch * self._job.batch_size / epoch_s,
                trial_s=each * epoch_s,
                accuracy=accuracy,
                recall=recall,
            )
        )

    def _validation(self) -> tuple[float | None, float | None]:
        """Mean validation accuracy of the running trials, and mean recall of the important classes."""
        if not self._val:
            return None, None
        counts = self._job.data.class_counts("val").tolist()
        hits = list(self._val.values())
        accuracy = sum(map(sum, hits)) / (len(hits) * max(sum(counts), 1))
        recalls = [h[i] / counts[i] for h in hits for i in self._job.important if counts[i]]
        return accuracy, sum(recalls) / len(recalls) if recalls else None
