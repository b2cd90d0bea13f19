"""What training for a class adds to the best rule without training, in all columns and with both models.

Both sides decide by a threshold on the class's probability, which needs no training and has the fewest false alarms at
a recall. The numbers are the gap records of results folders; `ranked` shows stored rankings of settings.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from camri.errors import InputError
from camri.methods import title_of
from camri.report.charts import PRINT, Figure, Panel, draw_intervals, drawing, tips
from camri.report.results import Results
from camri.report.tables import BLANK, Cell, Table, interval_of, table_of_settings, two_decimals
from camri.study import recipes
from camri.study.reader import LEAST_SEEDS, correct_several, is_significant
from camri.text import points

MODELS = {"small": "small CNN", "paper": "authors’ CNN"}
TITLES = {**recipes.TITLES, "tiny-imagenet-animals64": "Tiny ImageNet animals"}  # in the order of tables
ARMS = {  # of reproduce/two-sided/methods, which need not be installed here
    "margin_hard_one_vs_rest": "hard-negative margin + one-vs-rest",
}
ENDS = ("", "_low", "_high")
FEWEST_ALARMS = 50  # of a cross-entropy model: relative changes of fewer say nothing


def arm_title(method: str) -> str:
    """The title of a method, or of a variant."""
    return ARMS.get(method) or title_of(method)


def column_records(results: Sequence[Results], method: str, joint: bool | None = None) -> list[dict[str, Any]]:
    """The method's gap records of all results, with data, model and p corrected over all of them (Holm).

    `joint`: only columns of several important classes, or only those of one; both by default.
    """
    found = []
    for run in results:
        data = run.verdict["data"]
        named = {"data": TITLES.get(data, data), "model": MODELS[run.verdict["training"]["model"]]}
        several = {number for number, facts in enumerate(run.verdict["columns"]) if len(facts["indices"]) > 1}
        for record in run.records("gaps"):
            if record["method"] == method and joint in (None, record["column"] in several):
                of_ce = record["alarms_of_ce"] + record["alarms_of_ce_threshold"]
                whole = of_ce if of_ce * run.verdict["images"]["test"] >= FEWEST_ALARMS else 0.0
                relative = {f"relative{end}": _share(record[f"alarms_threshold{end}"], whole) for end in ENDS}
                if whole and record.get("relative_threshold") is not None:  # its interval has CE's own chance in it
                    relative = {f"relative{end}": record[f"relative_threshold{end}"] for end in ENDS}
                found.append(
                    {**_of_before(record), **record, **named, "alarms_of_ce_with_threshold": of_ce, **relative}
                )
    order = [*TITLES.values()]
    found.sort(key=lambda record: order.index(record["data"]) if record["data"] in order else len(order))
    for record, p in zip(found, correct_several([record["p_alarms_threshold"] for record in found]), strict=True):
        record["p_holm"] = p
        record["is_fewer"] = bool(is_significant(p, record["num_trials"]) and record["alarms_threshold"] < 0)
    return found


def _of_before(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a record of before 17 November 2026 lacks: accuracy is compared under shifts in it, and has no p."""
    if "accuracy_threshold" in record:
        return {"shifted": False}
    accuracy = {f"accuracy_threshold{end}": record["mean" + end] for end in ENDS}
    return {**accuracy, "p_alarms_threshold": float("nan"), "shifted": True}


def _share(part: float, whole: float) -> float | None:
    """A change relative to the whole; an interval's end below −100 % is cut there."""
    return max(part / whole, -1.0) if whole else None


def columns_table(results: Sequence[Results], methods: Sequence[str], joint: bool | None = None) -> Table:
    """False alarms and accuracy of methods against cross-entropy, both with thresholds, one row per column."""
    every = {method: column_records(results, method, joint) for method in methods}
    places = list(dict.fromkeys((record["data"], record["important"]) for own in every.values() for record in own))
    arms = [
        (model, method, {(record["data"], record["important"]): record for record in own if record["model"] == model})
        for model in MODELS.values()
        for method, own in every.items()
        if any(record["model"] == model for record in own)
    ]
    if not arms:
        raise InputError(f"no results of {', '.join(methods)}; methods are those of the studies")

    def shown(record: Mapping[str, Any] | None) -> tuple[Cell, Cell]:
        if record is None:
            return Cell(BLANK), Cell(BLANK)
        change = "too few" if record["relative"] is None else _percent(record)
        change += f" of {two_decimals(record['alarms_of_ce_with_threshold'])}"
        change += f" at {record['recall_from']:.2f}–{record['recall_to']:.2f}"
        accuracy = interval_of(record, "accuracy_threshold", decimals=2) + " *" * record["shifted"]
        return Cell(change, bold=record["is_fewer"]), Cell(accuracy)

    def header(model: str, method: str, own: Mapping[Any, Mapping[str, Any]]) -> tuple[str, str]:
        counts = sorted({record["num_trials"] for record in own.values()})
        seeds = " or ".join(map(str, counts)) if len(counts) < 3 else f"{counts[0]} to {counts[-1]}"
        settings = sorted({record["setting"].removeprefix(f"{method} ") for record in own.values()})
        return f"{model}, {arm_title(method)} {', '.join(settings)} ({seeds} seeds): Δ false alarms", "Δ accuracy"

    every_record = [record for own in every.values() for record in own]
    is_known = any(record.get("relative_threshold") is None for record in every_record)
    known = ", CE’s mean taken as known in some" if is_known else ""
    starred = " *: both shifted, no p." * any(record["shifted"] for own in every.values() for record in own)
    return Table(
        "Training for a class against cross-entropy (CE) at equal recall, both with a threshold on the probability.",
        ("column", *(name for arm in arms for name in header(*arm))),
        (
            tuple(
                (Cell(": ".join(place)), *(cell for *_, own in arms for cell in shown(own.get(place))))
                for place in places
            ),
        ),
        tuple(record for own in every.values() for record in own),
        notes=(
            "Test data. False alarms: inputs of other classes predicted as the class; Δ relative to CE’s, which stand "
            "behind “of”, in % of all inputs. Δ accuracy: percentage points. Both are means over nine recalls, equally "
            "spaced from CE’s own to half way to 1, the range behind “at”; a relative Δ is the ratio of the means. Too "
            f"few: CE’s models have fewer than {FEWEST_ALARMS} false alarms each. 95 % confidence intervals over seeds "
            f"and test data (from {LEAST_SEEDS} seeds on){known}. Bold: fewer false alarms, p < "
            "0.05 after Holm’s correction over all cells of a method." + starred,
        ),
    )


