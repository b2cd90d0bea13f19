"""Trainings that a fit tries before any method: what makes cross-entropy itself better."""

from collections.abc import Mapping

import numpy as np

from camri.data import DataSet
from camri.engine import Training
from camri.select import Validation
from camri.stats import compare

# Photographs stay what they are in a mirror; digits, letters and signs do not, so it is done where it is known.
PHOTOGRAPHS = ("cifar10", "awa2")
SMOOTHING = 0.1
ONE_ERROR = 0.683  # a level whose interval is one standard error to each side
DECAY = 0.999  # of the weights' average; it grows to this from 0.1 over the first steps


def trainings_for(data: DataSet, plain: Training) -> dict[str, Training]:
    """name -> training, the plain one first, then the more promising first.

    Images are moved by up to a sixteenth of their side; they are mirrored only where the data is known to be
    photographs.
    """
    extras: dict[str, dict[str, object]] = {}
    if data.is_image:
        layout = str(data.provenance.get("layout")).partition(" ")[0]  # "cifar10 python", "awa2 official"
        mirrored = layout in PHOTOGRAPHS or data.name in PHOTOGRAPHS
        pixels = max(1, round(min(data.input_shape[:2]) / 16))
        extras["augmented"] = {"translate_px": pixels, **({"flip": True} if mirrored else {})}
    extras["smoothed"] = {"label_smoothing": SMOOTHING}
    extras["averaged"] = {"average": DECAY}
    every = {name: value for extra in extras.values() for name, value in extra.items()}
    return {"plain": plain, **{n: plain.with_(**extra) for n, extra in extras.items()}, "all": plain.with_(**every)}


def choose_training(baselines: Mapping[str, Validation]) -> str:
    """The training under which cross-entropy has the best validation accuracy; the plain one unless it is surpassed.

    Surpassed: by more than one standard error over seeds and images. Of 250 validation images one is .004 of accuracy:
    the best of five equal trainings would be another one than the plain in four of five fits, for nothing.
    """
    plain = baselines["plain"]
    best, accuracy = "plain", -np.inf
    for name, other in baselines.items():
        seeds = sorted(set(plain.scores) & set(other.scores))
        if name == "plain" or not seeds:
            continue
        mine, theirs = (np.array([one.scores[seed].correct() for seed in seeds]) for one in (other, plain))
        if compare(mine, theirs, seed=0, level=ONE_ERROR).low > 0 and mine.mean() > accuracy:
            best, accuracy = name, mine.mean()
    return best


def describe(name: str, training: Training) -> str:
    """A training's name with what it adds, for people.

    >>> describe("smoothed", Training(label_smoothing=0.1))
    'label smoothing 0.1'
    """
    parts = []
    if training.translate_px:
        parts.append(f"images moved by up to {training.translate_px} px")
    if training.flip:
        parts.append("mirrored")
    if training.label_smoothing:
        parts.append(f"label smoothing {training.label_smoothing:g}")
    if training.average:
        parts.append("averaged weights")
    return ", ".join(parts) if parts else f"{name} training"
