"""Recipes: functions that return a study, and their names on the command line.

`paper` has the paper's studies; the screenings here try its methods and others with few values in short trials. Their
values surround the best of CIFAR-10's cat (docs/reproduce.md).

from camri.study.recipes import paper
paper.cifar10("cat", schedule="paper")
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from camri.engine.spec import FAST, Training
from camri.errors import InputError, closest
from camri.methods import MARGIN_UNIT
from camri.study import paper
from camri.study.paper import Schedule, find_columns, find_schedule
from camri.study.spec import Study, study

SEEDS = (100, 101, 102)  # the finals have others: a setting that these seeds favour would keep that advantage
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
    """The columns of a data set, by default Table I's, with few values of every method."""
    return study(
        f"screen.{data}", data, find_columns(data, columns), GRID, seeds=SEEDS, training=find_schedule(schedule)
    )


MARGINS = [4 * MARGIN_UNIT, 8 * MARGIN_UNIT]


def digits(columns: Any = "worst", *, schedule: Schedule = "fast", num_seeds: int = 5) -> Study:
    """A small study on the embedded digits: minutes on a CPU."""
    training = schedule if isinstance(schedule, Training) else find_schedule(schedule).with_(model="small")
    return study(
        "digits",
        "digits",
        columns,
        {"ce": {}, "wce": {"w": [4, 8]}, "l2softmax": {"s": [8]}, "camri": {"m": MARGINS, "s": [8]}},
        seeds=num_seeds,
        training=training,
        val_fraction=0.3,
    )


def digits_pair(*, schedule: Schedule = "fast", num_seeds: int = 5) -> Study:
    """Two digits important jointly, the second at half strength: the question the paper leaves open."""
    return digits({"8": 1.0, "3": 0.5}, schedule=schedule, num_seeds=num_seeds).with_(name="digits.pair")


@dataclass(frozen=True)
class Recipe:
    """A recipe's name on the command line, its function, and a line about it."""

    name: str
    make: Callable[..., Study]
    about: str

    def __call__(self, **given: Any) -> Study:
        return _call(self.name, self.make, given)


def _call(name: str, make: Callable[..., Study], given: dict[str, Any]) -> Study:
    """Make the study; an argument that the function does not take is refused by name."""
    fixed = make.keywords if isinstance(make, functools.partial) else {}
    takes = [name for name in inspect.signature(make).parameters if name not in fixed]
    for argument in given:
        if argument not in takes:
            raise InputError(f"{name} does not take {argument}; it takes {', '.join(takes)}", argument=argument)
    return make(**given)


def _recipes() -> dict[str, Recipe]:
    found = []
    for data, columns in paper.COLUMNS.items():
        make = getattr(paper, data)
        title = {"cifar10": "CIFAR-10", "gtsrb": "GTSRB", "awa2": "AwA2"}[data]
        found.append(Recipe(f"paper.{data}", make, f"Table I, {title}: {', '.join(columns)}"))
        for name in columns:
            column = functools.partial(make, columns=name)
            found.append(Recipe(f"paper.{data}.{name}", column, f"Table I, {title}: the column of {name}"))
    for data, title in (("cifar10", "CIFAR-10"), ("gtsrb", "GTSRB")):
        make = functools.partial(screening, data)
        found.append(Recipe(f"screen.{data}", make, f"{title}'s columns and rivals in short trials, for finalists"))
    found.append(Recipe("paper.mnist_2d", paper.mnist_2d, 'Fig. 6: MNIST in two features, "3" important'))
    found.append(Recipe("digits", digits, "the embedded digits, worst class important; minutes on a CPU"))
    found.append(Recipe("digits.pair", digits_pair, "two digits important jointly, one at half strength"))
    return {recipe.name: recipe for recipe in found}


RECIPES = _recipes()


def find_study(name: str, **given: Any) -> Study:
    """The study of a recipe, a TOML file, or a JSON file of `Study.to_json`, which is taken as it is.

    `given` (columns, num_seeds, schedule, rule) goes to the recipe or the TOML file.

    >>> find_study("paper.cifar10.cat", num_seeds=3).seeds
    (0, 1, 2)
    """
    from camri.study.study_file import read_json, read_study

    if name in RECIPES:
        return RECIPES[name](**given)
    if Path(name).suffix == ".json":
        if given:
            listed = ", ".join(f"{key}={value!r}" for key, value in given.items())
            raise InputError(f"{name} holds a whole study, so {listed} cannot be given beside it; change the file")
        return read_json(name)
    if Path(name).suffix == ".toml" or Path(name).is_file():
        return _call(name, functools.partial(read_study, name), given)
    raise InputError(f"study {name!r} is neither a recipe nor a TOML or JSON file; {closest(name, RECIPES, shown=20)}")
