"""Trials on the CPU: one thread per trial, and one process per core if there are several trials.

Measured for small networks on two cores: one-thread processes are faster than a loop, a loop is faster than vmap, and
two OpenMP threads are slower than one when the other core is busy. With one thread everywhere, a trial gives the same
bits alone, with others and in any process.

Why not loky: a killed worker fails every waiting trial, and its workers import from the current folder.
"""

import contextlib
import dataclasses
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

import camri
from camri.data import DataSet, Split
from camri.data.rows import Inputs, Rows
from camri.engine import spec
from camri.engine.loop import train_one
from camri.engine.outcome import Outcome, Record, Tracker
from camri.engine.replica import Job
from camri.engine.spec import Trial
from camri.errors import ENDED_BY, InputError
from camri.files import scratch_folder

STOP_PATIENCE_S = 30.0
RETRIES = 2  # of a trial whose process died, with others running; then once more alone
REASONS = {
    "SIGKILL": "perhaps out of memory",
    "SIGTERM": "something stopped it",
    "SIGXCPU": "the limit of CPU time",
    **dict.fromkeys(("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE"), "a crash in compiled code"),
}
# Not `-m`: it puts the current folder first on the path, so a queue.py next to the data would be executed.
START = "import sys\nif not sys.path[0]: del sys.path[0]\nfrom camri.engine.cpu import work\nwork()"

Worker: TypeAlias = "subprocess.Popen[bytes]"


def ship(data: DataSet, put: Callable[[str, Inputs], Any]) -> dict[str, Any]:
    """Convert the data set to plain values for another process; `put(name, tensor)` returns a handle for a tensor."""
    parts: dict[str, dict[str, Any]] = {}
    for name, split in data.splits.items():
        parts[name] = {}
        for field in ("inputs", "labels", "groups"):
            tensor = getattr(split, field)
            parts[name][field] = None if tensor is None else put(f"{name}-{field}", tensor)
    facts = {"name": data.name, "classes": data.classes, "fingerprint": data.fingerprint, "resident": data.resident}
    return {**facts, "provenance": dict(data.provenance), "parts": parts}


def unship(manifest: dict[str, Any], get: Callable[[Any], np.ndarray]) -> DataSet:
    """Restore the data set of :func:`ship` without a copy; `get` returns the array of a handle."""

    def tensor(stand_in: Any) -> Inputs | None:
        return stand_in if stand_in is None or isinstance(stand_in, Rows) else torch.from_numpy(get(stand_in))

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is not writable")  # data sets are read-only
        splits = {name: Split(**{k: tensor(v) for k, v in part.items()}) for name, part in manifest["parts"].items()}  # type: ignore[arg-type]
    return DataSet(splits=splits, **{key: value for key, value in manifest.items() if key != "parts"})


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one OpenMP thread inside; restore the number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run(trials: Sequence[Trial], job: Job, workers: int, tracker: Tracker, pool: "Pool | None" = None) -> None:
    """Train the trials in worker processes, or one after another in this process if `workers` is 1.

    A pool with `isolates` uses a worker even then. The tracker gets each outcome as its trial ends.
    """
    if workers > 1 or (pool is not None and pool.isolates):
        with Pool() if pool is None else contextlib.nullcontext(pool) as kept:
            _Call(kept, trials, job, workers, tracker).run()
        return
    with one_thread():
        for place, trial in enumerate(trials):

            def note(record: Record, place: int = place) -> None:
                tracker.epochs({place: record})

            outcome = train_one(trial, job, tracker.should_stop, note)
            if outcome is None:
                return
            tracker.end(place, outcome)


