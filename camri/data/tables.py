"""Tables (CSV, TSV, parquet) and NumPy archives: images, image paths or features, with labels."""

import os
import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from camri.data.folder import is_clutter, shown, subfolders, visible
from camri.data.listing import EncodedImages, Listing, Options, Part, Source, encode, index_values
from camri.errors import InputError, closest
from camri.tables import (
    NUMBER_WITH_COMMAS,
    ROLES,
    SPLIT_ALIASES,
    TEXT_SUFFIXES,
    class_label_names,
    is_float,
    is_list_type,
    is_missing,
    is_number_type,
    is_table,
    is_text_type,
    pa,
    pc,
    pq,
    read_npz,
    read_table,
    refuse_missing,
    refuse_unlike,
    role,
    to_matrix,
    to_numpy,
    to_splits,
)
from camri.text import listed

MOST_CATEGORIES = 50  # in a column of text
ROWS_TO_TRY = 100  # if no path of a table exists: the first of its images may be missing
ROW_NUMBERS = ("", "id", "index", "idx", "row", "unnamed: 0", "__index_level_0__")  # if all values differ


def find_tables(path: Path, options: Options) -> Source | None:
    """Find the table at path, or those of a folder: train*.parquet, data/*.parquet, train.csv …, or its only one."""
    if path.is_file() and not is_table(path):
        return None
    by_part = {"": [path]} if path.is_file() else _files_of_folder(path)
    if not by_part:
        return None
    files = [file for group in by_part.values() for file in group]
    layout = "parquet" if files[0].suffix.lower() == ".parquet" else "table"
    if layout == "parquet" and not options.path_column and all(map(_holds_images, files)):
        return Source(layout, [str(file) for file in files], lambda scratch: _list(path, by_part, options))
    # If the images are files of their own, these are part of the content too.
    listing = _list(path, by_part, options)
    images = [part.inputs for part in listing.parts.values() if isinstance(part.inputs, EncodedImages)]
    image_files = [source for group in images for source in group.sources if isinstance(source, str)]
    return Source(layout, [*map(str, files), *image_files], lambda scratch: listing)


def part_of_file(path: Path) -> str | None:
    """The split that a file's name begins with ("train-00000-of-00002.parquet"); None for other names.

    >>> part_of_file(Path("validation.csv")), part_of_file(Path("trainer.csv"))
    ('val', None)
    """
    return SPLIT_ALIASES.get(re.split("[._-]", path.name, maxsplit=1)[0].lower())


def parquet_files(path: Path) -> list[Path]:
    """Parquet files in a folder, or in its only subfolder that has some ("data", "plain_text"), sorted."""
    for pattern in ("*.parquet", "*/*.parquet"):
        files = sorted(path.glob(pattern))
        files = [file for file in files if not any(map(is_clutter, file.relative_to(path).parts))]
        if files:
            return files if len({file.parent for file in files}) == 1 else []
    return []


def _files_of_folder(path: Path) -> dict[str, list[Path]]:
    """The tables of a folder by split; "" for a table without one."""
    text = [path / name for name in visible(path) if Path(name).suffix.lower() in TEXT_SUFFIXES]
    candidates = parquet_files(path) or [file for file in text if part_of_file(file)]
    if len(text) == 1 and len(subfolders(path)) < 2:  # beside class folders, a table is not the data set
        candidates = candidates or text
    return by_split(path, candidates)


def by_split(path: Path, files: Sequence[Path]) -> dict[str, list[Path]]:
    """The files by the split that their names begin with; "" if none of them has one."""
    by_part: dict[str, list[Path]] = {}
    for file in files:
        by_part.setdefault(part_of_file(file) or "", []).append(file)
    if "" in by_part and len(by_part) > 1:
        remedy = "begin its name with train, val or test, or move it away"
        raise InputError(f"{path}: {by_part[''][0].name} belongs to no split, {files[-1].name} does; {remedy}")
    return by_part


