"""What is tried beside the losses of camri.losses, in their form: outputs and labels in, one loss a sample out."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from camri import losses
from camri.modules import Criterion
from camri.penalties import ClassKey, important_vector


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
    """A loss of cosines and margins, its margins ramped in and off in `eval()` like CAMRI's."""

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
