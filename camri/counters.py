"""Counters on the device that a forward pass reads and then advances."""

import torch
from torch import Tensor


def reading(counter: Tensor) -> Tensor:
    """What the counter shows now; what follows from it stays so in a compiled backward pass too.

    torch.compile may compute a value anew in the backward pass instead of keeping it, and then reads a counter that has
    been advanced (https://github.com/pytorch/pytorch/pull/197039): dropout's mask was that of the next call, the
    margin of a ramp that of the next step. An operator of our own is not computed anew; its result is kept.
    """
    return _copy(counter) if torch.compiler.is_compiling() else counter


@torch.library.custom_op("camri::reading", mutates_args=())
def _copy(counter: Tensor) -> Tensor:
    return counter.clone()


@_copy.register_fake
def _(counter: Tensor) -> Tensor:
    return torch.empty_like(counter)
