"""Parameters of one precision in one buffer, and the kernel that updates them in one pass.

The model computes with `weight` (bfloat16 or float32); `master` holds the same numbers in float32. One kernel reads the
gradients and writes master, moments, weight and average. This replaces autocast's casts at every step and the hundreds
of small launches of an ordinary optimiser.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from camri.engine import spec
from camri.engine.loop import ADAM_EPS
from camri.engine.spec import OPTIMIZERS, Training

ALIGNED = 64  # elements: every parameter starts at a multiple of 128 bytes
BETA1, BETA2 = 0.9, 0.999
BLOCK = 1024


class Tables:
    """Values that depend on the step, for all steps, on the device: computed once in float64."""

    def __init__(self, training: Training, num_steps: int, device: torch.device):
        self.training = training
        rates = spec.learning_rates(training, num_steps).double()
        step = torch.arange(1, num_steps + 1, dtype=torch.float64)
        adam = training.optimizer != "sgd"
        first = rates / (1 - BETA1**step) if adam else rates
        second = (1 - BETA2**step).rsqrt() if adam else torch.ones_like(step)
        self.average = spec.average_decays(training, num_steps).to(device)
        rows = [first, second, rates * training.weight_decay, self.average.cpu().double()]
        self.all = torch.stack(rows).float().to(device)


class Flat:
    """Some of a model's parameters, replaced by views of one buffer."""

    def __init__(
        self,
        places: Sequence[tuple[nn.Module, str]],
        dtype: torch.dtype,
        tables: Tables,
        averaged: bool,
        decaying: Collection[int],
        factors: Mapping[int, float] = MappingProxyType({}),
    ):
        """`places` are the parameters' modules and names, `decaying` the ids of those that weight decay acts on.

        `factors` multiply a parameter's learning rate; default 1.
        """
        self.tables = tables
        places = sorted(places, key=lambda place: id(getattr(*place)) not in decaying)  # first those with weight decay
        sizes = [-(-getattr(*place).numel() // ALIGNED) * ALIGNED for place in places]
        self.num_decayed = sum(
            size for size, place in zip(sizes, places, strict=True) if id(getattr(*place)) in decaying
        )
        originals = [getattr(*place).detach() for place in places]
        self.size = sum(sizes)
        device = originals[0].device
        self.master, self.first, self.second = torch.zeros(3, self.size, device=device)
        self.weight = torch.zeros(self.size, dtype=dtype, device=device)
        self.gradient = torch.zeros_like(self.weight)
        self.offsets = [sum(sizes[:place]) for place in range(len(sizes))]
        self.shapes = [original.shape for original in originals]
        for view, original in zip(self._views(self.master), originals, strict=True):
            view.copy_(original)
        self.average = self.master.clone() if averaged else None
        own = [factors.get(id(getattr(*place)), 1.0) for place in places]
        self.factor = None
        if any(factor != 1.0 for factor in own):
            self.factor = torch.cat([torch.full((size,), f) for size, f in zip(sizes, own, strict=True)]).to(device)
        self.weight.copy_(self.master)
        self.gradients = self._views(self.gradient)
        self.parameters = [nn.Parameter(view) for view in self._views(self.weight)]
        for (module, name), parameter in zip(places, self.parameters, strict=True):
            setattr(module, name, parameter)

    def update(self, gradients: Sequence[Tensor], step: Tensor) -> None:
        """Make one step of the optimiser."""
        torch._foreach_copy_(self.gradients, list(gradients))
        self.apply(step)

    def apply(self, step: Tensor, num_models: int = 1) -> None:
        """Make one step with the gradients in the buffer, for `num_models` buffers stacked by `stack`."""
        training = self.tables.training
        _update[(triton.cdiv(self.size, BLOCK), num_models)](
            self.master,
            self.first,
            self.second,
            self.gradient,
            self.weight,
            self.master if self.average is None else self.average,
            self.master if self.factor is None else self.factor,
            self.tables.all,
            step,
            self.tables.all.shape[1],
            self.size,
            self.num_decayed,
            training.weight_decay,
            training.momentum,
            ADAM_EPS,
            KIND=OPTIMIZERS.index(training.optimizer),
            AVERAGED=self.average is not None,
            FACTORED=self.factor is not None,
            BETA1=BETA1,
            BETA2=BETA2,
            BLOCK=BLOCK,
        )

    def spread(self, averaged: bool = False) -> None:
        """Copy the master weights, or on request their average, into the model's weights."""
        source = self.average if averaged and self.average is not None else self.master
        with torch.no_grad():
            self.weight.copy_(source)

    def state(self) -> dict[str, Tensor]:
        found = {"master": self.master, "first": self.first, "second": self.second}
        return found if self.average is None else {**found, "average": self.average}

    def full_precision(self) -> list[Tensor]:
        """The parameters in float32; their average if there is one."""
        return self._views(self.master if self.average is None else self.average)

    def _views(self, buffer: Tensor) -> list[Tensor]:
        """Each parameter's part of a buffer, in its own shape; convolution kernels are channels-last."""
        views = []
        for offset, shape in zip(self.offsets, self.shapes, strict=True):
            part = buffer[offset : offset + shape.numel()]
            if len(shape) == 4:
                out, into, height, width = shape
                views.append(part.view(out, height, width, into).permute(0, 3, 1, 2))
            else:
                views.append(part.view(shape))
        return views


def stack(flats: Sequence[Flat]) -> None:
    """Stack buffers of the same layout, so that one kernel updates all models."""
    for name in ("master", "first", "second", "weight", "gradient", "average", "factor"):
        if getattr(flats[0], name) is not None:
            for flat, row in zip(flats, torch.stack([getattr(flat, name) for flat in flats]), strict=True):
                setattr(flat, name, row)
    for flat in flats:
        flat.gradients = flat._views(flat.gradient)
        for parameter, view in zip(flat.parameters, flat._views(flat.weight), strict=True):
            parameter.data = view


@triton.jit
def _update(  # type: ignore[no-untyped-def]
    master_ptr, first_ptr, second_ptr, gradient_ptr, weight_ptr, average_ptr, factor_ptr, table_ptr, step_ptr,
    num_steps, size, num_decayed, weight_decay, momentum, eps,
    KIND: tl.constexpr, AVERAGED: tl.constexpr, FACTORED: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """KIND: 0 Adam, 1 AdamW, 2 SGD with momentum, as torch.optim defines them."""
    within = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = within < size
    at = tl.program_id(1) * size + within
    step = tl.load(step_ptr)
    rate = tl.load(table_ptr + step)
    gradient = tl.load(gradient_ptr + at, mask=inside, other=0.0).to(tl.float32)
    master = tl.load(master_ptr + at, mask=inside, other=0.0)
    first = tl.load(first_ptr + at, mask=inside, other=0.0)
    decays = within < num_decayed
    decay = tl.load(table_ptr + 2 * num_steps + step)
    if FACTORED:
        factor = tl.load(factor_ptr + at, mask=inside, other=0.0)
        rate = rate * factor
        decay = decay * factor
    if KIND == 1:
        master = tl.where(decays, master * (1 - decay), master)
    else:
        gradient = tl.where(decays, gradient + weight_decay * master, gradient)
    if KIND == 2:
        first = momentum * first + gradient
        master = master - rate * first
    else:
        second = tl.load(second_ptr + at, mask=inside, other=0.0)
        first = BETA1 * first + (1 - BETA1) * gradient
        second = BETA2 * second + (1 - BETA2) * gradient * gradient
        master = master - rate * first / (tl.sqrt(second) * tl.load(table_ptr + num_steps + step) + eps)
        tl.store(second_ptr + at, second, mask=inside)
    tl.store(first_ptr + at, first, mask=inside)
    tl.store(master_ptr + at, master, mask=inside)
    tl.store(weight_ptr + at, master.to(weight_ptr.dtype.element_ty), mask=inside)
    if AVERAGED:
        keep = tl.load(table_ptr + 3 * num_steps + step)
        average = tl.load(average_ptr + at, mask=inside, other=0.0)
        tl.store(average_ptr + at, keep * average + (1 - keep) * master, mask=inside)
