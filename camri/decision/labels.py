"""Encode labels, groups and splits once: rules are applied to the different values of a column, not to its rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from camri.decision.scores import Array
from camri.errors import InputError, closest, one_by_one
from camri.names import Names, class_names
from camri.tables import SPLIT_ALIASES, is_float, is_missing, numbers_of, pa
from camri.text import is_printable, name_rows

FLAGS = {"false": "0", "true": "1"}
SPLITS = ("train", "val", "test")
WIDEST_SPAN = 2**20  # of whole numbers that are counted instead of sorted


@dataclass(frozen=True)
class Place:
    """Where rows come from, for messages: arrays, or files whose rows follow each other from `starts` on."""

    files: tuple[str, ...] = ()
    starts: tuple[int, ...] = (0,)
    is_text: bool = False

    def find(self, row: int) -> tuple[str | None, int]:
        """The file that holds a row, None for arrays, and the row's number in it."""
        if not self.files:
            return None, row
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.files[number], row - self.starts[number]

    def error(self, text: str, argument: str | None = None, row: int | None = None) -> InputError:
        """The error for a row, or for the table. Lines of a CSV are counted with the header from 1.

        >>> str(Place(("s.csv",), is_text=True).error("p(stop) = 2.", row=214)), str(Place().error("p = 2.", row=214))
        ('s.csv, line 216: p(stop) = 2.', 'row 214: p = 2.')
        """
        if row is None:
            return InputError(f"{self.files[0]}: {text}" if self.files else text, argument)
        file, number = self.find(row)
        named = f"line {number + 2}" if self.is_text else f"row {number}"
        return InputError(f"{named}: {text}" if file is None else f"{file}, {named}: {text}", argument, number, file)

    def missing(self, rows: Sequence[int], num: int, what: str, remedy: str) -> InputError:
        """The error for rows without a value; `what` names the value."""
        file, first = self.find(rows[0])
        here = [number for where, number in map(self.find, rows[:1000]) if where == file] + [*rows[1000:]]
        named = name_rows([number + 2 for number in here] if self.is_text else here, num)
        text = f"the {what} of {named.replace('row', 'line', 1) if self.is_text else named} is missing"
        return InputError(f"{'' if file is None else f'{file}: '}{text}; {remedy} or remove the row", None, first, file)


@dataclass(frozen=True, eq=False)
class Coded:
    """A column: its different values as they first appear, and int (N,) places among them; −1 where one is missing."""

    values: tuple[Any, ...]
    codes: Array

    @property
    def texts(self) -> list[str]:
        """The values as text; a whole number that came as a float is the whole number."""
        return [_text(value) for value in self.values]

    @property
    def known(self) -> set[str]:
        """All spellings of the values."""
        return {str(value).strip() for value in self.values} | set(self.texts)

    def take(self, rows: Array) -> "Coded":
        """The column of some rows."""
        return Coded(self.values, self.codes[rows])


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace").strip()
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def encode(column: Array, what: str = "label", argument: str | None = None) -> Coded:
    """Encode a column (N,) of numbers, texts, booleans or objects.

    >>> found = encode(np.array(["b", "a", "b"]))
    >>> found.values, found.codes.tolist()
    (('b', 'a'), [0, 1, 0])
    """
    if column.dtype.kind == "b":
        found = _encode_whole(column.view(np.uint8))
        return Coded(tuple(map(bool, found.values)), found.codes)
    if column.dtype.kind in "iu":
        return _encode_whole(column)
    if column.dtype.kind == "f":
        if column.size and (np.abs(column) < 2**53).all() and (column == np.rint(column)).all():
            found = _encode_whole(column.astype(np.int64))
            return Coded(tuple(map(float, found.values)), found.codes)
        return _without_missing(_encode_sorted(column))
    plain: list[Any] = column.tolist()
    kinds = set(map(type, plain))
    keys: list[Any] = plain if kinds <= {str} else [(type(value), value) for value in plain]  # True == 1 == 1.0
    try:
        index = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    except TypeError:
        odd = next(kind.__name__ for kind in kinds if kind.__hash__ is None)
        raise InputError(f"the {what}s hold values of type {odd}; give one {what} a row", argument) from None
    codes = np.fromiter(map(index.__getitem__, keys), np.int32, len(keys))
    return _without_missing(Coded(tuple(index if kinds <= {str} else (value for _, value in index)), codes))


