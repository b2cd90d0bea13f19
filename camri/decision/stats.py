"""Means, confidence intervals, and paired comparisons over images and seeds.

A comparison has two sources of chance: which images are in the test set, and which seeds were drawn. The images are the
same for every seed and for both arms, so the data of a comparison is a table, seeds × images, of differences.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special  # not scipy.stats, whose import takes 0.7 s: ndtri and stdtrit are its norm.ppf and t.ppf

from camri.errors import InputError

Array = np.ndarray
Z = float(special.ndtri(0.975))
FALL = 0.005  # reports give the probability that accuracy drops by more than half a point
FEWEST_ROWS = 20  # of an important class: with fewer, the 95 % interval of its recall is wider than 0.4
FEWEST_GROUPS = 10  # with rows of an important class: fewer say little about how groups vary


class Summary(NamedTuple):
    """Mean, standard deviation (n − 1), n, and the t interval of the mean; nan for a single value."""

    mean: float
    sd: float
    num: int
    low: float
    high: float


def summarise(values: ArrayLike) -> Summary:
    """Mean, standard deviation, n and 95 % t interval of the mean.

    >>> [round(value, 3) for value in summarise([0.1, 0.2, 0.3])]
    [0.2, 0.1, 3, -0.048, 0.448]
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not sample.size:
        raise InputError(f"values of shape {sample.shape} cannot be summarised; give at least one number")
    mean, num = float(sample.mean()), len(sample)
    if num == 1:
        return Summary(mean, math.nan, 1, math.nan, math.nan)
    sd = float(sample.std(ddof=1))
    half = float(special.stdtrit(num - 1, 0.975)) * sd / math.sqrt(num)
    return Summary(mean, sd, num, mean - half, mean + half)


def wilson(hits: float, num: float) -> tuple[float, float]:
    """95 % Wilson interval of hits/num; it stays within [0, 1] and has a width even at 0 and 1.

    For rows in groups, divide both by their `design_effect`.

    >>> [round(end, 3) for end in wilson(8, 10)]
    [0.49, 0.943]
    """
    if not 0 <= hits <= num or num == 0:
        raise InputError(f"hits={hits} of num={num} is not allowed; give 0 ≤ hits ≤ num and num > 0", argument="hits")
    share, extra = hits / num, Z * Z / num
    middle = (share + extra / 2) / (1 + extra)
    half = Z * math.sqrt(share * (1 - share) / num + extra / (4 * num)) / (1 + extra)
    return max(0.0, middle - half), min(1.0, middle + half)


def design_effect(values: ArrayLike, groups: ArrayLike, parts: ArrayLike | None = None) -> float:
    """How many grouped rows are worth one independent row: at least 1, and 1 if every group is one row.

    values: (N,), whose mean is the figure; with parts (N,), the mean over parts of their means, such as the mean recall
    of several classes. groups: (N,), the patient or film of each row.

    It is the variance of the mean estimated from whole groups (between-group sandwich) over that of independent rows.
    One row of variance 1 that repeats through its whole group is added, since few misses cannot show how they cluster.
    As in Korn and Graubard (1998) Student's t accounts for the number of groups, here 1/Σ(share of the rows)², which is
    small if few groups are large. A single group carries almost no information.

    Coverage of nominal 95 %, 600 simulated tables each (recalls of .6, .9 and .98; 5 to 50 groups, of six rows or of
    very different sizes; correlations within groups of 0, .3 and .8): Wilson's interval divided by it .908 to 1.0,
    undivided .413 to .977; a percentile bootstrap of whole groups .128 to .948, as it has no width without misses
    (benchmarks/groups.py).

    >>> alike = np.repeat(np.arange(200) % 4 > 0, 6)  # 200 groups of six rows that are all right or all wrong
    >>> design_effect(alike, np.arange(1200)), round(design_effect(alike, np.arange(1200) // 6), 2)
    (1.0, 6.09)
    """
    sample, marks = np.asarray(values, dtype=np.float64), np.unique(groups, return_inverse=True)[1].ravel()
    classes = np.unique(np.zeros(len(sample)) if parts is None else parts, return_inverse=True)[1].ravel()
    if not sample.size or not sample.shape == marks.shape == classes.shape:
        raise InputError(f"values {sample.shape} and groups {marks.shape} do not fit; give one group for each value")
    num, num_groups = len(sample), int(marks.max()) + 1
    if num_groups == num:
        return 1.0
    sizes = np.bincount(classes)
    weights = 1 / (len(sizes) * sizes[classes])
    parted = weights * (sample - (np.bincount(classes, sample) / sizes)[classes])
    alone = num / (num - 1) * np.sum(parted**2)
    together = num_groups / max(num_groups - 1, 1) * np.sum(np.bincount(marks, parted) ** 2)
    rows, whole = np.sum(weights**2), np.sum(np.bincount(marks, weights) ** 2)
    unit = rows / num
    variances = (together + unit * whole / rows) / (alone + unit)
    # Below a quarter of a degree of freedom t is 40,000 and more: every interval is [0, 1].
    tails = [float(special.stdtrit(max(1 / share - 1, 0.25), 0.975)) for share in (whole, rows)]
    return max(1.0, float(variances)) * (tails[0] / tails[1]) ** 2


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @staticmethod
    def of_share(hits: float, num: float, effect: float = 1.0) -> "Estimate":
        """A share of rows with its Wilson interval; `effect`: design effect of grouped rows."""
        return Estimate(hits / num, *wilson(hits / effect, num / effect))


