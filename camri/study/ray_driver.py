"""The driver's side of a cluster: hands packs to workers, stores what they send, and replaces those that die.

A study on a Ray cluster: a worker for each GPU, or each core, trains packs; the driver alone writes the store.
"""

import contextlib
import dataclasses
import logging
import os
import socket
import time
import uuid
import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from camri.engine import Progress, Trial
from camri.engine.cpu import ship
from camri.engine.outcome import Record
from camri.engine.replica import PACK_SIZE, Job
from camri.engine.training import stop_on_signals
from camri.errors import InputError
from camri.study.executor import Hooks, Work, combine, cut
from camri.study.ray_worker import Answer, Hello, Plan, Worker, code_digest

LOSSES = 3  # of a trial's workers, before the trial counts as failed
STILLBORN = 3  # workers in a row that died before their first word
WAIT_S = 0.2
TELL_EVERY_S = 0.1
STOP_PATIENCE_S = 30.0  # for checkpoints to be written
LOOK_EVERY_S = 10.0  # for nodes that joined
SILENCE_S = 60.0  # before the first word of the first worker, then a remark


@dataclass(eq=False)
class _Hand:
    """A worker as the driver sees it."""

    actor: Any
    hello: Hello | None = None
    busy: bool = False
    left: list[int] = field(default_factory=list)  # places of its pack's trials that have not ended
    stored: int = 0
    progress: Progress | None = None


