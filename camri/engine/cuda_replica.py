"""One trial as a branch of the captured graph: everything it reads and writes lives in tensors that never move."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from camri.data import Split
from camri.data.rows import Inputs
from camri.engine.feed import Feed
from camri.engine.fused_optimizer import Flat, Tables
from camri.engine.loop import decayed, rate_factors
from camri.engine.outcome import Record
from camri.engine.replica import Draws, Evaluation, Job, draw_epoch, evaluate, judged, prepare
from camri.engine.spec import Trial
from camri.models import Backbone, Classifier, resume_dropout
from camri.modules import Criterion


class PaddedConv2d(nn.Conv2d):
    """A convolution padded to eight input channels, for cuDNN's tensor-core kernels; the result is the same.

    With eight models side by side on an H200: 86,800 images/s; as patches and a matrix product 85,400.
    """

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        """Whether a layer can be converted to one by setting its class."""
        return (
            type(layer) is nn.Conv2d and layer.in_channels < 8 and layer.groups == 1 and layer.padding_mode == "zeros"
        )

    def forward(self, x: Tensor) -> Tensor:
        missing = (0, 0, 0, 0, 0, 8 - self.in_channels)
        weight = F.pad(self.weight, missing)
        return F.conv2d(F.pad(x, missing), weight, self.bias, self.stride, self.padding, self.dilation)


EVALUATED = 1000  # rows per batch in evaluation
LOW = torch.bfloat16

Forward = Callable[..., Tensor]  # trunk, rows, draws -> features


def run_trunk(trunk: nn.Module, inputs: Tensor, drawn: Draws) -> Tensor:
    """Compute the features of a split's rows, augmented as drawn.

    Uses autocast, because other packages' trunks mix float32 parts (embeddings, layer norms) with bfloat16.
    """
    dtype = precision(inputs)
    with torch.autocast(inputs.device.type, dtype, enabled=dtype != torch.float32):
        # A backbone subtracts its mean itself, from pixels that bfloat16 would round.
        given = torch.float32 if isinstance(trunk, Backbone) else dtype
        return trunk(prepare(inputs, given, drawn))


def precision(inputs: Inputs) -> torch.dtype:
    """The trunk's precision: bfloat16 for pixels; float32 for feature vectors (bfloat16 has three digits)."""
    return LOW if inputs.dtype == torch.uint8 else torch.float32


@functools.cache
def compiled(signature: object) -> Forward:
    """Compile `run_trunk` once for each kind of job; head and loss are eager, since they differ by method."""
    torch._dynamo.reset()  # a new kind of job: dynamo gives up after eight versions of one function
    return torch.compile(run_trunk, fullgraph=True, dynamic=False)


