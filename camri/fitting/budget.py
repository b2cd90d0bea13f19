"""A fit's budget: its time, the pace of its trials, and how many trials each stage gets."""

import math
import time
from collections import deque
from dataclasses import dataclass

from camri.data.parallel import num_cores
from camri.engine.spec import batch_size, steps_per_epoch
from camri.errors import InputError
from camri.fitting.request import LEAST_TRIALS, Request
from camri.study.executor import measure

RECENT = 8  # trials that set the pace: with more, a change would be seen late
RESERVE = (0.1, 8.0, 60.0)  # for the model's files and the page: part of the time, least and most seconds
HAND_OVER_S = 8.0  # of a free core for them: 60 s were measured where work took 7.4 times longer
MOST_RESERVE = 0.4  # of the time, however slow the machine is


@dataclass(eq=False)
class Budget:
    """What a fit may still spend: a number of trials, or the trials that its time allows at their recent pace.

    Times are seconds since the fit began, earlier calls on its folder included: this call at `began`, a
    `time.monotonic()`, after `spent_s`. expected_s: what a trial takes, as far as is known before one has ended.
    num_ended: trials so far. slowness: how many times longer work takes than on a core of its own.
    """

    budget_s: float | None
    num_trials: int | None
    began: float
    spent_s: float = 0.0
    expected_s: float | None = None
    num_ended: int = 0
    slowness: float = 1.0

    def __post_init__(self) -> None:
        self._intervals: deque[float] = deque(maxlen=RECENT)  # seconds between the ends of trials
        self._last_end_s = self.passed_s()

    @property
    def is_timed(self) -> bool:
        return self.num_trials is None

    def passed_s(self) -> float:
        return self.spent_s + time.monotonic() - self.began

    def end_s(self, part: float = 1.0) -> float:
        """When this part of the time for training is over; infinite if trials are counted."""
        if self.budget_s is None:
            return math.inf
        kept_s = max(reserve_s(self.budget_s), min(HAND_OVER_S * self.slowness, MOST_RESERVE * self.budget_s))
        return part * (self.budget_s - kept_s)

    def record_end(self) -> None:
        """Count a trial that has just ended."""
        now_s = self.passed_s()
        self._intervals.append(now_s - self._last_end_s)
        self._last_end_s = now_s
        self.num_ended += 1

    @property
    def trial_s(self) -> float | None:
        """Seconds per trial by the latest of them, with all overhead; None if nothing is known yet."""
        known = list(self._intervals)
        if self.expected_s is not None:  # the first trials of a process are slow
            known += [self.expected_s] * (RECENT - len(known))
        return sum(known) / len(known) if known else None

    def trials_left(self) -> int:
        """Trials that can still be trained."""
        if self.num_trials is not None:
            return max(0, self.num_trials - self.num_ended)
        return max(0, math.floor((self.end_s() - self.passed_s()) / self.trial_s)) if self.trial_s else 0

    def fits(self, num_trials: int, until_s: float) -> bool:
        """Whether so many trials would end in time."""
        return until_s == math.inf or self.passed_s() + num_trials * (self.trial_s or 0.0) <= until_s

    def left_s(self) -> float | None:
        """Seconds until the fit ends, as far as is known."""
        if self.budget_s is not None:
            return max(0.0, self.budget_s - self.passed_s())
        return None if self.trial_s is None else self.trials_left() * self.trial_s


def reserve_s(budget_s: float) -> float:
    """Seconds kept for the model's files and the page.

    >>> reserve_s(600.0), reserve_s(60.0), reserve_s(3600.0)
    (60.0, 8.0, 60.0)
    """
    part, least, most = RESERVE
    return min(most, max(least, part * budget_s))


TRAINING_SHARE = 0.2
SEARCH_SHARE = 0.4  # of what is left after the trainings; the finals get the rest
SEARCH_END = TRAINING_SHARE + SEARCH_SHARE * (1 - TRAINING_SHARE)
MOST_TRAINING_SEEDS = 5
LEAST_CANDIDATES = 4
MOST_FINAL_SEEDS = 20
LEAST_FINAL_SEEDS = 2  # one to choose by, one to judge by
FEW_FINAL_SEEDS = 5  # with fewer the answer cautions; if the time is short, finalists are dropped first


