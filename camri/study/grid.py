"""The parts of a study: columns of important classes, and the values a method is tried with."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camri import methods
from camri.errors import InputError, closest
from camri.methods import Setting
from camri.study.records import Resolved

SYMBOLS = ("worst", "second", "median")  # classes by their recall under cross-entropy
FLOAT32_MAX = float(np.finfo(np.float32).max)
ANGULAR = ("arcface", "camri")  # people give the margins of these in π/64

Point = tuple[float, ...]  # one value for each knob of a method


@dataclass(frozen=True)
class Column:
    """Important classes that are judged together, each with its strength.

    A class is a name, an index, or "worst", "second", "median": found from the study's own cross-entropy trials. At
    strength 1 a class gets the grid's value, at 0.5 a value half the way from doing nothing.
    """

    classes: tuple[str | int, ...]
    strengths: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.classes or len(set(self.classes)) != len(self.classes):
            raise InputError(f"important={list(self.classes)} must name at least one class and none twice")
        for name in self.classes:
            if isinstance(name, bool) or not isinstance(name, (str, int)):
                raise InputError(f"important={name!r} is neither a class name nor an index")
        for name, strength in zip(self.classes, self.strengths, strict=True):
            if isinstance(strength, bool) or not isinstance(strength, (int, float)) or not 0 < strength < math.inf:
                raise InputError(f"important={name!r} has strength {strength!r}; give a number above 0")

    @staticmethod
    def of(value: Any) -> "Column":
        """The column of a class, of several classes, or of {class: strength}.

        >>> Column.of({"cat": 1, "dog": 0.5})
        Column(classes=('cat', 'dog'), strengths=(1.0, 0.5))
        """
        if isinstance(value, Column):
            return value
        if isinstance(value, Mapping):
            strengths = tuple(float(s) if type(s) in (int, float) else s for s in value.values())
            return Column(tuple(value), strengths)
        several = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        return Column(several, (1.0,) * len(several))


@dataclass(frozen=True)
class Grid:
    """A method and the values of each of its knobs; margins in radians. Made by `of` or, of single points, `at`.

    All combinations are tried in every column, unless `points` has some for each column: the values of a point stand
    in the order of `axes`.
    """

    method: str
    axes: tuple[tuple[str, tuple[float, ...]], ...]
    points: tuple[tuple[Point, ...], ...] = ()

    @staticmethod
    def of(name: str, narrowed: Mapping[str, Any] | None = None) -> "Grid":
        """The method's whole grid, with the values of some knobs replaced.

        >>> Grid.of("wce", {"w": [4, 8]}).axes
        (('w', (4.0, 8.0)),)
        """
        knobs, narrowed = methods.method(name).knobs, narrowed or {}
        for unknown in narrowed.keys() - knobs.keys():
            raise InputError(f"{name} has no knob {unknown!r}; {closest(unknown, knobs) if knobs else 'it has none'}")
        return Grid(name, tuple((knob, _numbers(name, knob, narrowed.get(knob, knobs[knob].grid))) for knob in knobs))

    @staticmethod
    def at(name: str, columns: Sequence[Sequence[Sequence[float]]]) -> "Grid":
        """The grid of some points of each column; where they are all combinations of their values it is a plain one.

        >>> Grid.at("camri", [[(0.1, 8), (0.2, 8)]]) == Grid.of("camri", {"m": [0.1, 0.2], "s": [8]})
        True
        >>> Grid.at("camri", [[(0.1, 8)], [(0.2, 16)]]).points
        (((0.1, 8.0),), ((0.2, 16.0),))
        """
        knobs = list(methods.method(name).knobs)
        for point in (point for points in columns for point in points):
            if not isinstance(point, (list, tuple)) or len(point) != len(knobs):
                raise InputError(f"{name} has a point {point!r}; give a value for each of {', '.join(knobs)}")
        found = [
            tuple(
                dict.fromkeys(
                    tuple(_number(name, *pair) for pair in zip(knobs, point, strict=True)) for point in points
                )
            )
            for points in columns
        ]
        values = [sorted({point[place] for points in found for point in points}) for place in range(len(knobs))]
        plain = Grid.of(name, dict(zip(knobs, values, strict=True)))
        every = set(plain.tried())
        return plain if all(set(points) == every for points in found) else Grid(name, plain.axes, tuple(found))

    @property
    def per_column(self) -> bool:
        """Whether its settings depend on the important classes."""
        return any(knob.per_class for knob in methods.method(self.method).knobs.values())

    def tried(self, number: int = 0) -> Iterator[Point]:
        """The values that are tried in the column of that number, in the order of `axes`."""
        yield from self.points[number] if self.points else itertools.product(*(values for _, values in self.axes))

    def setting(self, point: Point, column: Resolved) -> Setting:
        """The setting of a point for a column's important classes."""
        knobs = methods.method(self.method).knobs
        important = tuple(index for index, _ in column) if self.per_column else ()
        given: dict[str, Any] = {}
        for (name, _), value in zip(self.axes, point, strict=True):
            knob = knobs[name]
            given[name] = (
                [_weaken(value, strength, knob.neutral or 0.0) for _, strength in column] if knob.per_class else value
            )
        return methods.setting(self.method, important, **given)

    def settings(self, column: Resolved, number: int = 0) -> Iterator[Setting]:
        """Every setting that is tried for a column's important classes."""
        return (self.setting(point, column) for point in self.tried(number))

    def to_json(self) -> list[Any]:
        """Method and axes; the points after them where there are some."""
        plain = [self.method, [[knob, list(values)] for knob, values in self.axes]]
        return [*plain, [[list(point) for point in points] for points in self.points]] if self.points else plain

    @staticmethod
    def from_json(values: Sequence[Any]) -> "Grid":
        name, axes, *points = values
        return Grid.at(name, points[0]) if points else Grid.of(name, dict(axes))


def _weaken(value: float, strength: float, neutral: float) -> float:
    return value if strength == 1 else neutral + strength * (value - neutral)


def _numbers(method: str, knob: str, values: Any) -> tuple[float, ...]:
    several = tuple(values) if isinstance(values, (list, tuple)) else (values,)
    if not several:
        raise InputError(f"{method} {knob} has no values; give at least one number")
    return tuple(dict.fromkeys(_number(method, knob, value) for value in several))


def _number(method: str, knob: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= FLOAT32_MAX:
        raise InputError(f"{method} {knob}={value!r} is not a finite number")
    return float(value)
