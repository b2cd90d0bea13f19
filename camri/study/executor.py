"""Trials cut into packs for many workers, and the packs' progress put together again.

Who trains: the seam between the runner, which alone writes the store, and one device or a cluster.

What a study costs on a device: its images by the throughput there, stored or measured.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from camri.data import DataSet, Split
from camri.engine import Outcome, Pool, Progress, Stopped, Training, Trial, train
from camri.engine.spec import batch_size, steps_per_epoch
from camri.engine.training import pick_device
from camri.errors import InputError
from camri.methods import setting
from camri.study.important import resolve
from camri.study.run_folder import load_data
from camri.study.spec import Study


def cut(num_trials: int, size: int, slots: int) -> list[list[int]]:
    """Places of the trials in packs of at most `size`, cut so that in every round each slot has one of like size.

    >>> [len(pack) for pack in cut(20, size=8, slots=2)]
    [5, 5, 5, 5]
    >>> cut(3, size=8, slots=4)
    [[0], [1], [2]]
    """
    rounds = -(-num_trials // (size * slots))
    count = min(num_trials, rounds * slots)
    bounds = [num_trials * at // count for at in range(count + 1)] if count else [0]
    return [list(range(low, high)) for low, high in itertools.pairwise(bounds)]


def combine(total: int, ended: int, packs: Sequence[Progress], passed_s: float) -> Progress:
    """The progress of all trials from the number that ended and the progress of the packs at work.

    >>> half = Progress(done=1, running=1, total=2, part=0.75, images_per_s=10.0, trial_s=2.0, accuracy=0.5)
    >>> whole = combine(4, ended=1, packs=[half], passed_s=30.0)
    >>> whole.running, whole.part, whole.left_s, whole.accuracy
    (1, 0.375, 5.0, 0.5)

    A pack that does not know its speed yet has that of the others; where none does, all time that passed counts.

    >>> begun = Progress(done=0, running=2, total=2, part=0.0, images_per_s=0.0, trial_s=float("inf"))
    >>> combine(5, ended=1, packs=[half, begun], passed_s=30.0).trial_s, combine(5, 2, [begun], 30.0).trial_s
    (1.0, 15.0)
    """
    speeds = [1 / pack.trial_s for pack in packs if pack.trial_s < float("inf")]
    speed = len(packs) * sum(speeds) / len(speeds) if speeds else ended / passed_s if ended else 0.0
    part = (ended + sum(pack.part * pack.total - pack.done for pack in packs)) / total
    return Progress(
        done=ended,
        running=sum(pack.running for pack in packs),
        total=total,
        part=part,
        images_per_s=sum(pack.images_per_s for pack in packs),
        trial_s=1 / speed if speed else float("inf"),
        accuracy=_mean([(pack.accuracy, pack.running) for pack in packs]),
        recall=_mean([(pack.recall, pack.running) for pack in packs]),
    )


def _mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None and weight]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None


@dataclass(frozen=True, eq=False)
class Work:
    """What the trials of one call share."""

    training: Training
    data: DataSet
    important: tuple[int, ...]  # classes whose scores outcomes keep
    keep_logits: bool
    keep_weights: bool
    checkpoints: Path | None  # folder; None: nothing is saved on the way


@dataclass(frozen=True)
class Hooks:
    """What an executor calls, always from the process that holds the store."""

    on_outcome: Callable[[Outcome], None]  # as each trial ends
    on_progress: Callable[[Progress], None]
    should_stop: Callable[[], bool]


class Executor(Protocol):
    def train(self, trials: Sequence[Trial], work: Work, hooks: Hooks) -> bool:
        """Whether all trials came to an end; False if they were stopped in good order."""


class LocalExecutor:
    """This machine's first GPU, or its CPU cores.

    `workers` (CPU processes), `pool` (which keeps them for the next call) and `pack_size` (models side by side on a
    GPU) change the speed only.
    """

    def __init__(
        self,
        device: str = "auto",
        workers: int | None = None,
        pack_size: int | None = None,
        checkpoint_every_s: float = 120.0,
        pool: Pool | None = None,
    ):
        self.device = pick_device(device)
        self.workers = workers
        self.pack_size = pack_size
        self.checkpoint_every_s = checkpoint_every_s
        self.pool = pool

    def train(self, trials: Sequence[Trial], work: Work, hooks: Hooks) -> bool:
        return train_work(
            trials,
            work,
            hooks,
            self.device,
            workers=self.workers,
            pool=self.pool,
            pack_size=self.pack_size,
            checkpoint_every_s=self.checkpoint_every_s,
        )


def train_work(trials: Sequence[Trial], work: Work, hooks: Hooks, device: str | torch.device, **how: Any) -> bool:
    """Whether all trials came to an end on this machine's device; `how` goes to the engine."""
    try:
        train(
            trials,
            work.data,
            device,
            training=work.training,
            important=work.important,
            keep_logits=work.keep_logits,
            keep_weights=work.keep_weights,
            checkpoints=work.checkpoints,
            on_outcome=hooks.on_outcome,
            on_progress=hooks.on_progress,
            should_stop=hooks.should_stop,
            **how,
        )
    except Stopped:
        return False
    return True


