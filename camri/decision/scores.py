"""From scores to counts: recall, precision, accuracy, calibration; and the condensed scores that a trial stores.

Under a decision rule the outcome of an image depends on its important scores, on the best other score, and on whether
that other class is right. `Scores` keeps these three and what softmax needs of the other classes: `condense` in half
precision, for many trials, `exact` in double precision.
"""

import operator
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from camri.errors import InputError, closest

Array = np.ndarray[Any, np.dtype[Any]]
REST = -1  # a prediction of the best class that is not important
KINDS = ("logits", "probabilities")
CELLS_AT_ONCE = 2**20  # of a table: a block and what is made of it stay in the cache
FEW_CLASSES = 64
MOST_THREADS = 4
# Float16 ends at 65504; the 170 numbers between are left to keep the order of values that are cut off.
_CEILING = 60000.0
_CERTAIN = 1e6  # beyond any log factor, and small enough for float64 to keep differences of 1e-9


class Rule(Protocol):
    """A decision rule of `camri.decision`: `predict` gives the important class of each row, or −1."""

    def predict(self, scores: Any, /) -> Array: ...


Decision = ArrayLike | Rule


@dataclass(frozen=True, eq=False)
class Scores:
    """Condensed scores of one split: enough to apply any decision rule for the important classes.

    labels: int (N,).
    important: the I important classes, ascending.
    lead: float (N, I), each important logit minus the best logit of the other classes.
    rest_right: bool (N,), whether that best other class is the label.
    rest_spread: float (N,), logsumexp(other logits) − best other logit, at least 0.
    rest: int (N,), that best other class; None if it is not kept, as in a stored trial.
    probability: float64 (N, I), the important classes' probabilities as they were given; None if lead and spread give
    them.

    A `decision` is a rule of `camri.decision`, or a shift: one number for all important classes or one for each, added
    to their logits. An important class wins over the others if lead + shift > 0; of equal important classes the lower
    index wins.

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
    rest: Array | None = None
    probability: Array | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num(self) -> Array:
        """Images of each important class: int (I,)."""
        return (self.labels[:, None] == np.array(self.important)).sum(axis=0)

    def shifted(self, shift: ArrayLike = 0.0) -> Array:
        """The leads after a shift: float64 (N, I).

        Where all other classes have a probability of 0, leads are infinite. If that is so for several important
        classes, they are replaced by large numbers in the order of their shifted probabilities.

        >>> exact([[0.0, 0.2, 0.8]], labels=[2], important=[1, 2], kind="probabilities").predict().tolist()
        [2]
        """
        moved = self.lead.astype(np.float64) + np.asarray(shift, dtype=np.float64)
        if len(self.important) == 1:
            return moved
        certain = np.flatnonzero(np.isposinf(self.lead).sum(axis=1) > 1)
        if len(certain) and self.probability is not None:
            with np.errstate(divide="ignore"):
                moved[certain] = _CERTAIN + np.log(self.probability[certain]) + np.asarray(shift, dtype=np.float64)
        return moved

    def predict(self, decision: Decision = 0.0) -> Array:
        """Predict the important class of each image, or −1 where the best other class wins: int (N,)."""
        return decision.predict(self) if hasattr(decision, "predict") else self.winner(self.shifted(decision))

    def winner(self, above: Array, rest: Array | int = REST) -> Array:
        """The important class that is most above its cut-off (N, I), `rest` if none is above: int (N,)."""
        if len(self.important) == 1:
            return np.where(above[:, 0] > 0, np.int32(self.important[0]), np.asarray(rest, dtype=np.int32))
        return np.where(above.max(axis=1) > 0, np.array(self.important)[above.argmax(axis=1)], rest)

    def correct(self, decision: Decision = 0.0) -> Array:
        """Whether each image is classified correctly: bool (N,)."""
        return self.is_right(self.predict(decision))

    def is_right(self, predicted: Array) -> Array:
        """Whether predictions (a class, or −1 for the best other) are right: bool (N,)."""
        return np.where(predicted == REST, self.rest_right, predicted == self.labels)

    def is_hit(self, index: int, predicted: Array) -> Array:
        """Whether predictions find an image of this important class: bool (N,)."""
        return (predicted == index) & (self.labels == index)

    def false_alarms(self, decision: Decision = 0.0) -> Array:
        """Whether each image is a false alarm, of no important class but predicted as one: bool (N,).

        >>> condense(np.array([[2.0, 1.0], [0.0, 1.5]]), labels=[0, 0], important=(1,)).false_alarms().tolist()
        [False, True]
        """
        return self.is_false_alarm(self.predict(decision))

    def is_false_alarm(self, predicted: Array) -> Array:
        """Whether predictions (a class, or −1 for the best other) are false alarms: bool (N,)."""
        return self._is_important(predicted) & ~self._is_important(self.labels)

    def with_rest(self, predicted: Array) -> Array:
        """Predictions with the best other class in place of −1: int (N,)."""
        if self.rest is None:
            raise InputError("costs need the scores of all classes; give `exact` ones", argument="scores")
        return np.where(predicted == REST, self.rest, predicted)

    def _is_important(self, classes: Array) -> Array:
        found = classes == self.important[0]
        for index in self.important[1:]:
            found |= classes == index
        return np.asarray(found)

    def called(self, decision: Decision = 0.0) -> Array:
        """Images predicted as each important class, right or wrong: int (I,)."""
        return (self.predict(decision)[:, None] == np.array(self.important)).sum(axis=0)

    def hits(self, decision: Decision = 0.0) -> Array:
        """Images of each important class that are found: int (I,)."""
        return self.hits_of(self.predict(decision))

    def hits_of(self, predicted: Array) -> Array:
        """Images of each important class that predictions find: int (I,)."""
        found = self.labels[predicted == self.labels]
        return (found[:, None] == np.array(self.important)).sum(axis=0)

    def recall(self, decision: Decision = 0.0) -> Array:
        """Recall of each important class, nan without images: (I,)."""
        return divide(self.hits(decision), self.num)

    def precision(self, decision: Decision = 0.0) -> Array:
        """Precision of each important class, nan if it is never predicted: (I,)."""
        return divide(self.hits(decision), self.called(decision))

    def accuracy(self, decision: Decision = 0.0) -> float:
        """Share of images that are classified correctly."""
        return float(self.correct(decision).mean())

    def confidence(self, decision: Decision = 0.0) -> Array:
        """Softmax probability of the predicted class; after the shift, if the decision is one: float64 (N,)."""
        scores = self.shifted() if hasattr(decision, "predict") else self.shifted(decision)
        top = np.maximum(scores.max(axis=1), 0.0)
        won = top
        if hasattr(decision, "predict"):
            places = self.predict(decision)[:, None] == np.array(self.important)
            won = np.where(places.any(axis=1), (scores * places).sum(axis=1), 0.0)
        whole = np.exp(self.rest_spread.astype(np.float64) - top) + np.exp(scores - top[:, None]).sum(axis=1)
        return np.exp(won - top) / whole

    def odds(self) -> "Scores":
        """The same images with each important class's log-odds against all other classes as lead.

        A shift b of these is a threshold of 1 / (1 + exp(b)) on the class's probability: the rule with the fewest false
        alarms at a recall if probabilities are calibrated. `confidence` is not defined for them.

        >>> scores = condense(np.log([[0.25, 0.375, 0.375], [0.5, 0.25, 0.25]]), labels=[0, 0], important=(0,))
        >>> [np.exp(lead.astype(float)).round(2).tolist() for lead in (scores.lead, scores.odds().lead)]
        [[[0.67], [2.0]], [[0.33], [1.0]]]
        """
        # Rounded, since exp and log differ in the last bit between processors, which would break ties differently.
        return replace(self, lead=np.round(self._log_odds(), 9))

    def _log_odds(self) -> Array:
        if self.probability is not None:
            with np.errstate(divide="ignore"):
                return np.log(self.probability) - np.log1p(-self.probability)
        lead = self.lead.astype(np.float64)
        top = np.maximum(lead.max(axis=1, keepdims=True), 0.0)
        parts = np.exp(lead - top)
        rest = np.exp(self.rest_spread.astype(np.float64)[:, None] - top)
        others = [rest[:, 0] + np.delete(parts, place, axis=1).sum(axis=1) for place in range(lead.shape[1])]
        with np.errstate(divide="ignore"):
            return lead - top - np.log(np.stack(others, axis=1))

    def probabilities(self) -> Array:
        """The probability of each important class: float64 (N, I)."""
        return special.expit(self._log_odds()) if self.probability is None else self.probability

    def take(self, rows: Array) -> "Scores":
        """The scores of some rows."""
        parts = {name: getattr(self, name) for name in PARTS}
        taken: dict[str, Any] = {name: None if part is None else part[rows] for name, part in parts.items()}
        return replace(self, **taken)

    def only(self, important: Sequence[int]) -> "Scores":
        """The same images with fewer important classes; the dropped ones join the other classes.

        Outcomes at shift 0 do not change.

        >>> scores = condense(np.array([[2.0, 1.0, 0.5]]), labels=[0], important=(0, 1)).only((1,))
        >>> scores.important, scores.lead.tolist(), scores.rest_right.tolist()
        ((1,), [[-1.0]], [True])
        """
        if not len(important) or not set(important) <= set(self.important):
            wrong = f"important={tuple(important)} is not among the important classes {self.important}"
            raise InputError(wrong, argument="important")
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
            rest=None if self.rest is None else np.where(joins, best_class, self.rest),
            probability=None if self.probability is None else self.probability[:, kept],
        )


PARTS = ("labels", "lead", "rest_right", "rest_spread", "rest", "probability")  # fields with one row per image


def condense(logits: Array, labels: Array | Sequence[int], important: Sequence[int]) -> Scores:
    """Condense full logits (N, C) to `Scores`: some 6 bytes per image beside its label.

    At shift 0 they predict what argmax over the full logits predicts, ties included (the lowest index wins). Rounding
    to half precision keeps the order of the important classes and the best other class: where it would be lost, a lead
    is moved by one step (2⁻²⁴ around 0). So no lead changes its sign, and equal logits give a lead of 0 if the other
    class comes first, and the smallest positive lead if the important one does. Leads beyond ±60,000 are cut off.
    At other shifts rounded leads may tie; the other class then wins.

    >>> condense(np.array([[1.0, 3.0, 0.0], [0.0, 0.0, 4.0]]), labels=[1, 0], important=(1,)).lead.tolist()
    [[2.0], [-4.0]]
    """
    logits, labels, chosen = _checked("logits", logits, labels, important)
    num_classes = logits.shape[1]
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


def _checked(name: str, scores: Any, labels: Any, important: Iterable[int]) -> tuple[Array, Array, list[int]]:
    """Check and return scores (N, C), labels (N,) and the important classes' indices, ascending."""
    table, truth = np.asarray(scores), np.asarray(labels)
    if table.ndim != 2 or truth.shape != table.shape[:1] or not len(truth):
        raise InputError(f"{name} {table.shape} and labels {truth.shape} do not fit; give (N, C) and (N,), N > 0")
    num_classes = table.shape[1]
    wrong = f"important={important!r} is not allowed"
    try:
        chosen = sorted(operator.index(one) for one in important)
    except TypeError:
        raise InputError(f"{wrong}; give class indices, for example [1]", argument="important") from None
    if not 0 < len(set(chosen)) == len(chosen) < num_classes or not 0 <= chosen[0] <= chosen[-1] < num_classes:
        raise InputError(f"{wrong}; give at least one and not all of 0 … {num_classes - 1}", argument="important")
    check_range("labels", truth, num_classes)
    return table, truth, chosen


