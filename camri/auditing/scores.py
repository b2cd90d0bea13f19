"""Read and check a table of scores: CSV, TSV, parquet or npz, with the usual names of columns."""

import heapq
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from camri.data import tables
from camri.data.listing import is_float, is_missing, refuse_missing, to_splits
from camri.data.tables import pa, read_npz
from camri.errors import InputError, closest, one_by_one
from camri.metrics import KINDS, Array
from camri.names import Names, class_names
from camri.text import is_printable, listed, plural

NUM_FOLDS = 10
SPLIT_SEED = 0  # of folds and draws
SUM_SLACK = 0.05  # the sum of probabilities may miss 1 by this, or by what their decimals explain
MOST_BY_CHANCE = 0.2  # of rows of logits whose sum is near 1
UNITS = (1.0, 100.0)  # of probabilities and percentages
FLAGS = {"false": "0", "true": "1"}
LARGEST_SCORE = 1e100  # squares and differences of scores must stay finite


@dataclass(frozen=True, eq=False)
class Checked:
    """Scores that can be audited: values and logits float64 (N, C), labels int64 (N,), important class indices.

    kind: "logits" or "probabilities"; percentages are probabilities. values: the scores, divided by the unit, which is
    100 for percentages and else 1.
    logits: of probabilities the logarithms. largest_factor: the most a probability can be multiplied by in its own
    precision. groups: int64 (N,), indices into group_names; None where rows are independent. num_models: the rows of
    several models follow each other, and all rows of one input are a group.
    """

    values: Array
    logits: Array
    labels: Array
    classes: tuple[str, ...]
    important: tuple[int, ...]
    kind: str
    unit: float
    largest_factor: float
    groups: Array | None = None
    group_names: tuple[str, ...] = ()
    num_models: int = 1

    def groups_of(self, rows: Array) -> Array | None:
        """The groups of some rows; None where rows are independent."""
        return None if self.groups is None else self.groups[rows]

    @property
    def first_column(self) -> int | None:
        """Of two columns of logits, made of one score d: 0 for [0, d], -1 for [-d, d]; None for all others."""
        if self.kind != "logits" or len(self.classes) != 2:
            return None
        first, second = self.values.T
        return next((factor for factor in (0, -1) if np.allclose(first, factor * second)), None)


def check(
    scores: ArrayLike,
    labels: ArrayLike,
    important: str | int | Sequence[str | int],
    classes: Names | None,
    kind: str | None,
    groups: ArrayLike | None = None,
    split: Sequence[str] | None = None,
) -> tuple[Checked, Sequence[str] | None]:
    """Check scores, labels and names against each other; wrong shapes, values and names are refused.

    Scores (S, N, C) of several models become S · N rows; the split is returned for as many.
    """
    if kind is not None and kind not in KINDS:
        raise InputError(f"kind={kind!r} is unknown; {closest(kind, KINDS)}", argument="kind")
    given, labels = to_array(scores), to_array(labels)
    if given.ndim not in (2, 3) or given.shape[-1] < 2 or not given.size or given.dtype.kind not in "fiub":
        wrong = f"scores of shape {given.shape} and type {given.dtype} are not allowed"
        raise InputError(f"{wrong}; give numbers (N, C), or (S, N, C) of several models", "scores")
    num_models = len(given) if given.ndim == 3 else 1
    if num_models > 1:
        groups = np.arange(given.shape[1]) if groups is None else to_array(groups)
        labels, groups = (np.concatenate([one] * num_models) for one in (labels, groups))
        split = None if split is None else [*split] * num_models
    given = given.reshape(-1, given.shape[-1])
    num_classes = given.shape[1]
    names = tuple(map(str, range(num_classes) if classes is None else class_names(classes)))
    if len(names) != num_classes or len(set(names)) < len(names):
        wrong = f"{len(names)} class names {names[:5]} for {num_classes} columns"
        raise InputError(f"{wrong}; give different ones, one each", argument="classes")
    if unprintable := [name for name in names if not is_printable(name)]:
        raise InputError(f"class name {unprintable[0]!a} is not printable text; rename it", argument="classes")
    codes = encode_labels(labels, names)
    by_name = classes is not None and {str(label).strip() for label in set(labels.tolist())} <= set(names)
    if len(codes) != len(given):
        raise InputError(f"{len(given):,} rows of scores and {len(codes):,} labels do not fit; give one label a row")
    is_one = isinstance(important, str) or not np.iterable(important)
    wanted: list[Any] = [important] if is_one else list(important)  # type: ignore[arg-type]
    chosen = sorted({_class_index(name, names) for name in wanted})
    if not chosen or len(chosen) == num_classes:
        wrong = f"{len(chosen)} of {num_classes} classes are important"
        raise InputError(f"{wrong}; name at least one and not all", argument="important")
    values = given.astype(np.float64)
    _refuse(~(np.abs(values) <= LARGEST_SCORE), values, names, "Give finite scores, or remove the rows", "score")
    if kind is None:
        _refuse_extra(values, codes, names, by_name)
    shares, unit = _as_probabilities(values, kind, names)
    group_names, places = ((), None) if groups is None else encode_groups(to_array(groups), len(given))
    checked = Checked(
        values=values if shares is None else shares,
        logits=values if shares is None else _logarithms(shares),
        labels=codes,
        classes=names,
        important=tuple(chosen),
        kind="logits" if shares is None else "probabilities",
        unit=unit,
        largest_factor=1e300 if given.dtype.itemsize > 4 or given.dtype.kind != "f" else 1e38,
        groups=places,
        group_names=group_names,
        num_models=num_models,
    )
    return checked, split


