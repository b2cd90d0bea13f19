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