class Pool:
    """Worker processes that are kept between calls of `train` until the pool is closed; one call at a time.

    They start when first needed, as separate programs, so a user's script needs no `__main__` guard. A worker reads
    jobs and trials from its standard input and answers on its standard output. It stops when its input ends, so a
    killed parent leaves no worker behind. With `isolates`, even a single worker is a separate process: a trial that
    crashes in compiled code then ends neither this process nor the other trials.
    """

    def __init__(self, isolates: bool = False) -> None:
        self.isolates = isolates
        self.wall_s = self.core_s = 0.0  # wall and CPU time of trials that ended in workers
        self.messages: queue.Queue[tuple[Worker, tuple[Any, ...]]] = queue.Queue()
        self._workers: list[Worker] = []
        self._shared: tuple[DataSet, dict[str, Any]] | None = None
        self._files = contextlib.ExitStack()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all processes and remove the shared files."""
        for worker in self._workers:
            _end(worker)
        self._workers.clear()
        self._shared = None
        self._files.close()

    def share(self, data: DataSet) -> dict[str, Any]:
        """Write the data to files that workers map (:func:`load_data`), once for all calls with the same data."""
        if self._shared is None or self._shared[0] is not data:
            self._shared = None
            self._files.close()  # workers that have mapped them can still read
            self._shared = (data, _write_data(data, self._files.enter_context(scratch_folder())))
        return self._shared[1]

    def take(self, busy: Collection[Worker]) -> Worker:
        """Return an idle worker; start one if there is none."""
        self._workers = [worker for worker in self._workers if worker.poll() is None]
        for worker in self._workers:
            if worker not in busy:
                return worker
        return self._start()

    def start(self, num_workers: int) -> None:
        """Start processes before a call needs them, so that their imports take no time of its trials."""
        while len(self._workers) < num_workers:
            self._start()

    def _start(self) -> Worker:
        paths = [str(Path(camri.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        worker = subprocess.Popen(
            [sys.executable, "-c", START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,  # only this process gets Ctrl-C; it then stops the workers
        )
        self._workers.append(worker)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        return worker

    def _listen(self, worker: Worker) -> None:
        assert worker.stdout is not None
        with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):  # incomplete: it died while writing
            while True:
                self.messages.put((worker, pickle.load(worker.stdout)))
        self.messages.put((worker, ("gone",)))


class _Call:
    """One call of :func:`run` on a pool. If it is interrupted, busy workers are killed; idle ones are kept.

    A trial whose process dies is trained again from its checkpoint: `RETRIES` times with the others, then once
    alone after them, when it has all the memory. Only then does it count as failed.
    """

    def __init__(self, pool: Pool, trials: Sequence[Trial], job: Job, size: int, tracker: Tracker):
        self.pool, self.trials, self.job, self.size, self.tracker = pool, trials, job, size, tracker
        self.packed_job = pickle.dumps((dataclasses.replace(job, data=None), pool.share(job.data)))  # type: ignore[arg-type]
        self.waiting = list(range(len(trials)))[::-1]
        self.alone: list[int] = []  # trials to train after the others, one at a time
        self.losses: Counter[int] = Counter()  # of processes, by the place of their trial
        self.at_work: dict[Worker, int] = {}
        self.informed: set[Worker] = set()  # workers that have the job

    def run(self) -> None:
        try:
            self._hand_out()
            stopping = False
            while self.at_work:
                if not stopping and self.tracker.should_stop():
                    stopping = True
                    for worker in self.at_work:
                        _send(worker, "stop")
                try:
                    worker, message = self.pool.messages.get(timeout=STOP_PATIENCE_S if stopping else 0.1)
                except queue.Empty:
                    if stopping:
                        return  # the others are killed below
                    continue
                self._take(worker, message)
                if not stopping:
                    self._hand_out()
        finally:
            for worker in self.at_work:
                _end(worker)

    def _hand_out(self) -> None:
        if not self.waiting and not self.at_work and self.alone:
            self.waiting, self.size = self.alone[::-1], 1
            self.alone = []
        while self.waiting and len(self.at_work) < self.size:
            worker = self.pool.take(self.at_work)
            self.at_work[worker] = self.waiting.pop()
            if worker not in self.informed:
                self.informed.add(worker)
                _send(worker, self.packed_job)
            _send(worker, self.trials[self.at_work[worker]])

    def _take(self, worker: Worker, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        place = self.at_work.get(worker)
        if place is None:
            return
        if kind == "epoch":
            record = Record(self.trials[place], self.job, {})
            record.restore(rest[0])
            self.tracker.epochs({place: record})
            return
        if kind == "outcome":
            outcome, wall_s, core_s = rest
            self.pool.wall_s += wall_s
            self.pool.core_s += core_s
            self.tracker.end(place, outcome)
        elif kind == "gone":
            self._lose(place, worker.wait())
        del self.at_work[worker]

    def _lose(self, place: int, code: int) -> None:
        self.losses[place] += 1
        if self.losses[place] <= RETRIES:
            self.waiting.append(place)
        elif self.losses[place] == RETRIES + 1:
            self.alone.append(place)
        else:
            self.tracker.end(place, lost(self.trials[place], self.job, self.losses[place], code))


def lost(trial: Trial, job: Job, times: int, code: int) -> Outcome:
    """Outcome of a trial whose process died `times` times, the last with this exit code (negative: a signal)."""
    ended_by = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    reason = REASONS.get(ended_by, "its messages may say why")
    environment = spec.describe_environment(torch.device("cpu"))
    return Record(trial, job, environment | {ENDED_BY: ended_by}).failed(
        f"its process died {times} times, at last alone and by {ended_by} ({reason})"
    )


def _send(worker: Worker, message: object) -> None:
    assert worker.stdin is not None
    with contextlib.suppress(BrokenPipeError, OSError):  # the listener reports its end
        pickle.dump(message, worker.stdin)
        worker.stdin.flush()


def _end(worker: Worker) -> None:
    worker.kill()
    worker.wait()


def load_data(manifest: dict[str, Any]) -> DataSet:
    """Map the data set that the parent process wrote to files."""
    return unship(manifest, lambda path: np.load(path, mmap_mode="c"))


def _write_data(data: DataSet, folder: Path) -> dict[str, Any]:
    def put(name: str, tensor: Inputs) -> str | Rows:
        if isinstance(tensor, Rows):
            return tensor  # the worker opens the same file
        try:
            np.save(folder / f"{name}.npy", tensor.cpu().numpy())
        except OSError as error:
            remedy = "free some space, or set TMPDIR to another folder"
            raise InputError(f"{folder.parent} has no room for the workers' data ({error}); {remedy}") from None
        return str(folder / f"{name}.npy")

    return ship(data, put)


def work() -> None:
    """Run as a worker process: read jobs and trials from standard input, write outcomes to standard output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints must not mix with the answers
    torch.set_num_threads(1)
    torch.optim.Adam([torch.zeros(1)])  # imports a third of torch: now, and not in the first trial

    def answer(*message: Any) -> None:
        pickle.dump(message, answers)
        answers.flush()

    inbox: queue.Queue[bytes | Trial | None] = queue.Queue()
    stop = threading.Event()

    def listen() -> None:
        try:
            while True:
                message = pickle.load(sys.stdin.buffer)
                if message == "stop":
                    stop.set()
                else:
                    stop.clear()  # of the previous trial, which may have ended just before the stop
                    inbox.put(message)
        except EOFError:
            pass
        stop.set()
        inbox.put(None)

    threading.Thread(target=listen, daemon=True).start()
    last_report = 0.0

    def report(record: Record) -> None:
        nonlocal last_report
        if time.perf_counter() - last_report > 0.1:
            last_report = time.perf_counter()
            answer("epoch", record.notes())

    job: Job | None = None
    try:
        while (message := inbox.get()) is not None:
            if isinstance(message, bytes):  # the job of the trials that follow
                bare, manifest = pickle.loads(message)
                job = dataclasses.replace(bare, data=load_data(manifest))
                continue
            assert job is not None
            began, began_core_s = time.perf_counter(), time.process_time()
            outcome = train_one(message, job, stop.is_set, report)
            if outcome is None:
                answer("stopped")
            else:
                answer("outcome", outcome, time.perf_counter() - began, time.process_time() - began_core_s)
            del outcome  # a worker may wait for a long time
    except BrokenPipeError:
        os._exit(1)  # the parent is gone
