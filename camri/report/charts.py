"""Charts beyond the paper's: who paid, angles, cost. The curve is in `curve`.

The recall–accuracy curve of every method under a shift of the important classes' scores.

How training went: validation recall and accuracy after every epoch, and how far they wander near its end.

A rate that does not fall leaves a model moving, so its last epoch is a draw: what wanders there is luck, and the mean
of many epochs tells methods apart better than their last models do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from camri.decision import Curve, average, trace
from camri.errors import InputError
from camri.methods import BASELINE, in_order, title_of
from camri.metrics import Array
from camri.report.equal_recall import gap_of
from camri.report.table import BLANK, Cell, Table, cells, interval_of, table_by_column
from camri.report.tables import ANGLES_OF, picked
from camri.report.theme import LINES, PRINT, Figure, Look, Panel, drawing
from camri.stats import summarise
from camri.study.reader import RunReader, SettingResults
from camri.study.verdict import ColumnVerdict, Judged
from camri.text import quoted

MOST_CLASSES = 20  # more cannot be read at phone width


def subject(one: ColumnVerdict) -> Judged | None:
    """The judgement that “who paid” is about: of the chosen setting, else of CAMRI's; not of cross-entropy itself."""
    rows = [one.best, one.by_method.get("camri"), *one.by_method.values()]
    return next((row for row in rows if row is not None and not row.keeps_baseline), None)


def who_paid(reading: RunReader, verdicts: Sequence[ColumnVerdict], look: Look = PRINT) -> Figure | None:
    """Change of every class's recall with its interval, against cross-entropy as it is and shifted."""
    panels, records = [], []
    for one in verdicts:
        row = subject(one) if one.best is not None else None
        if row is None:
            continue
        found = _paid_records(reading, one, row)
        records += found
        title = f"{quoted(one.column.title)}: {picked(one, row, in_words=True)}"
        panels.append(Panel(title, _paid_chart(found, look), 60 + 26 * len({record["class"] for record in found})))
    if not panels:
        return None
    return Figure(
        "who-paid",
        "Who paid",
        "Recall of every class, gained or lost, in points, with 95 % intervals over seeds and test data: the important "
        "class first (diamond), then those that lost most. An interval that crosses 0 may be chance, and where "
        "nothing changed one in twenty does not cross it. Against the shifted cross-entropy, what is left is what the "
        "method itself changes."
        + (f" Of {len(reading.classes)} classes those {MOST_CLASSES} that changed most." if _is_cut(reading) else ""),
        tuple(panels),
        tuple(records),
    )


def _is_cut(reading: RunReader) -> bool:
    return len(reading.classes) > MOST_CLASSES


def _paid_records(reading: RunReader, one: ColumnVerdict, row: Judged) -> list[dict[str, Any]]:
    arms = {"cross-entropy": "baseline", "cross-entropy, shifted": "baseline shifted"}
    gains = {title: row.judgement.gains[arm].by_class for title, arm in arms.items()}
    first = gains["cross-entropy"]
    others = sorted((index for index in first if index not in one.column.indices), key=lambda i: first[i].estimate)
    if _is_cut(reading):
        kept = sorted(others, key=lambda i: -abs(first[i].estimate))[: MOST_CLASSES - len(one.column.indices)]
        others = [index for index in others if index in kept]
    return [
        {
            "column": one.column.title,
            "class": reading.classes[index],
            "place": place,
            "important": index in one.column.indices,
            "against": title,
            "gain": round(100 * found.estimate, 3),
            "low": round(100 * found.low, 3),
            "high": round(100 * found.high, 3),
        }
        for title, by_class in gains.items()
        for place, index in enumerate([*one.column.indices, *others])
        for found in [by_class[index]]
    ]


