"""Several replicas of the authors' CNN, with one launch per layer for all of them.

The convolutions and what lies between them run here, forward and backward, on tensors with the models as their first
dimension; each model's dense layer, head and loss are PyTorch's. Nothing is summed over models, and how a sum is split
does not depend on their number, so a trial's bits are the same alone. `PaperCNN` is the reference in plain PyTorch.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn import grad
from triton.tools.tensor_descriptor import TensorDescriptor

from camri.engine.cuda_replica import LOW, Replica
from camri.engine.fused_optimizer import stack
from camri.engine.kernels import convolution, layers
from camri.engine.replica import Job, prepare
from camri.models import Dropout, PaperCNN

SIZE = 2  # replicas per stack; several stacks overlap losses, which use little of the chip, with convolutions
CHANNELS = 16  # the first layer's inputs are padded to as many: the least that a tensor core multiplies
ROWS = 128  # of a block; a batch's pixels must be a multiple at every layer
SIDES = (16, 32, 64)  # of the images
WRONG = 0.006  # relative error that rounding to bfloat16 does not explain


def fits(trunk: nn.Module, job: Job) -> bool:
    """Whether the kernels support this model and these inputs; costly augmentation is faster compiled."""
    training = job.training
    if type(trunk) is not PaperCNN or training.crop or training.trivial_augment or training.mixup:
        return False
    height, width, channels = job.data.input_shape
    is_even = job.batch_size * (height // 4) * (width // 4) % ROWS == 0
    is_image = job.data.splits["train"].inputs.dtype == torch.uint8 and channels <= CHANNELS
    return is_image and is_even and height in SIDES and width in SIDES


def stacks_of(replicas: Sequence[Replica]) -> list["Stack"]:
    """Group the replicas in stacks; each kind of head has another memory layout and gets its own."""
    alike: dict[tuple[int, ...], list[Replica]] = {}
    for replica in replicas:
        alike.setdefault(tuple(flat.size for flat in replica.flats), []).append(replica)
    return [Stack(group[at : at + SIZE]) for group in alike.values() for at in range(0, len(group), SIZE)]


@dataclass(frozen=True)
class Tile:
    """Tiling of a product: rows, columns and depth of a block; taps at a time and parts of the sum (weights only)."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    taps: int = 1
    split: int = 1


def tile_of(depth: int, columns: int, then: str) -> Tile:
    """Tile for a convolution from `depth` to `columns` channels: within a few % of the best for each layer (H200)."""
    columns = min(columns, 256 if then in ("relu", "nothing") else 128)  # sums take registers
    narrow = columns == 64 and depth > 16
    return Tile(ROWS, columns, min(depth, 64), 4 if narrow or then in ("statistics", "sums") else 8, 3)


