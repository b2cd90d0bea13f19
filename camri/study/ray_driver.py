"""Train a study on a Ray cluster: a worker per GPU or core trains packs of trials; only the driver writes the store."""

import atexit
import contextlib
import functools
import itertools
import logging
import os
import signal
import socket
import sys
import threading
import time
import uuid
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import camri
from camri.engine import Hooks, Job, Progress, Trial
from camri.engine.cpu import ship
from camri.engine.outcome import Record
from camri.engine.replica import PACK_SIZE
from camri.engine.training import stop_on_signals
from camri.errors import ENDED_BY, NODE_DIED, InputError
from camri.study.ray_worker import Answer, Hello, Worker, code_digest

LOSSES = 3  # a trial fails after it has lost this many workers
STILLBORN = 3  # give up after this many workers in a row died before their first answer
WAIT_S = 0.2  # for answers of workers
REPORT_EVERY_S = 0.1
STOP_PATIENCE_S = 30.0  # for the workers to write checkpoints when the time is up
SIGNAL_PATIENCE_S = 2.5  # the same after a signal: SIGKILL may follow soon, and earlier checkpoints remain
LOOK_EVERY_S = 10.0  # for new nodes
NODE_EVERY_S = 1.0  # whether this machine's node lives; Ray ends the process 14 s after it died, with exit code 1
SILENCE_S = 60.0  # warn if no worker has answered by then
PROBE_S = 5.0  # for a port to answer
CONNECT_S = 15.0  # for a head whose port answers
LEAVE_S = 1.0  # for the head to answer a client that disconnects; a busy head takes seconds
HEAD_PATIENCE_S = 20.0  # without an answer of the head during a run; Ray ends the process after 60
TRIES = 3  # a head's client server sometimes dies as it starts (ray-project/ray#63202): 5 of 23 times here


