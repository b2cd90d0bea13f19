"""How training went: validation recall and accuracy after every epoch, and how far they wander near its end.

A rate that does not fall leaves a model moving, so its last epoch is a draw: what wanders there is luck, and the mean
of many epochs tells methods apart better than their last models do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from camri.errors import InputError
from camri.metrics import Array
from camri.report.gaps import gap_of
from camri.report.numbers import interval_of
from camri.report.reading import Reading, Tried
from camri.report.table import BLANK, Cell, Table, cells, table_by_column
from camri.report.theme import LINES, PRINT, Figure, Look, Panel, drawing
from camri.report.titles import BASELINE, in_order, title_of
from camri.report.verdict import ColumnVerdict
from camri.stats import summarise
from camri.words import quoted

FIGURES = ("recall", "accuracy")
LATE = 3  # the last third of the epochs is near the end
LEAST = 3  # epochs in it, or there is nothing to wander


def follow_training(reading: Reading, verdicts: Sequence[ColumnVerdict]) -> list[dict[str, Any]]:
    """A record for each column and method, cross-entropy first: its best setting on validation data, epoch by epoch.

    `recall` and `accuracy` are means over trials, one an epoch; `…_late` their mean over the last third of the epochs,
    `…_wander` the standard deviation of one model's over those epochs (root mean square over trials), and `…_gain` what
    the late means have over cross-entropy's of the same seeds, with the t interval over seeds.
    """
    if not reading.has_validation:
        raise InputError("no validation data were held out, so nothing was measured after each epoch")
    return [record for one in verdicts for record in _column(reading, one)]


def _column(reading: Reading, one: ColumnVerdict) -> list[dict[str, Any]]:
    chosen = {BASELINE: one.baseline, **one.own}
    baseline: dict[int, Array] = {}
    records = []
    for method in sorted(in_order(set(chosen)), key=lambda name: name != BASELINE):
        setting = chosen[method]
        by_seed = {} if setting is None else trial_curves(reading, setting, one.column.indices)
        if setting is None or not by_seed:  # an ensemble was not trained, so it has no epochs
            continue
        if method == BASELINE:
            baseline = by_seed
        about = {"column": one.column.number, "important": one.column.title, "method": method, "setting": setting.title}
        records.append({**about, "num_trials": len(by_seed), **_figures(by_seed, baseline)})
    return records


def trial_curves(reading: Reading, setting: Tried, important: Sequence[int]) -> dict[int, Array]:
    """Seed -> (2, E): recall of the important classes and accuracy on validation data after each epoch."""
    labels = reading.run.labels("val")
    counts = np.bincount(labels, minlength=len(reading.classes))
    found = {}
    for row in setting.rows:
        hits = reading.run.val_hits(row)
        if hits is not None and hits.size:
            recall = (hits[:, list(important)] / counts[list(important)]).mean(axis=1)
            found[row.seed] = np.stack([recall, hits.sum(axis=1) / len(labels)])
    return found


def _figures(by_seed: Mapping[int, Array], baseline: Mapping[int, Array]) -> dict[str, Any]:
    curves = np.stack(list(by_seed.values()))  # (trials, 2, E)
    late = curves.shape[-1] // LATE
    record: dict[str, Any] = {"epochs": curves.shape[-1], "late_epochs": late if late >= LEAST else 0}
    for place, name in enumerate(FIGURES):
        record[name] = curves[:, place].mean(axis=0).round(5).tolist()
        if late < LEAST:
            continue
        own = curves[:, place, -late:]
        record[f"{name}_late"] = float(own.mean())
        record[f"{name}_wander"] = float(np.sqrt(own.var(axis=1, ddof=1).mean()))
        gains = [
            by_seed[seed][place, -late:].mean() - theirs[place, -late:].mean()
            for seed, theirs in baseline.items()
            if seed in by_seed and baseline is not by_seed
        ]
        gain = summarise(gains) if gains else None
        record |= {
            f"{name}_gain": None if gain is None else gain.mean,
            f"{name}_gain_low": None if gain is None else gain.low,
            f"{name}_gain_high": None if gain is None else gain.high,
        }
    return record


def table_of_epochs(records: Sequence[Mapping[str, Any]]) -> Table | None:
    """Recall and accuracy near the end of training, of the records; None where there were too few epochs."""
    told = [one for one in records if one["late_epochs"]]
    if not told:
        return None

    def row(one: Mapping[str, Any]) -> tuple[Cell, ...]:
        return cells(
            title_of(one["method"]),
            one["setting"],
            f"{one['recall_late']:.3f}",
            f"{100 * one['recall_wander']:.1f}",
            _gain(one, "recall"),
            f"{one['accuracy_late']:.3f}",
            f"{100 * one['accuracy_wander']:.1f}",
            _gain(one, "accuracy"),
            str(one["num_trials"]),
        )

    late = told[0]["late_epochs"]
    return table_by_column(
        [{name: value for name, value in one.items() if name not in FIGURES} for one in told],
        f"Near the end of training: the last {late} of {told[0]['epochs']} epochs.",
        (
            "method", "setting", "recall", "recall wanders", "recall over CE",
            "accuracy", "accuracy wanders", "accuracy over CE", "trials",
        ),
        row,
        f"Validation data, models as trained, mean over the last {late} epochs and over trials. Wanders: the "
        "standard deviation of one model over those epochs, in points of a hundred; a model that is taken where "
        "training happens to end is off by so much. Differences in points with 95 % intervals over seeds. CE: "
        "cross-entropy.",
    )  # fmt: skip


def _gain(one: Mapping[str, Any], name: str) -> str:
    return (
        BLANK if one[f"{name}_gain_low"] is None else (interval_of if name == "recall" else gap_of)(one, f"{name}_gain")
    )


def draw_epochs(records: Sequence[Mapping[str, Any]], look: Look = PRINT) -> Figure | None:
    """Recall and accuracy by epoch, two panels a column; None of nothing."""
    panels, drawn = [], []
    for number in dict.fromkeys(one["column"] for one in records):
        own = [one for one in records if one["column"] == number]
        for name in FIGURES:
            points = [
                {
                    "column": number,
                    "figure": name,
                    "method": title_of(one["method"]),
                    "setting": one["setting"],
                    "epoch": epoch,
                    "value": value,
                    "trials": one["num_trials"],
                }
                for one in own
                for epoch, value in enumerate(one[name], start=1)
            ]
            drawn += points
            important = quoted(own[0]["important"])
            title = f"recall of {important}" if name == "recall" else f"accuracy of models for {important}"
            panels.append(Panel(title, _chart(points, [one["method"] for one in own], name, look), 240))
    if not panels:
        return None
    return Figure(
        "training",
        "How training went",
        "Recall of the important class and accuracy on validation data after each epoch, models as trained, mean over "
        "trials, each method at its best setting. A line that still rises at its end was not trained out; one that "
        "jumps there leaves the last model to luck: a rate that falls to 0, or averaged weights, calm it.",
        tuple(panels),
        tuple(drawn),
        across=len(FIGURES),
    )


def _chart(points: Sequence[dict[str, Any]], methods: Sequence[str], name: str, look: Look) -> Any:
    colors, dashes = look.methods(methods)
    # The first epochs climb from nothing: drawn whole, they would press the rest into a line.
    shown = [one["value"] for one in points if one["epoch"] > points[-1]["epoch"] // 10]
    return (
        drawing(points)
        .mark_line(strokeWidth=1.5, clip=True)
        .encode(
            alt.X("epoch:Q", scale=alt.Scale(nice=False, zero=False), axis=alt.Axis(tickMinStep=1)),
            alt.Y("value:Q", title=name, scale=alt.Scale(domain=[min(shown), max(shown)])),
            alt.Color("method:N", scale=colors, title=None, legend=LINES),
            alt.StrokeDash("method:N", scale=dashes, title=None, legend=LINES),
            tooltip=["method:N", "setting:N", "epoch:Q", alt.Tooltip("value:Q", format=".4f"), "trials:Q"],
        )
    )
