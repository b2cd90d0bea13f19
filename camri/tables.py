"""Read tables (CSV, TSV, parquet) and NumPy archives; the usual names of their columns, and checks of their cells."""

import csv
import json
import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from camri.errors import InputError, closest
from camri.files import refuse_special as refuse_special
from camri.text import ROWS_SHOWN, name_rows


class LazyModule:
    """A module that is imported when one of its names is first used: commands that read no table start faster."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


pa: Any = LazyModule("pyarrow")
pc: Any = LazyModule("pyarrow.compute")
arrow_csv: Any = LazyModule("pyarrow.csv")
pq: Any = LazyModule("pyarrow.parquet")
TEXT_SUFFIXES = (".csv", ".tsv")
SUFFIXES = (*TEXT_SUFFIXES, ".parquet")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
LONGEST_ROW_BYTES = 2**25  # of a text table; Arrow's default, 2**20, is too short for a row of 60,000 genes
ROLES = {
    "image": ("image", "img", "picture", "photo", "bytes"),
    "path": ("path", "file", "filename", "file_name", "filepath", "file_path", "image_path", "image", "img"),
    "label": ("label", "labels", "class", "class_name", "classid", "target", "category", "y", "y_true", "fine_label"),
    "features": ("features", "feature", "embedding", "embeddings", "x"),
    "group": ("group", "groups", "track"),
    "split": ("split", "part", "subset"),
}
NUMBER_WITH_COMMAS = re.compile(r"\s*[-+]?[0-9.]*,[0-9.,]*[0-9](e[-+]?[0-9]+)?\s*", re.IGNORECASE)


def is_table(file: Path) -> bool:
    """True for a file named like a table; a compressed table is refused."""
    if file.suffix.lower() in COMPRESSED and Path(file.stem).suffix.lower() in SUFFIXES:
        raise InputError(f"{file} is a compressed table; unpack it and give {file.stem}, or save it as parquet")
    return file.suffix.lower() in SUFFIXES


def read_table(file: Path, named: Container[str | None] = ()) -> Any:
    """Read the file as an Arrow table.

    In a CSV, columns of paths, labels, groups and splits, by usual or `named` names, stay text: "01" is not 1.
    """
    remedy = "save it again"
    refuse_special(file)
    try:
        if file.suffix.lower() in TEXT_SUFFIXES:
            remedy = "give each row as many values as the first line has names, decimals with a point"
            table = _read_text(file, named)
        else:
            with pq.ParquetFile(file, memory_map=True) as opened:  # pq.read_table has an error of its own for
                table = opened.read()  # duplicate column names
            for column in table.columns:
                column.validate(full=True)  # a damaged parquet file may hold text that is not UTF-8
    except InputError:  # a ValueError too
        raise
    except (pa.ArrowException, OSError, ValueError, csv.Error) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{file} cannot be read as a table: {reason}; {remedy}") from None
    if twice := named_twice(table.column_names):
        raise InputError(f"{file} has two columns called {twice!r}; rename one")
    if not table.num_rows:
        raise InputError(f"{file} has no rows")
    return table


def _read_text(file: Path, named: Container[str | None]) -> Any:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            first = stream.readline()
            delimiter = delimiter_of(first, file)
            stream.seek(0)
            if line := _unclosed_quote(stream, delimiter):  # Arrow would read the rest of the file as one value
                raise InputError(f"{file}, line {line}: a quote is opened and never closed; close or remove it")
            stream.seek(0)
            reader = csv.reader(stream, delimiter=delimiter)
            names, num_lines = [name.strip() for name in next(reader, [])], reader.line_num
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x}"
        raise InputError(f"{file} is not UTF-8 text ({byte}); save it as UTF-8") from None
    return arrow_csv.read_csv(
        file,
        read_options=arrow_csv.ReadOptions(column_names=names, skip_rows=num_lines, block_size=LONGEST_ROW_BYTES),
        parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            column_types={name: pa.string() for name in names if stays_text(name, named)}
        ),
    )


def named_twice(names: Iterable[str]) -> str | None:
    """The first name, in their order, that is there more than once; None if all differ."""
    return min((name for name, count in Counter(names).items() if count > 1), default=None)


def delimiter_of(line: str, file: Path) -> str:
    """What separates the values of a text table, from its first line."""
    return "\t" if file.suffix.lower() == ".tsv" and "\t" in line else max(",;\t|", key=line.count)


def stays_text(name: str, named: Container[str | None]) -> bool:
    """Whether a CSV's column is read as text: one of paths, labels, groups or splits, by its usual name or `named`."""
    return name in named or any(name.lower() in ROLES[role] for role in ("path", "label", "group", "split"))


