"""Bring the rows of several tables together: the same classes in the same order, the same rows in the same order."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from camri.decision.read import Rows
from camri.decision.scores import Array
from camri.errors import InputError


def recode(rows: Rows, classes: Sequence[str], name: str, other: str) -> Rows:
    """The rows with their classes in another order; other classes are refused. other: what has the classes.

    >>> from camri.decision.read import read
    >>> rows = read([[0.7, 0.3], [0.2, 0.8]], ["b", "a"], "a", classes=["b", "a"], kind="probabilities")
    >>> found = recode(rows, ["a", "b"], "new.csv", "old.csv")
    >>> found.scores.important, found.scores.labels.tolist(), found.scores.rest.tolist()
    ((0,), [1, 0], [1, 1])
    """
    if tuple(rows.classes) == tuple(classes):
        return rows
    if odd := sorted({*rows.classes} ^ {*classes}):
        has, lacks = (name, other) if odd[0] in rows.classes else (other, name)
        raise InputError(f"{has} has the class {odd[0]!r}, {lacks} has not; give the scores of the same classes")
    places = np.array([list(classes).index(one) for one in rows.classes], dtype=np.int64)
    own = places[list(rows.scores.important)]
    order = np.argsort(own)
    scores = replace(
        rows.scores,
        labels=places[rows.scores.labels],
        important=tuple(own[order].tolist()),
        lead=rows.scores.lead[:, order],
        rest=None if rows.scores.rest is None else places[rows.scores.rest],
        probability=None if rows.scores.probability is None else rows.scores.probability[:, order],
    )
    table = None if rows.table is None else rows.table[:, np.argsort(places)]
    names = None if rows.labels_as is None else np.asarray(rows.labels_as)[np.argsort(places)]
    return replace(rows, scores=scores, classes=tuple(classes), table=table, labels_as=names)


def join(models: Mapping[str, Rows], titles: Mapping[str, str]) -> dict[str, Rows]:
    """The models' rows in the order of the first one's: by their ids, else as they are, with their labels checked."""
    first, *others = models
    base = models[first]
    title = titles.get(first, first)
    return {first: base, **{name: _join_one(base, models[name], title, titles.get(name, name)) for name in others}}


def _join_one(base: Rows, rows: Rows, first: str, name: str) -> Rows:
    rows = recode(rows, base.classes, name, first)
    if (base.ids is None) != (rows.ids is None):
        raise InputError(f"only one of {first} and {name} has ids; give both, or none", "ids")
    if base.ids is not None and rows.ids is not None:
        rows = reorder(rows, find_places(base.ids, rows.ids, first, name))
    one, two = base.scores.labels, rows.scores.labels
    if len(one) != len(two):
        wrong = f"{first} has {len(one):,} rows, {name} {len(two):,}"
        raise InputError(f"{wrong}; give the same rows, joined by a column of names with --id (ids=)", "new")
    if len(differ := np.flatnonzero(one != two)):
        row, labels = int(differ[0]), [base.classes[int(side[differ[0]])] for side in (one, two)]
        wrong = f"row {row} is {labels[0]!r} in {first} and {labels[1]!r} in {name}"
        more = f" ({len(differ):,} rows differ)" if len(differ) > 1 else ""
        remedy = "correct the labels" if base.ids is not None else "join the rows by a column of names with --id (ids=)"
        raise InputError(f"{wrong}{more}; {remedy}", "new")
    return rows


def find_places(ids: Array, others: Array, first: str, name: str) -> Array:
    """Where each row of the first table is in another one; ids that are missing or twice are refused."""
    one, two = ([*map(str, np.asarray(side).tolist())] for side in (ids, others))
    for side, title in ((one, first), (two, name)):
        if len(set(side)) < len(side):
            values, counts = np.unique(side, return_counts=True)
            twice = str(values[counts > 1][0])
            raise InputError(f"id {twice!r} is twice in {title}; give every row a name of its own", "ids")
    for missing, title in ((set(one) - set(two), name), (set(two) - set(one), first)):
        if missing:
            raise InputError(
                f"{title} has no row {min(missing)!r} ({len(missing):,} missing); give the same rows", "ids"
            )
    places = {text: place for place, text in enumerate(two)}
    return np.array([places[text] for text in one], dtype=np.int64)


def reorder(rows: Rows, order: Array) -> Rows:
    """The rows in another order."""
    kept = {name: getattr(rows, name) for name in ("table", "groups", "split", "sites", "ids")}
    taken: dict[str, Any] = {name: None if part is None else np.asarray(part)[order] for name, part in kept.items()}
    return replace(rows, scores=rows.scores.take(order), **taken)
