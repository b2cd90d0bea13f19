"""Read labelled scores from arrays, data frames or files: checked, encoded once, and condensed as they come."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from camri.decision.blocks import SUM_SLACK as SUM_SLACK
from camri.decision.blocks import Gathered, Progress, gather, refuse_faults
from camri.decision.blocks import num_decimals as num_decimals
from camri.decision.columns import (
    Frame,
    Picked,
    are_positions,
    coded,
    index_of,
    pick,
    refuse_stray,
    refuse_unnamed,
    to_frame,
)
from camri.decision.columns import to_array as to_array
from camri.decision.files import SCORES, Arrays, ParquetTable, ReadWhole, Source, Tables, TextTable
from camri.decision.folds import NUM_FOLDS as NUM_FOLDS
from camri.decision.folds import SPLIT_SEED as SPLIT_SEED
from camri.decision.folds import draw_folds as draw_folds
from camri.decision.labels import (
    SPLITS,
    Coded,
    Place,
    check_classes,
    encode,
    encode_groups,
    encode_labels,
    encode_split,
    important_places,
    join,
    refuse_missing,
    refuse_torn,
)
from camri.decision.plain import read_plain
from camri.decision.scores import KINDS, Array, Scores
from camri.errors import InputError, closest, require
from camri.names import Names, class_names
from camri.tables import (
    BAD_ARRAYS,
    TEXT_SUFFIXES,
    is_table,
    no_array,
    read_npz,
    read_table,
    refuse_unlike,
    role,
    to_numpy,
)

FILES = "CSV, TSV, parquet, npz or npy"
LABELS = ("labels", "label", "y", "y_true", "target", "targets")
NAMES = ("classes", "class_names", "names")
SPLIT_NAMES = ("split", "splits", "part")
GROUPS = ("groups", "group", "track")


@dataclass(frozen=True, eq=False)
class Rows:
    """Labelled scores of one model, read, checked and condensed.

    scores: condensed in double precision; `important` ascends.
    kind: "logits" or "probabilities"; percentages are probabilities, divided by their `unit` of 100.
    first_column: of two columns of logits that were made of one score d, 0 for [0, d] and −1 for [−d, d]; else None.
    decimals: that probabilities are rounded to; None for more than eight, and for logits.
    table: the log-scores of all classes, float64 (N, C), if they were asked for.
    groups: int32 (N,), indices into group_names; None where rows are independent.
    split: int8 (N,), indices into `SPLITS`; None without a split.
    sites: int32 (N,), indices into site_names: the place of each row, such as the hospital; None without places.
    ids: the name of each row (N,), to join tables by; None without.
    labels_as: the labels of the classes as they came in (C,).
    """

    scores: Scores
    classes: tuple[str, ...]
    kind: str
    unit: float
    first_column: int | None
    decimals: int | None
    table: Array | None
    groups: Array | None
    group_names: tuple[str, ...]
    split: Array | None
    labels_as: Array
    sites: Array | None = None
    site_names: tuple[str, ...] = ()
    ids: Array | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, rows: Array) -> "Rows":
        """Some of the rows."""
        parts = {name: getattr(self, name) for name in ("table", "groups", "split", "sites", "ids")}
        taken: dict[str, Any] = {name: None if part is None else part[rows] for name, part in parts.items()}
        return replace(self, scores=self.scores.take(rows), **taken)


def read(
    scores: Any,
    labels: Any,
    important: Any,
    *,
    classes: Names | None = None,
    kind: str | None = None,
    groups: Any = None,
    split: Any = None,
    per: Any = None,
    keeps_table: bool = False,
) -> Rows:
    """Read scores (N, C) that lie in memory, with a label for each row.

    scores: an array, a tensor, a data frame or a mapping {class: scores}; of two classes also the scores of the second
    alone (N,). Columns with names are matched to the classes by them, rows with an index (pandas) by that.
    labels, groups, split, per: (N,), or the name of a column of the data frame. per: the place of each row.

    >>> rows = read([[0.7, 0.3], [0.2, 0.8]], ["no", "yes"], "yes", classes=["no", "yes"])
    >>> rows.kind, rows.scores.important, rows.scores.labels.tolist(), rows.labels_as.tolist()
    ('probabilities', (1,), [0, 1], ['no', 'yes'])
    """
    _check_kind(kind)
    frame = to_frame(scores)
    given = {"labels": labels, "groups": groups, "split": split, "sites": per}
    index = index_of(scores) if frame is None else frame.index
    index = index_of(labels) if index is None else index
    if frame is not None:
        names = [value for value in given.values() if isinstance(value, str)]
        given = {name: frame.take(value, name) if isinstance(value, str) else value for name, value in given.items()}
        frame = replace(frame, columns=tuple(column for column in frame.columns if column.name not in names))
        num_rows = len(next(iter(frame.arrays.values()))()) if frame.arrays else 0
        if not num_rows:
            raise InputError("scores have no rows; give numbers (N, C)", argument="scores")
    else:
        if isinstance(labels, str):
            raise InputError(f"labels={labels!r} names a column, but scores are no data frame; give labels", "labels")
        scores = _check_shape(to_array(scores))
        num_rows = len(scores)
    columns = {name: coded(value, index, name, num_rows) for name, value in given.items() if value is not None}
    picked = (
        _pick_frame(frame, columns["labels"], classes) if frame else _pick_array(scores, columns["labels"], classes)
    )
    source = Arrays(scores if frame is None else frame, num_rows)
    has_names = classes is not None or picked.columns != tuple(map(str, range(len(picked.classes))))
    return _rows(source, picked, columns, _Settings(important, kind, keeps_table, None), has_names)


class _Settings(NamedTuple):
    """How scores are read."""

    important: Any
    kind: str | None
    keeps_table: bool
    report: Progress | None


def _check_kind(kind: str | None) -> None:
    if kind is not None and kind not in KINDS:
        raise InputError(f"kind={kind!r} is unknown; {closest(kind, KINDS)}", argument="kind")


def _check_shape(scores: Array) -> Array:
    """The scores (N, C), or (N, 1) of one class."""
    wrong = f"scores of shape {scores.shape} and type {scores.dtype} are not allowed"
    if scores.ndim == 3:
        raise InputError(
            f"{wrong}; give those of one model, (N, C). Several models of the same rows are compared by a study",
            "scores",
        )
    if scores.ndim not in (1, 2) or not scores.size or scores.dtype.kind not in "fiub":
        raise InputError(f"{wrong}; give numbers (N, C)", "scores")
    return scores[:, None] if scores.ndim == 1 else scores


def _pick_array(scores: Array, labels: Coded, classes: Names | None) -> Picked:
    """The columns of an array; one alone is the second class's."""
    num = scores.shape[1]
    numbers = tuple(map(str, range(num)))
    if num > 1:
        return Picked(numbers, check_classes(numbers if classes is None else classes, num))
    if classes is not None and len(names := class_names(classes)) != 2:
        wrong = f"scores of one column do not fit {len(names)} classes"
        raise InputError(f"{wrong}; give a column for each, (N, {len(names)})", argument="scores")
    if classes is not None:
        return Picked(numbers, check_classes(classes, 2))
    if len(labels.values) != 2 or any(isinstance(value, str) for value in labels.values):
        raise InputError(
            "scores of one column say nothing of the other classes; give a column for each, (N, C), or of two classes "
            "name both, that of the column last: classes=[OTHER, CLASS]",
            argument="scores",
        )
    own = [str(place) if isinstance(value, bool) else text
           for place, (value, text) in enumerate(sorted(zip(labels.values, labels.texts, strict=True)))]  # fmt: skip
    return Picked(numbers, tuple(own))


