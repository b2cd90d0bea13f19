"""How sure a number is: means and intervals, paired comparisons over images and seeds, and what choosing the best adds.

Two things are random in a comparison: which images are in the test set, and which seeds were drawn. The images are the
same for every seed and for both arms, so a comparison is a table, seeds × images, of differences between two arms.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from camri.errors import InputError

Array = np.ndarray
EXACT_SIGNS = 14  # up to here all 2ⁿ signs are tried


class Summary(NamedTuple):
    """Mean, standard deviation (n − 1), n, and the t interval of the mean; nan where one value cannot tell."""

    mean: float
    sd: float
    num: int
    low: float
    high: float


def summarise(values: ArrayLike, level: float = 0.95) -> Summary:
    """Mean ± sd with n and the t interval of the mean.

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
    half = float(stats.t.ppf((1 + level) / 2, num - 1)) * sd / math.sqrt(num)
    return Summary(mean, sd, num, mean - half, mean + half)


def wilson(hits: float, num: float, level: float = 0.95) -> tuple[float, float]:
    """The Wilson interval of hits/num: within [0, 1] and sensible at 0 and at all.

    Of rows in groups divide both by their `design_effect`.

    >>> [round(end, 3) for end in wilson(8, 10)]
    [0.49, 0.943]
    """
    if not 0 <= hits <= num or num == 0:
        raise InputError(f"hits={hits} of num={num} is not allowed; give 0 ≤ hits ≤ num and num > 0")
    z = float(stats.norm.ppf((1 + level) / 2))
    share, extra = hits / num, z * z / num
    middle = (share + extra / 2) / (1 + extra)
    half = z * math.sqrt(share * (1 - share) / num + extra / (4 * num)) / (1 + extra)
    return max(0.0, middle - half), min(1.0, middle + half)


