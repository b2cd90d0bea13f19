"""The finals: cross-entropy, the finalists and their controls with new seeds; and the weights of what they trained."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from camri.engine import Outcome, Training, Trial, train
from camri.engine.spec import identity
from camri.files import replacing
from camri.fitting.request import Request
from camri.fitting.workshop import Point
from camri.study.executor import Executor, Hooks, Work

FOLDER = "weights"
COSINE = ("camri", "cosface")  # methods whose last knob is a scale: L2-softmax at that scale is their control


def controls_of(finalists: Sequence[Point]) -> list[Point]:
    """L2-softmax at every scale that a finalist with a margin has.

    >>> controls_of([("camri", (0.2, 8.0)), ("wce", (4.0,)), ("cosface", (0.1, 8.0))])
    [('l2softmax', (8.0,))]
    """
    found = dict.fromkeys(("l2softmax", (values[-1],)) for method, values in finalists if method in COSINE)
    return [point for point in found if point not in finalists]


class Keeping:
    """An executor that leaves every trained model's weights in a file, and not in the store.

    The file is there before the outcome is stored: a process that is killed in between trains that trial again.
    """

    def __init__(self, inner: Executor, folder: Path):
        self.inner, self.folder = inner, folder

    def train(self, trials: Sequence[Trial], work: Work, hooks: Hooks) -> bool:
        """Whether all trials came to an end."""

        def keep(outcome: Outcome) -> None:
            if outcome.weights is not None:
                path = file_of(self.folder, outcome.trial, outcome.training, outcome.fingerprint)
                write(path, outcome.weights)
            hooks.on_outcome(replace(outcome, weights=None))

        return self.inner.train(trials, replace(work, keep_weights=True), replace(hooks, on_outcome=keep))


class Until:
    """An executor that stops in good order when time is up, but not before there is enough."""

    def __init__(self, inner: Executor, is_time_up: Callable[[], bool], is_enough: Callable[[], bool]):
        self.inner, self.is_time_up, self.is_enough = inner, is_time_up, is_enough

    def train(self, trials: Sequence[Trial], work: Work, hooks: Hooks) -> bool:
        """Whether all trials came to an end."""
        enough: list[bool] = []  # asked once after each outcome: it reads the store

        def heard(outcome: Outcome) -> None:
            hooks.on_outcome(outcome)
            enough.clear()

        def should_stop() -> bool:
            if hooks.should_stop():
                return True
            if not self.is_time_up():
                return False
            if not enough:
                enough.append(self.is_enough())
            return enough[0]

        return self.inner.train(trials, work, replace(hooks, on_outcome=heard, should_stop=should_stop))


def file_of(folder: Path, trial: Trial, training: Training, fingerprint: str) -> Path:
    return folder / f"{identity(trial, training, fingerprint)}.safetensors"


def write(path: Path, weights: dict[str, np.ndarray]) -> None:
    """Nothing; the weights are in the file, whole or not at all."""
    with replacing(path, "; choose another folder") as part:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(save({name: np.ascontiguousarray(array) for name, array in weights.items()}))


def outcome_with_weights(request: Request, folder: Path, trial: Trial, training: Training) -> Outcome:
    """The trial's outcome with its weights: from its file, or trained again where the file is gone."""
    data = request.data
    path = file_of(folder, trial, training, data.fingerprint)
    try:
        return Outcome(trial, training, data.fingerprint, "done", weights=load_file(path))
    except (OSError, SafetensorError):
        (outcome,) = train([trial], data, request.device, training=training, keep_weights=True, workers=1)
        return outcome
