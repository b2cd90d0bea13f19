"""Decision rules: how scores become a class.

A `Shift` adds a constant to the important classes' scores before the largest wins: it costs the least accuracy. A
`Threshold` predicts an important class where its probability exceeds a value: it has the fewest false alarms at a
recall. `LowestCost` predicts the class with the least expected cost. `Triage` leaves rows between two cut-offs to a
person. None needs training.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from camri.decision.calibrate import Probabilities
from camri.decision.scores import Array, Scores, exact
from camri.errors import InputError, closest
from camri.text import quoted

PERSON = -2  # an outcome: a person decides


@dataclass(frozen=True)
class _Rule:
    """Base of both rules; `values` is {class index: constant or probability}."""

    values: Mapping[int, float]
    name: ClassVar[str]
    allowed: ClassVar[tuple[float, float, str]]
    effect: ClassVar[tuple[str, str]]  # in words: on an important class, and on the others

    def __post_init__(self) -> None:
        low, high, hint = self.allowed
        if wrong := {index: value for index, value in self.values.items() if not low <= value <= high}:
            raise InputError(f"{type(self).__name__}({wrong}) is not allowed; {hint}", argument="values")
        if not self.values:
            raise InputError(f"{type(self).__name__} has no classes; give {{class index: value}}", argument="values")
        object.__setattr__(self, "values", {int(index): float(self.values[index]) for index in sorted(self.values)})

    def excess(self, scores: Scores) -> Array:
        """How far each important class is above its cut-off, 0 or less where it is not: (N, I)."""
        raise NotImplementedError

    def predict(self, scores: ArrayLike | Scores, kind: str = "logits") -> Array:
        """Predict the class of each row: int (N,).

        scores: (N, C), with `kind` "logits" or "probabilities"; or condensed `Scores`, for which −1 stands for the best
        class that is not important.
        """
        important = tuple(self.values)
        if isinstance(scores, Scores):
            if scores.important != important:
                wrong = f"a rule for the classes {important} does not fit scores of the important classes"
                raise InputError(f"{wrong} {scores.important}; give both the same")
            return scores.winner(self.excess(scores))
        table = np.asarray(scores)
        if table.ndim == 2 and not len(table):
            return np.zeros(0, dtype=np.int64)
        rows = exact(table, np.zeros(table.shape[:1], dtype=np.int64), important, kind)
        return self._predict_table(table, rows, kind)

    def _predict_table(self, table: Array, rows: Scores, kind: str) -> Array:
        """Predict the class of each row (N, C), which was checked: int (N,)."""
        assert rows.rest is not None
        return rows.winner(self.excess(rows), rows.rest)

    def to_json(self, classes: Sequence[str] | None = None) -> dict[str, Any]:
        """The rule as plain JSON, with class names if given; `rule_from_json` reads it."""
        names = {index: str(index) if classes is None else classes[index] for index in self.values}
        return {"rule": self.name, "values": {names[index]: value for index, value in self.values.items()}}

    def describe(self, classes: Sequence[str]) -> str:
        """Describe the rule in words, for a model card.

        >>> Shift({1: 1.5}).describe(["limit", "stop"])
        '1.5 is added to the logit of “stop”, then the largest wins'
        >>> Threshold({1: 0.213}).describe(["limit", "stop"])
        '“stop” is predicted where its probability is above 0.213, else the best of the other classes'
        """
        own, rest = self.effect
        parts = [own.format(name=quoted(classes[k]), value=f"{value:.4g}") for k, value in self.values.items()]
        return f"{', '.join(parts)}, {rest}"


@dataclass(frozen=True)
class Shift(_Rule):
    """Add a constant to the logits of important classes; the largest wins. `values`: {class index: constant}.

    For probabilities the constant is added to their logarithm, so they are multiplied by exp(constant).

    >>> Shift({1: 1.5}).predict([[2.0, 1.0], [3.0, 1.0]]).tolist()
    [1, 0]
    """

    name: ClassVar[str] = "shift"
    allowed = (-1e300, 1e300, "give finite numbers")
    effect = ("{value} is added to the logit of {name}", "then the largest wins")

    def excess(self, scores: Scores) -> Array:
        """Each shifted important score minus the best other score: (N, I)."""
        return scores.shifted(list(self.values.values()))

    def _predict_table(self, table: Array, rows: Scores, kind: str) -> Array:
        """As the code for users has it, also where a shifted score is level with another: the first of them wins."""
        moved, own = table.astype(np.float64), list(self.values)
        if kind == "logits":
            moved[:, own] += list(self.values.values())
        else:
            moved[:, own] *= [as_factor(value) for value in self.values.values()]
        return moved.argmax(axis=1)


@dataclass(frozen=True)
class Threshold(_Rule):
    """Predict an important class where its probability is above its value, else the best of the other classes.

    `values`: {class index: probability}. If several pass, the one with the largest ratio of odds to threshold odds
    wins.

    >>> Threshold({1: 0.2}).predict([[0.7, 0.25, 0.05], [0.5, 0.1, 0.4]], kind="probabilities").tolist()
    [1, 0]
    """

    name: ClassVar[str] = "threshold"
    allowed = (0.0, 1.0, "give probabilities, from 0 to 1")
    effect = ("{name} is predicted where its probability is above {value}", "else the best of the other classes")

    def excess(self, scores: Scores) -> Array:
        """Log of the ratio of odds to threshold odds, −inf below the threshold: (N, I)."""
        probability, least = scores.probabilities(), np.array(list(self.values.values()))
        passes = probability > least
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = special.logit(probability) - special.logit(np.maximum(least, np.finfo(np.float64).tiny))
        return np.where(passes, np.maximum(factor, np.finfo(np.float64).tiny), -np.inf)


@dataclass(frozen=True)
class LowestCost:
    """Predict the class with the least expected cost by calibrated probabilities: argmin of p @ matrix.

    matrix: row = true class, column = predicted class. values: {important class index: 0.0}, the classes whose recall
    is reported.

    >>> rule = LowestCost(((0.0, 1.0), (9.0, 0.0)), Probabilities(1.0, (0.0, 0.0)), {1: 0.0})
    >>> rule.predict([[0.85, 0.15], [0.95, 0.05]], kind="probabilities").tolist()
    [1, 0]
    """

    matrix: tuple[tuple[float, ...], ...]
    probabilities: Probabilities
    values: Mapping[int, float]
    name: ClassVar[str] = "lowest_cost"

    def predict(self, scores: ArrayLike, kind: str = "logits") -> Array:
        """Predict the class of each row (N, C), with `kind` "logits" or "probabilities": int (N,)."""
        table = np.asarray(scores, dtype=np.float64)
        if table.ndim != 2 or table.shape[1] != len(self.matrix):
            raise InputError(f"scores {table.shape} do not fit {len(self.matrix)} classes", argument="scores")
        known = table if kind == "logits" else log_of(table)
        return (self.probabilities(known) @ np.array(self.matrix)).argmin(axis=1)

    def to_json(self, classes: Sequence[str] | None = None) -> dict[str, Any]:
        """The rule as plain JSON, with class names if given; `rule_from_json` reads it."""
        names = [str(index) if classes is None else classes[index] for index in self.values]
        fitted = {"slope": self.probabilities.slope, "bias": list(self.probabilities.bias)}
        return {"rule": self.name, "important": names, "matrix": [list(row) for row in self.matrix], **fitted}

    def describe(self, classes: Sequence[str]) -> str:
        """Describe the rule in words."""
        return "the class with the least expected cost is predicted, by calibrated probabilities"


def as_factor(shift: float) -> float:
    """What a probability is multiplied by, with the twelve digits that code has.

    >>> as_factor(math.log(8.021)), as_factor(1e9)
    (8.021, 1e+300)
    """
    return float(f"{math.exp(shift):.12g}") if shift < MOST else 1e300


MOST = 690.0  # a shift beyond this is as good as endless
LEAST = 1e-300  # of a probability: its logarithm is finite


@dataclass(frozen=True)
class Triage:
    """Three ways out by two cut-offs on an important class's probability: clear, to a person, alarm.

    values: {class index: the cut-off below or at which rows are cleared}. alarms: {class index: the cut-off above which
    there is an alarm}. `predict` gives the class for an alarm, PERSON (−2) for a person, else the best other class.

    >>> rule = Triage({1: 0.1}, {1: 0.8})
    >>> rule.predict([[0.95, 0.05], [0.5, 0.5], [0.1, 0.9]], kind="probabilities").tolist()
    [0, -2, 1]
    """

    values: Mapping[int, float]
    alarms: Mapping[int, float]
    name: ClassVar[str] = "triage"

    def __post_init__(self) -> None:
        for name in ("values", "alarms"):
            given = {int(index): float(value) for index, value in getattr(self, name).items()}
            object.__setattr__(self, name, given)
        if len(self.values) != 1 or [*self.values] != [*self.alarms]:
            raise InputError("Triage has one important class; give {class index: probability} twice", "values")
        (low,), (high,) = self.values.values(), self.alarms.values()
        if not 0 <= low <= high <= 1:
            wrong = f"Triage clears up to {low:g} and raises an alarm above {high:g}"
            raise InputError(f"{wrong}; give probabilities, the lower one first", argument="values")

    def predict(self, scores: ArrayLike | Scores, kind: str = "logits") -> Array:
        """The class for an alarm, −2 for a person, else the best other class (of condensed scores −1): int (N,)."""
        (index,), (low,), (high,) = self.values, self.values.values(), self.alarms.values()
        if isinstance(scores, Scores):
            rest: Any = -1
        else:
            table = np.asarray(scores)
            if table.ndim == 2 and not len(table):
                return np.zeros(0, dtype=np.int64)
            scores = exact(table, np.zeros(table.shape[:1], dtype=np.int64), (index,), kind)
            rest = scores.rest
        if scores.important != (index,):
            raise InputError(f"a rule for class {index} does not fit scores of the classes {scores.important}")
        probability = scores.probabilities()[:, 0]
        return np.where(probability > high, index, np.where(probability > low, PERSON, rest))

    def to_json(self, classes: Sequence[str] | None = None) -> dict[str, Any]:
        """The rule as plain JSON, with class names if given; `rule_from_json` reads it."""
        ((index, low),) = self.values.items()
        name = str(index) if classes is None else classes[index]
        return {"rule": self.name, "values": {name: low}, "alarms": {name: self.alarms[index]}}

    def describe(self, classes: Sequence[str]) -> str:
        """Describe the rule in words.

        >>> Triage({1: 0.1}, {1: 0.8}).describe(["benign", "melanoma"])
        'rows with p(“melanoma”) up to 0.1 are cleared, above 0.8 raise an alarm; a person decides the rest'
        """
        ((index, low),) = self.values.items()
        name = f"p({quoted(classes[index])})"
        above = f"above {self.alarms[index]:.4g} raise an alarm"
        return f"rows with {name} up to {low:.4g} are cleared, {above}; a person decides the rest"


def log_of(probabilities: Array) -> Array:
    """The logarithm, finite also where a probability is 0."""
    return np.log(np.maximum(probabilities, LEAST))


DecisionRule = Shift | Threshold
AnyRule = Shift | Threshold | LowestCost | Triage
RULES: dict[str, type[Shift] | type[Threshold]] = {"shift": Shift, "threshold": Threshold}


def argmax_of(important: Sequence[int]) -> Shift:
    """The ordinary decision: the largest score wins."""
    return Shift(dict.fromkeys(important, 0.0))


def is_argmax(rule: AnyRule) -> bool:
    """Whether a rule is the ordinary decision."""
    return isinstance(rule, Shift) and not any(rule.values.values())


def rule_from_json(stored: Mapping[str, Any], classes: Sequence[str] | None = None) -> AnyRule:
    """Read the rule that `to_json` wrote; `classes` if it was written with class names."""

    def place(name: str) -> int:
        if classes is not None and name not in classes:
            raise InputError(f"the rule's {name!r} is not a class; {closest(name, classes)}", argument="rule")
        return int(name) if classes is None else list(classes).index(name)

    kind = stored.get("rule")
    if kind == LowestCost.name:
        fitted = Probabilities(float(stored["slope"]), tuple(map(float, stored["bias"])))
        matrix = tuple(tuple(map(float, row)) for row in stored["matrix"])
        return LowestCost(matrix, fitted, {place(name): 0.0 for name in stored["important"]})
    if kind == Triage.name:
        cuts = [{place(name): float(value) for name, value in stored[part].items()} for part in ("values", "alarms")]
        return Triage(*cuts)
    if kind not in RULES:
        raise InputError(f"rule={kind!r} is unknown; {closest(kind, [*RULES, LowestCost.name, Triage.name])}", "rule")
    return RULES[kind]({place(name): float(value) for name, value in stored["values"].items()})
