"""The margins that are tried: cosines, labels and margins per class in, one loss a sample out, as in camri.losses."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from camri import losses
from camri.modules import Criterion
from camri.penalties import ClassKey, important_vector


def two_sided_margin(cos: Tensor, labels: Tensor, margins: Tensor, scale: float, *, validate: bool = False) -> Tensor:
    """Cross-entropy of scaled cosines, a class's own lowered by its margin on its images and raised on all others.

    (B, C), (B,), (C,) -> (B,). Where only one class has a margin, its boundary has it on both sides: nothing is said
    for or against the class.

    >>> cos, margins = torch.tensor([[0.5, 0.3], [0.1, 0.3]]), torch.tensor([0.2, 0.0])
    >>> two_sided_margin(cos, torch.tensor([0, 1]), margins, 1.0).exp().round(decimals=3)  # coin tosses
    tensor([2., 2.])
    """
    added = torch.where(_is_own(cos, labels), -margins, margins)
    return losses.cross_entropy(scale * (cos + added), labels, validate=validate)


def hardest_margin(cos: Tensor, labels: Tensor, margins: Tensor, scale: float, *, validate: bool = False) -> Tensor:
    """Cross-entropy of scaled cosines, the largest wrong one raised by the margin of the label's class.

    (B, C), (B,), (C,) -> (B,): a margin against the class that an image is most easily taken for, and no other.

    >>> cos, margins = torch.tensor([[0.5, 0.3, -99.0]]), torch.tensor([0.2, 0.0, 0.0])
    >>> hardest_margin(cos, torch.tensor([0]), margins, 1.0).exp().round(decimals=3)
    tensor([2.])
    """
    hardest = cos.masked_fill(_is_own(cos, labels), -torch.inf).argmax(dim=-1, keepdim=True)
    raised = cos.scatter_add(-1, hardest, margins.to(cos.dtype)[labels].unsqueeze(-1))
    return losses.cross_entropy(scale * raised, labels, validate=validate)


def _is_own(cos: Tensor, labels: Tensor) -> Tensor:
    """Where a column is the row's label: bool (B, C)."""
    return labels.unsqueeze(-1) == torch.arange(cos.shape[-1], device=cos.device)


class CosineMargin(Criterion):
    """One of the losses above, its margins ramped in and off in `eval()` like CAMRI's."""

    head = "cosine"
    training_only = (("margins", 0.0),)

    def __init__(
        self,
        loss: Callable[..., Tensor],
        num_classes: int,
        important: Mapping[ClassKey, float],
        scale: float,
        **common: Any,
    ):
        super().__init__(loss, {"margins": important_vector(num_classes, important)}, scale=scale, **common)


def distil(hard: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    """Half the loss with hard labels (B,) and half the cross-entropy of logits (B, C) with soft targets (B, C): (B,).

    >>> distil(torch.tensor([4.0]), torch.tensor([[0.0, 0.0]]), torch.tensor([[0.25, 0.75]])) - 2.0  # log(2) / 2
    tensor([0.3466])
    """
    return 0.5 * hard - 0.5 * (targets * torch.log_softmax(logits, dim=-1)).sum(dim=-1)
