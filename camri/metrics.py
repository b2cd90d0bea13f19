"""From scores to counts: recall, precision, accuracy, calibration; and the little a trial leaves of every image.

Under a shift of the important classes' scores an image's outcome depends on its important scores, on the best other
score, and on whether that other is right. `Scores` keeps these three, and what softmax needs of the rest.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from camri.errors import InputError

Array = np.ndarray[Any, np.dtype[Any]]
REST = -1  # stands for "the best of the classes that are not important" among predictions
# Half precision ends at 65504; from here upwards 170 steps are left to keep equal values in their order.
_CEILING = 60000.0


@dataclass(frozen=True, eq=False)
class Scores:
    """What a trial leaves of one split: enough for every shift of the important classes' scores.

    labels: int (N,).
    important: the I important classes, ascending.
    lead: float16 (N, I), each important logit minus the best logit among the other classes.
    rest_right: bool (N,), that best other class is the label.
    rest_spread: float16 (N,), logsumexp(other logits) − best other logit, at least 0.

    A `shift` is one number for all important classes or one for each, in the unit of the logits; it is added to the
    important logits. An important class wins over the rest where lead + shift > 0; among important classes that are
    level the lower index wins.

    >>> scores = condense(np.array([[2.0, 1.0, 0.0], [0.0, 1.5, 1.0]]), labels=[1, 1], important=(1,))
    >>> scores.predict().tolist(), scores.predict(1.5).tolist()
    ([-1, 1], [1, 1])
    >>> scores.accuracy(), scores.accuracy(1.5)
    (0.5, 1.0)
    """

    labels: Array
    important: tuple[int, ...]
    lead: Array
    rest_right: Array
    rest_spread: Array

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num(self) -> Array:
        """Images of each important class: int (I,)."""
        return (self.labels[:, None] == np.array(self.important)).sum(axis=0)

    def shifted(self, shift: ArrayLike = 0.0) -> Array:
        """The important scores over the best other after a shift: float64 (N, I)."""
        return self.lead.astype(np.float64) + np.asarray(shift, dtype=np.float64)

    def predict(self, shift: ArrayLike = 0.0) -> Array:
        """The predicted important class of every image, −1 where the best other class wins: int (N,)."""
        scores = self.shifted(shift)
        return np.where(scores.max(axis=1) > 0, np.array(self.important)[scores.argmax(axis=1)], REST)

    def correct(self, shift: ArrayLike = 0.0) -> Array:
        """Whether every image is classified rightly: bool (N,)."""
        return self.is_right(self.predict(shift))

    def is_right(self, predicted: Array) -> Array:
        """Whether such predictions (a class, or −1 for the best other) are right: bool (N,)."""
        return np.where(predicted == REST, self.rest_right, predicted == self.labels)

    def false_alarms(self, shift: ArrayLike = 0.0) -> Array:
        """Whether every image is a false alarm, of no important class and taken for one: bool (N,).

        >>> condense(np.array([[2.0, 1.0], [0.0, 1.5]]), labels=[0, 0], important=(1,)).false_alarms().tolist()
        [False, True]
        """
        return self.is_false_alarm(self.predict(shift))

    def is_false_alarm(self, predicted: Array) -> Array:
        """Whether such predictions (a class, or −1 for the best other) are false alarms: bool (N,)."""
        return (predicted != REST) & ~np.isin(self.labels, self.important)

    def called(self, shift: ArrayLike = 0.0) -> Array:
        """Images that are taken for each important class, rightly or not: int (I,)."""
        return (self.predict(shift)[:, None] == np.array(self.important)).sum(axis=0)

    def hits(self, shift: ArrayLike = 0.0) -> Array:
        """Images of each important class that are found: int (I,)."""
        found = self.labels[self.correct(shift)]
        return (found[:, None] == np.array(self.important)).sum(axis=0)

    def recall(self, shift: ArrayLike = 0.0) -> Array:
        """Recall of each important class, nan for one without images: (I,)."""
        return divide(self.hits(shift), self.num)

    def precision(self, shift: ArrayLike = 0.0) -> Array:
        """Precision of each important class, nan for one that is never predicted: (I,)."""
        return divide(self.hits(shift), self.called(shift))

    def accuracy(self, shift: ArrayLike = 0.0) -> float:
        """The share of images that are classified rightly."""
        return float(self.correct(shift).mean())

    def confidence(self, shift: ArrayLike = 0.0) -> Array:
        """The predicted class's softmax probability after the shift: float64 (N,)."""
        scores = self.shifted(shift)
        top = np.maximum(scores.max(axis=1), 0.0)
        return 1.0 / (np.exp(self.rest_spread.astype(np.float64) - top) + np.exp(scores - top[:, None]).sum(axis=1))

    def odds(self) -> "Scores":
        """The same images with the log-odds of each important class against all other classes as their leads.

        A shift b of these is a threshold on the class's probability, 1 / (1 + exp(b)): the rule with the fewest false
        alarms at a recall where probabilities are right. `confidence` is not defined for them.

        >>> scores = condense(np.log([[0.25, 0.375, 0.375], [0.5, 0.25, 0.25]]), labels=[0, 0], important=(0,))
        >>> [np.exp(lead.astype(float)).round(2).tolist() for lead in (scores.lead, scores.odds().lead)]
        [[[0.67], [2.0]], [[0.33], [1.0]]]
        """
        lead = self.lead.astype(np.float64)
        top = np.maximum(lead.max(axis=1, keepdims=True), 0.0)
        parts = np.exp(lead - top)
        rest = np.exp(self.rest_spread.astype(np.float64)[:, None] - top)
        others = [rest[:, 0] + np.delete(parts, place, axis=1).sum(axis=1) for place in range(lead.shape[1])]
        with np.errstate(divide="ignore"):
            return replace(self, lead=lead - top - np.log(np.stack(others, axis=1)))

    def only(self, important: Sequence[int]) -> "Scores":
        """The same images with fewer important classes; those dropped join the rest.

        Outcomes at shift 0 stay exactly what they were.

        >>> scores = condense(np.array([[2.0, 1.0, 0.5]]), labels=[0], important=(0, 1)).only((1,))
        >>> scores.important, scores.lead.tolist(), scores.rest_right.tolist()
        ((1,), [[-1.0]], [True])
        """
        missing = sorted(set(important) - set(self.important))
        if missing or not len(important):
            raise InputError(
                f"important={tuple(important)} is not among the important classes {self.important}",
                argument="important",
            )
        kept = np.isin(self.important, tuple(important))
        classes, lead = np.array(self.important), self.lead.astype(np.float64)
        if kept.all():
            return self
        dropped = lead[:, ~kept]
        best_class = classes[~kept][dropped.argmax(axis=1)]
        best = np.maximum(dropped.max(axis=1), 0.0)
        joins = best > 0
        ahead = lead[:, kept] > best[:, None]
        ahead |= (lead[:, kept] == best[:, None]) & joins[:, None] & (classes[kept] < best_class[:, None])
        total = np.exp(self.rest_spread.astype(np.float64) - best) + np.exp(dropped - best[:, None]).sum(axis=1)
        return Scores(
            labels=self.labels,
            important=tuple(classes[kept].tolist()),
            lead=_halve(lead[:, kept], best, ahead),
            rest_right=np.where(joins, self.labels == best_class, self.rest_right),
            rest_spread=np.maximum(np.log(total), 0.0).astype(np.float16),
        )


