"""Calibration of condensed scores: what a row's probabilities say that a changed decision gains or loses.

Two numbers are fitted: a slope for all scores and a constant for the important classes. The scores are condensed, so
the classes that are neither important nor the best of the others count together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from camri.decision.scores import Array, Scores

SLOPE_SD = 10.0  # of the leads' own spread: it binds only where classes are separable
CONSTANT_SD = 0.5  # without a ridge the constant overfits few rows (docs/log.md)
FEWEST_ROWS = 10  # of an important class, and of the others: with fewer nothing is calibrated
MOST_ROWS = 20_000  # enough to fit two numbers; half of them of the important classes where there are as many
FAR = 700.0  # a lead beyond this is as good as infinite
SEED = 0


@dataclass(frozen=True)
class Calibration:
    """Leads times the slope, which is at least 0, plus the constant for important classes."""

    slope: float = 1.0
    constant: float = 0.0

    @staticmethod
    def of(scores: Scores, weights: Array | None = None) -> "Calibration":
        """The calibration that makes the labels likeliest, held to finite values by a ridge.

        Minimises Σ −log p(label) + (slope · spread / 10)² / 2 + (constant / 0.5)² / 2 over the rows.

        >>> from camri.decision.scores import exact
        >>> drawn = np.random.default_rng(0)
        >>> labels = drawn.integers(0, 2, 4000)
        >>> logits = 3 * (drawn.normal(size=(4000, 2)) + 2 * np.eye(2)[labels]) - [0, 1.2]
        >>> found = Calibration.of(exact(logits, labels, [1]))  # the truth: slope 2 / 3, constant 0.8
        >>> round(found.slope, 2), round(found.constant, 2)
        (0.67, 0.78)
        """
        if min(*scores.num, (~np.isin(scores.labels, scores.important)).sum()) < FEWEST_ROWS:
            return Calibration()
        rows, times = _sample(scores, weights)
        some = scores.take(rows)
        lead, rest = _known(some)
        spread = float(lead.std())
        if not spread:
            return Calibration()
        unit = np.concatenate([lead / spread, np.zeros((len(rows), 1)), rest[:, None] / spread], axis=1)
        is_important = np.arange(unit.shape[1]) < lead.shape[1]
        places = np.where(some.rest_right, lead.shape[1], lead.shape[1] + 1)
        for place, index in enumerate(some.important):
            places[some.labels == index] = place
        own, is_own = unit[np.arange(len(rows)), places], is_important[places]
        share, ridge = times / times.sum(), np.array([SLOPE_SD, CONSTANT_SD]) ** -2.0

        def derivatives(both: Array) -> tuple[float, Array, Array]:
            """The mean loss of a row with its share of the ridge, its gradient and its curvature."""
            known = both[0] * unit + both[1] * is_important
            top = known.max(axis=1, keepdims=True)
            odds = np.exp(known - top)
            whole = odds.sum(axis=1, keepdims=True)
            odds /= whole
            value = share @ (top[:, 0] + np.log(whole[:, 0]) - both[0] * own - both[1] * is_own)
            slope, constant = (odds * unit).sum(axis=1), odds[:, is_important].sum(axis=1)
            pull = ridge / len(scores)
            gradient = np.array([share @ (slope - own), share @ (constant - is_own)]) + pull * both
            twice = share @ ((odds * unit**2).sum(axis=1) - slope**2)
            mixed = share @ ((odds * unit)[:, is_important].sum(axis=1) - slope * constant)
            return (
                value + pull @ both**2 / 2,
                gradient,
                np.array([[twice, mixed], [mixed, share @ (constant - constant**2)]]) + np.diag(pull),
            )

        slope, constant = _minimise(derivatives).tolist()
        return Calibration(slope / spread, constant)

    def gain(self, scores: Scores) -> Array:
        """The chance that a row's best important class is right, less that of its best other class: (N,)."""
        lead, rest = _known(scores)
        known = self.slope * lead + self.constant
        best = known.max(axis=1)
        top = np.maximum(best, 0.0)
        whole = np.exp(-top) + np.exp(known - top[:, None]).sum(axis=1) + np.exp(self.slope * rest - top)
        return (np.exp(best - top) - np.exp(-top)) / whole


