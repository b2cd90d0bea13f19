"""A trained model and a split -> logits, confusion counts and angles."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from camri.data import Split
from camri.heads import unit
from camri.metrics import confusion

MOST_TRAIN_ROWS = 10_000  # of a large train split, evenly spread: enough for the spread of angles


def judged(splits: Mapping[str, Split], name: str) -> Split:
    """The rows of a split that a trained model is judged on: all, of the train split every k-th.

    >>> split = Split(torch.zeros(25_000, 1), torch.arange(25_000))
    >>> judged({"train": split}, "train").labels[:3].tolist(), len(judged({"val": split}, "val"))
    ([0, 3, 6], 25000)
    """
    split = splits[name]
    step = -(-len(split) // MOST_TRAIN_ROWS) if name == "train" else 1
    return Split(split.inputs[::step], split.labels[::step], None)


@dataclass(frozen=True, eq=False)
class Evaluation:
    logits: np.ndarray  # float32 (N, C)
    confusion: np.ndarray  # int64 (C, C), row = true class
    angle_mean: np.ndarray  # (C,) radians; nan for a class without rows
    angle_sd: np.ndarray


def angles(features: Tensor, weight: Tensor) -> Tensor:
    """Radians between features and weights, row by row: (B, D), (B, D) -> (B,).

    2 atan2(|u − v|, |u + v|) of the unit vectors: arccos of a float32 cosine knows no angle below 3e-4.

    >>> angles(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1e-5]]))
    tensor([1.0000e-05])
    """
    u, v = unit(features), unit(weight)
    return 2 * torch.atan2((u - v).norm(dim=-1), (u + v).norm(dim=-1))


@torch.no_grad()
def evaluate(
    features_of: Callable[[Tensor], Tensor],
    head: torch.nn.Module,
    to_logits: Callable[[Tensor], Tensor],
    split: Split,
    batch_size: int = 1000,
) -> Evaluation:
    """What a model makes of a split; `features_of` takes rows as the split holds them, on its device."""
    weight = head.get_parameter("weight").float()
    logits, turned = [], []
    for start in range(0, len(split.labels), batch_size):
        labels = split.labels[start : start + batch_size]
        features = features_of(split.inputs[start : start + batch_size]).float()
        logits.append(to_logits(head(features)).float())
        turned.append(angles(features, weight[labels]))
    host_logits, host_angles = torch.cat(logits).cpu().numpy(), torch.cat(turned).cpu().numpy()
    truth = split.labels.cpu().numpy()
    num_classes = host_logits.shape[1]
    mean, sd = np.full((2, num_classes), np.nan)
    for index in range(num_classes):
        of_class = host_angles[truth == index].astype(np.float64)
        if len(of_class):
            mean[index], sd[index] = of_class.mean(), of_class.std()
    return Evaluation(host_logits, confusion(host_logits.argmax(axis=1), truth, num_classes), mean, sd)
