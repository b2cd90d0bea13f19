"""Images that do not fit on the GPU: gathered by threads and copied while earlier steps run."""

import itertools
import math
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from camri.data import DataSet, Split
from camri.data.dataset import epoch_order
from camri.data.parallel import num_cores
from camri.data.rows import SHARE, Inputs, Rows, Stored, blocks, num_bytes
from camri.engine.replica import Job
from camri.engine.spec import generator

BUFFER_BYTES = 256 << 20  # on the device, and as much pinned memory on the host
DEPTHS = (3, 16)  # fewest and most steps read ahead
THREADS = 8
SMALL_ROW = 16 << 10  # rows of a file below this size take the interpreter's lock for most of their time
PART_BYTES = 2 << 20  # of a step, for one thread


def put_on(device: torch.device, data: DataSet) -> tuple[dict[str, Split], bool]:
    """Put labels, and inputs while they fit, on the device, small splits first: (splits, whether train is streamed).

    The limit is `data.resident` bytes, by default a share of the device's free memory.
    """
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else math.inf
    left = SHARE * free if data.resident is None else data.resident
    placed, streamed = {}, True
    for name, split in sorted(data.splits.items(), key=lambda pair: num_bytes(pair[1].inputs)):
        inputs = split.inputs
        if num_bytes(inputs) <= left:
            left -= num_bytes(inputs)
            streamed = streamed and name != "train"
            inputs = _to(device, inputs)
        placed[name] = Split(inputs, split.labels.to(device), None)
    return placed, streamed


def _to(device: torch.device, inputs: Inputs) -> Tensor:
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    there = torch.empty(inputs.shape, dtype=inputs.dtype, device=device)
    at = 0
    for block in blocks(inputs):
        there[at : at + len(block)] = block
        at += len(block)
    return there


def _threads(inputs: Inputs, step_bytes: int) -> tuple[int, int]:
    """(threads that gather, parts into which a step's rows are divided among them)."""
    if isinstance(inputs, Rows):
        if not isinstance(inputs.store, Stored):
            return 2, 1  # decoded on the fly, on all cores by itself
        if math.prod(inputs.shape[1:]) < SMALL_ROW:
            return 1, 1  # two threads read fewer
    threads = min(THREADS, num_cores())
    return threads, max(1, min(threads, step_bytes // PART_BYTES))


class Feed:
    """Copy the batches of all replicas of a pack to the device, step by step.

    Trials of one seed use the rows in the same order and share their batches. Threads gather the rows of the next steps
    into pinned memory; a separate stream copies them to a ring on the device, from which the captured step reads. The
    thread that replays the graph makes all CUDA calls.
    """

    def __init__(self, inputs: Inputs, seeds: Sequence[int], job: Job, device: torch.device):
        self.inputs = inputs if isinstance(inputs, Rows) else inputs.numpy()
        self.job, self.seeds = job, list(dict.fromkeys(seeds))
        slot = (len(self.seeds), job.batch_size, *inputs.shape[1:])
        least, most = DEPTHS
        step_bytes = math.prod(slot) * inputs.dtype.itemsize
        self.depth = max(least, min(most, BUFFER_BYTES // step_bytes))
        self.ring = torch.zeros((self.depth, *slot), dtype=inputs.dtype, device=device)
        self.pinned = torch.empty((self.depth, *slot), dtype=inputs.dtype, pin_memory=device.type == "cuda")
        self.copier = torch.cuda.Stream()
        self.here = [torch.cuda.Event(blocking=True) for _ in range(self.depth)]  # the slot holds its batch
        self.read = [torch.cuda.Event() for _ in range(self.depth)]  # the step has read it
        threads, self.parts = _threads(inputs, step_bytes)
        self.threads = ThreadPoolExecutor(threads)
        self.gathering: deque[list[Future[None]]] = deque()
        self.epoch = -1

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *_: object) -> None:
        self.threads.shutdown(cancel_futures=True)

    def batch(self, seed: int, step: Tensor) -> Tensor:
        """The rows of a step (one number, on the device) for a trial of this seed; part of the captured step."""
        return self.ring[:, self.seeds.index(seed)][step % self.depth].squeeze(0)

    def start(self, step: int) -> None:
        """Start gathering, from this step of the whole training on."""
        self.step = step
        self.copier.wait_stream(torch.cuda.current_stream())
        for ahead in range(self.depth):
            self._gather(step + ahead)

    def bring(self) -> None:
        """Copy the next step's batch to the device; later launches wait for it."""
        for part in self.gathering.popleft():
            part.result()
        at = self.step % self.depth
        with torch.cuda.stream(self.copier):
            self.copier.wait_event(self.read[at])
            self.ring[at].copy_(self.pinned[at], non_blocking=True)
            self.here[at].record(self.copier)
        torch.cuda.current_stream().wait_event(self.here[at])

    def done(self) -> None:
        """Record that the step is launched, and start gathering a later one in its slot."""
        at = self.step % self.depth
        self.read[at].record(torch.cuda.current_stream())
        self.here[at].synchronize()  # so that the host is at most `depth` steps ahead of the device
        self._gather(self.step + self.depth)
        self.step += 1

    def _gather(self, step: int) -> None:
        epoch, place_in_epoch = divmod(step, self.job.steps_per_epoch)
        if step >= self.job.num_steps:
            return
        if epoch != self.epoch:
            self.epoch, num = epoch, self.job.num_rows
            self.orders = [epoch_order(num, generator(seed, "order", epoch), "cpu").numpy() for seed in self.seeds]
        size, target = self.job.batch_size, self.pinned[step % self.depth].flatten(0, 1).numpy()
        rows = np.concatenate([order[place_in_epoch * size : (place_in_epoch + 1) * size] for order in self.orders])
        ends = np.linspace(0, len(rows), self.parts + 1).astype(int)
        pairs = itertools.pairwise(ends.tolist())
        parts = [self.threads.submit(self._read, rows[start:end], target[start:end]) for start, end in pairs]
        self.gathering.append(parts)

    def _read(self, rows: np.ndarray, out: np.ndarray) -> None:
        if isinstance(self.inputs, Rows):
            self.inputs.read(rows, out)
        else:
            np.take(self.inputs, rows, axis=0, out=out, mode="clip")  # other modes would copy once more