def _pick_frame(frame: Frame, labels: Coded, classes: Names | None) -> Picked:
    """The columns of a data frame, in the order of the classes; without names they are positions."""
    numbers = tuple(column.name for column in frame.columns if column.is_number)
    if len(numbers) > 1 and are_positions(numbers):
        own = tuple(map(str, range(len(numbers))))
        return Picked(numbers, check_classes(own if classes is None else classes, len(numbers)))
    picked = pick(frame.columns, labels, Place(), None if classes is None else class_names(classes))
    check_classes(picked.classes, len(picked.classes))
    if classes is None:
        refuse_unnamed(frame.columns, labels, picked, Place())
    return picked


def read_file(
    path: str | Path,
    important: Any,
    *,
    label_column: str | None = None,
    split_column: str | None = None,
    group_column: str | None = None,
    per_column: str | None = None,
    id_column: str | None = None,
    labels: str | Path | None = None,
    kind: str | None = None,
    keeps_table: bool = False,
    on_progress: Progress | None = None,
) -> Rows:
    """Read a file of scores: a column of labels and one of numbers for each class.

    CSV, TSV and parquet, which may be a folder of parts, are read in pieces. A class's column has its name, alone or
    after p:, prob_, proba_, logit_, score_ and the like. In an .npz the arrays are called scores (or logits,
    probabilities) and labels, and may be joined by classes, split and groups. An .npy has scores (N, C) and is mapped
    to memory; `labels` is the file with its labels. A column of whole numbers or text called group, groups or track has
    the groups, unless group_column names another. on_progress: called with rows done, and rows in all.
    """
    _check_kind(kind)
    file = Path(path)
    chosen = {"label": label_column, "split": split_column, "group": group_column, "site": per_column, "id": id_column}
    if not file.is_file() and not file.is_dir():
        raise InputError(f"{file} is not a file; give a table of scores: {FILES}")
    ending = file.suffix.lower()
    if labels is not None and ending != ".npy":
        raise InputError(f"labels={str(labels)!r} is for scores in an .npy; leave it out", argument="labels")
    if ending in (".npz", ".npy") and not file.is_dir():
        return _read_arrays(file, chosen, labels, _Settings(important, kind, keeps_table, on_progress))
    if not file.is_dir() and not is_table(file):
        raise InputError(f"{file} ends in {file.suffix!r}; give a table of scores: {FILES}")
    if ending in TEXT_SUFFIXES and find_spec("pyarrow") is None:
        scores, columns = read_plain(file, chosen)
        given = {name: columns.get(role) for name, role in (("groups", "group"), ("split", "split"), ("per", "site"))}
        found = read(scores, columns["label"], important, kind=kind, keeps_table=keeps_table, **given)
        return found if id_column is None else replace(found, ids=np.array(columns["id"]))
    require("a parquet file", "pyarrow", install="pyarrow")
    settings = _Settings(important, kind, keeps_table, on_progress)
    if file.is_dir() or ending == ".parquet":
        return _read_table(ParquetTable(file, chosen), settings)
    try:
        return _read_table(TextTable(file, chosen), settings)
    except ReadWhole:  # a quote that is not around a value
        return _read_table(TextTable(file, chosen, whole=True), settings)


