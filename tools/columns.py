"""What training for a class adds to the best free rule, in all columns and with both models: one table, one figure.

Both sides decide by a threshold on the class's probability, which needs no training and has the fewest false alarms at
a recall. The numbers are the gap records of results folders; `ranked` shows what benchmarks/variants/rank.py stored.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from camri.errors import InputError
from camri.methods import title_of
from camri.report.results import Results
from camri.report.tables import BLANK, Cell, Table, cells, interval_of, two_decimals
from camri.report.theme import PRINT, Figure, Panel, drawing, tips
from camri.study.verdict import LEAST_SEEDS, correct_several, is_significant
from camri.text import points

MODELS = {"small": "small CNN", "paper": "authors’ CNN"}
TITLES = {"cifar10": "CIFAR-10", "gtsrb": "GTSRB", "tiny-imagenet-animals64": "Tiny ImageNet animals"}
ARMS = {  # of benchmarks/variants, which need not be installed here
    "margin_beside_one_vs_rest": "two-sided margin + one-vs-rest",
    "margin_hard_one_vs_rest": "hard-negative margin + one-vs-rest",
}
ENDS = ("", "_low", "_high")
ORDER = ("CIFAR-10", "GTSRB", "Tiny ImageNet animals")


def arm_title(method: str) -> str:
    """The title of a method, or of a variant."""
    return ARMS.get(method) or title_of(method)


def column_records(results: Sequence[Results], method: str) -> list[dict[str, Any]]:
    """The method's gap records of all results, with data, model and p corrected over all of them (Holm)."""
    found = []
    for one in results:
        data = one.verdict["data"]
        named = {"data": TITLES.get(data, data), "model": MODELS[one.verdict["training"]["model"]]}
        for record in one.records("gaps"):
            if record["method"] == method:
                of_ce = record["alarms_of_ce"] + record["alarms_of_ce_threshold"]
                relative = {f"relative{end}": _share(record[f"alarms_threshold{end}"], of_ce) for end in ENDS}
                found.append({**record, **named, "alarms_of_ce_with_threshold": of_ce, **relative})
    found.sort(key=lambda one: ORDER.index(one["data"]) if one["data"] in ORDER else len(ORDER))
    for record, p in zip(found, correct_several([one["p_alarms_threshold"] for one in found]), strict=True):
        record["p_holm"] = p
    return found


def _share(part: float, whole: float) -> float | None:
    """A change relative to the whole; an interval's end below −100 % is cut there."""
    return max(part / whole, -1.0) if whole else None


def columns_table(results: Sequence[Results], methods: Sequence[str]) -> Table:
    """False alarms and accuracy of methods against cross-entropy, both with thresholds: a row a column."""
    every = {method: column_records(results, method) for method in methods}
    places = list(dict.fromkeys((one["data"], one["important"]) for own in every.values() for one in own))
    arms = [
        (model, method, {(one["data"], one["important"]): one for one in own if one["model"] == model})
        for model in MODELS.values()
        for method, own in every.items()
        if any(one["model"] == model for one in own)
    ]
    if not arms:
        raise InputError(f"no results of {', '.join(methods)}; methods are those of the studies")

    def shown(one: Mapping[str, Any] | None) -> tuple[Cell, Cell]:
        if one is None or one["relative"] is None:
            return Cell(BLANK), Cell(BLANK)
        is_fewer = is_significant(one["p_holm"], one["num_trials"]) and one["alarms_threshold"] < 0
        return Cell(_percent(one), bold=bool(is_fewer)), Cell(interval_of(one, "accuracy_threshold", decimals=2))

    def header(model: str, method: str, own: Mapping[Any, Mapping[str, Any]]) -> tuple[str, str]:
        counts = sorted({one["num_trials"] for one in own.values()})
        seeds = " or ".join(map(str, counts)) if len(counts) < 3 else f"{counts[0]} to {counts[-1]}"
        settings = sorted({one["setting"].removeprefix(f"{method} ") for one in own.values()})
        return f"{model}, {arm_title(method)} {', '.join(settings)} ({seeds} seeds): Δ false alarms", "Δ accuracy"

    return Table(
        "Training for a class against cross-entropy (CE) at equal recall, both with a threshold on the probability.",
        ("column", *(name for arm in arms for name in header(*arm))),
        (
            tuple(
                (Cell(": ".join(place)), *(cell for *_, own in arms for cell in shown(own.get(place))))
                for place in places
            ),
        ),
        tuple(one for own in every.values() for one in own),
        notes=(
            "Test data. False alarms: inputs of other classes predicted as the class; Δ relative to CE’s. Δ accuracy: "
            "percentage points. Mean over recalls from CE’s own to half way to 1. 95 % confidence intervals over seeds "
            f"and test data (from {LEAST_SEEDS} seeds on). Bold: fewer false alarms, p < 0.05 after Holm’s correction "
            "over all cells of a method.",
        ),
    )