def exact(scores: ArrayLike, labels: ArrayLike, important: Iterable[int], kind: str = "logits") -> Scores:
    """Convert full scores (N, C) to `Scores` in double precision, for tuning a rule that is applied to such scores.

    kind: "logits" or "probabilities". Probabilities are not normalised. One of exactly 0 has a lead of −inf, which no
    factor changes, and so has one that would need a factor beyond the range of its dtype.

    >>> found = exact([[0.7, 0.3, 0.0], [0.1, 0.0, 0.9]], labels=[1, 2], important=[1], kind="probabilities")
    >>> found.lead.round(2).tolist(), found.probability.tolist(), found.rest.tolist()
    ([[-0.85], [-inf]], [[0.3], [0.0]], [0, 2])
    """
    table, truth, own = _checked("scores", scores, labels, important)
    if kind not in KINDS:
        raise InputError(f"kind={kind!r} is unknown; {closest(kind, KINDS)}", "kind")
    at_once = max(1024, CELLS_AT_ONCE // table.shape[1])
    parts = [slice(first, first + at_once) for first in range(0, len(table), at_once)]

    def condensed(part: slice) -> Scores:
        return condense_block(table[part], truth[part], own, kind)

    if len(parts) == 1:
        return condensed(parts[0])
    with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1, MOST_THREADS)) as pool_of_threads:  # numpy lets go
        return pool(list(pool_of_threads.map(condensed, parts)))


