"""What is trained, and where: trials, trainings, schedules by step, versions and hardware."""

import dataclasses
import functools
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

import camri
from camri.errors import InputError, closest
from camri.losses import BEYOND_PI
from camri.methods import Setting
from camri.models import NAMES, is_known

OPTIMIZERS = ("adam", "adamw", "sgd")


@dataclass(frozen=True)
class Training:
    """Model, schedule, optimiser and augmentation: the same for all methods that are compared.

    >>> FAST.with_(epochs=3).epochs
    3
    """

    model: str = "paper"
    model_options: tuple[tuple[str, Any], ...] = ()
    epochs: int = 18
    batch_size: int = 64
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    momentum: float = 0.9  # SGD's; Adam's decays are .9 and .999
    weight_decay: float = 0.0  # of the trunk's matrices and kernels only
    hold: float = 0.5  # the rate is constant for this part of the steps, then falls linearly to 0
    warmup: float = 0.0  # the rate rises linearly over this part of the steps
    cosine: bool = False  # it falls like a cosine instead
    trunk_rate: float = 1.0  # the trunk's rate over the head's; below 1 for a pretrained trunk
    layer_decay: float = 1.0  # each block's rate over that of the next block towards the head
    ramp: tuple[float, float] = (0.0, 0.3)  # margins grow from 0 to full between these parts of the steps
    label_smoothing: float = 0.0
    average: float = 0.0  # decay of the exponential moving average of the weights; 0: none
    flip: bool = False
    translate_px: int = 0
    crop: float = 0.0  # smallest share of the image in a random resized crop, 0.25 for example; 0: none
    trivial_augment: bool = False  # one random operation per image, with a random strength
    mixup: float = 0.0  # alpha: rows are mixed by shares from Beta(alpha, alpha), 0.2 for example; 0: none
    beyond_pi: str = "monotone"

    def __post_init__(self) -> None:
        def need(condition: bool, field: str, allowed: str) -> None:
            if not condition:
                raise InputError(f"{field}={getattr(self, field)!r} is not allowed; {allowed}", argument=field)

        need(is_known(self.model), "model", f"{closest(self.model, NAMES)}, or one of an installed package")
        need(self.optimizer in OPTIMIZERS, "optimizer", closest(self.optimizer, OPTIMIZERS))
        need(self.beyond_pi in BEYOND_PI, "beyond_pi", closest(self.beyond_pi, BEYOND_PI))
        for field in ("epochs", "batch_size"):
            value = getattr(self, field)
            need(type(value) is int and 1 <= value < 2**31, field, "give a whole number from 1 to 2**31 - 1")
        need(type(self.translate_px) is int and self.translate_px >= 0, "translate_px", "give a number of pixels")
        need(0 < self.learning_rate < 100, "learning_rate", "give a number above 0 and below 100")
        for field in ("momentum", "label_smoothing", "average"):
            need(0 <= getattr(self, field) < 1, field, "give a number in [0, 1)")
        need(0 <= self.weight_decay < 100, "weight_decay", "give a number of at least 0")
        need(0 <= self.hold <= 1, "hold", "give a part of the training, 0 to 1")
        need(0 <= self.warmup <= 0.5, "warmup", "give a part of the training, 0 to 0.5")
        for field in ("trunk_rate", "layer_decay"):
            need(0 < getattr(self, field) <= 1, field, "give a number above 0, up to 1")
        need(0 <= self.crop <= 1, "crop", "give a share of the image, 0 to 1")
        need(type(self.trivial_augment) is bool, "trivial_augment", "choices: true, false")
        need(0 <= self.mixup <= 100, "mixup", "give a number of at least 0, for example 0.2")
        start, end = self.ramp
        need(0 <= start <= end <= 1, "ramp", "give (start, end) as parts of the training, 0 to 1, in that order")

    def with_(self, **changes: Any) -> "Training":
        """The same training with some fields changed."""
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise InputError(f"training has no field {name!r}; {closest(name, known)}")
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        # Fields added later are left out at their default, so that hashes of stored results do not change.
        later = {"warmup": 0.0, "cosine": False, "trunk_rate": 1.0, "layer_decay": 1.0, "crop": 0.0}
        later |= {"trivial_augment": False, "mixup": 0.0}
        values = {name: value for name, value in dataclasses.asdict(self).items() if later.get(name, ()) != value}
        return {**values, "model_options": dict(self.model_options), "ramp": list(self.ramp)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Training":
        """The training that `to_json` wrote; lists become tuples again."""
        options = tuple((name, frozen(value)) for name, value in sorted(values["model_options"].items()))
        return Training().with_(**{**values, "model_options": options, "ramp": tuple(values["ramp"])})

    @property
    def key(self) -> str:
        """Sixteen hexadecimal digits, the same on every machine; a file of weights counts by content, not path."""
        values, options = self.to_json(), dict(self.model_options)
        if "initial_sha256" in options:
            values["model_options"] = {name: value for name, value in options.items() if name != "initial"}
        return digest(values)


# The authors' schedule: constant rate, the last model, no ramp, no guard past π.
PAPER = Training(epochs=300, hold=1.0, ramp=(0.0, 0.0), beyond_pi="paper")
# The same or better accuracy in a sixteenth of the time; the falling rate removes most of the variation over seeds.
FAST = Training()


# Changes for a linear classifier on a frozen backbone's features: without dropout validation accuracy was 2 points
# lower (Tiny ImageNet animals, 50 images per class, resnet10t, two seeds).
PROBE: dict[str, Any] = {"model": "linear", "model_options": (("dropout", 0.5),), "hold": 0.2}

# Changes for fine-tuning a pretrained network (docs/photos.md has figures), and more of them for a transformer.
TUNED: dict[str, Any] = {
    "optimizer": "adamw",
    "learning_rate": 2e-3,
    "weight_decay": 0.05,
    "warmup": 0.1,
    "hold": 0.0,
    "cosine": True,
    "trunk_rate": 0.2,
    "average": 0.99,
    "crop": 0.35,
}
TRANSFORMER: dict[str, Any] = {"learning_rate": 1e-3, "trunk_rate": 0.1, "layer_decay": 0.75}


@dataclass(frozen=True)
class Trial:
    """One setting and one seed: one trained model."""

    setting: Setting
    seed: int

    @property
    def key(self) -> str:
        """Sixteen hexadecimal digits; trials that train the same have the same."""
        return digest([self.setting.key, self.seed])


def identity(trial: Trial, training: Training, fingerprint: str) -> str:
    """Hash of all that a trained model depends on (data, training, setting, seed): 32 hexadecimal digits."""
    return digest([fingerprint, training.key, trial.key], length=32)


def generator(seed: int, purpose: str, epoch: int = 0) -> torch.Generator:
    """A CPU generator for one purpose of one trial in one epoch.

    Each epoch has its own, so a resumed trial needs no stored generator and is independent of other trials.
    """
    text = f"camri/{seed}/{purpose}/{epoch}".encode()
    return torch.Generator().manual_seed(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1)


def frozen(value: Any) -> Any:
    """Replace lists by tuples at every level, so that the value can be hashed."""
    return tuple(map(frozen, value)) if isinstance(value, (list, tuple)) else value


def digest(value: object, length: int = 16) -> str:
    """Hexadecimal digits of a plain value's JSON, the same on every machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def steps_per_epoch(training: Training, num_rows: int) -> int:
    """Number of full batches in an epoch, at least one; the rows left over differ from epoch to epoch."""
    return max(1, num_rows // training.batch_size)


def batch_size(training: Training, num_rows: int) -> int:
    return min(training.batch_size, num_rows)


def learning_rates(training: Training, num_steps: int) -> Tensor:
    """The learning rate of every step (T,): constant for `hold` of them, then falling towards 0.

    It falls linearly, or like a cosine, and rises over the first `warmup` of the steps.

    >>> learning_rates(Training(hold=0.5, learning_rate=1.0), 4)
    tensor([1.0000, 1.0000, 1.0000, 0.5000])
    >>> learning_rates(Training(hold=0.0, warmup=0.5, cosine=True, learning_rate=1.0), 4)
    tensor([0.5000, 0.8536, 0.5000, 0.1464])
    """
    step = torch.arange(num_steps, dtype=torch.float64)
    falling = max(num_steps * (1 - training.hold), 1e-9)
    left = ((num_steps - step) / falling).clamp(max=1)
    if training.cosine:
        left = (1 - torch.cos(torch.pi * left)) / 2
    if training.warmup:
        left = left * ((step + 1) / (training.warmup * num_steps)).clamp(max=1)
    return (training.learning_rate * left).float()


def ramp_steps(training: Training, num_steps: int) -> tuple[int, int]:
    """The steps between which margins grow from 0 to full.

    >>> ramp_steps(Training(ramp=(0.1, 0.3)), 1000)
    (100, 300)
    """
    start, end = training.ramp
    return round(start * num_steps), round(end * num_steps)


def average_decays(training: Training, num_steps: int) -> Tensor:
    """Decay of the weight average at every step (T,); small at first, so that the initial weights fade quickly."""
    step = torch.arange(num_steps, dtype=torch.float64)
    return torch.minimum(torch.tensor(training.average, dtype=torch.float64), (1 + step) / (10 + step)).float()


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Versions, processor and device, stored with every outcome."""
    facts: dict[str, Any] = {
        "camri": camri.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": str(device),
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
        facts["cudnn"] = torch.backends.cudnn.version()
    return facts


@functools.cache
def commit() -> str | None:
    """The commit of the source tree, with a + for uncommitted changes; None for an installed package.

    Set CAMRI_COMMIT for a tree that was copied without its history.
    """
    if "CAMRI_COMMIT" in os.environ:
        return os.environ["CAMRI_COMMIT"]
    package = Path(camri.__file__).parent
    if not (package.parent / ".git").exists():
        return None

    def ask(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(package), *words], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return ask("rev-parse", "--short", "HEAD") + ("+" if ask("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        return platform.processor()
