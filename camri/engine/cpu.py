"""A data set on its way to another process: plain facts, and arrays that travel however the way wants them to.

Trials on the CPU: one thread a trial, and one process a core when there are several.

Measured for small networks on two cores: processes of one thread each beat a loop, a loop beats vmap, and two OpenMP
threads are slower than one as soon as the other core is busy. One thread everywhere also makes a trial end with the
same bits alone, in company and in any process.
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
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

import camri
from camri.data import DataSet, Split
from camri.engine import environment
from camri.engine.loop import train_one
from camri.engine.outcome import Outcome, Record
from camri.engine.replica import Job
from camri.engine.spec import Trial
from camri.errors import InputError
from camri.files import scratch_folder


def ship(data: DataSet, put: Callable[[str, np.ndarray], Any]) -> dict[str, Any]:
    """The data set as plain values; what `put(name, array)` returns stands for each of its arrays."""
    parts: dict[str, dict[str, Any]] = {}
    for name, split in data.splits.items():
        parts[name] = {}
        for field in ("inputs", "labels", "groups"):
            tensor = getattr(split, field)
            parts[name][field] = None if tensor is None else put(f"{name}-{field}", tensor.cpu().numpy())
    return {
        "name": data.name,
        "classes": data.classes,
        "fingerprint": data.fingerprint,
        "provenance": dict(data.provenance),
        "parts": parts,
    }


def unship(manifest: dict[str, Any], get: Callable[[Any], np.ndarray]) -> DataSet:
    """The data set of :func:`ship`; `get` gives the array back for what stands for it. Nothing is copied."""

    def tensor(stand_in: Any) -> torch.Tensor | None:
        return None if stand_in is None else torch.from_numpy(get(stand_in))

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is not writable")  # and nobody writes into a data set
        splits = {name: Split(**{k: tensor(v) for k, v in part.items()}) for name, part in manifest["parts"].items()}  # type: ignore[arg-type]
    known = {key: manifest[key] for key in ("name", "classes", "fingerprint", "provenance")}
    return DataSet(splits=splits, **known)


STOP_PATIENCE_S = 30.0

Worker: TypeAlias = "subprocess.Popen[bytes]"


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One OpenMP thread inside; what was set before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run(
    trials: Sequence[Trial],
    job: Job,
    workers: int,
    should_stop: Callable[[], bool],
    say: Callable[[Mapping[int, Record]], None],
    ended: Callable[[int, Outcome], None],
    pool: "Pool | None" = None,
) -> None:
    """Nothing; `ended(place, outcome)` hears of each trial as it ends, in the order of ending. Stops when told to."""
    if min(workers, len(trials)) > 1:
        with Pool() if pool is None else contextlib.nullcontext(pool) as kept:
            _Call(kept, trials, job, min(workers, len(trials)), should_stop, say, ended).run()
        return
    with one_thread():
        for place, trial in enumerate(trials):

            def tell(record: Record, place: int = place) -> None:
                say({place: record})

            outcome = train_one(trial, job, should_stop, tell)
            if outcome is None:
                return
            ended(place, outcome)


class Pool:
    """Worker processes that stay from one call of `train` to the next, until the pool is closed; one call at a time.

    They start when a call first needs them, as programs of their own, so a user's script needs no `__main__` guard.
    Each worker reads jobs and trials from its standard input and answers on its standard output. It stops by itself
    when its input ends: a killed parent leaves none behind.
    """

    def __init__(self) -> None:
        self.wall_s = self.core_s = 0.0  # what ended trials took in workers, by the clock and of a core
        self.heard: queue.Queue[tuple[Worker, tuple[Any, ...]]] = queue.Queue()
        self._workers: list[Worker] = []
        self._shared: tuple[DataSet, dict[str, Any]] | None = None
        self._files = contextlib.ExitStack()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing; no process is left, and no file."""
        for worker in self._workers:
            _end(worker)
        self._workers.clear()
        self._shared = None
        self._files.close()

    def share(self, data: DataSet) -> dict[str, Any]:
        """What :func:`load_data` takes in a worker; the files are written once for calls with the same data."""
        if self._shared is None or self._shared[0] is not data:
            self._shared = None
            self._files.close()  # who has them mapped can read on
            self._shared = (data, _leave_data(data, self._files.enter_context(scratch_folder())))
        return self._shared[1]

    def take(self, busy: Collection[Worker]) -> Worker:
        """A worker that is alive and not busy, started where there is none."""
        self._workers = [worker for worker in self._workers if worker.poll() is None]
        for worker in self._workers:
            if worker not in busy:
                return worker
        paths = [str(Path(camri.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        worker = subprocess.Popen(
            [sys.executable, "-m", "camri.engine.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,  # Ctrl-C reaches this process alone, which then tells the workers
        )
        self._workers.append(worker)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        return worker

    def _listen(self, worker: Worker) -> None:
        assert worker.stdout is not None
        with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                self.heard.put((worker, pickle.load(worker.stdout)))
        self.heard.put((worker, ("gone",)))


class _Call:
    """One call of :func:`run` on a pool. A worker that is at work when it breaks off is killed; idle ones stay."""

    def __init__(self, pool: Pool, trials: Sequence[Trial], job: Job, size: int, should_stop: Callable[[], bool],
                 say: Callable[[Mapping[int, Record]], None], ended: Callable[[int, Outcome], None]):  # fmt: skip
        self.pool, self.trials, self.job, self.size = pool, trials, job, size
        self.should_stop, self.say, self.ended = should_stop, say, ended
        self.plan = pickle.dumps((dataclasses.replace(job, data=None), pool.share(job.data)))  # type: ignore[arg-type]
        self.waiting = list(range(len(trials)))[::-1]
        self.at_work: dict[Worker, int] = {}
        self.informed: set[Worker] = set()  # of the plan

    def run(self) -> None:
        try:
            self._hand_out()
            stopping = False
            while self.at_work:
                if not stopping and self.should_stop():
                    stopping = True
                    self.waiting.clear()
                    for worker in self.at_work:
                        _tell(worker, "stop")
                try:
                    worker, message = self.pool.heard.get(timeout=STOP_PATIENCE_S if stopping else 0.1)
                except queue.Empty:
                    if stopping:
                        return  # the rest is killed below
                    continue
                self._hear(worker, message)
        finally:
            for worker in self.at_work:
                _end(worker)

    def _hand_out(self) -> None:
        while self.waiting and len(self.at_work) < self.size:
            worker = self.pool.take(self.at_work)
            self.at_work[worker] = self.waiting.pop()
            if worker not in self.informed:
                self.informed.add(worker)
                _tell(worker, self.plan)
            _tell(worker, self.trials[self.at_work[worker]])

    def _hear(self, worker: Worker, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        place = self.at_work.get(worker)
        if place is None:
            return
        if kind == "epoch":
            record = Record(self.trials[place], self.job, {})
            record.restore(rest[0])
            self.say({place: record})
            return
        if kind == "outcome":
            outcome, wall_s, core_s = rest
            self.pool.wall_s += wall_s
            self.pool.core_s += core_s
            self.ended(place, outcome)
        elif kind == "gone":
            code = worker.wait()
            why = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            record = Record(self.trials[place], self.job, environment.describe_environment(torch.device("cpu")))
            self.ended(place, record.failed(f"its process ended with {why}, perhaps for want of memory"))
        del self.at_work[worker]
        self._hand_out()


def _tell(worker: Worker, message: object) -> None:
    assert worker.stdin is not None
    with contextlib.suppress(BrokenPipeError, OSError):  # its end is heard of by the listener
        pickle.dump(message, worker.stdin)
        worker.stdin.flush()


def _end(worker: Worker) -> None:
    worker.kill()
    worker.wait()


def load_data(manifest: dict[str, Any]) -> DataSet:
    """The data set a parent process left in files, its arrays mapped from them."""
    return unship(manifest, lambda path: np.load(path, mmap_mode="c"))


def _leave_data(data: DataSet, folder: Path) -> dict[str, Any]:
    """The data set as files that every worker maps into its memory."""

    def put(name: str, array: np.ndarray) -> str:
        try:
            np.save(folder / f"{name}.npy", array)
        except OSError as error:
            raise InputError(
                f"{folder.parent} has no room for the copy of the data that workers share ({error}); free some "
                "space, set TMPDIR to another folder, or train in one process (workers=1, --workers 1)"
            ) from None
        return str(folder / f"{name}.npy")

    return ship(data, put)