def to_array(values: Any) -> Array:
    """Values as a numpy array; a torch tensor may need a gradient, or be bfloat16, which numpy does not have."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    return np.asarray(values)


def _refuse_extra(values: Array, codes: Array, names: Sequence[str], by_name: bool) -> None:
    """Refuse columns beside probabilities that are no class's, such as a confidence, an entropy or a loss.

    These are columns that no label has and without which every row is probabilities (or percentages), but not with
    them. Labels that are positions may count without such a column: then every column is tried if the last has no
    label.
    """
    num_classes = len(names)
    if any(_sum_to(unit, values).all() for unit in UNITS):
        return
    unlabelled = np.setdiff1d(np.arange(num_classes), codes).tolist()
    is_shifted = not by_name and num_classes - 1 in unlabelled
    for extra in [*([k] for k in (range(num_classes) if is_shifted else unlabelled)), unlabelled]:
        if num_classes - len(extra) < 2 or _unit_of(np.delete(values[:100], extra, axis=1)) is None:
            continue
        rest = np.delete(values, extra, axis=1)
        if (unit := _unit_of(rest)) is not None and np.ptp(rest, axis=0).any():
            are, them = ("is no class", "it") if len(extra) == 1 else ("are no classes", "them")
            shown = ", ".join(repr(names[k]) for k in extra)
            raise InputError(
                f"column{'s' * (len(extra) > 1)} {shown} {are}: without {them} every row sums to {unit:g}; remove "
                f"{them}, or add --logits (kind='logits') if every column has the scores of a class",
                argument="scores",
            )


def _unit_of(values: Array) -> float | None:
    """1 if every row is probabilities, 100 if percentages; None for others. Coarse rounding is no excuse."""
    if values.min() < 0:
        return None
    sums = values.sum(axis=1)
    return next((unit for unit in UNITS if (np.abs(sums / unit - 1) < SUM_SLACK).all()), None)


def _sum_to(unit: float, values: Array) -> Array:
    """Whether the numbers of each row sum to the unit, as far as their decimals tell: bool (N,)."""
    return np.abs(values.sum(axis=1) / unit - 1) < _slack(values / unit)


def _slack(shares: Array) -> float:
    """How far the sum of a row's probabilities (N, C) may be from 1, by their decimals."""
    decimals = num_decimals(shares)
    return max(SUM_SLACK, 0.501 * shares.shape[1] * 10.0**-decimals if decimals else 0.0)


def _as_probabilities(values: Array, kind: str | None, names: Sequence[str]) -> tuple[Array | None, float]:
    """The scores as probabilities, None where they are logits, and the unit that they were divided by.

    They are probabilities (or percentages) if more than a few rows sum to 1 (or 100). Then all rows must, and none may
    hold a negative number. Otherwise they are logits, of which a few sum to 1 by chance.
    """
    if kind == "logits":
        return None, 1.0
    remedy = "Probabilities lie between 0 and 1 and sum to 1; for raw scores add --logits (kind='logits')"
    for unit in UNITS:
        shares = values / unit
        total = shares.sum(axis=1)
        fits = _sum_to(unit, values)
        if fits.mean() > MOST_BY_CHANCE or (kind is not None and unit == 1):
            _refuse((shares < 0) | (shares > 1), values, names, remedy)
            if kind is None and not fits.all():
                row = int(np.flatnonzero(~fits)[0])
                raise InputError(f"row {row}: the probabilities sum to {total[row]:g}. {remedy}", argument="scores")
            return shares, unit
    return None, 1.0


