"""CSV, TSV and parquet files -> Arrow tables, and which column plays which role."""

import csv
import json
import os
from collections import Counter
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from camri.data.labels import SPLIT_ALIASES
from camri.errors import InputError, closest

TEXT_SUFFIXES = (".csv", ".tsv")
SUFFIXES = (*TEXT_SUFFIXES, ".parquet")
LONGEST_ROW_BYTES = 2**25  # of a text table; Arrow's own, 2**20, is less than a row of 60,000 genes takes
PACKED = (".gz", ".bz2", ".xz", ".zst")
ROLES = {
    "image": ("image", "img", "picture", "photo", "bytes"),
    "path": ("path", "file", "filename", "file_name", "filepath", "file_path", "image_path", "image", "img"),
    "label": ("label", "labels", "class", "class_name", "classid", "target", "category", "y", "y_true", "fine_label"),
    "features": ("features", "feature", "embedding", "embeddings", "x"),
    "group": ("group", "groups", "track"),
    "split": ("split", "part", "subset"),
}


def part_of_file(path: Path) -> str | None:
    """The split that a file's name begins with ("train-00000-of-00002.parquet"); None for other names.

    >>> part_of_file(Path("validation.csv")), part_of_file(Path("trainer.csv"))
    ('val', None)
    """
    start = path.name.split(".")[0].split("-")[0].split("_")[0].lower()
    return SPLIT_ALIASES.get(start)


def is_table(file: Path) -> bool:
    """True for a file that is called like a table; a packed one is refused."""
    if file.suffix.lower() in PACKED and Path(file.stem).suffix.lower() in SUFFIXES:
        raise InputError(f"{file} is a packed table; unpack it and give {file.stem}, or save it as parquet")
    return file.suffix.lower() in SUFFIXES


def read_table(file: Path, named: Container[str | None] = ()) -> Any:
    """The file as an Arrow table.

    A CSV's columns for paths, labels, groups and splits, by usual or `named` names, stay text: "01" is not 1.
    """
    import pyarrow as pa

    try:
        table = _read_text(file, named) if file.suffix.lower() in TEXT_SUFFIXES else _read_parquet(file)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
        reason = str(error).splitlines()[0]
        remedy = "save it again"
        if "columns, got" in reason:
            remedy = (
                "give each row as many values as the first line has names (a comma within a value needs quotes, a "
                "decimal is written with a point)"
            )
        raise InputError(f"{file} cannot be read as a table: {reason}; {remedy}") from None
    if twice := sorted(name for name, count in Counter(table.column_names).items() if count > 1):
        raise InputError(f"{file} has two columns called {twice[0]!r}; rename one")
    if not table.num_rows:
        raise InputError(f"{file} has no rows")
    return table


def _read_parquet(file: Path) -> Any:
    import pyarrow.parquet as pq

    # ParquetFile, not read_table: that one refuses doubled names in its own words.
    with pq.ParquetFile(file, memory_map=True) as opened:
        return opened.read()


def _read_text(file: Path, named: Container[str | None]) -> Any:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    header, delimiter, num_lines = _header(file)
    header = [name.strip() for name in header]
    as_text = {
        name: pa.string()
        for name in header
        if name in named or any(name.lower() in ROLES[role] for role in ("path", "label", "group", "split"))
    }
    return arrow_csv.read_csv(
        file,
        read_options=arrow_csv.ReadOptions(column_names=header, skip_rows=num_lines, block_size=LONGEST_ROW_BYTES),
        parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(column_types=as_text),
    )