@dataclass(frozen=True)
class RowEstimate(Estimate):
    """A share of `num` rows, or the change of a share, with its 95 % interval.

    hits: rows in the share; for a change, rows gained. lost: rows lost; None for a share.
    num_groups: None if rows are independent. num_independent: how many independent rows they are worth.
    normal: distribution of the true change; None for a share.
    """

    num: int
    hits: int
    lost: int | None = None
    num_groups: int | None = None
    num_independent: float = 0.0
    normal: NormalDist | None = None

    def to_json(self) -> dict[str, Any]:
        if self.lost is not None:
            counts = {"gained": self.hits, "lost": self.lost, "num": self.num}
        else:
            counts = {"hits": self.hits, "num": self.num}
            counts |= {} if self.num_groups is None else {"groups": self.num_groups}
        return {"value": self.value if self.num else None, "low": self.low, "high": self.high, **counts}


def share_of(hit: Array, groups: Array | None = None) -> RowEstimate:
    """Share of true outcomes (N,) with its Wilson interval, widened for groups (N,).

    >>> found = share_of(np.arange(10) < 8)
    >>> found.value, round(found.low, 3), round(found.high, 3), (found.hits, found.num)
    (0.8, 0.49, 0.943, (8, 10))
    """
    num_groups = None if groups is None else len(np.unique(groups))
    effect = 1.0 if groups is None or not len(hit) else design_effect(hit, groups)
    return share_of_counts(int(np.count_nonzero(hit)), len(hit), effect, num_groups)


def share_of_counts(hits: int, num: int, effect: float = 1.0, num_groups: int | None = None) -> RowEstimate:
    """The same from counts of rows; effect: design effect of grouped rows."""
    if not num:
        return RowEstimate(math.nan, 0.0, 1.0, 0, 0, num_groups=num_groups)
    low, high = wilson(hits / effect, num / effect)
    return RowEstimate(hits / num, low, high, num, hits, num_groups=num_groups, num_independent=num / effect)


def weighted(parts: Sequence[RowEstimate], shares: Array) -> RowEstimate:
    """A share of rows whose classes are as frequent as `shares` say, from the share in each class.

    Zou and Donner's (2008) method of variance estimates recovery: the distances of the parts' ends add up like errors.

    >>> one, two = share_of_counts(90, 100), share_of_counts(5, 10)
    >>> found = weighted([one, two], np.array([0.99, 0.01]))
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
    (0.896, 0.822, 0.94)
    """
    values, lows, highs = (np.array([getattr(one, name) for one in parts]) for name in ("value", "low", "high"))
    values = np.where(np.isfinite(values), values, 0.0)
    value = float(shares @ values)
    low = max(-1.0, value - math.sqrt(float(np.sum((shares * (values - lows)) ** 2))))
    high = min(1.0, value + math.sqrt(float(np.sum((shares * (highs - values)) ** 2))))
    normals = [one.normal for one in parts]
    normal = None
    if all(one is not None for one in normals):
        centre = float(shares @ np.array([one.mean for one in normals if one is not None]))
        sds = np.array([one.stdev for one in normals if one is not None])
        normal = NormalDist(centre, math.sqrt(float(np.sum((shares * sds) ** 2))))
    lost = None if parts[0].lost is None else sum(one.lost or 0 for one in parts)
    return RowEstimate(
        value,
        low,
        high,
        sum(one.num for one in parts),
        sum(one.hits for one in parts),
        lost=lost,
        num_groups=parts[0].num_groups,
        num_independent=sum(one.num_independent for one in parts),
        normal=normal,
    )


