"""How long trials take, by the latest of them: cores that others use are quick now and slow later.

How many trials each step of a fit gets.

What a fit can afford: trials, counted or by the clock.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from camri.data.parallel import num_cores
from camri.engine import Training
from camri.engine.spec import batch_size, steps_per_epoch
from camri.errors import InputError
from camri.fitting.request import LEAST_TRIALS, Request
from camri.study.executor import measure

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


TRAINING_SHARE = 0.2
SEARCH_SHARE = 0.4  # of what is left after the trainings; the finals have the rest
MOST_TRAINING_SEEDS = 5
MOST_FINAL_SEEDS = 20
LEAST_FINAL_SEEDS = 2  # one to choose by, one to judge by
ENOUGH_FINAL_SEEDS = 10  # what the finals keep before other ramps are tried: intervals are worth more than a ramp
FEW_FINAL_SEEDS = 5  # with fewer the answer says so, and a budget's time has finalists given up first
LEAST_RAMP_SEEDS = 2  # one would speak of single models
LEAST_CANDIDATES = 4  # that are tried however slow trials are
FINAL_SHARE = (1 - TRAINING_SHARE) * (1 - SEARCH_SHARE)


@dataclass(frozen=True)
class Trainings:
    """How many of the trainings are tried, with how many seeds."""

    num: int
    num_seeds: int


def plan_trainings(num_trials: int, num_choices: int) -> Trainings:
    """A fifth of the trials for the trainings; where it is little, fewer trainings.

    >>> plan_trainings(100, 5), plan_trainings(16, 5)
    (Trainings(num=5, num_seeds=4), Trainings(num=3, num_seeds=1))
    """
    share = int(TRAINING_SHARE * num_trials)
    num = max(1, min(num_choices, share))
    return Trainings(num, max(1, min(MOST_TRAINING_SEEDS, share // num)))


@dataclass(frozen=True)
class Race:
    """How many candidates start, and how many are left at its end. Every round halves them, each with a new seed."""

    num_candidates: int
    num_finalists: int

    def rounds(self) -> list[int]:
        """Candidates trained in each round.

        >>> Race(8, 2).rounds(), Race(2, 2).rounds()
        ([8, 4], [2])
        """
        found = [self.num_candidates]
        while (kept := self.kept(found[-1])) > self.num_finalists:
            found.append(kept)
        return found

    def kept(self, num: int) -> int:
        """How many of so many go on: the better half, but no fewer than the finalists."""
        return max(self.num_finalists, -(-num // 2))

    def num_trials(self, num_known_seeds: int) -> int:
        """Trials of all rounds; cross-entropy runs along in those whose seed it does not have yet."""
        rounds = self.rounds()
        return sum(rounds) + max(0, len(rounds) - num_known_seeds)

    def num_calls(self, pack: int) -> int:
        """Calls of the engine: a call for each pack of candidates and for each further round."""
        return -(-self.num_candidates // pack) + len(self.rounds()) - 1


def plan_race(num_left: int, num_known_seeds: int) -> Race:
    """The race that so many trials allow.

    >>> plan_race(80, 3).rounds(), plan_race(13, 1).rounds()
    ([18, 9, 5], [4])
    """
    share = int(SEARCH_SHARE * num_left)
    return largest_race(num_finalists(num_left), lambda race: race.num_trials(num_known_seeds) <= share)


def num_finalists(num_left: int) -> int:
    """How many candidates go to the finals, where so many trials are left."""
    return 2 if num_left < 50 else 3 if num_left < 160 else 4


def largest_race(num_finalists: int, is_affordable: Callable[[Race], bool]) -> Race:
    """The race with the most candidates that can be afforded; with as many as finalists where none can."""
    found = Race(num_finalists, num_finalists)
    while is_affordable(bigger := Race(found.num_candidates + 1, num_finalists)):
        found = bigger
    return found


def first_final_seeds(num_trials: int) -> int:
    """Seeds that the finals of so many trials would get, before anything of them is known.

    >>> first_final_seeds(370), first_final_seeds(60), first_final_seeds(16)
    (20, 4, 2)
    """
    num_arms = num_finalists(num_trials) + 3  # cross-entropy, the plain one too, a control
    return max(LEAST_FINAL_SEEDS, plan_finals(int(FINAL_SHARE * num_trials), num_arms))


def protect_seeds(num_trials: int, num_planned: int, num_arms: int) -> int:
    """Seeds of the finals that no step before them may use up: their share, and up to ten of those that were planned.

    num_trials: all that can be trained at the pace, with those that were.

    >>> protect_seeds(200, 20, 6), protect_seeds(100, 20, 6), protect_seeds(100, 5, 6), protect_seeds(900, 20, 6)
    (16, 10, 8, 20)
    """
    return max(plan_finals(int(FINAL_SHARE * num_trials), num_arms), min(num_planned, ENOUGH_FINAL_SEEDS))


def plan_ramps(num_left: int, num_ramps: int, num_finalists: int, num_seeds: int, num_arms: int) -> int:
    """How many of the other ramps are tried, with these finalists and seeds: what the finals can spare.

    >>> plan_ramps(60, 2, 2, 3, 5), plan_ramps(56, 2, 2, 3, 5), plan_ramps(55, 2, 2, 3, 5), plan_ramps(500, 2, 2, 1, 5)
    (1, 1, 0, 0)
    """
    cost = num_finalists * num_seeds
    if not cost or num_seeds < LEAST_RAMP_SEEDS:
        return 0
    return max(0, min(num_ramps, (num_left - ENOUGH_FINAL_SEEDS * num_arms) // cost))


def plan_finals(num_left: int, num_arms: int) -> int:
    """New seeds of every arm of the finals; fewer than two mean that there are too many arms.

    >>> plan_finals(48, 6), plan_finals(500, 5), plan_finals(9, 6)
    (8, 20, 1)
    """
    return min(MOST_FINAL_SEEDS, num_left // num_arms)


COMFORTABLE_TRIALS = 60  # fewer trials than these: rather shorter ones
LEAST_EPOCHS = 6
CALLS = 3  # of the engine that are still to come, as a rule: a few packs of candidates and the finals
RESERVE = (0.1, 8.0, 60.0)  # for the model's files and the page: a part of the time, least and most seconds
HAND_OVER_S = 8.0  # of a core for them and the end of the process: it was 60 s where work took 7.4 times longer
MOST_RESERVE = 0.4  # of the time, however slow the machine is


class Budget:
    """A fit's trials: so many, or as many as the time allows at the pace. Time before this call counts.

    `began` is the `time.monotonic()` that this call's time counts from.
    """

    def __init__(self, request: Request, pace: Pace, spent_s: float, count: Callable[[], int], began: float):
        self.request, self.pace, self.spent_s, self.count, self.began = request, pace, spent_s, count, began

    @property
    def is_timed(self) -> bool:
        """Whether the clock decides; where trials are counted, the plan is the same every time."""
        return self.request.num_trials is None

    def passed_s(self) -> float:
        """Seconds of this fit so far, earlier calls included."""
        return self.spent_s + time.monotonic() - self.began

    def left_s(self) -> float:
        """Seconds that can still be trained, before the model's files and the page are written."""
        budget_s = self.request.budget_s
        assert budget_s is not None
        kept_s = max(reserve_s(budget_s), min(HAND_OVER_S * self.pace.slowness, MOST_RESERVE * budget_s))
        return budget_s - kept_s - self.passed_s()

    def left(self, num_calls: int = CALLS) -> int:
        """Trials that can still be trained, in so many calls."""
        if self.request.num_trials is not None:
            return self.request.num_trials - self.count()
        return self.pace.affords(self.left_s(), num_calls)