def num_decimals(values: Array) -> int | None:
    """How many decimals the values are rounded to; None where there are more than eight.

    >>> num_decimals(np.array([0.25, 0.5])), num_decimals(np.array([1 / 3]))
    (2, None)
    """
    some = values[:10_000]
    return next((num for num in range(9) if np.allclose(some, some.round(num), rtol=0, atol=1e-12)), None)


def _refuse(is_wrong: Array, values: Array, names: Sequence[str], remedy: str, what: str = "p") -> None:
    """Refuse the table if any score (N, C) is wrong; name the first."""
    if is_wrong.any():
        row, column = np.argwhere(is_wrong)[0].tolist()
        num_rows = int(is_wrong.any(axis=1).sum())
        many = "" if num_rows == 1 else f" ({num_rows:,} of {len(values):,} rows are like this)"
        shown = f"{what}({names[column]}) = {values[row, column]:g}"
        raise InputError(f"row {row}: {shown}{many}. {remedy}", argument="scores")


def _logarithms(shares: Array) -> Array:
    """log p; a probability of 0 counts as half the smallest one in the table, for calibration and the best other."""
    least = max(shares[shares > 0].min() / 2, np.finfo(np.float64).smallest_subnormal)
    return np.log(np.maximum(shares, least))


def encode_groups(groups: Array, num: int) -> tuple[tuple[str, ...], Array]:
    """The groups' names as they first appear, and int64 (N,) indices into them; a row without one is refused.

    >>> encode_groups(np.array(["eve", "adam", "eve"]), 3)
    (('eve', 'adam'), array([0, 1, 0]))
    """
    if groups.shape != (num,):
        raise InputError(f"{num:,} rows and groups of shape {groups.shape} do not fit; give one group a row")
    texts = _texts(groups, "group", "fill it in, with a name of its own where the row stands alone,")
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return tuple(places), np.array([places[text] for text in texts], dtype=np.int64)


def encode_labels(labels: Array, classes: Sequence[str]) -> Array:
    """int64 class indices of labels that are names, or else indices into the classes.

    >>> encode_labels(np.array(["b", "a"]), ["a", "b"]).tolist(), encode_labels(np.array([1, 0]), ["a", "b"]).tolist()
    ([1, 0], [1, 0])
    """
    if labels.ndim != 1:
        raise InputError(f"labels of shape {labels.shape} are not allowed; give one class a row", argument="labels")
    texts = _texts(labels, "label")
    if (codes := _codes(texts, classes)) is None:
        unknown = _unknown(texts, classes)
        raise InputError(f"label {unknown!r} is not a class; {closest(unknown, classes)}, or numbers from 0")
    return codes


def _codes(texts: Sequence[str], classes: Sequence[str]) -> Array | None:
    """Class indices of labels that are all names or all indices, however written ("8.00000"); None for others.

    False and True are 0 and 1, unless a class is called so.
    """
    names = {name: place for place, name in enumerate(classes)}
    if all(text in names for text in texts):
        return np.array([names[text] for text in texts], dtype=np.int64)
    if not FLAGS.keys() & {name.lower() for name in names}:
        texts = [FLAGS.get(text.lower(), text) for text in texts]
    if not all(map(is_float, texts)):
        return None
    values = [*map(float, texts)]
    named = {float(name): place for name, place in names.items() if is_float(name)}
    for index in (named if len(named) == len(names) else {}, {float(place): place for place in range(len(classes))}):
        if all(value in index for value in values):
            return np.array([index[value] for value in values], dtype=np.int64)
    return None


def _unknown(texts: Sequence[str], classes: Sequence[str]) -> str:
    """The first label that is neither a name nor a position; where all are one of these, the first that is no name."""
    several = dict.fromkeys(texts)
    strange = (text for text in several if _codes([text], classes) is None)
    return next(strange, None) or next(text for text in several if text not in classes)