def _read_table(table: Tables, settings: _Settings) -> Rows:
    """Read a table in files; which columns are classes is settled by all labels, and guessed from the first ones."""
    labels = encode(to_numpy(table.head.column(table.roles["label"])))
    try:
        _pick_table(table, labels)
    except InputError:  # with the labels of all rows it may be another one, or none
        labels = table.labels()
        refuse_missing(labels, "label", table.place)
    for _ in range(2):
        picked = _pick_table(table, labels)
        own = important_places(settings.important, picked.classes)
        gathered = gather(table, picked, own, settings.kind, settings.keeps_table, settings.report)
        labels = join(gathered.roles["label"])
        if (again := _pick_table(table, labels)) == picked or again.columns == picked.columns:
            break
    if table.matrix is not None:
        refuse_unlike(gathered.unlike, gathered.num, table.width, f"{table.where}, column {table.matrix!r}")
    columns = {f"{name}s" if name != "split" else name: join(chunks) for name, chunks in gathered.roles.items()}
    where = f"{table.where}, column {table.roles.get('split')!r}"
    return _finish(table, picked, gathered, columns, True, where)


def _pick_table(table: Tables, labels: Coded) -> Picked:
    if table.matrix is not None:
        classes = table.names or tuple(map(str, range(table.width)))
        return Picked(tuple(map(str, range(table.width))), check_classes(classes, table.width))
    picked = pick(table.columns, labels, table.place)
    check_classes(picked.classes, len(picked.classes))
    refuse_unnamed(table.columns, labels, picked, table.place)
    return picked


