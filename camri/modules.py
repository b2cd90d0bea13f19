"""The losses as `nn.Module`s that hold their per-class parameters.

Each takes the outputs of its head and the labels, and returns the batch mean (`reduction="mean"`), the sum, or one
loss per sample (`"none"`). Margins, adjustments and scalings apply in training only: they can be ramped up over the
first steps, and are off in `eval()`, so that validation losses are comparable.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from camri import losses
from camri.checks import as_float, check_loss_inputs, check_soft_labels, freeze_for_backward
from camri.errors import InputError, closest
from camri.names import Names, class_names
from camri.penalties import ClassKey, important_matrix, important_vector, ldam_margins, log_priors, strengths

Important = Mapping[ClassKey, float]
Ramp = int | tuple[int, int]

REDUCTIONS = ("mean", "sum", "none")
SETTLE_STEPS, SETTLE_ERROR = 1000, 1e-7


class Criterion(nn.Module):
    """One loss function with its per-class parameters as buffers; the base of every loss here.

    `training_only` names the parameters that apply in training only, with the value that switches each of them off.
    They grow from that value to their full one between the steps `ramp = (start, end)`; `ramp = n` means (0, n). A step
    is a forward call in training mode. With a ramp the count is in the `state_dict`, so that a resumed run continues
    it; the count stays on the device, without synchronisation.
    """

    head = "linear"
    training_only: tuple[tuple[str, float], ...] = ()
    step: Tensor

    def __init__(
        self,
        loss: Callable[..., Tensor],
        parameters: Mapping[str, Tensor | Sequence[float] | None],
        ramp: Ramp = 0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        **options: Any,
    ):
        super().__init__()
        if reduction not in REDUCTIONS:
            raise InputError(f"reduction={reduction!r} is unknown; {closest(reduction, REDUCTIONS)}", "reduction")
        if not (isinstance(label_smoothing, (int, float, Real)) and 0 <= label_smoothing < 1):
            raise InputError(
                f"label_smoothing={label_smoothing!r} is not allowed; it must be in [0, 1)", argument="label_smoothing"
            )
        scale = options.get("scale", 1.0)
        if not isinstance(scale, (int, float, Real, Tensor)) or isinstance(scale, nn.Parameter):
            raise InputError(
                f"scale of type {type(scale).__name__} is not allowed; it must be a number (to learn one, call "
                "camri.losses.margin_softmax)"
            )
        self.loss = loss
        self.options = options
        self.ramp = _start_and_end(ramp)
        self.label_smoothing = label_smoothing
        self.reduction = reduction
        self._names = tuple(parameters)
        for name, value in parameters.items():
            tensor = None if value is None else torch.as_tensor(value, dtype=torch.float32)
            self.register_buffer(name, tensor, persistent=False)
        # Without a ramp the count is not saved: a checkpoint of the model does not depend on the loss.
        self.register_buffer("step", torch.zeros((), dtype=torch.int64), persistent=self.ramp[1] > 0)
        self._refuse_bad_parameters()

    def _refuse_bad_parameters(self) -> None:
        """Check the parameters by calling the loss once on the CPU: calls on a GPU do not read their values."""
        tensors = [tensor for name in self._names if (tensor := getattr(self, name)) is not None and tensor.dim()]
        num_classes = tensors[0].shape[0] if tensors else 2
        if self.step.device.type == "meta":
            raise InputError(
                "a loss made on the meta device has no values; if from_pretrained is to load the model, make the loss "
                "outside of its __init__"
            )
        given = self._parameters_at(1.0)
        with torch.device("cpu"):
            self.loss(
                torch.zeros(1, num_classes),
                torch.zeros(1, dtype=torch.int64),
                **{name: value.cpu() if isinstance(value, Tensor) else value for name, value in given.items()},
                validate=True,
            )

    def _parameters_at(self, strength: Tensor | float) -> dict[str, Any]:
        parameters = {name: getattr(self, name) for name in self._names}
        for name, off in self.training_only:
            parameters[name] = off + strength * (parameters[name] - off)
        if self.label_smoothing:
            parameters["label_smoothing"] = self.label_smoothing
        return {**parameters, **self.options}

    def strength(self) -> Tensor | float:
        """Fraction of the training-only parameters that applies now: 0 in eval(), else 0 to 1 along the ramp.

        The full strength is first reached at step `end`: with `ramp=10` the first call has 0 and the eleventh 1.
        """
        start, end = self.ramp
        if not self.training:
            return 0.0
        if end == 0:
            return 1.0
        width = max(end - start, 1)
        return ((freeze_for_backward(self.step) - (end - width)) / width).clamp(0, 1)

    def forward(self, outputs: Tensor, labels: Tensor, shares: Tensor | None = None) -> Tensor:
        """Return the loss of a batch of labels (B,), or of soft labels (B, C) as Mixup and CutMix give them.

        The loss of a soft label is the mean of the losses of all classes, weighted by its probabilities. Time and
        memory grow with the number of classes above 0 in a row: smooth with `label_smoothing` of the loss, not before.
        `shares` (B,): weight of each row's own label after `camri.augment.mixup`.
        """
        parameters = self._parameters_at(self.strength())
        per_sample = self._per_sample(outputs, labels, parameters)
        if shares is not None:
            per_sample = shares * per_sample + (1 - shares) * self._per_sample(outputs, labels.roll(1, 0), parameters)
        if self.training and self.ramp[1]:  # without a ramp there is no counter, so torch.func can transform the loss
            self.step += 1
        if self.reduction == "none":
            return per_sample
        return per_sample.mean() if self.reduction == "mean" else per_sample.sum()

    def _per_sample(self, outputs: Tensor, labels: Tensor, parameters: Mapping[str, Any]) -> Tensor:
        if not isinstance(labels, Tensor) or not labels.is_floating_point():
            return self.loss(outputs, labels, **parameters)
        check_soft_labels(outputs, labels)
        *rows, classes = at = labels.nonzero(as_tuple=True)
        of_class = self.loss(outputs[tuple(rows)], classes, **parameters)
        weighted = labels[at].to(of_class.dtype) * of_class
        return weighted.new_zeros(labels.shape[:-1]).index_put(tuple(rows), weighted, accumulate=True)

    def logits(self, outputs: Tensor) -> Tensor:
        """Convert the head's outputs to logits (cosines times the scale), whose softmax gives probabilities."""
        return as_float(outputs) * self.options["scale"] if "scale" in self.options else outputs

    def extra_repr(self) -> str:
        parts = [f"{name}={_shown(getattr(self, name))}" for name in self._names if getattr(self, name) is not None]
        parts += [f"{name}={value!r}" for name, value in self.options.items()]
        return ", ".join([*parts, f"ramp={self.ramp}", f"label_smoothing={self.label_smoothing}"])