def is_image_type(kind: Any) -> bool:
    """True for encoded images: bytes, or Hugging Face's struct of bytes and path."""
    if pa.types.is_struct(kind):
        return "bytes" in [kind.field(k).name for k in range(kind.num_fields)]
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _holds_images(file: Path) -> bool:
    """True for a parquet file that holds the bytes of all its images; False if some are files of their own."""
    try:
        with pq.ParquetFile(file) as opened:
            images = [field.name for field in opened.schema_arrow if is_image_type(field.type)]
            groups = [opened.metadata.row_group(k) for k in range(opened.metadata.num_row_groups)]
    except (pa.ArrowInvalid, OSError):
        return False  # `read_table` will say what is wrong with it
    chunks = [group.column(k) for group in groups for k in range(group.num_columns)]
    content = [chunk for chunk in chunks if chunk.path_in_schema in (*images, *(f"{name}.bytes" for name in images))]
    # Files without statistics count as complete: checking would read them whole.
    return bool(content) and all(not chunk.is_stats_set or chunk.statistics.null_count == 0 for chunk in content)


def pointed_files(folder: Path, names: Sequence[str]) -> tuple[list[str], str]:
    """(paths of the files that a table names, a note if their beginnings were cut off).

    Spaces around a name and Windows' backslashes are accepted. If no file exists, the table was written on another
    machine: the shortest beginning without which one is found in the table's folder is cut off all paths.
    """
    files, plain = [str(folder / name) for name in names], [name.strip().replace("\\", "/") for name in names]
    for row, (name, given) in enumerate(zip(plain, names, strict=True)):
        if name != given and not os.path.exists(files[row]) and os.path.exists(folder / name):
            files[row] = str(folder / name)
    if any(map(os.path.exists, files)):
        return files, ""
    for name in plain[:ROWS_TO_TRY]:
        parts = name.split("/")
        for start in range(1, len(parts)):
            tail = "/".join(parts[start:])
            if ".." not in parts[start:] and os.path.isfile(folder / tail):
                cut = name.removesuffix(tail)
                found = [str(folder / name.removeprefix(cut)) if name.startswith(cut) else file
                         for name, file in zip(plain, files, strict=True)]  # fmt: skip
                return found, f"the table's paths begin with {cut!r}, which is not here; its own folder is used instead"
    return files, ""


def image_sources(column: Any, folder: Path) -> tuple[list[str | memoryview], list[str], str]:
    """(bytes or file of each image, their names, the note of :func:`pointed_files`) of a column of images.

    The column is binary, or a struct of bytes and path. Bytes are not copied. An image with a path but no bytes is a
    file beside the table.
    """
    paths: list[str | None] = [None] * len(column)
    if pa.types.is_struct(column.type):
        if column.type.get_field_index("path") >= 0:
            paths = pc.struct_field(column, "path").to_pylist()
        column = pc.struct_field(column, "bytes")
    names = [path or f"row {row}" for row, path in enumerate(paths)]
    buffers = [cell.as_buffer() for cell in column.cast(pa.large_binary())]
    in_files = [row for row, path in enumerate(paths) if path and not buffers[row]]
    files, note = pointed_files(folder, [names[row] for row in in_files])
    sources: list[str | memoryview] = [memoryview(buffer or b"") for buffer in buffers]
    for row, file in zip(in_files, files, strict=True):
        sources[row] = file
    return sources, names, note


def load_tables(by_part: dict[str, list[Path]], options: Options) -> dict[str, Any]:
    """Read an Arrow table per split: by file, or by the split column of one file; otherwise all rows are train."""
    named = {options.path_column, options.label_column, options.group_column, options.split_column}
    tables = {}
    for part, files in by_part.items():
        shards = [read_table(file, named) for file in files]
        for file, shard in zip(files, shards, strict=True):
            if shard.column_names != shards[0].column_names:
                raise InputError(f"{file} has other columns than {files[0]}; tables of one split must agree")
        tables[part] = pa.concat_tables(shards, promote_options="permissive")
    if list(tables) != [""]:
        if options.split_column:
            names = ", ".join(files[0].name for files in by_part.values())
            why = f"is for a table in one file; here the files are the splits ({names}): leave it out"
            raise InputError(f"split_column={options.split_column!r} {why}", argument="split_column")
        return tables
    whole, where = tables[""], str(by_part[""][0])
    chosen = options.split_column or next((name for name in whole.column_names if name.lower() == "split"), None)
    column = role(whole, "split", chosen, where, is_text_type)
    if column is None:
        return {"train": whole}
    parts = np.array(to_splits(whole.column(column).to_pylist(), f"{where}, column {column!r}"))
    return {part: whole.filter(pa.array(parts == part)) for part in dict.fromkeys(parts.tolist())}


