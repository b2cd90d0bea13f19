"""Add your own method and trunk to studies: a package that names them as entry points in its pyproject.toml.

Run it: `pip install examples/own_method`, then `camri study run examples/own_method/study.toml --out runs/poly`
"""

from typing import Any

import torch
from torch import Tensor, nn

from camri import losses
from camri.methods import Knob, Method
from camri.models import Trunk
from camri.modules import Criterion
from camri.penalties import important_vector


def poly(logits: Tensor, labels: Tensor, epsilon: Tensor, **common: Any) -> Tensor:
    """Poly-1 (Leng et al., 2022), ε at the important classes only: −log h + ε (1 − h), (B, C), (B,), (C,) -> (B,)."""
    loss = losses.cross_entropy(logits, labels, **common)  # it also checks the inputs
    index = labels.long()
    found = torch.softmax(logits.float(), dim=-1).gather(-1, index.unsqueeze(-1)).squeeze(-1)
    return loss + epsilon[index] * (1 - found)


class PolyLoss(Criterion):
    training_only = (("epsilon", 0.0),)  # ramped in, and off in eval()

    def __init__(self, num_classes: int, important: dict[int, float], **common: Any):
        super().__init__(poly, {"epsilon": important_vector(num_classes, important)}, **common)


POLY = Method(
    title="Poly-1",
    make=lambda num_classes, class_counts, knobs, **common: PolyLoss(num_classes, knobs["eps"], **common),
    knobs={"eps": Knob((1.0, 2.0, 4.0), neutral=0.0, per_class=True)},
    base="ce",  # the method it becomes with every knob at its neutral value
)


class Pooled(Trunk):
    """Images (B, in_channels, H, W) -> (B, num_features); initial weights come from the generator."""

    def __init__(self, in_channels: int, num_features: int = 32, generator: torch.Generator | None = None):
        super().__init__()
        self.num_features = num_features
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * in_channels, num_features))
        self.norm = nn.BatchNorm1d(num_features)
        nn.init.kaiming_normal_(self.layers[2].weight, generator=generator)
        nn.init.zeros_(self.layers[2].bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.layers(images))
