"""The authors' CNN for several trials at once: every layer of all of them in one launch.

The convolutions and what lies between them run here, forward and backward, on tensors with the models as their first
dimension. Each model's dense layer, head and loss stay PyTorch's. Nothing is summed over models, and how a sum is split
does not depend on their number: a trial's bits are the same alone.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor, nn
from triton.tools.tensor_descriptor import TensorDescriptor

from camri.engine.cuda_replica import LOW, Replica
from camri.engine.fused_optimizer import stack
from camri.engine.kernels import convolution, layers
from camri.engine.replica import Job, prepare
from camri.models import Dropout, PaperCNN

CHANNELS = 16  # the first layer's inputs are padded to as many: the least that a tensor core multiplies
ROWS = 128  # pixels must come in multiples of this

SIDE = True
GROUPS = 2  # stacks of a pack: while one computes its losses, which fill little of the chip, the other convolves

Top = Callable[..., Tensor]
TOP: Top


def fits(trunk: nn.Module, job: Job) -> bool:
    """Whether the stack's kernels were written for this model and these inputs."""
    if type(trunk) is not PaperCNN or len(job.data.input_shape) != 3:
        return False
    height, width, channels = job.data.input_shape
    powers = all(side in (16, 32, 64) for side in (height, width))
    pixels = job.batch_size * height * width // 16
    return powers and channels <= CHANNELS and pixels % ROWS == 0 and job.data.splits["train"].inputs.dtype == torch.uint8


