"""Recipes: functions that return a study, and their names on the command line.

`recipes.cifar10("cat")` is one column of the paper's Table I, `recipes.cifar10()` all three. The paper's studies take
`columns` (a class by name or index, "worst", "second", "median", or a list of columns), the `schedule` ("fast", "paper"
or a Training), `num_seeds`, and the `rule`: "honest" holds out a tenth of the train split to choose settings on;
"paper" trains on all of it and chooses on the test images, as the authors did.

Screenings try the paper's methods and others with few values in short trials. The values surround the best ones for
CIFAR-10's cat (docs/reproduce.md).
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from camri.engine.spec import FAST, PAPER, Training
from camri.errors import InputError, closest
from camri.methods import MARGIN_UNIT
from camri.study import SMALL
from camri.study.spec import Column, Study, study

Schedule = str | Training
SCHEDULES = {"fast": FAST, "paper": PAPER}
RULES = ("honest", "paper")
METHODS_OF_THE_PAPER = ["ce", "wce", "crwwce", "wasserstein", "l2softmax", "arcface", "camri"]
# Table I's columns: the classes with the worst, second worst and median recall under cross-entropy.
COLUMNS: dict[str, dict[str, str | int]] = {
    "cifar10": {"cat": "cat", "dog": "dog", "airplane": "airplane"},
    "gtsrb": {"limit-80-end": 6, "no-passing-end": 41, "limit-80": 5},
    "awa2": {"mouse": "mouse", "beaver": "beaver", "moose": "moose"},
}
TITLES = {"cifar10": "CIFAR-10", "gtsrb": "GTSRB", "awa2": "AwA2"}


def find_schedule(schedule: Schedule) -> Training:
    """The training with this name; a Training is returned as it is.

    >>> find_schedule("paper").epochs
    300
    """
    if isinstance(schedule, Training):
        return schedule
    if schedule not in SCHEDULES:
        raise InputError(f"schedule={schedule!r} is unknown; {closest(schedule, SCHEDULES)}", argument="schedule")
    return SCHEDULES[schedule]


def find_columns(data: str, columns: Any) -> list[Column]:
    """The columns, where names of Table I stand for its classes; by default all columns of Table I.

    >>> [column.classes for column in find_columns("gtsrb", ["limit-80", "Stop"])]
    [(5,), ('Stop',)]
    """
    names: dict[Any, str | int] = {**COLUMNS[data]}
    given = list(names) if columns is None else columns if isinstance(columns, (list, tuple)) else [columns]
    parsed = [Column.of(column) for column in given]
    return [Column(tuple(names.get(n, n) for n in column.classes), column.strengths) for column in parsed]


def table_one(
    data: str, columns: Any = None, *, schedule: Schedule = "fast", num_seeds: int = 10, rule: str = "honest"
) -> Study:
    """A data set's columns of Table I, by default all three.

    >>> cifar10("cat").important[0].classes
    ('cat',)
    """
    if rule not in RULES:
        raise InputError(f"rule={rule!r} is unknown; {closest(rule, RULES)}", argument="rule")
    return study(
        f"paper.{data}",
        data,
        find_columns(data, columns),
        METHODS_OF_THE_PAPER,
        seeds=num_seeds,
        training=find_schedule(schedule),
        val_fraction=0.1 if rule == "honest" else 0.0,
        important_from="val" if rule == "honest" else "test",
    )


cifar10, gtsrb, awa2 = (functools.partial(table_one, data) for data in COLUMNS)


def mnist_2d(*, schedule: Schedule = "fast", num_seeds: int = 1) -> Study:
    """Fig. 6: MNIST in two features, "3" important. It keeps weights and logits, from which the figure is drawn.

    paper: names no margin and scale / here: 4π/64 and 16, those of its CIFAR-10 winner.
    """
    margin, scale = [4 * MARGIN_UNIT], [16.0]
    return study(
        "paper.mnist_2d",
        "mnist",
        "3",
        {"l2softmax": {"s": scale}, "arcface": {"m": margin, "s": scale}, "camri": {"m": margin, "s": scale}},
        seeds=num_seeds,
        training=find_schedule(schedule).with_(model_options=(("num_features", 2),)),
        keep_logits=True,
        keep_weights=True,
    )


SEEDS = (100, 101, 102)  # not those of the finals, where a setting would keep the advantage of good seeds
SHORT = FAST.with_(epochs=9)
GRID: dict[str, dict[str, list[float]]] = {
    "ce": {},
    "l2softmax": {"s": [8, 16]},
    "camri": {"m": [2 * MARGIN_UNIT, 4 * MARGIN_UNIT, 8 * MARGIN_UNIT], "s": [8, 16]},
    "arcface": {"m": [2 * MARGIN_UNIT, 4 * MARGIN_UNIT], "s": [8]},
    "cosface": {"m": [0.05, 0.1, 0.2], "s": [8]},
    "wce": {"w": [1.5, 2, 4]},
    "crwwce": {"fn": [2, 4], "fp": [1.4]},
    "wasserstein": {"c": [1.4], "entropy": [0.01]},
    "ldam": {"m": [0.1], "max_m": [0.3], "s": [8]},
    "logit_adjusted": {"d": [0.5, 1, 2], "tau": [0]},
    "vector_scaling": {"delta": [0.8], "d": [0, 1, 2]},
}


def screening(data: str, columns: Any = None, *, schedule: Schedule = SHORT) -> Study:
    """A screening: few values of every method for the given columns, by default Table I's."""
    return study(
        f"screen.{data}", data, find_columns(data, columns), GRID, seeds=SEEDS, training=find_schedule(schedule)
    )