def _read_arrays(file: Path, chosen: dict[str, str | None], labels: str | Path | None, settings: _Settings) -> Rows:
    """Read an .npz, or an .npy with the file of its labels."""
    if file.suffix.lower() == ".npy":
        try:
            scores = np.load(file, mmap_mode="r", allow_pickle=False)
        except BAD_ARRAYS as error:
            raise no_array(file, error) from None
        if labels is None:
            raise InputError(f"{file} has scores alone; give a file with their labels", argument="labels")
        found: dict[str, Any] = {"labels": _read_labels(Path(labels), chosen["label"])}
        names = None
    else:
        arrays = read_npz(file)
        for name in chosen.values():
            if name is not None and name not in arrays:
                raise InputError(f"{file} has no array {name!r}; {closest(name, arrays)}")
        usual = {"labels": LABELS, "split": SPLIT_NAMES, "groups": GROUPS, "sites": ()}
        given = dict(zip(usual, (chosen[one] for one in ("label", "split", "group", "site")), strict=True))
        found = {name: arrays[one] if one is not None else _first(arrays, usual[name]) for name, one in given.items()}
        scores, names = _first(arrays, SCORES), _first(arrays, NAMES)
        if scores is None or found["labels"] is None:
            shown = ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "nothing"
            raise InputError(f"{file} holds {shown}; call the arrays scores (N, C), and labels (N,)")
    scores = _check_shape(scores)
    if names is not None and len(names) != max(2, scores.shape[1]):
        wrong = f"{file} names {len(names)} classes and has scores of {scores.shape[1]}"
        raise InputError(f"{wrong}; give one name for each")
    columns = {name: coded(one, None, name, len(scores)) for name, one in found.items() if one is not None}
    picked = _pick_array(scores, columns["labels"], None if names is None else names.astype(str).tolist())
    source = Arrays(scores, len(scores), Place((str(file),)))
    return _rows(source, picked, columns, settings, True, f"{file}, split")


def _first(arrays: dict[str, Array], words: tuple[str, ...]) -> Array | None:
    by_lower = {name.lower(): array for name, array in arrays.items()}
    return next((by_lower[word] for word in words if word in by_lower), None)


def _read_labels(file: Path, column: str | None) -> Array:
    """The labels in a file of their own: an .npy, or a table with a column of labels."""
    if not file.is_file():
        raise InputError(f"labels={str(file)!r} is not a file; give an .npy or a table", argument="labels")
    if file.suffix.lower() == ".npy":
        try:
            return np.load(file, allow_pickle=False)
        except BAD_ARRAYS as error:
            raise no_array(file, error) from None
    if not is_table(file):
        raise InputError(f"labels={str(file)!r} ends in {file.suffix!r}; give an .npy or a table", argument="labels")
    table = read_table(file, {column})
    name = table.column_names[0] if table.num_columns == 1 else role(table, "label", column, str(file))
    if name is None:
        raise InputError(f"{file} has no label column; name it", argument="label_column")
    return to_numpy(table.column(name))


def _rows(
    source: Source,
    picked: Picked,
    columns: dict[str, Coded],
    settings: _Settings,
    has_names: bool,
    where: str = "split",
) -> Rows:
    """Check and condense scores whose labels are encoded already."""
    refuse_missing(columns["labels"], "label", source.place)
    encode_labels(columns["labels"], picked.classes, source.place)
    own = important_places(settings.important, picked.classes)
    gathered = gather(source, picked, own, settings.kind, settings.keeps_table, settings.report)
    return _finish(source, picked, gathered, columns, has_names, where)


