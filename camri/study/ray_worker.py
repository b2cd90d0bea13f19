"""A worker of the cluster: it trains packs in a thread of its own and answers the driver's calls. No ray in here."""

import dataclasses
import functools
import hashlib
import os
import socket
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import camri
from camri.engine import Outcome, Progress, Trial, environment
from camri.engine.cpu import unship
from camri.engine.training import pick_device
from camri.errors import InputError
from camri.study.executor import Hooks, Work, train_work

ANSWER_WITHIN_S = 0.5  # so a stop is heard of by then


@dataclass(frozen=True)
class Plan:
    """How all packs of one call are trained, beside their work."""

    device: str  # "cpu" or "cuda"
    token: str  # name of a file the driver left among the checkpoints: who sees it shares the folder
    checkpoint_every_s: float


@dataclass(frozen=True)
class Hello:
    """A worker's first words: where it runs, and what with."""

    host: str
    pid: int
    code: str
    environment: dict[str, Any]
    refusal: str | None = None  # why it cannot train


@dataclass(frozen=True, eq=False)
class Answer:
    """What happened since the last call."""

    outcomes: tuple[Outcome, ...] = ()
    progress: Progress | None = None  # of the pack
    ended: bool = False  # the pack is over: all trained, stopped, or gone wrong
    error: str | None = None


# Above the training in the order of imports: a node may have another version of these.
APART = ("study", "report", "export", "auditing", "fitting", "estimators", "cli", "__main__")


@functools.cache
def code_digest() -> str:
    """Twelve hexadecimal digits of the source that trains: a node with another one would train other models."""
    root = Path(camri.__file__).parent
    names = [path.relative_to(root) for path in root.rglob("*.py")]
    wanted = [name for name in names if name.with_suffix("").parts[0] not in APART]
    digest = hashlib.sha256()
    for name in sorted([*wanted, Path("study/ray_worker.py"), Path("study/executor.py")]):
        digest.update(name.as_posix().encode() + b"\0" + (root / name).read_bytes())
    return digest.hexdigest()[:12]


class Worker:
    """An actor: one process, one GPU or one core, for as many packs as the driver hands it.

    A process a pack would compile the model anew each time on a GPU: 15 s instead of 2 s before the first step.
    """

    def __init__(self, plan: Plan, work: Work, manifest: dict[str, Any]):
        shared = work.checkpoints is not None and (work.checkpoints / plan.token).exists()
        self.plan = plan
        self.work = dataclasses.replace(
            work, data=unship(manifest, lambda array: array), checkpoints=work.checkpoints if shared else None
        )
        self.changed = threading.Condition()
        self.stop = threading.Event()
        self.outbox: list[Outcome] = []
        self.sent = self.stored = 0
        self.progress: Progress | None = None
        self.ended = False
        self.error: str | None = None

    def hello(self) -> Hello:
        who = (socket.gethostname(), os.getpid(), code_digest())
        try:
            return Hello(*who, environment.describe_environment(pick_device(self.plan.device)))
        except InputError as error:
            return Hello(*who, {}, str(error))

    def hear(self, pack: Sequence[Trial] | None, stored: int, stop: bool) -> Answer:
        """News of the pack, when there is some and at the latest after half a second.

        A `pack` is begun; `stored` is how many of this worker's outcomes are on the driver's disk; `stop` ends the
        pack in good order.
        """
        if stop:
            self.stop.set()
        if pack is not None:
            self.progress = None
            threading.Thread(target=self._train, args=(list(pack),), daemon=True).start()
        with self.changed:
            self.stored = stored
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.outbox or self.ended, ANSWER_WITHIN_S)
            answer = Answer(tuple(self.outbox), self.progress, self.ended, self.error)
            self.outbox, self.ended, self.error = [], False, None
        return answer

    def _train(self, pack: list[Trial]) -> None:
        plan, error = self.plan, None
        hooks = Hooks(self._hand_over, self._note, self.stop.is_set)
        try:
            train_work(
                pack,
                self.work,
                hooks,
                plan.device,
                workers=1,
                pack_size=len(pack),
                checkpoint_every_s=plan.checkpoint_every_s,
            )
        except Exception:
            error = traceback.format_exc(limit=-4).strip()
        with self.changed:
            self.ended, self.error = True, error
            self.changed.notify_all()

    def _hand_over(self, outcome: Outcome) -> None:
        """Nothing, once the driver has stored the outcome: the trial's checkpoint is removed after this."""
        with self.changed:
            self.outbox.append(outcome)
            self.sent += 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.stored >= self.sent)

    def _note(self, progress: Progress) -> None:
        self.progress = progress
