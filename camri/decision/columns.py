"""Which column holds the scores of which class: columns are matched by their names, or refused."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from camri.decision.labels import Coded, Place, class_codes, encode, unknown_label
from camri.decision.scores import Array
from camri.errors import InputError, closest
from camri.names import Names
from camri.tables import NUMBER_WITH_COMMAS, is_float, is_missing, named_twice
from camri.text import listed, plural

# What may stand before a class's name in the name of its column: p:stop (camri predict), proba_stop, score.stop …
PREFIXES = tuple(
    f"{word}{sign}" for word in ("p", "prob", "proba", "probability", "logit", "logits", "score") for sign in ":_.-"
)


@dataclass(frozen=True)
class Column:
    """A column that may hold scores. kind: "whole", "number", "text" or another type's name; cells: its first ones."""

    name: str
    kind: str
    cells: Callable[[], Sequence[Any]]

    @property
    def is_number(self) -> bool:
        return self.kind in ("whole", "number")


@dataclass(frozen=True)
class Picked:
    """The columns of scores in the order of the classes. alone: one column, of the second of two classes.

    watched: columns of whole numbers that may be no class's.
    """

    columns: tuple[str, ...]
    classes: tuple[str, ...]
    watched: tuple[int, ...] = ()

    @property
    def alone(self) -> bool:
        return len(self.columns) < len(self.classes)


def pick(columns: Sequence[Column], labels: Coded, place: Place, classes: Names | None = None) -> Picked:
    """The columns that hold scores, and the classes they are of, in the order of `classes` if these are given.

    A class's column has its name, alone or after p:, prob_, proba_, logit_, score_ and the like. If columns have such a
    prefix, other columns are ignored; otherwise every column of numbers is a class's. One column is enough for the
    second of two classes.
    """
    numbers = [column.name for column in columns if column.is_number]
    known = labels.known if classes is None else {str(name) for name in classes}
    used = _called(numbers, known)
    if classes is not None:
        return _aligned(used, tuple(str(name) for name in classes), columns)
    if len(numbers) < 2:
        _refuse_text(columns, known, place)
    if len(used) == 1 and len(labels.texts) == 2 and next(iter(used.values())) in labels.texts:
        (name,), (own,) = used, used.values()
        other = next(text for text in labels.texts if text != own)
        return Picked((name,), (other, own))
    if len(numbers) < 2:
        others = [
            f" ({column.name!r} holds {_kind_of(column)}, first {next(iter(column.cells()), None)})"
            for column in columns
            if not column.is_number
        ]
        where = place.files[0] if place.files else "the data frame"
        raise InputError(
            f"{where} has {plural(len(numbers), 'column')} of numbers beside its labels{''.join(others[:1])}; give one "
            "for each class, named after it; of two classes both, where one has the probability p, 1 − p for the other",
            argument="scores",
        )
    kinds = {column.name: column.kind for column in columns}
    whole = [name for name in used if kinds[name] == "whole"]
    places = [place for place, name in enumerate(used) if name in whole and used[name] not in known]
    return Picked(tuple(used), tuple(used.values()), tuple(places) if len(whole) < len(used) else ())


def _kind_of(column: Column) -> str:
    return "string" if column.kind == "text" else column.kind


def _aligned(used: Mapping[str, str], classes: tuple[str, ...], columns: Sequence[Column]) -> Picked:
    """The columns in the order of the classes; refused if they are not the columns of these classes."""
    places = {name: column for column, name in used.items()}
    if len(classes) == 2 and len(used) == 1 and set(places) <= set(classes):
        (own,) = places
        if own == classes[1]:
            return Picked((places[own],), classes)
    if set(places) != set(classes) or len(places) < len(used):
        shown = listed([column.name for column in columns])
        raise InputError(
            f"the columns {shown} are not those of the classes {listed(list(classes))}; name each column after its "
            "class, or give an array whose columns are in the order of classes",
            argument="classes",
        )
    return Picked(tuple(places[name] for name in classes), classes)


