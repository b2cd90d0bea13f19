"""How long trials take, by the latest of them: cores that others use are quick now and slow later."""

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

RECENT = 8  # trials that the pace is told by: of more, a change would be seen late
POOL_START_S = 2.5  # until the processes of a pool train: few short trials are quicker without them


def slowness(wall_s: float, core_s: float) -> float:
    """How many times longer work took than its core's time; 1 where nobody else had the core.

    >>> slowness(6.0, 2.0), slowness(1.9, 2.0), slowness(0.01, 0.0)
    (3.0, 1.0, 1.0)
    """
    return max(1.0, wall_s / core_s) if core_s > 0 else 1.0


class Pace:
    """Seconds of a trial and of what calls take beside their trials, for one trial at a time and one on every core.

    `expected_s` is what a trial takes alone, as far as is known before one has ended.
    """

    def __init__(self, parallel: int, expected_s: float | None = None, slowness: float = 1.0):
        self.parallel, self.expected_s = parallel, expected_s
        self.slowness = slowness  # how many times longer work takes than on a core of its own
        self.has_pool = False  # processes have been started, and stay
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.call_s: dict[int, float] = {1: 0.0, parallel: 0.0}  # of a call beside its trials, by trials at once

    @property
    def trial_s(self) -> float | None:
        """Seconds of a trial alone; the median, as the first trial of a process is long."""
        return median(self.recent) if self.recent else self.expected_s

    @property
    def pool_s(self) -> float:
        """Seconds until the pool's processes train; they are started once."""
        return 0.0 if self.has_pool else POOL_START_S * self.slowness

    def hear(self, device_s: Sequence[float], width: int, wall_s: float) -> None:
        """Nothing; a call trained these trials, so many at once. What they do not explain the next call takes, too.

        Of the call that started the pool nobody can tell how much it was.
        """
        if width > 1 and not self.has_pool:
            self.has_pool = True
        else:
            self.call_s[width] = max(0.0, wall_s - len(device_s) * median(device_s) / width)

    def width(self, num_trials: int) -> int | None:
        """How many at once would end so many trials soonest; None where nothing is known."""
        if self.trial_s is None:
            return None
        return min(self.call_s, key=lambda width: self._takes_s(num_trials, 1, width))

    def takes_s(self, num_trials: int, num_calls: int = 1) -> float:
        """Seconds that so many trials take in so many calls."""
        return min(self._takes_s(num_trials, num_calls, width) for width in self.call_s)

    def affords(self, left_s: float, num_calls: int = 1) -> int:
        """Trials that the time allows in so many calls.

        >>> pace = Pace(2, expected_s=1.0)
        >>> pace.affords(10.0), pace.affords(4.0), pace.affords(4.0, num_calls=2), pace.affords(-1.0)
        (15, 4, 4, 0)
        """
        if not self.trial_s:
            return 0
        room = [(left_s - self._beside_s(num_calls, width)) * width for width in self.call_s]
        return max(0, math.floor(max(room) / self.trial_s))

    def _takes_s(self, num_trials: int, num_calls: int, width: int) -> float:
        return self._beside_s(num_calls, width) + num_trials * (self.trial_s or 0.0) / width

    def _beside_s(self, num_calls: int, width: int) -> float:
        """Seconds of so many calls beside their trials."""
        return num_calls * self.call_s[width] + (self.pool_s if width > 1 and num_calls else 0.0)
