"""A trial's model, loss and random draws from its own seed; its evaluation and its checkpoints."""

import gc
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from camri import augment
from camri.data import DataSet, Split, dataset
from camri.data.rows import take
from camri.decision.counts import confusion
from camri.engine import spec
from camri.engine.spec import Training, Trial, generator, identity
from camri.errors import InputError
from camri.files import checksum, replacing
from camri.heads import HEADS, unit
from camri.methods import Setting, method
from camri.models import Classifier, build, seed_dropout
from camri.modules import Criterion

LEFT_OF_INITIAL = 1e-6  # of batch norms' initial statistics, at the end of a training
PACK_SIZE = 8  # measured on an H200 within epochs: 1 gives 50,944 images/s, 4 79,997, 8 81,053, 16 80,500


def in_packs(
    places: list[int],
    size: int,
    train_pack: Callable[[list[int]], bool],
    save_memory: Callable[[], bool] = lambda: False,
) -> bool:
    """Train packs of at most `size`, halving those that do not fit in memory; return whether all were trained.

    If a single model does not fit, `save_memory` is called; it returns whether to try again.
    """
    waiting = [places[at : at + size] for at in range(0, len(places), size)]
    while waiting:
        pack = waiting.pop(0)
        try:
            finished = train_pack(pack)
        except torch.cuda.OutOfMemoryError as error:
            if len(pack) == 1 and not save_memory():
                raise
            half = (len(pack) + 1) // 2
            what = f"{len(pack)} models side by side do" if len(pack) > 1 else "one model does"
            how = half if len(pack) > 1 else "gradient checkpointing, which is slower"
            warnings.warn(f"{what} not fit in the GPU's memory; trying {how} ({error})", stacklevel=2)
            waiting[:0] = [part for part in (pack[:half], pack[half:]) if part]
            finished = True
        if torch.cuda.is_available():
            gc.collect()  # the last reference frees a captured graph and its memory
            torch.cuda.empty_cache()
        if not finished:
            return False
    return True


@dataclass(frozen=True, eq=False)
class Job:
    """What all trials of one call share; passed from the command line to the workers.

    The fields from `device` on change where and how fast the trials run, not their results.
    """

    training: Training
    data: DataSet
    important: tuple[int, ...] = ()  # classes whose scores the outcomes keep
    keep_logits: bool = False
    keep_weights: bool = False
    checkpoints: str | Path | None = None  # folder; None: no checkpoints
    checkpoint_every_s: float = 120.0
    device: str | torch.device = "auto"
    workers: int | None = None  # CPU processes; None: one per core
    pack_size: int | None = None  # models side by side on a GPU; None: PACK_SIZE
    deterministic: bool = False  # the same bits on a GPU too, but slower

    @property
    def num_rows(self) -> int:
        return len(self.data.splits["train"])

    @property
    def steps_per_epoch(self) -> int:
        return spec.steps_per_epoch(self.training, self.num_rows)

    @property
    def num_steps(self) -> int:
        return self.training.epochs * self.steps_per_epoch

    @property
    def batch_size(self) -> int:
        return spec.batch_size(self.training, self.num_rows)

    def checkpoint_of(self, trial: Trial) -> Path | None:
        if self.checkpoints is None:
            return None
        return Path(self.checkpoints) / f"{identity(trial, self.training, self.data.fingerprint)}.safetensors"

    def check(self, trials: Sequence[Trial] = ()) -> None:
        """Raise InputError if the trials cannot be trained on this data."""
        if "train" not in self.data.splits:
            raise InputError(f"{self.data.name} has no train split; its splits: {', '.join(self.data.splits)}")
        if self.num_rows < 2:
            raise InputError(f"{self.data.name} has {self.num_rows} rows to train on; batch norm needs at least 2")
        for_images = ("flip", "translate_px", "crop", "trivial_augment")
        if not self.data.is_image and any(getattr(self.training, field) for field in for_images):
            raise InputError(f"{', '.join(for_images)} are for images, but the data set holds feature vectors")
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
    """Create the untrained model and its loss, on the CPU in float32.

    Trunk first, then head, from one generator: trials of one seed start from the same trunk with any method.
    """
    training, data = job.training, job.data
    shape = data.input_shape
    channels_first = (shape[-1], *shape[:-1]) if data.is_image else shape
    drawn = generator(trial.seed, "init")
    trunk = build(training.model, channels_first, generator=drawn, **dict(training.model_options))
    head = HEADS[trial.setting.head](trunk.num_features, data.num_classes, generator=drawn)
    seed_dropout(trunk, trial.seed)
    model = Classifier(trunk, head)
    settle_statistics(model, job.num_steps)
    return model, make_criterion(trial.setting, job)


