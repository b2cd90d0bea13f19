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
from camri.report.page import WORDS, Section, fill, put
from camri.report.theme import PAGE, Figure, Look, Panel, drawing
from camri.text import quoted

MOST_POINTS = 400
DEPTH = 0.05  # of accuracy below the model's own: further down nobody wants to be
BACK = 0.1  # of recall below the model's own
PROMISED = "with the promised recall"


def write_page(found: Audit, path: str | Path, source: str, command: Sequence[str] = ()) -> Path:
    """The page's path; never half a page. `source` is what the table of scores is called."""
    return put(render(found, source, command), Path(path))


def render(found: Audit, source: str, command: Sequence[str] = ()) -> str:
    """The page as HTML."""
    prices = price_table(found)
    figure = curve_figure(found, PAGE)
    sections = [
        Section("curve", "Curve", figure.title, figure, () if prices is None else (prices,)),
        Section("classes", "Classes", "Who gains, who pays", tables=(class_table(found, CLASSES_SHOWN),)),
    ]
    return fill(
        "audit.html.j2",
        sections,
        brand="camri audit",
        title=f"{source}: {', '.join(quoted(name) for name in found.important)}",
        answer=answer(found),
        note=note(found),
        words=words(found),
        facts=facts(found, source, command),
    )


def words(found: Audit) -> list[tuple[str, str]]:
    """Terms of this page with their meaning; a word that is the report's too means the same."""
    shared = dict(WORDS)
    several = "" if len(found.important) == 1 else "; of several important classes the mean"
    told = [
        ("recall", f"of a class’s rows, the share that is found: called by that class{several}"),
        ("accuracy", "of all rows, the share that gets its right class"),
        ("hits / n", "rows that are right, of how many: 8/10 is a share of 0.800"),
        ("false alarm", shared["false alarm"].format(many="rows")),
        ("precision", f"of the rows that are taken for an important class, the share that is of it{several}"),
        ("point", shared["point"]),
        ("shift", shared["shift"]),
        ("score", "the number that the model gives a class; the class with the largest one is its answer"),
        ("tuned, judged", "the shift is chosen on some rows, and what it gives is counted on others"),
        ("[low, high], 95 %", shared["[low, high]"]),
    ]
    if found.num_groups is not None:
        told.append(("group", "rows that belong together, as of one patient or film: tuned on or judged, never both"))
    return told


def facts(found: Audit, source: str, command: Sequence[str]) -> list[tuple[str, str]]:
    """How it was made."""
    num = found.accuracy_before.num
    judged = "" if num == found.num_rows else f", {num:,} of them judged"
    return [
        ("scores", source),
        ("rows", f"{found.num_rows:,}{judged}"),
        ("groups", "none: rows count as independent" if found.num_groups is None else f"{found.num_groups:,}"),
        ("classes", f"{len(found.classes):,}"),
        ("important classes", ", ".join(found.important)),
        ("scores are", found.scores_are),
        ("tuned on", f"{found.tuned_on}; parts drawn with seed {SPLIT_SEED}"),
        ("accuracy that may be given up", f"{found.tolerance:g}"),
        *_asked(found),
        *([("this page", shlex.join(command))] if command else []),
    ]


def _asked(found: Audit) -> list[tuple[str, str]]:
    if found.promise is None:
        return []
    made = found.promise.guarantee
    return [("recall to promise", f"{made.at_least:g}, {100 * made.confidence:g} % sure")]