class Replica:
    """One trial on the device."""

    def __init__(
        self,
        trial: Trial,
        job: Job,
        made: tuple[Classifier, Criterion],
        splits: dict[str, Split],
        tables: Tables,
        record: Record,
        judge: Forward = run_trunk,
        feed: Feed | None = None,
    ):
        """`made` is the untrained model and its loss on the CPU; `judge` runs the trunk on full evaluation batches.

        `feed` provides the train rows if they are not on the device.
        """
        self.trial, self.job, self.splits, self.record, self.judge, self.feed = trial, job, splits, record, judge, feed
        device = splits["train"].labels.device
        model, criterion = made
        for module in model.trunk.modules():
            if PaddedConv2d.fits(module):
                module.__class__ = PaddedConv2d
        self.model: Classifier = model.to(device).train()
        self.criterion = criterion.to(device)
        low, high = _by_precision(self.model)
        averaged, dtypes = job.training.average > 0, (precision(splits["train"].inputs), torch.float32)
        decaying = {id(parameter) for parameter in decayed(self.model)}
        factors = rate_factors(self.model, job.training)
        self.flats = [
            Flat(places, dtype, tables, averaged, decaying, factors)
            for places, dtype in zip((low, high), dtypes, strict=True)
            if places
        ]
        self.statistics = _gather_statistics(self.model, device)
        self.place_statistics()
        self.averaged_statistics = self.statistics.clone() if averaged else None
        self.drawn = {name: draws.to(device) for name, draws in draw_epoch(trial, job, 0).items()}
        # Shape (1,), not (): the host would read a 0-d index.
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        self.loss_sum = torch.zeros((), device=device)
        self.tables = tables

    def place_statistics(self) -> None:
        """Make the running means and variances of all batch norms views of `statistics`."""
        at = 0
        for norm, name in _running(self.model):
            setattr(norm, name, self.statistics[at : at + norm.num_features])
            at += norm.num_features

    def draw(self, epoch: int) -> None:
        """Copy the epoch's random draws to the device."""
        for name, draws in draw_epoch(self.trial, self.job, epoch).items():
            self.drawn[name].copy_(draws)

    def advance(self, forward: Forward) -> None:
        """Make one training step, all of it on the device: this is what the graph captures."""
        train = self.splits["train"]
        here = {name: draws[self.place].squeeze(0) for name, draws in self.drawn.items()}
        rows = here.pop("order")
        inputs = train.inputs[rows] if self.feed is None else self.feed.batch(self.trial.seed, self.step)
        features = forward(self.model.trunk, inputs, here)
        loss = self.criterion(self.model.head(features), train.labels[rows], here.get("shares"))
        gradients = torch.autograd.grad(loss, [p for flat in self.flats for p in flat.parameters])
        at = 0
        for flat in self.flats:
            flat.update(gradients[at : at + len(flat.parameters)], self.step)
            at += len(flat.parameters)
        if self.averaged_statistics is not None:
            self.averaged_statistics.lerp_(self.statistics, 1 - self.tables.average[self.step])
        self.loss_sum += loss.detach()  # stays NaN; the host checks at the end of the epoch
        self.step += 1
        self.place += 1

    def state(self) -> dict[str, Tensor]:
        """Everything that changes in training, by name, for the checkpoint."""
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
            resume_dropout(self.model, self.step[0])
        for flat in self.flats:
            flat.spread()

    @contextlib.contextmanager
    def as_judged(self) -> Iterator[Classifier]:
        """The model in eval mode, with its averaged weights and statistics if it has them."""
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
                lambda rows: self._features(model, rows),
                model.head,
                self.criterion.logits,
                judged(self.splits, split),
                batch_size=EVALUATED,
            )

    def _features(self, model: Classifier, rows: Tensor) -> Tensor:
        # Each size and layout of a batch would be compiled again, so the last, smaller batch runs eagerly, and rows
        # that are not contiguous (every k-th of the train split) are copied together.
        forward = self.judge if len(rows) == EVALUATED else run_trunk
        return forward(model.trunk, rows.contiguous().to(self.step.device, non_blocking=True), {})

    @torch.no_grad()
    def hits(self, split: str) -> Tensor:
        """Number of correctly classified rows of each class (C,), on the device: the host does not wait."""
        inputs, labels = self.splits[split].inputs, self.splits[split].labels
        with self.as_judged() as model:
            batches = (inputs[at : at + EVALUATED] for at in range(0, len(labels), EVALUATED))
            guesses = [model.head(self._features(model, rows)).argmax(dim=1) for rows in batches]
        right = (torch.cat(guesses) == labels).long()
        return torch.zeros(self.job.data.num_classes, dtype=torch.int64, device=labels.device).scatter_add_(
            0, labels, right
        )

    def weights(self) -> dict[str, np.ndarray]:
        """The trained model's state in float32, by the names of an ordinary `Classifier`."""
        with self.as_judged() as model:
            found = {name: value.float().cpu().numpy().copy() for name, value in model.state_dict().items()}
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        for flat in self.flats:
            for parameter, value in zip(flat.parameters, flat.full_precision(), strict=True):
                found[names[id(parameter)]] = value.contiguous().cpu().numpy()
        return found


def _running(model: nn.Module) -> list[tuple[Any, str]]:
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    return [(norm, name) for norm in norms for name in ("running_mean", "running_var")]


def _gather_statistics(model: nn.Module, device: torch.device) -> Tensor:
    """Collect the running means and variances of all batch norms in one buffer.

    Their counters are dropped: they are never read, and each would cost one kernel per step.
    """
    parts = _running(model)
    for norm, _ in parts:
        norm.num_batches_tracked = None
    return torch.cat([getattr(norm, name) for norm, name in parts]) if parts else torch.zeros(0, device=device)


def _by_precision(model: Classifier) -> tuple[list[tuple[nn.Module, str]], list[tuple[nn.Module, str]]]:
    """Split parameters into those used in bfloat16 (the trunk's convolutions and matrices) and the others."""
    low: list[tuple[nn.Module, str]] = []
    high: list[tuple[nn.Module, str]] = []
    inside = {id(module) for module in model.trunk.modules()}
    for module in model.modules():
        for name, _ in module.named_parameters(recurse=False):
            is_low = id(module) in inside and isinstance(module, (nn.Conv2d, nn.Linear))
            (low if is_low else high).append((module, name))
    return low, high
