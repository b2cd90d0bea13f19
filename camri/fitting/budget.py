"""What a fit can afford: trials, counted or by the clock."""

import math
import time
from collections.abc import Callable

from camri.data.parallel import num_cores
from camri.engine import Training
from camri.engine.schedule import batch_size, steps_per_epoch
from camri.errors import InputError
from camri.fitting.pace import Pace
from camri.fitting.request import LEAST_TRIALS, Request
from camri.study.cost import measure

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