def condense_block(table: Array, labels: Array, own: Sequence[int], kind: str) -> Scores:
    """The `Scores` of some rows of a checked table; `own` are the important classes, ascending."""
    block = table.astype(np.promote_types(table.dtype, np.float32), copy=False)
    if not np.isfinite(block.sum(dtype=np.float64)) and not np.isfinite(block).all():
        bad = int((~np.isfinite(block)).any(axis=1).sum())
        raise InputError(f"{bad} of {len(block)} rows have scores that are not finite", argument="scores")
    if kind == "probabilities" and not -1e-6 <= block.min() <= block.max() <= 1 + 1e-6:
        raise InputError("probabilities lie between 0 and 1; for raw scores give kind='logits'", argument="kind")
    best, rest, whole = _others(block, own, kind)
    mine, top = block[:, list(own)].astype(np.float64), best.astype(np.float64)[:, None]
    probability = None
    if kind == "logits":
        lead = mine - top
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            lead, probability = np.log(mine) - np.log(top), np.clip(mine, 0.0, 1.0)
        largest = 1e38 if table.dtype.kind == "f" and table.dtype.itemsize <= 4 else 1e300
        lead[~(lead >= -np.log(largest))] = -np.inf  # and 0 / 0, which is nan
    ahead = (lead == 0) & (np.array(own) < rest[:, None])  # argmax takes the first of equal scores
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.nan_to_num(np.log(whole), nan=0.0, posinf=0.0, neginf=0.0)
    return Scores(
        labels=labels.astype(np.int32, copy=False),
        important=tuple(own),
        lead=np.where(ahead, np.finfo(np.float64).tiny, lead),
        rest_right=rest == labels,
        rest_spread=spread,
        rest=rest,
        probability=probability,
    )


