"""What a trial leaves behind, and what it says on the way."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from camri.engine.spec import Training, Trial
from camri.metrics import Scores, accuracy, recall


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of one trial; a failed trial leaves one too, with what it had reached.

    Arrays by split ("val", "test"): `confusion` (C, C), row = true class; `scores`, the condensed scores of the
    important classes; `logits` float16 (N, C) where they were asked for; `angle_mean` and `angle_sd` (C,), in radians,
    between the features of a class and that class's weight vector, of at most 10,000 "train" rows too. `curves`, by
    epoch: "train_loss" (E,) and "val_hits" (E, C), the correctly recognised validation rows of each class.
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
    wall_s: float = 0.0  # from the trial's start to its end, pauses between two runs left out
    device_s: float = 0.0  # its share of the device's time: wall_s over the number of replicas beside it
    environment: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, np.ndarray] | None = None  # the trained model's state, where it was asked for

    def accuracy(self, split: str = "test") -> float:
        return float(accuracy(self.confusion[split]))

    def recall(self, index: int, split: str = "test") -> float:
        return float(recall(self.confusion[split])[index])


@dataclass(frozen=True)
class Progress:
    """How far the trials of one call have come."""

    done: int  # trials ended
    running: int
    total: int
    part: float  # of all epochs of all trials, 0 to 1
    images_per_s: float  # 0 until it is known
    trial_s: float  # this call's seconds over the trials that they are enough for; infinite until it is known
    accuracy: float | None = None  # mean validation accuracy of the running trials
    recall: float | None = None  # mean validation recall of the important classes

    @property
    def left_s(self) -> float:
        """Estimated; infinite until it is known."""
        return self.total * (1 - self.part) * self.trial_s if self.part < 1 else 0.0