def _rounded(share: float | None, digits: int) -> float | None:
    return None if share is None else round(100 * share, digits)


def _percent(record: Mapping[str, Any]) -> str:
    shown = [points(record[f"relative{end}"], decimals=0) for end in ENDS]
    return f"{shown[0]} %" if record["num_trials"] < LEAST_SEEDS else f"{shown[0]} % [{shown[1]}, {shown[2]}]"


def columns_figure(results: Sequence[Results], methods: Sequence[str]) -> Figure:
    """Change of false alarms and of accuracy by column of one class: two panels per model, a dot per method."""
    records = [
        {
            "column": f"{record['data'].removesuffix(' animals')}: {record['important']}",
            "model": record["model"],
            "method": arm_title(method),
            "setting": record["setting"],
            "trials": record["num_trials"],
            "is_fewer": record["is_fewer"],
            **{f"alarms{end}": _rounded(record[f"relative{end}"], 2) for end in ENDS},
            **{f"accuracy{end}": _rounded(record[f"accuracy_threshold{end}"], 3) for end in ENDS},
        }
        for method in methods
        for record in column_records(results, method, joint=False)
    ]
    if not records:
        raise InputError(f"no results of {', '.join(methods)}")
    titles = [arm_title(method) for method in methods]
    shades = alt.Scale(domain=titles, range=[PRINT.down, PRINT.up, PRINT.muted])
    panels = []
    for model in dict.fromkeys(record["model"] for record in records):
        own = [record for record in records if record["model"] == model]
        columns = list(dict.fromkeys(record["column"] for record in own))
        for figure, title, ends in (
            ("alarms", "false alarms, change in %", (-100.0, 110.0)),
            ("accuracy", "accuracy, change in points", (-2.0, 1.5)),
        ):
            known = [record for record in records if record[figure] is not None]
            low = max(min((record[f"{figure}_low"] for record in known), default=0.0), ends[0])
            high = min(max([0.0, *(record[f"{figure}_high"] for record in known)]), ends[1])
            high += 0.02 * (ends[1] - ends[0])
            base = drawing(own).encode(
                y=alt.Y("column:N", title=None, sort=columns, axis=alt.Axis(labelLimit=260)),
                yOffset=alt.YOffset("method:N", sort=titles),
                color=alt.Color("method:N", scale=shades, title=None, sort=titles),
                tooltip=tips("column", "method", "setting", *(f"{figure}{end}" for end in ENDS), "trials"),
            )
            scale = alt.Scale(domain=[low, high], nice=False, clamp=True)
            along = alt.X(f"{figure}_low:Q", title=title, scale=scale)
            layers = draw_intervals(base, along, f"{figure}_high", figure, PRINT)
            if figure == "alarms":
                open_dot = base.mark_point(filled=False, fill="white", size=60, strokeWidth=2, opacity=1)
                layers += open_dot.transform_filter("!datum.is_fewer").encode(alt.X(f"{figure}:Q"))
                words = base.mark_text(align="left", dx=6, fontSize=11).transform_filter("!isValid(datum.alarms)")
                layers += words.encode(x=alt.XDatum(0.0), text=alt.value("too few"), color=alt.value(PRINT.muted))
            panels.append(Panel(f"{model}: {figure.replace('alarms', 'false alarms')}", layers, 34 * len(columns) + 20))
    return Figure(
        "False alarms and accuracy at equal recall",
        "Change at equal recall against cross-entropy, both with a threshold on the class’s probability; test data, "
        "mean over recalls from cross-entropy’s own to half way to 1. Lines: 95 % confidence intervals over seeds and "
        "test data, not corrected for several columns; a line that touches an edge goes "
        "beyond it. Filled dots of false alarms: significantly fewer after Holm’s correction. Too few: fewer than "
        f"{FEWEST_ALARMS} false alarms of a cross-entropy model. Left of 0: fewer false alarms, lower accuracy.",
        tuple(panels),
        tuple(records),
        across=2,
    )


def ranked_table(path: Path) -> Table:
    """Settings, or trainings, by false alarms at equal recall against cross-entropy: what a ranking stored."""
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); python -m tools.releases rebuild writes it") from None
    return table_of_settings(records)
