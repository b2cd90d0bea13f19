"""Logits -> probabilities that rows bear out: a slope for all logits and a constant for the important classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from camri.audit.parts import SPLIT_SEED
from camri.metrics import Array

SLOPE_SD = 10.0  # of the logits' own spread: it binds only where classes are separable
CONSTANT_SD = 0.5  # a constant that is free would be as lucky as the few rows it is fitted to (docs/log.md)
FEWEST_ROWS = 10  # of an important class, and of the others: fewer leave the probabilities as they are
MOST_ROWS = 20_000  # two numbers are known well of so many, and a prior says next to nothing beside more


@dataclass(frozen=True)
class Calibration:
    """Logits times the slope, which is at least 0, plus the constant for important classes."""

    slope: float = 1.0
    constant: float = 0.0

    @staticmethod
    def of(logits: Array, labels: Array, important: Sequence[int]) -> "Calibration":
        """The calibration that makes the labels (N,) likeliest, held to finite values by a ridge.

        Minimises Σ −log p(label) + (slope · spread / 10)² / 2 + (constant / 0.5)² / 2 over the rows.

        >>> drawn = np.random.default_rng(0)
        >>> labels = drawn.integers(0, 2, 4000)
        >>> logits = 3 * (drawn.normal(size=(4000, 2)) + 2 * np.eye(2)[labels]) - [0, 1.2]
        >>> Calibration.of(logits, labels, [1])  # the truth: slope 2 / 3, constant 0.8
        Calibration(slope=0.667..., constant=0.783...)
        """
        if len(labels) > MOST_ROWS:
            some = np.random.default_rng(SPLIT_SEED).choice(len(labels), MOST_ROWS, replace=False)
            logits, labels = logits[some], labels[some]
        is_important = np.isin(np.arange(logits.shape[1]), important)
        counts = np.bincount(labels, minlength=logits.shape[1])
        centred = _by_class(logits) - logits.mean(axis=1)
        spread = float(centred.std())
        if min(*counts[is_important], counts[~is_important].sum()) < FEWEST_ROWS or not spread:
            return Calibration()
        unit = centred / spread
        own, is_own = unit[labels, np.arange(len(labels))], is_important[labels]
        ridge = np.array([SLOPE_SD, CONSTANT_SD]) ** -2.0

        def loss(both: Array) -> tuple[float, Array]:
            """The mean loss of a row with its share of the ridge, and its derivatives by slope and constant."""
            known = both[0] * unit + both[1] * is_important[:, None]
            top = known.max(axis=0)
            odds = np.exp(known - top)
            whole = odds.sum(axis=0)
            value = np.mean(top + np.log(whole) - both[0] * own - both[1] * is_own)
            by_slope = np.mean((odds * unit).sum(axis=0) / whole - own)
            by_constant = np.mean(odds[is_important].sum(axis=0) / whole - is_own)
            pull = ridge * both / len(labels)
            return value + pull @ both / 2, np.array([by_slope, by_constant]) + pull

        found = optimize.minimize(
            loss,
            [1.0, 0.0],
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None), (None, None)],
            options={"ftol": 1e-12, "gtol": 1e-8},
        )
        slope, constant = found.x.tolist()
        return Calibration(slope / spread, constant)

    def gain(self, logits: Array, important: Sequence[int]) -> Array:
        """The chance that a row's best important class is right, less that of its best other class: (N,)."""
        is_important = np.isin(np.arange(logits.shape[1]), important)
        known = self.slope * _by_class(logits)
        known[is_important] += self.constant
        odds = np.exp(known - known.max(axis=0))
        return (odds[is_important].max(axis=0) - odds[~is_important].max(axis=0)) / odds.sum(axis=0)


def _by_class(logits: Array) -> Array:
    """(N, C) -> (C, N): 900,000 rows of ten classes take 0.10 s so, and 0.17 s as they are."""
    return np.ascontiguousarray(logits.T)
