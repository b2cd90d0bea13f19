"""What the user wants of a decision. A goal says which operating points meet it and which of these is better.

No other module has a preference: the order of a goal is the only tie-break there is.
"""

import csv
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from camri.decision.scores import Array
from camri.errors import InputError, closest

if TYPE_CHECKING:
    from camri.decision.tune import Outlook

CONFIDENCE = 0.95
SLACK = 1e-9  # figures are ratios of counts: a smaller difference is rounding


@dataclass(frozen=True)
class MostRecall:
    """The most recall with an accuracy at most `max_accuracy_drop` below that of the present decision."""

    max_accuracy_drop: float = 0.0
    name: ClassVar[str] = "most_recall"
    figure: ClassVar[str] = "recall"  # what a verdict about it is decided by
    rules: ClassVar[tuple[str, ...]] = ("shift",)  # that are tried by default

    def __post_init__(self) -> None:
        drop = as_number(self.max_accuracy_drop, "max_accuracy_drop", "0 to 1, 0.01 for one percentage point")
        if not 0 <= drop < 1:
            raise InputError(
                f"max_accuracy_drop={self.max_accuracy_drop!r} is not allowed; give 0 to 1, 0.01 for one percentage "
                "point",
                argument="max_accuracy_drop",
            )
        object.__setattr__(self, "max_accuracy_drop", drop)

    def allowed(self, outlook: "Outlook") -> Array:
        """The states whose expected accuracy is high enough: bool (K,)."""
        return np.asarray(outlook.accuracy >= outlook.present - self.max_accuracy_drop - SLACK)

    def worth(self, outlook: "Outlook") -> Array:
        """How good each state is: (K,), higher is better."""
        return outlook.curve.mean_recall


@dataclass(frozen=True)
class AtLeast:
    """The fewest false alarms at this recall of every important class, guaranteed for new rows.

    recall: one number, or one for each important class in ascending order of their indices. confidence: of the
    guarantee; None: the recall is guaranteed on average over calibration sets. is_seen: no guarantee, it is the recall
    of these rows alone.
    """

    recall: float | tuple[float, ...]
    confidence: float | None = None
    is_seen: bool = False
    name: ClassVar[str] = "at_least"
    figure: ClassVar[str] = "false_alarms"
    rules: ClassVar[tuple[str, ...]] = ("threshold", "shift")

    def __post_init__(self) -> None:
        recall: Any = self.recall
        several = isinstance(recall, (tuple, list))
        given = [as_number(one, "at_least", "a recall, say 0.95") for one in (recall if several else [recall])]
        if not given or not all(0 < one < 1 or (one == 1 and self.is_seen) for one in given):
            raise InputError(
                f"at_least={self.recall!r} is not allowed; give a recall above 0 and below 1, say 0.95", "at_least"
            )
        object.__setattr__(self, "recall", tuple(given) if several else given[0])
        if self.confidence is not None:
            sure = as_number(self.confidence, "confidence", "0.5 or more and less than 1, say 0.95")
            if not 0.5 <= sure < 1:
                wrong = f"confidence={self.confidence!r} is not allowed"
                raise InputError(f"{wrong}; give 0.5 or more and less than 1, say 0.95", argument="confidence")
            object.__setattr__(self, "confidence", sure)

    def of(self, place: int) -> float:
        """The recall that is asked of the important class at this place."""
        return self.recall[place] if isinstance(self.recall, tuple) else self.recall

    def allowed(self, outlook: "Outlook") -> Array:
        """The states that find enough rows, or surely enough of new rows: bool (K,)."""
        if outlook.is_sure is not None:
            return outlook.is_sure
        asked = np.array([self.of(place) for place in range(len(outlook.curve.num))])
        return np.asarray((outlook.curve.recall >= asked - SLACK).all(axis=1))

    def worth(self, outlook: "Outlook") -> Array:
        """How good each state is: (K,), higher is better."""
        return np.asarray(-outlook.curve.alarms / outlook.curve.total)


