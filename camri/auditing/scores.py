"""Scores as people have them -> checked logits, and all that a shift can change, in full precision.

A file of scores and labels -> arrays: CSV, TSV, parquet or npz, with the columns as people call them.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from camri.data import tables
from camri.data.arrays import read_npz
from camri.data.listing import to_splits
from camri.errors import InputError, closest, one_by_one
from camri.metrics import Array, Scores, condense
from camri.text import listed, name_rows

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
        raise InputError(f"kind={kind!r} is unknown; {closest(kind, KINDS)}", argument="kind")
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
    raise InputError(f"important={wanted!r} is not a class; {hint}", argument="important")


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
            f"probabilities lie between 0 and 1, and these between {values.min():g} and {values.max():g}; "
            "say kind='logits' (--scores-are logits)",
            argument="kind",
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


SCORES = ("scores", "logits", "probabilities", "probs", "predictions")
LABELS = ("labels", "label", "y", "y_true", "target", "targets")
NAMES = ("classes", "class_names", "names")
SPLITS = ("split", "splits", "part")
GROUPS = ("groups", "group", "track")
# What may stand before a class's name in the name of its column: p:stop (camri predict), logit_stop, score.stop …
PREFIXES = tuple(
    f"{word}{sign}" for word in ("p", "prob", "probability", "logit", "logits", "score") for sign in ":_.-"
)


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores float (N, C), labels (N,) as they stand in the file, class names, the split and the group of each row."""

    scores: Array
    labels: Array
    classes: tuple[str, ...]
    split: tuple[str, ...] | None = None
    groups: Array | None = None


def read_scores(
    path: str | Path,
    label_column: str | None = None,
    split_column: str | None = None,
    group_column: str | None = None,
) -> Scored:
    """The scores in a table: a column of labels, one of numbers for each class, perhaps ones with val and test, groups.

    A class's column has its name, alone or behind p:, prob_, logit_, score_ and the like. Other columns may stand in
    the table where these have such a beginning; otherwise every column of numbers is a class's. In an .npz the arrays
    are called scores (or logits, probabilities), labels, and where they are there classes, split and groups. A column
    of whole numbers or text called group, groups or track has the groups, unless group_column says another.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{file} is not a file; give a table of scores: CSV, TSV, parquet or npz")
    if file.suffix.lower() == ".npz":
        return _from_arrays(file, label_column, split_column, group_column)
    if not tables.is_table(file):
        raise InputError(f"{file} ends in {file.suffix!r}; give a table of scores: CSV, TSV, parquet or npz")
    table = tables.read_table(file, {label_column, split_column, group_column})
    label = tables.role(table, "label", label_column, str(file))
    if label is None:
        raise InputError(
            f"{file} has no label column among {listed(table.column_names)}; name it with label_column= "
            "(--label-column)"
        )
    labels = tables.to_numpy(table.column(label))
    part = tables.role(table, "split", split_column, str(file), tables.is_text_type)
    split = None if part is None else tuple(to_splits(table.column(part).to_pylist(), f"{file}, column {part!r}"))
    grouped = tables.role(table, "group", group_column, str(file), _can_name)
    groups = None if grouped is None else tables.to_numpy(table.column(grouped))
    rest = [name for name in table.column_names if name not in (label, part, grouped)]
    matrix = [name for name in rest if tables.is_list_type(table.schema.field(name).type) and name.lower() in SCORES]
    if matrix:
        scores = _from_lists(table.column(matrix[0]), f"{file}, column {matrix[0]!r}")
        found = tables.class_label_names(table, label)
        return Scored(scores, labels, _names(found, scores.shape[1], str(file)), split, groups)
    used, classes = _class_columns(table, rest, labels, str(file))
    scores = np.stack([tables.to_numpy(table.column(name)).astype(np.float64) for name in used], axis=1)
    return Scored(scores, labels, classes, split, groups)


def _can_name(kind: Any) -> bool:
    """True for whole numbers and text; a column of other numbers called track is a class's."""
    import pyarrow as pa

    return tables.is_text_type(kind) or pa.types.is_integer(kind)