class CrossEntropyLoss(Criterion):
    """Cross-entropy, equation 1: the baseline, under the same interface as the other losses."""

    def __init__(self, *, ramp: Ramp = 0, label_smoothing: float = 0.0, reduction: str = "mean"):
        super().__init__(losses.cross_entropy, {}, ramp, label_smoothing, reduction)


class WeightedCrossEntropyLoss(Criterion):
    """Cross-entropy with a weight at each important class and 1 elsewhere, equation 2; the mean divides by N."""

    def __init__(self, num_classes: int, important: Important, *, classes: Names | None = None,
                 ramp: Ramp = 0, label_smoothing: float = 0.0, reduction: str = "mean"):  # fmt: skip
        weights = important_vector(_names_of(num_classes, classes), _some(important), elsewhere=1.0)
        super().__init__(losses.weighted_cross_entropy, {"weights": weights}, ramp, label_smoothing, reduction)


class RealWorldWeightCrossEntropyLoss(Criterion):
    """CRWWCE, equation 3: `important` maps classes to the cost of a miss, `false_positive` to that of a false alarm."""

    def __init__(self, num_classes: int, important: Important, false_positive: Important, *,
                 classes: Names | None = None,
                 ramp: Ramp = 0, label_smoothing: float = 0.0, reduction: str = "mean"):  # fmt: skip
        names = _names_of(num_classes, classes)
        costs = {
            "false_negative": important_vector(names, _strengths(important), elsewhere=1.0),
            "false_positive": important_matrix(names, _strengths(false_positive)),
        }
        super().__init__(losses.real_world_weight_cross_entropy, costs, ramp, label_smoothing, reduction)