def _list(path: Path, by_part: dict[str, list[Path]], options: Options) -> Listing:
    # train comes first: its columns decide
    tables = dict(sorted(load_tables(by_part, options).items(), key=lambda item: item[0] != "train"))
    folder = next(iter(by_part.values()))[0].parent
    first = next(iter(tables.values()))
    where = str(path)
    label = role(first, "label", options.label_column, where)
    if label is None:
        names = listed(first.column_names)
        raise InputError(f"{where} has no label column among {names}; name it with label_column=NAME", "label_column")
    for part, table in tables.items():
        if label not in table.column_names:
            hint = closest(label, table.column_names)
            raise InputError(f"{where}: the {part} table has no column {label!r}; {hint}; move it away if unlabelled")
    class_names = next(filter(None, (class_label_names(table, label) for table in tables.values())), None)
    texts = {part: to_numpy(table.column(label)) for part, table in tables.items()}
    classes, labels = encode(texts, f"{where}, column {label!r}", class_names)
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
    """Images or features per split, and the columns they come from; never one of `roles`."""
    first = next(iter(tables.values()))
    image = role(first, "image", None, where, is_image_type) if not path_column else None
    path = role(first, "path", path_column, where, is_text_type) if not image else None
    inputs: dict[str, EncodedImages | np.ndarray] = {}
    if column := image or path:
        facts: dict[str, Any] = {"image_column" if image else "path_column": column}
        for part, table in tables.items():
            cells = table.column(column)
            files, names, note = image_sources(cells, folder) if image else _paths(cells, folder, where)
            inputs[part] = EncodedImages(files, names)
            facts |= {"path_note": note} if note else {}
        return inputs, facts
    used = _feature_columns(first, roles, where)
    facts = {"feature_columns": used, "num_feature_columns": len(used)}
    for part, table in tables.items():
        available = set(table.column_names)  # once: Arrow builds the list on each access, and there may be thousands
        if missing := [name for name in used if name not in available]:
            hint = closest(missing[0], table.column_names)
            raise InputError(f"{where}, {part} part has no column {missing[0]!r}; {hint}")
    if encoding := _encoding(tables, used, where):
        facts["encoding"] = encoding
    for part, table in tables.items():
        here = f"{where}, {part} part"
        inputs[part] = encode_columns(table, encoding, here) if encoding else _matrix(table, used, here)
    return inputs, facts


def _paths(column: Any, folder: Path, where: str) -> tuple[list[str], list[str], str]:
    """(files, their names for messages, the note of :func:`pointed_files`) of a column of paths."""
    names = to_numpy(column)
    refuse_missing([*map(is_missing, names)], f"{where}: the path")
    for row, name in enumerate(names):
        if "://" in str(name):
            raise InputError(f"{where}: {name} in row {row} is a URL; download the images and give their paths")
    files, note = pointed_files(folder, [str(name) for name in names])
    return files, [shown(file, folder) for file in files], note


def _feature_columns(table: Any, roles: Container[str | None], where: str) -> list[str]:
    """The column of lists, or all columns without another role; those that cannot be features are refused."""
    matrix = role(table, "features", None, where, is_list_type)
    if matrix:
        return [matrix]
    rest = [name for name in table.column_names if name not in roles]
    if not rest:
        raise InputError(f"{where} has a label column and nothing else; add image paths or features")
    for name in rest:
        column, kind = table.column(name), table.schema.field(name).type
        if name.lower() in ROLES["label"]:
            why = "is named like a label, and a model could read the answer off it"
            raise InputError(f"{where}: column {name!r} {why}; drop it, or rename it if it is a feature")
        may_number = name.lower() in ROW_NUMBERS and pa.types.is_integer(kind) and len(column) > 1
        if may_number and pc.count_distinct(column).as_py() == len(column):
            raise InputError(f"{where}: column {name!r} numbers the rows: a model could learn their order; drop it")
        if not is_number_type(kind) and not pa.types.is_null(kind):
            if is_text_type(kind) and _has_categories(column):
                continue
            texts = (str(value) for value in column.to_pylist() if value is not None)
            odd = next((text for text in texts if not is_float(text)), str(column[0].as_py()))
            if NUMBER_WITH_COMMAS.fullmatch(odd):
                remedy = "save the table with decimal points and plain digits (1234.5)"
                raise InputError(f"{where}: column {name!r} has numbers with commas (first {odd!r}); {remedy}")
            short = odd if len(odd) <= 30 else f"{odd[:30]}…"
            remedy = "encode or drop it, or name a column of image paths with path_column=NAME"
            raise InputError(
                f"{where}: column {name!r} holds {kind} (first {short!r}), not numbers or at most {MOST_CATEGORIES} "
                f"categories; {remedy}",
                "path_column",
            )
    return rest