class Crew:
    """One call's workers. `hire()` starts one, `slots()` is how many there may be now.

    Each worker has one call under way at any time: it returns news, or raises when the worker is dead.
    """

    def __init__(self, ray: Any, hire: Callable[[], Any], slots: Callable[[], int],
                 trials: Sequence[Trial], packs: Sequence[list[int]], work: Work, hooks: Hooks):  # fmt: skip
        self.ray, self.hire, self.slots = ray, hire, slots
        self.trials, self.hooks = trials, hooks
        self.job = Job(work.training, work.data, work.important)
        self.waiting = deque(packs)
        self.calls: dict[Any, _Hand] = {}
        self.place = {trial.key: place for place, trial in enumerate(trials)}
        self.losses: Counter[int] = Counter()  # of workers, by the place of the trial they had
        self.num_ended = self.num_stillborn = self.allowed = 0
        self.began = time.monotonic()
        self.looked = self.told = float("-inf")
        self.silent, self.stopping = True, False

    def run(self) -> bool:
        """Whether all trials came to an end; False if they were stopped in good order."""
        with stop_on_signals() as told:
            stop_by = float("inf")
            try:
                while self.num_ended < len(self.trials) or self._num_busy():
                    if not self.stopping and (told.is_set() or self.hooks.should_stop()):
                        self.stopping, stop_by = True, time.monotonic() + STOP_PATIENCE_S
                    if self.stopping and (not self._num_busy() or time.monotonic() > stop_by):
                        break
                    self._hire()
                    ready, _ = self.ray.wait(list(self.calls), timeout=WAIT_S) if self.calls else ([], [])
                    for call in ready:
                        self._hear(call)
                    self._tell()
            finally:
                for hand in self.calls.values():
                    self._dismiss(hand)
        return self.num_ended == len(self.trials)

    def _num_busy(self) -> int:
        return sum(hand.busy for hand in self.calls.values())

    def _hire(self) -> None:
        if time.monotonic() - self.looked > LOOK_EVERY_S:
            self.looked, self.allowed = time.monotonic(), self.slots()
        coming = len(self.calls) - self._num_busy()
        while len(self.calls) < self.allowed and coming < len(self.waiting) and not self.stopping:
            actor = self.hire()
            self.calls[actor.hello.remote()] = _Hand(actor)
            coming += 1

    def _hear(self, call: Any) -> None:
        hand = self.calls.pop(call)
        try:
            answer = self.ray.get(call)
        except self.ray.exceptions.RayError as error:
            self._lose(hand, _in_a_line(error))
            return
        if isinstance(answer, Hello):
            self._greet(hand, answer)
        elif not self._note(hand, answer):
            return
        begins = not hand.busy and bool(self.waiting) and not self.stopping
        if begins:
            hand.busy, hand.left, hand.progress = True, self.waiting.popleft(), None
        if not hand.busy:
            self._dismiss(hand)
            return
        pack = [self.trials[place] for place in hand.left] if begins else None
        self.calls[hand.actor.hear.remote(pack, hand.stored, self.stopping)] = hand

    def _greet(self, hand: _Hand, hello: Hello) -> None:
        self.silent, self.num_stillborn, hand.hello = False, 0, hello
        if hello.refusal is not None:
            raise InputError(f"node {hello.host} of the cluster cannot train: {hello.refusal}")
        for name, its, mine in (
            ("camri", hello.code, code_digest()),
            ("torch", hello.environment["torch"].split("+")[0], torch.__version__.split("+")[0]),
        ):
            if its != mine:
                raise InputError(
                    f"node {hello.host} of the cluster has another {name} than this machine ({its}, not {mine}); "
                    "install the same on every node"
                )

    def _note(self, hand: _Hand, answer: Answer) -> bool:
        """Whether the worker can go on; its news are stored."""
        for outcome in answer.outcomes:
            hand.left.remove(self.place[outcome.trial.key])
            self.hooks.on_outcome(outcome)
            self.num_ended += 1
            hand.stored += 1
        hand.progress, hand.busy = answer.progress, not answer.ended
        if answer.error is not None:
            self._lose(hand, answer.error)  # a GPU in disorder would fail every pack after this one
        return answer.error is None

    def _lose(self, hand: _Hand, reason: str) -> None:
        """Nothing; a lost worker's trials wait again, alone from the second time on: one of them may be the cause."""
        self._dismiss(hand)
        if hand.hello is None:
            self.num_stillborn += 1
            if self.num_stillborn >= STILLBORN:
                raise InputError(f"workers of the cluster cannot start; is camri installed on every node? {reason}")
        self.losses.update(hand.left)
        again = [place for place in hand.left if self.losses[place] < LOSSES]
        for place in hand.left:
            if self.losses[place] >= LOSSES:
                record = Record(self.trials[place], self.job, hand.hello.environment if hand.hello else {})
                self.hooks.on_outcome(record.failed(f"its worker was lost {LOSSES} times, at last by: {reason}"))
                self.num_ended += 1
        together = all(self.losses[place] == 1 for place in again)
        self.waiting.extendleft(([again] if again else []) if together else [[place] for place in again])

    def _dismiss(self, hand: _Hand) -> None:
        with contextlib.suppress(self.ray.exceptions.RayError, ConnectionError):
            self.ray.kill(hand.actor)

    def _tell(self) -> None:
        now = time.monotonic()
        if self.silent and now - self.began > SILENCE_S:
            self.silent = False
            warnings.warn(
                f"no worker of the cluster has begun for {SILENCE_S:.0f} s: it may be busy; see `ray status`",
                stacklevel=2,
            )
        if now - self.told > TELL_EVERY_S or self.num_ended == len(self.trials):
            self.told = now
            packs = [hand.progress for hand in self.calls.values() if hand.progress is not None]
            self.hooks.on_progress(combine(len(self.trials), self.num_ended, packs, now - self.began))