def _called(names: Sequence[str], known: Set[str]) -> dict[str, str]:
    """Column -> class: the columns with a common prefix, if two have one, else all. Classes may be called p_1, p_2."""
    fewest = 2 if len(names) > 1 else 1
    for prefix in PREFIXES:
        marked = [name for name in names if name.lower().startswith(prefix) and len(name) > len(prefix)]
        if len(marked) >= fewest and not known <= set(marked):
            return {name: name[len(prefix) :] for name in marked}
    return {name: name for name in names}


def refuse_unnamed(columns: Sequence[Column], labels: Coded, picked: Picked, place: Place) -> None:
    """Refuse labels that no column is called by."""
    texts = labels.texts
    if class_codes(texts, picked.classes) is None:
        _refuse_text(columns, labels.known, place)
        unknown = unknown_label(texts, picked.classes)
        raise place.error(
            f"label {unknown!r} is no column; {closest(unknown, picked.classes)}; call each class's column by its "
            "name, alone or as p:NAME, or give labels as numbers from 0",
            "scores",
        )


def refuse_stray(picked: Picked, labels: Coded, is_stray: Array, place: Place) -> None:
    """Refuse watched columns that no label is called by: identifiers, ages, counts.

    is_stray: whether their numbers are whole and go beyond 0 and 1. Read as scores, they would win in every row.
    """
    known = labels.known
    for number, is_one in zip(picked.watched, is_stray.tolist(), strict=True):
        if is_one and picked.classes[number] not in known:
            raise place.error(
                f"column {picked.columns[number]!r} holds whole numbers, and no label is called that, so these are no "
                "class's scores; drop it, or, if it says which rows belong together, name it with group_column= "
                "(--group)",
                "scores",
            )


def _refuse_text(columns: Sequence[Column], known: Set[str], place: Place) -> None:
    """Refuse a column of text that is called like a class, or holds mostly numbers; name its first text."""
    for column in columns:
        if column.kind != "text":
            continue
        name = column.name
        cells = [(row, str(cell)) for row, cell in enumerate(column.cells()) if not is_missing(cell)]
        odd = [(row, cell) for row, cell in cells if not is_float(cell)]
        ends = {name, *(name[len(prefix) :] for prefix in PREFIXES if name.lower().startswith(prefix))}
        if odd and (ends & known or 2 * len(odd) < len(cells)):
            raise no_number(name, odd[0][1], odd[0][0], place)


def no_number(name: str, cell: str, row: int, place: Place) -> InputError:
    """The error for a text in a column of numbers."""
    remedy = "give a number, remove the row, or drop the column if it is no class's"
    if NUMBER_WITH_COMMAS.fullmatch(cell):
        remedy = "save the table with decimal points and plain digits (1234.5)"
    return place.error(f"column {name!r} holds {cell[:30]!r}, which is no number; {remedy}", "scores", row)


@dataclass(frozen=True, eq=False)
class Frame:
    """Named columns of one length: a data frame, or a mapping {class: scores}. index: pandas' labels of the rows."""

    columns: tuple[Column, ...]
    arrays: Mapping[str, Callable[[], Array]]
    index: Any = None

    def take(self, name: str, argument: str) -> Array:
        """The column of a role."""
        if name not in self.arrays:
            raise InputError(f"{argument}={name!r} is no column; {closest(name, self.arrays)}", argument=argument)
        return self.arrays[name]()


def to_frame(scores: Any) -> Frame | None:
    """The columns of a pandas, polars or Arrow table, or of a mapping; None for arrays."""
    if isinstance(scores, Mapping):
        index = next((index_of(part) for part in scores.values() if index_of(part) is not None), None)
        parts = {str(name): align(part, index, f"scores of {name!r}") for name, part in scores.items()}
        if len({part.shape for part in parts.values()}) != 1 or next(iter(parts.values())).ndim != 1:
            shapes = {name: part.shape for name, part in parts.items()}
            raise InputError(f"scores of shapes {shapes} do not fit; give each class one score a row", "scores")
        kinds = {"i": "whole", "u": "whole", "f": "number", "U": "text", "O": "text"}
        columns = [
            Column(name, kinds.get(part.dtype.kind, str(part.dtype)), part.tolist) for name, part in parts.items()
        ]
        return Frame(tuple(columns), {name: lambda part=part: part for name, part in parts.items()}, index)  # type: ignore[misc]
    if isinstance(scores, np.ndarray) or not (hasattr(scores, "columns") or hasattr(scores, "column_names")):
        return None
    import narwhals as nw

    names = [str(name) for name in getattr(scores, "column_names", scores.columns)]
    if twice := named_twice(names):
        raise InputError(f"scores have two columns called {twice!r}; rename one", argument="scores")
    try:
        frame = nw.from_native(scores, eager_only=True)
    except TypeError:
        raise InputError(f"scores are a {type(scores).__name__}; give a data frame in memory", "scores") from None
    series: dict[str, Any] = {name: frame.get_column(given) for name, given in zip(names, frame.columns, strict=True)}
    columns = [Column(name, _frame_kind(part), part.to_list) for name, part in series.items()]
    return Frame(tuple(columns), {name: partial(_column, part) for name, part in series.items()}, index_of(scores))