def settle_statistics(model: nn.Module, num_steps: int) -> None:
    """Raise the momentum of batch norms for a short training, so that their initial statistics leave no trace.

    At 0.1, 1.5 % of the initial variance of 1 are left after 40 steps: more than the variance itself where inputs are
    small. From 131 steps on the usual 0.1 is enough.
    """
    least = 1 - LEFT_OF_INITIAL ** (1 / max(num_steps, 1))
    for norm in model.modules():
        if isinstance(norm, BatchNorm) and norm.momentum is not None:
            norm.momentum = max(norm.momentum, least)


def make_criterion(setting: Setting, job: Job) -> Criterion:
    """Create the loss of a setting with the job's training options."""
    training, data = job.training, job.data
    return setting.criterion(
        data.num_classes,
        data.class_counts("train").tolist(),
        ramp=spec.ramp_steps(training, job.num_steps),
        label_smoothing=training.label_smoothing,
        **({"beyond_pi": training.beyond_pi} if method(setting.method).takes_beyond_pi else {}),
    )


Draws = dict[str, Tensor]  # by name, (S, B, ...) of an epoch or (B, ...) of a step


def draw_epoch(trial: Trial, job: Job, epoch: int) -> Draws:
    """Draw an epoch's row order and augmentation on the CPU."""
    steps, size, training = job.steps_per_epoch, job.batch_size, job.training
    num, seed = steps * size, trial.seed
    drawn = {"order": dataset.epoch_order(job.num_rows, generator(seed, "order", epoch), "cpu")[:num]}
    if training.flip:
        drawn["mirrored"] = augment.draw_flips(num, generator(seed, "flip", epoch), "cpu")
    if training.translate_px:
        shifts = augment.draw_shifts(num, training.translate_px, generator(seed, "translate", epoch), "cpu")
        drawn["shifts"] = torch.stack(shifts, dim=1)
    if training.crop:
        drawn["boxes"] = augment.draw_boxes(num, training.crop, generator(seed, "crop", epoch), "cpu")
    if training.trivial_augment:
        drawn["operations"] = augment.draw_operations(num, generator(seed, "trivial", epoch))
    if training.mixup:
        drawn["shares"] = augment.draw_shares(num, training.mixup, generator(seed, "mixup", epoch))
    return {name: draws.view(steps, size, *draws.shape[1:]) for name, draws in drawn.items()}


def prepare(inputs: Tensor, dtype: torch.dtype, drawn: Mapping[str, Tensor] = MappingProxyType({})) -> Tensor:
    """Prepare the model's inputs: images in [0, 1], channels first, augmented as drawn; features unchanged or mixed."""
    exact = "boxes" in drawn or "operations" in drawn
    x = dataset.to_float(inputs, torch.float32 if exact else dtype)
    if "boxes" in drawn:
        x = augment.crop(x, drawn["boxes"])
    if "operations" in drawn:
        x = augment.trivial_augment(x, drawn["operations"])
    x = x.to(dtype)
    if "mirrored" in drawn:
        x = augment.flip(x, drawn["mirrored"])
    if "shifts" in drawn:
        x = augment.translate(x, *drawn["shifts"].unbind(1))
    return augment.mixup(x, drawn["shares"]) if "shares" in drawn else x


MOST_TRAIN_ROWS = 10_000  # evenly spaced over a large train split: enough to estimate the spread of angles