QUICK = FAST.with_(model="small", epochs=3)  # 12 s an epoch of CIFAR-10 on one core of a server


def small_table_one(columns: Any = "cat", *, schedule: Schedule = QUICK, num_seeds: int = 2) -> Study:
    """Table I, Table II and Fig. 3 small: a small CNN, three epochs, one setting of each method."""
    margin, scale = [4 * MARGIN_UNIT], [16.0]
    methods: dict[str, dict[str, list[float]]] = {
        "ce": {},
        "wce": {"w": [4]},
        "crwwce": {"fn": [4], "fp": [1.4]},
        "wasserstein": {"c": [1.4]},
        "l2softmax": {"s": scale},
        "arcface": {"m": margin, "s": scale},
        "camri": {"m": margin, "s": scale},
    }
    return study(
        f"{SMALL}table1",
        "cifar10",
        find_columns("cifar10", columns),
        methods,
        seeds=num_seeds,
        training=find_schedule(schedule),
    )


def small_figure_five(columns: Any = "cat", *, schedule: Schedule = QUICK, num_seeds: int = 2) -> Study:
    """Fig. 5 small: four weights of WCE and four margins of CAMRI beside their controls."""
    margins = [number * MARGIN_UNIT for number in (2, 4, 6, 8)]
    methods: dict[str, dict[str, list[float]]] = {
        "ce": {},
        "wce": {"w": [2, 4, 8, 16]},
        "l2softmax": {"s": [16]},
        "camri": {"m": margins, "s": [16]},
    }
    return study(
        f"{SMALL}fig5",
        "cifar10",
        find_columns("cifar10", columns),
        methods,
        seeds=num_seeds,
        training=find_schedule(schedule),
    )


def small_figure_six(*, schedule: Schedule = QUICK, num_seeds: int = 2) -> Study:
    """Fig. 6 small: MNIST in two features of a small CNN."""
    return mnist_2d(schedule=schedule, num_seeds=num_seeds).with_(name=f"{SMALL}fig6")


def digits(columns: Any = "worst", *, schedule: Schedule = "fast", num_seeds: int = 5) -> Study:
    """A small study on the embedded digits: minutes on a CPU."""
    training = schedule if isinstance(schedule, Training) else find_schedule(schedule).with_(model="small")
    margins = [4 * MARGIN_UNIT, 8 * MARGIN_UNIT]
    return study(
        "digits",
        "digits",
        columns,
        {"ce": {}, "wce": {"w": [4, 8]}, "l2softmax": {"s": [8]}, "camri": {"m": margins, "s": [8]}},
        seeds=num_seeds,
        training=training,
        val_fraction=0.3,
    )


def digits_pair(*, schedule: Schedule = "fast", num_seeds: int = 5) -> Study:
    """Two digits that are important jointly, the second at half strength; the paper has no such study."""
    return digits({"8": 1.0, "3": 0.5}, schedule=schedule, num_seeds=num_seeds).with_(name="digits.pair")


WITHOUT_RULE = "the paper.… recipes of Table I and TOML files take a rule"


@dataclass(frozen=True)
class Recipe:
    """A recipe's name on the command line, its function, and its description."""

    name: str
    make: Callable[..., Study]
    about: str = ""

    def __call__(self, **given: Any) -> Study:
        """Make the study; refuse arguments that the function does not take."""
        fixed = self.make.keywords if isinstance(self.make, functools.partial) else {}
        takes = [name for name in inspect.signature(self.make).parameters if name not in fixed]
        for name in given:
            if name not in takes:
                hint = f"; {WITHOUT_RULE}" if name == "rule" else ""
                raise InputError(f"{self.name} does not take {name}; it takes {', '.join(takes)}{hint}", argument=name)
        return self.make(**given)


def _recipes() -> Iterator[Recipe]:
    for data, columns in COLUMNS.items():
        make = functools.partial(table_one, data)
        yield Recipe(f"paper.{data}", make, f"Table I, {TITLES[data]}: {', '.join(columns)}")
        for name in columns:
            column = functools.partial(make, columns=name)
            yield Recipe(f"paper.{data}.{name}", column, f"Table I, {TITLES[data]}: the column of {name}")
    for data in ("cifar10", "gtsrb"):
        make = functools.partial(screening, data)
        yield Recipe(f"screen.{data}", make, f"{TITLES[data]}'s columns and rivals in short trials, for finalists")
    yield Recipe("paper.mnist_2d", mnist_2d, 'Fig. 6: MNIST in two features, "3" important')
    yield Recipe(f"{SMALL}table1", small_table_one, "small: Tables I and II, Fig. 3 for the cat; minutes on two cores")
    yield Recipe(f"{SMALL}fig5", small_figure_five, "small: Fig. 5 for the cat; minutes on two cores")
    yield Recipe(f"{SMALL}fig6", small_figure_six, "small: Fig. 6; minutes on two cores")
    yield Recipe("digits", digits, "the embedded digits, worst class important; minutes on a CPU")
    yield Recipe("digits.pair", digits_pair, "two digits important jointly, one at half strength")


RECIPES = {recipe.name: recipe for recipe in _recipes()}