def _encode_whole(column: Array) -> Coded:
    if not len(column):
        return Coded((), np.zeros(0, np.int32))
    low, high = int(column.min()), int(column.max())
    if high - low > max(WIDEST_SPAN, 4 * len(column)):
        return _encode_sorted(column)
    offset = np.subtract(column, low, dtype=np.int64) if column.dtype.kind == "i" else (column - column.dtype.type(low))
    seen = np.zeros(high - low + 1, dtype=bool)
    seen[offset] = True
    (present,) = np.nonzero(seen)
    first = np.empty(len(seen), dtype=np.int64)
    first[offset[::-1]] = np.arange(len(column) - 1, -1, -1)
    present = present[np.argsort(first[present])]
    place = np.empty(len(seen), dtype=np.int32)
    place[present] = np.arange(len(present))
    return Coded(tuple(value + low for value in present.tolist()), place[offset])


def _encode_sorted(column: Array) -> Coded:
    values, first, codes = np.unique(column, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order))
    return Coded(tuple(values[order].tolist()), place[codes.ravel()])


def join(chunks: Sequence[Any]) -> Coded:
    """The column of Arrow's dictionary arrays, one after another."""
    column = pa.chunked_array(chunks).unify_dictionaries()
    if not column.num_chunks:
        return Coded((), np.zeros(0, np.int32))
    codes = [_indices(chunk.indices) for chunk in column.chunks]
    values = column.chunks[-1].dictionary.to_pylist()
    return _without_missing(Coded(tuple(values), np.concatenate(codes, dtype=np.int32, casting="unsafe")))


def _without_missing(column: Coded) -> Coded:
    """The same column with code −1 where the value is None, nan, NA or blank."""
    absent = [type(value).__name__ in ("NAType", "NaTType") or is_missing(value) for value in column.values]
    if not any(absent):
        return column
    place = np.append(np.where(absent, -1, np.cumsum(np.logical_not(absent)) - 1), -1).astype(np.int32)
    kept = tuple(value for value, is_absent in zip(column.values, absent, strict=True) if not is_absent)
    return Coded(kept, place[column.codes])


def refuse_missing(column: Coded, what: str, place: Place, remedy: str = "fill it in") -> None:
    """Refuse a column with missing values."""
    if len(rows := np.flatnonzero(column.codes < 0)):
        raise place.missing(rows.tolist(), len(column.codes), what, remedy)


def encode_labels(labels: Coded, classes: Sequence[str], place: Place) -> tuple[Array, Array]:
    """Class indices int32 (N,) of labels that are names, or else indices into the classes; and the classes' labels.

    Those are as they came in (C,); a class without rows has the label that it would have.

    >>> encode_labels(encode(np.array(["b", "a"])), ["a", "b"], Place())[0].tolist()
    [1, 0]
    >>> [one.tolist() for one in encode_labels(encode(np.array([2.0, 0.0])), ["a", "b", "c"], Place())]
    [[2, 0], [0.0, 1.0, 2.0]]
    """
    refuse_missing(labels, "label", place)
    texts = labels.texts
    if (codes := class_codes(texts, classes)) is None:
        unknown = unknown_label(texts, classes)
        raise place.error(f"label {unknown!r} is not a class; {closest(unknown, classes)}, or numbers from 0", "labels")
    places = np.array(codes, dtype=np.int32)
    return places[labels.codes], _labels_as(labels.values, texts, places, classes)


def _labels_as(values: Sequence[Any], texts: Sequence[str], codes: Array, classes: Sequence[str]) -> Array:
    found = {int(code): value for code, value in zip(codes[::-1], values[::-1], strict=True)}
    by_name = all(text in classes for text in texts)
    kinds = set(map(type, values))
    kind = kinds.pop() if len(kinds) == 1 else str
    if kind not in (int, float, bool) or (by_name and not all(map(is_float, classes)) and kind is not bool):
        return np.array([str(found.get(index, name)) for index, name in enumerate(classes)])
    if kind is bool:
        return np.array([found.get(index, bool(index)) for index in range(len(classes))])
    return np.array([found.get(index, kind(float(name) if by_name else index)) for index, name in enumerate(classes)])


def _indices(codes: Any) -> Array:
    """Codes of a dictionary, −1 for a missing value."""
    return numbers_of(codes.fill_null(-1) if codes.null_count else codes)