def _finish(
    source: Source, picked: Picked, gathered: Gathered, columns: dict[str, Coded], has_names: bool, where: str
) -> Rows:
    """The rows of what was gathered, after the checks that need all of it."""
    labels, labels_as = encode_labels(columns["labels"], picked.classes, source.place)
    if picked.watched:
        is_stray = gathered.whole & ((gathered.lows < 0) | (gathered.highs > 1))
        refuse_stray(picked, columns["labels"], is_stray, source.place)
    is_by_name = has_names and columns["labels"].known <= set(picked.classes)
    refuse_faults(gathered, source, picked, labels, is_by_name)
    groups: Array | None = None
    group_names: tuple[str, ...] = ()
    if "groups" in columns:
        groups, group_names = encode_groups(columns["groups"], source.place)
    split = encode_split(columns["split"], where) if "split" in columns else None
    sites, site_names = encode_groups(columns["sites"], source.place, "place") if "sites" in columns else (None, ())
    ids = None
    if "ids" in columns:
        refuse_missing(columns["ids"], "id", source.place)
        ids = np.array(columns["ids"].texts)[columns["ids"].codes]
    if groups is not None and split is not None:
        refuse_torn(groups, group_names, split)
    lead, rest, spread = (gathered.joined(name) for name in ("lead", "rest", "rest_spread"))
    meaning = gathered.checker.meaning
    scores = Scores(
        labels=labels,
        important=gathered.checker.own,
        lead=lead,
        rest_right=rest == labels,
        rest_spread=spread,
        rest=rest.astype(np.int32),
        probability=gathered.joined("probability"),
    )
    return Rows(
        scores=scores,
        classes=picked.classes,
        kind=meaning.kind,
        unit=meaning.unit,
        first_column=gathered.first_column,
        decimals=meaning.decimals,
        table=gathered.table(),
        groups=groups,
        group_names=group_names,
        split=split,
        labels_as=labels_as,
        sites=sites,
        site_names=site_names,
        ids=ids,
    )


def read_scores(path: str | Path, classes: Sequence[str]) -> Array:
    """Read the scores (N, C) of a file without labels, in the order of the classes."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{file} is not a file; give a table of scores: {FILES}")
    if file.suffix.lower() == ".npy":
        try:
            return np.load(file, allow_pickle=False)
        except BAD_ARRAYS as error:
            raise no_array(file, error) from None
    if not is_table(file):
        raise InputError(f"{file} ends in {file.suffix!r}; give a table of scores: {FILES}")
    table = read_table(file, set())
    frame = to_frame({name: to_numpy(table.column(name)) for name in table.column_names})
    assert frame is not None
    picked = pick(frame.columns, Coded(tuple(classes), np.arange(len(classes))), Place(), tuple(classes))
    return np.column_stack([np.asarray(table.column(name), dtype=np.float64) for name in picked.columns])


def tune_and_judge(rows: Rows) -> tuple[Array | tuple[Array, Array], str]:
    """How rows that tune are kept apart from rows that judge, and a word for it.

    With a split "val, test": the indices of the val rows, which tune, and of the test rows. Otherwise the fold of each
    row, −1 for train rows, which are left out; "rows" or "groups" is what folds are made of.
    """
    labels = rows.scores.labels
    kept = np.arange(len(labels))
    if rows.split is not None:
        val, test = (np.flatnonzero(rows.split == SPLITS.index(name)) for name in ("val", "test"))
        if len(val) and len(test):
            return (val, test), "split"
        kept = np.flatnonzero(rows.split != SPLITS.index("train"))
        if not len(kept):
            raise InputError("every row is of the train split; give val or test rows", argument="split")
    fold = np.full(len(labels), -1)
    groups = None if rows.groups is None else rows.groups[kept]
    fold[kept] = draw_folds(labels[kept], groups, rows.scores.important)
    return fold, "rows" if rows.groups is None else "groups"