@dataclass(frozen=True)
class Within:
    """The most recall within a budget of alarms, which new rows keep with a confidence.

    alarms: the share of rows that may be predicted as important, right or wrong. false_alarms: the share of rows that
    may be of no important class and predicted as one. Give one of them.
    """

    alarms: float | None = None
    false_alarms: float | None = None
    confidence: float = CONFIDENCE
    name: ClassVar[str] = "within"
    figure: ClassVar[str] = "recall"
    rules: ClassVar[tuple[str, ...]] = ("threshold", "shift")

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if name != "confidence" and value is not None}
        if len(given) != 1:
            raise InputError("give a budget of alarms or of false alarms, one of them", argument="max_false_alarms")
        argument = "alarms_per_day" if self.alarms is not None else "max_false_alarms"
        if not 0 < self.share < 1:
            wrong = f"{argument}={self.share:.4g} of the rows is not allowed"
            raise InputError(f"{wrong}; give a share above 0 and below 1 of all rows", argument=argument)
        if not 0.5 <= as_number(self.confidence, "confidence", "0.5 or more and less than 1, say 0.95") < 1:
            wrong = f"confidence={self.confidence!r} is not allowed"
            raise InputError(f"{wrong}; give 0.5 or more and less than 1, say 0.95", argument="confidence")

    @property
    def share(self) -> float:
        """The share of all rows that the budget allows."""
        found = self.alarms if self.alarms is not None else self.false_alarms
        assert found is not None
        return found

    def allowed(self, outlook: "Outlook") -> Array:
        """The states that surely keep the budget on new rows: bool (K,)."""
        assert outlook.is_sure is not None
        return outlook.is_sure

    def worth(self, outlook: "Outlook") -> Array:
        """How good each state is: (K,), higher is better; of equal recalls the fewest alarms."""
        return np.asarray(outlook.curve.mean_recall - 1e-6 * outlook.curve.alarms / outlook.curve.total)


@dataclass(frozen=True)
class FewestToPerson:
    """Three ways out, the fewest rows to a person: at most this share of the class is cleared, guaranteed for new rows.

    alarm_precision: at least this share of alarms is right, by a lower bound of that confidence; None for no alarms.
    """

    clear_misses: float
    alarm_precision: float | None = None
    confidence: float = CONFIDENCE
    name: ClassVar[str] = "fewest_to_person"
    figure: ClassVar[str] = "false_alarms"
    rules: ClassVar[tuple[str, ...]] = ("triage",)

    def __post_init__(self) -> None:
        for name, hint in (
            ("clear_misses", "a share of the class, say 0.01"),
            ("alarm_precision", "a share of the alarms, say 0.9"),
            ("confidence", "0.5 or more and less than 1, say 0.95"),
        ):
            given = getattr(self, name)
            if given is None and name == "alarm_precision":
                continue
            option = "clear_misses_at_most" if name == "clear_misses" else name
            value = as_number(given, option, hint)
            if not 0 < value < 1 or (name == "confidence" and value < 0.5):
                raise InputError(f"{option}={given!r} is not allowed; give {hint}", argument=option)
            object.__setattr__(self, name, value)

    @property
    def found(self) -> AtLeast:
        """The recall that is guaranteed: of rows that are not cleared."""
        return AtLeast(1 - self.clear_misses, self.confidence)

    def allowed(self, outlook: "Outlook") -> Array:
        """The states that surely clear few enough rows of the class: bool (K,)."""
        return self.found.allowed(outlook)

    def worth(self, outlook: "Outlook") -> Array:
        """How good each state is: (K,), higher is better."""
        return self.found.worth(outlook)


@dataclass(frozen=True, eq=False)
class LeastCost:
    """The least mean cost; matrix (C, C): row = true class, column = predicted class."""

    matrix: ArrayLike
    name: ClassVar[str] = "least_cost"
    figure: ClassVar[str] = "cost"
    rules: ClassVar[tuple[str, ...]] = ("shift", "threshold", "lowest_cost")

    def __post_init__(self) -> None:
        matrix = _numbers(self.matrix)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
            wrong = f"cost_matrix of shape {matrix.shape} is not allowed"
            raise InputError(f"{wrong}; give finite numbers (C, C): true class, predicted class", "cost_matrix")
        object.__setattr__(self, "matrix", matrix)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeastCost) and np.array_equal(np.asarray(self.matrix), np.asarray(other.matrix))

    __hash__ = None  # type: ignore[assignment]

    def allowed(self, outlook: "Outlook") -> Array:
        """Every state: bool (K,)."""
        return np.ones(len(outlook.curve.states), dtype=bool)

    def worth(self, outlook: "Outlook") -> Array:
        """How good each state is: (K,), higher is better."""
        assert outlook.cost is not None
        return -outlook.cost


Goal = MostRecall | AtLeast | Within | FewestToPerson | LeastCost
Costs = str | PathLike[str] | Sequence[Sequence[float]] | Any