@dataclass
class Tile:
    """How a product is cut: rows, columns and depth of a block; taps together and parts of the sum (weights only)."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    taps: int = 1
    split: int = 1


def tile_of(kind: str, side: int, depth: int, columns: int) -> Tile:
    return Tile(128, min(columns, 128), min(depth, 64), 8 if columns > 64 else 4, 3)


def weight_tile(pixels: int, before: int, after: int) -> Tile:
    columns, rows = min(before, 128), min(after, 128)
    taps = 3 if columns < 128 else 1
    programs = (after // rows) * (before // columns) * (9 // taps)
    split = 1
    while programs * split < 64 and pixels // (64 * split * 2) >= 8:
        split *= 2
    return Tile(rows, columns, 64, 8 if rows * columns > 64 * 64 else 4, 3, taps, split)


class Layer:
    """A convolution with ReLU, and the batch norm or the pooling with dropout that follows it."""

    def __init__(self, owner: "Stack", source: Tensor, place: int, after: dict[str, int]):
        self.owner, self.after = owner, after
        self.num, images, self.height, self.width, self.before = source.shape
        modules = [replica.model.trunk.convolutions for replica in owner.replicas]
        conv = modules[0][place]
        self.channels = conv.out_channels
        self.images, self.pixels = images, images * self.height * self.width
        self.source = source
        self.weight, self.d_weight = owner.views(conv.weight)
        self.bias, self.d_bias = owner.views(conv.bias)
        self.padded = None
        if conv.in_channels < self.before:
            self.padded = source.new_zeros(self.num, self.channels, 9, self.before)
            self.d_padded = torch.zeros_like(self.padded)
        shape = (self.num, images, self.height, self.width, self.channels)
        self.y, self.dz = source.new_empty(shape), source.new_empty(shape)
        self.out, self.d_out = self.y, self.dz
        if "norm" in after:
            self.norm = modules[0][after["norm"]]
            self.gain, self.d_gain = owner.views(self.norm.weight)
            self.offset, self.d_offset = owner.views(self.norm.bias)
            self.running = owner.running(self.norm)
            self.out, self.d_out = torch.empty_like(self.y), torch.empty_like(self.y)
            self.mean, self.rstd = torch.zeros(2, self.num, self.channels, device=source.device)
        if "pool" in after:
            pooled = (self.num, images, self.height // 2, self.width // 2, self.channels)
            self.out, self.d_out = source.new_empty(pooled), source.new_empty(pooled)
            drops: list[Dropout] = [trunk[after["drop"]] for trunk in modules]
            self.seeds = torch.stack([drop.seeds for drop in drops])
            self.dropout = drops[0].p
        self.part = source.new_empty(self.num * self.pixels // 32 * 2 * self.channels, dtype=torch.float32)
        self.bias_part = torch.empty_like(self.part)

    def _images(self, x: Tensor, rows: int, columns: int) -> TensorDescriptor:
        """Blocks of whole rows or of whole images; beyond an image's edges they are 0."""
        x = x.flatten(0, 1)
        _, height, width, _ = x.shape
        tall = min(max(rows // width, 1), height)
        return TensorDescriptor.from_tensor(x, [max(rows // (height * width), 1), tall, width, columns])

    def _weights(self, block: list[int]) -> TensorDescriptor:
        if self.padded is not None:
            return TensorDescriptor.from_tensor(self.padded, block)
        shape = [self.num, self.channels, 9, self.before]
        strides = [self.weight.stride(0), 9 * self.before, self.before, 1]
        return TensorDescriptor(self.weight, shape, strides, block)

    def _convolve(self, x: Tensor, out: Tensor, back: bool, kind: int, act: "Layer | None", part: Tensor) -> int:
        depth, columns = x.shape[-1], out.shape[-1]
        tile = tile_of("back" if back else "forward", self.height, depth, columns)
        block = [1, tile.depth, 1, tile.columns] if back else [1, tile.columns, 1, tile.depth]
        blocks = self.pixels // tile.rows
        seen = act if act is not None and kind == 4 else None
        convolution.convolve[(self.num * blocks * (columns // tile.columns),)](
            self._images(x, tile.rows, tile.depth), self._weights(block), out, self.bias,
            out if act is None else act.y, part if seen is None else seen.mean, part if seen is None else seen.rstd,
            part, 0, self.bias.stride(0), self.images, self.height, self.width, depth, columns, back, kind, True,
            tile.rows, tile.columns, tile.depth, tile.stages, 8, num_warps=tile.warps,
        )  # fmt: skip
        return blocks

    def forward(self) -> None:
        if self.padded is not None:
            into = self.weight.shape[1] // (9 * self.channels)
            self.padded[..., :into].copy_(self.weight.view(self.num, self.channels, 9, into))
        has_norm = "norm" in self.after
        blocks = self._convolve(self.source, self.y, False, 2 if has_norm else 1, None, self.part)
        if has_norm:
            layers.finish_statistics[(self.channels // 16, self.num)](
                self.part, self.mean, self.rstd, self.running, self.running.stride(0), self.norm.momentum,
                self.norm.eps, blocks, triton.next_power_of_2(blocks), self.pixels // blocks, self.channels, 16,
            )  # fmt: skip
            size = self.pixels * self.channels
            layers.normalise[(triton.cdiv(size, 2048), self.num)](
                self.y, self.mean, self.rstd, self.gain, self.offset, self.gain.stride(0), self.out,
                self.pixels, self.channels, 2048,
            )  # fmt: skip
        if "pool" in self.after:
            size = self.pixels // 4 * self.channels
            layers.pool[(triton.cdiv(size, 1024), self.num)](
                self.y, self.out, *self._dropout(), 1024
            )  # fmt: skip

    def _dropout(self) -> tuple[Any, ...]:
        p = self.dropout
        return (
            self.seeds, self.owner.step, 1 / (1 - p), self.pixels // 4, self.width // 2, self.channels,
            round((p - 0.5) * 2**32), p > 0,
        )  # fmt: skip

    def backward(self, previous: "Layer | None", blocks: int) -> int:
        """From the gradient of this layer's output, `blocks` sums of which lie in `part`, to that of the one before."""
        if "norm" in self.after:
            layers.finish_sums[(triton.cdiv(self.channels, 32), self.num)](
                self.part, self.d_offset, self.d_gain, self.d_gain.stride(0), blocks, 2, self.channels, min(self.channels, 32), 32
            )
            blocks = self.pixels // 64
            layers.normalise_back[(blocks, self.channels // min(self.channels, 64), self.num)](
                self.d_out, self.y, self.mean, self.rstd, self.gain, self.d_offset, self.d_gain, self.gain.stride(0),
                self.dz, self.bias_part, self.pixels, self.channels, 64, min(self.channels, 64),
            )  # fmt: skip
        if "pool" in self.after:
            blocks = self.pixels // 4 // 32
            layers.pool_back[(blocks, self.channels // min(self.channels, 64), self.num)](
                self.d_out, self.y, self.dz, self.bias_part, *self._dropout(), 32, min(self.channels, 64),
            )  # fmt: skip
        with self.owner.beside():
            self._learn(blocks)
        if previous is None:
            return 0
        if "norm" in previous.after:
            return self._convolve(self.dz, previous.d_out, True, 4, previous, previous.part)
        if "pool" in previous.after:
            return self._convolve(self.dz, previous.d_out, True, 0, None, previous.part)
        return self._convolve(self.dz, previous.dz, True, 3, previous, previous.bias_part)

    def _learn(self, blocks: int) -> None:
        """Write the gradients of weight and bias."""
        layers.finish_sums[(triton.cdiv(self.channels, 32), self.num)](
            self.bias_part, self.d_bias, self.d_bias, self.d_bias.stride(0), blocks, 1, self.channels, min(self.channels, 32), 32
        )
        tile = weight_tile(self.pixels, self.before, self.channels)
        gradient = self.d_weight if self.padded is None else self.d_padded.flatten(1)
        size = 9 * self.before * self.channels
        target = gradient
        if tile.split > 1:
            target = torch.empty(tile.split * self.num, size, device=gradient.device)
        grid = (self.channels // tile.rows) * (self.before // tile.columns) * (9 // tile.taps) * tile.split * self.num
        convolution.weight_gradient[(grid,)](
            TensorDescriptor.from_tensor(self.dz.flatten(0, 3), [tile.depth, tile.rows]),
            self._images(self.source, tile.depth, tile.columns), target, target.stride(0),
            self.images, self.height, self.width, self.before, self.channels, tile.split, True, tile.taps,
            tile.rows, tile.columns, tile.depth, tile.stages, self.num, num_warps=tile.warps,
        )  # fmt: skip
        if tile.split > 1:
            convolution.add_parts[(triton.cdiv(size, 1024), self.num)](
                target, gradient, gradient.stride(0), size, tile.split, self.num, 1024
            )
        if self.padded is not None:
            into = self.weight.shape[1] // (9 * self.channels)
            self.d_weight.view(self.num, self.channels, 9, into).copy_(self.d_padded[..., :into])


class Stack:
    """Replicas whose buffers lie in one another's neighbourhood, and one training step of all of them."""

    def __init__(self, replicas: list[Replica]):
        self.replicas = replicas
        first = replicas[0]
        device = first.step.device
        for flats in zip(*(replica.flats for replica in replicas), strict=True):
            stack(flats)
        self.statistics = _gather(replicas, "statistics")
        self.averaged = None if first.averaged_statistics is None else _gather(replicas, "averaged_statistics")
        for replica in replicas:
            replica.place_statistics()
        self.loss_sum = _gather(replicas, "loss_sum")
        self.order = _gather(replicas, "order")
        self.mirrored = None if first.mirrored is None else _gather(replicas, "mirrored")
        self.shifts = None if first.shifts is None else _gather(replicas, "shifts")
        self.boxes = None if first.boxes is None else _gather(replicas, "boxes")
        self.step, self.place = first.step, first.place
        for replica in replicas:
            replica.step, replica.place = self.step, self.place
        height, width, _ = first.job.data.input_shape
        images = torch.zeros(len(replicas), first.job.batch_size, height, width, CHANNELS, dtype=LOW, device=device)
        self.images, source = images, images
        self.layers: list[Layer] = []
        modules = list(first.model.trunk.convolutions)
        kinds = {nn.BatchNorm2d: "norm", nn.MaxPool2d: "pool", Dropout: "drop"}
        starts = [place for place, module in enumerate(modules) if isinstance(module, nn.Conv2d)]
        for start, end in zip(starts, [*starts[1:], len(modules)], strict=True):
            after = {kinds[type(modules[place])]: place for place in range(start + 2, end)}
            self.layers.append(Layer(self, source, start, after))
            source = self.layers[-1].out
        shape = (len(replicas), first.job.batch_size, source.shape[-1])
        self.features, self.d_features = torch.zeros(2, *shape, dtype=LOW, device=device)
        self.losses = torch.zeros(len(replicas), device=device)
        on_gpu = device.type == "cuda"
        self.streams = [torch.cuda.Stream() for _ in replicas] if on_gpu else []
        self.side = torch.cuda.Stream() if on_gpu else None

    def views(self, parameter: nn.Parameter) -> tuple[Tensor, Tensor]:
        """A parameter of the first replica as (R, its size), those of the others below it; and its gradient."""
        for flat in self.replicas[0].flats:
            for place, mine in enumerate(flat.parameters):
                if mine is parameter:
                    shape, stride = (len(self.replicas), parameter.numel()), (flat.size, 1)
                    return tuple(b.as_strided(shape, stride, b.storage_offset() + flat.offsets[place])
                                 for b in (flat.weight, flat.gradient))  # fmt: skip
        raise AssertionError("not a parameter of the model")

    def running(self, norm: nn.Module) -> Tensor:
        """The running means of a norm, then its variances, a row a model."""
        start = norm.running_mean.storage_offset()
        shape = (len(self.replicas), 2 * norm.num_features)
        return self.statistics.as_strided(shape, (self.statistics.shape[1], 1), start)

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """What nothing waits for until the update runs on a stream of its own."""
        if not SIDE or self.side is None:
            yield
            return
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            yield

    def advance(self, forward: object = None) -> None:
        """Make one training step of every replica, all of it on the device."""
        top = TOP
        first, num = self.replicas[0], len(self.replicas)
        train = first.resident["train"]
        rows = self.order[:, self.place].flatten()
        dx, dy = (None, None) if self.shifts is None else (self.shifts[:, axis, self.place].flatten() for axis in (0, 1))
        mirrored = None if self.mirrored is None else self.mirrored[:, self.place].flatten()
        boxes = None if self.boxes is None else self.boxes[:, self.place].flatten(0, 2)
        pixels = prepare(train.inputs[rows], mirrored, dx, dy, LOW, boxes).permute(0, 2, 3, 1)
        self.images.flatten(0, 1)[..., : pixels.shape[-1]].copy_(pixels)
        for layer in self.layers:
            layer.forward()
        last = self.layers[-1]
        images, channels = num * last.images, last.channels
        area, block = last.height * last.width, min(last.channels, 64)
        layers.average[(images, channels // block)](last.y, self.features, area, channels, block)
        labels = train.labels[rows].view(num, -1)
        self._tops(top, labels)
        layers.average_back[(images, channels // block)](
            self.d_features, last.y, last.dz, last.bias_part, area, channels, block
        )
        blocks = last.images
        for layer, previous in zip(self.layers[::-1], [*self.layers[-2::-1], None], strict=True):
            blocks = layer.backward(previous, blocks)
        if SIDE and self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)
        for flat in first.flats:
            flat.apply(self.step, num)
        if self.averaged is not None:
            self.averaged.lerp_(self.statistics, 1 - first.tables.average[self.step])
        self.loss_sum += self.losses
        self.step += 1
        self.place += 1

    def _tops(self, top: Top, labels: Tensor) -> None:
        """Loss and gradients of each replica from the averaged features on, side by side."""
        main = torch.cuda.current_stream() if self.streams else None
        for place, replica in enumerate(self.replicas):
            if main is None:
                self._top(top, place, replica, labels)
                continue
            stream = self.streams[place]
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                self._top(top, place, replica, labels)
        for stream in self.streams:
            main.wait_stream(stream)

    def _top(self, top: Top, place: int, replica: Replica, labels: Tensor) -> None:
        given = self.features[place].detach().requires_grad_()
        loss = top(replica.model, replica.criterion, given, labels[place])
        inside = {id(p) for p in replica.model.trunk.convolutions.parameters()}
        chosen = [[k for k, p in enumerate(flat.parameters) if id(p) not in inside] for flat in replica.flats]
        wanted = [flat.parameters[k] for flat, ks in zip(replica.flats, chosen, strict=True) for k in ks]
        d_given, *gradients = torch.autograd.grad(loss, [given, *wanted])
        targets = [flat.gradients[k] for flat, ks in zip(replica.flats, chosen, strict=True) for k in ks]
        torch._foreach_copy_(targets, gradients)
        self.d_features[place].copy_(d_given)
        self.losses[place].copy_(loss.detach())


def stacks_of(replicas: Sequence[Replica]) -> list[Stack]:
    """The replicas in stacks; those with another head lie in memory in another way and get their own."""
    alike: dict[tuple[int, ...], list[Replica]] = {}
    for replica in replicas:
        alike.setdefault(tuple(flat.size for flat in replica.flats), []).append(replica)
    parts = [group[start::GROUPS] for group in alike.values() for start in range(GROUPS)]
    return [Stack(part) for part in parts if part]


def _gather(replicas: list[Replica], name: str) -> Tensor:
    """One tensor with a row a replica, whose own attribute becomes a view of it."""
    rows = torch.stack([getattr(replica, name) for replica in replicas])
    for replica, row in zip(replicas, rows, strict=True):
        setattr(replica, name, row)
    return rows


def run_top(model: nn.Module, criterion: nn.Module, averaged: Tensor, labels: Tensor) -> Tensor:
    """The loss from the averaged features on."""
    with torch.autocast(averaged.device.type, LOW, enabled=LOW != torch.float32):
        features = model.trunk.top(averaged)
    return criterion(model.head(features), labels)


TOP = run_top