def _percent(one: Mapping[str, Any]) -> str:
    shown = [points(one[f"relative{end}"], decimals=0) for end in ENDS]
    return f"{shown[0]} %" if one["num_trials"] < LEAST_SEEDS else f"{shown[0]} % [{shown[1]}, {shown[2]}]"


def columns_figure(results: Sequence[Results], methods: Sequence[str]) -> Figure:
    """Change of false alarms by column, a panel a model, a dot a method."""
    records = [
        {
            "column": f"{one['data'].removesuffix(' animals')}: {one['important']}",
            "model": one["model"],
            "method": arm_title(method),
            "setting": one["setting"],
            "trials": one["num_trials"],
            **{
                name: round(100 * one[f"relative{end}"], 2)
                for name, end in zip(("change", "low", "high"), ENDS, strict=True)
            },
        }
        for method in methods
        for one in column_records(results, method)
        if one["relative"] is not None
    ]
    if not records:
        raise InputError(f"no results of {', '.join(methods)}")
    columns = list(dict.fromkeys(one["column"] for one in records))
    shades = alt.Scale(domain=[arm_title(method) for method in methods], range=[PRINT.down, PRINT.up, PRINT.muted])
    low, high = (end(one[name] for one in records) for end, name in ((min, "low"), (max, "high")))
    scale = alt.Scale(domain=[max(low, -100), min(max(high, 0), 40) + 2], nice=False, clamp=True)
    panels = []
    for model in dict.fromkeys(one["model"] for one in records):
        own = [one for one in records if one["model"] == model]
        base = drawing(own).encode(
            y=alt.Y("column:N", title=None, sort=columns, axis=alt.Axis(labelLimit=260)),
            yOffset=alt.YOffset("method:N", sort=[arm_title(method) for method in methods]),
            color=alt.Color("method:N", scale=shades, title=None, sort=[arm_title(method) for method in methods]),
            tooltip=tips("column", "method", "setting", "change", "low", "high", "trials"),
        )
        along = alt.X("low:Q", title="false alarms, change in %", scale=scale)
        zero = drawing([{"at": 0}]).mark_rule(strokeDash=[4, 3], color=PRINT.muted).encode(x="at:Q")
        line, dot = base.mark_rule(strokeWidth=2.5), base.mark_point(filled=True, size=70, opacity=1)
        layers = alt.layer(zero, line.encode(along, alt.X2("high:Q")), dot.encode(alt.X("change:Q")))
        panels.append(Panel(model, layers, 34 * len(dict.fromkeys(one["column"] for one in own)) + 20))
    return Figure(
        "columns",
        "False alarms at equal recall",
        "Change of false alarms at equal recall against cross-entropy, both with a threshold on the class’s "
        "probability; test data, mean over recalls from cross-entropy’s own to half way to 1. Lines: 95 % confidence "
        "intervals over seeds and test data, not corrected for several columns, cut at −100 and +40 %. Left of 0: "
        "fewer false alarms.",
        tuple(panels),
        tuple(records),
        across=2,
    )


def ranked_table(path: Path) -> Table:
    """The settings of a screening by false alarms at equal recall on validation data, against cross-entropy."""
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); benchmarks/variants/rank.py --json writes it") from None
    first = records[0]

    def row(one: Mapping[str, Any]) -> tuple[Cell, ...]:
        shown = [one["setting"], str(one["num_seeds"])]
        for rule in ("threshold", "shift"):
            found = {**one[rule], "num_trials": one["num_seeds"]}
            relative = {f"relative{end}": _share(found[f"alarms{end}"], found["alarms_of_ce"]) for end in ENDS}
            shown += [_percent({**found, **relative}), interval_of(found, "accuracy", decimals=2)]
        return cells(*shown)

    return Table(
        f"Screening for “{first['column']}”: against cross-entropy at equal recall, both under the same rule.",
        (
            "setting",
            "seeds",
            *(f"Δ {name}, {rule}" for rule in ("threshold", "shift") for name in ("false alarms", "accuracy")),
        ),
        (tuple(row(one) for one in records[1:]),),
        tuple(records),
        notes=(
            f"Validation data, mean over recalls from {first['recalls'][0]:.3f} to {first['recalls'][-1]:.3f}. "
            f"Cross-entropy’s false alarms: {two_decimals(first['threshold']['alarms_of_ce'])} % of all inputs with a "
            f"threshold, {two_decimals(first['shift']['alarms_of_ce'])} % with a shift. Δ false alarms: relative. Δ "
            "accuracy: percentage points. 95 % confidence intervals over seeds and images, not corrected for the "
            "number of settings.",
        ),
        words=("setting",),
    )