def _has_categories(column: Any) -> bool:
    """Whether texts are categories: few, each in two or more rows on average, and most of them not numbers."""
    texts = [text for text in to_numpy(column) if text]
    distinct = set(texts)
    num_numbers = sum(is_float(text) or bool(NUMBER_WITH_COMMAS.fullmatch(text)) for text in distinct)
    return len(distinct) <= min(MOST_CATEGORIES, len(texts) / 2) and 2 * num_numbers < len(distinct)


def _encoding(tables: dict[str, Any], used: list[str], where: str) -> dict[str, dict[str, Any]]:
    """How columns with text or missing values become numbers, from the train part; empty if all are plain numbers.

    Text has "categories". Numbers have "fill" for missing ones: their median. "flag": whether an extra column says
    which values are missing.
    """
    first = next(iter(tables.values()))
    if not any(_needs_code(table.column(name)) for table in tables.values() for name in used):
        return {}
    encoding: dict[str, dict[str, Any]] = {}
    for name in used:
        values = to_numpy(first.column(name))
        if is_text_type(first.schema.field(name).type):
            categories = sorted({text for text in values if text})
            encoding[name] = {"categories": categories, "flag": not all(values)}
            continue
        absent = np.isnan(values.astype(np.float64))
        if absent.all():
            raise InputError(f"{where}: column {name!r} has no values; fill it in or drop it")
        encoding[name] = {"fill": float(np.median(values[~absent])), "flag": bool(absent.any())}
    return encoding


def _needs_code(column: Any) -> bool:
    """Whether a column holds text or missing numbers."""
    if is_list_type(column.type):
        return False
    if is_text_type(column.type) or column.null_count:
        return True
    return pa.types.is_floating(column.type) and bool(np.isnan(to_numpy(column)).any())


def encode_columns(table: Any, encoding: Mapping[str, Mapping[str, Any]], where: str) -> np.ndarray:
    """Encode columns as float32 (N, D): one for each category, for each column of numbers and for each flag.

    A text that is not a known category has 0 in all columns of its categories.
    """
    made: list[np.ndarray] = []
    for name, code in encoding.items():
        column = table.column(name)
        if "categories" in code:
            texts = np.array([str(text) if text else "" for text in to_numpy(column).tolist()], dtype=object)
            made += [(texts == category) for category in code["categories"]]
            absent = texts == ""
        else:
            if not is_number_type(column.type) and column.null_count < len(column):
                raise InputError(f"{where}: column {name!r} holds {column.type}, and it had numbers in training")
            values = to_numpy(column).astype(np.float64)
            absent = np.isnan(values)
            made.append(np.where(absent, code["fill"], values))
        made += [absent] if code["flag"] else []
    names = encoded_names(encoding)
    return to_features(np.stack([values.astype(np.float64) for values in made], axis=1), where, names)