def _others(block: Array, own: Sequence[int], kind: str) -> tuple[Array, Array, Array]:
    """Of the classes that are not important: the best score, its class, and the sum of their odds against it: (N,)."""
    others = [place for place in range(block.shape[1]) if place not in own]
    if len(others) > FEW_CLASSES:
        rows = np.delete(block, list(own), axis=1)
        place = rows.argmax(axis=1)
        best = np.take_along_axis(rows, place[:, None], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = np.exp(np.subtract(rows, best, out=rows), out=rows) if kind == "logits" else rows / best
        return best[:, 0], np.array(others, dtype=np.int32)[place], odds.sum(axis=1, dtype=np.float64)
    columns = np.ascontiguousarray(block[:, others].T)  # a class after another: three times as fast for ten classes
    best, rest = columns[0].copy(), np.full(len(block), others[0], dtype=np.int32)
    for place, column in zip(others[1:], columns[1:], strict=True):
        np.copyto(rest, place, where=column > best)
        np.maximum(best, column, out=best)
    whole = np.zeros(len(block))
    with np.errstate(divide="ignore", invalid="ignore"):
        for column in columns:
            whole += np.exp(column - best) if kind == "logits" else column / best
    return best, rest, whole


def _halve(scores: Array, best: Array, ahead: Array) -> Array:
    """scores − best (N, I) in half precision, keeping their order, and their sign where they are `ahead` of best."""
    order = np.argsort(-scores, axis=1, kind="stable")  # on a tie the lower class comes first, as in argmax
    exact = np.take_along_axis(scores - best[:, None], order, axis=1)
    ahead = np.take_along_axis(ahead, order, axis=1)
    half = np.clip(np.abs(exact), 0, _CEILING).astype(np.float16)
    steps = half.view(np.uint16).astype(np.int64) * np.where(exact < 0, -1, 1)  # number of float16 steps from 0
    num = steps.shape[1]
    for j in reversed(range(num)):  # those ahead of the best other, from the last of them upwards
        below = np.where(ahead[:, j + 1], steps[:, j + 1], 0) if j + 1 < num else 0
        steps[:, j] = np.where(ahead[:, j], np.maximum(steps[:, j], below + 1), steps[:, j])
    for j in range(num):  # those behind it, from the first of them downwards
        above = np.where(exact[:, j] < 0, -1, 0)
        if j:
            above = np.where(ahead[:, j - 1], above, steps[:, j - 1] - 1)
        steps[:, j] = np.where(ahead[:, j], steps[:, j], np.minimum(steps[:, j], above))
    lead = np.empty(steps.shape, np.float16)
    np.put_along_axis(lead, order, np.abs(steps).astype(np.uint16).view(np.float16) * np.sign(steps), axis=1)
    return lead


def pool(scores: Sequence[Scores]) -> Scores:
    """Concatenate the scores of several trials with the same important classes."""
    if len({one.important for one in scores}) != 1:
        raise InputError(f"scores of different important classes cannot be pooled: {[one.important for one in scores]}")
    kept: dict[str, Any] = {}
    for name in PARTS:
        parts = [getattr(one, name) for one in scores]
        kept[name] = None if any(part is None for part in parts) else np.concatenate(parts)
    return replace(scores[0], **kept)


def divide(part: Array | int, whole: Array | int) -> Array:
    """part / whole; nan, without a warning, where the whole is 0."""
    whole = np.asarray(whole, dtype=np.float64)
    return np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, np.nan), where=whole != 0)


def check_range(name: str, values: Array, num_classes: int) -> None:
    if values.size and (values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= num_classes):
        bad = sorted({str(value) for value in values.tolist() if value not in range(num_classes)})[:3]
        raise InputError(f"{name} are whole numbers from 0 to {num_classes - 1}, not {', '.join(bad) or values.dtype}")