def curve_figure(found: Audit, look: Look) -> Figure:
    """The recall–accuracy curve under the shift, with the model as it is and as it was judged with the shift."""
    lines, dots = curve_records(found)
    floor = found.accuracy_before.value - found.tolerance
    title = "recall of the important class" if len(found.important) == 1 else "mean recall of the important classes"
    x = alt.X("recall:Q", title=title, scale=alt.Scale(zero=False, nice=False))
    most = max([one["accuracy"] for one in lines] + [one["accuracy"] for one in dots])
    least = min([one["accuracy"] for one in lines] + [one["accuracy"] for one in dots])
    y = alt.Y(
        "accuracy:Q", title="accuracy", scale=alt.Scale(zero=False, nice=False, domain=[least - 0.002, most + 0.002])
    )
    tips = [
        alt.Tooltip("recall:Q", format=".3f"),
        alt.Tooltip("accuracy:Q", format=".4f"),
        alt.Tooltip("shift:Q", format="+.3f"),
    ]
    near = alt.selection_point(on="pointerover", clear="pointerout", empty=False, name="near")
    line = drawing(lines).mark_line(strokeWidth=2, color=look.series["ce"]).encode(x, y)
    hover = (
        drawing(lines)
        .mark_point(filled=True, size=120, color=look.series["ce"])
        .encode(x, y, opacity=alt.condition(near, alt.value(1.0), alt.value(0.0)), tooltip=tips)
        .add_params(near)
    )
    rule = drawing([{"accuracy": floor}]).mark_rule(strokeDash=[4, 3], color=look.muted).encode(y=y)
    colours = {"as it is": look.series["ce"], "with the shift": look.down, PROMISED: look.up}
    shown = alt.Scale(domain=[one["point"] for one in dots], range=[colours[one["point"]] for one in dots])
    points = (
        drawing(dots)
        .mark_point(filled=True, size=110, stroke=look.ink, strokeWidth=1)
        .encode(x, y, color=alt.Color("point:N", scale=shown, title=None), tooltip=[alt.Tooltip("point:N"), *tips])
    )
    return Figure(
        "curve",
        "The curve: what recall costs",
        "Adding a constant to the important class’s score moves the model along this line. Dots: the model as it is, "
        "and with the shift, judged on rows it was not tuned on; that dot may lie below the line, which is drawn of "
        "all judged rows together. The dashed rule is the accuracy to keep."
        + (" The promised recall is the least that new rows will have; these have more." if found.promise else ""),
        (Panel("", alt.layer(rule, line, points, hover), 340),),
        (*lines, *dots),
    )


def curve_records(found: Audit) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The curve from the model as it is to where accuracy has fallen too far, and the dots."""
    curve = found.curve
    accuracy, recall = curve.accuracy, curve.mean_recall
    start = int(np.flatnonzero(curve.shift == 0.0)[0])
    best: dict[float, int] = {}  # of the states with one recall, that of the highest accuracy
    for state in range(int(np.searchsorted(recall, recall[start] - BACK)), len(recall)):
        now = best.setdefault(float(recall[state]), state)
        if accuracy[state] > accuracy[now]:
            best[float(recall[state])] = state
    promise = None if found.promise is None or not found.promise.guarantee.shift else found.promise
    least = accuracy[start] - DEPTH
    if promise is not None:
        least = min(least, promise.accuracy.value - DEPTH / 10)
    kept = [state for state in best.values() if accuracy[state] >= least]
    states = kept[:: max(1, -(-len(kept) // MOST_POINTS))]
    lines = [_record(recall[state], accuracy[state], curve.shift[state]) for state in states]
    own = [one for one in found.by_class if one.important]
    dots = [{**_record(recall[start], accuracy[start], 0.0), "point": "as it is"}]
    if found.shift:
        after = float(np.mean([one.after.value for one in own]))
        dots.append({**_record(after, found.accuracy_after.value, found.shift), "point": "with the shift"})
    if promise is not None:
        after = float(np.mean([one.value for one in promise.recall]))
        dots.append({**_record(after, promise.accuracy.value, promise.guarantee.shift or 0.0), "point": PROMISED})
    return lines, dots


def _record(recall: float, accuracy: float, shift: float) -> dict[str, Any]:
    return {"recall": round(float(recall), 5), "accuracy": round(float(accuracy), 5), "shift": round(float(shift), 5)}
