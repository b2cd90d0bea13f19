"""Who trains: the seam between the runner, which alone writes the store, and one device or a cluster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from camri.data import DataSet
from camri.engine import Outcome, Progress, Stopped, Training, Trial, train
from camri.engine.training import pick_device


@dataclass(frozen=True, eq=False)
class Work:
    """What the trials of one call share."""

    training: Training
    data: DataSet
    important: tuple[int, ...]  # classes whose scores outcomes keep
    keep_logits: bool
    keep_weights: bool
    checkpoints: Path


@dataclass(frozen=True)
class Hooks:
    """What an executor calls, always from the process that holds the store."""

    on_outcome: Callable[[Outcome], None]  # as each trial ends
    on_progress: Callable[[Progress], None]
    should_stop: Callable[[], bool]


class Executor(Protocol):
    def train(self, trials: Sequence[Trial], work: Work, hooks: Hooks) -> bool:
        """Whether all trials came to an end; False if they were stopped in good order."""


class LocalExecutor:
    """This machine's first GPU, or its CPU cores.

    `workers` (CPU processes) and `pack_size` (models side by side on a GPU) change the speed only.
    """

    def __init__(
        self,
        device: str = "auto",
        workers: int | None = None,
        pack_size: int | None = None,
        checkpoint_every_s: float = 120.0,
    ):
        self.device = pick_device(device)
        self.workers = workers
        self.pack_size = pack_size
        self.checkpoint_every_s = checkpoint_every_s

    def train(self, trials: Sequence[Trial], work: Work, hooks: Hooks) -> bool:
        try:
            train(
                trials,
                work.data,
                self.device,
                training=work.training,
                important=work.important,
                keep_logits=work.keep_logits,
                keep_weights=work.keep_weights,
                checkpoints=work.checkpoints,
                checkpoint_every_s=self.checkpoint_every_s,
                workers=self.workers,
                pack_size=self.pack_size,
                on_outcome=hooks.on_outcome,
                on_progress=hooks.on_progress,
                should_stop=hooks.should_stop,
            )
        except Stopped:
            return False
        return True