def condense(logits: Array, labels: Array | Sequence[int], important: Sequence[int]) -> Scores:
    """The `Scores` of full logits (N, C): some 6 bytes an image beside its label.

    At shift 0 they say what argmax over the full logits says, ties included (the lowest index wins): rounding to half
    precision keeps the order of the important classes among each other and to the best other class, by moving a lead
    one step (2⁻²⁴ around 0) where it would be lost. So no lead changes its sign, and equal logits leave 0 where the
    other class comes first, the smallest positive lead where the important one does. Leads beyond ±60,000 are cut.
    At a shift other than 0, ties are those of rounded leads: no index is left to break them, and the rest wins.

    >>> condense(np.array([[1.0, 3.0, 0.0], [0.0, 0.0, 4.0]]), labels=[1, 0], important=(1,)).lead.tolist()
    [[2.0], [-4.0]]
    """
    logits, labels = np.asarray(logits), np.asarray(labels)
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels):
        raise InputError(f"logits {logits.shape} and labels {labels.shape} do not fit; give (N, C) and (N,), N > 0")
    num_classes = logits.shape[1]
    try:
        chosen = sorted(operator.index(one) for one in important)
    except TypeError:
        raise InputError(
            f"important={important!r} is not allowed; give class indices, for example [1]", argument="important"
        ) from None
    if not 0 < len(set(chosen)) == len(chosen) < num_classes or not 0 <= chosen[0] <= chosen[-1] < num_classes:
        raise InputError(
            f"important={tuple(important)} is not allowed; give at least one and not all of 0 … {num_classes - 1}",
            argument="important",
        )
    _check_range("labels", labels, num_classes)
    if not np.isfinite(logits).all():
        bad = int((~np.isfinite(logits)).any(axis=1).sum())
        raise InputError(f"{bad} of {len(logits)} images have logits that are not finite")
    is_other = np.ones(num_classes, dtype=bool)
    is_other[chosen] = False
    others = logits[:, is_other].astype(np.float64)
    best_class = np.flatnonzero(is_other)[others.argmax(axis=1)]
    best = others.max(axis=1)
    scores = logits[:, chosen].astype(np.float64)
    ahead = (scores > best[:, None]) | ((scores == best[:, None]) & (np.array(chosen) < best_class[:, None]))
    return Scores(
        labels=labels.astype(np.int64),
        important=tuple(chosen),
        lead=_halve(scores, best, ahead),
        rest_right=best_class == labels,
        rest_spread=np.log(np.exp(others - best[:, None]).sum(axis=1)).astype(np.float16),
    )