def _texts(values: Array, what: str, remedy: str = "fill it in") -> list[str]:
    """Labels or groups as text; a whole number that came as a float ("3.0") is the whole number."""
    plain = values.tolist()
    refuse_missing([*map(is_missing, plain)], f"the {what}", remedy)
    return [str(int(v) if isinstance(v, float) and v.is_integer() else v).strip() for v in plain]


def _class_index(wanted: Any, classes: tuple[str, ...]) -> int:
    if isinstance(wanted, float | np.floating) and str(wanted) not in classes and float(wanted).is_integer():
        wanted = int(wanted)
    if str(wanted) in classes:
        return classes.index(str(wanted))
    if isinstance(wanted, Integral) and 0 <= int(wanted) < len(classes):
        return int(wanted)
    hint = one_by_one(wanted, classes) or closest(wanted, classes)
    raise InputError(f"important={wanted!r} is not a class; {hint}", argument="important")


def tune_and_judge(checked: Checked, split: Sequence[str] | None) -> tuple[list[tuple[Array, Array]], str]:
    """Pairs of rows to tune on and rows to judge, and a description of them."""
    rows = np.arange(len(checked.labels))
    if split is not None:
        if len(split) != len(rows):
            raise InputError(f"{len(rows):,} rows and {len(split):,} split names do not fit; give one a row", "split")
        words = np.array(to_splits(split, "split"))
        _refuse_torn(checked, words)
        if {"val", "test"} <= set(words.tolist()):
            return [(rows[words == "val"], rows[words == "test"])], "the val rows, judged on the test rows"
        rows = rows[words != "train"]
        if not len(rows):
            raise InputError("every row is of the train split; give val or test rows", argument="split")
    fold = draw_folds(checked.labels[rows], checked.groups_of(rows), checked.important)
    pairs = [(rows[fold != number], rows[fold == number]) for number in np.unique(fold).tolist()]
    units = "rows" if checked.groups is None else "groups"
    return pairs, f"the {units} of all folds but one, judged on that one ({len(pairs)}-fold cross-validation)"


def draw_folds(labels: Array, groups: Array | None, important: Sequence[int] = ()) -> Array:
    """A fold for every row, the same on every machine; every class is in every fold, groups stay whole.

    A group belongs to the important class it has most rows of, or else to the class it has most rows of. The largest
    groups come first, each into the fold with the fewest rows of that class. Without groups every row is one.

    >>> draw_folds(np.array([0, 0, 1, 1, 1]), np.array([7, 7, 8, 9, 9])).tolist()
    [0, 0, 2, 1, 1]
    """
    drawn = np.random.default_rng(SPLIT_SEED)
    units = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1].ravel()
    main, own, size = _describe(units, labels, important)
    fold_of_unit = np.full(len(size), -1)
    for index in np.unique(labels).tolist():
        members = drawn.permutation(np.flatnonzero(main == index))
        members = members[np.argsort(-own[members], kind="stable")]
        fold = fold_of_unit[units]
        here = np.bincount(fold[(fold >= 0) & (labels == index)], minlength=NUM_FOLDS)
        every = np.bincount(fold[fold >= 0], minlength=NUM_FOLDS)
        fullness = list(zip(here.tolist(), every.tolist(), range(NUM_FOLDS), strict=True))
        heapq.heapify(fullness)
        for unit, rows, all_rows in zip(members.tolist(), own[members].tolist(), size[members].tolist(), strict=True):
            least, in_all, number = fullness[0]
            fold_of_unit[unit] = number
            heapq.heapreplace(fullness, (least + rows, in_all + all_rows, number))
    return fold_of_unit[units]


def _describe(units: Array, labels: Array, important: Sequence[int]) -> tuple[Array, Array, Array]:
    """For every unit: the class that it belongs to, how many rows of that class it has, and how many in all."""
    pairs, counts = np.unique(units * (labels.max() + 1) + labels, return_counts=True)
    unit, label = np.divmod(pairs, labels.max() + 1)
    best_last = np.lexsort((-label, counts, np.isin(label, important), unit))
    size = np.bincount(units)
    main, own = np.zeros_like(size), np.zeros_like(size)
    main[unit[best_last]], own[unit[best_last]] = label[best_last], counts[best_last]
    return main, own, size


