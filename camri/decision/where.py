"""Where a rule will run: how frequent classes are there, and how many rows come a day."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from camri.decision.goals import as_number
from camri.decision.scores import Array
from camri.errors import InputError, closest


@dataclass(frozen=True)
class Where:
    """Where the rule will run: how frequent classes are there, and how many rows come a day.

    prevalence: class index -> its share of all rows there. Recall does not depend on it; accuracy, precision, alarms
    and costs do.
    """

    prevalence: Mapping[int, float] = field(default_factory=dict)
    rows_per_day: float | None = None


def make_where(
    classes: Sequence[str], labels: Array, prevalence: Mapping[Any, float] | None, rows_per_day: float | None = None
) -> Where:
    """Where the rule will run, checked."""
    found: dict[int, float] = {}
    for name, share in (prevalence or {}).items():
        if str(name) not in classes:
            hint = closest(name, classes)
            raise InputError(f"prevalence names {name!r}, which is not a class; {hint}", argument="prevalence")
        value = as_number(share, "prevalence", "a share, say 0.001")
        if not 0 < value < 1:
            raise InputError(
                f"prevalence {name}={share} is not allowed; give a share above 0 and below 1", "prevalence"
            )
        found[classes.index(str(name))] = value
    counts = np.bincount(labels, minlength=len(classes))
    if found and (sum(found.values()) >= 1 or not np.delete(counts, list(found)).sum()):
        raise InputError(
            f"prevalence names shares of {sum(found.values()):g} in all; leave a rest for the other classes",
            argument="prevalence",
        )
    if empty := [classes[index] for index in found if not counts[index]]:
        raise InputError(f"prevalence names {empty[0]!r}, of which there are no rows; leave it out", "prevalence")
    if rows_per_day is None:
        return Where(found)
    number = as_number(rows_per_day, "rows_per_day", "a number of rows, say 200000")
    if number <= 0:
        raise InputError(f"rows_per_day={rows_per_day!r} is not allowed; give a number above 0", "rows_per_day")
    return Where(found, number)


def strata_of(labels: Array, where: Where) -> tuple[Array, Array] | None:
    """The parts of rows whose frequency is known, the last one all other classes, and their shares; None without."""
    if not where.prevalence:
        return None
    parts = np.full(len(labels), len(where.prevalence))
    for part, index in enumerate(where.prevalence):
        parts[labels == index] = part
    shares = [*where.prevalence.values(), 1 - sum(where.prevalence.values())]
    return parts, np.array(shares)


def weights_of(labels: Array, where: Where) -> Array | None:
    """Weights (N,) that make the classes as frequent as where the rule will run; None where they are."""
    found = strata_of(labels, where)
    if found is None:
        return None
    parts, shares = found
    return np.asarray((shares * len(labels) / np.maximum(np.bincount(parts, minlength=len(shares)), 1))[parts])