def find_executor(
    on: str = "local", device: str = "auto", workers: int | None = None, pack_size: int | None = None
) -> Executor:
    """The executor of that name: "local", "ray" (this machine's cluster, begun if there is none) or "ray://HOST:PORT".

    A cluster is connected to at once, so that one out of reach is refused before anything is written.
    """
    if on == "local":
        return LocalExecutor(device, workers, pack_size)
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
    """The study's cost on the device, from stored throughput where there is one and a short measurement elsewhere."""
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
    if study.data in KNOWN_DATA and not study.data_options:
        rows, shape, num_classes = KNOWN_DATA[study.data]
        return round(rows * (1 - study.val_fraction)), shape, num_classes
    data = load_data(study)
    resolve(study, data.classes)  # a class that is not there is told before the run
    return len(data.splits["train"]), data.input_shape, data.num_classes


def measure(training: Training, shape: tuple[int, ...], num_classes: int, device: torch.device) -> float:
    """Images/s of cross-entropy trials on made images, the start left out: 8 side by side on a GPU, one on a CPU."""
    # On a GPU an epoch of few steps is mostly its end: curves, draws and evaluation, which a real one has once in 700.
    num, batches = (8, 32) if device.type == "cuda" else (1, 1)
    rows = batches * training.batch_size
    data = _made(rows, shape, num_classes)
    trials = [Trial(setting("ce"), seed) for seed in range(num)]

    def timed(epochs: int) -> float:
        began = time.perf_counter()
        train(trials, data, device, training=training.with_(epochs=epochs), workers=1, pack_size=num)
        return time.perf_counter() - began

    timed(1)
    return rows * num / _slope(timed)


def _slope(timed: Callable[[int], float], least_s: float = 0.5, most: int = 4096) -> float:
    """Seconds an epoch, from the difference of a long and a short call that is long enough to be trusted.

    Of both the quicker of two calls counts: one may have been held up by something else.
    """
    short, epochs = min(timed(1), timed(1)), 2
    while True:
        more = timed(1 + epochs) - short
        if more >= least_s:
            more = min(more, timed(1 + epochs) - short)
        if more >= least_s or epochs >= most:
            return max(more, 1e-9) / epochs
        epochs *= 4


def _made(rows: int, shape: tuple[int, ...], num_classes: int) -> DataSet:
    drawn = torch.Generator().manual_seed(0)

    def split(num: int) -> Split:
        labels = torch.randint(0, num_classes, (num,), generator=drawn)
        if len(shape) == 1:
            return Split(torch.randn((num, *shape), generator=drawn), labels)
        return Split(torch.randint(0, 256, (num, *shape), generator=drawn, dtype=torch.uint8), labels)

    names = tuple(str(index) for index in range(num_classes))
    return DataSet("made", names, {"train": split(rows), "test": split(2)}, "made")