def encoded_names(encoding: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Names of the columns that :func:`encode_columns` makes.

    >>> encoded_names({"city": {"categories": ["Oslo", "Rome"], "flag": False}, "age": {"fill": 30.0, "flag": True}})
    ['city=Oslo', 'city=Rome', 'age', 'age missing']
    """
    names: list[str] = []
    for name, code in encoding.items():
        names += [f"{name}={category}" for category in code["categories"]] if "categories" in code else [name]
        names += [f"{name} missing"] if code["flag"] else []
    return names


def _matrix(table: Any, used: list[str], where: str) -> np.ndarray:
    """Features as float32 (N, D) from columns of numbers or one column of lists."""
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
    """Convert numbers (N, D) to float32; refuse missing, infinite and too large ones with the position of the first."""
    with np.errstate(over="ignore"):
        features = values.astype(np.float32)
    wrong = np.argwhere(~np.isfinite(features))
    if len(wrong):
        is_absent = ~np.isfinite(values[tuple(wrong.T)].astype(np.float64))
        such = wrong[is_absent] if is_absent.any() else wrong
        row, column = such[0]
        name = names[column] if names and column < len(names) else column
        too_large = f"exceed {np.finfo(np.float32).max:.2g}, the largest float32: rescale the column"
        raise InputError(
            f"{where}: the feature in row {row}, column {name} is {values[row, column]}; {len(such)} such values "
            f"{'must be filled in or removed' if is_absent.any() else too_large}"
        )
    return features


def _groups(tables: dict[str, Any], column: str, where: str) -> dict[str, np.ndarray]:
    """int64 groups per split, numbered over all splits together; none for a split without that column."""
    columns = {part: to_numpy(table.column(column)) for part, table in tables.items() if column in table.column_names}
    for part, values in columns.items():
        refuse_missing([*map(is_missing, values)], f"{where}, {part} part, column {column!r}: the group")
    return index_values(columns)[1]


INPUTS = ("inputs", "images", "features", "x", "data")
LABELS = ("labels", "label", "y", "target", "targets")
CLASS_NAMES = ("classes", "class_names", "names")
GROUPS = ("groups", "group")


def find_arrays(path: Path) -> Source | None:
    """Find the .npz file at path; None for anything else."""
    if path.suffix.lower() != ".npz" or not path.is_file():
        return None
    return Source("npz", [str(path)], lambda scratch: _list_arrays(path))


def _list_arrays(path: Path) -> Listing:
    arrays = {name.lower(): array for name, array in read_npz(path).items()}
    inputs, labels, groups = (_by_part(arrays, words) for words in (INPUTS, LABELS, GROUPS))
    if not inputs or inputs.keys() != labels.keys():
        raise InputError(f"{path} holds {', '.join(arrays) or 'nothing'}; name the arrays x_train, y_train and so on")
    names = next((_names(arrays[name], f"{path}: {name}") for name in CLASS_NAMES if name in arrays), None)
    classes, codes = encode(labels, str(path), names)
    parts = {}
    for part, values in inputs.items():
        where = f"{path}, {part} part"
        values = _as_inputs(values, where)
        if len(values) != len(codes[part]):
            raise InputError(f"{where}: {len(values)} inputs but {len(codes[part])} labels; give one label per input")
        group = groups.get(part)
        if group is not None and (group.dtype.kind not in "iu" or group.shape != codes[part].shape):
            raise InputError(f"{where}: groups are {group.dtype} {group.shape}; give one integer per row")
        parts[part] = Part(values, codes[part], None if group is None else group.astype(np.int64))
    return Listing(classes, parts)


def _names(array: np.ndarray, where: str) -> list[str]:
    """The class names of an array, of text or of bytes in UTF-8."""
    try:
        texts = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array.astype(str)
    except UnicodeDecodeError:
        raise InputError(f"{where} are not UTF-8 text; save them as text") from None
    if texts.ndim != 1:
        raise InputError(f"{where} have the shape {array.shape}; give a list of names")
    return texts.tolist()


def _by_part(arrays: dict[str, np.ndarray], words: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The arrays with one of these names by split: x_train, train_images, or images alone, which is train."""
    by_part = {
        part: arrays[name]
        for spelling, part in SPLIT_ALIASES.items()
        for word in words
        for name in (f"{word}_{spelling}", f"{spelling}_{word}")
        if name in arrays
    }
    alone = next((arrays[word] for word in words if word in arrays), None)
    return by_part or ({} if alone is None else {"train": alone})


def _as_inputs(values: np.ndarray, where: str) -> np.ndarray:
    """uint8 (N, H, W, C) images or float32 (N, D) features."""
    if values.ndim == 2 and values.dtype.kind in "fiub":
        return to_features(values, where)
    if values.dtype == np.uint8 and values.ndim == 3:
        return values[..., None]
    if values.dtype == np.uint8 and values.ndim == 4:
        if values.shape[3] not in (1, 3) and values.shape[1] in (1, 3):
            values = np.ascontiguousarray(values.transpose(0, 2, 3, 1))
        if values.shape[3] in (1, 3):
            return values
    wanted = "images as uint8 (N, H, W, 1 or 3) or features as numbers (N, D)"
    raise InputError(f"{where}: inputs are {values.dtype} {values.shape}; give {wanted}")