def _in_a_line(error: Exception) -> str:
    """The last sentence of Ray's many lines: what happened to the process."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


PROBE_S = 5.0
TRIES = 3  # a head's client server now and then dies as it starts (ray-project/ray#63202): 5 of 23 times here


class RayExecutor:
    """The GPUs of a Ray cluster, or its cores where it has no GPU.

    `address` is "ray" (a cluster that runs on this machine, or one begun for this process) or "ray://HOST:PORT".
    `workers` limits how many there are at a time; `pack_size` is the number of models side by side on a GPU.
    """

    def __init__(
        self,
        address: str = "ray",
        device: str = "auto",
        workers: int | None = None,
        pack_size: int | None = None,
        checkpoint_every_s: float = 120.0,
    ):
        self.ray = connect(address)
        self.device = self._pick_device(device)
        self.workers = workers
        self.pack_size = (pack_size or PACK_SIZE) if self.device == "cuda" else 1
        self.checkpoint_every_s = checkpoint_every_s
        if not self._num_slots():
            raise InputError("the cluster has no node to train on; see `ray status`")

    def train(self, trials: Sequence[Trial], work: Work, hooks: Hooks) -> bool:
        """Whether all trials came to an end; False if they were stopped in good order."""
        assert work.checkpoints is not None
        folder = work.checkpoints.resolve()
        plan = Plan(self.device, f"shared-{uuid.uuid4().hex}", self.checkpoint_every_s)
        bare = dataclasses.replace(work, data=None, checkpoints=folder)  # type: ignore[arg-type]
        manifest = self.ray.put(
            ship(work.data, lambda name, array: array)
        )  # a node fetches it once, for all its workers
        resources = {"num_cpus": 1, "num_gpus": int(self.device == "cuda")}
        actor = self.ray.remote(Worker).options(**resources, max_restarts=0)
        packs = cut(len(trials), self.pack_size, self._num_slots())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / plan.token).touch()
        try:
            crew = Crew(
                self.ray, lambda: actor.remote(plan, bare, manifest), self._num_slots, trials, packs, work, hooks
            )
            return crew.run()
        finally:
            (folder / plan.token).unlink(missing_ok=True)

    def _pick_device(self, device: str) -> str:
        has_gpus = self.ray.cluster_resources().get("GPU", 0) >= 1
        if device == "auto":
            return "cuda" if has_gpus else "cpu"
        if device not in ("cpu", "cuda"):
            raise InputError(f"device={device!r} is not for a cluster; choices: auto, cpu, cuda", argument="device")
        if device == "cuda" and not has_gpus:
            raise InputError(
                "device='cuda' was asked for, but the cluster has no GPU; choices: auto, cpu", argument="device"
            )
        return device

    def _num_slots(self) -> int:
        there = int(self.ray.cluster_resources().get("GPU" if self.device == "cuda" else "CPU", 0))
        return there if self.workers is None else min(there, self.workers)


def connect(address: str) -> Any:
    """The module `ray`, connected; a connection that this process has already is kept."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the coming default; without it Ray warns
    try:
        import ray
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"on={address!r} needs Ray ({error}); install it with: pip install 'camri[cluster]'", argument="on"
        ) from None
    if ray.is_initialized():
        return ray
    quiet: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": False}
    if address == "ray":
        try:
            ray.init(address="auto", **quiet)
        except ConnectionError:
            ray.init(address="local", include_dashboard=False, **quiet)
        return ray
    _refuse_unreachable(address)
    for tries_left in reversed(range(TRIES)):
        try:
            ray.init(address=address, **quiet)
            break
        except Exception as error:  # Ray has a dozen kinds: other versions, a port of something else, no grpcio, …
            if isinstance(error, ConnectionAbortedError) and tries_left:
                continue
            text = " ".join(str(error).split())
            raise InputError(
                f"on={address!r} cannot be used ({text[-300:]}); see docs/cluster.md", argument="on"
            ) from error
    return ray


def _refuse_unreachable(address: str) -> None:
    """Nothing, if something listens there: Ray itself would try for half a minute and say it in many lines."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise InputError(
            f"on={address!r} has no host or no port; give ray://HOST:PORT (Ray's own port is 10001)", argument="on"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"on={address!r} cannot be reached ({error}); is the cluster up (`ray start --head`) and the port open?",
            argument="on",
        ) from None
