"""What a user asks of a decision, from options: the goals of `camri.decision`."""

import csv
from collections.abc import Sequence
from os import PathLike

import numpy as np

from camri.decision import AtLeast, BestRecall, Goal, LeastCost
from camri.errors import InputError, closest
from camri.metrics import Array

Costs = str | PathLike[str] | Sequence[Sequence[float]]
CONFIDENCE = 0.95


def parse_goal(
    classes: Sequence[str],
    max_accuracy_drop: float = 0.0,
    at_least: float | None = None,
    cost_matrix: Costs | None = None,
    confidence: float = CONFIDENCE,
) -> Goal:
    """The goal; at most one of `max_accuracy_drop`, `at_least` and `cost_matrix` may be given.

    >>> parse_goal(["a", "b"], at_least=0.95)
    AtLeast(recall=0.95, confidence=0.95)
    """
    asked = {"max_accuracy_drop": max_accuracy_drop or None, "at_least": at_least, "cost_matrix": cost_matrix}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"give one goal, not {' and '.join(given)}", argument=given[1])
    if at_least is not None:
        return AtLeast(at_least, confidence)
    if cost_matrix is not None:
        return LeastCost(read_costs(cost_matrix, classes))
    return BestRecall(max_accuracy_drop)


def read_costs(source: Costs, classes: Sequence[str]) -> Array:
    """The costs (C, C), row = true class, column = predicted class, from numbers or a CSV file.

    A file has a first line with the names of the classes that are predicted, and lines that begin with the true class.
    """

    def refuse(problem: str) -> InputError:
        return InputError(f"cost_matrix={source}: {problem}", argument="cost_matrix")

    if isinstance(source, (str, PathLike)):
        try:
            with open(source, newline="", encoding="utf-8-sig") as file:
                (_, *predicted), *lines = [line for line in csv.reader(file) if line]
            costs = {line[0]: dict(zip(predicted, map(float, line[1:]), strict=True)) for line in lines}
        except OSError as error:
            raise refuse(f"it cannot be read ({error.strerror})") from None
        except (ValueError, IndexError, csv.Error) as error:
            raise refuse(
                f"it is no table of costs ({error}); give a CSV file with class names in row and column"
            ) from None
        for name in classes:
            if name not in costs or name not in predicted:
                raise refuse(f"class {name!r} is missing; {closest(name, list(costs))}")
        table = np.array([[costs[true][one] for one in classes] for true in classes])
    else:
        table = np.asarray(source, dtype=np.float64)
    num = len(classes)
    if table.shape != (num, num) or not np.isfinite(table).all():
        raise InputError(
            f"cost_matrix has shape {table.shape}; give {num} × {num} finite numbers, row = true class",
            argument="cost_matrix",
        )
    return table
