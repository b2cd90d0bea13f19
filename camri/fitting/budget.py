"""A fit's budget: its time, the pace of its trials, and the plan that fits in.

Nothing is refused for time. The plan shrinks in this order: fewer rivals, fewer seeds, a smaller model, fewer rows. The
least is one trained cross-entropy with a tuned decision.
"""

import math
import time
from dataclasses import dataclass, field, replace

import numpy as np

from camri.engine import Pool, Training, Trial, train
from camri.engine.spec import batch_size, steps_per_epoch
from camri.fitting.request import LEAST_ROWS, Request, fewer_rows
from camri.methods import setting
from camri.study.runner import measure
from camri.text import Noun, duration

RESERVE = (0.03, 4.0, 30.0)  # for the model's files and the page: part of the time, least and most seconds
START_S = 3.5  # of a core, until a worker process trains: its imports
HAND_OVER_S = 3.0  # of a free core for them
LATE = (0.1, 8.0)  # where the machine is slow, these may end later: by this part of the time and so many seconds
MOST_RESERVE = 0.4  # of the time, however slow the machine is
BASELINE_SHARE = 0.5  # of the counted trials, for the length of training
FIRST_SHARE = 0.4  # of the time, in which the first length should end
PROBE_SHARE = 0.05
THREE_LENGTHS = 7.4  # times the first: it, twice and four times as many epochs, with a little to spare
SHORT_EPOCHS, SHORT_STEPS = 5, 300  # of the first length: whatever the time, longer ones may be worse
LEAST_EPOCHS = 3
LEAST_GROWTH = 1.4  # from one length to the next, where the time does not allow twice as many epochs
SPARE = 0.9  # of the time left, in which a last length should end
MEMORY = 8  # trials that set the pace