def change_of(before: Array, after: Array, labels: Array | None = None, groups: Array | None = None) -> RowEstimate:
    """Change of a share, after − before, of bool outcomes (N,); with labels (N,), the mean over classes.

    Agresti and Min (2005): Wald's interval after half a row is added to each of the four kinds of rows. Unlike a
    bootstrap's it has a width even if no row changed. Rows in groups (N,) are divided by their `design_effect`.

    >>> found = change_of(np.array([True] * 8 + [False] * 2), np.array([True] * 9 + [False]))
    >>> found.value, round(found.low, 3), round(found.high, 3), (found.hits, found.lost, found.num)
    (0.1, -0.143, 0.309, (1, 0, 10))
    """
    effect = 1.0 if groups is None else design_effect(after.astype(int) - before, groups, labels)
    gained, lost = after & ~before, before & ~after
    if labels is None:
        counts = np.array([[len(before)], [np.count_nonzero(gained)], [np.count_nonzero(lost)]])
    else:
        counts = np.array([np.bincount(labels), np.bincount(labels, gained), np.bincount(labels, lost)])
        counts = counts[:, counts[0] > 0]
    num, up, down = counts
    return change_of_counts(num, up, down, effect)


def change_of_counts(num: Array, gained: Array, lost: Array, effect: float = 1.0) -> RowEstimate:
    """The same from counts of rows: the mean over parts (P,) of their changes; effect: design effect of grouped rows.

    >>> found = change_of_counts(np.array([10]), np.array([1]), np.array([0]))
    >>> found.value, round(found.low, 3), round(found.high, 3)
    (0.1, -0.143, 0.309)
    """
    worth, up, down = num / effect + 2, gained / effect + 0.5, lost / effect + 0.5
    centre = float(np.mean((up - down) / worth))
    sd = math.sqrt(float(np.sum((up + down - (up - down) ** 2 / worth) / worth**2))) / len(num)
    total = int(num.sum())
    return RowEstimate(
        float(np.mean((gained - lost) / num)),
        max(-1.0, centre - Z * sd),
        min(1.0, centre + Z * sd),
        total,
        int(gained.sum()),
        lost=int(lost.sum()),
        num_independent=total / effect,
        normal=NormalDist(centre, sd),
    )


def expect(change: RowEstimate, expected: float, num_rows: int) -> NormalDist:
    """Distribution of the true change, shrunk toward an expected change that is worth `num_rows` rows.

    A gain on few rows is often chance, which their own distribution ignores. In 40 % of simulated tables of 300 rows
    that showed a gain, accuracy dropped by more than half a point: the rows alone predict 20 %, shrunk 32 %. Over all
    such tables the squared error of the prediction falls from .25 to .14 (docs/log.md).
    """
    assert change.normal is not None
    trust = change.num_independent / (change.num_independent + num_rows)
    return NormalDist(trust * change.normal.mean + (1 - trust) * expected, change.normal.stdev)


def settle(change: RowEstimate, final: RowEstimate, errors: Array, num_own: int) -> RowEstimate:
    """The cross-fitted change with an interval for the advised rule that accounts for its tuning.

    final: the change with the advised rule on the rows it was tuned on. errors (B,): its error when rows are resampled
    and the rule is tuned again; their mean is the optimism of tuning. The interval is centred between the cross-fitted
    change and the final one minus that optimism. num_own: rows of the rarest important class, which tuning depends on
    most; they are the degrees of freedom of Student's t.
    """
    assert final.normal is not None
    assert change.normal is not None
    corrected = final.normal.mean - float(errors.mean())
    centre, apart = (corrected + change.normal.mean) / 2, abs(corrected - change.normal.mean) / 2
    normal = NormalDist(centre, math.hypot(max(final.normal.stdev, float(errors.std(ddof=1))), apart))
    half = float(special.stdtrit(max(num_own - 1, 1), 0.975)) * normal.stdev
    low, high = centre - half, centre + half
    low, high = max(-1.0, min(low, change.value)), min(1.0, max(high, change.value))
    return replace(change, low=low, high=high, normal=normal)


def chance_of(settled: RowEstimate, num_own: int) -> float:
    """Two-sided p-value of no change, of a settled change: below .05 where its interval excludes 0."""
    assert settled.normal is not None
    if settled.value * settled.normal.mean <= 0 or not settled.normal.stdev:
        return 1.0
    return float(2 * special.stdtr(max(num_own - 1, 1), -abs(settled.normal.mean) / settled.normal.stdev))


