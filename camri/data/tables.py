"""Columns of lists: a list of numbers a row -> a matrix, and which rows do not fit.

CSV, TSV and parquet files -> Arrow tables, and which column plays which role.

Tables: CSV, TSV or parquet with image bytes, image paths, or ready-made features; and a label column.
"""

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from camri.data.folder import is_clutter, shown, subfolders, visible
from camri.data.listing import SPLIT_ALIASES, EncodedImages, Listing, Options, Part, Source, encode, is_float, to_splits
from camri.errors import InputError, closest
from camri.text import ROWS_SHOWN, listed, name_rows


def to_matrix(column: Any, wanted: int | None = None) -> tuple[np.ndarray, dict[int, int | None]]:
    """(numbers (N, D), rows that do not fit) of a column of lists, D being the length that most of them have.

    Where any has the `wanted` length, D is that. A row that does not fit stands with the length of its list, None where
    it has none; its numbers are NaN.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = column.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(rows), -1).to_numpy(zero_copy_only=False)
    # Empty lists are how some tools write missing ones: however many there are, they are not the length that is meant.
    common, counts = np.unique(lengths[lengths > 0], return_counts=True)
    width = int(common[counts == counts.max()][-1]) if len(common) else 0  # of two as common, the longer
    if wanted is not None and wanted in common:
        width = wanted
    fits = lengths == width
    if fits.all():
        return to_numpy(rows.flatten()).reshape(len(rows), width), {}
    values = np.full((len(rows), width), np.nan)
    values[fits] = to_numpy(rows.filter(pa.array(fits)).flatten()).reshape(fits.sum(), width)
    return values, {row: None if lengths[row] < 0 else int(lengths[row]) for row in np.flatnonzero(~fits).tolist()}


def refuse_unlike(unlike: Mapping[int, int | None], num_rows: int, width: int, where: str) -> None:
    """Nothing; rows whose lists are missing or of another length are refused by their numbers."""
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
            raise InputError(f"{where} has no column {told!r}; {closest(told, names)}", argument=f"{wanted}_column")
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


ROW_NUMBERS = ("", "id", "index", "idx", "row", "unnamed: 0", "__index_level_0__")  # if every row has its own

NUMBER_WITH_COMMAS = re.compile(r"\s*[-+]?[0-9.]*,[0-9.,]*[0-9](e[-+]?[0-9]+)?\s*", re.IGNORECASE)


def find_tables(path: Path, options: Options) -> Source | None:
    """The table at path, or the tables in a folder (train*.parquet, data/*.parquet, train.csv …, or its only one)."""
    if path.is_file() and not is_table(path):
        return None
    files = {"": [path]} if path.is_file() else _files_of_folder(path)
    if not files:
        return None
    every = [file for group in files.values() for file in group]
    layout = "parquet" if every[0].suffix.lower() == ".parquet" else "table"
    if layout == "parquet" and not options.path_column and all(map(holds_images, every)):
        return Source(layout, [str(file) for file in every], lambda scratch: _list(path, files, options))
    # A table may only point to its images: then they belong to the content.
    listing = _list(path, files, options)
    images = [part.inputs for part in listing.parts.values() if isinstance(part.inputs, EncodedImages)]
    pointed = [source for group in images for source in group.sources if isinstance(source, str)]
    return Source(layout, [*map(str, every), *pointed], lambda scratch: listing)


def parquet_files(path: Path) -> list[Path]:
    """Parquet files in a folder, or in the one folder in it that has some ("data", "plain_text"), sorted."""

    def matching(pattern: str) -> list[Path]:
        found = sorted(path.glob(pattern))
        return [file for file in found if not any(map(is_clutter, file.relative_to(path).parts))]

    below = matching("*/*.parquet")
    return matching("*.parquet") or (below if len({file.parent for file in below}) == 1 else [])


def _files_of_folder(path: Path) -> dict[str, list[Path]]:
    parquet = parquet_files(path)
    text = [path / name for name in visible(path) if Path(name).suffix.lower() in TEXT_SUFFIXES]
    candidates = parquet or [file for file in text if part_of_file(file)]
    if len(text) == 1 and len(subfolders(path)) < 2:  # with class folders in it, the images' folders say more
        candidates = candidates or text
    files: dict[str, list[Path]] = {}
    for file in candidates:
        files.setdefault(part_of_file(file) or "", []).append(file)
    if "" in files and len(files) > 1:
        raise InputError(
            f"{path}: {files[''][0].name} belongs to no split, while {candidates[-1].name} does; "
            "begin its name with train, val or test, or move it away"
        )
    return files


def load_tables(files: dict[str, list[Path]], options: Options) -> dict[str, Any]:
    """An Arrow table per split: by file, or by the split column of one file; otherwise all is train."""
    import pyarrow as pa

    named = {options.path_column, options.label_column, options.group_column, options.split_column}
    tables = {}
    for part, group in files.items():
        shards = [read_table(file, named) for file in group]
        for file, shard in zip(group, shards, strict=True):
            if shard.column_names != shards[0].column_names:
                raise InputError(f"{file} has other columns than {group[0]}; tables of one split must agree")
        tables[part] = pa.concat_tables(shards, promote_options="permissive")
    if list(tables) != [""]:
        if options.split_column:
            names = ", ".join(file.name for group in files.values() for file in group[:1])
            raise InputError(
                f"split_column={options.split_column!r} is for a table in one file; here the files are the splits "
                f"({names}): leave it out",
                argument="split_column",
            )
        return tables
    whole, where = tables[""], str(files[""][0])
    told = options.split_column or next((name for name in whole.column_names if name.lower() == "split"), None)
    column = role(whole, "split", told, where, is_text_type)
    if column is None:
        return {"train": whole}
    parts = np.array(to_splits(whole.column(column).to_pylist(), f"{where}, column {column!r}"))
    return {part: whole.filter(pa.array(parts == part)) for part in dict.fromkeys(parts.tolist())}


def _list(path: Path, files: dict[str, list[Path]], options: Options) -> Listing:
    found = load_tables(files, options)
    tables = dict(sorted(found.items(), key=lambda item: item[0] != "train"))  # its columns are those that count
    folder = next(iter(files.values()))[0].parent
    first = next(iter(tables.values()))
    where = str(path)
    label = role(first, "label", options.label_column, where)
    if label is None:
        raise InputError(
            f"{where} has no label column among {listed(first.column_names)}; name it with "
            "label_column= (--label-column)"
        )
    for part, table in tables.items():
        if label not in table.column_names:
            raise InputError(
                f"{where}: the {part} table has no column {label!r}; {closest(label, table.column_names)}; move it "
                "away if it has no labels"
            )
    named = next(filter(None, (class_label_names(table, label) for table in tables.values())), None)
    texts = {part: to_numpy(table.column(label)) for part, table in tables.items()}
    classes, labels = encode(texts, f"{where}, column {label!r}", named)
    group = role(first, "group", options.group_column, where)
    split = role(first, "split", options.split_column, where, is_text_type)
    inputs, facts = _inputs(tables, folder, {label, group, split}, options.path_column, where)
    groups = {} if group is None else _groups(tables, group, where)
    parts = {part: Part(inputs[part], labels[part], groups.get(part)) for part in tables}
    facts = {"label_column": label, **facts, **({} if group is None else {"group_column": group})}
    used = {split, *facts.get("feature_columns", []), *(fact for fact in facts.values() if isinstance(fact, str))}
    unused = [name for name in first.column_names if name not in used]
    return Listing(classes, parts, facts={**facts, "unused_columns": unused})


def _inputs(
    tables: dict[str, Any], folder: Path, roles: Container[str | None], path_column: str | None, where: str
) -> tuple[dict[str, EncodedImages | np.ndarray], dict[str, Any]]:
    """Images or features per split, and which columns they are from: none of those that have other roles."""
    first = next(iter(tables.values()))
    image = role(first, "image", None, where, is_image_type) if not path_column else None
    if image:
        found = {p: image_sources(table.column(image), folder) for p, table in tables.items()}
        return {part: EncodedImages(*rows) for part, rows in found.items()}, {"image_column": image}
    path = role(first, "path", path_column, where, is_text_type)
    if path:
        return {p: _paths(table.column(path), folder, where) for p, table in tables.items()}, {"path_column": path}
    used = _feature_columns(first, roles, where)
    return {p: _matrix(table, used, f"{where}, {p} part") for p, table in tables.items()}, {
        "feature_columns": used,
        "num_feature_columns": len(used),
    }


def _paths(column: Any, folder: Path, where: str) -> EncodedImages:
    files, names = [], to_numpy(column)
    if missing := [row for row, name in enumerate(names) if name is None or not str(name).strip()]:
        told = name_rows(missing, len(names))
        raise InputError(f"{where}: the path of {told} is missing; fill it in or remove the row")
    for row, name in enumerate(names):
        if "://" in str(name):
            raise InputError(f"{where}: {name} in row {row} is an address; fetch the images and give their paths")
        files.append(pointed_file(folder, str(name)))
    return EncodedImages(files, [shown(file, folder) for file in files])


def _feature_columns(table: Any, roles: Container[str | None], where: str) -> list[str]:
    import pyarrow as pa

    matrix = role(table, "features", None, where, is_list_type)
    if matrix:
        return [matrix]
    rest = [name for name in table.column_names if name not in roles]
    for name in rest:
        kind = table.schema.field(name).type
        if name.lower() in ROLES["label"]:
            raise InputError(
                f"{where}: column {name!r} is called like a label beside the label column, and a model would read the "
                "answer off it; drop it, or, where it is a feature, call it otherwise"
            )
        if name.lower() in ROW_NUMBERS and pa.types.is_integer(kind) and _are_distinct(table.column(name)):
            raise InputError(
                f"{where}: column {name!r} numbers the rows; a model would learn their order from it: drop the column"
            )
        if not is_number_type(kind):
            odd = _first_without_number(table.column(name))
            if NUMBER_WITH_COMMAS.fullmatch(odd):
                raise InputError(
                    f"{where}: column {name!r} has numbers with commas (the first is {odd!r}), and whether they part "
                    "decimals or thousands is not guessed; save the table with decimal points and plain digits (1234.5)"
                )
            raise InputError(
                f"{where}: column {name!r} holds {kind} (first {odd if len(odd) <= 30 else f'{odd[:30]}…'!r}), and "
                "features are numbers; encode or drop it, or, where it has the images' paths, name it with "
                "path_column= (--path-column)"
            )
    if not rest:
        raise InputError(f"{where} has a label column and nothing else; add image paths or features")
    return rest


def _first_without_number(column: Any) -> str:
    """The first value that is no number, as text; of missing ones and numbers alone the first."""
    texts = (str(value) for value in column.to_pylist() if value is not None)
    return next((text for text in texts if not is_float(text)), str(column[0].as_py()))


def _are_distinct(column: Any) -> bool:
    import pyarrow.compute as pc

    return len(column) > 1 and pc.count_distinct(column).as_py() == len(column)


def _matrix(table: Any, used: list[str], where: str) -> np.ndarray:
    """float32 (N, D); a value that is missing or infinite is refused with its place."""
    there = set(table.column_names)  # once: Arrow makes the list anew each time, and there may be thousands
    if missing := [name for name in used if name not in there]:
        raise InputError(f"{where} has no column {missing[0]!r}; {closest(missing[0], table.column_names)}")
    if len(used) == 1 and is_list_type(table.schema.field(used[0]).type):
        rows = table.column(used[0])
        kind = rows.type.value_type
        if not is_number_type(kind):
            raise InputError(f"{where}: column {used[0]!r} holds lists of {kind}; features are lists of numbers")
        values, unlike = to_matrix(rows)
        refuse_unlike(unlike, len(rows), values.shape[1], f"{where}, column {used[0]!r}")
        return to_features(values, where)
    values = np.stack([to_numpy(table.column(name)) for name in used], axis=1)
    return to_features(values, where, used)


def to_features(values: np.ndarray, where: str, names: list[str] | None = None) -> np.ndarray:
    """The numbers (N, D) as float32; refused where one is missing, infinite, or too large for that."""
    with np.errstate(over="ignore"):
        features = values.astype(np.float32)
    wrong = np.argwhere(~np.isfinite(features))
    if len(wrong):
        is_absent = ~np.isfinite(values[tuple(wrong.T)].astype(np.float64))
        such = wrong[is_absent] if is_absent.any() else wrong
        row, column = such[0]
        name = names[column] if names and column < len(names) else column
        largest = f"{np.finfo(np.float32).max:.2g}"
        too_large = f"are beyond {largest}, the largest that a model computes with: rescale the column"
        raise InputError(
            f"{where}: the feature in row {row}, column {name} is {values[row, column]}; {len(such)} such values "
            f"{'must be filled in or removed' if is_absent.any() else too_large}"
        )
    return features


def _groups(tables: dict[str, Any], column: str, where: str) -> dict[str, np.ndarray]:
    """int64 groups per split, numbered over all splits together; none for a split without that column."""
    texts = {part: to_numpy(t.column(column)) for part, t in tables.items() if column in t.column_names}
    for part, values in texts.items():
        missing = [row for row, value in enumerate(values) if value is None or value != value or not str(value).strip()]
        if missing:
            told = name_rows(missing, len(values))
            raise InputError(
                f"{where}, {part} part, column {column!r}: the group of {told} is missing; fill it in, with a name of "
                "its own where the row stands alone, or remove the row"
            )
    _, codes = np.unique(np.concatenate([v.astype(str) for v in texts.values()]), return_inverse=True)
    ends = np.cumsum([len(values) for values in texts.values()])[:-1]
    return dict(zip(texts, np.split(codes.ravel().astype(np.int64), ends), strict=True))
