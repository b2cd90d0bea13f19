"""Checks of the inputs of losses and models: shapes and numbers always, tensor values where reading them is cheap.

Also counters on the device, which a forward pass reads and then advances.
"""

import math
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from camri.errors import InputError

# π in float32, 9e-8 more than π: modules keep margins in float32, for float64 outputs too.
HIGHEST_MARGIN_RAD = torch.tensor(math.pi, dtype=torch.float32).item()


def is_size(value: Any) -> bool:
    """Whether a value is a whole number of at least 1; True and False are not."""
    return isinstance(value, (int, Integral)) and not isinstance(value, bool) and int(value) >= 1


def usable(outputs: Tensor) -> Tensor:
    """Return the outputs if they are a float tensor (…, C) of two or more classes; refuse anything else."""
    if not isinstance(outputs, Tensor):
        raise InputError(f"outputs of type {type(outputs).__name__} are no tensor; give the head's own output")
    if outputs.dim() < 2 or outputs.shape[-1] < 2:
        raise InputError(f"outputs of shape {tuple(outputs.shape)} are not (batch, classes) with two classes or more")
    if not outputs.is_floating_point():
        raise InputError(f"outputs of dtype {outputs.dtype} are not numbers a loss can use; give a float dtype")
    return outputs


def as_float(outputs: Tensor) -> Tensor:
    """Convert the outputs to float32, or keep float64: half precision is too coarse for a loss."""
    outputs = usable(outputs)
    return outputs if outputs.dtype == torch.float64 else outputs.float()


def per_class(values: Tensor, outputs: Tensor, name: str, *, scalar: bool = False) -> Tensor:
    """Convert the values (C,) to the outputs' dtype; with `scalar`, a single number counts for every class."""
    num_classes = outputs.shape[-1]
    if scalar and isinstance(values, Tensor) and values.dim() == 0:
        values = values.expand(num_classes)
    return _fitting(values, outputs, name, (num_classes,))


def square(values: Tensor, outputs: Tensor, name: str) -> Tensor:
    """Convert the values (C, C) to the outputs' dtype."""
    return _fitting(values, outputs, name, (outputs.shape[-1],) * 2)


def _fitting(values: Tensor, outputs: Tensor, name: str, wanted: tuple[int, ...]) -> Tensor:
    if not isinstance(values, Tensor):
        raise InputError(f"{name} of type {type(values).__name__} are no tensor; give one of shape {wanted}")
    if values.shape != wanted:
        if outputs.dim() > 2 and values.shape == (outputs.shape[1],) * len(wanted):
            raise _not_last(outputs)
        raise InputError(
            f"{name} of shape {tuple(values.shape)} does not fit {wanted[0]} classes, the last dimension of outputs of "
            f"shape {tuple(outputs.shape)}; give {wanted}"
        )
    return values.to(outputs.dtype)


def _not_last(outputs: Tensor) -> InputError:
    """The error for outputs (B, C, …), as PyTorch's own losses take them for images."""
    return InputError(
        f"the last dimension is the classes, and outputs of shape {tuple(outputs.shape)} seem to have them second; "
        f"give outputs.movedim(1, -1), with labels of shape {(outputs.shape[0], *outputs.shape[2:])}"
    )


