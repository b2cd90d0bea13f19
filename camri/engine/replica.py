"""A trial made ready to train: model, loss and the draws of an epoch, each from the trial's own seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from camri.data import DataSet, batches
from camri.dropout import seed_dropout
from camri.engine import schedule
from camri.engine.spec import Training, Trial, generator, identity
from camri.errors import InputError
from camri.heads import HEADS
from camri.methods import Setting
from camri.models import Classifier, build
from camri.modules import Criterion


@dataclass(frozen=True, eq=False)
class Job:
    """What all trials of one call share."""

    training: Training
    data: DataSet
    important: tuple[int, ...] = ()
    keep_logits: bool = False
    keep_weights: bool = False
    checkpoints: Path | None = None  # folder; None: nothing is saved on the way
    checkpoint_every_s: float = 120.0

    @property
    def num_rows(self) -> int:
        return len(self.data.splits["train"])

    @property
    def steps_per_epoch(self) -> int:
        return schedule.steps_per_epoch(self.training, self.num_rows)

    @property
    def num_steps(self) -> int:
        return self.training.epochs * self.steps_per_epoch

    @property
    def batch_size(self) -> int:
        return schedule.batch_size(self.training, self.num_rows)

    def checkpoint_of(self, trial: Trial) -> Path | None:
        if self.checkpoints is None:
            return None
        return self.checkpoints / f"{identity(trial, self.training, self.data.fingerprint)}.safetensors"

    def check(self, trials: Sequence[Trial] = ()) -> None:
        """Refuse what these trials could not be trained on, before any of them starts."""
        if "train" not in self.data.splits:
            raise InputError(f"{self.data.name} has no train split; its splits: {', '.join(self.data.splits)}")
        if self.num_rows < 2:
            raise InputError(f"{self.data.name} has {self.num_rows} rows to train on; batch norm needs at least 2")
        augmented = self.training.flip or self.training.translate_px
        if augmented and not self.data.is_image:
            raise InputError("flip and translate_px are for images, but the data set holds ready-made features")
        for index in self.important:
            if not 0 <= index < self.data.num_classes:
                raise InputError(
                    f"important class {index} is not a class; {self.data.name} has {self.data.num_classes}"
                )
        if len(set(self.important)) >= self.data.num_classes:
            raise InputError(f"all {self.data.num_classes} classes are important; leave at least one that is not")
        for setting in {trial.setting for trial in trials}:
            make_criterion(setting, self)
        if trials:
            make(trials[0], self)


def make(trial: Trial, job: Job) -> tuple[Classifier, Criterion]:
    """The untrained model and its loss, on the CPU in float32.

    Trunk first, then head, from one generator: trials of one seed start from the same trunk whatever their method.
    """
    training, data = job.training, job.data
    shape = data.input_shape
    channels_first = (shape[-1], *shape[:-1]) if data.is_image else shape
    drawn = generator(trial.seed, "init")
    trunk = build(training.model, channels_first, generator=drawn, **dict(training.model_options))
    head = HEADS[trial.setting.head](trunk.num_features, data.num_classes, generator=drawn)
    seed_dropout(trunk, trial.seed)
    return Classifier(trunk, head), make_criterion(trial.setting, job)


def make_criterion(setting: Setting, job: Job) -> Criterion:
    """The loss of a setting under the job's training."""
    training, data = job.training, job.data
    angular = setting.method in ("l2softmax", "arcface", "camri")
    return setting.criterion(
        data.num_classes,
        data.class_counts("train").tolist(),
        ramp=schedule.ramp_steps(training, job.num_steps),
        label_smoothing=training.label_smoothing,
        **({"beyond_pi": training.beyond_pi} if angular else {}),
    )


@dataclass
class Epoch:
    """The draws of one epoch: the order of the rows (S, B), and which image is mirrored and moved how far (S, B)."""

    order: Tensor
    mirrored: Tensor | None = None
    dx: Tensor | None = None
    dy: Tensor | None = None


def draw_epoch(trial: Trial, job: Job, epoch: int) -> Epoch:
    """The draws of epoch number `epoch`, on the CPU: the same whatever device trains."""
    steps, size, training = job.steps_per_epoch, job.batch_size, job.training
    order = batches.epoch_order(job.num_rows, generator(trial.seed, "order", epoch), "cpu")
    drawn = Epoch(order[: steps * size].view(steps, size))
    if training.flip:
        flips = batches.draw_flips(steps * size, generator(trial.seed, "flip", epoch), "cpu")
        drawn.mirrored = flips.view(steps, size)
    if training.translate_px:
        shifts = generator(trial.seed, "translate", epoch)
        dx, dy = batches.draw_shifts(steps * size, training.translate_px, shifts, "cpu")
        drawn.dx, drawn.dy = dx.view(steps, size), dy.view(steps, size)
    return drawn


def prepare(
    inputs: Tensor, mirrored: Tensor | None, dx: Tensor | None, dy: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Rows as the model takes them: images in [0, 1], channels first, mirrored and moved as drawn."""
    x = batches.to_float(inputs, dtype).to(dtype)
    if mirrored is not None:
        x = batches.flip(x, mirrored)
    if dx is not None and dy is not None:
        x = batches.translate(x, dx, dy)
    return x