def _refuse_torn(checked: Checked, words: Array) -> None:
    """Refuse a group in two splits: it would be judged by what it tuned or what the model was trained on."""
    if checked.groups is None:
        return
    first: dict[int, str] = {}
    for group, word in zip(checked.groups.tolist(), words.tolist(), strict=True):
        if first.setdefault(group, word) != word:
            wrong = f"group {checked.group_names[group]!r} has rows in {first[group]} and in {word}"
            raise InputError(f"{wrong}; split by group, or remove its rows from one of them", argument="split")


SCORES = ("scores", "logits", "probabilities", "probs", "predictions")
LABELS = ("labels", "label", "y", "y_true", "target", "targets")
NAMES = ("classes", "class_names", "names")
SPLITS = ("split", "splits", "part")
GROUPS = ("groups", "group", "track")
# What may stand before a class's name in the name of its column: p:stop (camri predict), proba_stop, score.stop …
PREFIXES = tuple(
    f"{word}{sign}" for word in ("p", "prob", "proba", "probability", "logit", "logits", "score") for sign in ":_.-"
)


@dataclass(frozen=True, eq=False)
class Scored:
    """A table as read: scores (N, C) or (S, N, C), labels (N,), class names, the split and the group of each row."""

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
    """Read a table of scores: a column of labels and one of numbers for each class.

    A class's column has its name, alone or after p:, prob_, proba_, logit_, score_ and the like. If columns have such a
    prefix, other columns are ignored; otherwise every column of numbers is a class's. In an .npz the arrays are called
    scores (or logits, probabilities) and labels, and may be joined by classes, split and groups. A column of whole
    numbers or text called group, groups or track has the groups, unless group_column names another.
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
        columns = listed(table.column_names)
        raise InputError(f"{file} has no label column among {columns}; name it", argument="label_column")
    labels = tables.to_numpy(table.column(label))
    part = tables.role(table, "split", split_column, str(file), tables.is_text_type)
    split = None if part is None else tuple(to_splits(table.column(part).to_pylist(), f"{file}, column {part!r}"))
    # A column of other numbers called track is a class's.
    grouped = tables.role(
        table, "group", group_column, str(file), lambda kind: tables.is_text_type(kind) or pa.types.is_integer(kind)
    )
    groups = None if grouped is None else tables.to_numpy(table.column(grouped))
    rest = [name for name in table.column_names if name not in (label, part, grouped) and not _is_index(table, name)]
    matrix = [name for name in rest if tables.is_list_type(table.schema.field(name).type) and name.lower() in SCORES]
    if matrix:
        column, where = table.column(matrix[0]), f"{file}, column {matrix[0]!r}"
        if not tables.is_number_type(column.type.value_type):
            raise InputError(f"{where} holds lists of {column.type.value_type}; scores are lists of numbers")
        scores, unlike = tables.to_matrix(column)
        tables.refuse_unlike(unlike, len(column), scores.shape[1], where)
        found = tables.class_label_names(table, label)
        return Scored(scores.astype(np.float64), labels, _names(found, scores.shape[1], str(file)), split, groups)
    used, classes = _class_columns(table, rest, labels, str(file))
    scores = np.stack([tables.to_numpy(table.column(name)).astype(np.float64) for name in used], axis=1)
    return Scored(scores, labels, classes, split, groups)


def _is_index(table: Any, name: str) -> bool:
    """Whether a column is the index that pandas writes: whole numbers without a name."""
    return name.lower() in ("", "unnamed: 0", "__index_level_0__") and pa.types.is_integer(table.column(name).type)


def _class_columns(table: Any, rest: Sequence[str], labels: Array, where: str) -> tuple[list[str], tuple[str, ...]]:
    """The columns that hold scores, and the classes they are of."""
    kinds = {name: table.schema.field(name).type for name in rest}
    numbers = [name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_floating(kind)]
    texts = _texts(labels, "label")
    known = {str(label).strip() for label in labels.tolist()} | set(texts)
    if len(numbers) < 2:
        _refuse_text(table, rest, known)
        others = [
            f" ({name!r} holds {kinds[name]}, first {table.column(name)[0]})" for name in rest if name not in numbers
        ]
        raise InputError(
            f"{where} has {plural(len(numbers), 'column')} of numbers beside its labels{''.join(others[:1])}; give one "
            "for each class, named after it; of two classes both, where one has the probability p, 1 − p for the other"
        )
    used = _called(numbers, known)
    classes = tuple(used.values())
    if _codes(texts, classes) is None:
        _refuse_text(table, rest, known)
        unknown = _unknown(texts, classes)
        raise InputError(
            f"{where}: label {unknown!r} is no column; {closest(unknown, classes)}; call each class's column by its "
            "name, alone or as p:NAME, or give labels as numbers from 0"
        )
    if strays := _strays(table, used, known):
        raise InputError(
            f"{where}: column {strays[0]!r} holds whole numbers, and no label is called that, so these are no class's "
            "scores; drop it, or, if it says which rows belong together, name it with group_column= (--group)"
        )
    return list(used), classes


def _refuse_text(table: Any, names: Sequence[str], known: Set[str]) -> None:
    """Refuse a column of text that is called like a class, or holds mostly numbers; name its first text."""
    for name in names:
        if not tables.is_text_type(table.schema.field(name).type):
            continue
        cells = [(row, cell) for row, cell in enumerate(table.column(name).to_pylist()) if not is_missing(cell)]
        odd = [(row, cell) for row, cell in cells if not is_float(cell)]
        ends = {name, *(name[len(prefix) :] for prefix in PREFIXES if name.lower().startswith(prefix))}
        if odd and (ends & known or 2 * len(odd) < len(cells)):
            row, cell = odd[0]
            remedy = "give a number, remove the row, or drop the column if it is no class's"
            if tables.NUMBER_WITH_COMMAS.fullmatch(cell):
                remedy = "save the table with decimal points and plain digits (1234.5)"
            raise InputError(f"row {row}: column {name!r} holds {cell[:30]!r}, which is no number; {remedy}", "scores")


def _called(names: Sequence[str], known: Set[str]) -> dict[str, str]:
    """Column -> class: the columns with a common prefix, if two have one, else all. Classes may be called p_1, p_2."""
    for prefix in PREFIXES:
        marked = [name for name in names if name.lower().startswith(prefix) and len(name) > len(prefix)]
        if len(marked) >= 2 and not known <= set(marked):
            return {name: name[len(prefix) :] for name in marked}
    return {name: name for name in names}


def _strays(table: Any, used: Mapping[str, str], known: Set[str]) -> list[str]:
    """Columns of whole numbers beyond 0 and 1 that no label is called by: identifiers, ages, counts.

    Read as the scores of a class, they would win in every row.
    """
    whole = [name for name in used if pa.types.is_integer(table.schema.field(name).type)]
    if len(whole) == len(used):  # votes, counts of trees
        return []
    ranges = {name: tables.pc.min_max(table.column(name)).as_py() for name in whole if used[name] not in known}
    return [name for name, found in ranges.items() if (found["min"] or 0) < 0 or (found["max"] or 0) > 1]


def _from_arrays(file: Path, *given: str | None) -> Scored:
    """The scores in an .npz; `given` are the names of the arrays of labels, splits and groups, None where usual."""
    arrays = read_npz(file)
    for name in given:
        if name is not None and name not in arrays:
            raise InputError(f"{file} has no array {name!r}; {closest(name, arrays)}")
    scores, names = (_first(arrays, words) for words in (SCORES, NAMES))
    labels, split, groups = (
        _first(arrays, words) if name is None else arrays[name]
        for name, words in zip(given, (LABELS, SPLITS, GROUPS), strict=True)
    )
    if scores is None or labels is None or scores.ndim not in (2, 3):
        shown = ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "nothing"
        raise InputError(f"{file} holds {shown}; call the arrays scores (N, C) or (S, N, C), and labels (N,)")
    found = None if names is None else names.astype(str).tolist()
    words = None if split is None else tuple(to_splits(split.astype(str).tolist(), f"{file}, split"))
    return Scored(scores, labels, _names(found, scores.shape[-1], str(file)), words, groups)


def _first(arrays: dict[str, Array], words: Sequence[str]) -> Array | None:
    by_lower = {name.lower(): array for name, array in arrays.items()}
    return next((by_lower[word] for word in words if word in by_lower), None)


def _names(found: Sequence[str] | None, num: int, where: str) -> tuple[str, ...]:
    if found is not None and len(found) != num:
        raise InputError(f"{where} names {len(found)} classes and has scores of {num}; give one name for each")
    return tuple(map(str, range(num))) if found is None else tuple(found)
