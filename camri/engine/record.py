"""The growing record of one trial: its curves, its clock, and how it becomes an outcome or a checkpoint."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from camri.engine.evaluate import Evaluation
from camri.engine.outcome import Outcome
from camri.engine.replica import Job
from camri.engine.spec import Trial
from camri.metrics import condense


class Record:
    """Where a trial stands: epochs done, curves so far, time spent."""

    def __init__(self, trial: Trial, job: Job, environment: dict[str, Any]):
        self.trial = trial
        self.job = job
        self.environment = environment
        self.epoch = 0
        self.step_in_epoch = 0
        self.train_loss: list[float] = []
        self.val_hits: list[list[int]] = []
        self.wall_s = 0.0
        self.device_s = 0.0
        self._since = time.perf_counter()

    def notes(self) -> dict[str, Any]:
        """What a checkpoint must say beside its tensors."""
        names = ("epoch", "step_in_epoch", "train_loss", "val_hits", "wall_s", "device_s")
        return {name: getattr(self, name) for name in names}

    def restore(self, notes: dict[str, Any]) -> None:
        for name, value in notes.items():
            if hasattr(self, name):
                setattr(self, name, value)

    def tick(self, replicas: int = 1) -> None:
        """Count the time since the last call."""
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
        """The outcome of a trained model; failed if what it says is not finite."""
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
            scores={name: condense(result.logits, labels[name], important) for name, result in results.items()}
            if important
            else {},
            logits={name: result.logits.astype(np.float16) for name, result in results.items()}
            if self.job.keep_logits
            else {},
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
