"""Scores as people have them -> checked logits, and all that a shift can change, in full precision."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from camri.errors import InputError, closest, one_by_one
from camri.metrics import Array, Scores, condense
from camri.words import name_rows

KINDS = ("logits", "probabilities")
SUM_SLACK = 0.05  # probabilities of a row add up to 1, as far as tables are rounded: ten to two digits miss it so far


@dataclass(frozen=True, eq=False)
class Checked:
    """Scores that can be audited: logits float64 (N, C), labels int64 (N,), class names, important class indices.

    kind: what the scores were; percentages are probabilities. Of probabilities the logits are the logarithms.
    groups: int64 (N,), places in group_names, where rows come in groups.
    """

    logits: Array
    labels: Array
    classes: tuple[str, ...]
    important: tuple[int, ...]
    kind: str
    groups: Array | None = None
    group_names: tuple[str, ...] = ()

    def groups_of(self, rows: Array) -> Array | None:
        """The groups of some rows; None where rows come in none."""
        return None if self.groups is None else self.groups[rows]


def check(
    scores: ArrayLike,
    labels: ArrayLike,
    important: str | int | Sequence[str | int],
    classes: Sequence[str] | None,
    kind: str | None,
    groups: ArrayLike | None = None,
) -> Checked:
    """The scores with what belongs to them; wrong shapes, values and names are refused."""
    values = _numbers(scores)
    names = tuple(map(str, range(values.shape[1]))) if classes is None else tuple(str(name) for name in classes)
    if len(names) != values.shape[1] or len(set(names)) < len(names):
        raise InputError(
            f"{len(names)} class names {names[:5]} for {values.shape[1]} columns; give different ones, one each"
        )
    for name in names:
        if not name.isprintable():
            raise InputError(f"class name {name!a} is not printable text; rename it")
    codes = encode_labels(np.asarray(labels), names)
    if codes.shape != values.shape[:1]:
        raise InputError(f"{len(values):,} rows of scores and {len(codes):,} labels do not fit; give one label a row")
    wanted = [important] if isinstance(important, (str, int)) else list(important)
    chosen = sorted({_class_index(one, names) for one in wanted})
    if not chosen or len(chosen) == len(names):
        raise InputError(f"{len(chosen)} of {len(names)} classes are important; name at least one and not all")
    if kind is not None and kind not in KINDS:
        raise InputError(f"kind={kind!r} is unknown; {closest(kind, KINDS)}")
    if kind != "logits" and _are_probabilities(values / 100):
        values = values / 100
    found = kind or ("probabilities" if _are_probabilities(values) else "logits")
    logits = _logarithms(values) if found == "probabilities" else values
    if groups is None:
        return Checked(logits, codes, names, tuple(chosen), found)
    group_names, places = encode_groups(np.asarray(groups), len(values))
    return Checked(logits, codes, names, tuple(chosen), found, places, group_names)


def encode_groups(groups: Array, num: int) -> tuple[tuple[str, ...], Array]:
    """The groups' names as they first appear, and int64 (N,) places in them; a row without one is refused.

    >>> encode_groups(np.array(["eve", "adam", "eve"]), 3)
    (('eve', 'adam'), array([0, 1, 0]))
    """
    if groups.shape != (num,):
        raise InputError(f"{num:,} rows and groups of shape {groups.shape} do not fit; give one group a row")
    texts = [_text(group) for group in groups.tolist()]
    if missing := [row for row, text in enumerate(texts) if not text]:
        raise InputError(
            f"the group of {name_rows(missing, num)} is missing; fill it in, with a name of its own where the row "
            "stands alone, or remove the row"
        )
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return tuple(places), np.array([places[text] for text in texts], dtype=np.int64)


def encode_labels(labels: Array, classes: Sequence[str]) -> Array:
    """int64 class indices of labels that are names, or else indices into the classes.

    >>> encode_labels(np.array(["b", "a"]), ["a", "b"]).tolist(), encode_labels(np.array([1, 0]), ["a", "b"]).tolist()
    ([1, 0], [1, 0])
    """
    if labels.ndim != 1:
        raise InputError(f"labels of shape {labels.shape} are not allowed; give one class a row")
    texts = [_text(label) for label in labels.tolist()]
    if missing := [row for row, text in enumerate(texts) if not text]:
        raise InputError(f"the label of {name_rows(missing, len(texts))} is missing; fill it in or remove the row")
    index = {name: place for place, name in enumerate(classes)}
    if all(text in index for text in texts):
        return np.array([index[text] for text in texts], dtype=np.int64)
    numbers = {text: place for place in range(len(classes)) for text in (str(place), f"{place}.0")}
    if all(text in numbers for text in texts):
        return np.array([numbers[text] for text in texts], dtype=np.int64)
    unknown = next(text for text in texts if text not in index)
    raise InputError(f"label {unknown!r} is not a class; {closest(unknown, classes)}, or numbers from 0")


def _text(label: object) -> str:
    """A label's text; a whole number that came as a float ("3.0") is the whole number."""
    if label is None or label != label:
        return ""
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return str(label).strip()


def _class_index(wanted: str | int, classes: tuple[str, ...]) -> int:
    if str(wanted) in classes:
        return classes.index(str(wanted))
    if isinstance(wanted, (int, np.integer)) and 0 <= wanted < len(classes):
        return int(wanted)
    hint = one_by_one(wanted, classes) or closest(wanted, classes)
    raise InputError(f"important class {wanted!r} is not a class; {hint}")


def _numbers(scores: ArrayLike) -> Array:
    values = np.asarray(scores)
    if values.ndim != 2 or values.shape[1] < 2 or not len(values) or values.dtype.kind not in "fiub":
        raise InputError(
            f"scores of shape {values.shape} and type {values.dtype} are not allowed; give numbers (N, C), a row for "
            "each input and a column for each class"
        )
    values = values.astype(np.float64)
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        row, column = wrong[0].tolist()
        num_rows = len(np.unique(wrong[:, 0]))
        raise InputError(
            f"the score in row {row}, column {column} is {values[row, column]}; {num_rows:,} of {len(values):,} rows "
            "have such scores: fill them in or remove the rows"
        )
    return values


def _are_probabilities(values: Array) -> bool:
    return bool(values.min() >= 0 and values.max() <= 1 and (np.abs(values.sum(axis=1) - 1) < SUM_SLACK).all())


def _logarithms(values: Array) -> Array:
    if values.min() < 0 or values.max() > 1:
        raise InputError(
            f"probabilities lie between 0 and 1, and these between {values.min():g} and {values.max():g}; say "
            "kind='logits' (--scores-are logits)"
        )
    # A probability that was rounded to 0 is less than the smallest one that is shown.
    least = values[values > 0].min() / 2
    return np.log(np.maximum(values, least))


def exact(logits: Array, labels: Array, important: tuple[int, ...]) -> Scores:
    """`condense`'s scores with leads in double precision: a shift found here does the same in anybody's own code."""
    condensed = condense(logits, labels, important)
    others = np.delete(logits, list(important), axis=1)
    lead = logits[:, list(important)] - others.max(axis=1, keepdims=True)
    tied_and_ahead = (lead == 0) & (condensed.lead > 0)
    return replace(condensed, lead=np.where(tied_and_ahead, np.finfo(np.float64).tiny, lead))


def rows_of(scores: Scores, rows: Array) -> Scores:
    """The scores of some rows."""
    return Scores(
        labels=scores.labels[rows],
        important=scores.important,
        lead=scores.lead[rows],
        rest_right=scores.rest_right[rows],
        rest_spread=scores.rest_spread[rows],
    )