def eager() -> bool:
    """Whether operations run at once: not inside torch.compile, torch.func.vmap or torch.func.grad."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is None


def check_loss_inputs(
    outputs: Tensor,
    labels: Tensor | None,
    *,
    scale: float | Tensor | None = None,
    margins: Tensor | None = None,
    label_smoothing: float = 0.0,
    bound: float | None = None,
    finite: dict[str, Tensor] | None = None,
    at_least_zero: dict[str, Tensor] | None = None,
    zero_diagonal: dict[str, Tensor] | None = None,
    sums_to_one: dict[str, Tensor] | None = None,
    validate: bool = False,
) -> None:
    """Refuse wrong shapes and numbers, and wrong tensor values where they can be read, or with `validate` always."""
    is_eager = eager()

    def readable(values: Tensor) -> bool:
        """Whether values can be read without waiting for a device or breaking a trace."""
        return validate or (is_eager and values.device.type == "cpu")

    if labels is not None:
        _refuse_unfit_labels(labels, outputs)
        if readable(labels) and labels.numel():
            _refuse_unknown_labels(labels, outputs.shape[-1])
    if scale is not None and (not isinstance(scale, Tensor) or scale.numel() != 1 or readable(scale)):
        value = scale.detach().item() if isinstance(scale, Tensor) and scale.numel() == 1 else scale
        if not (isinstance(value, (int, float, Real)) and 0 < value < math.inf):
            raise InputError(f"scale={value!r} is not allowed; it must be a finite number above 0", argument="scale")
    if not 0 <= label_smoothing < 1:
        raise InputError(f"label_smoothing={label_smoothing!r} is not allowed; it must be in [0, 1)", "label_smoothing")
    if margins is not None and readable(margins):
        _refuse_outside(margins, HIGHEST_MARGIN_RAD, "margins", "0 to π radians")
    for name, values in (at_least_zero or {}).items():
        if readable(values):
            _refuse_outside(values, torch.finfo(values.dtype).max, name, "finite numbers of at least 0")
    for name, values in (finite or {}).items():
        if readable(values):
            _refuse_if(values, ~values.isfinite(), name, "finite numbers")
    for name, values in (zero_diagonal or {}).items():
        if readable(values):
            diagonal = values.diagonal()
            _refuse_if(diagonal, diagonal != 0, f"diagonal of {name}", "0: a class is not mistaken for itself")
    if validate:
        highest = torch.finfo(outputs.dtype).max if bound is None else bound
        allowed = "finite numbers" if bound is None else "cosines in [-1, 1]"
        _refuse_if(outputs, ~(outputs.abs() <= highest), "outputs", allowed)
    elif bound is not None and readable(outputs) and outputs.numel():
        # Logits given by mistake would make the loss NaN. NaN outputs are left to the training loop to report.
        lowest, largest = outputs.detach().aminmax()
        if lowest.item() < -bound or largest.item() > bound:
            _refuse_if(outputs, outputs.abs() > bound, "outputs", "cosines in [-1, 1], as CosineHead gives them")
    for name, values in (sums_to_one or {}).items():
        if readable(values):
            sums = values.float().sum(dim=-1)
            _refuse_if(sums, ~((sums - 1).abs() <= 0.01), f"sum of {name}", "1: a row is a distribution")


def check_soft_labels(outputs: Tensor, labels: Tensor) -> None:
    """Refuse float labels that are not one distribution a row."""
    if labels.shape != usable(outputs).shape:
        raise InputError(
            f"labels of shape {tuple(labels.shape)} and dtype {labels.dtype} do not fit outputs of shape "
            f"{tuple(outputs.shape)}; give one class index (int64) a row, or probabilities in the shape of the outputs"
        )
    if labels.numel():
        check_loss_inputs(outputs, None, at_least_zero={"labels": labels}, sums_to_one={"labels": labels})


def _refuse_unfit_labels(labels: Tensor, outputs: Tensor) -> None:
    if not isinstance(labels, Tensor):
        raise InputError(f"labels of type {type(labels).__name__} are no tensor; give one class index (int64) a row")
    if labels.is_floating_point() or labels.dtype == torch.bool or labels.shape != outputs.shape[:-1]:
        if outputs.dim() > 2 and labels.shape == (outputs.shape[0], *outputs.shape[2:]):
            raise _not_last(outputs)
        raise InputError(
            f"labels of shape {tuple(labels.shape)} and dtype {labels.dtype} do not fit outputs of shape "
            f"{tuple(outputs.shape)}, whose last dimension is the classes; give one class index (int64) a row"
        )


def _refuse_unknown_labels(labels: Tensor, num_classes: int) -> None:
    ends = labels.long().aminmax()  # torch cannot compare uint16
    low, high = ends.min.item(), ends.max.item()
    if low < 0 or high >= num_classes:
        wrong = low if low < 0 else high
        raise InputError(f"label {wrong} is out of range; there are {num_classes} classes, 0 to {num_classes - 1}")


def _refuse_outside(values: Tensor, highest: float, name: str, allowed: str) -> None:
    low, high = values.detach().aminmax()
    if not (low.item() >= 0 and high.item() <= highest):  # finding the wrong value takes five times as long
        _refuse_if(values, ~((values >= 0) & (values <= highest)), name, allowed)


def _refuse_if(values: Tensor, wrong: Tensor, name: str, allowed: str) -> None:
    if bool(wrong.any()):
        at = tuple(wrong.nonzero()[0].tolist())
        raise InputError(f"{name} at {at} is {values[at].item():.6g}; allowed: {allowed}")


def freeze_for_backward(counter: Tensor) -> Tensor:
    """The counter's current value, in a compiled backward pass too.

    torch.compile may recompute a value in the backward pass, and then reads a counter that has been advanced
    (https://github.com/pytorch/pytorch/pull/197039): dropout used the mask of the next call, a ramp the margin of the
    next step. The result of a custom operator is kept, not recomputed.
    """
    return _copy(counter) if torch.compiler.is_compiling() else counter


@torch.library.custom_op("camri::reading", mutates_args=())
def _copy(counter: Tensor) -> Tensor:
    return counter.clone()


@_copy.register_fake
def _(counter: Tensor) -> Tensor:
    return torch.empty_like(counter)