def _paid_chart(records: Sequence[dict[str, Any]], look: Look) -> Any:
    order = list(dict.fromkeys(record["class"] for record in sorted(records, key=lambda record: record["place"])))
    domain = ["cross-entropy", "cross-entropy, shifted"]
    base = drawing(records).encode(
        y=alt.Y("class:N", sort=order, title=None),
        yOffset=alt.YOffset("against:N", sort=domain),
        color=alt.Color(
            "against:N",
            scale=alt.Scale(domain=domain, range=[look.muted, look.down]),
            title="against",
            legend=alt.Legend(columns=1),
        ),
        tooltip=[
            "class:N",
            "against:N",
            *(alt.Tooltip(f"{name}:Q", title=f"{name} (points)", format="+.1f") for name in ("gain", "low", "high")),
        ],
    )
    axis = alt.X("low:Q", title="recall gained or lost (points)")
    bars = base.mark_rule(strokeWidth=2).encode(x=axis, x2="high:Q")
    dots = base.mark_point(filled=True, size=50).encode(
        x="gain:Q",
        shape=alt.Shape("important:N", scale=alt.Scale(domain=[True, False], range=["diamond", "circle"]), legend=None),
    )
    zero = drawing([{"x": 0}]).mark_rule(color=look.ink).encode(x="x:Q")
    return alt.layer(zero, bars, dots)


def angle_strips(reading: RunReader, verdicts: Sequence[ColumnVerdict], look: Look = PRINT) -> Figure:
    """The sd of every class's angles to its weight vector, a row a method; the important class stands out."""
    panels, records = [], []
    for one in verdicts:
        methods = [name for name in reading.methods() if one.of(name)]
        found = []
        for name in methods:
            setting = one.shown(name)
            assert setting is not None
            mean, sd = reading.angles(setting)
            found += [
                {
                    "method": title_of(name),
                    "setting": setting.title,
                    "class": reading.classes[index],
                    "kind": "important" if index in one.column.indices else "other classes",
                    "mean": round(float(mean[index]), 4),
                    "sd": round(float(sd[index]), 4),
                }
                for index in range(len(sd))
                if np.isfinite(sd[index])
            ]
        records += found
        base = drawing(found).encode(
            alt.X("sd:Q", title="sd of the angle (radians)"),
            alt.Y("method:N", sort=[title_of(name) for name in methods], title=None),
            tooltip=[
                "method:N",
                "setting:N",
                "class:N",
                alt.Tooltip("sd:Q", format=".4f"),
                alt.Tooltip("mean:Q", format=".3f"),
            ],
        )
        others = base.transform_filter("datum.kind == 'other classes'").mark_tick(color=look.muted, thickness=1.5)
        own = base.transform_filter("datum.kind == 'important'").mark_point(
            filled=True, size=110, color=look.down, shape="diamond"
        )
        panels.append(Panel(quoted(one.column.title), alt.layer(others, own), 50 + 34 * len(methods)))
    return Figure(
        "angles",
        "Angles: is the important class narrower?",
        "Spread of the angle between features and their class’s weight vector, "
        f"{ANGLES_OF[reading.angles_of]}, mean over trials: the diamond is the important class, ticks are the others. "
        "The paper expects the diamond left of all ticks for CAMRI. Scales differ by method, so compare within a row.",
        tuple(panels),
        tuple(records),
    )


def cost(reading: RunReader, look: Look = PRINT) -> Figure:
    """Device seconds a trial, a bar a method: mean, least and most."""
    records: list[dict[str, Any]] = []
    for name in reading.methods():
        taken = [row.device_s for row in reading.rows if row.method == name and row.status == "done"]
        if taken:
            figures = {"mean": sum(taken) / len(taken), "least": min(taken), "most": max(taken)}
            rounded = {key: round(value, 3) for key, value in figures.items()}
            records.append({"method": title_of(name), "trials": len(taken), **rounded})
    base = drawing(records).encode(
        y=alt.Y("method:N", sort=[record["method"] for record in records], title=None),
        tooltip=["method:N", "trials:Q", "mean:Q", "least:Q", "most:Q"],
    )
    bars = base.mark_bar(color=look.muted, opacity=0.6).encode(
        x=alt.X("mean:Q", title="device time of a trial (seconds)")
    )
    ends = base.mark_rule(color=look.ink).encode(x="least:Q", x2="most:Q")
    return Figure(
        "cost",
        "Cost",
        "Device time of one trained model: the mean, and a line from the least to the most. A method that costs more "
        "than cross-entropy has to be worth it.",
        (Panel("", alt.layer(bars, ends), 40 + 28 * max(1, len(records))),),
        tuple(records),
    )