def _class_columns(table: Any, rest: Sequence[str], labels: Array, where: str) -> tuple[list[str], tuple[str, ...]]:
    """The columns that hold scores, and the classes they are of."""
    import pyarrow as pa

    kinds = {name: table.schema.field(name).type for name in rest}
    numbers = [name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_floating(kind)]
    if len(numbers) < 2:
        others = [
            f" ({name!r} holds {kinds[name]}, first {table.column(name)[0]})" for name in rest if name not in numbers
        ]
        raise InputError(
            f"{where} has {len(numbers)} columns of numbers beside its labels{''.join(others[:1])}; give one for each "
            "class, named after it; of two classes both, where one has the probability p, 1 − p for the other"
        )
    known = {str(label).strip() for label in labels.tolist()}
    used = _called(numbers, known)
    classes = tuple(used.values())
    if not _fit(labels, classes):
        unknown = next(str(label) for label in labels.tolist() if str(label).strip() not in classes)
        raise InputError(
            f"{where}: label {unknown!r} is no column; {closest(unknown, classes)}; call each class's column by its "
            "name, alone or as p:NAME, or give labels as numbers from 0"
        )
    if strays := _strays(table, used, known):
        raise InputError(
            f"{where}: column {strays[0]!r} holds whole numbers, and no label is called that, so these are no class's "
            "scores; drop it, or, where it says what rows belong together, name it with group_column= (--group)"
        )
    return list(used), classes


def _called(names: Sequence[str], known: Set[str]) -> dict[str, str]:
    """Column -> class, by the columns with a common prefix if there are some; two classes may be called p_1 and p_2."""
    for prefix in PREFIXES:
        marked = [name for name in names if name.lower().startswith(prefix) and len(name) > len(prefix)]
        if len(marked) >= 2 and not known <= set(marked):
            return {name: name[len(prefix) :] for name in marked}
    return {name: name for name in names}


def _strays(table: Any, used: Mapping[str, str], known: Set[str]) -> list[str]:
    """Columns of whole numbers beyond 0 and 1 that no label names, among columns of scores: identifiers, ages, counts.

    Taken for a class, the largest of its numbers would be the answer to every row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = [name for name in used if pa.types.is_integer(table.schema.field(name).type)]
    if len(whole) == len(used):  # votes, counts of trees
        return []
    ranges = {name: pc.min_max(table.column(name)).as_py() for name in whole if used[name] not in known}
    return [name for name, found in ranges.items() if (found["min"] or 0) < 0 or (found["max"] or 0) > 1]


def _fit(labels: Array, classes: Sequence[str]) -> bool:
    try:
        encode_labels(labels, classes)
    except InputError as error:
        if "is missing" in str(error):
            raise
        return False
    return True


def _from_lists(column: Any, where: str) -> Array:
    if not tables.is_number_type(column.type.value_type):
        raise InputError(f"{where} holds lists of {column.type.value_type}; scores are lists of numbers")
    scores, unlike = tables.to_matrix(column)
    tables.refuse_unlike(unlike, len(column), scores.shape[1], where)
    return scores.astype(np.float64)


def _from_arrays(file: Path, *told: str | None) -> Scored:
    """The scores in an .npz; the arrays of labels, splits and groups may be told by name."""
    arrays = read_npz(file)
    for name in told:
        if name is not None and name not in arrays:
            raise InputError(f"{file} has no array {name!r}; {closest(name, arrays)}")
    scores, names = (_first(arrays, words) for words in (SCORES, NAMES))
    labels, split, groups = (
        _first(arrays, words) if name is None else arrays[name]
        for name, words in zip(told, (LABELS, SPLITS, GROUPS), strict=True)
    )
    if scores is None or labels is None or scores.ndim != 2:
        shown = ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "nothing"
        raise InputError(f"{file} holds {shown}; call the arrays scores (N, C) and labels (N,)")
    found = None if names is None else names.astype(str).tolist()
    words = None if split is None else tuple(to_splits(split.astype(str).tolist(), f"{file}, split"))
    return Scored(scores, labels, _names(found, scores.shape[1], str(file)), words, groups)


def _first(arrays: dict[str, Array], words: Sequence[str]) -> Array | None:
    by_lower = {name.lower(): array for name, array in arrays.items()}
    return next((by_lower[word] for word in words if word in by_lower), None)


def _names(found: Sequence[str] | None, num: int, where: str) -> tuple[str, ...]:
    if found is not None and len(found) != num:
        raise InputError(f"{where} names {len(found)} classes and has scores of {num}; give one name for each")
    return tuple(map(str, range(num))) if found is None else tuple(found)
