"""Trials on the CPU: one thread a trial, and one process a core when there are several.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import camri
from camri.data import DataSet
from camri.engine import environment
from camri.engine.loop import train_one
from camri.engine.outcome import Outcome
from camri.engine.record import Record
from camri.engine.replica import Job
from camri.engine.shipping import ship, unship
from camri.engine.spec import Trial
from camri.errors import InputError
from camri.files import scratch_folder

STOP_PATIENCE_S = 30.0


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
) -> None:
    """Nothing; `ended(place, outcome)` hears of each trial as it ends, in the order of ending. Stops when told to."""
    if min(workers, len(trials)) > 1:
        _Pool(trials, job, min(workers, len(trials)), should_stop, say, ended).run()
        return
    with one_thread():
        for place, trial in enumerate(trials):

            def tell(record: Record, place: int = place) -> None:
                say({place: record})

            outcome = train_one(trial, job, should_stop, tell)
            if outcome is None:
                return
            ended(place, outcome)


class _Pool:
    """Worker processes started as programs of their own, so a user's script needs no `__main__` guard.

    Each worker reads trials from its standard input and answers on its standard output. It stops by itself when its
    input ends: a killed parent leaves none behind.
    """

    def __init__(self, trials: Sequence[Trial], job: Job, size: int, should_stop: Callable[[], bool],
                 say: Callable[[Mapping[int, Record]], None], ended: Callable[[int, Outcome], None]):  # fmt: skip
        self.trials, self.job, self.size = trials, job, size
        self.should_stop, self.say, self.ended = should_stop, say, ended
        self.waiting = list(range(len(trials)))[::-1]
        self.at_work: dict[subprocess.Popen[bytes], int] = {}
        self.heard: queue.Queue[tuple[subprocess.Popen[bytes], tuple[Any, ...]]] = queue.Queue()

    def run(self) -> None:
        with scratch_folder() as folder:
            plan = pickle.dumps((dataclasses.replace(self.job, data=None), _leave_data(self.job.data, folder)))  # type: ignore[arg-type]
            try:
                for _ in range(self.size):
                    self._hire(plan)
                stopping = False
                while self.at_work:
                    if not stopping and self.should_stop():
                        stopping = True
                        self.waiting.clear()
                        for worker in self.at_work:
                            _tell(worker, "stop")
                    try:
                        worker, message = self.heard.get(timeout=STOP_PATIENCE_S if stopping else 0.1)
                    except queue.Empty:
                        if stopping:
                            return  # the rest is killed below
                        continue
                    self._hear(worker, message, plan)
            finally:
                for worker in list(self.at_work):
                    worker.kill()
                    worker.wait()

    def _hire(self, plan: bytes) -> None:
        if not self.waiting:
            return
        paths = [str(Path(camri.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        worker = subprocess.Popen(
            [sys.executable, "-m", "camri.engine.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,  # Ctrl-C reaches this process alone, which then tells the workers
        )
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        self.at_work[worker] = self.waiting.pop()
        _tell(worker, plan)
        _tell(worker, self.trials[self.at_work[worker]])

    def _listen(self, worker: "subprocess.Popen[bytes]") -> None:
        assert worker.stdout is not None
        with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                self.heard.put((worker, pickle.load(worker.stdout)))
        self.heard.put((worker, ("gone",)))

    def _hear(self, worker: "subprocess.Popen[bytes]", message: tuple[Any, ...], plan: bytes) -> None:
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
            self.ended(place, rest[0])
            if self.waiting:
                self.at_work[worker] = self.waiting.pop()
                _tell(worker, self.trials[self.at_work[worker]])
                return
        elif kind == "gone":
            code = worker.wait()
            why = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            record = Record(self.trials[place], self.job, environment.describe(torch.device("cpu")))
            self.ended(place, record.failed(f"its process ended with {why}, perhaps for want of memory"))
        del self.at_work[worker]
        _dismiss(worker)
        if kind == "gone":
            self._hire(plan)


def _tell(worker: "subprocess.Popen[bytes]", message: object) -> None:
    assert worker.stdin is not None
    with contextlib.suppress(BrokenPipeError, OSError):  # its end is heard of by the listener
        pickle.dump(message, worker.stdin)
        worker.stdin.flush()


def _dismiss(worker: "subprocess.Popen[bytes]") -> None:
    assert worker.stdin is not None
    with contextlib.suppress(BrokenPipeError, OSError):
        worker.stdin.close()
    try:
        worker.wait(timeout=STOP_PATIENCE_S)
    except subprocess.TimeoutExpired:
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
