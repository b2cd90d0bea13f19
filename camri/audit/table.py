"""A file of scores and labels -> arrays: CSV, TSV, parquet or npz, with the columns as people call them."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from camri.audit.scores import encode_labels
from camri.data import columns, lists
from camri.data.arrays import read_npz
from camri.data.labels import to_splits
from camri.errors import InputError, closest
from camri.metrics import Array
from camri.words import listed

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
    if not columns.is_table(file):
        raise InputError(f"{file} ends in {file.suffix!r}; give a table of scores: CSV, TSV, parquet or npz")
    table = columns.read_table(file, {label_column, split_column, group_column})
    label = columns.role(table, "label", label_column, str(file))
    if label is None:
        raise InputError(
            f"{file} has no label column among {listed(table.column_names)}; name it with label_column= "
            "(--label-column)"
        )
    labels = columns.to_numpy(table.column(label))
    part = columns.role(table, "split", split_column, str(file), columns.is_text_type)
    split = None if part is None else tuple(to_splits(table.column(part).to_pylist(), f"{file}, column {part!r}"))
    grouped = columns.role(table, "group", group_column, str(file), _can_name)
    groups = None if grouped is None else columns.to_numpy(table.column(grouped))
    rest = [name for name in table.column_names if name not in (label, part, grouped)]
    matrix = [name for name in rest if columns.is_list_type(table.schema.field(name).type) and name.lower() in SCORES]
    if matrix:
        scores = _from_lists(table.column(matrix[0]), f"{file}, column {matrix[0]!r}")
        found = columns.class_label_names(table, label)
        return Scored(scores, labels, _names(found, scores.shape[1], str(file)), split, groups)
    used, classes = _class_columns(table, rest, labels, str(file))
    scores = np.stack([columns.to_numpy(table.column(name)).astype(np.float64) for name in used], axis=1)
    return Scored(scores, labels, classes, split, groups)


def _can_name(kind: Any) -> bool:
    """True for whole numbers and text; a column of other numbers called track is a class's."""
    import pyarrow as pa

    return columns.is_text_type(kind) or pa.types.is_integer(kind)


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
    if not columns.is_number_type(column.type.value_type):
        raise InputError(f"{where} holds lists of {column.type.value_type}; scores are lists of numbers")
    scores, unlike = lists.to_matrix(column)
    lists.refuse_unlike(unlike, len(column), scores.shape[1], where)
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