def _header(file: Path) -> tuple[list[str], str, int]:
    """The column names of a text table, the delimiter, and the number of lines that the names take."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            first = stream.readline()
            usual = "\t" if file.suffix.lower() == ".tsv" and "\t" in first else max(",;\t|", key=first.count)
            stream.seek(0)
            reader = csv.reader(stream, delimiter=usual)
            names, num_lines = next(reader, []), reader.line_num
            for _ in stream:  # the whole file must be UTF-8, and the user wants to know where it is not
                pass
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file} is not UTF-8 text (byte 0x{error.object[error.start]:02x}); save it as UTF-8"
        ) from None
    except csv.Error as error:
        raise InputError(f"{file} cannot be read as a table: {error}; save it again") from None
    return names, usual, num_lines


def role(
    table: Any, wanted: str, told: str | None, where: str, fits: Callable[[Any], bool] | None = None
) -> str | None:
    """The name of the column that plays a role: the one told, or a usual name; None where there is none."""
    names = table.column_names
    if told is not None:
        if told not in names:
            raise InputError(f"{where} has no column {told!r}; {closest(told, names)}")
        return told
    by_lower = {name.lower(): name for name in names}
    for usual in ROLES[wanted]:
        if usual in by_lower and (fits is None or fits(table.schema.field(by_lower[usual]).type)):
            return by_lower[usual]
    return None


def is_image_type(kind: Any) -> bool:
    """True for encoded images: bytes, or Hugging Face's struct of bytes and path."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return "bytes" in [kind.field(k).name for k in range(kind.num_fields)]
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def is_text_type(kind: Any) -> bool:
    """True for columns of text, dictionary-encoded or not."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_number_type(kind: Any) -> bool:
    """True for numbers and truth values."""
    import pyarrow as pa

    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def is_list_type(kind: Any) -> bool:
    """True for columns with a list in each row, of one length or of any; dictionary-encoded ones have none."""
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def to_numpy(column: Any) -> np.ndarray:
    """An Arrow column as a numpy array; text as objects, a missing whole number or truth value as NaN."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_boolean(column.type) and column.null_count:
        column = column.cast(pa.int8())  # else None would stand among the numbers
    return column.to_numpy(zero_copy_only=False)


def class_label_names(table: Any, column: str) -> Sequence[str] | None:
    """The ClassLabel names that Hugging Face's metadata gives for a column; None where there are none."""
    try:
        features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
        names = features[column].get("names")
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return [str(name) for name in names] if names else None


def holds_images(file: Path) -> bool:
    """True for a parquet file with the bytes of all its images; False where some or all lie in files of their own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            images = [field.name for field in opened.schema_arrow if is_image_type(field.type)]
            groups = [opened.metadata.row_group(k) for k in range(opened.metadata.num_row_groups)]
    except (pa.ArrowInvalid, OSError):
        return False  # reading it will say what is wrong with it
    chunks = [group.column(k) for group in groups for k in range(group.num_columns)]
    content = [chunk for chunk in chunks if chunk.path_in_schema in (*images, *(f"{name}.bytes" for name in images))]
    # Files written without statistics count as complete: to look would be to read them whole.
    return bool(content) and all(not chunk.is_stats_set or chunk.statistics.null_count == 0 for chunk in content)


def pointed_file(folder: Path, name: str) -> str:
    """The file that a table names; written with spaces around it or, on Windows, with backslashes, it is found too."""
    exact = str(folder / name)
    plain = name.strip().replace("\\", "/")
    if plain != name and not os.path.exists(exact) and os.path.exists(folder / plain):
        return str(folder / plain)
    return exact


def image_sources(column: Any, folder: Path) -> tuple[list[str | memoryview], list[str]]:
    """(the bytes of each image without a copy, its name): from a binary column or a struct of bytes and path.

    An image without bytes but with a path is a file beside the table.
    """
    import pyarrow as pa

    sources: list[str | memoryview] = []
    names: list[str] = []
    for chunk in column.chunks:
        paths: list[str | None] = [None] * len(chunk)
        if pa.types.is_struct(chunk.type):
            if "path" in [field.name for field in chunk.type]:
                paths = chunk.field("path").to_pylist()
            chunk = chunk.field("bytes")
        chunk = chunk.cast(pa.large_binary())
        _, offsets, data = chunk.buffers()
        ends = np.frombuffer(offsets, dtype=np.int64)[chunk.offset : chunk.offset + len(chunk) + 1].tolist()
        content = memoryview(data) if data is not None else memoryview(b"")
        for start, end, path in zip(ends, ends[1:], paths, strict=False):
            names.append(path or f"row {len(names)}")
            sources.append(content[start:end] if end > start or not path else str(folder / path))
    return sources, names