def design_effect(values: ArrayLike, groups: ArrayLike, parts: ArrayLike | None = None, level: float = 0.95) -> float:
    """How many rows in groups tell as much as one independent row, at least 1; 1 where every group is one row.

    values: (N,), whose mean is the figure; with parts (N,) the mean over parts of their means, as the mean recall of
    several classes. groups: (N,), the patient or the film of each row.

    It is the variance of the mean that whole groups show (between-group sandwich) over that of independent rows, with
    one row more of variance 1 that repeats itself through its whole group: a few misses cannot show how they cluster,
    and none cannot at all. As in Korn and Graubard (1998) Student's t enters for the number of groups, here
    1/Σ(share of the rows)², which few large groups make small. A single group tells next to nothing.

    Coverage of nominal 95 %, 600 made tables each: recalls of .6, .9 and .98, 5 to 50 groups, of six rows or of very
    different sizes, correlations within groups of 0, .3 and .8: Wilson's interval so divided .908 to 1.0; undivided
    .413 to .977; a percentile bootstrap of whole groups .128 to .948, for it sees no misses where there were none
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
    # Below a quarter of a degree of freedom t is 40,000 and more, and every interval is all there is.
    tails = [float(stats.t.ppf((1 + level) / 2, max(1 / share - 1, 0.25))) for share in (whole, rows)]
    return max(1.0, float(variances)) * (tails[0] / tails[1]) ** 2


@dataclass(frozen=True, eq=False)
class Difference:
    """A difference of two arms with its interval; `draws` are what the bootstrap says the truth might be."""

    estimate: float
    low: float
    high: float
    draws: Array
    num_seeds: int
    num_images: int

    def chance_of_fall(self, epsilon: float = 0.0) -> float:
        """The probability that the difference is below −epsilon."""
        return float(np.mean(self.draws < -epsilon))


def compare(
    arm: Array,
    other: Array,
    *,
    seed: int,
    groups: Array | None = None,
    shared_seeds: bool = True,
    num_draws: int = 2000,
    level: float = 0.95,
) -> Difference:
    """arm − other, from outcomes (S, N) of the same N images, with a bootstrap interval over seeds and images.

    groups: labels (N,); the figure is then the mean over groups of their means, as the mean recall of several classes,
    and images are drawn within their group.
    shared_seeds: row s of both arms has the same seed; otherwise the seeds of each arm are drawn on their own.

    Seeds are drawn with replacement, images too, jointly for both arms and all seeds. Drawing cells of the table counts
    the noise of single cells three times; here seed means and image means are drawn, which hold it once each, and the
    image part is shrunk by its share (a two-way analysis of variance). The seed part has the spread of Student's t,
    which a handful of seeds needs. Coverage of nominal 95 %, 2,000 made tables each, ten seeds of 60 to 1,000
    images and 3 seeds of 300: .946 to .956. Without the shrinkage .953 to .994; without t .82 to .94; without
    drawing seeds .08 to .85. A single seed leaves the interval to the images: it speaks about these two models only.

    >>> arm, other = np.array([[1, 1, 1, 0, 1], [1, 1, 1, 1, 0]]), np.array([[1, 0, 1, 0, 1], [1, 0, 1, 0, 0]])
    >>> found = compare(arm, other, seed=0)
    >>> round(found.estimate, 3), found.low < found.estimate < found.high
    (0.3, True)
    """
    one, two = np.asarray(arm, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if one.ndim != 2 or two.ndim != 2 or one.shape[1] != two.shape[1] or not one.size or not two.size:
        raise InputError(f"outcomes {one.shape} and {two.shape} do not fit; give (S, N) of the same N images")
    if shared_seeds and len(one) != len(two):
        raise InputError(f"{len(one)} and {len(two)} seeds are not shared ones; give shared_seeds=False")
    rng = np.random.default_rng(seed)
    tables = [one - two] if shared_seeds else [one, -two]
    marks = np.zeros(one.shape[1], dtype=int) if groups is None else np.asarray(groups)
    members = [np.flatnonzero(marks == mark) for mark in np.unique(marks)]
    draws = np.zeros(num_draws)
    estimate = 0.0
    for table in tables:
        row_means = np.mean([table[:, columns].mean(axis=1) for columns in members], axis=0)
        estimate += float(row_means.mean())
        draws += _draw_seeds(row_means, rng, num_draws)
    for columns in members:
        draws += _draw_images([table[:, columns] for table in tables], rng, num_draws) / len(members)
    draws += estimate
    if min(one.min(), two.min()) >= 0 and max(one.max(), two.max()) <= 1:
        draws = draws.clip(-1, 1)  # shares cannot differ by more, whatever two or three wild seeds make of t
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Difference(estimate, float(low), float(high), draws, len(one), one.shape[1])


def _draw_mean(values: Array, rng: np.random.Generator, num_draws: int) -> Array:
    """Bootstrapped means less the mean (num_draws,). Equal values are drawn together: 0.01 s for 10,000 images."""
    distinct, counts = np.unique(values, return_counts=True)
    weights = rng.multinomial(len(values), counts / len(values), size=num_draws)
    return weights @ distinct / len(values) - values.mean()


def _draw_seeds(row_means: Array, rng: np.random.Generator, num_draws: int) -> Array:
    num = len(row_means)
    if num == 1:
        return np.zeros(num_draws)
    spread = np.sqrt(rng.chisquare(num - 1, num_draws) / num)  # /num, not /(num − 1): a bootstrap's sd is too small
    return _draw_mean(row_means, rng, num_draws) / spread


def _draw_images(tables: Sequence[Array], rng: np.random.Generator, num_draws: int) -> Array:
    image_means = np.sum([table.mean(axis=0) for table in tables], axis=0)
    num_images = len(image_means)
    if num_images == 1:
        return np.zeros(num_draws)
    noise = 0.0
    for table in tables:
        num_seeds = len(table)
        if num_seeds > 1:
            total, rows, columns = (table - table.mean()), table.mean(axis=1), table.mean(axis=0)
            rest = np.sum(total**2) - num_images * num_seeds * (rows.var() + columns.var())
            noise += rest / ((num_seeds - 1) * (num_images - 1) * num_seeds)
    variance = image_means.var(ddof=1)
    share = max(0.0, 1.0 - noise / variance) if variance > 0 else 0.0
    return math.sqrt(share) * _draw_mean(image_means, rng, num_draws)


def paired_t(differences: ArrayLike) -> float:
    """The two-sided p of a paired t test: differences over shared seeds against 0; nan for fewer than two.

    >>> round(paired_t([0.01, 0.02, 0.03]), 4)
    0.0742
    """
    summary = summarise(differences)
    if summary.num < 2:
        return math.nan
    if summary.sd == 0:
        return float(summary.mean == 0)
    return float(2 * stats.t.sf(abs(summary.mean) / summary.sd * math.sqrt(summary.num), summary.num - 1))


def flip_signs(differences: ArrayLike, *, seed: int, num_draws: int = 10_000) -> float:
    """The two-sided p of a sign-flip permutation test over shared seeds; exact up to 14 of them.

    It asks for no shape of the noise, but n seeds cannot go below 2 · 2⁻ⁿ.

    >>> flip_signs([0.01, 0.02, 0.03], seed=0)
    0.25
    """
    sample = np.asarray(differences, dtype=np.float64)
    observed = abs(sample.sum()) * (1 - 1e-12)
    if len(sample) <= EXACT_SIGNS:
        bits = np.arange(2 ** len(sample))[:, None] >> np.arange(len(sample)) & 1
        return float(np.mean(np.abs((1 - 2 * bits) @ sample) >= observed))
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(num_draws, len(sample)))
    return float((1 + np.sum(np.abs(signs @ sample) >= observed)) / (1 + num_draws))


class McNemar(NamedTuple):
    """Two-sided p of McNemar's test: exact (never too small) and mid-p (closer to its level)."""

    exact: float
    mid: float


