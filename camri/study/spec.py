"""Studies: settings × seeds on one data set, as frozen values with the same hash on every machine.

A study names its important classes in *columns*, as Table I does. A column is one class, or several that are important
jointly. Every method that takes important classes is trained for every column.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camri import methods
from camri.data.listing import TAKEN_BY
from camri.engine.spec import FAST, Training, Trial, digest, frozen
from camri.errors import InputError, closest
from camri.methods import Setting

SYMBOLS = ("worst", "second", "median")  # classes by their recall under cross-entropy
DATA_OPTIONS = tuple(TAKEN_BY)
MOST_SEEDS = 1_000_000

Point = tuple[float, ...]  # a value for each knob of a method
Resolved = tuple[tuple[int, float], ...]  # the (class index, strength) pairs of a column


@dataclass(frozen=True)
class Column:
    """Classes that are important jointly, each with its strength.

    A class is a name, an index, or one of "worst", "second" and "median", which are found from the study's own
    cross-entropy trials. At strength 1 a class gets the grid's value, at 0.5 the value halfway to the neutral one.
    """

    classes: tuple[str | int, ...]
    strengths: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.classes or len(set(self.classes)) != len(self.classes):
            raise _refusal(f"{list(self.classes)} must name at least one class and none twice")
        for name, strength in self.pairs:
            if isinstance(name, bool) or not isinstance(name, (str, int)):
                raise _refusal(f"{name!r} is neither a class name nor an index")
            if isinstance(strength, bool) or not isinstance(strength, (int, float)) or not 0 < strength < math.inf:
                raise _refusal(f"{name!r} has strength {strength!r}; give a number above 0")

    @property
    def pairs(self) -> tuple[tuple[str | int, float], ...]:
        """(class, strength) pairs."""
        return tuple(zip(self.classes, self.strengths, strict=True))

    def __str__(self) -> str:
        """The column as it is written on the command line.

        >>> print(Column.of({"cat": 1, "dog": 0.5}))
        cat+dog (dog=0.5)
        """
        weak = [f"{name}={s:g}" for name, s in self.pairs if s != 1]
        return "+".join(map(str, self.classes)) + (f" ({', '.join(weak)})" if weak else "")

    @staticmethod
    def of(value: Any) -> "Column":
        """The column of a class, a list of classes, or {class: strength}.

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
    """A method and the values of each of its knobs. Made by `of`, or by `at` from single points.

    All combinations are tried in every column, unless `points` lists those of each column; a point has its values in
    the order of `axes`.
    """

    method: str
    axes: tuple[tuple[str, tuple[float, ...]], ...]
    points: tuple[tuple[Point, ...], ...] = ()

    @staticmethod
    def of(name: str, narrowed: Mapping[str, Any] | None = None) -> "Grid":
        """The method's whole grid, with the values of some knobs replaced.

        If any knob is named, those that the method got later are neutral unless they are named too.

        >>> Grid.of("wce", {"w": [4, 8]}).axes
        (('w', (4.0, 8.0)),)
        """
        knobs, narrowed = methods.method(name).knobs, narrowed or {}
        for unknown in narrowed.keys() - knobs.keys():
            raise InputError(f"{name} has no knob {unknown!r}; {closest(unknown, knobs) if knobs else 'it has none'}")

        def values(knob: str, entry: methods.Knob) -> Any:
            return narrowed.get(knob, (entry.neutral,) if narrowed and entry.later else entry.grid)

        return Grid(name, tuple((knob, _numbers(name, knob, values(knob, entry))) for knob, entry in knobs.items()))

    @staticmethod
    def at(name: str, columns: Sequence[Sequence[Sequence[float]]]) -> "Grid":
        """The grid of the points given for each column; without `points` if they are all combinations.

        >>> Grid.at("camri", [[(0.1, 8), (0.2, 8)]]) == Grid.of("camri", {"m": [0.1, 0.2], "s": [8]})
        True
        >>> Grid.at("camri", [[(0.1, 8)], [(0.2, 16)]]).points
        (((0.1, 8.0),), ((0.2, 16.0),))
        """
        entries = methods.method(name).knobs
        knobs, added = list(entries), [entry.neutral for entry in entries.values() if entry.later]

        def checked(point: Sequence[float]) -> Point:
            if isinstance(point, (list, tuple)) and len(point) == len(knobs) - len(added):
                point = [*point, *(value or 0.0 for value in added)]  # stored before the method had them
            if not isinstance(point, (list, tuple)) or len(point) != len(knobs):
                raise InputError(f"{name} has a point {point!r}; give a value for each of {', '.join(knobs)}")
            return tuple(methods.to_number(name, knob, value) for knob, value in zip(knobs, point, strict=True))

        by_column = [tuple(dict.fromkeys(map(checked, points))) for points in columns]
        values = [sorted({point[place] for points in by_column for point in points}) for place in range(len(knobs))]
        plain = Grid.of(name, dict(zip(knobs, values, strict=True)))
        every = set(plain.tried())
        return plain if all(set(points) == every for points in by_column) else Grid(name, plain.axes, tuple(by_column))

    @property
    def per_column(self) -> bool:
        """Whether its settings depend on the important classes."""
        return any(knob.per_class for knob in methods.method(self.method).knobs.values())

    def tried(self, number: int = 0) -> Iterator[Point]:
        """The points tried in a column, values in the order of `axes`."""
        yield from self.points[number] if self.points else itertools.product(*(values for _, values in self.axes))

    def setting(self, point: Point, column: Resolved) -> Setting:
        """The setting of a point for a column's important classes."""
        knobs = methods.method(self.method).knobs
        values: dict[str, Any] = {name: value for (name, _), value in zip(self.axes, point, strict=True)}
        for name, value in values.items():
            if knobs[name].per_class:
                neutral = knobs[name].neutral or 0.0
                values[name] = [value if s == 1 else neutral + s * (value - neutral) for _, s in column]
        return methods.setting(self.method, tuple(i for i, _ in column) if self.per_column else (), **values)

    def settings(self, column: Resolved, number: int = 0) -> Iterator[Setting]:
        """Every setting tried for a column's important classes."""
        return (self.setting(point, column) for point in self.tried(number))

    def to_json(self) -> list[Any]:
        """Method and axes, then the points if there are any; knobs that came later are left out where they are off."""
        knobs = methods.method(self.method).knobs
        off = {knob for knob, values in self.axes if knobs[knob].later and values == (knobs[knob].neutral,)}
        kept = self.axes if self.points else [axis for axis in self.axes if axis[0] not in off]
        plain = [self.method, [[knob, list(values)] for knob, values in kept]]
        return [*plain, [[list(point) for point in points] for points in self.points]] if self.points else plain

    @staticmethod
    def from_json(values: Sequence[Any]) -> "Grid":
        name, axes, *points = values
        return Grid.at(name, points[0]) if points else Grid.of(name, dict(axes))


