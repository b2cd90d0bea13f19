"""Variants of the two-sided margin that were tried, and what they are compared with: methods of a package of its own.

`class_variants-1.0.dist-info` beside this file names them as entry points, so the folder on PYTHONPATH is enough:

    export PYTHONPATH=$PWD:$PWD/reproduce/two-sided/methods
    camri study run reproduce/two-sided/methods/screen.toml --out runs/screen
    camri report runs/screen --table settings --split val  # on validation data

None of them is part of camri: reproduce/README.md says what each gained.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from camri import losses
from camri.checks import as_float, freeze_for_backward
from camri.errors import InputError
from camri.heads import HEADS, LinearHead
from camri.methods import Knob, Method
from camri.models import SmallCNN
from camri.modules import Criterion
from camri.penalties import important_vector

RAMP_PART = 0.3  # of the training: where the schedules' ramp ends, so that its length tells that of the training
FALL_PART = 0.3  # of the training, its last: the annealed margin falls to 0 in it


def margin_variant(
    logits: Tensor,
    labels: Tensor,
    margins: Tensor,
    one_vs_rest: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    against: str = "all",
    beside: bool = False,
    label_smoothing: float = 0.0,
    validate: bool = False,
) -> Tensor:
    """Cross-entropy under a two-sided margin, with some of its variants: (B, C), (B,), (C,) -> (B,).

    The label's logit is lowered by its margin; every other logit is raised by its own margin times its part: 1
    (`against="all"`), its share of the probability that is not the label's ("confused"), or 1 for the largest of them
    and 0 for the rest ("hard"). `one_vs_rest` (C,) adds that weight times the two-class cross-entropy of a class
    against the rest, under the margin too, or without it (`beside`). `weights` (C,) multiply the loss of a class's
    samples.
    """
    moved = _move(logits, labels, margins, against)
    common: dict[str, Any] = {"label_smoothing": label_smoothing, "validate": validate}
    if one_vs_rest is None:
        loss = losses.cross_entropy(moved, labels, **common)
    elif beside:
        alone = margin_variant(logits, labels, torch.zeros_like(margins), one_vs_rest, **common)
        loss = losses.cross_entropy(moved, labels, **common) + alone - losses.cross_entropy(logits, labels, **common)
    else:
        others = 1 - torch.eye(len(one_vs_rest), device=moved.device, dtype=moved.dtype)
        cost = one_vs_rest.to(moved)
        loss = losses.real_world_weight_cross_entropy(moved, labels, 1 + cost, cost.unsqueeze(1) * others, **common)
    return loss if weights is None else loss * weights.to(moved)[labels.long()]


def sharp_margin(
    logits: Tensor,
    labels: Tensor,
    margins: Tensor,
    others: Tensor,
    *,
    smoothing: float,
    label_smoothing: float = 0.0,
    validate: bool = False,
) -> Tensor:
    """The two-sided margin, labels smoothed among the other classes only: (B, C), (B,), (C,), (C,) -> (B,).

    `others` is 1 at the classes that are not important. Their samples have (1 − ε) at the label and ε spread over all
    of them; samples of important classes have hard labels. The training's own label smoothing has no effect.
    """
    log_h = torch.log_softmax(_move(logits, labels, margins, "all"), dim=-1)
    index, others = labels.long(), others.to(log_h)
    hard = log_h.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    soft = (log_h * others).sum(dim=-1) / others.sum()
    part = smoothing * others[index]
    return -((1 - part) * hard + part * soft)


def _move(logits: Tensor, labels: Tensor, margins: Tensor, against: str) -> Tensor:
    logits = as_float(logits)
    at_label = torch.arange(logits.shape[-1], device=logits.device) == labels.long().unsqueeze(-1)
    rivals = logits.masked_fill(at_label, -torch.inf)
    if against == "confused":
        part = torch.softmax(rivals, dim=-1)
    elif against == "hard":
        part = (rivals == rivals.amax(dim=-1, keepdim=True)).to(logits.dtype)
    else:
        part = torch.ones_like(logits)
    return logits + margins.to(logits) * part.masked_fill(at_label, -1.0)


class MarginVariantLoss(Criterion):
    """`margin_variant` as a loss; the margin is ramped in and there in training only."""

    training_only = (("margins", 0.0),)

    def __init__(
        self,
        num_classes: int,
        margins: Mapping[int, float],
        *,
        one_vs_rest: Mapping[int, float] | None = None,
        weights: Mapping[int, float] | None = None,
        against: str = "all",
        beside: bool = False,
        **common: Any,
    ):
        parameters = {
            "margins": important_vector(num_classes, margins),
            "one_vs_rest": None if one_vs_rest is None else important_vector(num_classes, one_vs_rest),
            "weights": None if weights is None else important_vector(num_classes, weights, elsewhere=1.0),
        }
        super().__init__(margin_variant, parameters, against=against, beside=beside, **common)


class AnnealedMarginLoss(MarginVariantLoss):
    """The margin falls linearly to 0 in the last part of the training; without a ramp it is constant."""

    def strength(self) -> Tensor | float:
        rising, end = super().strength(), self.ramp[1]
        if not self.training or end == 0:
            return rising
        num_steps = end / RAMP_PART
        falling = ((num_steps - freeze_for_backward(self.step)) / (FALL_PART * num_steps)).clamp(0, 1)
        return torch.minimum(torch.as_tensor(rising, device=falling.device), falling)


class SharpMarginLoss(Criterion):
    """`sharp_margin` as a loss; the margin is ramped in and there in training only."""

    training_only = (("margins", 0.0),)

    def __init__(self, num_classes: int, margins: Mapping[int, float], smoothing: float, **common: Any):
        others = important_vector(num_classes, dict.fromkeys(margins, 0.0), elsewhere=1.0)
        parameters = {"margins": important_vector(num_classes, margins), "others": others}
        super().__init__(sharp_margin, parameters, smoothing=smoothing, **common)


def margin_with_extra(
    outputs: Tensor,
    labels: Tensor,
    margins: Tensor,
    extra_margins: Tensor,
    costs: Tensor,
    *,
    label_smoothing: float = 0.0,
    validate: bool = False,
) -> Tensor:
    """Two-sided margin on C logits, and a two-class cross-entropy of one more output: (B, C + 1), (B,) -> (B,).

    The last output answers "is it the important class?" by itself. `margins` are those of the logits, `extra_margins`
    of that output, `costs` the weight of its loss; all (C + 1,), 0 except at the important class.
    """
    outputs = as_float(outputs)
    num_classes = outputs.shape[-1] - 1
    common: dict[str, Any] = {"label_smoothing": label_smoothing, "validate": validate}
    loss = losses.two_sided_margin(outputs[..., :num_classes], labels, margins[:num_classes], **common)
    is_own = (costs.to(outputs) > 0)[labels.long()].to(outputs.dtype)
    moved = outputs[..., -1] + extra_margins.to(outputs).sum() * (1 - 2 * is_own)
    binary = nn.functional.binary_cross_entropy_with_logits(moved, is_own, reduction="none")
    return loss + costs.to(outputs).sum() * binary


class ExtraOutputLoss(Criterion):
    """`margin_with_extra` as a loss, for one important class.

    As logits it gives the first C, the important one moved so that its log-odds against all others are the mean of the
    softmax's and of the extra output's. The other classes keep their order.
    """

    training_only = (("margins", 0.0), ("extra_margins", 0.0))

    def __init__(
        self,
        num_classes: int,
        margins: Mapping[int, float],
        extra_margins: Mapping[int, float],
        costs: Mapping[int, float],
        **common: Any,
    ):
        if len(costs) > 1:
            raise InputError(f"costs={dict(costs)}: there is one extra output; give one important class")
        self.important = next(iter(costs), 0)
        vectors = {"margins": margins, "extra_margins": extra_margins, "costs": costs}
        parameters = {name: important_vector(num_classes + 1, values) for name, values in vectors.items()}
        super().__init__(margin_with_extra, parameters, **common)

    def logits(self, outputs: Tensor) -> Tensor:
        outputs = as_float(outputs)
        logits, extra = outputs[..., :-1], outputs[..., -1]
        own = logits[..., self.important]
        others = torch.cat([logits[..., : self.important], logits[..., self.important + 1 :]], dim=-1)
        moved = (own + others.logsumexp(dim=-1) + extra) / 2
        index = torch.full_like(moved, self.important, dtype=torch.int64).unsqueeze(-1)
        return logits.scatter(-1, index, moved.unsqueeze(-1))


class ExtraOutput(LinearHead):
    """A linear head with one output more than there are classes."""

    def __init__(self, in_features: int, num_classes: int, generator: torch.Generator | None = None) -> None:
        super().__init__(in_features, num_classes + 1, generator)


class SubCentres(LinearHead):
    """Each class has several weight vectors; its logit is the logsumexp of theirs: (..., D) -> (..., C)."""

    num_centres = 2

    def __init__(self, in_features: int, num_classes: int, generator: torch.Generator | None = None) -> None:
        super().__init__(in_features, num_classes, generator)
        more = [LinearHead(in_features, num_classes, generator) for _ in range(self.num_centres - 1)]
        self.more = nn.ModuleList(more)

    def forward(self, features: Tensor) -> Tensor:
        return torch.stack([super().forward(features), *(head(features) for head in self.more)]).logsumexp(dim=0)


class ThreeCentres(SubCentres):
    """Three weight vectors for each class."""

    num_centres = 3


TEACHER_DECAY = 0.999  # of the averaged weights at every step; less in the first steps, so that the start fades


def _average_into(mine: Mapping[str, Tensor], its: Mapping[str, Tensor], num_steps: Tensor) -> None:
    """Move averaged tensors towards current ones of the same names, and count the step."""
    decay = min(TEACHER_DECAY, (1 + num_steps.item()) / (10 + num_steps.item()))
    with torch.no_grad():
        for name, tensor in mine.items():
            if tensor.is_floating_point():
                tensor.lerp_(its[name], 1 - decay)
    num_steps += 1


class SelfTaughtCNN(SmallCNN):
    """The small CNN with its own averaged weights as a teacher: in training (B, 2 D), own features, then the teacher's.

    In `eval()` it gives its own (B, D). It starts as the small CNN of the same generator does. CPU only.
    """

    def __init__(self, in_channels: int = 1, generator: torch.Generator | None = None) -> None:
        super().__init__(in_channels, generator=generator)
        student = SmallCNN(in_channels)
        student.load_state_dict(self.state_dict())
        self.teacher = student.requires_grad_(False)
        self.register_buffer("num_steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        features = super().forward(x)
        if not self.training:
            return features
        _average_into(self.teacher.state_dict(), self.state_dict(), self.get_buffer("num_steps"))
        return torch.cat([features, self.teacher.eval()(x)], dim=-1)


class TaughtHead(LinearHead):
    """A linear head and its averaged weights: (B, 2 D) -> (B, 2 C) in training, else (B, D) -> (B, C)."""

    def __init__(self, in_features: int, num_classes: int, generator: torch.Generator | None = None) -> None:
        super().__init__(in_features, num_classes, generator)
        self.teacher = copy.deepcopy(self).requires_grad_(False)
        self.register_buffer("num_steps", torch.zeros((), dtype=torch.int64))

    def forward(self, features: Tensor) -> Tensor:
        if not self.training:
            return super().forward(features)
        own, taught = features.chunk(2, dim=-1)
        _average_into(self.teacher.state_dict(), self.state_dict(), self.get_buffer("num_steps"))
        return torch.cat([super().forward(own), self.teacher.eval()(taught)], dim=-1)


def self_distilled(
    outputs: Tensor,
    labels: Tensor,
    margins: Tensor,
    taught: Tensor,
    taught_class: Tensor,
    *,
    label_smoothing: float = 0.0,
    validate: bool = False,
) -> Tensor:
    """Two-sided margin, and what a teacher's probabilities t say: (B, 2 C) or (B, C), (B,), (C,), (), (C,) -> (B,).

    `taught` weighs Σ t log(t / h) over all classes, `taught_class` (C,) the same of a class against all others
    together. The outputs are C own logits, then the teacher's; without the teacher's only the margin is left.
    """
    outputs = as_float(outputs)
    logits, teacher = outputs[..., : len(margins)], outputs[..., len(margins) :].detach()
    loss = losses.two_sided_margin(logits, labels, margins, label_smoothing=label_smoothing, validate=validate)
    if not teacher.shape[-1]:
        return loss
    log_h, log_t = torch.log_softmax(logits, dim=-1), torch.log_softmax(teacher, dim=-1)
    rest_h, rest_t = _log_rest(log_h), _log_rest(log_t)
    of_class = log_t.exp() * (log_t - log_h) + rest_t.exp() * (rest_t - rest_h)
    of_all = (log_t.exp() * (log_t - log_h)).sum(dim=-1)
    return loss + taught.to(outputs) * of_all + (taught_class.to(outputs) * of_class).sum(dim=-1)


def _log_rest(log_h: Tensor) -> Tensor:
    """log(1 − h), for probabilities up to 1 − 1e-6."""
    return torch.log(-torch.expm1(log_h.clamp(max=-1e-6)))


class SelfDistilledLoss(Criterion):
    """`self_distilled` as a loss; margin and teacher are ramped in and there in training only."""

    training_only = (("margins", 0.0), ("taught", 0.0), ("taught_class", 0.0))

    def __init__(
        self,
        num_classes: int,
        margins: Mapping[int, float],
        taught: float,
        taught_class: Mapping[int, float],
        **common: Any,
    ):
        parameters = {
            "margins": important_vector(num_classes, margins),
            "taught": torch.tensor(taught),
            "taught_class": important_vector(num_classes, taught_class),
        }
        super().__init__(self_distilled, parameters, **common)


HEADS.setdefault("taught", TaughtHead)
HEADS.setdefault("extra_output", ExtraOutput)
HEADS.setdefault("sub_centres_2", SubCentres)
HEADS.setdefault("sub_centres_3", ThreeCentres)

_MARGIN = Knob((1.0, 2.0), neutral=0.0, per_class=True, about="logit margin on both sides")


def _margin_method(
    title: str, *knobs: str, head: str = "linear", loss: type = MarginVariantLoss, **options: Any
) -> Method:
    """A method with a margin `m` and some of the knobs `one_vs_rest` and `weights`."""

    def make(num_classes: int, class_counts: Sequence[int], values: dict[str, Any], **common: Any) -> Criterion:
        more = {name: values[name] for name in knobs}
        return loss(num_classes, values["m"], **more, **options, **common)

    found = {
        "one_vs_rest": Knob((0.5, 1.0, 2.0), 0.0, per_class=True, about="weight of “important or not?”"),
        "weights": Knob((1.5, 2.0), 1.0, per_class=True, about="weight of the important class"),
    }
    base = "ce" if head == "linear" else None
    return Method(title, make, {"m": _MARGIN, **{name: found[name] for name in knobs}}, base=base, head=head)


def _make_sharp(num_classes: int, class_counts: Sequence[int], values: dict[str, Any], **common: Any) -> Criterion:
    return SharpMarginLoss(num_classes, values["m"], values["eps"], **common)


def _make_smoothed(num_classes: int, class_counts: Sequence[int], values: dict[str, Any], **common: Any) -> Criterion:
    return Criterion(losses.cross_entropy, {}, **{**common, "label_smoothing": values["eps"]})


def _make_extra(num_classes: int, class_counts: Sequence[int], values: dict[str, Any], **common: Any) -> Criterion:
    return ExtraOutputLoss(num_classes, values["m"], values["extra_m"], values["w"], **common)


_EPS = Knob((0.1,), about="label smoothing")
ANNEALED = _margin_method("two-sided margin, annealed", loss=AnnealedMarginLoss)
CONFUSED = _margin_method("two-sided margin, by confusion", against="confused")
HARD = _margin_method("two-sided margin, hard negatives", against="hard")
WEIGHTED = _margin_method("two-sided margin, weighted", "weights")
WITH_ONE_VS_REST = _margin_method("two-sided margin, one-vs-rest", "one_vs_rest")
HARD_ONE_VS_REST = _margin_method("two-sided margin, hard negatives, one-vs-rest", "one_vs_rest", against="hard")
BESIDE = _margin_method("two-sided margin beside one-vs-rest", "one_vs_rest", beside=True)
TWO_CENTRES = _margin_method("two-sided margin, two centres", head="sub_centres_2")
THREE_CENTRES = _margin_method("two-sided margin, three centres", head="sub_centres_3")
SHARP = Method("two-sided margin, others smoothed", _make_sharp, {"m": _MARGIN, "eps": _EPS}, base=None)
SMOOTHED = Method("cross-entropy, smoothed", _make_smoothed, {"eps": _EPS}, base=None)
EXTRA = Method(
    "extra output",
    _make_extra,
    {  # without neutral values: at m = 0 too the loss depends on the important class
        "m": Knob((0.0, 1.0), per_class=True, about="logit margin on both sides"),
        "extra_m": Knob((0.0, 1.0), per_class=True, about="margin of the extra output on both sides"),
        "w": Knob((1.0,), per_class=True, about="weight of the extra output's loss"),
    },
    base=None,
    head="extra_output",
)


def _make_self_distilled(
    num_classes: int, class_counts: Sequence[int], values: dict[str, Any], **common: Any
) -> Criterion:
    return SelfDistilledLoss(num_classes, values["m"], values["taught"], values["taught_class"], **common)


SELF_DISTILLED = Method(  # with the model "self_taught"
    "self-distillation",
    _make_self_distilled,
    {  # without neutral values: the head differs from cross-entropy's, so m = taught = taught_class = 0 is the control
        "m": Knob((0.0, 1.0), per_class=True, about="logit margin on both sides"),
        "taught": Knob((0.0, 1.0), about="weight of the teacher's probabilities"),
        "taught_class": Knob((0.0, 2.0), per_class=True, about="weight of the teacher's log-odds of the class"),
    },
    base=None,
    head="taught",
)
