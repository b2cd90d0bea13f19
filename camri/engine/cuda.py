"""Trials on a GPU: R replicas as parallel branches of one captured graph, the data resident on the device.

At batch 64 one model leaves most of the chip idle, so the branches fill each other's gaps. docs/engine.md has what was
tried and measured.
"""

import contextlib
import functools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from camri.data import Split
from camri.engine import checkpoint, environment
from camri.engine.evaluate import Evaluation, evaluate
from camri.engine.flat import Flat, Tables
from camri.engine.outcome import Outcome
from camri.engine.packs import PACK_SIZE, in_packs
from camri.engine.record import Record
from camri.engine.replica import Job, draw_epoch, make, prepare
from camri.engine.spec import Trial
from camri.models import Classifier, Dropout

EVALUATED = 1000  # rows at a time when nothing is learned
RUN_AHEAD = 64  # replays the host may be ahead of the device: a stop is heard within a second
LOW = torch.bfloat16


class PaddedConv2d(nn.Conv2d):
    """A convolution of few channels as one of eight: cuDNN's tensor-core kernels want multiples of eight."""

    def forward(self, x: Tensor) -> Tensor:
        missing = (0, 0, 0, 0, 0, 8 - self.in_channels)
        weight = F.pad(self.weight, missing)
        return F.conv2d(F.pad(x, missing), weight, self.bias, self.stride, self.padding, self.dilation)


def _forward(trunk: nn.Module, inputs: Tensor, mirrored: Tensor | None, dx: Tensor | None, dy: Tensor | None) -> Tensor:
    return trunk(prepare(inputs, mirrored, dx, dy, LOW))


@functools.cache
def _compiled(signature: object) -> Callable[..., Tensor]:
    """The forward pass, compiled once for each kind of job; head and loss stay eager, since they differ by method."""
    torch._dynamo.reset()  # another kind came before: dynamo counts versions of one function and gives up at eight
    return torch.compile(_forward, fullgraph=True, dynamic=False)