@dataclass(frozen=True)
class Race:
    """A race of candidates: every round trains them with a new seed and keeps the better half."""

    num_candidates: int
    num_finalists: int

    def rounds(self) -> list[int]:
        """Candidates trained in each round.

        >>> Race(8, 2).rounds(), Race(2, 2).rounds()
        ([8, 4], [2])
        """
        rounds = [self.num_candidates]
        while (kept := self.num_kept(rounds[-1])) > self.num_finalists:
            rounds.append(kept)
        return rounds

    def num_kept(self, num: int) -> int:
        """How many of so many reach the next round: the better half, but no fewer than the finalists."""
        return max(self.num_finalists, -(-num // 2))

    def num_trials(self, num_known_seeds: int) -> int:
        """Trials of all rounds; cross-entropy is trained with them unless it has the round's seed already."""
        rounds = self.rounds()
        return sum(rounds) + max(0, len(rounds) - num_known_seeds)


@dataclass(frozen=True)
class Plan:
    """Trials of every stage."""

    num_trainings: int
    training_seeds: int
    race: Race
    final_seeds: int


def plan_trials(num_left: int, num_trainings: int = 0, training_seeds: int = 0) -> Plan:
    """Divide the trials that are left among the stages that are left.

    A fifth goes to `num_trainings` trainings, if there are any to compare, two fifths of the rest to candidates, the
    remainder to the finals. training_seeds: those cross-entropy has already, once a training is chosen.

    >>> plan_trials(100, num_trainings=5)
    Plan(num_trainings=5, training_seeds=4, race=Race(num_candidates=18, num_finalists=3), final_seeds=8)
    >>> plan_trials(80, training_seeds=4).race, plan_trials(13, training_seeds=1).race.rounds()
    (Race(num_candidates=18, num_finalists=3), [4])
    """
    if num_trainings:
        share = int(TRAINING_SHARE * num_left)
        num_trainings = max(1, min(num_trainings, share))
        training_seeds = max(1, min(MOST_TRAINING_SEEDS, share // num_trainings))
        num_left -= num_trainings * training_seeds
    num_finalists = 2 if num_left < 50 else 3 if num_left < 160 else 4
    race = Race(LEAST_CANDIDATES, num_finalists)
    while (larger := Race(race.num_candidates + 1, num_finalists)).num_trials(training_seeds) <= int(
        SEARCH_SHARE * num_left
    ):
        race = larger
    num_left -= race.num_trials(training_seeds)
    num_arms = num_finalists + 3  # cross-entropy, under the plain training too, and a control
    return Plan(num_trainings, training_seeds, race, plan_finals(num_left, num_arms))


def plan_finals(num_left: int, num_arms: int) -> int:
    """Seeds of every arm in the finals.

    >>> plan_finals(48, 6), plan_finals(500, 5), plan_finals(9, 6)
    (8, 20, 2)
    """
    return max(LEAST_FINAL_SEEDS, min(MOST_FINAL_SEEDS, num_left // num_arms))


COMFORTABLE_TRIALS = 60  # if the time allows fewer, trials are made shorter
LEAST_EPOCHS = 6


def fit_epochs(request: Request) -> tuple[int, float | None]:
    """(epochs, seconds per trial); seconds are measured only if there is a time to keep.

    If the time is too short for trials of the usual length, they get fewer epochs; if it is too short for any, it is
    refused.
    """
    training, budget_s = request.plain, request.budget_s
    if budget_s is None:
        return training.epochs, None
    epoch_s = measure_epoch_s(request)
    time_s = budget_s - reserve_s(budget_s)
    epochs = training.epochs
    if request.epochs is None and time_s < COMFORTABLE_TRIALS * epochs * epoch_s:
        epochs = max(min(LEAST_EPOCHS, epochs), math.floor(time_s / (COMFORTABLE_TRIALS * epoch_s)))
    needed_s = LEAST_TRIALS * epochs * epoch_s
    if time_s < needed_s:
        smaller = "" if training.model in ("small", "features") else ", or a smaller model: --model small"
        count = "1 epoch" if epochs == 1 else f"{epochs} epochs"
        raise InputError(
            f"budget={budget_s:g} s is too short: a trial of {training.model!r} with {count} takes about "
            f"{epochs * epoch_s:.3g} s here, and a fit needs at least {LEAST_TRIALS} trials and {reserve_s(budget_s):g}"
            f" s for the model and the page; give {math.ceil((needed_s + reserve_s(needed_s)) / 60) + 1}m{smaller}",
            argument="budget",
        )
    return epochs, epochs * epoch_s


def measure_epoch_s(request: Request) -> float:
    """Seconds per epoch of one trial while all cores, or the GPU, train trials side by side."""
    data, training = request.data, request.plain
    num_rows = len(data.splits["train"])
    images = steps_per_epoch(training, num_rows) * batch_size(training, num_rows)
    rate = measure(training, data.input_shape, data.num_classes, request.device)
    if request.device.type == "cpu":
        rate *= num_cores()
    return images / rate
