"""Train trials on a CPU or GPU: `train` returns the outcomes, `train_job` reports them through hooks."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from camri.data import DataSet
from camri.data.parallel import num_cores
from camri.engine import cpu
from camri.engine.outcome import Hooks, Outcome, Progress, Tracker
from camri.engine.replica import PACK_SIZE, Job
from camri.engine.spec import FAST, Training, Trial
from camri.errors import InputError


class Stopped(Exception):
    """Raised when training was stopped early; `outcomes` has the trials that had ended."""

    def __init__(self, outcomes: list[Outcome]):
        super().__init__(f"stopped after {len(outcomes)} trials")
        self.outcomes = outcomes


def train(
    trials: Sequence[Trial],
    data: DataSet,
    device: str | torch.device = "auto",
    *,
    training: Training = FAST,
    important: Sequence[int] = (),
    on_outcome: Callable[[Outcome], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    pool: cpu.Pool | None = None,
    **options: Any,
) -> list[Outcome]:
    """Train the trials and return their outcomes in order; a trial that fails has an outcome too.

    `important` are the classes whose scores the outcomes keep; `options` are other fields of :class:`Job`, such as
    `keep_weights` or `workers`. A `pool` keeps its worker processes for the next call. SIGINT, SIGTERM and
    `should_stop` raise :class:`Stopped`; with a `checkpoints` folder the next call resumes the trials.

    >>> from camri.data import load
    >>> from camri.methods import setting
    >>> training = Training(model="small", epochs=1)
    >>> (outcome,) = train([Trial(setting("ce"), seed=0)], load("digits"), "cpu", training=training)
    >>> outcome.status, int(outcome.confusion["test"].sum())
    ('done', 539)
    """
    outcomes: dict[Trial, Outcome] = {}

    def keep(outcome: Outcome) -> None:
        outcomes[outcome.trial] = outcome
        if on_outcome is not None:
            on_outcome(outcome)

    job = Job(training, data, tuple(important), device=device, **options)
    hooks = Hooks(keep, on_progress or (lambda progress: None), should_stop)
    if not train_job(trials, job, hooks, pool):
        raise Stopped([outcomes[trial] for trial in trials if trial in outcomes])
    return [outcomes[trial] for trial in trials]


def train_job(trials: Sequence[Trial], job: Job, hooks: Hooks, pool: cpu.Pool | None = None) -> bool:
    """Train the trials; return whether all ended. False: stopped, with checkpoints if the job has a folder.

    A trial depends on its setting, its seed, the training and the data, never on the other trials.
    """
    device = pick_device(job.device)
    job.check(trials)
    side_by_side = (job.pack_size or PACK_SIZE) if device.type == "cuda" else (job.workers or num_cores())
    with stop_on_signals() as stopped:
        tracker = Tracker(job, len(trials), hooks, side_by_side, stopped.is_set)
        if device.type == "cuda":
            from camri.engine import cuda  # needs triton, which only GPU machines have

            cuda.run(trials, job, device, tracker)
        else:
            cpu.run(trials, job, min(side_by_side, len(trials)), tracker, pool)
    return tracker.all_ended


def pick_device(device: str | torch.device) -> torch.device:
    """Return the torch device of that name; "auto" is the first GPU, or else the CPU."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise InputError(f"device={device!r} is not known; choices: auto, cpu, cuda, cuda:1, …", "device") from None
    if chosen.type not in ("cpu", "cuda"):
        raise InputError(f"device={device!r} cannot train here; choices: auto, cpu, cuda", argument="device")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device={device!r}: torch sees no GPU; choices: auto, cpu", argument="device")
    return chosen


_LISTENING: list[threading.Event] = []  # of all open calls of stop_on_signals, the outermost first


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set; a second SIGINT raises KeyboardInterrupt.

    Calls may be nested: a signal sets the events of all of them, so none is lost when an inner call ends.
    """
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped  # only the main thread may handle signals
        return

    def stop(number: int, frame: object) -> None:
        if stopped.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        for event in _LISTENING:
            event.set()

    _LISTENING.append(stopped)  # before the handlers, or a signal in between would be lost
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        _LISTENING.remove(stopped)
        for number, handler in before.items():
            signal.signal(number, handler)
