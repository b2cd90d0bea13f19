"""Dropout whose masks follow from a seed and the number of the call, so that a trial depends on its own seed alone."""

import hashlib
import struct
from numbers import Real

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from camri.counters import reading
from camri.errors import InputError


class Dropout(nn.Module):
    """`x` with each entry zeroed with probability `p` and the rest scaled by 1 / (1 - p), in training only.

    Until it is seeded this is `F.dropout`. With a seed the mask is a hash of (seed, number of the call, position):
    it depends on nothing else, is the same on every device, needs no generator, and can be compiled, captured in a
    CUDA graph and resumed at any call.

    >>> drop = Dropout(0.5)
    >>> seed_dropout(drop, 0)
    >>> drop(torch.ones(8))
    tensor([2., 2., 0., 2., 0., 0., 0., 2.])
    """

    calls: Tensor
    seeds: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        if not (isinstance(p, (int, float, Real)) and 0 <= p < 1):
            raise InputError(f"dropout p={p!r} must be a number of at least 0 and below 1")
        self.p = p
        self.seeded = False
        # Tensors and not numbers: a compiler would make one version of the model for each seed.
        self.register_buffer("seeds", torch.zeros(2, dtype=torch.int32), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if not self.seeded:
            return F.dropout(x, self.p, self.training)
        key = _hash(reading(self.calls), self.seeds[1]) + self.seeds[0]
        kept = _hash(_position(x), key) >= round((self.p - 0.5) * 2**32)
        self.calls += 1
        return torch.where(kept, x * (1 / (1 - self.p)), 0)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def seed_dropout(model: nn.Module, seed: int) -> None:
    """Nothing; the masks of every `Dropout` in `model` follow from `seed` from now on, the calls counted from 0."""
    for place, layer in enumerate(_layers(model)):
        digest = hashlib.blake2b(f"dropout/{seed}/{place}".encode(), digest_size=8).digest()
        layer.seeded = True
        layer.seeds.copy_(torch.tensor(struct.unpack(">ii", digest), dtype=torch.int32))
        layer.calls.zero_()


def resume_dropout(model: nn.Module, num_calls: int | Tensor) -> None:
    """Nothing; the masks of every `Dropout` in `model` go on as if that many calls had been made."""
    for layer in _layers(model):
        layer.calls.fill_(num_calls)


def _layers(model: nn.Module) -> list[Dropout]:
    return [module for module in model.modules() if isinstance(module, Dropout)]


def _position(x: Tensor) -> Tensor:
    """The number of each entry, int32, counted with the channels last, as images lie in memory."""
    number = torch.arange(x.numel(), dtype=torch.int32, device=x.device)
    return number.view(x.shape) if x.dim() != 4 else number.view(x.movedim(1, -1).shape).movedim(-1, 1)


def _hash(x: Tensor, key: Tensor | int) -> Tensor:
    """int32 -> int32 that looks random (Ellis' lowbias32 between two additions of the key); products wrap around."""
    for multiplier, shift in ((0x7FEB352D, 15), (-0x7B935975, 16)):
        x = x + key
        x = x ^ ((x >> 16) & 0xFFFF)
        x = x * multiplier
        x = x ^ ((x >> shift) & (2 ** (32 - shift) - 1))
    return x