def mcnemar(only_first: int, only_second: int) -> McNemar:
    """Whether two models err alike, from the images that only the first, and only the second, gets right.

    >>> [round(p, 4) for p in mcnemar(1, 5)]
    [0.2188, 0.125]
    """
    num, fewer = only_first + only_second, min(only_first, only_second)
    if fewer < 0:
        raise InputError(f"counts {only_first} and {only_second} are not allowed; give numbers of images")
    both_tails = 2 * float(stats.binom.cdf(fewer, num, 0.5))
    return McNemar(min(1.0, both_tails), min(1.0, both_tails - float(stats.binom.pmf(fewer, num, 0.5))))


def holm(p_values: ArrayLike) -> Array:
    """p values corrected for being several (Holm): one below the level stands whatever the others are.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected


class Debiased(NamedTuple):
    """A chosen setting's gain over the baseline: as it appears, and as it would be on fresh seeds and images."""

    apparent: float
    corrected: float


def debias_choice(
    correct: Array,
    is_important: Array,
    choose: Callable[[Array, Array], int | None],
    *,
    seed: int,
    baseline: int = 0,
    num_draws: int = 200,
) -> Debiased:
    """The recall gain of the best of K settings, less what choosing it on the same data adds.

    correct: bool (K, S, N), settings × seeds × images, the baseline among the settings; is_important: bool (N,).
    choose: (recall (K,), accuracy (K,)) -> the chosen setting, or None to stay with the baseline.

    Out-of-bag, after BBC-CV (Tsamardinos 2018): draw seeds and images with replacement, choose on them, and take the
    gain on the seeds and images not drawn. It needs no new training, follows any rule of choice, and speaks about the
    size of the gain; a max-statistic permutation would speak about its existence only. A draw holds some 63 % of the
    seeds, so it chooses a little worse than the rule on all of them: an underestimate where settings truly differ.
    One seed cannot be left out; the correction is then for images alone.

    >>> luck = np.random.default_rng(5).random((20, 5, 200)) < 0.8
    >>> found = debias_choice(luck, np.arange(200) < 40, lambda recall, accuracy: int(recall.argmax()), seed=0)
    >>> round(found.apparent, 3), round(found.corrected, 3)
    (0.055, 0.006)
    """
    num_settings, num_seeds, num_images = correct.shape
    cells = correct.reshape(-1, num_images).astype(np.float32)
    mask = np.asarray(is_important, dtype=bool)
    rng = np.random.default_rng(seed)
    recalls = correct[:, :, mask].mean(axis=(1, 2))
    chosen = choose(recalls, correct.mean(axis=(1, 2)))
    apparent = 0.0 if chosen is None else float(recalls[chosen] - recalls[baseline])
    images = np.zeros((num_draws, num_images))
    for part in (np.flatnonzero(mask), np.flatnonzero(~mask)):
        images[:, part] = rng.multinomial(len(part), np.full(len(part), 1 / max(len(part), 1)), size=num_draws)
    seeds = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), size=num_draws).astype(np.float64)
    left_out = (seeds == 0) if num_seeds > 1 else np.ones((num_draws, 1))

    def mean_over(weights: Array, seed_weights: Array) -> Array:
        sums = (cells @ weights.T.astype(np.float32)).reshape(num_settings, num_seeds, -1)
        whole = weights.sum(axis=1) * seed_weights.sum(axis=1)
        return np.einsum("ksd,ds->kd", sums, seed_weights) / np.maximum(whole, 1e-9)

    recall, accuracy = mean_over(images * mask, seeds), mean_over(images, seeds)
    outside = mean_over((images == 0) & mask, left_out)
    gains = []
    for draw in np.flatnonzero(left_out.any(axis=1)):
        picked = choose(recall[:, draw], accuracy[:, draw])
        gains.append(0.0 if picked is None else float(outside[picked, draw] - outside[baseline, draw]))
    return Debiased(apparent, float(np.mean(gains)))
