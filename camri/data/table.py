"""Tables: CSV, TSV or parquet with image bytes, image paths, or ready-made features; and a label column."""

import re
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np

from camri.data import columns, lists
from camri.data.folder import is_clutter, shown, subfolders, visible
from camri.data.labels import encode, is_float, to_splits
from camri.data.listing import EncodedImages, Found, Listing, Options, Part
from camri.errors import InputError, closest
from camri.words import listed, name_rows

ROW_NUMBERS = ("", "id", "index", "idx", "row", "unnamed: 0", "__index_level_0__")  # if every row has its own

NUMBER_WITH_COMMAS = re.compile(r"\s*[-+]?[0-9.]*,[0-9.,]*[0-9](e[-+]?[0-9]+)?\s*", re.IGNORECASE)


def find(path: Path, options: Options) -> Found | None:
    """The table at path, or the tables in a folder (train*.parquet, data/*.parquet, train.csv …, or its only one)."""
    if path.is_file() and not columns.is_table(path):
        return None
    files = {"": [path]} if path.is_file() else _files_of_folder(path)
    if not files:
        return None
    every = [file for group in files.values() for file in group]
    layout = "parquet" if every[0].suffix.lower() == ".parquet" else "table"
    if layout == "parquet" and not options.path_column and all(map(columns.holds_images, every)):
        return Found(layout, [str(file) for file in every], lambda scratch: _list(path, files, options))
    # A table may only point to its images: then they belong to the content.
    listing = _list(path, files, options)
    images = [part.inputs for part in listing.parts.values() if isinstance(part.inputs, EncodedImages)]
    pointed = [source for group in images for source in group.sources if isinstance(source, str)]
    return Found(layout, [*map(str, every), *pointed], lambda scratch: listing)


def parquet_files(path: Path) -> list[Path]:
    """Parquet files in a folder, or in the one folder in it that has some ("data", "plain_text"), sorted."""

    def matching(pattern: str) -> list[Path]:
        found = sorted(path.glob(pattern))
        return [file for file in found if not any(map(is_clutter, file.relative_to(path).parts))]

    below = matching("*/*.parquet")
    return matching("*.parquet") or (below if len({file.parent for file in below}) == 1 else [])


def _files_of_folder(path: Path) -> dict[str, list[Path]]:
    parquet = parquet_files(path)
    text = [path / name for name in visible(path) if Path(name).suffix.lower() in columns.TEXT_SUFFIXES]
    candidates = parquet or [file for file in text if columns.part_of_file(file)]
    if len(text) == 1 and len(subfolders(path)) < 2:  # with class folders in it, the images' folders say more
        candidates = candidates or text
    files: dict[str, list[Path]] = {}
    for file in candidates:
        files.setdefault(columns.part_of_file(file) or "", []).append(file)
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
        shards = [columns.read_table(file, named) for file in group]
        for file, shard in zip(group, shards, strict=True):
            if shard.column_names != shards[0].column_names:
                raise InputError(f"{file} has other columns than {group[0]}; tables of one split must agree")
        tables[part] = pa.concat_tables(shards, promote_options="permissive")
    if list(tables) != [""]:
        if options.split_column:
            names = ", ".join(file.name for group in files.values() for file in group[:1])
            raise InputError(
                f"split_column={options.split_column!r} is for a table in one file; here the files are the splits "
                f"({names}): leave it out"
            )
        return tables
    whole, where = tables[""], str(files[""][0])
    told = options.split_column or next((name for name in whole.column_names if name.lower() == "split"), None)
    column = columns.role(whole, "split", told, where, columns.is_text_type)
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
    label = columns.role(first, "label", options.label_column, where)
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
    named = next(filter(None, (columns.class_label_names(table, label) for table in tables.values())), None)
    texts = {part: columns.to_numpy(table.column(label)) for part, table in tables.items()}
    classes, labels = encode(texts, f"{where}, column {label!r}", named)
    group = columns.role(first, "group", options.group_column, where)
    split = columns.role(first, "split", options.split_column, where, columns.is_text_type)
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
    image = columns.role(first, "image", None, where, columns.is_image_type) if not path_column else None
    if image:
        found = {p: columns.image_sources(table.column(image), folder) for p, table in tables.items()}
        return {part: EncodedImages(*rows) for part, rows in found.items()}, {"image_column": image}
    path = columns.role(first, "path", path_column, where, columns.is_text_type)
    if path:
        return {p: _paths(table.column(path), folder, where) for p, table in tables.items()}, {"path_column": path}
    used = _feature_columns(first, roles, where)
    return {p: _matrix(table, used, f"{where}, {p} part") for p, table in tables.items()}, {
        "feature_columns": used,
        "num_feature_columns": len(used),
    }


def _paths(column: Any, folder: Path, where: str) -> EncodedImages:
    files, names = [], columns.to_numpy(column)
    if missing := [row for row, name in enumerate(names) if name is None or not str(name).strip()]:
        told = name_rows(missing, len(names))
        raise InputError(f"{where}: the path of {told} is missing; fill it in or remove the row")
    for row, name in enumerate(names):
        if "://" in str(name):
            raise InputError(f"{where}: {name} in row {row} is an address; fetch the images and give their paths")
        files.append(columns.pointed_file(folder, str(name)))
    return EncodedImages(files, [shown(file, folder) for file in files])


def _feature_columns(table: Any, roles: Container[str | None], where: str) -> list[str]:
    import pyarrow as pa

    matrix = columns.role(table, "features", None, where, columns.is_list_type)
    if matrix:
        return [matrix]
    rest = [name for name in table.column_names if name not in roles]
    for name in rest:
        kind = table.schema.field(name).type
        if name.lower() in columns.ROLES["label"]:
            raise InputError(
                f"{where}: column {name!r} is called like a label beside the label column, and a model would read the "
                "answer off it; drop it, or, where it is a feature, call it otherwise"
            )
        if name.lower() in ROW_NUMBERS and pa.types.is_integer(kind) and _are_distinct(table.column(name)):
            raise InputError(
                f"{where}: column {name!r} numbers the rows; a model would learn their order from it: drop the column"
            )
        if not columns.is_number_type(kind):
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
    if len(used) == 1 and columns.is_list_type(table.schema.field(used[0]).type):
        rows = table.column(used[0])
        kind = rows.type.value_type
        if not columns.is_number_type(kind):
            raise InputError(f"{where}: column {used[0]!r} holds lists of {kind}; features are lists of numbers")
        values, unlike = lists.to_matrix(rows)
        lists.refuse_unlike(unlike, len(rows), values.shape[1], f"{where}, column {used[0]!r}")
        return to_features(values, where)
    values = np.stack([columns.to_numpy(table.column(name)) for name in used], axis=1)
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
    texts = {part: columns.to_numpy(t.column(column)) for part, t in tables.items() if column in t.column_names}
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