@dataclass(eq=False)
class Budget:
    """What a fit may still spend: a number of trials, or the trials that its time allows at their recent pace.

    Times are seconds since the fit began, earlier calls on its folder included: this call at `began`, a
    `time.monotonic()`, after `spent_s`. epoch_s: of one trial, on one core or as its share of a GPU. num_parallel:
    trials side by side on cores. num_ended: trials so far. slowness: how many times longer work takes than on a core
    of its own. scoring: the part of an epoch that it takes to score the model handed over.
    """

    budget_s: float | None
    num_trials: int | None
    began: float
    spent_s: float = 0.0
    epoch_s: float | None = None
    num_parallel: int = 1
    num_ended: int = 0
    slowness: float = 1.0
    scoring: float = 0.0
    paces: list[float] = field(default_factory=list)  # seconds an epoch of the latest trials

    @property
    def is_late(self) -> bool:
        """Whether what can be made later, such as the page, should be."""
        return self.budget_s is not None and self.passed_s() > (1 + LATE[0] / 2) * self.budget_s + LATE[1] / 2

    def has_time_for(self, core_s: float, part: float) -> bool:
        """Whether work of so many seconds on a free core takes no more than a part of the time that is left."""
        return core_s * self.slowness <= part * (self.end_s() - self.passed_s())

    @property
    def is_timed(self) -> bool:
        return self.num_trials is None

    def passed_s(self) -> float:
        return self.spent_s + time.monotonic() - self.began

    def end_s(self, part: float = 1.0) -> float:
        """When this part of the time for training is over; infinite if trials are counted."""
        if self.budget_s is None:
            return math.inf
        needed_s = HAND_OVER_S * self.slowness + self.scoring * (self.epoch_s or 0.0)
        needed_s = min(needed_s - LATE[0] * self.budget_s - LATE[1], MOST_RESERVE * self.budget_s)
        return part * (self.budget_s - max(reserve_s(self.budget_s), needed_s))

    def record_end(self, trial_s: float, epochs: int) -> None:
        """Count a trial that has ended, and follow the pace."""
        self.num_ended += 1
        self.paces = [*self.paces, trial_s / max(epochs, 1)][-MEMORY:]
        self.epoch_s = sorted(self.paces)[(len(self.paces) - 1) // 2]

    def rounds_s(self, epochs: int, num_trials: int) -> float:
        """Seconds that so many trials take."""
        return math.ceil(num_trials / self.num_parallel) * epochs * (self.epoch_s or 0.0)

    def fits(self, epochs: int, num_trials: int, part: float = 1.0) -> bool:
        """Whether so many trials end within this part of the budget."""
        if self.num_trials is not None:
            return self.num_ended + num_trials <= part * self.num_trials
        return self.passed_s() + self.rounds_s(epochs, num_trials) <= self.end_s(part)

    def longer(self, epochs: int, num_trials: int) -> int | None:
        """The baseline's next length, of so many trials: twice as many epochs, or not much less if that is too long.

        All of the time may go here, or half of the counted trials: while accuracy rises, rivals and seeds can wait.
        """
        if self.fits(2 * epochs, num_trials, 1.0 if self.is_timed else BASELINE_SHARE):
            return 2 * epochs
        left_s = self.end_s() - self.passed_s() if self.is_timed else 0.0
        most = int(SPARE * left_s / max(self.rounds_s(1, num_trials), 1e-9))
        return most if most >= LEAST_GROWTH * epochs else None

    def trials_left(self, epochs: int) -> int:
        """Trials of this length that can still be trained."""
        if self.num_trials is not None:
            return max(0, self.num_trials - self.num_ended)
        left_s = max(0.0, self.end_s() - self.passed_s())
        return int(left_s / max(epochs * (self.epoch_s or 0.0), 1e-9)) * self.num_parallel

    def left_s(self) -> float | None:
        """Seconds until the time is up; None if trials are counted."""
        return None if self.budget_s is None else max(0.0, self.budget_s - self.passed_s())

    def part_done(self) -> float:
        """How much of the budget is spent, 0 to 1."""
        if self.num_trials is not None:
            return min(1.0, self.num_ended / self.num_trials)
        assert self.budget_s is not None
        return min(1.0, self.passed_s() / self.budget_s)


def measure_slowness(core_s: float = 0.05) -> float:
    """How many times longer work takes here than on a core of its own, by so many seconds of it."""
    began, began_core_s = time.monotonic(), time.process_time()
    while time.process_time() - began_core_s < core_s:
        sum(range(10_000))
    return max(1.0, (time.monotonic() - began) / (time.process_time() - began_core_s))


def reserve_s(budget_s: float) -> float:
    """Seconds kept for the model's files and the page.

    >>> reserve_s(600.0), reserve_s(60.0), reserve_s(3600.0)
    (18.0, 4.0, 30.0)
    """
    part, least, most = RESERVE
    return min(most, max(least, part * budget_s), MOST_RESERVE * budget_s)


@dataclass(frozen=True)
class Plan:
    """The model, the train rows and the first length of training; what was given up for lack of time.

    epoch_s: seconds of one epoch, None if trials are counted.
    """

    model: str
    num_rows: int
    epochs: int
    epoch_s: float | None = None
    given_up: tuple[str, ...] = ()


def make_plan(request: Request, pool: Pool, num_parallel: int = 1) -> Plan:
    """The largest plan that trains cross-entropy in a part of the time."""
    data, training, budget_s = request.data, request.plain, request.budget_s
    num_rows, model = len(data.splits["train"]), training.model

    def first_length(num_rows: int) -> int:
        short = max(SHORT_EPOCHS, math.ceil(SHORT_STEPS / steps_per_epoch(training, num_rows)))
        return training.epochs if request.epochs is not None else min(training.epochs, short)

    if budget_s is None:
        return Plan(model, num_rows, first_length(num_rows))
    time_s, given_up = budget_s - reserve_s(budget_s), []
    epoch_s = probe(request, training, PROBE_SHARE * budget_s, pool, num_parallel)
    most_s = FIRST_SHARE * time_s
    if LEAST_EPOCHS * epoch_s > most_s and data.is_image and model != "small":
        small = replace(request, plain=Training(model="small", epochs=training.epochs))
        small_s = probe(small, small.plain, PROBE_SHARE * budget_s, pool, num_parallel)
        if small_s < epoch_s:
            given_up.append(f"the model {model}, which takes {duration(epoch_s)} an epoch: small was trained instead")
            model, epoch_s = "small", small_s
    if LEAST_EPOCHS * epoch_s > most_s:
        kept = min(num_rows, max(LEAST_ROWS, int(num_rows * most_s / (LEAST_EPOCHS * epoch_s))))
        if kept < num_rows:
            given_up.append(f"{num_rows - kept:,} of {num_rows:,} train {data.noun.many}")
            epoch_s, num_rows = epoch_s * kept / num_rows, kept
    epochs = first_length(num_rows)
    if request.epochs is None:
        epochs = min(epochs, max(LEAST_EPOCHS, int(time_s / (THREE_LENGTHS * epoch_s))))
    if epochs * epoch_s > most_s:
        fewer = max(1, int(most_s / epoch_s))
        if request.epochs is not None and fewer < epochs:
            given_up.append(f"{epochs - fewer} of {epochs} epochs")
        epochs = min(epochs, fewer)
    return Plan(model, num_rows, epochs, epoch_s, tuple(given_up))


def smaller(plan: Plan, noun: Noun, part: float, left: float) -> Plan:
    """The plan for a machine on which this one is too slow: fewer epochs, then fewer rows.

    part: how much of its first length was trained when time was up. left: the time for the next try, as a part of the
    time that was spent.
    """
    epochs = int(plan.epochs * part * left)
    if epochs:
        return replace(plan, epochs=epochs)
    share = (plan.epochs * part or 0.25) * left
    kept = min(plan.num_rows, max(LEAST_ROWS, int(share * plan.num_rows)))
    given_up = (*plan.given_up, f"{plan.num_rows - kept:,} of {plan.num_rows:,} train {noun.many}")
    return replace(plan, epochs=1, num_rows=kept, given_up=given_up if kept < plan.num_rows else plan.given_up)


def apply_plan(request: Request, plan: Plan) -> Request:
    """The request with the plan's model, rows and epochs."""
    training = request.plain
    if plan.model != training.model:
        training = Training(model=plan.model)
    fewer = fewer_rows(request.data, plan.num_rows / len(request.data.splits["train"]), ["train"])
    inputs = replace(request.inputs, data=fewer)
    return replace(request, plain=training.with_(epochs=plan.epochs), inputs=inputs)


def probe(request: Request, training: Training, most_s: float, pool: Pool, num_parallel: int) -> float:
    """Seconds of one epoch of one trial, beside others on all cores or as its share of a GPU; takes about `most_s`."""
    data = request.data
    num_rows = len(data.splits["train"])
    if request.device.type == "cuda":
        images = steps_per_epoch(training, num_rows) * batch_size(training, num_rows)
        return images / measure(training, data.input_shape, data.num_classes, request.device)
    few = {name: split.rows(np.arange(2)) for name, split in data.splits.items()}
    trials = [Trial(setting("ce"), seed) for seed in range(num_parallel)]

    def seconds(num: int, epochs: int = 1) -> float:
        rows = data.splits["train"].rows(np.arange(num))
        part = replace(data, splits={**few, "train": rows}, fingerprint="probe")
        outcomes = train(trials, part, "cpu", training=training.with_(epochs=epochs), pool=pool, workers=num_parallel)
        return float(np.mean([one.wall_s for one in outcomes]))

    num = min(8, num_rows)
    seconds(num)  # waits for the workers' imports
    began, latest_s = time.monotonic(), seconds(num)
    while num < num_rows and latest_s < 1.0 and time.monotonic() - began + 4 * latest_s <= most_s:
        num = min(num_rows, 4 * num)
        latest_s = seconds(num)
    if time.monotonic() - began + 5 * latest_s <= most_s:  # building the model is not part of an epoch
        latest_s = max((seconds(num, 5) - latest_s) / 4, latest_s / 100)
    return latest_s / num * num_rows