def weight_tile(pixels: int, before: int, after: int) -> Tile:
    """Tile for the gradient of a weight: within a few % of the best for each layer (H200)."""
    side = 128 if min(before, after) >= 128 else 64
    rows, columns, taps = min(after, side), min(before, side), 3 if before < 64 else 1
    programs = 8 * (after // rows) * (before // columns) * (9 // taps)  # of eight models, however many there are
    split = 1
    while programs * split < 250 and pixels % (128 * split) == 0:
        split *= 2
    return Tile(rows, columns, 64, 4, 4 if taps == 1 else 3, taps, split)


class Layer:
    """A convolution with ReLU, and the batch norm or the pooling with dropout that follows it."""

    def __init__(self, owner: "Stack", source: Tensor, place: int, after: dict[str, int]):
        """`source` is the input (R, N, H, W, C); `place` and `after` are the modules' positions in the trunk."""
        self.owner, self.source, self.after = owner, source, after
        self.then = "statistics" if "norm" in after else "relu"
        self.num, self.images, self.height, self.width, self.before = source.shape
        self.pixels = self.images * self.height * self.width
        modules: list[Any] = [replica.model.trunk.convolutions for replica in owner.replicas]
        conv = modules[0][place]
        self.into, self.channels = conv.in_channels, conv.out_channels
        self.weight, self.d_weight = owner.views(conv.weight)
        self.bias, self.d_bias = owner.views(conv.bias)
        self.used, self.d_used = self.weight, self.d_weight
        if self.into < self.before:
            self.used, self.d_used = source.new_zeros(2, self.num, self.channels * 9 * self.before)
        self.turned = source.new_empty(self.num, self.channels * 9 * self.before)
        self.y = source.new_empty(*source.shape[:-1], self.channels)
        self.dz = torch.empty_like(self.y)  # gradient before the ReLU
        self.out, self.d_out = self.y, self.dz
        self.mean, self.rstd = torch.zeros(2, self.num, self.channels, device=source.device)
        if "norm" in after:
            self.norm = modules[0][after["norm"]]
            self.gain, self.d_gain = owner.views(self.norm.weight)
            self.offset, self.d_offset = owner.views(self.norm.bias)
            self.running = owner.running(self.norm)
            self.out, self.d_out = torch.empty_like(self.y), torch.empty_like(self.y)
        if "pool" in after:
            pooled = (self.num, self.images, self.height // 2, self.width // 2, self.channels)
            self.out, self.d_out = source.new_empty(pooled), source.new_empty(pooled)
            drops = [trunk[after["drop"]] for trunk in modules]
            self.seeds, p = torch.stack([drop.seeds for drop in drops]), drops[0].p
            self.dropout = (
                self.seeds, owner.step, 1 / (1 - p), self.pixels // 4, self.width // 2, self.channels,
                round((p - 0.5) * 2**32), p > 0,
            )  # fmt: skip
        # Sums over blocks of rows, of which a pass over the pixels leaves two at most.
        self.part, self.bias_part = torch.empty(
            2, self.num * self.pixels // 32 * 2 * self.channels, device=source.device
        )

    def _convolve(self, x: Tensor, weight: Tensor, out: Tensor, then: str, seen: "Layer", part: Tensor) -> int:
        """Launch `convolve` and return its number of blocks of rows; `seen` is the layer whose outputs it reads."""
        depth, columns = x.shape[-1], out.shape[-1]
        tile = tile_of(depth, columns, then)
        blocks = self.pixels // tile.rows
        convolution.convolve[(self.num * blocks * (columns // tile.columns),)](
            x, weight, out, self.bias, seen.y, seen.mean, seen.rstd, part, weight.stride(0), self.bias.stride(0),
            self.images, self.height, self.width, depth, columns, then,
            tile.rows, tile.columns, tile.depth, tile.stages, num_warps=tile.warps,
        )  # fmt: skip
        return blocks

    def forward(self) -> None:
        self._widen()
        blocks = self._convolve(self.source, self.used, self.y, self.then, self, self.part)
        if "norm" in self.after:
            layers.finish_statistics[(self.channels // 16, self.num)](
                self.part, self.mean, self.rstd, self.running, self.running.stride(0), self.norm.momentum,
                self.norm.eps, blocks, triton.next_power_of_2(blocks), self.pixels // blocks, self.channels, 16,
            )  # fmt: skip
            layers.normalise[(triton.cdiv(self.pixels * self.channels, 2048), self.num)](
                self.y, self.mean, self.rstd, self.gain, self.offset, self.gain.stride(0), self.out,
                self.pixels, self.channels, 2048,
            )  # fmt: skip
        if "pool" in self.after:
            grid = (triton.cdiv(self.pixels // 4 * self.channels, 1024), self.num)
            layers.pool[grid](self.y, self.out, *self.dropout, 1024)

    def backward(self, previous: "Layer | None", blocks: int) -> int:
        """Backpropagate to the previous layer's output; `blocks` is the number of partial sums of the gradient."""
        width = min(self.channels, 64)
        if "norm" in self.after:
            self._add_up(self.part, blocks, self.d_offset, self.d_gain)
            blocks = self.pixels // 64
            layers.normalise_back[(blocks, self.channels // width, self.num)](
                self.d_out, self.y, self.mean, self.rstd, self.gain, self.d_offset, self.d_gain, self.gain.stride(0),
                self.dz, self.bias_part, self.pixels, self.channels, 64, width,
            )  # fmt: skip
        if "pool" in self.after:
            blocks = self.pixels // 4 // 32
            layers.pool_back[(blocks, self.channels // width, self.num)](
                self.d_out, self.y, self.dz, self.bias_part, *self.dropout, 32, width
            )
        self._add_up(self.bias_part, blocks, self.d_bias)
        self._weigh()
        return self._pass_down(previous) if previous is not None else 0

    def _pass_down(self, previous: "Layer") -> int:
        """Write the gradient of this layer's input, the output of `previous`; return the number of its sums."""
        block = min(self.before, self.channels, 64)
        grid = (self.channels // block * (self.before // block), 9, self.num)
        convolution.turn[grid](self.weight, self.turned, self.weight.stride(0), self.before, self.channels, block)
        then = "sums" if "norm" in previous.after else "nothing" if "pool" in previous.after else "mask"
        part = previous.bias_part if then == "mask" else previous.part
        return self._convolve(self.dz, self.turned, previous.d_out, then, previous, part)

    def largest_error(self, previous: "Layer | None", drawn: torch.Generator) -> float:
        """Largest relative error of the kernels' output and gradients against PyTorch's in float32, on random inputs.

        Overwrites the same buffers as a step. Weights and running statistics are unchanged.
        """
        self.source[..., : self.into].normal_(generator=drawn)
        self.dz.normal_(generator=drawn)
        self._widen()
        self._convolve(self.source, self.used, self.y, self.then, self, self.part)
        self._weigh()
        if previous is not None:
            self._pass_down(previous)
        errors = []
        for model in range(self.num):
            x, slope = (planes[model].permute(0, 3, 1, 2).float() for planes in (self.source, self.dz))
            kernel = self.used[model].view(self.channels, 3, 3, self.before).permute(0, 3, 1, 2).float()
            pairs = [
                (self.y[model], F.conv2d(x, kernel, self.bias[model].float(), padding=1).relu()),
                (self.d_used[model].view(self.channels, 3, 3, self.before),
                 grad.conv2d_weight(x, kernel.shape, slope, padding=1)),
            ]  # fmt: skip
            if previous is not None:
                dx = grad.conv2d_input(x.shape, kernel, slope, padding=1)
                pairs.append((previous.d_out[model], dx if previous.out is not previous.y else dx * (x > 0)))
            errors += [(mine.float() - want.permute(0, 2, 3, 1)).norm() / want.norm() for mine, want in pairs]
        return float(torch.stack(errors).nan_to_num(nan=float("inf")).max())

    def _add_up(self, part: Tensor, blocks: int, *targets: Tensor) -> None:
        """Write the sums of blocks, one or two, as gradients."""
        width = min(self.channels, 32)
        layers.finish_sums[(self.channels // width, self.num)](
            part, targets[0], targets[-1], targets[0].stride(0), blocks, len(targets), self.channels, width, 32
        )

    def _weigh(self) -> None:
        """Write the weight's gradient."""
        tile, size = weight_tile(self.pixels, self.before, self.channels), 9 * self.before * self.channels
        target = self.d_used
        if tile.split > 1:
            target = torch.empty(tile.split * self.num, size, device=target.device)
        grid = (self.channels // tile.rows) * (self.before // tile.columns) * (9 // tile.taps) * tile.split * self.num
        tall = min(max(tile.depth // self.width, 1), self.height)
        block = [max(tile.depth // (self.height * self.width), 1), tall, self.width, tile.columns]
        convolution.weight_gradient[(grid,)](
            TensorDescriptor.from_tensor(self.dz.flatten(0, 3), [tile.depth, tile.rows]),
            TensorDescriptor.from_tensor(self.source.flatten(0, 1), block), target, target.stride(0), self.num,
            self.images, self.height, self.width, self.before, self.channels, tile.split, tile.taps,
            tile.rows, tile.columns, tile.depth, tile.stages, num_warps=tile.warps,
        )  # fmt: skip
        if tile.split > 1:
            convolution.add_parts[(triton.cdiv(size, 1024), self.num)](
                target, self.d_used, self.d_used.stride(0), size, self.num, tile.split, 1024
            )
        if self.into < self.before:
            self.d_weight.view(self.num, self.channels, 9, self.into).copy_(self._narrow(self.d_used))

    def _widen(self) -> None:
        """Copy the model's weights into the padded ones, if they are padded."""
        if self.into < self.before:
            self._narrow(self.used).copy_(self.weight.view(self.num, self.channels, 9, self.into))

    def _narrow(self, padded: Tensor) -> Tensor:
        """The part of padded weights that the model has."""
        return padded.view(self.num, self.channels, 9, self.before)[..., : self.into]


class Stack:
    """Replicas with stacked buffers, and one training step of all of them."""

    def __init__(self, replicas: list[Replica]):
        self.replicas, first = replicas, replicas[0]
        for flats in zip(*(replica.flats for replica in replicas), strict=True):
            stack(flats)
        self.statistics, self.averaged = self._gather("statistics"), self._gather("averaged_statistics")
        self.loss_sum = self._gather("loss_sum")
        self.drawn = {name: torch.stack([replica.drawn[name] for replica in replicas]) for name in first.drawn}
        for place, replica in enumerate(replicas):
            replica.drawn = {name: draws[place] for name, draws in self.drawn.items()}
        self.step, self.place = first.step, first.place
        for replica in replicas:
            replica.place_statistics()
            replica.step, replica.place = self.step, self.place
        device, batch_size = self.step.device, first.job.batch_size
        height, width, _ = first.job.data.input_shape
        self.images = torch.zeros(len(replicas), batch_size, height, width, CHANNELS, dtype=LOW, device=device)
        trunk: Any = first.model.trunk
        modules: list[nn.Module] = list(trunk.convolutions)
        kinds: dict[type, str] = {nn.BatchNorm2d: "norm", nn.MaxPool2d: "pool", Dropout: "drop"}
        starts = [place for place, module in enumerate(modules) if isinstance(module, nn.Conv2d)]
        self.layers: list[Layer] = []
        for start, end in zip(starts, [*starts[1:], len(modules)], strict=True):
            after = {kinds[type(modules[place])]: place for place in range(start + 2, end)}  # its ReLU in between
            source = self.layers[-1].out if self.layers else self.images
            self.layers.append(Layer(self, source, start, after))
        shape = (len(replicas), batch_size, self.layers[-1].channels)
        self.features, self.d_features = torch.zeros(2, *shape, dtype=LOW, device=device)
        self.losses = torch.zeros(len(replicas), device=device)
        inside = {id(p) for p in trunk.convolutions.parameters()}
        self.above = [[k for k, p in enumerate(flat.parameters) if id(p) not in inside] for flat in first.flats]
        self.streams = [torch.cuda.Stream() for _ in replicas] if device.type == "cuda" else []

    def _gather(self, name: str) -> Any:
        """Gather an attribute of all replicas in one tensor, of which each becomes a view; None if they have None."""
        if getattr(self.replicas[0], name) is None:
            return None
        rows = torch.stack([getattr(replica, name) for replica in self.replicas])
        for replica, row in zip(self.replicas, rows, strict=True):
            setattr(replica, name, row)
        return rows

    @torch.no_grad()
    def is_right(self) -> bool:
        """Whether the kernels agree with PyTorch on this device, layer by layer; takes about as long as a few steps.

        With Triton 3.6 some tiles were wrong by 1 to 24 %, without an error (reproduce/speed). Rounding is 0.3 %.
        """
        drawn = torch.Generator(self.step.device).manual_seed(0)
        pairs = zip(self.layers, [None, *self.layers[:-1]], strict=True)
        return all(layer.largest_error(previous, drawn) < WRONG for layer, previous in pairs)

    def release(self) -> None:
        """Give each replica its own counters again, so that it can be trained as a branch."""
        for replica in self.replicas:
            replica.step, replica.place = self.step.clone(), self.place.clone()

    def views(self, parameter: nn.Parameter) -> tuple[Tensor, Tensor]:
        """A parameter of the first replica as (R, its size), those of the others below it; and its gradient."""
        flat, place = next(
            (flat, place)
            for flat in self.replicas[0].flats
            for place, mine in enumerate(flat.parameters)
            if mine is parameter
        )
        shape, stride, start = (len(self.replicas), parameter.numel()), (flat.size, 1), flat.offsets[place]
        return flat.weight.as_strided(shape, stride, start), flat.gradient.as_strided(shape, stride, start)

    def running(self, norm: Any) -> Tensor:
        """The running means of a batch norm, then its variances, one row per model."""
        shape, stride = (len(self.replicas), 2 * norm.num_features), (self.statistics.shape[1], 1)
        return self.statistics.as_strided(shape, stride, norm.running_mean.storage_offset())

    def advance(self) -> None:
        """Make one training step of every replica, all of it on the device."""
        first, num, last = self.replicas[0], len(self.replicas), self.layers[-1]
        train = first.splits["train"]
        here = {name: draws[:, self.place].flatten(0, 2) for name, draws in self.drawn.items()}
        rows = here.pop("order")
        seeds, feed = [replica.trial.seed for replica in self.replicas], first.feed
        inputs = train.inputs[rows] if feed is None else torch.cat([feed.batch(seed, self.step) for seed in seeds])
        pixels = prepare(inputs, LOW, here).permute(0, 2, 3, 1)
        self.images.flatten(0, 1)[..., : pixels.shape[-1]].copy_(pixels)
        for layer in self.layers:
            layer.forward()
        width, area = min(last.channels, 64), last.height * last.width
        grid = (num * last.images, last.channels // width)
        layers.average[grid](last.y, self.features, area, last.channels, width)
        self._judge(train.labels[rows].view(num, -1))
        layers.average_back[grid](self.d_features, last.y, last.dz, last.bias_part, area, last.channels, width)
        blocks = last.images
        for layer, previous in zip(self.layers[::-1], [*self.layers[-2::-1], None], strict=True):
            blocks = layer.backward(previous, blocks)
        for flat in first.flats:
            flat.apply(self.step, num)
        if self.averaged is not None:
            self.averaged.lerp_(self.statistics, 1 - first.tables.average[self.step])
        self.loss_sum += self.losses
        self.step += 1
        self.place += 1

    def _judge(self, labels: Tensor) -> None:
        """Compute loss and gradients of each replica from the averaged features on, in parallel."""
        main = torch.cuda.current_stream() if self.streams else None
        for place, replica in enumerate(self.replicas):
            with contextlib.ExitStack() as on_stream:
                if main is not None:
                    self.streams[place].wait_stream(main)
                    on_stream.enter_context(torch.cuda.stream(self.streams[place]))
                trunk: Any = replica.model.trunk
                averaged = self.features[place].detach().requires_grad_()
                with torch.autocast(averaged.device.type, LOW, enabled=torch.float32 != LOW):
                    features = trunk.top(averaged)
                loss = replica.criterion(replica.model.head(features), labels[place])
                wanted = [flat.parameters[k] for flat, ks in zip(replica.flats, self.above, strict=True) for k in ks]
                slope, *gradients = torch.autograd.grad(loss, [averaged, *wanted])
                for flat, ks in zip(replica.flats, self.above, strict=True):
                    torch._foreach_copy_([flat.gradients[k] for k in ks], gradients[: len(ks)])
                    gradients = gradients[len(ks) :]
                self.d_features[place].copy_(slope)
                self.losses[place].copy_(loss.detach())
        for stream in self.streams:
            torch.cuda.current_stream().wait_stream(stream)