def parse_goal(
    classes: Sequence[str],
    max_accuracy_drop: float | None = None,
    at_least: float | Mapping[str, float] | None = None,
    cost_matrix: Costs | None = None,
    confidence: float | None = CONFIDENCE,
    important: Sequence[str] = (),
    max_false_alarms: float | None = None,
    max_alarms: float | None = None,
) -> Goal:
    """Make the goal from at most one of its options.

    important: names of the important classes in the order of their indices, for a recall of each: {class: recall}.
    max_alarms, max_false_alarms: shares of all rows.

    >>> parse_goal(["a", "b"], at_least=0.95)
    AtLeast(recall=0.95, confidence=0.95, is_seen=False)
    >>> parse_goal(["a", "b", "c"], at_least={"c": 0.9, "a": 0.99}, important=["a", "c"]).recall
    (0.99, 0.9)
    """
    asked = {
        "max_accuracy_drop": max_accuracy_drop or None, "at_least": at_least, "cost_matrix": cost_matrix,
        "max_false_alarms": max_false_alarms, "alarms_per_day": max_alarms,
    }  # fmt: skip
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"give one goal, not {' and '.join(given)}", argument=given[1])
    if isinstance(at_least, Mapping):
        return AtLeast(_for_each(at_least, important or classes), confidence)
    if isinstance(at_least, (tuple, list)) and len(at_least) != len(important or classes):
        wrong = f"at_least={at_least!r} has {len(at_least)} recalls for {len(important or classes)} important classes"
        raise InputError(f"{wrong}; give one number, or {{class: recall}}", argument="at_least")
    if at_least is not None:
        return AtLeast(at_least, confidence)
    if confidence is None and (max_false_alarms is not None or max_alarms is not None):
        wrong = "a budget is kept with a confidence, not on average"
        raise InputError(f"{wrong}; give confidence, or at_least", argument="confidence")
    if max_false_alarms is not None:
        share = as_number(max_false_alarms, "max_false_alarms", "a share of all rows, say 0.001")
        return Within(false_alarms=share, confidence=confidence or CONFIDENCE)
    if max_alarms is not None:
        return Within(alarms=max_alarms, confidence=confidence or CONFIDENCE)
    if cost_matrix is not None:
        return LeastCost(read_costs(cost_matrix, classes))
    return MostRecall(max_accuracy_drop or 0.0)


def goal_to_json(goal: Goal) -> dict[str, Any]:
    """The goal as plain JSON; `goal_from_json` reads it.

    >>> goal_from_json(goal_to_json(AtLeast(0.9, 0.95)))
    AtLeast(recall=0.9, confidence=0.95, is_seen=False)
    """
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(goal).items()}
    if isinstance(goal, LeastCost):
        values = {"matrix": np.asarray(goal.matrix).tolist()}
    return {"goal": goal.name, **values}


def goal_from_json(stored: Mapping[str, Any]) -> Goal:
    """Read the goal that `goal_to_json` wrote."""
    known = (MostRecall, AtLeast, Within, FewestToPerson, LeastCost)
    kinds: dict[str, Any] = {kind.name: kind for kind in known}
    if stored.get("goal") not in kinds:
        raise InputError(f"goal={stored.get('goal')!r} is unknown; {closest(stored.get('goal'), kinds)}", "goal")
    values: dict[str, Any] = {
        name: tuple(value) if name == "recall" and isinstance(value, list) else value for name, value in stored.items()
    }
    found: Goal = kinds[values.pop("goal")](**values)
    return found


def as_number(value: Any, argument: str, remedy: str) -> float:
    """The value as a float; "0.95" and "95%" are read too.

    >>> as_number("95%", "at_least", "a recall"), as_number(0.5, "at_least", "a recall")
    (0.95, 0.5)
    """
    number = math.nan
    if isinstance(value, (Real, np.generic)) and not isinstance(value, bool):
        number = float(value)
    elif isinstance(value, str):
        text, unit = (value.strip()[:-1], 100.0) if value.strip().endswith("%") else (value, 1.0)
        try:
            number = float(text) / unit
        except ValueError:
            number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{argument}={value!r} is not a number; give {remedy}", argument=argument)
    return number


def _for_each(recalls: Mapping[str, float], important: Sequence[str]) -> tuple[float, ...]:
    given = {str(name): value for name, value in recalls.items()}
    for name in given:
        if name not in important:
            raise InputError(f"at_least names {name!r}, which is not important; {closest(name, important)}", "at_least")
    if missing := [name for name in important if name not in given]:
        raise InputError(f"at_least has no recall for {missing[0]!r}; give one for each important class", "at_least")
    return tuple(given[name] for name in important)


