"""Screenings: the paper's methods and their rivals on few values and short trials, to find who goes to the finals.

The values are those around which the best of CIFAR-10's cat lay (docs/reproduce.md); `camri study finalists` says where
a best one sits on the edge of its grid.

Recipes: functions that return a study, and the names they have on the command line.

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

SEEDS = (100, 101, 102)  # the finals have others: a setting chosen by lucky seeds would keep their luck
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


def screen_cifar10(important: Any = None, *, schedule: Schedule = SHORT) -> Study:
    """CIFAR-10's columns, screened: cat, dog, airplane unless told.

    >>> cifar10(["dog"]).seeds
    (100, 101, 102)
    """
    return _screening("cifar10", important, schedule)


def screen_gtsrb(important: Any = None, *, schedule: Schedule = SHORT) -> Study:
    """GTSRB's columns, screened: limit-80-end, no-passing-end, limit-80 unless told."""
    return _screening("gtsrb", important, schedule)


def _screening(data: str, important: Any, schedule: Schedule) -> Study:
    columns = find_columns(data, important)
    return study(f"screen.{data}", data, columns, GRID, seeds=SEEDS, training=find_schedule(schedule))


MARGINS = [4 * MARGIN_UNIT, 8 * MARGIN_UNIT]


def digits(important: Any = "worst", *, schedule: str | Training = "fast", trials: int = 5) -> Study:
    """A small study on the embedded digits: minutes on a CPU."""
    return study(
        "digits",
        "digits",
        important,
        {"ce": {}, "wce": {"w": [4, 8]}, "l2softmax": {"s": [8]}, "camri": {"m": MARGINS, "s": [8]}},
        seeds=trials,
        training=_small(schedule),
        val_fraction=0.3,
    )


def digits_pair(*, schedule: str | Training = "fast", trials: int = 5) -> Study:
    """Two digits important at once, the second at half strength: the question the paper leaves open."""
    return digits({"8": 1.0, "3": 0.5}, schedule=schedule, trials=trials).with_(name="digits.pair")


def _small(schedule: str | Training) -> Training:
    """The schedule with the small CNN; a training of one's own stays as it is."""
    if isinstance(schedule, Training):
        return schedule
    return paper.find_schedule(schedule).with_(model="small")


@dataclass(frozen=True)
class Recipe:
    """A recipe's name on the command line, its function, and a line about it."""

    name: str
    make: Callable[..., Study]
    about: str

    def __call__(self, **given: Any) -> Study:
        """The study; what the recipe does not take is refused by name."""
        takes = [name for name in inspect.signature(self.make).parameters if name not in _fixed(self.make)]
        for name in given:
            if name not in takes:
                raise InputError(
                    f"{self.name} does not take {name}={given[name]!r}; {closest(name, takes)}", argument=name
                )
        return self.make(**given)


def _fixed(make: Callable[..., Study]) -> dict[str, Any]:
    return make.keywords if isinstance(make, functools.partial) else {}


def _recipes() -> dict[str, Recipe]:
    found = []
    for data, columns in paper.COLUMNS.items():
        make = getattr(paper, data)
        title = {"cifar10": "CIFAR-10", "gtsrb": "GTSRB", "awa2": "AwA2"}[data]
        found.append(Recipe(f"paper.{data}", make, f"Table I, {title}: {', '.join(columns)}"))
        for name in columns:
            column = functools.partial(make, important=name)
            found.append(Recipe(f"paper.{data}.{name}", column, f"Table I, {title}: the column of {name}"))
    for data, title, make in (("cifar10", "CIFAR-10", screen_cifar10), ("gtsrb", "GTSRB", screen_gtsrb)):
        found.append(Recipe(f"screen.{data}", make, f"{title}'s columns and rivals in short trials, for finalists"))
    found.append(Recipe("paper.mnist_2d", paper.mnist_2d, 'Fig. 6: MNIST in two features, "3" important'))
    found.append(Recipe("digits", digits, "the embedded digits, worst class important; minutes on a CPU"))
    found.append(Recipe("digits.pair", digits_pair, "two digits important at once, one at half strength"))
    return {recipe.name: recipe for recipe in found}


RECIPES = _recipes()


def find_study(name: str, **given: Any) -> Study:
    """The study of a recipe, of a TOML file, or of the JSON that `Study.to_json` makes, which is taken as it is.

    `given` (schedule, rule, trials, …) goes to a recipe or a TOML file.

    >>> find_study("paper.cifar10.cat", trials=3).seeds
    (0, 1, 2)
    """
    from camri.study.study_file import read_json, read_study

    if name in RECIPES:
        return RECIPES[name](**given)
    if Path(name).suffix == ".json":
        if given:
            told = ", ".join(f"{key}={value!r}" for key, value in given.items())
            raise InputError(f"{name} holds a whole study, so {told} cannot be given beside it; change the file")
        return read_json(name)
    if Path(name).suffix == ".toml" or Path(name).is_file():
        return read_study(name, **given)
    raise InputError(f"study {name!r} is neither a recipe nor a TOML or JSON file; {closest(name, RECIPES, shown=20)}")