DEPTH = 0.03  # of accuracy below the baseline's: further down nobody wants to be
MOST_BANDS = 3  # methods; the bands of more are mud, so then only two have one
BANDED = ("camri", BASELINE)
BACK = 0.15  # of recall below the least of the models as trained: the curve's other end is of no use


def trace_curves(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> list[dict[str, Any]]:
    """What the curves draw, a column each: its accuracy floor and, for every method, the start and the line."""
    return [_trace(reading, one) for one in verdicts if one.settings]


def _trace(reading: RunReader, one: ColumnVerdict) -> dict[str, Any]:
    lines: list[dict[str, Any]] = []
    traced: list[list[Curve]] = []
    for name in [name for name in reading.methods() if one.of(name)]:
        setting = one.shown(name)
        assert setting is not None
        scores = [reading.scores(row, "test", one.column) for row in setting.rows]
        start = np.mean([[score.recall().mean(), score.accuracy()] for score in scores], axis=0)
        lines.append(
            {"method": name, "setting": setting.title, "num_trials": len(scores), "start": start.round(5).tolist()}
        )
        traced.append([trace(score) for score in scores])
    accuracies = {line["method"]: line["start"][1] for line in lines}
    floor = accuracies.get(BASELINE, min(accuracies.values()))
    grid = np.linspace(max(0.0, min(line["start"][0] for line in lines) - BACK), 1.0, 121)
    for line, drawn in zip(lines, traced, strict=True):
        # Of several important classes no common shift finds all images: one class takes some from another.
        band = average(drawn, grid[grid <= min(one.mean_recall[-1] for one in drawn)])
        kept = band.mean >= floor - DEPTH
        for name in ("recall", "mean", "sd"):
            line[name] = np.nan_to_num(getattr(band, name))[kept].round(5).tolist()
    return {
        "column": one.column.number,
        "important": one.column.title,
        "num_important": len(one.column.indices),
        "floor": floor,
        "lines": lines,
    }


def draw_curves(columns: Sequence[Mapping[str, Any]], look: Look = PRINT) -> Figure:
    """Accuracy against recall under the shift, one line a method, with a band of one sd: what `trace_curves` found."""
    panels: list[Panel] = []
    records: list[dict[str, Any]] = []
    num_methods = max((len(column["lines"]) for column in columns), default=0)
    banded = [title_of(name) for name in BANDED] if num_methods > MOST_BANDS else None
    for column in columns:
        lines = [point for line in column["lines"] for point in _points(line)]
        starts = [{**_named(line), **_at(*line["start"]), "floor": column["floor"]} for line in column["lines"]]
        records += [{"column": column["column"], **point} for point in lines]
        colors, dashes = look.methods([line["method"] for line in column["lines"]])
        bands = [point for point in lines if banded is None or point["method"] in banded]
        is_several = column.get("num_important", 1) > 1
        recall = "mean recall of the important classes" if is_several else "recall of the important class"
        chart = _curve_chart(lines, bands, starts, colors, dashes, column["column"], recall, look)
        panels.append(Panel(quoted(column["important"]), chart, 340))
    return Figure(
        "curve",
        "The curve: what recall costs",
        "Adding a constant to the important class’s score moves any trained model along its line. A line above "
        "cross-entropy’s is a better model; a point further right on the same line is only another shift. Dots: the "
        "models as trained. Lines: mean over trials on test data, each method at its best setting on validation "
        f"data; bands: ± one standard deviation{'' if banded is None else f' of {banded[0]} and {banded[1]}'}. The "
        "dashed rule is cross-entropy’s accuracy.",
        tuple(panels),
        tuple(records),
    )


def _points(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {**_named(line), **_at(recall, mean), "low": round(mean - sd, 5), "high": round(mean + sd, 5)}
        for recall, mean, sd in zip(line["recall"], line["mean"], line["sd"], strict=True)
    ]


def _named(line: Mapping[str, Any]) -> dict[str, Any]:
    title = title_of(line["method"])
    return {"method": title, "setting": line["setting"], "trials": line["num_trials"]}


def _at(recall: float, accuracy: float) -> dict[str, float]:
    return {"recall": recall, "accuracy": accuracy}


def _curve_chart(
    lines: Any, bands: Any, starts: Any, colors: alt.Scale, dashes: alt.Scale, number: int, recall: str, look: Look
) -> Any:
    # Of the bands what stands above the floor: at a recall of 1 one model's luck would take half of the height.
    upper = [one["high"] for one in bands if one["accuracy"] >= starts[0]["floor"]]
    most = max(upper + [one["accuracy"] for one in (*lines, *starts)], default=1.0)
    shared = alt.Scale(zero=False, nice=False, domain=[starts[0]["floor"] - DEPTH, min(1.0, most)])
    x = alt.X("recall:Q", title=recall, scale=alt.Scale(zero=False, nice=False))
    y = alt.Y("accuracy:Q", title="accuracy")
    color = alt.Color("method:N", scale=colors, title=None, legend=LINES)
    # A plain value, which buttons below the drawing set: a legend of several layers hears neither clicks nor keys.
    # Empty: all methods are as strong.
    picked = alt.param(name=f"picked{number}", value="")
    is_picked = f"{picked.name} == '' || datum.method == {picked.name}"
    near = alt.selection_point(on="pointerover", clear="pointerout", empty=False, name=f"near{number}")
    tips = [
        alt.Tooltip("method:N"),
        alt.Tooltip("setting:N"),
        alt.Tooltip("recall:Q", format=".3f"),
        alt.Tooltip("accuracy:Q", format=".4f"),
        alt.Tooltip("trials:Q"),
    ]
    faded = alt.condition(is_picked, alt.value(1.0), alt.value(0.12))
    base = drawing(lines)
    band = (
        drawing(bands)
        .mark_area(opacity=0.1, clip=True)
        .encode(
            x,
            alt.Y("low:Q", title="accuracy", scale=shared),
            alt.Y2("high:Q"),
            color,
            opacity=alt.condition(is_picked, alt.value(0.12), alt.value(0.02)),
        )
    )
    line = base.mark_line(strokeWidth=2, clip=True).encode(
        x, y, color, strokeDash=alt.StrokeDash("method:N", scale=dashes, title=None, legend=LINES), opacity=faded
    )
    hover = (
        base.mark_point(filled=True, size=150)  # a target that a finger or a mouse meets; unseen until then
        .encode(x, y, color, opacity=alt.condition(near, alt.value(1.0), alt.value(0.0)), tooltip=tips)
        .add_params(near)
    )
    floor = drawing(starts[:1]).mark_rule(strokeDash=[4, 3], color=look.muted).encode(y=alt.Y("floor:Q"))
    dots = (
        drawing(starts)
        .mark_point(filled=True, size=90, stroke=look.ink, strokeWidth=1, clip=True)
        .encode(x, y, color, opacity=faded, tooltip=tips)
    )
    return alt.layer(band, floor, line, dots, hover).add_params(picked)


FIGURES = ("recall", "accuracy")
LATE = 3  # the last third of the epochs is near the end
LEAST = 3  # epochs in it, or there is nothing to wander


def follow_training(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> list[dict[str, Any]]:
    """A record for each column and method, cross-entropy first: its best setting on validation data, epoch by epoch.

    `recall` and `accuracy` are means over trials, one an epoch; `…_late` their mean over the last third of the epochs,
    `…_wander` the standard deviation of one model's over those epochs (root mean square over trials), and `…_gain` what
    the late means have over cross-entropy's of the same seeds, with the t interval over seeds.
    """
    if not reading.has_validation:
        raise InputError("no validation data were held out, so nothing was measured after each epoch")
    return [record for one in verdicts for record in _column(reading, one)]


def _column(reading: RunReader, one: ColumnVerdict) -> list[dict[str, Any]]:
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


def trial_curves(reading: RunReader, setting: SettingResults, important: Sequence[int]) -> dict[int, Array]:
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
