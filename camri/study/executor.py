"""Where the trials of a study are trained: the interface that local machines and clusters share, and the cost."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from camri.data import DataSet, Split
from camri.engine import Hooks, Job, Pool, Training, Trial, train, train_job
from camri.engine.spec import batch_size, steps_per_epoch
from camri.engine.training import pick_device
from camri.errors import InputError
from camri.methods import setting
from camri.study.run_folder import load_data
from camri.study.spec import Study, resolve


class Executor(Protocol):
    def train(self, trials: Sequence[Trial], job: Job, hooks: Hooks) -> bool:
        """Train the trials, calling the hooks from this process; return whether all of them ended."""


class LocalExecutor:
    """This machine's first GPU, or its CPU cores; `options` are fields of the job, such as `workers` or `pack_size`.

    `isolates`: on the CPU a trial that crashes ends its own process only, also with one worker. By default one worker
    trains in this process, which starts two seconds sooner.
    """

    def __init__(self, device: str = "auto", pool: Pool | None = None, isolates: bool = False, **options: Any):
        self.pool, self.isolates, self.options = pool, isolates, {"device": pick_device(device), **options}

    def train(self, trials: Sequence[Trial], job: Job, hooks: Hooks) -> bool:
        with Pool(self.isolates) if self.pool is None else contextlib.nullcontext(self.pool) as pool:
            return train_job(trials, replace(job, **self.options), hooks, pool)


def find_executor(
    on: str = "local", device: str = "auto", workers: int | None = None, pack_size: int | None = None
) -> Executor:
    """The executor of that name: "local", "ray" (this machine's cluster, started if there is none), "ray://HOST:PORT".

    It connects to a cluster at once, so an unreachable one is refused before anything is written.
    """
    if on == "local":
        return LocalExecutor(device, isolates=True, workers=workers, pack_size=pack_size)
    if on == "ray" or on.startswith("ray://"):
        from camri.study.ray_driver import RayExecutor

        return RayExecutor(on, device, workers, pack_size)
    raise InputError(f"on={on!r} is unknown; choices: local, ray, ray://HOST:PORT", argument="on")


# Data sets of the paper: rows to train on before a validation split, (H, W, channels), classes.
KNOWN_DATA = {
    "cifar10": (50_000, (32, 32, 3), 10),
    "gtsrb": (39_209, (48, 48, 3), 43),
    "awa2": (26_157, (64, 64, 3), 50),
    "mnist": (60_000, (28, 28, 1), 10),
}
# Images/s of the authors' CNN, by GPU and image side, eight models side by side, end to end: docs/engine.md.
STORED = {("NVIDIA H200", 32): 80_998.0}


@dataclass(frozen=True)
class Cost:
    """Seconds of the device for a whole study, and where the throughput comes from."""

    device: str
    images_per_s: float
    source: str
    trial_s: float
    total_s: float


def estimate(study: Study, device: torch.device, workers: int) -> Cost:
    """Estimate the study's cost on the device, from a stored throughput or a short measurement."""
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
    """Train rows, input shape and number of classes; downloads nothing for a data set of the paper."""
    if study.data in KNOWN_DATA and not study.data_options:
        rows, shape, num_classes = KNOWN_DATA[study.data]
        return round(rows * (1 - study.val_fraction)), shape, num_classes
    data = load_data(study)
    resolve(study, data.classes)  # an unknown class is an error already here
    return len(data.splits["train"]), data.input_shape, data.num_classes


def measure(training: Training, shape: tuple[int, ...], num_classes: int, device: torch.device) -> float:
    """Images/s of cross-entropy trials on random images, without the start: 8 side by side on a GPU, one on a CPU."""
    # On a GPU an epoch of few steps is mostly its end: curves, draws and evaluation, which a real one has once in 700.
    num, batches = (8, 32) if device.type == "cuda" else (1, 1)
    rows = batches * training.batch_size
    data = _random_data(rows, shape, num_classes)
    trials = [Trial(setting("ce"), seed) for seed in range(num)]

    def timed(epochs: int) -> float:
        began = time.perf_counter()
        train(trials, data, device, training=training.with_(epochs=epochs), workers=1, pack_size=num)
        return time.perf_counter() - began

    timed(1)
    return rows * num / _slope(timed)


def _slope(timed: Callable[[int], float], least_s: float = 0.5, most: int = 4096) -> float:
    """Seconds an epoch, from the difference of a long and a short call, the quicker of two of each."""
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