def _minimise(derivatives: Callable[[Array], tuple[float, Array, Array]]) -> Array:
    """The two numbers, the first at least 0, at which a convex function is lowest, by Newton's method."""
    at = np.array([1.0, 0.0])
    value, gradient, curvature = derivatives(at)
    for _ in range(50):
        free = np.array([at[0] > 0 or gradient[0] < 0, True])
        step = np.zeros(2)
        step[free] = -np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
        if np.abs(gradient[free]).max() < 1e-9:
            break
        size = 1.0
        while size > 1e-9:
            then = np.maximum(at + size * step, [0.0, -np.inf])
            found = derivatives(then)
            if found[0] <= value + 1e-4 * gradient @ (then - at):
                break
            size /= 2
        else:
            break
        at, (value, gradient, curvature) = then, found
    return at


def _known(scores: Scores) -> tuple[Array, Array]:
    """Finite leads (N, I), and the log odds (N,) of the classes beside the best of the others."""
    rest = np.log(np.maximum(np.expm1(scores.rest_spread.astype(np.float64)), np.exp(-FAR)))
    return np.clip(scores.shifted(), -FAR, FAR), rest


def _sample(scores: Scores, weights: Array | None) -> tuple[Array, Array]:
    """Rows to calibrate on, and how many rows each stands for: few classes of many rows are not thinned out."""
    every = np.arange(len(scores))
    times = np.ones(len(scores)) if weights is None else np.asarray(weights, dtype=np.float64)
    if len(every) <= MOST_ROWS:
        return every, times
    drawn, own = np.random.default_rng(SEED), np.isin(scores.labels, scores.important)
    rows, counted = [], []
    for part in (every[own], every[~own]):
        num = min(len(part), max(MOST_ROWS // 2, MOST_ROWS - (len(every) - len(part))))
        rows.append(drawn.choice(part, num, replace=False))
        counted.append(times[rows[-1]] * (len(part) / num))
    return np.concatenate(rows), np.concatenate(counted)


def _short(number: float) -> float:
    """The number with six digits, as the code for users has it."""
    return float(f"{number:.6g}")


@dataclass(frozen=True)
class Probabilities:
    """Calibrated probabilities of all classes: softmax(slope · log-scores + bias), for decisions by cost."""

    slope: float
    bias: tuple[float, ...]

    @staticmethod
    def of(logits: Array, labels: Array) -> "Probabilities":
        """The slope and biases that make the labels (N,) likeliest, held to finite values by a ridge.

        >>> drawn = np.random.default_rng(0)
        >>> labels = drawn.integers(0, 3, 3000)
        >>> found = Probabilities.of(2 * (drawn.normal(size=(3000, 3)) + 2 * np.eye(3)[labels]), labels)
        >>> round(found.slope, 1), max(map(abs, found.bias)) < 0.2
        (1.0, True)
        """
        if len(labels) > MOST_ROWS:
            some = np.random.default_rng(SEED).choice(len(labels), MOST_ROWS, replace=False)
            logits, labels = logits[some], labels[some]
        num, num_classes = logits.shape
        known = logits - logits.mean(axis=1, keepdims=True)
        spread = float(known.std())
        if not spread:
            return Probabilities(1.0, (0.0,) * num_classes)
        unit, rows = known / spread, np.arange(num)
        counts = np.bincount(labels, minlength=num_classes)
        ridge = np.concatenate([[SLOPE_SD**-2], np.full(num_classes, CONSTANT_SD**-2)])

        def loss(values: Array) -> tuple[float, Array]:
            scored = values[0] * unit + values[1:]
            log_p = scored - special.logsumexp(scored, axis=1, keepdims=True)
            p = np.exp(log_p)
            by_slope = ((p * unit).sum() - unit[rows, labels].sum()) / num
            pull = ridge * values / num
            grad = np.concatenate([[by_slope], p.mean(axis=0) - counts / num]) + pull
            return -log_p[rows, labels].mean() + pull @ values / 2, grad

        from scipy import optimize  # here: the import takes 0.2 s

        bounds: Sequence[tuple[float | None, None]] = [(0.0, None)] + [(None, None)] * num_classes
        found = optimize.minimize(loss, np.eye(1 + num_classes)[0], jac=True, method="L-BFGS-B", bounds=bounds).x
        return Probabilities(_short(found[0] / spread), tuple(map(_short, found[1:].tolist())))

    def __call__(self, logits: Array) -> Array:
        """The probabilities of rows of log-scores (N, C)."""
        return special.softmax(self.slope * logits + np.array(self.bias), axis=1)