def read_costs(source: Costs, classes: Sequence[str]) -> Array:
    """Read costs (C, C), row = true class, column = predicted class, from numbers, a data frame or a CSV file.

    A data frame's rows and columns are found by their names. The first line of a file names the predicted classes; each
    other line begins with the true class.
    """
    table: Any = source
    shown = source if isinstance(source, (str, PathLike)) else type(source).__name__

    def refuse(problem: str) -> InputError:
        return InputError(f"cost_matrix={shown}: {problem}", argument="cost_matrix")

    if isinstance(source, (str, PathLike)):
        true, predicted, rows = _read_cost_file(source, refuse)
        table = _by_name(true, predicted, np.array(rows, dtype=np.float64), classes, refuse)
    elif hasattr(table, "columns") and hasattr(table, "index"):  # pandas; other data frames have no row names
        true, predicted = [str(name) for name in table.index], [str(name) for name in table.columns]
        table = _by_name(true, predicted, _numbers(table), classes, refuse)
    elif isinstance(table, Mapping):
        table = _from_mapping(table, classes, refuse)
    elif hasattr(table, "columns"):
        raise refuse("its rows have no names; give a pandas data frame with the true classes as index, or an array")
    found, num = _numbers(table), len(classes)
    if found.shape != (num, num) or not np.isfinite(found).all():
        raise InputError(
            f"cost_matrix has shape {found.shape}; give {num} × {num} finite numbers, row = true class",
            argument="cost_matrix",
        )
    return found


def _from_mapping(source: Mapping[Any, Any], classes: Sequence[str], refuse: Any) -> list[list[Any]]:
    """Rows in the order of the classes, of {true: {predicted: cost}}."""
    table = {str(true): {str(one): value for one, value in row.items()} for true, row in _rows_of(source, refuse)}
    for row in table.values():
        if (problem := _misnamed("column", list(row), classes)) is not None:
            raise refuse(problem)
    if (problem := _misnamed("row", list(table), classes)) is not None:
        raise refuse(problem)
    return [[table[name][other] for other in classes] for name in classes]


def _rows_of(source: Mapping[Any, Any], refuse: Any) -> list[tuple[Any, Mapping[Any, Any]]]:
    if not all(isinstance(row, Mapping) for row in source.values()):
        raise refuse("a mapping has a mapping for each true class: {true: {predicted: cost}}")
    return list(source.items())


def _read_cost_file(source: str | PathLike[str], refuse: Any) -> tuple[list[str], list[str], list[list[float]]]:
    try:
        with open(source, newline="", encoding="utf-8-sig") as file:
            (_, *predicted), *lines = [line for line in csv.reader(file) if line]
        rows = [[*map(float, line[1:])] for line in lines]
        if any(len(row) != len(predicted) for row in rows):
            raise ValueError("lines differ in length")
    except OSError as error:
        raise refuse(f"it cannot be read ({error.strerror})") from None
    except (ValueError, IndexError, csv.Error) as error:
        raise refuse(f"it is no table of costs ({error}); give a CSV file with class names in row and column") from None
    return [line[0] for line in lines], predicted, rows


def _by_name(true: list[str], predicted: list[str], rows: Array, classes: Sequence[str], refuse: Any) -> Array:
    """The rows and columns of a table in the order of the classes."""
    if set(true) == set(predicted) == set(map(str, range(len(classes)))) and true == predicted:
        return rows  # it has no names: numbers from 0
    for what, names in (("row", true), ("column", predicted)):
        if (problem := _misnamed(what, names, classes)) is not None:
            raise refuse(problem)
    return rows[np.ix_([true.index(name) for name in classes], [predicted.index(name) for name in classes])]


def _numbers(source: Any) -> Array:
    try:
        return np.asarray(source, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("cost_matrix holds what are no numbers; give C × C finite numbers", "cost_matrix") from None


def _misnamed(what: str, names: Sequence[str], classes: Sequence[str]) -> str | None:
    """What is wrong with the names of a cost matrix's rows or columns; None if each class has one.

    >>> _misnamed("row", ["stop", "go", "stop"], ["go", "stop"])
    "class 'stop' has 2 rows; keep one"
    """
    counts, known = Counter(names), set(classes)
    if twice := [name for name in counts if counts[name] > 1 and name in known]:
        return f"class {twice[0]!r} has {counts[twice[0]]:,} {what}s; keep one"
    if unknown := [name for name in counts if name not in known]:
        return f"{what} {unknown[0]!r} is no class; {closest(unknown[0], classes)}; rename or remove it"
    if missing := [name for name in classes if name not in counts]:
        return f"class {missing[0]!r} is missing: it has no {what}; add one, named like it"
    return None
