"""Trials cut into packs for many workers, and the packs' progress put together again."""

import itertools
from collections.abc import Sequence

from camri.engine import Progress


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

    >>> half = Progress(done=1, running=1, total=2, part=0.75, images_per_s=10.0, left_s=1.0, accuracy=0.5)
    >>> whole = combine(4, ended=1, packs=[half], passed_s=3.0)
    >>> whole.running, whole.part, whole.left_s, whole.accuracy
    (1, 0.375, 5.0, 0.5)
    """
    part = (ended + sum(pack.part * pack.total - pack.done for pack in packs)) / total
    return Progress(
        done=ended,
        running=sum(pack.running for pack in packs),
        total=total,
        part=part,
        images_per_s=sum(pack.images_per_s for pack in packs),
        left_s=passed_s * (1 - part) / part if part > 0 else float("inf"),
        accuracy=_mean([(pack.accuracy, pack.running) for pack in packs]),
        recall=_mean([(pack.recall, pack.running) for pack in packs]),
    )


def _mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None and weight]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None
