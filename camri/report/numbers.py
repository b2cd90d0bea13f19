"""Numbers as tables and sentences show them: means with their spread, differences with their intervals, p."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from camri.report.table import BLANK
from camri.stats import Difference

ENDS = ("", "_low", "_high")  # of a difference in a record
Record = Mapping[str, Any]  # what JSON can hold


def spread(record: Record, name: str) -> str:
    """Mean ± sd as the paper prints it; one trial has no sd.

    >>> spread({"recall_mean": 0.75, "recall_sd": 0.0707, "num_trials": 2}, "recall")
    '0.750 ± 0.071'
    """
    mean = f"{record[f'{name}_mean']:.3f}"
    return mean if record["num_trials"] == 1 else f"{mean} ± {record[f'{name}_sd']:.3f}"


def points(value: float, decimals: int = 1) -> str:
    """A difference in points of a hundred, with its sign.

    >>> points(0.0312), points(-0.004), points(0.0), points(-0.00004, decimals=2)
    ('+3.1', '−0.4', '0.0', '0.00')
    """
    text = f"{100 * value:+.{decimals}f}"
    return text[1:] if not text.strip("+-0.") else text.replace("-", "−")


def in_a_hundred(share: float) -> str:
    """A small share, such as that of false alarms, in a hundred with two decimals.

    >>> in_a_hundred(0.0124), in_a_hundred(0.0)
    ('1.24', '0.00')
    """
    return f"{100 * share:.2f}"


def interval(found: Difference) -> str:
    """A difference in points with its 95 % interval."""
    return span(found.estimate, found.low, found.high)


def span(estimate: float, low: float, high: float, decimals: int = 1) -> str:
    """
    >>> span(0.012, -0.004, 0.028)
    '+1.2 [−0.4, +2.8]'
    """
    shown, lower, upper = (points(value, decimals) for value in (estimate, low, high))
    return f"{shown} [{lower}, {upper}]"


def p_value(p: float | None) -> str:
    """
    >>> p_value(0.0004), p_value(0.21), p_value(float("nan")), p_value(None)
    ('< 0.001', '0.21', '–', '–')
    """
    return BLANK if p is None or np.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.2g}"


def ends_of(name: str, found: Difference | None) -> dict[str, float | None]:
    """A difference as a record has it; `interval_of` shows it."""
    values = (None,) * 3 if found is None else (found.estimate, found.low, found.high)
    return {f"{name}{end}": value for end, value in zip(ENDS, values, strict=True)}


def interval_of(record: Record, name: str, decimals: int = 1) -> str:
    """A record's difference in points with its 95 % interval."""
    estimate, low, high = (record[f"{name}{end}"] for end in ENDS)
    return BLANK if estimate is None else span(estimate, low, high, decimals)
