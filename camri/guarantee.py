"""A recall that new data will have, but for a small chance that is known whatever the number of rows.

Misses of an important class only get fewer as the shift grows. So shifts are tested from the largest down and the last
that passes is taken, each test with the whole chance of error: Tong, Feng and Li (2018) for rows that are independent,
Bates et al. (2021) for groups of rows.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from camri.errors import InputError
from camri.metrics import Array, Scores
from camri.posthoc import trace


@dataclass(frozen=True)
class Guarantee:
    """The smallest shift with which every important class has at least such a recall on new data; never below 0.

    shift: None where no shift will do: too few rows, or important classes that are taken for each other too often.
    hits, num: rows of each class that are found with it, of how many; without one, with the largest shift there is.
    num_units: what counts as independent, rows or groups of them. fewest: the least of these that could be enough.
    """

    at_least: float
    confidence: float
    shift: float | None
    hits: tuple[int, ...]
    num: tuple[int, ...]
    num_units: tuple[int, ...]
    fewest: int


def assure(scores: Scores, at_least: float, confidence: float = 0.95, groups: ArrayLike | None = None) -> Guarantee:
    """The smallest shift whose recall on new rows like these is at least that of every important class.

    scores: rows that neither trained nor chose the model. The chance that the promise fails for any class is at most
    1 − confidence; it is shared out among the classes. No assumption about the scores is made, one about the rows:
    they are independent, or, with groups (N,), their groups are. The recall that is promised is then a mean over
    groups, each counting once: of all patients, not of all their pictures.

    >>> from camri.metrics import condense
    >>> rows = np.array([[0.0, lead] for lead in np.linspace(-1.0, 5.0, 100)])
    >>> found = assure(condense(rows, np.ones(100, dtype=int), (1,)), at_least=0.9)
    >>> found.hits, found.num, round(found.shift, 2), found.fewest
    ((96,), (100,), 0.79, 29)
    """
    if not 0 < at_least < 1:
        raise InputError(f"at_least={at_least!r} is not allowed; give a recall above 0 and below 1, say 0.95")
    if not 0.5 <= confidence < 1:
        raise InputError(f"confidence={confidence!r} is not allowed; give 0.5 or more and less than 1, say 0.95")
    if not scores.num.all():
        empty = [index for index, num in zip(scores.important, scores.num, strict=True) if not num]
        raise InputError(f"important classes {empty} have no rows: nothing can be promised of them")
    if groups is not None and np.shape(groups) != scores.labels.shape:
        raise InputError(f"groups {np.shape(groups)} do not fit {len(scores)} rows; give one group for each row")
    chance = (1 - confidence) / len(scores.important)
    shifts = trace(scores).shift
    passes, units = shifts >= 0, []
    for i, index in enumerate(scores.important):
        own = scores.labels == index
        weight, num_units, is_whole = _weights(own, None if groups is None else np.asarray(groups)[own])
        units.append(num_units)
        missed = _missed(scores.lead[own].astype(np.float64), i, weight, shifts)
        passes &= chance_of_luck(missed, num_units, 1 - at_least, is_whole) <= chance
    shift = float(shifts[passes.argmax()]) if passes.any() else None
    return Guarantee(
        at_least=at_least,
        confidence=confidence,
        shift=shift,
        hits=tuple(scores.hits(shifts[-1] if shift is None else shift).tolist()),
        num=tuple(scores.num.tolist()),
        num_units=tuple(units),
        fewest=math.ceil(math.log(chance) / math.log(at_least)),
    )


def chance_of_luck(missed: Array, num: int, share: float, is_whole: bool) -> Array:
    """The highest chance of missing so little of `num` independent units where truly a `share` or more is missed.

    missed: units, in whole numbers where every unit is missed or not (exact, the binomial's tail), else the sum of
    what is missed of each, 0 to 1 (the smaller of Hoeffding's and Bentkus's bounds).

    >>> chance_of_luck(np.array([0, 1]), 59, 0.05, True).round(4).tolist()
    [0.0485, 0.1991]
    >>> chance_of_luck(np.array([0, 0.5]), 59, 0.05, False).round(4).tolist()
    [0.0485, 0.1988]
    """
    from scipy import stats  # here, for it takes 0.7 s; special.bdtr differs in the twelfth digit

    values, place = np.unique(missed, return_inverse=True)
    if is_whole:
        chance = stats.binom.cdf(np.rint(values), num, share)
    else:
        mean = np.minimum(values / num, share)
        exponent = special.rel_entr(mean, share) + special.rel_entr(1 - mean, 1 - share)
        bentkus = math.e * stats.binom.cdf(np.ceil(values - 1e-9), num, share)
        chance = np.minimum(np.exp(-num * exponent), bentkus)
    return chance[place]


def _weights(own: Array, groups: Array | None) -> tuple[Array, int, bool]:
    """What each row of a class counts, how many units there are, and whether each row is one."""
    if groups is None:
        return np.ones(int(own.sum())), int(own.sum()), True
    _, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return 1.0 / sizes[place.ravel()], len(sizes), bool(sizes.max() == 1)


def _missed(lead: Array, i: int, weight: Array, shifts: Array) -> Array:
    """The weight of the rows (n, I) of important class number i that are missed, for each of the shifts."""
    can_win = lead.argmax(axis=1) == i  # among important classes that share a shift the order stays
    needed = -lead[can_win, i]
    order = np.argsort(needed, kind="stable")
    found = np.concatenate([[0.0], np.cumsum(weight[can_win][order])])
    missed = weight.sum() - found[np.searchsorted(needed[order], shifts, side="left")]
    return np.maximum(missed, 0.0)