def cut(num_trials: int, size: int, slots: int) -> list[list[int]]:
    """Distribute trials over packs of at most `size`, so that in every round each slot has a pack of similar size.

    >>> [len(pack) for pack in cut(20, size=8, slots=2)]
    [5, 5, 5, 5]
    >>> cut(3, size=8, slots=4)
    [[0], [1], [2]]
    """
    rounds = -(-num_trials // (size * slots))
    count = min(num_trials, rounds * slots)
    bounds = [num_trials * at // count for at in range(count + 1)] if count else [0]
    return [list(range(low, high)) for low, high in itertools.pairwise(bounds)]


def combine(total: int, done: int, failed: int, packs: Sequence[Progress], passed_s: float) -> Progress:
    """The progress of all trials, from the numbers of ended trials and the progress of the running packs.

    >>> half = Progress(done=1, running=1, total=2, part=0.75, images_per_s=10.0, trial_s=2.0, accuracy=0.5)
    >>> whole = combine(4, done=1, failed=0, packs=[half], passed_s=30.0)
    >>> whole.running, whole.part, whole.left_s, whole.accuracy
    (1, 0.375, 5.0, 0.5)

    A pack without a speed yet is assumed to be as fast as the others; if none has one, the mean time per trial counts.

    >>> begun = Progress(done=0, running=2, total=2, part=0.0, images_per_s=0.0, trial_s=float("inf"))
    >>> combine(5, 1, 0, [half, begun], 30.0).trial_s, combine(5, 2, 0, [begun], 30.0).trial_s
    (1.0, 15.0)
    """
    ended = done + failed
    speeds = [1 / pack.trial_s for pack in packs if pack.trial_s < float("inf")]
    speed = len(packs) * sum(speeds) / len(speeds) if speeds else ended / passed_s if ended else 0.0
    return Progress(
        done=done,
        failed=failed,
        running=sum(pack.running for pack in packs),
        total=total,
        part=(ended + sum(pack.part * pack.total - pack.done - pack.failed for pack in packs)) / total,
        images_per_s=sum(pack.images_per_s for pack in packs),
        trial_s=1 / speed if speed else float("inf"),
        accuracy=_mean([(pack.accuracy, pack.running) for pack in packs]),
        recall=_mean([(pack.recall, pack.running) for pack in packs]),
    )


def _mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    """The weighted mean of (value, weight) pairs, without those that are None."""
    known = [(value, weight) for value, weight in values if value is not None and weight]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None


class NodeLost(Exception):
    """The node that this process belongs to has died; Ray is about to end the process."""


@dataclass(eq=False)
class _Handle:
    """The driver's record of a worker."""

    actor: Any
    hello: Hello | None = None
    busy: bool = False
    left: list[Trial] = field(default_factory=list)  # of its pack, those that have not ended
    stored: int = 0  # outcomes
    progress: Progress | None = None  # of its pack


class Crew:
    """The workers of one call of `train`: hands out packs, stores outcomes, replaces workers that die.

    `hire()` starts a worker; `slots()` is the number of workers that fit now. Each worker always has one pending call,
    which returns news, or raises if the worker is dead.
    """

    def __init__(self, ray: Any, hire: Callable[[], Any], slots: Callable[[], int], packs: Sequence[list[Trial]],
                 job: Job, hooks: Hooks, is_head_up: Callable[[], bool] = lambda: True,
                 is_node_up: Callable[[], bool] = lambda: True):  # fmt: skip
        self.ray, self.hire, self.slots, self.is_head_up, self.is_node_up = ray, hire, slots, is_head_up, is_node_up
        self.job, self.hooks, self.num_trials = job, hooks, sum(map(len, packs))
        self.waiting = deque(packs)
        self.calls: dict[Any, _Handle] = {}
        self.losses: Counter[Trial] = Counter()  # workers that died with the trial
        self.ended: Counter[str] = Counter()  # status -> number of trials
        self.num_stillborn = self.allowed = 0
        self.began = time.monotonic()
        self.reported = self.look_at = self.node_seen = float("-inf")
        self.head_seen = time.monotonic()
        self.silent, self.stopping = True, False

    def run(self) -> bool:
        """Train the trials; return whether all of them ended, False if they were stopped."""
        with stop_on_signals() as stopped, _insisting(stopped, SIGNAL_PATIENCE_S + 0.5):
            stop_by = float("inf")
            try:
                while self._num_left() or self._num_busy():
                    if stopped.is_set() or self.stopping or self.hooks.should_stop():
                        patience = SIGNAL_PATIENCE_S if stopped.is_set() else STOP_PATIENCE_S
                        self.stopping, stop_by = True, min(stop_by, time.monotonic() + patience)
                    if self.stopping and (not self._num_busy() or time.monotonic() > stop_by):
                        break
                    self._check_node()
                    self._hire()
                    ready, _ = self.ray.wait(list(self.calls), timeout=WAIT_S) if self.calls else ([], [])
                    for call in ready:
                        self._hear(call)
                    self._report()
            except NodeLost as error:
                self.calls.clear()
                atexit.unregister(self.ray.shutdown)  # it would wait for the node
                raise InputError(NODE_DIED, argument="on") from error
            except ConnectionError as error:
                self.calls.clear()
                reason = f" ({' '.join(str(error).split())[:200]})" if str(error) else ""
                message = f"the head of the cluster is gone{reason}; what had ended is stored: start it again and run "
                raise InputError(f"{message}the same command", argument="on") from error
            except KeyboardInterrupt:
                self.calls.clear()  # dismissing them could hang too; they end with the connection
                raise
            finally:
                for handle in self.calls.values():
                    self._dismiss(handle)
        return not self._num_left()

    def _num_left(self) -> int:
        return self.num_trials - sum(self.ended.values())

    def _num_busy(self) -> int:
        return sum(handle.busy for handle in self.calls.values())

    def _check_node(self) -> None:
        now = time.monotonic()
        if now - self.node_seen > NODE_EVERY_S:
            self.node_seen = now
            if not self.is_node_up():
                raise NodeLost

    def _hire(self) -> None:
        now = time.monotonic()
        if now >= self.look_at:
            if self.is_head_up():  # tested first: without a head Ray's calls wait a minute, then end the process
                self.look_at, self.head_seen, self.allowed = now + LOOK_EVERY_S, now, self.slots()
            elif now - self.head_seen > HEAD_PATIENCE_S:
                raise ConnectionError(f"no answer for {now - self.head_seen:.0f} s")
            else:
                self.look_at, self.allowed = now + 1.0, 0
        coming = len(self.calls) - self._num_busy()
        while len(self.calls) < self.allowed and coming < len(self.waiting) and not self.stopping:
            actor = self.hire()
            self.calls[actor.hello.remote()] = _Handle(actor)
            coming += 1

    def _hear(self, call: Any) -> None:
        handle = self.calls.pop(call)
        try:
            answer = self.ray.get(call)
        except self.ray.exceptions.RayError as error:
            # The last line of Ray's message says what happened to the process.
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            self._lose(handle, lines[-1][:300] if lines else type(error).__name__)
            return
        if isinstance(answer, Hello):
            self._greet(handle, answer)
        elif not self._note(handle, answer):
            return
        begins = not handle.busy and bool(self.waiting) and not self.stopping
        if begins:
            handle.busy, handle.left, handle.progress = True, self.waiting.popleft(), None
        if not handle.busy:
            self._dismiss(handle)
            return
        pack = list(handle.left) if begins else None
        self.calls[handle.actor.hear.remote(pack, handle.stored, self.stopping)] = handle

    def _greet(self, handle: _Handle, hello: Hello) -> None:
        """Handle a worker's first answer; refuse a node that cannot train or would train different models."""
        self.silent, self.num_stillborn, handle.hello = False, 0, hello
        if hello.refusal is not None:
            raise InputError(f"node {hello.host} of the cluster cannot train: {hello.refusal}")
        for name, its, mine in (
            ("camri", hello.code, code_digest()),
            ("torch", hello.environment["torch"].split("+")[0], torch.__version__.split("+")[0]),
        ):
            if its != mine:
                what = f"another {name} than this machine ({its}, not {mine})"
                raise InputError(f"node {hello.host} of the cluster has {what}; install the same on every node")

    def _note(self, handle: _Handle, answer: Answer) -> bool:
        """Store a worker's outcomes and progress; return whether it can continue."""
        for outcome in answer.outcomes:
            handle.left.remove(outcome.trial)
            self.hooks.on_outcome(outcome)
            self.ended[outcome.status] += 1
            handle.stored += 1
        handle.progress, handle.busy = answer.progress, not answer.ended
        if answer.error is not None:
            self._lose(handle, answer.error)  # after a CUDA error the process would fail every later pack too
        return answer.error is None

    def _lose(self, handle: _Handle, reason: str) -> None:
        """Queue a lost worker's trials again; from the second loss on one by one, as one of them may be the cause."""
        self._dismiss(handle)
        if handle.hello is None:
            self.num_stillborn += 1
            if self.num_stillborn >= STILLBORN:
                raise InputError(f"workers of the cluster cannot start; is camri installed on every node? {reason}")
        self.losses.update(handle.left)
        again = [trial for trial in handle.left if self.losses[trial] < LOSSES]
        for trial in handle.left:
            if self.losses[trial] >= LOSSES:
                environment = (handle.hello.environment if handle.hello else {}) | {ENDED_BY: "loss of its workers"}
                record = Record(trial, self.job, environment)
                self.hooks.on_outcome(record.failed(f"lost its worker {LOSSES} times; last reason: {reason}"))
                self.ended["failed"] += 1
        if all(self.losses[trial] == 1 for trial in again):
            self.waiting.extendleft([again] if again else [])
        else:
            self.waiting.extendleft([trial] for trial in again)

    def _dismiss(self, handle: _Handle) -> None:
        with contextlib.suppress(self.ray.exceptions.RayError, ConnectionError):
            self.ray.kill(handle.actor)

    def _report(self) -> None:
        now = time.monotonic()
        if self.silent and now - self.began > SILENCE_S:
            self.silent = False
            warnings.warn(f"no worker of the cluster has begun for {SILENCE_S:.0f} s; see `ray status`", stacklevel=2)
        if now - self.reported > REPORT_EVERY_S or not self._num_left():
            self.reported = now
            packs = [handle.progress for handle in self.calls.values() if handle.progress is not None]
            counts = (self.num_trials, self.ended["done"], self.ended["failed"])
            self.hooks.on_progress(combine(*counts, packs, now - self.began))


class RayExecutor:
    """Trains on the GPUs of a Ray cluster, or on its cores if it has no GPU.

    `address` is "ray" (the cluster on this machine, started if there is none) or "ray://HOST:PORT". `workers` is the
    most workers at a time, `pack_size` the number of models side by side on a GPU.
    """

    def __init__(self, address: str = "ray", device: str = "auto", workers: int | None = None,
                 pack_size: int | None = None, **options: Any):  # fmt: skip
        self.ray = connect(address)
        self.head = address if address.startswith("ray://") else self.ray.get_runtime_context().gcs_address
        self.node = None if address.startswith("ray://") else _own_node(self.ray)
        self.device, self.workers, self.options = self._pick_device(device), workers, options
        self.pack_size = (pack_size or PACK_SIZE) if self.device == "cuda" else 1
        if not self._num_slots():
            raise InputError("the cluster has no node to train on; see `ray status`")

    def train(self, trials: Sequence[Trial], job: Job, hooks: Hooks) -> bool:
        assert job.checkpoints is not None
        folder = Path(job.checkpoints).resolve()
        bare = replace(job, data=None, checkpoints=folder, device=self.device, **self.options)  # type: ignore[arg-type]
        # Put into Ray's object store: a node fetches the data once for all its workers.
        manifest = self.ray.put(ship(job.data, lambda name, tensor: tensor.numpy()))
        resources = {"num_cpus": 1, "num_gpus": int(self.device == "cuda")}
        actor = self.ray.remote(Worker).options(**resources, max_restarts=0)
        packs = [[trials[place] for place in pack] for pack in cut(len(trials), self.pack_size, self._num_slots())]
        token = f"shared-{uuid.uuid4().hex}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / token).touch()
        try:
            hire, is_head_up = lambda: actor.remote(bare, manifest, token), lambda: _reach(self.head) is None
            is_node_up = functools.partial(_lives, self.node)
            return Crew(self.ray, hire, self._num_slots, packs, job, hooks, is_head_up, is_node_up).run()
        finally:
            (folder / token).unlink(missing_ok=True)

    def _pick_device(self, device: str) -> str:
        has_gpus = self.ray.cluster_resources().get("GPU", 0) >= 1
        if device == "auto":
            return "cuda" if has_gpus else "cpu"
        if device not in ("cpu", "cuda"):
            raise InputError(f"device={device!r} is not for a cluster; choices: auto, cpu, cuda", argument="device")
        if device == "cuda" and not has_gpus:
            raise InputError("device='cuda': the cluster has no GPU; choices: auto, cpu", argument="device")
        return device

    def _num_slots(self) -> int:
        num = int(self.ray.cluster_resources().get("GPU" if self.device == "cuda" else "CPU", 0))
        return num if self.workers is None else min(num, self.workers)


def connect(address: str) -> Any:
    """Connect to the cluster, unless this process is connected already; return the module `ray`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the future default; without it Ray warns
    try:
        import ray
    except (ImportError, RuntimeError) as error:
        message = f"on={address!r} needs Ray ({error}); install it with: pip install 'camri-loss[cluster]'"
        raise InputError(message, argument="on") from None
    if ray.is_initialized():
        return ray
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    head = _find_running() if address == "ray" else address
    if head is None:
        warnings.warn("no Ray cluster is running on this machine; one is started for this run", stacklevel=2)
        with _elsewhere():  # not in another thread: the cluster's processes end with the thread that starts them
            ray.init(address="local", include_dashboard=False, **quiet)
        return ray
    if (refusal := _reach(head)) is not None:
        which = f"on={address!r}" + (f": the cluster at {head}" if head != address else "")
        remedy = "start it (`ray start --head`), or forget it with `ray stop`"
        raise InputError(f"{which} cannot be reached ({refusal}); {remedy}", argument="on")
    for tries_left in reversed(range(TRIES)):
        try:
            with _elsewhere():
                _call_within(CONNECT_S, lambda: ray.init(address=head, **quiet), address)
            break
        except InputError:
            raise
        except Exception as error:  # other versions, a port of another program, no grpcio, …
            if isinstance(error, ConnectionAbortedError) and tries_left:
                continue
            text = " ".join(str(error).split())[-300:]
            raise InputError(f"on={address!r} cannot be used ({text}); see docs/cluster.md", argument="on") from error
    if head.startswith("ray://"):
        _leave_within(LEAVE_S, ray)
    return ray


def _leave_within(seconds: float, ray: Any) -> None:
    """Disconnect when this process ends, waiting at most this long; Ray's own exit handler may wait forever."""
    leaving = threading.Event()

    def leave() -> None:
        leaving.wait()
        ray.shutdown()

    thread = threading.Thread(target=leave, daemon=True)  # started now: at exit no thread can be started
    thread.start()

    @atexit.register
    def end() -> None:
        leaving.set()
        thread.join(seconds)

    atexit.unregister(ray.shutdown)


@contextlib.contextmanager
def _insisting(stopped: threading.Event, seconds: float) -> Iterator[None]:
    """Interrupt what is inside this long after a signal: a call of Ray does not return while the head hangs."""
    ended, insisted, taking = threading.Event(), threading.Event(), threading.Lock()

    def insist() -> None:
        while not stopped.wait(WAIT_S):
            if ended.is_set():
                return
        if not ended.wait(seconds):
            with taking:
                if not ended.is_set():
                    insisted.set()
                    # A second SIGINT raises KeyboardInterrupt; sent to the main thread, it wakes that up.
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    if threading.current_thread() is threading.main_thread():
        threading.Thread(target=insist, daemon=True).start()
    try:
        try:
            yield
        finally:
            with taking:
                ended.set()
    except KeyboardInterrupt:
        if not insisted.is_set():
            raise


def _find_running() -> str | None:
    """The address of this machine's cluster, from `ray start` or RAY_ADDRESS; the cluster may be dead."""
    from ray._private.services import get_ray_address_from_environment

    try:
        return get_ray_address_from_environment("auto", None)
    except ConnectionError:
        return None


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    """Change to another folder meanwhile: Ray puts the current one on its workers' path and would import from it."""
    before = os.getcwd()
    os.chdir(Path(camri.__file__).parent.parent)
    try:
        yield
    finally:
        os.chdir(before)


def _call_within(seconds: float, call: Callable[[], Any], address: str) -> None:
    """Make the call in a thread and stop waiting after this time: Ray itself tries for many minutes."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        thread.join(seconds)
    finally:  # also after a signal
        if thread.is_alive():
            atexit.unregister(sys.modules["ray"].shutdown)  # it would wait for the cluster too
    if thread.is_alive():
        why = f"does not answer within {seconds:.0f} s"
        raise InputError(f"on={address!r} {why}; restart it with `ray stop` and `ray start --head`", argument="on")
    if raised:
        raise raised[0]


def _own_node(ray: Any) -> tuple[str, int] | None:
    """Host and port of the node that this process belongs to."""
    mine = ray.get_runtime_context().get_node_id()
    found = [(node["NodeManagerAddress"], node["NodeManagerPort"]) for node in ray.nodes() if node["NodeID"] == mine]
    return found[0] if found else None


def _lives(node: tuple[str, int] | None) -> bool:
    """Whether a node of this machine lives; None: it is not known, so yes. A node that is only busy lives."""
    try:
        if node is not None:
            socket.create_connection(node, PROBE_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        pass
    return True


def _reach(address: str) -> str | None:
    """Why the address cannot be reached; None if it can."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return "it has no host or no port; give ray://HOST:PORT (Ray's own port is 10001)"
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
    except (OSError, OverflowError) as error:
        return str(error)
    return None
