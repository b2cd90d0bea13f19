"""What a study costs on a device: its images by the throughput there, stored or measured."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from camri.data import DataSet, Split
from camri.engine import Training, Trial, train
from camri.engine.schedule import batch_size, steps_per_epoch
from camri.methods import setting
from camri.study.facts import load_data
from camri.study.important import resolve
from camri.study.spec import Study

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
