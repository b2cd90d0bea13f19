"""A worker process of the CPU engine: jobs and trials come in on standard input, outcomes go out on standard output."""

import dataclasses
import os
import pickle
import queue
import sys
import threading
import time
from typing import Any

import torch

from camri.engine.cpu import load_data
from camri.engine.loop import train_one
from camri.engine.outcome import Record
from camri.engine.replica import Job
from camri.engine.spec import Trial


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    torch.set_num_threads(1)

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
                    stop.clear()  # of the trial before, which may have ended as the stop came
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
            if isinstance(message, bytes):  # the job of the trials after it
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
            del outcome  # a worker may wait for long
    except BrokenPipeError:
        os._exit(1)  # the parent is gone