@dataclass(frozen=True, eq=False)
class Difference(Estimate):
    """A difference between two arms, with its bootstrap draws.

    `p` is the two-sided p-value of no difference over seeds and images; nan for one seed.
    """

    p: float
    draws: Array
    num_seeds: int

    @property
    def plain(self) -> Estimate:
        """The value and its interval alone."""
        return Estimate(self.value, self.low, self.high)

    def chance_of_fall(self, epsilon: float = 0.0) -> float:
        """Probability that the difference is below −epsilon."""
        return float(np.mean(self.draws < -epsilon))


def compare(
    arm: Array,
    other: Array,
    *,
    seed: int,
    parts: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    besides: Array | None = None,
    num_draws: int = 2000,
    level: float = 0.95,
) -> Difference:
    """Mean of arm − other with a bootstrap interval, from outcomes (S, N) of the same S seeds and N images.

    parts: labels (N,); the figure is then the mean over parts of their means, such as the mean recall of several
    classes, and images are drawn within their part.
    groups: (N,), the patient or film of each image; the images are then divided by their `design_effect` in each part.
    besides: (S, N), rows of mean 0: the effect of an image on arm − other apart from its own outcome, if the arms were
    tuned on these images (camri.selection). It changes the interval, not the estimate.

    Seeds and images are drawn with replacement, jointly for both arms. Drawing cells of the table would count the noise
    of single cells three times. Seed means and image means are drawn instead, which contain it once each, and the image
    part is reduced by that share (two-way analysis of variance). The seed part follows Student's t, and is at least as
    wide as the noise of single cells implies, since two or three seeds often agree by chance. For shares the interval
    is at least as wide as Agresti and Min's (2005) for images of which none changed. `p` comes from the same parts: the
    larger of those by the two seed parts. For many images it is that of a paired t test over seeds, or larger.

    Coverage of nominal 95 % and rejections at 5 % without a difference: benchmarks/intervals.py, docs/numbers.md. With
    one seed the interval is over images only, so it is about these two models only.

    >>> arm, other = np.array([[1, 1, 1, 0, 1], [1, 1, 1, 1, 0]]), np.array([[1, 0, 1, 0, 1], [1, 0, 1, 0, 0]])
    >>> found = compare(arm, other, seed=0)
    >>> round(found.value, 3), found.low < found.value < found.high
    (0.3, True)
    """
    one, two = np.asarray(arm, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if one.ndim != 2 or one.shape != two.shape or not one.size:
        raise InputError(f"outcomes {one.shape} and {two.shape} do not fit; give (S, N) of the same seeds and images")
    rng = np.random.default_rng(seed)
    table, num_seeds = one - two if besides is None else one - two + besides, len(one)
    marks = np.zeros(one.shape[1], dtype=int) if parts is None else np.asarray(parts)
    if marks.shape != one.shape[1:]:
        raise InputError(f"parts {marks.shape} do not fit {one.shape[1]} images; give the part of each image")
    if not np.isfinite(table).all():
        raise InputError("outcomes that are not finite cannot be compared; give 1 for right and 0 for wrong")
    units = np.arange(one.shape[1]) if groups is None else np.asarray(groups)
    if units.shape != one.shape[1:]:
        raise InputError(f"groups {units.shape} do not fit {one.shape[1]} images; give the group of each image")
    masks = [marks == mark for mark in np.unique(marks)]
    tables = [table[:, mask] for mask in masks]
    effects = [design_effect(part.mean(axis=0), units[mask]) for part, mask in zip(tables, masks, strict=True)]
    sizes, noise = np.array([part.shape[1] for part in tables]), np.array([_cell_noise(part) for part in tables])
    row_means = np.mean([part.mean(axis=1) for part in tables], axis=0)
    estimate = float(row_means.mean())
    by_seeds, by_cells = _seed_variances(row_means, float(np.sum(noise / sizes)) / len(tables) ** 2)
    seeds = by_seeds if by_seeds.half_width() >= by_cells.half_width() else by_cells
    draws, image_variance = _draw_seeds(row_means, seeds, rng, num_draws), 0.0
    for part, cell, effect in zip(tables, noise.tolist(), effects, strict=True):
        image_means = part.mean(axis=0)
        share = effect - 1 + _image_share(image_means, cell / num_seeds)  # groups do not share the noise of cells
        draws += math.sqrt(share) * _draw_mean(image_means, rng, num_draws) / len(tables)
        image_variance += share * float(image_means.var()) / max(len(image_means) - 1, 1) / len(tables) ** 2
    are_shares = min(one.min(), two.min()) >= 0 and max(one.max(), two.max()) <= 1
    least = float(np.sum(1 / (sizes / effects + 2.0) ** 2)) / len(tables) ** 2 if are_shares else 0.0
    p = max(_p_of(estimate, one, image_variance, least) for one in (by_seeds, by_cells))
    low, high = np.quantile(draws, [0.025, 0.975])
    if high - low < 2 * Z * math.sqrt(least):
        draws = rng.normal(scale=math.sqrt(least), size=num_draws)
    draws += estimate
    if are_shares:
        draws = draws.clip(-1, 1)  # shares cannot differ by more, but Student's t of two or three seeds can
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Difference(estimate, float(low), float(high), p if num_seeds > 1 else math.nan, draws, num_seeds)


def _cell_noise(table: Array) -> float:
    """Variance of single cells (S, N) around their row and column means; 0 for a single row or column."""
    num_seeds, num_images = table.shape
    if min(num_seeds, num_images) == 1:
        return 0.0
    rest = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    return float(np.sum(rest**2)) / ((num_seeds - 1) * (num_images - 1))


class _Variance(NamedTuple):
    """A variance and its degrees of freedom."""

    value: float
    freedom: float

    def half_width(self) -> float:
        """Half of the 95 % interval."""
        return (Z if math.isinf(self.freedom) else float(special.stdtrit(self.freedom, 0.975))) * math.sqrt(self.value)


def _seed_variances(row_means: Array, by_cells: float) -> tuple[_Variance, _Variance]:
    """Variance of the mean over seeds: from the seeds' means (Student's t), and from the noise of single cells."""
    num = len(row_means)
    if num == 1:
        return _Variance(0.0, math.inf), _Variance(0.0, math.inf)
    return _Variance(float(row_means.var(ddof=1)) / num, num - 1), _Variance(by_cells / num, math.inf)


def _image_share(image_means: Array, noise: float) -> float:
    """Share of the variance of image means that is not noise of single cells."""
    variance = float(image_means.var(ddof=1)) if len(image_means) > 1 else 0.0
    return max(0.0, 1.0 - noise / variance) if variance > 0 else 0.0


def _p_of(estimate: float, seeds: _Variance, images: float, least: float) -> float:
    """Two-sided p-value of a t-distributed part (seeds) plus a normal one (images), of variance `least` or more.

    A single t with Satterthwaite's degrees of freedom rejects 11 % where nothing differs (two seeds).
    """
    spread = seeds.value if math.isinf(seeds.freedom) else seeds.value * seeds.freedom / _chi_squares(seeds.freedom)
    sds = np.sqrt(np.maximum(spread + images, 0.0))

    def tail(distance: float) -> float:
        return float(np.mean(2 * special.ndtr(-np.divide(distance, sds, out=np.full_like(sds, np.inf), where=sds > 0))))

    floor = math.sqrt(least)
    if floor > 0 and tail(Z * floor) < 0.05:  # its interval is narrower than that of the least variance
        return float(2 * special.ndtr(-abs(estimate) / floor))
    return tail(abs(estimate)) if sds.any() else float(estimate == 0)


@lru_cache
def _chi_squares(freedom: float) -> Array:
    """The medians of 4,000 equally probable parts of a χ² distribution."""
    return np.asarray(2 * special.gammaincinv(freedom / 2, (np.arange(4000) + 0.5) / 4000))


def _draw_mean(values: Array, rng: np.random.Generator, num_draws: int) -> Array:
    """Bootstrap means minus the mean (num_draws,). Equal values are drawn together: 0.01 s for 10,000 images.

    For more than 500 distinct values, which would take 0.1 s to 0.2 s, normal draws are used.
    """
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) > 500:
        return rng.normal(scale=float(values.std()) / math.sqrt(len(values)), size=num_draws)
    weights = rng.multinomial(len(values), counts / len(values), size=num_draws)
    return weights @ distinct / len(values) - values.mean()


def _draw_seeds(row_means: Array, variance: _Variance, rng: np.random.Generator, num_draws: int) -> Array:
    if math.isinf(variance.freedom):
        return rng.normal(scale=math.sqrt(variance.value), size=num_draws)
    num = len(row_means)
    spread = np.sqrt(rng.chisquare(num - 1, num_draws) / num)  # not num − 1: a bootstrap's sd is too small by that
    return _draw_mean(row_means, rng, num_draws) / spread


def holm(p_values: ArrayLike) -> Array:
    """Holm's correction of p-values for multiple tests.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected
