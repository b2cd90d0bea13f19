"""Losses as pure functions of a head's outputs, labels and per-class parameters; they return one loss per sample.

Shape letters: B batch, C classes. Outputs are `cos`, the cosines of a :class:`camri.CosineHead`, or `logits`, the
scores of a :class:`camri.LinearHead`. Equation numbers are the paper's (Nishiyama et al., CAMRI Loss, IJCNN 2022).

Every function computes in float32 (float64 for float64 inputs) under any autocast dtype, changes no input, and never
reads a value from the device, so it can be compiled, exported, vmapped and captured in a CUDA graph. Inputs are checked
if that needs no device synchronisation; `validate=True` checks all of them.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from camri.checks import as_float, check_loss_inputs, eager, per_class, square, usable
from camri.errors import InputError, closest

BEYOND_PI = ("monotone", "paper", "clip")
NO_LABEL = -(2**62)


def cross_entropy(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, validate: bool = False) -> Tensor:
    """Negative log-probability of each label: (B, C), (B,) -> (B,). Equation 1.

    >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2])).exp()
    tensor([4.])
    """
    logits = as_float(logits)
    check_loss_inputs(logits, labels, label_smoothing=label_smoothing, validate=validate)
    return -_at_label(torch.log_softmax(logits, dim=-1), labels, label_smoothing)


def weighted_cross_entropy(
    logits: Tensor, labels: Tensor, weights: Tensor, *, label_smoothing: float = 0.0, validate: bool = False
) -> Tensor:
    """Cross-entropy times the weight of the label's class: (B, C), (B,), (C,) -> (B,). Equation 2 (WCE).

    The mean over the batch divides by the batch size, as in the paper's equation. `torch.nn.CrossEntropyLoss(weight=…)`
    divides by the sum of the weights instead, which cancels most of the penalty: at weight 40 and six important images
    among 64 it is 4.7 times smaller.

    >>> weighted_cross_entropy(torch.zeros(2, 4), torch.tensor([0, 2]), torch.tensor([3.0, 1, 1, 1])) / math.log(4)
    tensor([3., 1.])
    """
    logits = as_float(logits)
    weights = per_class(weights, logits, "weights")
    check_loss_inputs(
        logits, labels, label_smoothing=label_smoothing, validate=validate, at_least_zero={"weights": weights}
    )
    return -_at_label(weights * torch.log_softmax(logits, dim=-1), labels, label_smoothing)


def real_world_weight_cross_entropy(logits: Tensor, labels: Tensor, false_negative: Tensor, false_positive: Tensor, *,
                                    label_smoothing: float = 0.0, validate: bool = False) -> Tensor:  # fmt: skip
    """Costs of a missed class and of each wrong prediction: (B, C), (B,), (C,), (C, C) -> (B,). Equation 3 (CRWWCE).

    `false_positive[k, l]` is the cost of probability given to class k when the label is l; its diagonal must be zero.

    >>> fn, fp = torch.ones(3), torch.ones(3, 3) - torch.eye(3)
    >>> loss = real_world_weight_cross_entropy(torch.zeros(1, 3), torch.tensor([0]), fn, fp)
    >>> torch.isclose(loss, torch.tensor([-math.log(1 / 3) - 2 * math.log(2 / 3)]))
    tensor([True])
    """
    logits = as_float(logits)
    false_negative = per_class(false_negative, logits, "false_negative")
    false_positive = square(false_positive, logits, "false_positive")
    check_loss_inputs(
        logits,
        labels,
        label_smoothing=label_smoothing,
        validate=validate,
        at_least_zero={"false_negative": false_negative, "false_positive": false_positive},
        zero_diagonal={"false_positive": false_positive},
    )
    correct = _at_label(false_negative * torch.log_softmax(logits, dim=-1), labels, label_smoothing)
    prices = false_positive.T[labels.long()] * (1 - label_smoothing) + false_positive.mean(dim=1) * label_smoothing
    return -(correct + (prices * _log_one_minus_softmax(logits)).sum(dim=-1))


def wasserstein(
    logits: Tensor,
    targets: Tensor,
    cost: Tensor,
    entropy: float = 0.0,
    *,
    num_iterations: int = 100,
    validate: bool = False,
) -> Tensor:
    """Cost of moving the predicted probabilities onto the target: (B, C), targets, (C, C) -> (B,). Equation 4.

    `cost[k, l]` is the cost of moving probability from class k to class l; `entropy`, the paper's λ, weights the
    entropy term. Targets are labels (B,) or distributions (B, C). For labels there is only one transport plan, so the
    loss has the closed form Σₖ hₖ cost[k, t] + λ Σₖ hₖ (log hₖ − 1). For distributions, `num_iterations` of Sinkhorn's
    algorithm run in the log domain, differentiated by the envelope theorem (the dual potentials are the gradient). λ
    must then be positive; the smaller it is relative to the costs, the more iterations are needed (`validate=True`
    refuses a plan that misses its marginals by more than 1 %).

    >>> cost = torch.ones(3, 3) - torch.eye(3)
    >>> wasserstein(torch.zeros(1, 3), torch.tensor([0]), cost)  # 1 − h_t
    tensor([0.6667])
    """
    logits = as_float(logits)
    cost = square(cost, logits, "cost")
    if not 0 <= entropy < math.inf:
        raise InputError(f"entropy={entropy!r} is not allowed; it must be a finite number of at least 0", "entropy")
    at_least_zero = {"cost": cost}
    if not isinstance(targets, Tensor) or not targets.is_floating_point():
        check_loss_inputs(logits, targets, validate=validate, at_least_zero=at_least_zero)
        log_h = torch.log_softmax(logits, dim=-1)
        return (log_h.exp() * (cost.T[targets.long()] + entropy * (log_h - 1))).sum(dim=-1)

    if targets.shape != logits.shape:
        raise InputError(
            f"targets of shape {tuple(targets.shape)} do not fit logits of shape {tuple(logits.shape)}; "
            "give class indices (B,) or one distribution a row (B, C)"
        )
    if entropy == 0:
        raise InputError("entropy=0 needs class indices as targets; with distributions it must be positive", "entropy")
    if num_iterations < 1:
        raise InputError(f"num_iterations={num_iterations!r} is not allowed; it must be 1 or more", "num_iterations")
    check_loss_inputs(
        logits,
        None,
        validate=validate,
        at_least_zero={**at_least_zero, "targets": targets},
        sums_to_one={"targets": targets},
    )
    return _sinkhorn(logits, targets.to(logits.dtype), cost, entropy, num_iterations, validate)


def margin_softmax(cos: Tensor, labels: Tensor, margins: Tensor, scale: float | Tensor, beyond_pi: str = "monotone", *,
                   label_smoothing: float = 0.0, validate: bool = False) -> Tensor:  # fmt: skip
    """Cross-entropy of scaled cosines, with the label's margin added to its angle: (B, C), (B,), (C,) -> (B,).

    Equations 11 to 13: with zero `margins` (radians) it is L2-constrained softmax, with equal ones ArcFace, and with
    margins at the important classes only, CAMRI. `scale` is the paper's s. `beyond_pi`: see :func:`add_angular_margin`.
    For training only; inference uses the cosines.

    >>> cos = torch.tensor([[0.8, 0.1]])
    >>> plain, camri = (margin_softmax(cos, torch.tensor([0]), torch.tensor([m, 0.0]), 8.0) for m in (0.0, 0.3))
    >>> bool(camri > plain)
    True
    """
    smallest = torch.finfo(usable(cos).dtype).eps
    cos = as_float(cos)
    margins = per_class(margins, cos, "margins")
    check_loss_inputs(
        cos, labels, scale=scale, margins=margins, label_smoothing=label_smoothing, validate=validate, bound=1.01
    )
    logits = _scale(_add_widening(cos, labels, margins, beyond_pi, smallest), scale)
    return _cross_entropy(logits, labels, label_smoothing)


def add_angular_margin(
    cos: Tensor, labels: Tensor, margins: Tensor, beyond_pi: str = "monotone", *, validate: bool = False
) -> Tensor:
    """cos(θ + margin) at each label's class, cos θ elsewhere: (B, C), (B,), (C,) radians -> (B, C).

    Beyond θ + margin = π the cosine rises again, so that a worse feature would have a smaller loss. `beyond_pi`:

    - `"monotone"`: −2 − cos(θ + m) past π; continuous with its slope and strictly falling in θ;
    - `"paper"`: cos(θ + m) everywhere, as the equation stands;
    - `"clip"`: cos θ − m sin m past π, as in most ArcFace implementations; it falls, but jumps at π.

    >>> cos = torch.tensor([[0.5, 0.1]])
    >>> add_angular_margin(cos, torch.tensor([0]), torch.tensor([0.0, 0.3]))  # class 0 has no margin
    tensor([[0.5000, 0.1000]])
    >>> add_angular_margin(cos, torch.tensor([1]), torch.tensor([0.0, 0.3]))
    tensor([[ 0.5000, -0.1985]])
    """
    smallest = torch.finfo(usable(cos).dtype).eps
    cos = as_float(cos)
    margins = per_class(margins, cos, "margins")
    check_loss_inputs(cos, labels, margins=margins, validate=validate, bound=1.01)
    return _add_widening(cos, labels, margins, beyond_pi, smallest)


def _add_widening(cos: Tensor, labels: Tensor, margins: Tensor, beyond_pi: str, smallest: float) -> Tensor:
    if beyond_pi not in BEYOND_PI:
        raise InputError(f"beyond_pi={beyond_pi!r} is unknown; {closest(beyond_pi, BEYOND_PI)}", argument="beyond_pi")
    index = labels.long().unsqueeze(-1)
    # Add a difference instead of writing the value: the other classes' gradient then needs no copy.
    return cos.scatter_add(-1, index, _widening(cos.gather(-1, index), margins[index], beyond_pi, smallest))


def _widening(cos: Tensor, margin: Tensor, beyond_pi: str, smallest: float) -> Tensor:
    """cos(θ + margin) − cos θ, exactly 0 where the margin is 0: (B, 1), (B, 1) -> (B, 1)."""
    # cos(θ + m) = cos θ cos m − sin θ sin m needs no arccos, whose slope is infinite at ±1. sin² θ is at least one
    # rounding step of the input's dtype, which matters at cos = ±1 only. A constant is added to reach it, not a clamp,
    # so the gradient there stays finite, has the right sign, and equals that of the neighbouring cosines.
    at = cos.detach()
    one = (at * at + smallest).clamp(min=1)  # 1, or cos² + smallest where that is more
    sin = torch.addcmul(one, cos, cos, value=-1).sqrt()
    cos_m, sin_m = margin.cos(), margin.sin()
    if beyond_pi == "paper":
        return torch.addcmul(cos * (cos_m - 1), sin, sin_m, value=-1)
    # θ + m is past π if its sine is negative, which it never is without a margin: sin θ is above 0.
    sin_sum = torch.addcmul(sin.detach() * cos_m, at, sin_m)
    if beyond_pi == "clip":
        widening = torch.addcmul(cos * (cos_m - 1), sin, sin_m, value=-1)
        return torch.where(sin_sum < 0, -margin * sin_m, widening)
    # −2 − cos(θ + m) past π, cos(θ + m) before it, is sign · (1 + cos(θ + m)) − 1.
    sign = sin_sum.sign()
    return torch.addcmul(torch.addcmul(sign - 1, sign * cos_m - 1, cos), sign * sin_m, sin, value=-1)


def cosine_margin_softmax(cos: Tensor, labels: Tensor, margins: Tensor, scale: float | Tensor, *,
                          label_smoothing: float = 0.0, validate: bool = False) -> Tensor:  # fmt: skip
    """Cross-entropy of scaled cosines, each label's cosine lowered by its class's margin: (B, C), (B,), (C,) -> (B,).

    CosFace (Wang et al., 2018) with one margin per class; to compare with CAMRI, 0 except at the important classes.

    >>> loss = cosine_margin_softmax(torch.tensor([[0.5, 0.2]]), torch.tensor([0]), torch.tensor([0.3, 0.0]), 1.0)
    >>> torch.isclose(loss.exp(), torch.tensor([2.0]))  # 0.5 − 0.3 = 0.2: a probability of ½
    tensor([True])
    """
    return _with_cosine_margins(cos, labels, margins, scale, label_smoothing, validate, both_sides=False)


def two_sided_margin_softmax(cos: Tensor, labels: Tensor, margins: Tensor, scale: float | Tensor, *,
                             label_smoothing: float = 0.0, validate: bool = False) -> Tensor:  # fmt: skip
    """Cross-entropy of scaled cosines, each lowered by its class's margin on own samples and raised on all others.

    (B, C), (B,), (C,) -> (B,). Introduced here: a cosine margin on both sides of an important class's boundary, which
    separates the class without biasing predictions for or against it.

    >>> cos, margins = torch.tensor([[0.5, 0.3], [0.1, 0.3]]), torch.tensor([0.2, 0.0])
    >>> two_sided_margin_softmax(cos, torch.tensor([0, 1]), margins, 1.0) / math.log(2)  # two probabilities of ½
    tensor([1., 1.])
    """
    return _with_cosine_margins(cos, labels, margins, scale, label_smoothing, validate, both_sides=True)


def two_sided_margin(
    logits: Tensor,
    labels: Tensor,
    margins: Tensor,
    one_vs_rest: Tensor | None = None,
    margin: float | Tensor = 0.0,
    *,
    label_smoothing: float = 0.0,
    validate: bool = False,
) -> Tensor:
    """Cross-entropy under margins, plus weighted two-class losses: (B, C), (B,), (C,), (C,), () -> (B,).

    Introduced here, for any model with a linear head. Each logit is lowered by its class's margin on own samples and
    raised by it on all others; the label's logit is lowered by `margin` too, whatever its class. `one_vs_rest` weighs,
    for each class, the two-class cross-entropy of the class against the rest, under the class's margin but not under
    `margin`. Without `one_vs_rest` and `margin` it is the two-sided margin alone, without any margins cross-entropy
    and one-vs-rest.

    >>> logits, margins = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([1.0, 0.0])
    >>> two_sided_margin(logits, torch.tensor([0, 1]), margins)  # each margin lowers the lead from 2 to 1
    tensor([0.3133, 0.3133])
    >>> two_sided_margin(logits, torch.tensor([0, 1]), margins, margin=1.0) / math.log(2)  # from 2 to 0
    tensor([1., 1.])
    """
    logits = as_float(logits)
    margins = per_class(margins, logits, "margins")
    label_margin = torch.as_tensor(margin, dtype=logits.dtype, device=logits.device)
    checked = {"margins": margins, "margin": per_class(label_margin, logits, "margin", scalar=True)}
    if one_vs_rest is not None:
        checked["one_vs_rest"] = one_vs_rest = per_class(one_vs_rest, logits, "one_vs_rest")
    check_loss_inputs(logits, labels, label_smoothing=label_smoothing, validate=validate, at_least_zero=checked)
    moved = _lower_label(logits + margins, labels, 2 * margins + label_margin)
    loss = _cross_entropy(moved, labels, label_smoothing)
    if one_vs_rest is None:
        return loss
    is_own = labels.long().unsqueeze(-1) == torch.arange(logits.shape[-1], device=logits.device)
    odds = torch.log_softmax(logits, dim=-1) - _log_one_minus_softmax(logits)
    against = torch.where(is_own, odds - margins, odds + margins)
    targets = (1 - label_smoothing) * is_own.to(logits.dtype) + label_smoothing / logits.shape[-1]
    return loss + F.binary_cross_entropy_with_logits(against, targets, one_vs_rest, reduction="none").sum(dim=-1)


def _shift_two_sided(outputs: Tensor, labels: Tensor, margins: Tensor) -> Tensor:
    return _lower_label(outputs + margins, labels, 2 * margins)


def _lower_label(outputs: Tensor, labels: Tensor, margins: Tensor) -> Tensor:
    index = labels.long().unsqueeze(-1)
    return outputs.scatter_add(-1, index, -margins[index])


def _with_cosine_margins(
    cos: Tensor,
    labels: Tensor,
    margins: Tensor,
    scale: float | Tensor,
    label_smoothing: float,
    validate: bool,
    both_sides: bool,
) -> Tensor:
    cos = as_float(cos)
    margins = per_class(margins, cos, "margins")
    check_loss_inputs(cos, labels, scale=scale, label_smoothing=label_smoothing, validate=validate, bound=1.01,
           at_least_zero={"margins": margins})  # fmt: skip
    move = _shift_two_sided if both_sides else _lower_label
    return _cross_entropy(_scale(move(cos, labels, margins), scale), labels, label_smoothing)


def ldam(cos: Tensor, labels: Tensor, margins: Tensor, scale: float | Tensor = 30.0, weights: Tensor | None = None, *,
         label_smoothing: float = 0.0, validate: bool = False) -> Tensor:  # fmt: skip
    """Cosine margins with optional class weights: (B, C), (B,), (C,), (C,) -> (B,). LDAM (Cao et al., 2019).

    `camri.penalties.ldam_margins` computes the article's margins, max · (n_min / n)^¼.

    >>> margins, weights = torch.tensor([0.3, 0.0]), torch.tensor([2.0, 1.0])
    >>> ldam(torch.tensor([[0.5, 0.2]]), torch.tensor([0]), margins, scale=1.0, weights=weights) / math.log(2)
    tensor([2.])
    """
    loss = cosine_margin_softmax(cos, labels, margins, scale, label_smoothing=label_smoothing, validate=validate)
    return loss if weights is None else loss * _label_weights(weights, cos, labels, validate)


def focal(logits: Tensor, labels: Tensor, gamma: float | Tensor = 2.0, weights: Tensor | None = None, *,
          label_smoothing: float = 0.0, validate: bool = False) -> Tensor:  # fmt: skip
    """Cross-entropy times (1 − h)^gamma, so that easy samples weigh less: (B, C), (B,) -> (B,). Lin et al., 2017.

    `gamma` is one number or one per class (C,); `weights` (C,) is the article's α.

    >>> focal(torch.zeros(1, 2), torch.tensor([0]), gamma=2.0) / math.log(2)  # (1 − ½)²
    tensor([0.2500])
    """
    logits = as_float(logits)
    gammas = per_class(torch.as_tensor(gamma, dtype=logits.dtype, device=logits.device), logits, "gamma", scalar=True)
    checked = {"gamma": gammas}
    if weights is not None:
        checked["weights"] = weights = per_class(weights, logits, "weights")
    check_loss_inputs(logits, labels, label_smoothing=label_smoothing, validate=validate, at_least_zero=checked)
    damped = (gammas * _log_one_minus_softmax(logits)).exp() * torch.log_softmax(logits, dim=-1)
    return -_at_label(damped if weights is None else weights * damped, labels, label_smoothing)


def logit_adjusted(logits: Tensor, labels: Tensor, adjustments: Tensor, *,
                   label_smoothing: float = 0.0, validate: bool = False) -> Tensor:  # fmt: skip
    """Cross-entropy of logits + adjustments: (B, C), (B,), (C,) -> (B,). Menon et al., 2021.

    Adjustments are added in training only, so a class trained with a negative one scores higher afterwards.
    `camri.penalties.log_priors` gives the article's τ log π.

    >>> logit_adjusted(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([-1.0, 0.0]))
    tensor([1.3133])
    """
    logits = as_float(logits)
    adjustments = per_class(adjustments, logits, "adjustments")
    check_loss_inputs(
        logits, labels, label_smoothing=label_smoothing, validate=validate, finite={"adjustments": adjustments}
    )
    return -_at_label(torch.log_softmax(logits + adjustments, dim=-1), labels, label_smoothing)


def vector_scaling(logits: Tensor, labels: Tensor, scales: Tensor, shifts: Tensor, weights: Tensor | None = None, *,
                   label_smoothing: float = 0.0, validate: bool = False) -> Tensor:  # fmt: skip
    """Cross-entropy of scales · logits + shifts: (B, C), (B,), (C,), (C,) -> (B,). VS loss (Kini et al., 2021).

    >>> vector_scaling(torch.ones(1, 2), torch.tensor([0]), torch.tensor([0.5, 1.0]), torch.tensor([0.5, 0.0])).exp()
    tensor([2.])
    """
    logits = as_float(logits)
    scales = per_class(scales, logits, "scales")
    shifts = per_class(shifts, logits, "shifts")
    check_loss_inputs(logits, labels, label_smoothing=label_smoothing, validate=validate, finite={"shifts": shifts},
           at_least_zero={"scales": scales})  # fmt: skip
    loss = -_at_label(torch.log_softmax(scales * logits + shifts, dim=-1), labels, label_smoothing)
    return loss if weights is None else loss * _label_weights(weights, logits, labels, validate)


def _at_label(values: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """Value of each row at its label; with smoothing, Σₖ yₖ valuesₖ for y = (1 − ε) one-hot + ε / C."""
    hard = values.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)
    return hard if label_smoothing == 0 else (1 - label_smoothing) * hard + label_smoothing * values.mean(dim=-1)


def _scale(cos: Tensor, scale: float | Tensor) -> Tensor:
    """Return scale · cos; in place if possible, so the caller must own `cos`."""
    return cos.mul_(scale) if eager() else cos * scale  # vmap cannot write a batch of results into one tensor


def _cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """-_at_label(log_softmax(logits)) in one call, which saves two passes over (B, C) forward and backward."""
    rows, wanted = (logits, labels) if logits.dim() == 2 else (logits.flatten(0, -2), labels.flatten())
    # By default torch silently skips rows labelled -100; here no label is skipped.
    loss = F.cross_entropy(
        rows, wanted.long(), reduction="none", label_smoothing=label_smoothing, ignore_index=NO_LABEL
    )
    return loss if logits.dim() == 2 else loss.view(labels.shape)


def _log_one_minus_softmax(logits: Tensor) -> Tensor:
    """log(1 − softmax), finite for any finite logits: (…, C) -> (…, C).

    1 − h rounds to 0 once a logit leads by 17. All but the largest h are at most one half, where log1p is exact;
    the largest is logsumexp of the others minus logsumexp of all.
    """
    top = logits.argmax(dim=-1, keepdim=True)
    is_top = torch.arange(logits.shape[-1], device=logits.device) == top
    h = torch.softmax(logits, dim=-1).masked_fill(is_top, 0)
    others = torch.logsumexp(logits.masked_fill(is_top, -math.inf), dim=-1, keepdim=True)
    return torch.where(is_top, others - torch.logsumexp(logits, dim=-1, keepdim=True), torch.log1p(-h))


def _sinkhorn(
    logits: Tensor, targets: Tensor, cost: Tensor, entropy: float, num_iterations: int, validate: bool
) -> Tensor:
    log_h = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():
        log_h_fixed, log_y = log_h.detach(), targets.detach().log()  # log 0 = −inf: nothing is moved there
        kernel = -cost / entropy
        g = torch.zeros_like(log_y)  # both potentials are in units of `entropy`
        for _ in range(num_iterations):
            f = log_h_fixed - torch.logsumexp(kernel + g.unsqueeze(-2), dim=-1)
            g = log_y - torch.logsumexp(kernel + f.unsqueeze(-1), dim=-2)
        if validate:
            moved = (kernel + f.unsqueeze(-1) + g.unsqueeze(-2)).exp().sum(dim=-1)
            worst = (moved - log_h_fixed.exp()).abs().max().item()
            if worst > 0.01:
                raise InputError(
                    f"Sinkhorn misses its marginals by {worst:.2g} after num_iterations={num_iterations}; "
                    f"give more iterations or a larger entropy than {entropy!r}"
                )
        g = g.masked_fill(targets == 0, 0)
    return entropy * ((log_h.exp() * f).sum(dim=-1) + (targets * g).sum(dim=-1) - 1)


def _label_weights(weights: Tensor, outputs: Tensor, labels: Tensor, validate: bool) -> Tensor:
    outputs = as_float(outputs)
    weights = per_class(weights, outputs, "weights")
    check_loss_inputs(outputs, None, validate=validate, at_least_zero={"weights": weights})
    return weights[labels.long()]  # uint8 would act as a mask