def _unclosed_quote(lines: Iterable[str], delimiter: str) -> int:
    """Number of the line with a quote that is never closed; 0 if all are closed.

    A quote opens only at the start of a value. Two in a row stand for a quote in the text.

    >>> _unclosed_quote(['size,label', '5",a', '"6"" x', 'y",b'], ","), _unclosed_quote(['a,"b', 'c'], ",")
    (0, 1)
    """
    opened = 0
    for number, line in enumerate(lines, 1):
        before, *pieces = line.replace('""', "").split('"')
        for piece in pieces:
            if opened:
                opened = 0
            elif not before or before.endswith(delimiter):
                opened = number
            before = piece
    return opened


def role(
    table: Any, wanted: str, chosen: str | None, where: str, fits: Callable[[Any], bool] | None = None
) -> str | None:
    """Name of the column with this role: the chosen one, or one with a usual name; None if there is none."""
    names = table.column_names
    if chosen is not None:
        if chosen not in names:
            raise InputError(f"{where} has no column {chosen!r}; {closest(chosen, names)}", argument=f"{wanted}_column")
        return chosen
    by_lower = {name.lower(): name for name in names}
    for usual in ROLES[wanted]:
        if usual in by_lower and (fits is None or fits(table.schema.field(by_lower[usual]).type)):
            return by_lower[usual]
    return None


def numbers_of(column: Any) -> np.ndarray:
    """A column of numbers as an array, missing ones as NaN; pyarrow's own way imports pandas, a quarter of a second."""
    kind, chunks = column.type, getattr(column, "chunks", [column])
    is_plain = (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not column.null_count
    if not is_plain or not chunks:
        return column.to_numpy(zero_copy_only=False)
    parts = [np.from_dlpack(chunk) for chunk in chunks]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _texts(column: Any) -> np.ndarray:
    """A column of text as an array of str, None where a value is missing."""
    parts = [np.zeros(0, dtype=object)]
    for chunk in getattr(column, "chunks", [column]):
        coded = chunk.dictionary_encode()
        values = np.array(coded.dictionary.to_pylist(), dtype=object)
        parts.append(
            np.array(chunk.to_pylist(), dtype=object) if chunk.null_count else values[numbers_of(coded.indices)]
        )
    return np.concatenate(parts)


def is_text_type(kind: Any) -> bool:
    """True for columns of text, dictionary-encoded or not."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_number_type(kind: Any) -> bool:
    """True for numbers and booleans."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def is_list_type(kind: Any) -> bool:
    """True for columns with a list in each row."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def to_numpy(column: Any) -> np.ndarray:
    """An Arrow column as a numpy array: text as objects, missing numbers and booleans as NaN."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_boolean(column.type) and column.null_count:
        column = column.cast(pa.int8())  # numpy has no missing booleans
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return _texts(column)
    return numbers_of(column)


def to_matrix(column: Any, wanted: int | None = None) -> tuple[np.ndarray, dict[int, int | None]]:
    """(numbers (N, D), {row: length} of the rows that do not fit) of a column of lists.

    D is the `wanted` length if any list has it, else the most common one. A row that does not fit is NaN; the length of
    a missing list is None.
    """
    rows = column.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(rows), -1).to_numpy(zero_copy_only=False)
    # Empty lists do not count: some tools write missing lists this way.
    common, counts = np.unique(lengths[lengths > 0], return_counts=True)
    width = int(common[counts == counts.max()][-1]) if len(common) else 0  # of two equally common, the longer
    if wanted is not None and wanted in common:
        width = wanted
    fits = lengths == width
    if fits.all():
        return to_numpy(rows.flatten()).reshape(len(rows), width), {}
    values = np.full((len(rows), width), np.nan)
    values[fits] = to_numpy(rows.filter(pa.array(fits)).flatten()).reshape(fits.sum(), width)
    return values, {row: None if lengths[row] < 0 else int(lengths[row]) for row in np.flatnonzero(~fits).tolist()}