class WassersteinLoss(Criterion):
    """Wasserstein loss, equation 4: `important` maps classes to the cost of confusing them with any other class."""

    def __init__(self, num_classes: int, important: Important, *, entropy: float = 0.0,
                 classes: Names | None = None,
                 ramp: Ramp = 0, label_smoothing: float = 0.0, reduction: str = "mean"):  # fmt: skip
        cost = important_matrix(_names_of(num_classes, classes), _strengths(important))
        super().__init__(_wasserstein_smoothed, {"cost": cost}, ramp, label_smoothing, reduction, entropy=entropy)


class TwoSidedMarginLoss(Criterion):
    """Cross-entropy that separates the important classes from the rest; for any model with a linear head.

    It has three parts; each is off at 0, and without any it is cross-entropy:

    - `important` maps classes to margins in logits: in training the class's logit is lowered by the margin on its own
      samples and raised by it on all others, so the model has to separate the class by twice the margin;
    - `one_vs_rest`: weight of the two-class cross-entropy of each important class against the rest, under the same
      margin; one number, or one for each important class;
    - `margin`: lowers the label's logit in training, whatever its class.

    The margins are there in training only. As trained, argmax predicts the class less often than cross-entropy's does:
    choose a threshold on the class's probability afterwards (:func:`camri.audit`), or :meth:`settle` the head's bias.

    >>> loss = TwoSidedMarginLoss(3, {"stop": 1.0}, one_vs_rest=0, margin=0, classes=["go", "stop", "yield"])
    >>> logits, labels = torch.tensor([[0.0, 2.0, 0.0], [2.0, 0.0, 0.0]]), torch.tensor([1, 0])
    >>> loss(logits, labels), loss.eval()(logits, labels)  # the margin is there in training only
    (tensor(0.4795), tensor(0.2395))
    >>> one_vs_rest = TwoSidedMarginLoss(2, {0: 0.0}, one_vs_rest=1.0, margin=0)
    >>> one_vs_rest(torch.zeros(1, 2), torch.tensor([1])).exp()  # with two classes both parts are the same
    tensor(4.)
    """

    training_only = (("margins", 0.0), ("margin", 0.0))
    margins: Tensor
    one_vs_rest: Tensor | None

    def __init__(self, num_classes: int, important: Important, *, one_vs_rest: float | Important = 0.5,
                 margin: float = 2.0, classes: Names | None = None,
                 ramp: Ramp = 0, label_smoothing: float = 0.0, reduction: str = "mean"):  # fmt: skip
        names = _names_of(num_classes, classes)
        margins = important_vector(names, _some(important))
        if isinstance(one_vs_rest, Mapping):
            _refuse_others(one_vs_rest, important, names)
        else:
            one_vs_rest = dict.fromkeys(important, _at_least_zero(one_vs_rest, "one_vs_rest"))
        weights = important_vector(names, one_vs_rest)
        tensors = {
            "margins": margins,
            "one_vs_rest": weights if bool(weights.any()) else None,
            "margin": torch.tensor(_at_least_zero(margin, "margin")),
        }
        super().__init__(losses.two_sided_margin, tensors, ramp, label_smoothing, reduction)

    @torch.no_grad()
    def settle(self, logits: Tensor, labels: Tensor) -> Tensor:
        """What to add to the head's bias (C,), so that each important class's mean probability is its frequency.

        Undoes the margins' effect on how often argmax predicts the class. Give the trained model's logits (N, C) and
        labels (N,) of held-out rows, with the frequencies of the rows to come; 0 for the other classes.

        >>> logits, labels = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 1, 1, 0])
        >>> shift = TwoSidedMarginLoss(2, {1: 1.0}).settle(logits, labels)  # then head.bias += shift
        >>> (logits + shift).softmax(dim=1)[:, 1].mean()
        tensor(0.5000)
        """
        check_loss_inputs(logits, labels, validate=True)
        weights = self.margins if self.one_vs_rest is None else self.margins + self.one_vs_rest
        important = weights.nonzero().flatten().tolist()
        rows, shift = logits.detach().cpu().double(), torch.zeros(logits.shape[-1], dtype=torch.float64)
        share = (labels.cpu().unsqueeze(-1) == torch.tensor(important, dtype=torch.int64)).double().mean(dim=0)
        for index, part in zip(important, share.tolist(), strict=True):
            if not 0 < part < 1:
                held = "only rows" if part else "no row"
                raise InputError(f"labels has {held} of class {index}; give held-out rows of all classes", "labels")
        for _ in range(SETTLE_STEPS):
            step = (share / (rows + shift).softmax(dim=-1)[:, important].mean(dim=0)).log()
            shift[important] += step
            if bool((step.abs() < SETTLE_ERROR).all()):
                break
        return shift.to(logits)


class _CosineLoss(Criterion):
    """Base of the losses on scaled cosines, which need a cosine head."""

    head = "cosine"
    training_only = (("margins", 0.0),)


class L2SoftmaxLoss(_CosineLoss):
    """L2-constrained softmax, equation 11: scaled cosines without a margin; the control of CAMRI at the same scale."""

    def __init__(self, num_classes: int, scale: float = 8.0, *, beyond_pi: str = "monotone",
                 ramp: Ramp = 0, label_smoothing: float = 0.0, reduction: str = "mean"):  # fmt: skip
        margins = {"margins": important_vector(_names_of(num_classes, None), {})}
        options = {"scale": scale, "beyond_pi": beyond_pi}
        super().__init__(losses.margin_softmax, margins, ramp, label_smoothing, reduction, **options)


class ArcFaceLoss(_CosineLoss):
    """ArcFace, equation 12: the same angular margin (radians) at every class."""

    def __init__(self, num_classes: int, margin: float, scale: float = 8.0, *, beyond_pi: str = "monotone",
                 ramp: Ramp = 0, label_smoothing: float = 0.0, reduction: str = "mean"):  # fmt: skip
        names = _names_of(num_classes, None)
        margins = {"margins": important_vector(names, dict.fromkeys(range(num_classes), margin))}
        options = {"scale": scale, "beyond_pi": beyond_pi}
        super().__init__(losses.margin_softmax, margins, ramp, label_smoothing, reduction, **options)


class CamriLoss(_CosineLoss):
    """CAMRI, equation 13: an angular margin (radians) at the important classes only.

    `important` maps class indices, or names with `classes=[…]`, to margins; the paper's winners lie between π/16 and
    5π/64 at scale 8 to 16. `ramp` raises the margin over that many steps: at full strength from the first step, a
    large scale × margin can end with a recall of 0.

    >>> loss = CamriLoss(3, important={"cat": 0.2}, scale=8.0, classes=["cat", "dog", "owl"])
    >>> cos, labels = torch.tensor([[0.7, 0.2, -0.3], [0.1, 0.6, 0.2]]), torch.tensor([0, 1])
    >>> loss(cos, labels), loss.eval()(cos, labels)  # the margin is there in training only
    (tensor(0.0601), tensor(0.0379))
    """

    def __init__(self, num_classes: int, important: Important, scale: float = 8.0, *,
                 classes: Names | None = None, beyond_pi: str = "monotone",
                 ramp: Ramp = 0, label_smoothing: float = 0.0, reduction: str = "mean"):  # fmt: skip
        margins = {"margins": important_vector(_names_of(num_classes, classes), _some(important))}
        options = {"scale": scale, "beyond_pi": beyond_pi}
        super().__init__(losses.margin_softmax, margins, ramp, label_smoothing, reduction, **options)


class CosFaceLoss(_CosineLoss):
    """Cosine margins at the important classes only; the same margin for every class is CosFace."""

    function = staticmethod(losses.cosine_margin_softmax)

    def __init__(self, num_classes: int, important: Important, scale: float = 8.0, *,
                 classes: Names | None = None,
                 ramp: Ramp = 0, label_smoothing: float = 0.0, reduction: str = "mean"):  # fmt: skip
        margins = {"margins": important_vector(_names_of(num_classes, classes), _some(important))}
        super().__init__(type(self).function, margins, ramp, label_smoothing, reduction, scale=scale)


class TwoSidedCosineLoss(CosFaceLoss):
    """The two-sided margin on cosines: lowered on the class's own samples, raised on all others."""

    function = staticmethod(losses.two_sided_margin_softmax)


class LdamLoss(_CosineLoss):
    """LDAM: cosine margins of max_margin · (n_min / n)^¼, and an extra margin at each important class."""

    def __init__(self, num_classes: int, important: Important, scale: float = 30.0, *, class_counts: Sequence[int],
                 max_margin: float = 0.5, weights: Tensor | Sequence[float] | None = None,
                 classes: Names | None = None,
                 ramp: Ramp = 0, label_smoothing: float = 0.0, reduction: str = "mean"):  # fmt: skip
        extra = important_vector(_names_of(num_classes, classes), _strengths(important))
        margins = _fitting(ldam_margins(class_counts, max_margin), num_classes) + extra
        tensors = {"margins": margins, "weights": weights}
        super().__init__(losses.ldam, tensors, ramp, label_smoothing, reduction, scale=scale)


class FocalLoss(Criterion):
    """Focal loss: cross-entropy times (1 − p)^gamma, with a weight at each important class and 1 elsewhere.

    `gamma` is one number, or one for each class.
    """

    def __init__(self, num_classes: int, important: Important, gamma: float | Sequence[float] | Tensor = 2.0, *,
                 classes: Names | None = None,
                 ramp: Ramp = 0, label_smoothing: float = 0.0, reduction: str = "mean"):  # fmt: skip
        weights = important_vector(_names_of(num_classes, classes), _strengths(important), elsewhere=1.0)
        tensors = {"gamma": torch.as_tensor(gamma), "weights": weights}
        super().__init__(losses.focal, tensors, ramp, label_smoothing, reduction)


class LogitAdjustedLoss(Criterion):
    """Cross-entropy with logits adjusted in training: lowered by `important[class]`, raised by tau · log prior.

    A class whose logit is lowered in training has to score higher, so its recall rises.
    """

    training_only = (("adjustments", 0.0),)

    def __init__(self, num_classes: int, important: Important, *, class_counts: Sequence[int] | None = None,
                 tau: float = 0.0, classes: Names | None = None,
                 ramp: Ramp = 0, label_smoothing: float = 0.0, reduction: str = "mean"):  # fmt: skip
        adjustments = -important_vector(_names_of(num_classes, classes), _strengths(important))
        if class_counts is not None:
            adjustments = adjustments + _fitting(log_priors(class_counts, tau), num_classes)
        elif tau:
            raise InputError(f"tau={tau!r} needs class_counts, the number of training samples of each class", "tau")
        tensors = {"adjustments": adjustments}
        super().__init__(losses.logit_adjusted, tensors, ramp, label_smoothing, reduction)


class VectorScalingLoss(Criterion):
    """VS loss: in training each important logit is multiplied by its scale and lowered by its shift."""

    training_only = (("scales", 1.0), ("shifts", 0.0))

    def __init__(self, num_classes: int, important: Important, shifts: Important, *,
                 weights: Tensor | Sequence[float] | None = None, classes: Names | None = None,
                 ramp: Ramp = 0, label_smoothing: float = 0.0, reduction: str = "mean"):  # fmt: skip
        names = _names_of(num_classes, classes)
        tensors = {
            "scales": important_vector(names, _strengths(important), elsewhere=1.0),
            "shifts": -important_vector(names, _strengths(shifts)),
            "weights": weights,
        }
        super().__init__(losses.vector_scaling, tensors, ramp, label_smoothing, reduction)


def _fitting(per_class: Tensor, num_classes: int) -> Tensor:
    if len(per_class) != num_classes:
        raise InputError(f"class_counts has {len(per_class)} counts, but num_classes={num_classes}", "class_counts")
    return per_class


def _start_and_end(ramp: Ramp) -> tuple[int, int]:
    both = (0, ramp) if isinstance(ramp, (int, Integral)) else ramp
    whole = isinstance(both, (tuple, list)) and all(isinstance(step, (int, Integral)) for step in both)
    if not whole or len(both) != 2 or not 0 <= both[0] <= both[1]:
        raise InputError(
            f"ramp={ramp!r} is not allowed; give a whole number of steps, or (start, end) in that order",
            argument="ramp",
        )
    return int(both[0]), int(both[1])


def _shown(values: Tensor) -> str:
    """Format the numbers if they are few: a matrix of 1,000 classes would take 5 MB."""
    few = values.numel() <= 100 and values.device.type != "meta"
    return str(values.tolist()) if few else f"tensor of shape {tuple(values.shape)}"


def _names_of(num_classes: int, classes: Names | None) -> int | Sequence[str]:
    if not isinstance(num_classes, (int, Integral)) or num_classes < 2:
        raise InputError(f"num_classes={num_classes!r} must be a whole number of at least 2", argument="num_classes")
    if classes is None:
        return num_classes
    names = class_names(classes)
    if len(names) != num_classes:
        raise InputError(f"classes has {len(names)} names, but num_classes={num_classes}; give one a class")
    return names


def _strengths(important: Important) -> Important:
    if not isinstance(important, Mapping):  # a list would mean strength 1 each: a margin of 57°, or no weight
        raise InputError(f"important={important!r} has no strengths; give {{class: strength}}", argument="important")
    return important


def _some(important: Important) -> Important:
    if not _strengths(important):
        raise InputError(
            f"important={important!r} names no class; give {{class: strength}} for at least one", argument="important"
        )
    return important


def _at_least_zero(value: Any, argument: str) -> float:
    number = value.item() if isinstance(value, Tensor) and not value.dim() else value
    if isinstance(number, bool) or not (isinstance(number, (int, float, Real)) and 0 <= float(number) < math.inf):
        raise InputError(f"{argument}={value!r} is not allowed; give a finite number of at least 0", argument)
    return float(number)


def _refuse_others(weights: Important, important: Important, names: int | Sequence[str]) -> None:
    others = strengths(weights, names).keys() - strengths(important, names).keys()
    if others:
        index = min(others)
        name = index if isinstance(names, (int, Integral)) else names[index]
        raise InputError(
            f"one_vs_rest has class {name!r}, which is not in important; add it there, with margin 0 for none",
            argument="one_vs_rest",
        )


def _wasserstein_smoothed(
    logits: Tensor,
    labels: Tensor,
    cost: Tensor,
    entropy: float,
    label_smoothing: float = 0.0,
    validate: bool = False,
) -> Tensor:
    """The Wasserstein loss; smoothed labels are distributions, so they go through Sinkhorn."""
    if label_smoothing == 0:
        return losses.wasserstein(logits, labels, cost, entropy, validate=validate)
    if entropy == 0:
        raise InputError(
            f"label_smoothing={label_smoothing!r} makes the labels distributions; entropy must be above 0",
            argument="label_smoothing",
        )
    num_classes = logits.shape[-1]
    one_hot = labels.unsqueeze(-1) == torch.arange(num_classes, device=labels.device)
    targets = torch.where(one_hot, 1 - label_smoothing, 0.0) + label_smoothing / num_classes
    return losses.wasserstein(logits, targets, cost, entropy, validate=validate)
