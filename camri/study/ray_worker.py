"""A worker of a Ray cluster: it trains packs in a thread and answers the driver's calls. It does not import Ray."""

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
from camri.engine import Hooks, Job, Outcome, Progress, Trial, train_job
from camri.engine.cpu import unship
from camri.engine.spec import describe_environment
from camri.engine.training import pick_device
from camri.errors import InputError

ANSWER_WITHIN_S = 0.5  # so a stop arrives within this time


@dataclass(frozen=True)
class Hello:
    """A worker's first answer: its machine, process, code and environment."""

    host: str
    pid: int
    code: str
    environment: dict[str, Any]
    refusal: str | None = None  # why it cannot train


@dataclass(frozen=True, eq=False)
class Answer:
    """A worker's news since the last call."""

    outcomes: tuple[Outcome, ...] = ()
    progress: Progress | None = None  # of the pack
    ended: bool = False  # the pack is trained, stopped or failed
    error: str | None = None


# Packages above the engine: a node may have another version of them.
APART = ("study", "report", "export", "fitting", "cli", "__main__")


@functools.cache
def code_digest() -> str:
    """Hash of the code that trains, 12 hexadecimal digits. Nodes with another hash might train different models."""
    root = Path(camri.__file__).parent
    names = [path.relative_to(root) for path in root.rglob("*.py")]
    trains = [name for name in names if name.with_suffix("").parts[0] not in APART]
    digest = hashlib.sha256()
    for name in sorted([*trains, Path("study/ray_worker.py")]):
        digest.update(name.as_posix().encode() + b"\0" + (root / name).read_bytes())
    return digest.hexdigest()[:12]


class Worker:
    """An actor: one process with one GPU or core that trains one pack after the other.

    A new process for each pack would compile the model again: on a GPU 15 s instead of 2 s before the first step.
    `token` is a file that the driver wrote to the checkpoint folder; a worker that sees it shares that folder.
    """

    def __init__(self, job: Job, manifest: dict[str, Any], token: str):
        shared = job.checkpoints is not None and (Path(job.checkpoints) / token).exists()
        checkpoints = job.checkpoints if shared else None
        self.job = dataclasses.replace(job, data=unship(manifest, lambda array: array), checkpoints=checkpoints)
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
            return Hello(*who, describe_environment(pick_device(self.job.device)))
        except InputError as error:
            return Hello(*who, {}, str(error))

    def hear(self, pack: Sequence[Trial] | None, stored: int, stop: bool) -> Answer:
        """Start training the `pack`, if one is given, and return the news within half a second.

        `stored` is the number of this worker's outcomes that the driver has stored; `stop` ends the pack.
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
        error = None
        try:
            job = dataclasses.replace(self.job, workers=1, pack_size=len(pack))
            train_job(pack, job, Hooks(self._hand_over, self._note, self.stop.is_set))
        except Exception:
            error = traceback.format_exc(limit=-4).strip()
        with self.changed:
            self.ended, self.error = True, error
            self.changed.notify_all()

    def _hand_over(self, outcome: Outcome) -> None:
        """Wait until the driver has stored the outcome. After that the engine removes the trial's checkpoint."""
        with self.changed:
            self.outbox.append(outcome)
            self.sent += 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.stored >= self.sent)

    def _note(self, progress: Progress) -> None:
        self.progress = progress
