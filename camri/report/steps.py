"""What each step of `camri fit` gave, apart: better training, the shift, the method. Read from the run's notes."""

from collections.abc import Mapping
from typing import Any

from camri.report.numbers import in_a_hundred, points, span
from camri.report.reading import Reading
from camri.report.table import BLANK, Table, cells

NOTE = "steps"  # the store's note: a list of steps, the state before the first of them first


def steps_table(reading: Reading) -> Table | None:
    """The steps one by one, each with what it added; None for a run that was no fit."""
    told = reading.run.note(NOTE)
    if not told:
        return None
    rows = tuple(
        cells(
            one["title"],
            f"{one['recall']:.3f}",
            f"{one['hits']}/{one['num']}",
            f"{one['accuracy']:.3f}",
            in_a_hundred(one["false_alarms"]) if "false_alarms" in one else BLANK,  # earlier versions told none
            _interval(one["recall_gain"]),
            _interval(one["accuracy_gain"]),
        )
        for one in told
    )
    return Table(
        caption="From plain cross-entropy to what was chosen, step by step.",
        header=("step", "recall", "hits / n", "accuracy", "false alarms", "recall added", "accuracy added"),
        groups=(rows,),
        records=tuple(_record(one) for one in told),
        notes=(
            "Test data, mean over models of new seeds, the same for every row. What a step adds is in points of a "
            "hundred over the row above it (the last row: over the first), with 95 % intervals over seeds and test "
            "data. False alarms: data of no important class that are taken for one, in a hundred of all. Training, "
            "setting and shifts were chosen on validation data. A number in brackets behind a setting: the models that "
            "were given it.",
        ),
    )


def _interval(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return BLANK
    if found["low"] is None:  # models were too few for one
        return points(found["estimate"])
    return span(found["estimate"], found["low"], found["high"])


def _record(one: Mapping[str, Any]) -> dict[str, Any]:
    record = {name: one[name] for name in ("title", "recall", "hits", "num", "accuracy")}
    record["false_alarms"] = one.get("false_alarms")
    for name in ("recall_gain", "accuracy_gain", "false_alarms_added"):
        record |= {f"{name}_{end}": (one.get(name) or {}).get(end) for end in ("estimate", "low", "high")}
    return record
