"""The one entry: trials in, outcomes out, on whatever device there is."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from camri.data import DataSet
from camri.data.parallel import num_cores
from camri.engine import cpu
from camri.engine.outcome import Outcome, Progress, Tracker
from camri.engine.replica import PACK_SIZE, Job
from camri.engine.spec import FAST, Training, Trial
from camri.errors import InputError


class Stopped(Exception):
    """Training was stopped in good order; `outcomes` has the trials that had ended."""

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
    keep_logits: bool = False,
    keep_weights: bool = False,
    checkpoints: str | Path | None = None,
    checkpoint_every_s: float = 120.0,
    workers: int | None = None,
    pool: cpu.Pool | None = None,
    pack_size: int | None = None,
    deterministic: bool = False,
    on_outcome: Callable[[Outcome], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """The outcomes of the trials, in their order; a trial that fails leaves an outcome too.

    A trial depends on its setting, its seed, the training and the data, never on the trials beside it. `important`
    names the classes whose scores the outcomes keep. With a `checkpoints` folder, SIGINT, SIGTERM and `should_stop`
    leave every running trial where it can go on, and the next call goes on there; :class:`Stopped` is raised then.
    `workers` (CPU processes), `pool` (which keeps them for the next call) and `pack_size` (models side by side on a
    GPU) change the speed only.

    >>> from camri.data import load
    >>> from camri.methods import setting
    >>> training = Training(model="small", epochs=1)
    >>> (outcome,) = train([Trial(setting("ce"), seed=0)], load("digits"), "cpu", training=training)
    >>> outcome.status, int(outcome.confusion["test"].sum())
    ('done', 539)
    """
    chosen = pick_device(device)
    folder = None if checkpoints is None else Path(checkpoints)
    job = Job(training, data, tuple(important), keep_logits, keep_weights, folder, checkpoint_every_s)
    job.check(trials)
    side_by_side = (pack_size or PACK_SIZE) if chosen.type == "cuda" else (workers or num_cores())
    tracker = Tracker(job, len(trials), side_by_side, on_progress)
    outcomes: dict[int, Outcome] = {}

    def ended(place: int, outcome: Outcome) -> None:
        outcomes[place] = outcome
        tracker.end(place, outcome)
        if on_outcome is not None:
            on_outcome(outcome)
        if (path := job.checkpoint_of(outcome.trial)) is not None:
            # Not before: a process killed while the outcome is handed over must not lose both.
            path.unlink(missing_ok=True)

    with stop_on_signals() as told:

        def stopping() -> bool:
            return told.is_set() or should_stop()

        if chosen.type == "cuda":
            from camri.engine import cuda  # triton is there on GPU machines only

            cuda.run(trials, job, chosen, pack_size, deterministic, stopping, tracker.epochs, ended)
        else:
            cpu.run(trials, job, side_by_side, stopping, tracker.epochs, ended, pool)
    in_order = [outcomes[place] for place in sorted(outcomes)]
    if len(in_order) < len(trials):
        raise Stopped(in_order)
    return in_order


def pick_device(device: str | torch.device) -> torch.device:
    """The device asked for; "auto" is the first GPU, or else the CPU."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(
            f"device={device!r} is not known; choices: auto, cpu, cuda, cuda:1, …", argument="device"
        ) from error
    if chosen.type not in ("cpu", "cuda"):
        raise InputError(f"device={device!r} cannot train here; choices: auto, cpu, cuda", argument="device")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"device={device!r} was asked for, but torch sees no GPU; choices: auto, cpu", argument="device"
        )
    return chosen


_LISTENING: list[threading.Event] = []  # of every call of stop_on_signals that is open, the outermost first


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second SIGINT interrupts at once.

    Calls may be nested: a signal is heard by all of them, so that one that comes as the inner call ends is not lost.
    """
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield told  # only the main thread may handle signals
        return

    def hear(number: int, frame: object) -> None:
        if told.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        for event in _LISTENING:
            event.set()

    _LISTENING.append(told)  # before the handlers: a signal that came between would be lost
    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield told
    finally:
        _LISTENING.remove(told)
        for number, handler in before.items():
            signal.signal(number, handler)
