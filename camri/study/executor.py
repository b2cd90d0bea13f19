"""Who trains: the seam between the runner, which alone writes the store, and one device or a cluster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from camri.data import DataSet
from camri.engine import Outcome, Pool, Progress, Stopped, Training, Trial, train
from camri.engine.training import pick_device
from camri.errors import InputError


@dataclass(frozen=True, eq=False)
class Work:
    """What the trials of one call share."""

    training: Training
    data: DataSet
    important: tuple[int, ...]  # classes whose scores outcomes keep
    keep_logits: bool
    keep_weights: bool
    checkpoints: Path | None  # folder; None: nothing is saved on the way


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

    `workers` (CPU processes), `pool` (which keeps them for the next call) and `pack_size` (models side by side on a
    GPU) change the speed only.
    """

    def __init__(
        self,
        device: str = "auto",
        workers: int | None = None,
        pack_size: int | None = None,
        checkpoint_every_s: float = 120.0,
        pool: Pool | None = None,
    ):
        self.device = pick_device(device)
        self.workers = workers
        self.pack_size = pack_size
        self.checkpoint_every_s = checkpoint_every_s
        self.pool = pool

    def train(self, trials: Sequence[Trial], work: Work, hooks: Hooks) -> bool:
        return train_work(
            trials,
            work,
            hooks,
            self.device,
            workers=self.workers,
            pool=self.pool,
            pack_size=self.pack_size,
            checkpoint_every_s=self.checkpoint_every_s,
        )


def train_work(trials: Sequence[Trial], work: Work, hooks: Hooks, device: str | torch.device, **how: Any) -> bool:
    """Whether all trials came to an end on this machine's device; `how` goes to the engine."""
    try:
        train(
            trials,
            work.data,
            device,
            training=work.training,
            important=work.important,
            keep_logits=work.keep_logits,
            keep_weights=work.keep_weights,
            checkpoints=work.checkpoints,
            on_outcome=hooks.on_outcome,
            on_progress=hooks.on_progress,
            should_stop=hooks.should_stop,
            **how,
        )
    except Stopped:
        return False
    return True


def find_executor(
    on: str = "local", device: str = "auto", workers: int | None = None, pack_size: int | None = None
) -> Executor:
    """The executor of that name: "local", "ray" (this machine's cluster, begun if there is none) or "ray://HOST:PORT".

    A cluster is connected to at once, so that one out of reach is refused before anything is written.
    """
    if on == "local":
        return LocalExecutor(device, workers, pack_size)
    if on == "ray" or on.startswith("ray://"):
        from camri.study.cluster import RayExecutor

        return RayExecutor(on, device, workers, pack_size)
    raise InputError(f"on={on!r} is unknown; choices: local, ray, ray://HOST:PORT")
