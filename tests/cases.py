"""Every loss with parameters that use all of it: one list for the checks that all losses must pass."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from camri import losses
from tests import references

NUM_CLASSES = 5


@dataclass(frozen=True)
class Case:
    name: str
    takes: str  # "logits" or "cos"
    loss: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    parameters: dict[str, object]
    smooths: bool = True

    def outputs(self, num_rows: int = 12, seed: int = 0) -> Tensor:
        values = torch.randn(num_rows, NUM_CLASSES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return torch.tanh(values) if self.takes == "cos" else 3 * values

    def cast(self, dtype: torch.dtype) -> dict[str, object]:
        return {name: v.to(dtype) if isinstance(v, Tensor) else v for name, v in self.parameters.items()}


def labels(num_rows: int = 12) -> Tensor:
    return torch.arange(num_rows) % NUM_CLASSES


WEIGHTS = torch.tensor([1.0, 1.0, 4.0, 0.5, 0.0], dtype=torch.float64)
MARGINS = torch.tensor([0.0, 0.4, 0.0, 1.2, 0.1], dtype=torch.float64)
COST = torch.tensor(
    [[0, 1, 2.5, 1, 0.3], [1, 0, 2, 1, 3], [2, 2.2, 0, 2, 1], [1, 1, 2, 0, 0], [1, 4, 2, 1, 0]]
).double()

CASES = [
    Case("cross_entropy", "logits", losses.cross_entropy, references.cross_entropy, {}),
    Case("wce", "logits", losses.weighted_cross_entropy, references.weighted_cross_entropy, {"weights": WEIGHTS}),
    Case(
        "crwwce",
        "logits",
        losses.real_world_weight_cross_entropy,
        references.real_world_weight_cross_entropy,
        {"false_negative": WEIGHTS, "false_positive": COST},
    ),
    Case(
        "wasserstein",
        "logits",
        losses.wasserstein,
        references.wasserstein,
        {"cost": COST, "entropy": 0.2},
        smooths=False,
    ),
    *(
        Case(
            f"margin_{policy}",
            "cos",
            losses.margin_softmax,
            references.margin_softmax,
            {"margins": MARGINS, "scale": 8.0, "beyond_pi": policy},
        )
        for policy in losses.BEYOND_PI
    ),
    Case(
        "cosine_margin",
        "cos",
        losses.cosine_margin_softmax,
        references.cosine_margin_softmax,
        {"margins": MARGINS, "scale": 8.0},
    ),
    Case(
        "two_sided_margin",
        "cos",
        losses.two_sided_margin_softmax,
        references.two_sided_margin_softmax,
        {"margins": MARGINS, "scale": 8.0},
    ),
    Case(
        "two_sided_logits",
        "logits",
        losses.two_sided_margin,
        references.two_sided_margin,
        {"margins": MARGINS},
    ),
    Case(
        "two_sided_combined",
        "logits",
        losses.two_sided_margin,
        references.two_sided_margin,
        {
            "margins": MARGINS,
            "one_vs_rest": torch.tensor([0.0, 0.5, 2.0, 1.0, 0.0], dtype=torch.float64),
            "margin": torch.tensor(0.7, dtype=torch.float64),
        },
    ),
    Case("ldam", "cos", losses.ldam, references.ldam, {"margins": MARGINS, "scale": 30.0, "weights": WEIGHTS}),
    Case(
        "focal",
        "logits",
        losses.focal,
        references.focal,
        {"gamma": torch.tensor([0.0, 0.5, 1.0, 2.0, 5.0], dtype=torch.float64), "weights": WEIGHTS},
    ),
    Case(
        "logit_adjusted",
        "logits",
        losses.logit_adjusted,
        references.logit_adjusted,
        {"adjustments": torch.tensor([0.0, -1.0, 0.5, 2.0, 0.0], dtype=torch.float64)},
    ),
    Case(
        "vector_scaling",
        "logits",
        losses.vector_scaling,
        references.vector_scaling,
        {
            "scales": torch.tensor([1.0, 0.5, 1.5, 1.0, 0.8], dtype=torch.float64),
            "shifts": torch.tensor([0.0, -1.0, 0.5, 0.0, 1.0], dtype=torch.float64),
            "weights": WEIGHTS,
        },
    ),
]
IDS = [case.name for case in CASES]
PAPER_MARGINS = [i * math.pi / 64 for i in range(9)]
