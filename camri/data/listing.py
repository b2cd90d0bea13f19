"""Records that readers hand to the decoder, and what all readers share.

That is the options of `load`, class names and labels, and the checks that every data set passes.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from camri.errors import InputError
from camri.tables import is_float, refuse_missing
from camri.text import is_printable, listed

if TYPE_CHECKING:
    from camri.data.rows import Rows  # imports torch, which audits do without


class DataWarning(UserWarning):
    """A problem with a data set that its owner should know of; `camri data show` lists it as a note."""


@dataclass(frozen=True)
class Options:
    """How a data set is read; part of the key of the cache."""

    size: tuple[int, int] | None = None  # (height, width)
    resize: str | None = None  # how images get that size, as in camri.backbones.Preprocessing; None: "lanczos"
    roi: bool = False
    skip_bad: bool = False
    verify: bool = True
    path_column: str | None = None
    label_column: str | None = None
    group_column: str | None = None
    split_column: str | None = None


class Slice(NamedTuple):
    """A part of a file: a member of a tar shard."""

    file: str
    offset: int
    size: int


Encoded = str | bytes | memoryview | Slice  # an image: a file, its bytes, or a part of a file


@dataclass(frozen=True)
class EncodedImages:
    """Images before decoding.

    boxes: regions to crop to, float (N, 4): left, top, right, bottom as fractions of the width and height.
    """

    sources: Sequence[Encoded]
    names: Sequence[str]  # for messages
    boxes: np.ndarray | None = None


@dataclass(frozen=True)
class Part:
    """One split: encoded images, uint8 (N, H, W, C) or float32 (N, D); int64 labels; int64 groups or None."""

    inputs: "EncodedImages | np.ndarray | Rows"
    labels: np.ndarray
    groups: np.ndarray | None = None
    names: Sequence[str] | None = None  # of decoded images, for messages


@dataclass(frozen=True)
class Listing:
    """A data set before decoding. `size` is its default image size."""

    classes: tuple[str, ...]
    parts: dict[str, Part]
    size: tuple[int, int] | None = None
    test_rows: int | None = None  # to hold out by a seeded split if there is no test part
    facts: dict[str, Any] = field(default_factory=dict)  # for the provenance


@dataclass(frozen=True)
class Source:
    """A recognised layout: which files it depends on, and how to read it."""

    layout: str
    files: Sequence[str]
    read: Callable[[str], Listing]  # its argument: a temporary folder that stays until the images are decoded
    also: Sequence[str] = ()  # names of folders, which belong to the content even if empty


TABLES, OFFICIAL_FILES = "tables (CSV, TSV, parquet)", "the official files of CIFAR-10 and MNIST"
TAKEN_BY = {
    "size": "images",
    **dict.fromkeys(("resize", "backbone", "weights"), "images"),
    "skip_bad": "image files",
    "roi": "GTSRB",
    "verify": OFFICIAL_FILES,
    **dict.fromkeys(("path_column", "label_column", "group_column", "split_column"), TABLES),
}
# First word of a layout -> the options it takes besides those for images, as in TAKEN_BY.
LAYOUTS = {
    **dict.fromkeys(("table", "parquet"), TABLES),
    **dict.fromkeys(("cifar10", "mnist", "idx"), OFFICIAL_FILES),
    "gtsrb": "GTSRB",
}


def refuse_untaken(where: str, layout: str, listing: Listing, options: Options) -> None:
    """Refuse an option that has no effect on this kind of data."""
    inputs = next(iter(listing.parts.values())).inputs
    is_image = isinstance(inputs, EncodedImages) or inputs.ndim == 4
    taken = {LAYOUTS.get(layout.split()[0].strip(",")), *(["images"] if is_image else [])}
    if isinstance(inputs, EncodedImages):
        taken.add("image files")
    for option in fields(options):
        value = getattr(options, option.name)
        if value != option.default and TAKEN_BY[option.name] not in taken:
            if isinstance(value, tuple) and value[0] == value[1]:
                value = value[0]  # the size as the user gave it
            held = f"{where} holds {'images' if is_image else 'features'} ({layout})"
            message = f"{option.name}={value!r} is for {TAKEN_BY[option.name]}, and {held}; leave it out"
            raise InputError(message, argument=option.name)


MANY_CLASSES = 1000
LARGEST_WHOLE = 2.0**53  # above it floats skip whole numbers
WRITTEN_AS_FLOAT = re.compile(r"-?[0-9]+\.0*")
NOTES_SHOWN = 5
ROWS_FOR_GIVEAWAYS = 20  # with fewer, a feature may match the classes by chance
MISSING = ("", "nan", "NaN")
PERHAPS_MISSING = ("NA", "N/A", "#N/A", "null", "NULL", "None", "<NA>", "?")  # as R, Excel, SQL and pandas write it


def clean_name(name: str) -> str:
    r"""Normalise a class name: Unicode form NFC, one space for any run of white space.

    >>> clean_name(" stop\u00a0sign "), clean_name("cafe\u0301") == "caf\u00e9"
    ('stop sign', True)
    """
    return " ".join(unicodedata.normalize("NFC", name).split())


def natural_order(names: Sequence[str]) -> list[str]:
    """Sort names, by value if all are whole numbers ("2" before "10").

    >>> natural_order(["10", "2"]), natural_order(["b", "10", "a"])
    (['2', '10'], ['10', 'a', 'b'])
    """
    if all(_is_whole(name) for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def encode(
    values: Mapping[str, np.ndarray], where: str, names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """(class names, int64 labels of each part) from labels as text or whole numbers.

    names: the class names, if the source has them; numbers are then indices into them. where: for messages.
    """
    columns = {part: _check_labels(column, f"{where}, {part} part") for part, column in values.items()}
    names = None if names is None else [clean_name(name) for name in names]
    if names is not None and all(column.dtype.kind in "iu" for column in columns.values()):
        for part, column in columns.items():
            outside = column[(column < 0) | (column >= len(names))]
            if len(outside):
                known = f"there are {len(names)} classes, 0 to {len(names) - 1}"
                raise InputError(f"{where}, {part} part: label {outside[0]} has no name; {known}")
        return tuple(names), {part: column.astype(np.int64) for part, column in columns.items()}
    distinct, places = index_values(columns)
    num_rows = sum(map(len, columns.values()))
    if len(distinct) > MANY_CLASSES and len(distinct) > num_rows / 2:
        counts = f"{len(distinct):,} different labels in {num_rows:,} rows"
        remedy = "choose another label_column=NAME"
        raise InputError(f"{where}: {counts} look like identifiers, not classes; {remedy}", argument="label_column")
    used = _without_points(distinct, where)
    classes = natural_order(list(dict.fromkeys(used))) if names is None else list(names)
    index = {name: position for position, name in enumerate(classes)}
    if unknown := [name for name in used if name not in index]:
        raise InputError(f"{where}: label {unknown[0]!r} is not among the class names {listed(classes)}")
    codes = np.array([index[name] for name in used], dtype=np.int64)
    return tuple(classes), {part: codes[place] for part, place in places.items()}


def index_values(columns: Mapping[str, np.ndarray]) -> tuple[list[str], dict[str, np.ndarray]]:
    """(sorted distinct values of all columns as text, the index of each row's value: int64 for each column).

    >>> index_values({"train": np.array([3, 1]), "test": np.array([3])})
    (['1', '3'], {'train': array([1, 0]), 'test': array([1])})
    """
    values, inverse = np.unique(np.concatenate([c.astype(str) for c in columns.values()]), return_inverse=True)
    ends = np.cumsum([len(column) for column in columns.values()])[:-1]
    return values.tolist(), dict(zip(columns, np.split(inverse.ravel().astype(np.int64), ends), strict=True))


def _check_labels(column: np.ndarray, where: str) -> np.ndarray:
    """Convert labels to whole numbers or text; refuse missing and broken values with their row."""
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1:
        raise InputError(f"{where}: labels have shape {column.shape}; give one class per row (not one-hot rows)")
    if column.dtype.kind == "f":
        refuse_missing(~np.isfinite(column), f"{where}: the label")
        broken = np.flatnonzero((column != np.rint(column)) | (np.abs(column) > LARGEST_WHOLE))
        if len(broken):
            example = f"row {broken[0]} is {column[broken[0]]!s}"
            raise InputError(f"{where}: labels are floats ({example}); give class names or whole numbers")
        return column.astype(np.int64)  # pandas turns whole numbers into floats if one is missing
    if column.dtype.kind in "iu":
        return column
    if column.dtype.kind == "b":
        return column.astype(str)
    if column.dtype.kind in "OUST":
        texts = [_as_text(value, row, where) for row, value in enumerate(column.tolist())]
        refuse_missing([text in MISSING for text in texts], f"{where}: the label")
        return np.array(texts, dtype=object)
    raise InputError(f"{where}: labels are {column.dtype}; give class names or whole numbers")


def _as_text(value: object, row: int, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        try:
            return clean_name(value.decode())
        except UnicodeDecodeError:
            raise InputError(f"{where}: the label of row {row}, {value!r}, is not UTF-8 text") from None
    if isinstance(value, (list, tuple, dict, np.ndarray)):
        raise InputError(f"{where}: the label of row {row} is {value!s:.60}; give one class per row, as text or number")
    return clean_name(str(value))


def _without_points(names: list[str], where: str) -> list[str]:
    """If all names are numbers, write whole ones without a point ("3.0" as "3"); otherwise leave them alone.

    >>> _without_points(["0.0", "1.0", "2"], "t.csv"), _without_points(["1.0", "beta"], "t.csv")
    (['0', '1', '2'], ['1.0', 'beta'])
    """
    if not all(is_float(name) for name in names):
        return names
    whole = [str(int(name.partition(".")[0])) if WRITTEN_AS_FLOAT.fullmatch(name) else name for name in names]
    if broken := [name for name in whole if not _is_whole(name)]:
        raise InputError(f"{where}: labels are floats (one is {broken[0]}); give class names or whole numbers")
    return whole


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isascii() and name.removeprefix("-").isdigit()


def doubtful_names(classes: Sequence[str]) -> list[str]:
    """A note for each class name that may be a mistake: nearly equal to another, or a word for a missing label.

    >>> doubtful_names(["Cat", "cat", "01", "1", "NA"])[0]
    "classes 'Cat' and 'cat' differ only in case; if they are one class, give them one name"
    """
    first: dict[str, str] = {}
    notes = []
    for name in classes:
        key = str(int(name)) if _is_whole(name) else name.casefold()
        other = first.setdefault(key, name)
        if other != name:
            how = "are the same number" if _is_whole(name) else "differ only in case"
            notes.append(f"classes {other!r} and {name!r} {how}; if they are one class, give them one name")
        if name in PERHAPS_MISSING:
            notes.append(f"{name!r} is read as a class; if it stands for a missing label, remove its rows")
    if len(notes) > NOTES_SHOWN:
        notes[NOTES_SHOWN:] = [f"{len(notes) - NOTES_SHOWN:,} more class names like these"]
    return notes


def giveaways(features: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> list[str]:
    """A note on features (N, D) that may be the label under another name: they have one value for each class.

    >>> giveaways(np.array([[5.0], [7.0]] * 20), np.array([0, 1] * 20), ["code"])[0].split(";")[0]
    "feature 'code' has one value for each class"
    """
    if len(labels) < ROWS_FOR_GIVEAWAYS:
        return []
    _, first, class_of = np.unique(labels, return_index=True, return_inverse=True)
    values = features[first]  # (C, D), from the first row of each class
    fits = (np.diff(np.sort(values, axis=0), axis=0) > 0).all(axis=0)  # another value in each class
    columns = [column for column in np.flatnonzero(fits).tolist()
               if (features[:, column] == values[class_of.ravel(), column]).all()]  # fmt: skip
    if not columns:
        return []
    name = repr(names[columns[0]]) if len(names) == features.shape[1] else columns[0]
    more = f" (and {len(columns) - 1:,} more)" if len(columns) > 1 else ""
    return [f"feature {name}{more} has one value for each class; drop it if it is the label under another name"]


def check_classes(source: str, classes: Sequence[str], labels: Mapping[str, np.ndarray]) -> None:
    """Refuse what cannot be trained on: no training rows, one class, a class without training rows."""
    for name in classes:
        if not is_printable(name):
            raise InputError(f"{source}: class name {name!a} is not printable UTF-8 text; rename it")
    if len(set(classes)) < len(classes):
        twice = next(name for position, name in enumerate(classes) if name in classes[:position])
        raise InputError(f"{source}: two classes are named {twice!r}; rename one")
    if "train" not in labels or not len(labels["train"]):
        raise InputError(f"{source} has no training rows; it has {', '.join(labels) or 'nothing'}")
    if len(classes) < 2:
        raise InputError(f"{source} has only one class ({classes[0]!r}); a classifier needs two or more")
    in_train = np.bincount(labels["train"], minlength=len(classes)) > 0
    for part, column in labels.items():
        lacking = np.flatnonzero((np.bincount(column, minlength=len(classes)) > 0) & ~in_train).tolist()
        if lacking:
            raise InputError(f"{source}: class {classes[lacking[0]]!r} is in {part} but has no training rows; add some")
    if not in_train.all():
        empty = [classes[k] for k in np.flatnonzero(~in_train).tolist()]
        more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise InputError(f"{source}: class {empty[0]!r}{more} is empty; add rows or remove the class")
