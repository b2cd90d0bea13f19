"""Counts and calibration of predictions: confusion, recall, precision, accuracy, reliability."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from camri.decision.scores import Array, check_range, divide
from camri.errors import InputError


def confusion(predicted: Array | Sequence[int], labels: Array | Sequence[int], num_classes: int) -> Array:
    """Counts, row = true class, column = predicted class: int64 (C, C).

    >>> confusion([0, 1, 1], labels=[0, 0, 1], num_classes=2).tolist()
    [[1, 1], [0, 1]]
    """
    predicted, labels = np.asarray(predicted), np.asarray(labels)
    if predicted.shape != labels.shape or labels.ndim != 1:
        raise InputError(f"predicted {predicted.shape} and labels {labels.shape} do not fit; give (N,) and (N,)")
    check_range("predicted", predicted, num_classes)
    check_range("labels", labels, num_classes)
    pairs = labels.astype(np.int64) * num_classes + predicted.astype(np.int64)
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes).astype(np.int64)


def recall(confusion: Array) -> Array:
    """Recall of each class, from confusion counts; nan, without a warning, for a class without images: (C,).

    >>> recall(np.array([[3, 1], [0, 2]])).tolist()
    [0.75, 1.0]
    """
    return divide(np.diagonal(confusion), confusion.sum(axis=1))


def precision(confusion: Array) -> Array:
    """Precision of each class, from confusion counts; nan, without a warning, if it is never predicted: (C,).

    >>> precision(np.array([[3, 1], [0, 1]])).tolist()
    [1.0, 0.5]
    """
    return divide(np.diagonal(confusion), confusion.sum(axis=0))


def accuracy(confusion: Array) -> float:
    """Accuracy, from confusion counts; nan without images.

    >>> accuracy(np.array([[3, 1], [0, 1]]))
    0.8
    """
    return float(divide(np.trace(confusion), confusion.sum()))


@dataclass(frozen=True, eq=False)
class Reliability:
    """Bins of equal width in confidence: count, mean confidence and accuracy, (B,) each; nan in an empty bin."""

    edges: Array
    count: Array
    confidence: Array
    accuracy: Array

    @property
    def ece(self) -> float:
        """Expected calibration error: |accuracy − confidence| averaged over images, bin by bin."""
        return float(np.nansum(self.count * np.abs(self.accuracy - self.confidence)) / self.count.sum())


def reliability(confidence: Array, correct: Array, num_bins: int = 15) -> Reliability:
    """Compare confidence with accuracy in bins (low, high] of equal width.

    >>> bins = reliability(np.array([0.9, 0.7, 0.3]), np.array([True, False, False]), num_bins=2)
    >>> bins.count.tolist(), bins.accuracy.tolist(), round(bins.ece, 3)
    ([1, 2], [0.0, 0.5], 0.3)
    """
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    index = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, num_bins - 1)
    count = np.bincount(index, minlength=num_bins)
    return Reliability(
        edges=edges,
        count=count,
        confidence=divide(np.bincount(index, weights=confidence, minlength=num_bins), count),
        accuracy=divide(np.bincount(index, weights=np.asarray(correct, np.float64), minlength=num_bins), count),
    )