def refuse_unlike(unlike: Mapping[int, int | None], num_rows: int, width: int, where: str) -> None:
    """Refuse rows whose lists are missing or of another length, as `to_matrix` returns them."""
    if not unlike:
        return
    if not width:
        raise InputError(f"{where}: no row has any values; fill the column in or drop it")
    first = [
        f"row {row} ({'missing' if length is None else f'{length:,} values'})"
        for row, length in list(unlike.items())[:ROWS_SHOWN]
    ]
    more = f", … {len(unlike):,} of {num_rows:,} rows in all" if len(unlike) > ROWS_SHOWN else ""
    raise InputError(
        f"{where}: rows without the {width:,} values that most rows have: {', '.join(first)}{more}; fill them in or "
        "remove the rows"
    )


def class_label_names(table: Any, column: str) -> Sequence[str] | None:
    """The ClassLabel names of a column in Hugging Face's metadata; None if there are none."""
    try:
        features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
        names = features[column].get("names")
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return [str(name) for name in names] if names else None


# What numpy raises for a damaged file of arrays; MemoryError where its header lies about a shape.
BAD_ARRAYS = (
    ValueError,
    OSError,
    EOFError,
    OverflowError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    MemoryError,
    TokenError,
)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name; pickled objects are refused."""
    refuse_special(path)
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except BAD_ARRAYS as error:
        remedy = "save it with numpy.savez, text as str, not object"
        raise InputError(f"{path} cannot be read as plain arrays: {first_line(error)}; {remedy}") from None


def no_array(path: Path, error: BaseException) -> InputError:
    """The error for an .npy file that numpy refuses."""
    return InputError(f"{path} cannot be read as a plain array: {first_line(error)}; save it with numpy.save")


def first_line(error: BaseException, most: int = 200) -> str:
    """The first line of an error's message, shortened if it is long."""
    line = str(error).partition("\n")[0]
    return line if len(line) <= most else f"{line[:most]}…"


SPLIT_ALIASES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def to_splits(words: Iterable[object], where: str) -> list[str]:
    """The split that each word stands for.

    >>> to_splits(["Training", "dev"], "t.csv")
    ['train', 'val']
    """
    splits = []
    for word in words:
        split = SPLIT_ALIASES.get(str(word).strip().lower())
        if split is None:
            hint = closest(word, ("train", "val", "test"))
            raise InputError(f"{where}: {str(word)!r} is no split; {hint}", argument="split_column")
        splits.append(split)
    return splits


def refuse_missing(is_missing: Sequence[bool] | np.ndarray, what: str, remedy: str = "fill it in") -> None:
    """Refuse a column with missing values; `what` names one of its values."""
    if len(rows := np.flatnonzero(is_missing)):
        raise InputError(
            f"{what} of {name_rows(rows.tolist(), len(is_missing))} is missing; {remedy} or remove the row"
        )


def is_missing(value: object) -> bool:
    """Whether a value is None, NaN or blank text."""
    return value is None or value != value or not str(value).strip()


def is_float(name: str) -> bool:
    """True for text that is a finite number."""
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False