def judged(splits: Mapping[str, Split], name: str) -> Split:
    """The rows of a split that a trained model is evaluated on: all of them, or every k-th of the train split.

    >>> split = Split(torch.zeros(25_000, 1), torch.arange(25_000))
    >>> judged({"train": split}, "train").labels[:3].tolist(), len(judged({"val": split}, "val"))
    ([0, 3, 6], 25000)
    """
    split = splits[name]
    step = -(-len(split) // MOST_TRAIN_ROWS) if name == "train" else 1
    return Split(take(split.inputs, slice(None, None, step)), split.labels[::step], None)


@dataclass(frozen=True, eq=False)
class Evaluation:
    logits: np.ndarray  # float32 (N, C)
    confusion: np.ndarray  # int64 (C, C), row = true class
    angle_mean: np.ndarray  # (C,) radians; nan for a class without rows
    angle_sd: np.ndarray


def angles(features: Tensor, weight: Tensor) -> Tensor:
    """Radians between features and weights, row by row: (B, D), (B, D) -> (B,).

    2 atan2(|u − v|, |u + v|) of the unit vectors: arccos of a float32 cosine cannot resolve angles below 3e-4.

    >>> angles(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1e-5]]))
    tensor([1.0000e-05])
    """
    u, v = unit(features), unit(weight)
    return 2 * torch.atan2((u - v).norm(dim=-1), (u + v).norm(dim=-1))


@torch.no_grad()
def evaluate(
    features_of: Callable[[Tensor], Tensor],
    head: torch.nn.Module,
    to_logits: Callable[[Tensor], Tensor],
    split: Split,
    batch_size: int = 1000,
) -> Evaluation:
    """Logits, confusion counts and angles of a model on a split; `features_of` maps the split's rows to features."""
    weight = head.get_parameter("weight").float()
    logits, turned = [], []
    for start in range(0, len(split.labels), batch_size):
        labels = split.labels[start : start + batch_size]
        features = features_of(split.inputs[start : start + batch_size]).float()
        logits.append(to_logits(head(features)).float())
        turned.append(angles(features, weight[labels]))
    host_logits, host_angles = torch.cat(logits).cpu().numpy(), torch.cat(turned).cpu().numpy()
    truth = split.labels.cpu().numpy()
    num_classes = host_logits.shape[1]
    mean, sd = np.full((2, num_classes), np.nan)
    for index in range(num_classes):
        of_class = host_angles[truth == index].astype(np.float64)
        if len(of_class):
            mean[index], sd[index] = of_class.mean(), of_class.std()
    return Evaluation(host_logits, confusion(host_logits.argmax(axis=1), truth, num_classes), mean, sd)


CHECKPOINT_VERSION = "1"
UNREADABLE = (SafetensorError, OSError, ValueError, KeyError, AttributeError)


def write_checkpoint(path: Path, tensors: dict[str, Tensor], notes: dict[str, Any]) -> bool:
    """Write a checkpoint atomically, even if the power fails, and return whether that worked.

    A full or read-only disk gives a warning, and training continues.
    """
    plain, text = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}, json.dumps(notes)
    data = save(plain, {"v": CHECKPOINT_VERSION, "n": text, "crc": _checksum(plain, text)})
    try:
        with replacing(path) as part:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(data)
    except InputError as error:
        warnings.warn(f"no checkpoint: {error}; a trial that is stopped now starts over", stacklevel=2)
        return False
    return True


def _checksum(tensors: Mapping[str, Tensor], notes: str) -> str:
    contents = (tensors[name].reshape(-1).view(torch.uint8).numpy() for name in sorted(tensors))
    return str(checksum(" ".join([notes, *sorted(tensors)]).encode(), *contents))


def read_checkpoint(path: Path, engine: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read tensors and notes of a checkpoint; None if this engine ("cpu", "cuda") wrote none."""
    return _read(path, engine, lambda file: {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118


def read_notes(path: Path, engine: str) -> dict[str, Any] | None:
    """Read the notes of a checkpoint without its tensors."""
    found = _read(path, engine, lambda file: {})
    return None if found is None else found[1]


def _read(path: Path, engine: str, tensors_of: Callable[[Any], dict[str, Tensor]]) -> Any:
    try:
        with safe_open(path, framework="pt") as file:  # read once: a dying worker may replace the file meanwhile
            header = file.metadata() or {}
            notes = json.loads(header["n"])
            is_ours = header.get("v") == CHECKPOINT_VERSION and notes.get("engine") == engine
            tensors = tensors_of(file)
            if tensors and _checksum(tensors, header["n"]) != header["crc"]:
                raise KeyError("crc")
            return (tensors, notes) if is_ours else None
    except FileNotFoundError:
        return None
    except UNREADABLE:
        warnings.warn(f"{path} is damaged; its trial starts over", stacklevel=2)
        return None