def _frame_kind(part: Any) -> str:
    kind = part.dtype
    if kind.is_integer():
        return "whole"
    if kind.is_numeric():
        return "number"
    is_text = str(kind).startswith(("String", "Categorical", "Enum", "Object"))
    return "text" if is_text else str(kind).lower()


def _column(part: Any) -> Array:
    """A column as an array; missing numbers are nan."""
    import narwhals as nw

    if part.dtype.is_numeric() and (part.null_count() or part.dtype.is_decimal()):
        part = part.cast(nw.Float64)
    found: Array = part.to_numpy()
    return found if found.dtype != object or not part.dtype.is_numeric() else found.astype(np.float64)


def are_positions(names: Sequence[str]) -> bool:
    """Whether names are those that data frames give to columns without one: 0, 1, … or column_0, column_1, …"""
    return any(list(names) == [f"{start}{place}" for place in range(len(names))] for start in ("", "column_"))


def index_of(values: Any) -> Any:
    """The labels of the rows of a pandas-like series or data frame; None for others."""
    index = getattr(values, "index", None)
    return None if index is None or callable(index) or not hasattr(values, "loc") else index


def align(values: Any, index: Any, name: str) -> Array:
    """Values as an array; those of a series are put in the order of the scores' index if theirs is another one."""
    own, array = index_of(values), to_array(values)
    if own is None or index is None or len(own) != len(index) or own.equals(index):
        return array
    if own.is_unique and index.is_unique and (places := own.get_indexer(index)).min() >= 0:
        if any(type(one).__name__ == "RangeIndex" for one in (own, index)):
            raise InputError(  # pandas' own numbering says nothing: scores made of an array have it in any order
                f"the index of {name} has the numbers 0, 1, … in another order than that of the scores; give both the "
                f"same index, or {name}.to_numpy() if the rows are in the same order",
                argument=name,
            )
        return array[places]
    first = f"begins with {own[0]!r} and that of the scores with {index[0]!r}"
    if own[0] == index[0]:
        first = "has other labels than that of the scores, or has one twice"
    raise InputError(
        f"the index of {name} {first}, so rows cannot be matched; give both the same index, or {name}.to_numpy() if "
        "the rows are in the same order",
        argument=name,
    )


def to_array(values: Any) -> Array:
    """Values as a numpy array; a torch tensor may need a gradient, or be bfloat16, which numpy does not have."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    try:
        return np.asarray(values)
    except ValueError:  # lists of different lengths
        return np.fromiter(values, object, len(values))


def coded(values: Any, index: Any, name: str, num: int) -> Coded:
    """Encode a column given beside the scores; one of another shape is refused."""
    column = align(values, index, name)
    what = {"labels": "label", "groups": "group"}.get(name, name)
    if name == "labels" and column.ndim != 1:
        raise InputError(f"labels of shape {column.shape} are not allowed; give one class a row", argument="labels")
    if column.shape != (num,):
        told = {
            "labels": f"{num:,} rows of scores and {len(column):,} labels do not fit; give one label a row",
            "groups": f"{num:,} rows and groups of shape {column.shape} do not fit; give one group a row",
        }
        others = f"{num:,} rows and {column.size:,} split names do not fit; give one a row"
        raise InputError(told.get(name, others), argument=name)
    return encode(column, what, name)