def _numbers(method: str, knob: str, values: Any) -> tuple[float, ...]:
    several = tuple(values) if isinstance(values, (list, tuple)) else (values,)
    if not several:
        raise InputError(f"{method} {knob} has no values; give at least one number")
    return tuple(dict.fromkeys(methods.to_number(method, knob, value) for value in several))


@dataclass(frozen=True)
class Study:
    """Settings × seeds on one data set under one training. Made by :func:`study`, which takes simpler values.

    `val_fraction` and `test_fraction` are held out if the data set has no such split (0: no validation split). `thin`
    makes classes rare in training: the fraction of their train rows to keep. `important_from` is the split on which
    "worst", "second" and "median" are found: "val", or "test" as in the paper.
    """

    name: str
    data: str
    important: tuple[Column, ...]
    methods: tuple[Grid, ...]
    training: Training = FAST
    seeds: tuple[int, ...] = tuple(range(10))
    data_options: tuple[tuple[str, Any], ...] = ()
    val_fraction: float = 0.1
    test_fraction: float = 0.3
    split_seed: int = 0
    thin: tuple[tuple[str, float], ...] = ()
    important_from: str = "val"
    keep_logits: bool = False
    keep_weights: bool = False

    def __post_init__(self) -> None:
        def need(condition: bool, field: str, allowed: str) -> None:
            if not condition:
                raise InputError(f"{field}={getattr(self, field)!r} is not allowed; {allowed}", argument=field)

        need(isinstance(self.name, str) and bool(self.name.strip()), "name", "give a name")
        need(isinstance(self.data, str) and bool(self.data), "data", "give a data set's name or path")
        need(bool(self.important), "important", "give at least one class")
        need(bool(self.methods), "methods", f"choices: {', '.join(methods.METHODS)}")
        names = [grid.method for grid in self.methods]
        need(len(set(names)) == len(names), "methods", "a method is named twice")
        for grid in self.methods:
            if grid.points and len(grid.points) != len(self.important):
                counts = f"{len(grid.points)} columns, and the study has {len(self.important)}"
                raise InputError(f"{grid.method} has points for {counts}")
        for option, _ in self.data_options:
            if option not in DATA_OPTIONS:
                raise InputError(f"data has no option {option!r}; {closest(option, DATA_OPTIONS)}")
        need(_is_fraction(self.val_fraction), "val_fraction", "give a fraction of the train split from 0 to below 1")
        is_some = _is_fraction(self.test_fraction) and self.test_fraction > 0
        need(is_some, "test_fraction", "give a fraction between 0 and 1")
        need(type(self.split_seed) is int, "split_seed", "give a whole number")
        parts = all(_is_fraction(part) and part > 0 for _, part in self.thin)
        need(parts, "thin", "give a fraction between 0 and 1 for each class, for example {cat = 0.1}")
        wanted = "give different whole numbers of at least 0 and below 2**63"  # SQLite holds no larger ones
        need(all(type(seed) is int and 0 <= seed < 2**63 for seed in self.seeds), "seeds", wanted)
        need(0 < len(self.seeds) == len(set(self.seeds)), "seeds", wanted)
        need(self.important_from in ("val", "test"), "important_from", "choices: val, test")
        for field in ("keep_logits", "keep_weights"):
            need(type(getattr(self, field)) is bool, field, "choices: true, false")
        if self.symbols and "ce" not in names:
            sought = ", ".join(sorted(self.symbols))
            raise InputError(f"important={sought} is found from cross-entropy trials: add method ce", "important")

    @property
    def symbols(self) -> set[str]:
        """Those of "worst", "second" and "median" that the columns name."""
        return {str(name) for column in self.important for name in column.classes if name in SYMBOLS}

    def with_(self, **changes: Any) -> "Study":
        """The study with some fields changed; values as :func:`study` takes them."""
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise InputError(f"study has no field {name!r}; {closest(name, known)}")
        return study(**{**{name: getattr(self, name) for name in known}, **changes})

    def settings(self, columns: Sequence[Resolved]) -> Iterator[tuple[int, Setting]]:
        """(column number, setting) of everything the study compares, column by column, duplicates included."""
        for number, column in enumerate(columns):
            for grid in self.methods:
                for setting in grid.settings(column, number):
                    yield number, setting

    def unique_settings(self, columns: Sequence[Resolved]) -> list[Setting]:
        """The settings to train, each once in its simplest form; cross-entropy first."""
        by_key = {setting.key: setting.canonical() for _, setting in self.settings(columns)}
        return sorted(by_key.values(), key=lambda setting: setting.method != "ce")

    def trials(self, columns: Sequence[Resolved]) -> list[Trial]:
        """The trials in the order of training: cross-entropy, then seed by seed the other settings."""
        settings = self.unique_settings(columns)
        trials = [Trial(setting, seed) for seed in self.seeds for setting in settings]
        return sorted(trials, key=lambda trial: trial.setting.method != "ce")

    def placeholders(self) -> list[Resolved]:
        """Columns with a made-up index for each class: enough to count settings before the classes are known."""
        index: dict[str | int, int] = {}
        return [tuple((index.setdefault(name, len(index)), s) for name, s in c.pairs) for c in self.important]

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        thin = values.pop("thin")  # left out if empty: older studies keep their key
        return values | {
            "important": [[list(pair) for pair in column.pairs] for column in self.important],
            "methods": [grid.to_json() for grid in self.methods],
            "training": self.training.to_json(),
            "seeds": list(self.seeds),
            "data_options": dict(self.data_options),
            **({"thin": dict(thin)} if thin else {}),
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Study":
        return study(
            **{
                **values,
                "important": [Column(*zip(*((n, float(s)) for n, s in c), strict=True)) for c in values["important"]],
                "methods": [Grid.from_json(grid) for grid in values["methods"]],
                "training": Training.from_json(values["training"]),
            }
        )

    @property
    def key(self) -> str:
        """Hash of the study without its name: 16 hexadecimal digits, the same on every machine."""
        return digest({name: value for name, value in self.to_json().items() if name != "name"})


def study(
    name: str,
    data: str,
    important: Any,
    methods: Mapping[str, Any] | Sequence[str] | Sequence[Grid],
    seeds: int | Sequence[int] = 10,
    training: Training = FAST,
    data_options: Mapping[str, Any] | Sequence[tuple[str, Any]] = (),
    thin: Mapping[str, float] | Sequence[tuple[str, float]] = (),
    **rest: Any,
) -> Study:
    """Make a study from plain values and check it.

    `important` is a class or a list of columns; a column is a class, a list of classes that are important jointly, or
    {class: strength}. `methods` are names, or {name: {knob: values}} with margins in radians. `seeds` is a list, or
    the number of seeds 0, 1, … `thin` is {class: fraction of its train rows to keep}.

    >>> study("mine", "digits", "8", ["ce", "camri"], seeds=3).seeds, study("mine", "digits", "8", ["ce"], [5]).seeds
    ((0, 1, 2), (5,))
    """
    columns = important if isinstance(important, (list, tuple)) else [important]
    if isinstance(methods, Mapping):
        grids = tuple(Grid.of(method, narrowed) for method, narrowed in methods.items())
    else:
        grids = tuple(grid if isinstance(grid, Grid) else Grid.of(grid) for grid in methods)
    if not isinstance(thin, (Mapping, list, tuple)):
        raise InputError(f"thin={thin!r} is not a table of classes and fractions, for example {{cat = 0.1}}", "thin")
    if not isinstance(training, Training):
        message = f"training={training!r} is not a Training; give camri.engine.FAST, PAPER or one of your own"
        raise InputError(message, argument="training")
    for field in ("val_fraction", "test_fraction"):  # 0 and 0.0 are one study, so they have one hash
        if type(rest.get(field)) is int:
            rest[field] = float(rest[field])
    if type(seeds) is int and 0 < seeds <= MOST_SEEDS:
        seeds = range(seeds)
    if not isinstance(seeds, (list, tuple, range)):
        message = f"seeds={seeds!r} is not allowed; give a number of seeds from 1 to {MOST_SEEDS:,}, or a list of seeds"
        raise InputError(message, argument="seeds")
    return Study(
        name=name,
        data=data,
        important=tuple(map(Column.of, columns)),
        methods=grids,
        training=training,
        seeds=tuple(seeds),
        data_options=tuple(sorted((option, frozen(value)) for option, value in dict(data_options).items())),
        thin=tuple(sorted((str(name), part) for name, part in dict(thin).items())),
        **rest,
    )


def _is_fraction(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1


def resolve(study: Study, classes: Sequence[str], found: Mapping[str, int] | None = None) -> list[Resolved] | None:
    """Class indices and strengths of every column; None while "worst", "second" or "median" is not in `found`.

    A name of digits that is no class is taken as an index. Other unknown names are refused.
    """
    columns = [resolve_column(column, classes, found) for column in study.important]
    first: dict[Resolved, int] = {}
    for number, column in enumerate(study.important):
        # "worst" may turn out to be a class that has a column already; both are kept.
        if not set(column.classes) & set(SYMBOLS) and first.setdefault(tuple(sorted(columns[number])), number) < number:
            raise _refusal(f"{list(column.classes)} is a column twice; give each once")
    return None if study.symbols - set(found or {}) else columns


def name_column(column: Resolved, classes: Sequence[str]) -> Column:
    """The column with its classes by name, or by index if the name is "worst" etc. or that of an earlier class.

    >>> name_column(((1, 1.0), (0, 0.5)), ["worst", "cat"])
    Column(classes=('cat', 0), strengths=(1.0, 0.5))
    """

    def name(index: int) -> str | int:
        text = classes[index]
        return text if text not in SYMBOLS and list(classes).index(text) == index else index

    return Column(tuple(name(index) for index, _ in column), tuple(strength for _, strength in column))


def resolve_column(column: Column, classes: Sequence[str], found: Mapping[str, int] | None = None) -> Resolved:
    """Class indices and strengths of a column; "worst", "second" and "median" are -1 unless they are in `found`."""
    indices: dict[int, float] = {}
    named: dict[int, str | int] = {}
    for name, strength in column.pairs:
        if name in SYMBOLS:
            index = (found or {}).get(str(name), -1)
        elif isinstance(name, int):
            if not 0 <= name < len(classes):
                raise _refusal(f"{name} is not a class; there are {len(classes)}, 0 to {len(classes) - 1}")
            index = name
        elif name in classes:
            index = list(classes).index(name)
        elif name.isdecimal() and int(name) < len(classes):
            index = int(name)
        else:
            raise _refusal(f"{name!r} is not a class; {closest(name, [*classes, *SYMBOLS])}")
        if name not in SYMBOLS and named.setdefault(index, name) != name:
            raise _refusal(f"{named[index]!r} and {name!r} are the same class; give it once")
        indices.setdefault(index, strength)  # "worst" may turn out to be a class that the column names too
    return tuple(indices.items())


def _refusal(problem: str) -> InputError:
    return InputError(f"important={problem}", argument="important")


def rank_classes(recalls: Sequence[Sequence[float]]) -> dict[str, int]:
    """The classes with the worst, second worst and median recall, mean over trials.

    Of equal classes the one with the lower index comes first. With an even number of classes the median is the lower
    middle one, which makes airplane the median of CIFAR-10, as in the paper. Classes without images are left out.

    >>> rank_classes([[0.9, 0.7, 0.8, 1.0]])
    {'worst': 1, 'second': 2, 'median': 2}
    """
    means = np.mean(np.array(recalls, dtype=np.float64), axis=0)
    order = [int(index) for index in np.argsort(means, kind="stable") if np.isfinite(means[index])]
    if len(order) < 2:
        raise InputError("fewer than two classes have data to rank by recall; name the important classes")
    return {"worst": order[0], "second": order[1], "median": order[(len(order) - 1) // 2]}