def _halve(scores: Array, best: Array, ahead: Array) -> Array:
    """scores − best (N, I) in half precision, in the order they had: among each other, and to the best (`ahead`)."""
    order = np.argsort(-scores, axis=1, kind="stable")  # on a tie the lower class stands first, as in argmax
    exact = np.take_along_axis(scores - best[:, None], order, axis=1)
    ahead = np.take_along_axis(ahead, order, axis=1)
    half = np.clip(np.abs(exact), 0, _CEILING).astype(np.float16)
    steps = half.view(np.uint16).astype(np.int64) * np.where(exact < 0, -1, 1)  # how many halves lie between it and 0
    num = steps.shape[1]
    for j in reversed(range(num)):  # those ahead of the rest, from the last of them upwards
        below = np.where(ahead[:, j + 1], steps[:, j + 1], 0) if j + 1 < num else 0
        steps[:, j] = np.where(ahead[:, j], np.maximum(steps[:, j], below + 1), steps[:, j])
    for j in range(num):  # those behind it, from the first downwards
        above = np.where(exact[:, j] < 0, -1, 0)
        if j:
            above = np.where(ahead[:, j - 1], above, steps[:, j - 1] - 1)
        steps[:, j] = np.where(ahead[:, j], steps[:, j], np.minimum(steps[:, j], above))
    lead = np.empty(steps.shape, np.float16)
    np.put_along_axis(lead, order, np.abs(steps).astype(np.uint16).view(np.float16) * np.sign(steps), axis=1)
    return lead


def pool(scores: Sequence[Scores]) -> Scores:
    """Several trials' scores of the same important classes as one: counts add up."""
    if len({one.important for one in scores}) != 1:
        raise InputError(f"scores of different important classes cannot be pooled: {[one.important for one in scores]}")
    return Scores(
        labels=np.concatenate([one.labels for one in scores]),
        important=scores[0].important,
        lead=np.concatenate([one.lead for one in scores]),
        rest_right=np.concatenate([one.rest_right for one in scores]),
        rest_spread=np.concatenate([one.rest_spread for one in scores]),
    )


def confusion(predicted: Array | Sequence[int], labels: Array | Sequence[int], num_classes: int) -> Array:
    """Counts, row = true class, column = predicted class: int64 (C, C).

    >>> confusion([0, 1, 1], labels=[0, 0, 1], num_classes=2).tolist()
    [[1, 1], [0, 1]]
    """
    predicted, labels = np.asarray(predicted), np.asarray(labels)
    if predicted.shape != labels.shape or labels.ndim != 1:
        raise InputError(f"predicted {predicted.shape} and labels {labels.shape} do not fit; give (N,) and (N,)")
    _check_range("predicted", predicted, num_classes)
    _check_range("labels", labels, num_classes)
    pairs = labels.astype(np.int64) * num_classes + predicted.astype(np.int64)
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes).astype(np.int64)


def recall(confusion: Array) -> Array:
    """Found images of each class by its images; nan, without a warning, for a class without images: (C,).

    >>> recall(np.array([[3, 1], [0, 2]])).tolist()
    [0.75, 1.0]
    """
    return divide(np.diagonal(confusion), confusion.sum(axis=1))


def precision(confusion: Array) -> Array:
    """Right predictions of each class by its predictions; nan, without a warning, for one never predicted: (C,).

    >>> precision(np.array([[3, 1], [0, 1]])).tolist()
    [1.0, 0.5]
    """
    return divide(np.diagonal(confusion), confusion.sum(axis=0))


def accuracy(confusion: Array) -> float:
    """Right predictions by all images; nan for no images.

    >>> accuracy(np.array([[3, 1], [0, 1]]))
    0.8
    """
    return float(divide(np.trace(confusion), confusion.sum()))


def divide(part: Array | int, whole: Array | int) -> Array:
    """part / whole, nan where the whole is 0 and no warning for it."""
    whole = np.asarray(whole, dtype=np.float64)
    return np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, np.nan), where=whole != 0)


@dataclass(frozen=True, eq=False)
class Reliability:
    """Bins of equal width in confidence: count (B,), mean confidence (B,), accuracy (B,); nan where a bin is empty."""

    edges: Array
    count: Array
    confidence: Array
    accuracy: Array

    @property
    def ece(self) -> float:
        """Expected calibration error: |accuracy − confidence| averaged over images, bin by bin."""
        return float(np.nansum(self.count * np.abs(self.accuracy - self.confidence)) / self.count.sum())


def reliability(confidence: Array, correct: Array, num_bins: int = 15) -> Reliability:
    """How confidence and accuracy agree, in bins (low, high] of equal width.

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


def _check_range(name: str, values: Array, num_classes: int) -> None:
    if values.size and (values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= num_classes):
        bad = sorted({str(value) for value in values.tolist() if value not in range(num_classes)})[:3]
        raise InputError(f"{name} are whole numbers from 0 to {num_classes - 1}, not {', '.join(bad) or values.dtype}")