def class_codes(texts: Sequence[str], classes: Sequence[str]) -> list[int] | None:
    """Class indices of labels that are all names or all indices, however written ("8.00000"); None for others.

    False and True are 0 and 1, unless a class is called so.
    """
    names = {name: place for place, name in enumerate(classes)}
    if all(text in names for text in texts):
        return [names[text] for text in texts]
    if not FLAGS.keys() & {name.lower() for name in names}:
        texts = [FLAGS.get(text.lower(), text) for text in texts]
    if not all(map(is_float, texts)):
        return None
    values = [*map(float, texts)]
    named = {float(name): place for name, place in names.items() if is_float(name)}
    for index in (named if len(named) == len(names) else {}, {float(place): place for place in range(len(classes))}):
        if all(value in index for value in values):
            return [index[value] for value in values]
    return None


def unknown_label(texts: Sequence[str], classes: Sequence[str]) -> str:
    """The first label that is neither a name nor a position; where all are one of these, the first that is no name."""
    strange = (text for text in texts if class_codes([text], classes) is None)
    return next(strange, None) or next(text for text in texts if text not in classes)


def encode_groups(groups: Coded, place: Place, what: str = "group") -> tuple[Array, tuple[str, ...]]:
    """Indices int32 (N,) into the groups' names, as they first appear, and these; a row without one is refused."""
    refuse_missing(groups, what, place, "fill it in, with a name of its own where the row stands alone,")
    texts = groups.texts
    places = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return np.array([places[text] for text in texts], dtype=np.int32)[groups.codes], tuple(places)


def encode_split(split: Coded, where: str) -> Array:
    """Codes int8 (N,) into `SPLITS` of words such as "validation"."""
    found = []
    for word in (*split.values, *([""] if (split.codes < 0).any() else [])):
        name = SPLIT_ALIASES.get(str(word).strip().lower())
        if name is None:
            argument = "split" if where == "split" else "split_column"
            raise InputError(f"{where}: {str(word)!r} is no split; {closest(word, SPLITS)}", argument)
        found.append(SPLITS.index(name))
    return np.array(found, dtype=np.int8)[split.codes]


def refuse_torn(groups: Array, names: Sequence[str], split: Array) -> None:
    """Refuse a group in two splits: it would be judged by what it tuned or what the model was trained on."""
    first = np.empty(len(names), dtype=np.int64)
    first[groups[::-1]] = np.arange(len(groups) - 1, -1, -1)
    torn = np.flatnonzero(split != split[first[groups]])
    if len(torn):
        group, row = int(groups[torn[0]]), int(torn[0])
        one, other = SPLITS[int(split[first[group]])], SPLITS[int(split[row])]
        wrong = f"group {names[group]!r} has rows in {one} and in {other}"
        raise InputError(f"{wrong}; split by group, or remove its rows from one of them", argument="split")


def check_classes(classes: Names | Iterable[str], num: int) -> tuple[str, ...]:
    """The names of classes as text, after checks: as many as columns, different, printable."""
    names = tuple(str(name) for name in class_names(classes))  # type: ignore[arg-type]
    if len(names) != num or len(set(names)) < len(names):
        wrong = f"{len(names)} class names {names[:5]} for {num} columns"
        raise InputError(f"{wrong}; give different ones, one each", argument="classes")
    if unprintable := [name for name in names if not is_printable(name)]:
        raise InputError(f"class name {unprintable[0]!a} is not printable text; rename it", argument="classes")
    return names


def important_places(important: Any, classes: tuple[str, ...]) -> tuple[int, ...]:
    """The indices of the important classes, ascending, from one or several names or indices.

    >>> important_places("b", ("a", "b", "c")), important_places([2, "a"], ("a", "b", "c"))
    ((1,), (0, 2))
    """
    is_one = isinstance(important, str) or not np.iterable(important)
    wanted: list[Any] = [important] if is_one else list(important)
    chosen = sorted({_class_index(name, classes) for name in wanted})
    if not chosen or len(chosen) == len(classes):
        wrong = f"{len(chosen)} of {len(classes)} classes are important"
        raise InputError(f"{wrong}; name at least one and not all", argument="important")
    return tuple(chosen)


def _class_index(wanted: Any, classes: tuple[str, ...]) -> int:
    if isinstance(wanted, float | np.floating) and str(wanted) not in classes and float(wanted).is_integer():
        wanted = int(wanted)
    if str(wanted) in classes:
        return classes.index(str(wanted))
    if isinstance(wanted, Integral) and 0 <= int(wanted) < len(classes):
        return int(wanted)
    hint = one_by_one(wanted, classes) or closest(wanted, classes)
    raise InputError(f"important={wanted!r} is not a class; {hint}", argument="important")