def reserve_s(budget_s: float) -> float:
    """
    >>> reserve_s(600.0), reserve_s(60.0), reserve_s(3600.0)
    (60.0, 8.0, 60.0)
    """
    part, least, most = RESERVE
    return min(most, max(least, part * budget_s))


def fit_epochs(request: Request) -> tuple[int, float | None]:
    """(epochs, seconds a trial) of the trainings; seconds are measured only where there is a time to keep to.

    Where the time is too short for trials of the usual length, they are made shorter; too short for any, it is refused.
    """
    training = request.plain
    if request.budget_s is None:
        return training.epochs, None
    epoch_s = measure_epoch_s(request, training)
    time_s = request.budget_s - reserve_s(request.budget_s)
    epochs = training.epochs
    if request.epochs is None and time_s < COMFORTABLE_TRIALS * epochs * epoch_s:
        epochs = max(min(LEAST_EPOCHS, epochs), math.floor(time_s / (COMFORTABLE_TRIALS * epoch_s)))
    needed_s = LEAST_TRIALS * epochs * epoch_s
    if time_s < needed_s:
        smaller = "" if training.model in ("small", "features") else ", or --model small"
        raise InputError(
            f"a budget of {request.budget_s:g} s is too short: a trial of {training.model!r} with {epochs} epochs "
            f"takes about {epochs * epoch_s:.3g} s here, and a fit needs at least {LEAST_TRIALS} and "
            f"{reserve_s(request.budget_s):g} s for the model and the page; give --budget "
            f"{math.ceil((needed_s + reserve_s(needed_s)) / 60) + 1}m{smaller}"
        )
    return epochs, epochs * epoch_s


def measure_epoch_s(request: Request, training: Training) -> float:
    """Seconds of the device for one epoch of one trial, with as many trials beside it as it takes."""
    data = request.data
    num_rows = len(data.splits["train"])
    images = steps_per_epoch(training, num_rows) * batch_size(training, num_rows)
    rate = measure(training, data.input_shape, data.num_classes, request.device)
    if request.device.type == "cpu":
        rate *= num_cores()
    return images / rate