class Replica:
    """One trial on the device: everything it reads and writes lives in tensors that never move."""

    def __init__(self, trial: Trial, job: Job, resident: dict[str, Split], tables: Tables, record: Record):
        self.trial, self.job, self.resident, self.record = trial, job, resident, record
        device = resident["train"].inputs.device
        model, criterion = make(trial, job)
        for module in model.trunk.modules():
            if type(module) is nn.Conv2d and module.in_channels < 8 and module.groups == 1:
                module.__class__ = PaddedConv2d
        self.model: Classifier = model.to(device).train()
        self.criterion = criterion.to(device)
        low, high = _by_precision(self.model)
        averaged = job.training.average > 0
        self.flats = [Flat(low, LOW, tables, averaged), Flat(high, torch.float32, tables, averaged)]
        self.statistics = _gather_statistics(self.model, device)
        self.averaged_statistics = self.statistics.clone() if averaged else None
        steps, size = job.steps_per_epoch, job.batch_size
        self.order = torch.zeros(steps, size, dtype=torch.int64, device=device)
        self.mirrored = torch.zeros(steps, size, dtype=torch.bool, device=device) if job.training.flip else None
        self.shifts = (
            torch.zeros(2, steps, size, dtype=torch.int64, device=device) if job.training.translate_px else None
        )
        # One element and not none: an index without dimensions would be read by the host.
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        self.loss_sum = torch.zeros((), device=device)
        self.tables = tables

    def draw(self, epoch: int) -> None:
        """Nothing; the draws of an epoch are on the device."""
        drawn = draw_epoch(self.trial, self.job, epoch)
        self.order.copy_(drawn.order)
        if self.mirrored is not None and drawn.mirrored is not None:
            self.mirrored.copy_(drawn.mirrored)
        if self.shifts is not None and drawn.dx is not None and drawn.dy is not None:
            self.shifts.copy_(torch.stack([drawn.dx, drawn.dy]))

    def advance(self, forward: Callable[..., Tensor]) -> None:
        """Nothing; one training step, all of it on the device: this is what the graph holds."""
        train = self.resident["train"]
        rows = self.order[self.place].squeeze(0)
        dx, dy = (None, None) if self.shifts is None else self.shifts[:, self.place].squeeze(1)
        mirrored = None if self.mirrored is None else self.mirrored[self.place].squeeze(0)
        features = forward(self.model.trunk, train.inputs[rows], mirrored, dx, dy)
        loss = self.criterion(self.model.head(features), train.labels[rows])
        gradients = torch.autograd.grad(loss, [p for flat in self.flats for p in flat.parameters])
        at = 0
        for flat in self.flats:
            flat.update(gradients[at : at + len(flat.parameters)], self.step)
            at += len(flat.parameters)
        if self.averaged_statistics is not None:
            self.averaged_statistics.lerp_(self.statistics, 1 - self.tables.average[self.step])
        self.loss_sum += loss.detach()  # once not finite, never again: the host looks at the end of the epoch
        self.step += 1
        self.place += 1

    def state(self) -> dict[str, Tensor]:
        """Everything that changes in training, by name: what a checkpoint keeps."""
        found = {"statistics": self.statistics, "loss_sum": self.loss_sum}
        if self.averaged_statistics is not None:
            found["averaged_statistics"] = self.averaged_statistics
        for place, flat in enumerate(self.flats):
            found |= {f"flat.{place}.{name}": tensor for name, tensor in flat.state().items()}
        return found | {"step": self.step, "place": self.place}

    def load(self, tensors: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in self.state().items():
                tensor.copy_(tensors[name])
            self.criterion.step.copy_(self.step[0])
            for module in self.model.modules():
                if isinstance(module, Dropout):
                    module.calls.copy_(self.step[0])
        for flat in self.flats:
            flat.spread()

    @contextlib.contextmanager
    def as_judged(self) -> Iterator[Classifier]:
        """The model in eval mode, with averaged weights and statistics where there are any."""
        for flat in self.flats:
            flat.spread(averaged=True)
        kept = self.statistics.clone()
        if self.averaged_statistics is not None:
            self.statistics.copy_(self.averaged_statistics)
        self.model.eval()
        try:
            yield self.model
        finally:
            self.model.train()
            self.statistics.copy_(kept)
            for flat in self.flats:
                flat.spread()

    def evaluate(self, split: str) -> Evaluation:
        with self.as_judged() as model:
            return evaluate(
                lambda rows: _forward(model.trunk, rows, None, None, None),
                model.head,
                self.criterion.logits,
                self.resident[split],
                batch_size=EVALUATED,
            )

    @torch.no_grad()
    def hits(self, split: str) -> Tensor:
        """Correctly recognised rows of each class (C,), on the device: nothing waits for it."""
        inputs, labels = self.resident[split].inputs, self.resident[split].labels
        with self.as_judged() as model:
            guesses = [
                model.head(_forward(model.trunk, rows, None, None, None)).argmax(dim=1)
                for rows in inputs.split(EVALUATED)
            ]
        right = (torch.cat(guesses) == labels).long()
        return torch.zeros(self.job.data.num_classes, dtype=torch.int64, device=labels.device).scatter_add_(
            0, labels, right
        )

    def weights(self) -> dict[str, np.ndarray]:
        """The trained model's state in float32, by the names of an ordinary `Classifier`."""
        with self.as_judged() as model:
            found = {name: value.float().cpu().numpy() for name, value in model.state_dict().items()}
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        for flat in self.flats:
            for parameter, value in zip(flat.parameters, flat.full_precision(), strict=True):
                found[names[id(parameter)]] = value.contiguous().cpu().numpy()
        return found


def _gather_statistics(model: nn.Module, device: torch.device) -> Tensor:
    """The running means and variances of all batch norms in one buffer, of which theirs are now views.

    Their counters are dropped: nothing reads them, and each would be a kernel a step.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    parts = [(norm, name) for norm in norms for name in ("running_mean", "running_var")]
    buffer = torch.cat([getattr(norm, name) for norm, name in parts]) if parts else torch.zeros(0, device=device)
    at = 0
    for norm, name in parts:
        setattr(norm, name, buffer[at : at + norm.num_features])
        at += norm.num_features
        norm.num_batches_tracked = None
    return buffer


def _by_precision(model: Classifier) -> tuple[list[tuple[nn.Module, str]], list[tuple[nn.Module, str]]]:
    """Places of the parameters that compute in bfloat16 (the trunk's convolutions and matrices), and of the others."""
    low: list[tuple[nn.Module, str]] = []
    high: list[tuple[nn.Module, str]] = []
    inside = {id(module) for module in model.trunk.modules()}
    for module in model.modules():
        for name, _ in module.named_parameters(recurse=False):
            is_low = id(module) in inside and isinstance(module, (nn.Conv2d, nn.Linear))
            (low if is_low else high).append((module, name))
    return low, high


class Pack:
    """R replicas that start at the same step, and the graph that moves them all one step on."""

    def __init__(self, replicas: list[Replica], forward: Callable[..., Tensor]):
        self.replicas, self.forward = replicas, forward
        self.capture()

    def capture(self) -> None:
        """Nothing; `graph` holds one step of every replica, each on a stream of its own."""
        streams = self.streams = [torch.cuda.Stream() for _ in self.replicas]
        torch.cuda.synchronize()
        for replica, stream in zip(self.replicas, streams, strict=True):
            before = {name: tensor.clone() for name, tensor in replica.state().items()}
            replica.place.zero_()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                replica.advance(self.forward)  # compiles, and makes every library's handles and work space
            torch.cuda.current_stream().wait_stream(stream)
            replica.load(before)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            main = torch.cuda.current_stream()
            for replica, stream in zip(self.replicas, streams, strict=True):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    replica.advance(self.forward)
            for stream in streams:
                main.wait_stream(stream)

    def run(self, num_steps: int, should_stop: Callable[[], bool]) -> int:
        """How many of the steps were made: all of them unless a stop was called for."""
        marks: list[torch.cuda.Event] = []
        for step in range(num_steps):
            self.graph.replay()
            if (step + 1) % RUN_AHEAD == 0:
                marks.append(torch.cuda.Event())
                marks[-1].record()
                if len(marks) > 1:
                    marks[-2].synchronize()
                if should_stop():
                    return step + 1
        return num_steps

    def validate(self) -> list[list[int]]:
        """Correctly recognised validation rows of each class, by replica; empty lists where there are no such rows."""
        if "val" not in self.replicas[0].resident:
            return [[] for _ in self.replicas]
        main, hits = torch.cuda.current_stream(), []
        for replica, stream in zip(self.replicas, self.streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                hits.append(replica.hits("val"))
        for stream in self.streams:
            main.wait_stream(stream)
        return torch.stack(hits).tolist()


def run(
    trials: Sequence[Trial],
    job: Job,
    device: torch.device,
    pack_size: int | None,
    deterministic: bool,
    should_stop: Callable[[], bool],
    say: Callable[[int, Record], None],
    ended: Callable[[int, Outcome], None],
) -> None:
    """Nothing; `ended(place, outcome)` hears of each trial as it ends. Stops when told to."""
    with torch.cuda.device(device), _settings(deterministic):
        resident = {
            name: Split(split.inputs.to(device), split.labels.to(device), None)
            for name, split in job.data.splits.items()
        }
        training = job.training
        signature = (training.model, training.model_options, job.data.input_shape, job.batch_size, training.flip,
                     training.translate_px > 0, deterministic)  # fmt: skip
        forward = _compiled(signature)
        tables = Tables(training, job.num_steps, device)
        about = {**environment.describe(device), "deterministic": deterministic}

        def train_pack(places: list[int]) -> bool:
            replicas = []
            for place in places:
                record = Record(trials[place], job, {**about, "replicas": len(places)})
                replicas.append(Replica(trials[place], job, resident, tables, record))
                _resume(replicas[-1])
            pack = Pack(replicas, forward)
            return _train(pack, places, should_stop, say, ended)

        starts: dict[tuple[int, int], list[int]] = {}
        for place, trial in enumerate(trials):
            starts.setdefault(_start(trial, job), []).append(place)
        for _, places in sorted(starts.items(), reverse=True):
            if not in_packs(places, pack_size or PACK_SIZE, train_pack):
                return


def _start(trial: Trial, job: Job) -> tuple[int, int]:
    """Epoch and step at which a trial goes on."""
    path = job.checkpoint_of(trial)
    found = None if path is None else checkpoint.read(path, engine="cuda")
    return (0, 0) if found is None else (found[1]["epoch"], found[1]["step_in_epoch"])


def _resume(replica: Replica) -> None:
    path = replica.job.checkpoint_of(replica.trial)
    found = None if path is None else checkpoint.read(path, engine="cuda")
    if found is not None:
        tensors, notes = found
        replica.record.restore(notes)
        replica.load(tensors)


def _save(replicas: list[Replica]) -> None:
    for replica in replicas:
        path = replica.job.checkpoint_of(replica.trial)
        if path is not None:
            tensors = {name: tensor.cpu() for name, tensor in replica.state().items()}
            checkpoint.write(path, tensors, {**replica.record.notes(), "engine": "cuda"})


def _train(
    pack: Pack,
    places: list[int],
    should_stop: Callable[[], bool],
    say: Callable[[int, Record], None],
    ended: Callable[[int, Outcome], None],
) -> bool:
    """Whether every replica of the pack came to its end; False if they were stopped, their checkpoints written."""
    job = pack.replicas[0].job
    place_of = dict(zip(pack.replicas, places, strict=True))
    saved_at = time.perf_counter()

    while pack.replicas[0].record.epoch < job.training.epochs:
        first = pack.replicas[0].record
        for replica in pack.replicas:
            replica.draw(first.epoch)
        made = pack.run(job.steps_per_epoch - first.step_in_epoch, should_stop)
        torch.cuda.synchronize()
        stopped = first.step_in_epoch + made < job.steps_per_epoch
        for replica in pack.replicas:
            replica.record.step_in_epoch += made
            replica.record.tick(len(pack.replicas))
        if stopped:
            _save(pack.replicas)
            return False
        lost = []
        sums = torch.stack([replica.loss_sum for replica in pack.replicas]).tolist()
        for replica, loss_sum, hits in zip(pack.replicas, sums, pack.validate(), strict=True):
            record = replica.record
            if not math.isfinite(loss_sum):
                error = f"the loss stopped being finite in epoch {record.epoch + 1}; {record.last_finite()}"
                ended(place_of[replica], record.failed(error))
                lost.append(replica)
                continue
            record.end_epoch(loss_sum / job.steps_per_epoch, hits)
            replica.loss_sum.zero_()
            replica.place.zero_()
            say(place_of[replica], record)
        if lost:
            pack.replicas = [replica for replica in pack.replicas if replica not in lost]
            if not pack.replicas:
                return True
            if (
                pack.replicas[0].record.epoch < job.training.epochs
            ):  # after the last step the tables have no more entries
                pack.capture()
        due = time.perf_counter() - saved_at > job.checkpoint_every_s
        if due and pack.replicas[0].record.epoch < job.training.epochs:
            _save(pack.replicas)
            saved_at = time.perf_counter()
        if should_stop() and pack.replicas[0].record.epoch < job.training.epochs:
            _save(pack.replicas)
            return False

    for replica in pack.replicas:
        replica.record.tick(len(pack.replicas))
        ended(place_of[replica], replica.record.done(replica.evaluate, replica.weights))
    return True


@contextlib.contextmanager
def _settings(deterministic: bool) -> Iterator[None]:
    """torch's switches as this engine wants them; as they were afterwards.

    cuDNN's benchmark mode is off: it picks what is fastest alone, which with eight branches was 3 % slower. Matrix
    products in float32 are full float32: in TF32 the cosines would be wrong in the third digit.
    """
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    cudnn = torch.backends.cudnn
    before: tuple[Any, ...] = (
        cudnn.benchmark,
        cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    )
    cudnn.benchmark, cudnn.deterministic = False, deterministic
    torch.use_deterministic_algorithms(deterministic)
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before[:2]
        torch.use_deterministic_algorithms(before[2])
        torch.set_float32_matmul_precision(before[3])
