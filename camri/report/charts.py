"""Charts beyond the paper's: who paid, angles, cost. The curve is in `curve`."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from camri.report.angles import ANGLES_OF
from camri.report.reading import Reading
from camri.report.tables import picked
from camri.report.theme import PRINT, Figure, Look, Panel, drawing
from camri.report.titles import title_of
from camri.report.verdict import ColumnVerdict, Judged
from camri.words import quoted

MOST_CLASSES = 20  # more cannot be read at phone width


def subject(one: ColumnVerdict) -> Judged | None:
    """The judgement that “who paid” is about: of the chosen setting, else of CAMRI's; not of cross-entropy itself."""
    rows = [one.best, one.by_method.get("camri"), *one.by_method.values()]
    return next((row for row in rows if row is not None and not row.keeps_baseline), None)


def who_paid(reading: Reading, verdicts: Sequence[ColumnVerdict], look: Look = PRINT) -> Figure | None:
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


def _is_cut(reading: Reading) -> bool:
    return len(reading.classes) > MOST_CLASSES


def _paid_records(reading: Reading, one: ColumnVerdict, row: Judged) -> list[dict[str, Any]]:
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


def angle_strips(reading: Reading, verdicts: Sequence[ColumnVerdict], look: Look = PRINT) -> Figure:
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


def cost(reading: Reading, look: Look = PRINT) -> Figure:
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
