"""Screenings: the paper's methods and their rivals on few values and short trials, to find who goes to the finals.

The values are those around which the best of CIFAR-10's cat lay (docs/reproduce.md); `camri study finalists` says where
a best one sits on the edge of its grid.
"""

from typing import Any

from camri.engine.spec import FAST
from camri.methods import MARGIN_UNIT
from camri.study.paper import Schedule, find_columns, find_schedule
from camri.study.spec import Study, study

SEEDS = (100, 101, 102)  # the finals have others: a setting chosen by lucky seeds would keep their luck
SHORT = FAST.with_(epochs=9)
GRID: dict[str, dict[str, list[float]]] = {
    "ce": {},
    "l2softmax": {"s": [8, 16]},
    "camri": {"m": [2 * MARGIN_UNIT, 4 * MARGIN_UNIT, 8 * MARGIN_UNIT], "s": [8, 16]},
    "arcface": {"m": [2 * MARGIN_UNIT, 4 * MARGIN_UNIT], "s": [8]},
    "cosface": {"m": [0.05, 0.1, 0.2], "s": [8]},
    "wce": {"w": [1.5, 2, 4]},
    "crwwce": {"fn": [2, 4], "fp": [1.4]},
    "wasserstein": {"c": [1.4], "entropy": [0.01]},
    "ldam": {"m": [0.1], "max_m": [0.3], "s": [8]},
    "logit_adjusted": {"d": [0.5, 1, 2], "tau": [0]},
    "vector_scaling": {"delta": [0.8], "d": [0, 1, 2]},
}


def cifar10(important: Any = None, *, schedule: Schedule = SHORT) -> Study:
    """CIFAR-10's columns, screened: cat, dog, airplane unless told.

    >>> cifar10(["dog"]).seeds
    (100, 101, 102)
    """
    return _screening("cifar10", important, schedule)


def gtsrb(important: Any = None, *, schedule: Schedule = SHORT) -> Study:
    """GTSRB's columns, screened: limit-80-end, no-passing-end, limit-80 unless told."""
    return _screening("gtsrb", important, schedule)


def _screening(data: str, important: Any, schedule: Schedule) -> Study:
    columns = find_columns(data, important)
    return study(f"screen.{data}", data, columns, GRID, seeds=SEEDS, training=find_schedule(schedule))
