"""An audit as one self-contained page, in the look of the report's."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from camri.auditing.answer import CLASSES_SHOWN, answer, class_table, note, price_table
from camri.auditing.result import Audit
from camri.auditing.verdict import SPLIT_SEED
from camri.report.page import Section, fill, put
from camri.report.theme import PAGE, Figure, Look, Panel, drawing
from camri.text import quoted

MOST_POINTS = 400
DEPTH = 0.05  # accuracy below the model's own that the curve shows
BACK = 0.1  # recall below the model's own that the curve shows
WORDS = {
    "recall": "share of a class’s rows that are predicted as that class; of several important classes the mean",
    "accuracy": "share of all rows that are predicted right",
    "false alarm": "a row of no important class that is predicted as one; shown as a share of all rows",
    "precision": "share of the rows predicted as a class that are of it",
    "point": "percentage point: from 70 % to 71 % is one",
    "shift": "a constant added to the important class’s score (or to the logarithm of its probability) before the "
    "largest score wins; it needs no training",
    "[low, high]": "95 % interval: 95 of 100 such intervals hold the true value",
    "group": "rows that belong together, such as those of one patient or film; tuned on or judged, never both",
}


def write_page(found: Audit, path: str | Path, source: str, command: Sequence[str] = ()) -> Path:
    """Write the page, whole or not at all. `source` is what the table of scores is called."""
    return put(render(found, source, command), Path(path))


def render(found: Audit, source: str, command: Sequence[str] = ()) -> str:
    """The page as HTML."""
    prices = price_table(found)
    figure = curve_figure(found, PAGE)
    sections = [
        Section("curve", "Curve", figure.title, figure, () if prices is None else (prices,)),
        Section("classes", "Classes", "Recall of every class", tables=(class_table(found, CLASSES_SHOWN),)),
    ]
    return fill(
        "audit.html.j2",
        sections,
        brand="camri audit",
        title=f"{source}: {', '.join(quoted(name) for name in found.important)}",
        answer=answer(found),
        note=note(found),
        words=[(word, text) for word, text in WORDS.items() if word != "group" or found.num_groups is not None],
        facts=facts(found, source, command),
    )


def facts(found: Audit, source: str, command: Sequence[str]) -> list[tuple[str, str]]:
    """How the audit was made."""
    num, made = found.accuracy.before.num, found.guarantee
    judged = "" if num == found.num_rows else f", {num:,} of them judged"
    pairs = [
        ("scores", f"{source}: {found.scores_are}"),
        ("rows", f"{found.num_rows:,}{judged}"),
        ("groups", "none: rows count as independent" if found.num_groups is None else f"{found.num_groups:,}"),
        ("classes", f"{len(found.classes):,}"),
        ("important classes", ", ".join(found.important)),
        ("tuned on", f"{found.tuned_on}; folds drawn with seed {SPLIT_SEED}"),
        ("maximal drop of accuracy", f"{found.max_accuracy_drop:g}"),
    ]
    if made is not None:
        pairs.append(("recall to guarantee", f"{made.at_least:g}, {100 * made.confidence:g} % confidence"))
    return [*pairs, ("command", shlex.join(command))] if command else pairs


def curve_figure(found: Audit, look: Look) -> Figure:
    """The recall–accuracy curve under the shift, with the model as it is and as it was judged with the shift."""
    lines, dots = curve_records(found)
    floor = found.accuracy.before.value - found.max_accuracy_drop
    title = "recall of the important class" if len(found.important) == 1 else "mean recall of the important classes"
    x = alt.X("recall:Q", title=title, scale=alt.Scale(zero=False, nice=False))
    heights = [one["accuracy"] for one in (*lines, *dots)]
    domain = [min(heights) - 0.002, max(heights) + 0.002]
    y = alt.Y("accuracy:Q", title="accuracy", scale=alt.Scale(zero=False, nice=False, domain=domain))
    formats = {"recall": ".3f", "accuracy": ".4f", "shift": "+.3f"}
    tips = [alt.Tooltip(f"{name}:Q", format=form) for name, form in formats.items()]
    near = alt.selection_point(on="pointerover", clear="pointerout", empty=False, name="near")
    line = drawing(lines).mark_line(strokeWidth=2, color=look.series["ce"]).encode(x, y)
    hover = (
        drawing(lines)
        .mark_point(filled=True, size=120, color=look.series["ce"])
        .encode(x, y, opacity=alt.condition(near, alt.value(1.0), alt.value(0.0)), tooltip=tips)
        .add_params(near)
    )
    rule = drawing([{"accuracy": floor}]).mark_rule(strokeDash=[4, 3], color=look.muted).encode(y=y)
    shown = alt.Scale(domain=[one["point"] for one in dots], range=[look.series["ce"], look.up][: len(dots)])
    points = (
        drawing(dots)
        .mark_point(filled=True, size=110, stroke=look.ink, strokeWidth=1)
        .encode(x, y, color=alt.Color("point:N", scale=shown, title=None), tooltip=[alt.Tooltip("point:N"), *tips])
    )
    off = "" if found.is_guaranteed else " It is judged on rows it was not tuned on, so it may lie below the line."
    return Figure(
        "curve",
        "What recall costs",
        "A shift moves the model along this line. Dots: the model as it is, and as advised. Dashed: the lowest "
        f"accuracy allowed.{off}",
        (Panel("", alt.layer(rule, line, points, hover), 340),),
        (*lines, *dots),
    )


def curve_records(found: Audit) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The curve from the model as it is to where accuracy has dropped too far, and the dots."""
    curve = found.curve
    accuracy, recall = curve.accuracy, curve.mean_recall
    start = int(np.flatnonzero(curve.value == 0.0)[0])
    best: dict[float, int] = {}  # the most accurate state at each recall
    for state in range(int(np.searchsorted(recall, recall[start] - BACK)), len(recall)):
        now = best.setdefault(float(recall[state]), state)
        if accuracy[state] > accuracy[now]:
            best[float(recall[state])] = state
    least = min(accuracy[start] - DEPTH, found.accuracy.after.value - DEPTH / 10)
    kept = [state for state in best.values() if accuracy[state] >= least]
    states = kept[:: max(1, -(-len(kept) // MOST_POINTS))]
    lines = [_record(recall[state], accuracy[state], curve.value[state]) for state in states]
    dots = [{**_record(recall[start], accuracy[start], 0.0), "point": "as it is"}]
    if found.shift:
        after = float(np.mean([one.recall.after.value for one in found.by_class if one.important]))
        dots.append({**_record(after, found.accuracy.after.value, found.shift), "point": "as advised"})
    return lines, dots


def _record(recall: float, accuracy: float, shift: float) -> dict[str, Any]:
    return {"recall": round(float(recall), 5), "accuracy": round(float(accuracy), 5), "shift": round(float(shift), 5)}
