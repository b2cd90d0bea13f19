"""The page of an answer, and what a notebook shows of it."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from camri.decision.answer import Answer
from camri.decision.compare import Change, Share
from camri.decision.goals import FewestToPerson
from camri.decision.rules import LowestCost, Triage
from camri.errors import InputError, require
from camri.report import words
from camri.report.table import Table, span
from camri.text import percent, quoted

if TYPE_CHECKING:
    from camri.report.slider import Slider


def write_answer(answer: Answer, path: Path, source: str, command: Sequence[str] = ()) -> Path:
    """Write the page, whole or not at all; needs the report extra. `source` is what the table of scores is called."""
    require("the page", "altair", "vl_convert", "jinja2", install="'camri-loss[report]'")
    from camri.report.html import put

    return put(render(answer, source, command), path)


def render(answer: Answer, source: str, command: Sequence[str] = ()) -> str:
    """The page as HTML."""
    from camri.report.html import Section, fill, make_bars

    if answer.candidates or isinstance(answer.goal, FewestToPerson):
        return _render_lines(answer, source, command)
    prices, said = words.price_table(answer), words.say(answer)
    others = {one.name: one.change for one in answer.evidence.classes if not one.important}
    changes = {name: (one.value, one.low, one.high) for name, one in others.items() if one is not None}
    first, *more = said.actions if answer.is_advised and said.actions else (said.sentence, *said.actions)
    if answer.where.rows_per_day is not None and said.sentence not in (first, *more):
        more = [said.sentence, *more]
    slider = slider_of(answer)
    return fill(
        "answer.html.j2",
        [] if slider is None else [Section("point", "Choose the operating point", slider=slider)],
        [
            Section("evidence", "How sure this is", text="\n".join([*said.evidence, words.note(answer)])),
            Section("classes-all", "Recall of every class", tables=(words.class_table(answer, words.CLASSES_SHOWN),)),
            Section("prices", "What more recall costs", tables=() if prices is None else (prices,)),
        ],
        brand="camri audit",
        title=f"{source}: {', '.join(quoted(name) for name in answer.source.names)}",
        kind="gain" if answer.is_advised or answer.is_guaranteed else "none",
        lead=first,
        cautions=(),
        figures=_figures(answer),
        actions=more,
        bars=make_bars(changes, "Change of recall of the other classes") if words.has_change(answer) else None,
        words=words.WORDS if answer.source.num_groups is None else (*words.WORDS, "group"),
        many="rows",
        facts=words.facts(answer, command),
        source="the table of scores alone",
    )


def _render_lines(answer: Answer, source: str, command: Sequence[str]) -> str:
    """The page of a comparison of models or of a triage."""
    from camri.report.handles import make_curves, make_handles
    from camri.report.html import Section, fill, make_bars

    is_triage = not answer.candidates
    lead, *more = words.triage_text(answer) if is_triage else words.compared_text(answer)
    table = words.triage_table(answer) if is_triage else words.curve_table(answer)
    tables = () if table is None else (table,)
    if is_triage:
        sections = [Section("point", "Choose both cut-offs", handles=make_handles(answer)),
                    Section("trade-offs", "What other promises leave to a person", tables=tables)]  # fmt: skip
    else:
        sections = [Section("curves", "At every recall", curves=make_curves(answer), tables=tables)]
    others = {one.name: one.change for one in answer.evidence.classes if not one.important}
    changes = {name: (one.value, one.low, one.high) for name, one in others.items() if one is not None}
    folded = Section("classes-all", "Recall of every class", tables=(words.class_table(answer, words.CLASSES_SHOWN),))
    return fill(
        "answer.html.j2",
        sections,
        [] if is_triage else [folded],
        brand="camri audit" if is_triage else "camri compare",
        title=f"{source}: {', '.join(quoted(name) for name in answer.source.names)}",
        kind="gain" if answer.verdict.kind in ("better", "clear_and_alarm") else "none",
        lead=lead,
        cautions=(),
        figures=[] if is_triage else _figures(answer),
        actions=[line.removeprefix("- ") for line in more],
        bars=None if is_triage else make_bars(changes, "Change of recall of the other classes"),
        words=words.WORDS if answer.source.num_groups is None else (*words.WORDS, "group"),
        many="rows",
        facts=words.facts(answer, command),
        source="the tables of scores alone",
    )


def _figures(answer: Answer) -> list[tuple[str, str, str, str]]:
    """The large numbers of the page: what it is, before, after, and its change."""
    before, after = answer.evidence.arms[0], answer.evidence.arm(answer.evidence.final)
    assert after is not None
    change = answer.change
    rows: list[tuple[str, Share, Share, Change | None]] = [
        (f"Recall of {quoted(own.name)}", own.before, own.after, own.change) for own in answer.own
    ]
    rows.append(("False alarms, of all rows", before.false_alarms, after.false_alarms, change.false_alarms))
    rows.append(("Accuracy", before.accuracy, after.accuracy, change.accuracy))
    return [_figure(*row, words.has_change(answer)) for row in rows]


def _figure(
    name: str, before: Share, after: Share, change: Change | None, has_after: bool
) -> tuple[str, str, str, str]:
    shown = [words.BLANK if one.value is None else percent(one.value) for one in (before, after)]
    if not has_after:
        return name, "", shown[0], "as it is"
    points = "" if change is None else f"{span(change.value, change.low, change.high)} points"
    return name, shown[0], shown[1], points


def slider_of(answer: Answer) -> "Slider | None":
    """The operating points that the tuned rule reaches on the judged rows; None for a decision by costs."""
    from camri.report.slider import make_slider

    rule = answer.point.rule
    if isinstance(rule, (LowestCost, Triage)):
        return None
    if answer.scores is None:
        raise InputError("the answer was read from a file, which has no scores; audit the scores to write a page")
    text = "Counted on the rows of the answer."
    if answer.tuned_on == "folds":
        text = (
            "Counted on the rows that tuned the rule: the advised point looks a little better here than in the answer, "
            "where every row is judged by a rule that was tuned on other rows."
        )
    if answer.where.prevalence:
        text += " It counts these rows as they are; the figures above are for the frequencies where the rule will run."
    codes, is_factor = words.codes(answer), answer.factor is not None
    return make_slider(answer.scores, rule, answer.source.names, codes, as_factor=is_factor, note=text)


def html_of(answer: Answer) -> str:
    """What a notebook shows: the headline, what to do, the curve and the table of classes."""
    if answer.candidates or isinstance(answer.goal, FewestToPerson):
        first, *lines = words.compared_text(answer) if answer.candidates else words.triage_text(answer)
        rest = "".join(f"<li>{escape(line.removeprefix('- '))}</li>" for line in lines)
        return f"<div><p><b>{escape(first)}</b></p><ul>{rest}</ul></div>"
    said = words.say(answer)
    items = "".join(f"<li>{escape(action)}</li>" for action in said.actions)
    tables = (words.class_table(answer, words.CLASSES_SHOWN), words.price_table(answer))
    shown = "".join(_table(table) for table in tables if table is not None)
    return (
        f"<div><p><b>{escape(said.sentence)}</b></p><ul>{items}</ul>{_curve(answer)}{shown}"
        f"<p><small>{escape(words.what_was_read(answer))}</small></p></div>"
    )


def _table(table: Table) -> str:
    header = "".join(f"<th>{escape(text)}</th>" for text in table.header)
    rows = "".join(
        "<tr>"
        + "".join(f"<td>{'<b>' * cell.bold}{escape(cell.text)}{'</b>' * cell.bold}</td>" for cell in row)
        + "</tr>"
        for row in table.rows
    )
    notes = " ".join(map(escape, table.notes))
    return f"<p>{escape(table.caption)}</p><table><tr>{header}</tr>{rows}</table><p><small>{notes}</small></p>"


def _curve(answer: Answer) -> str:
    """Recall against false alarms as one small picture, without a library."""
    if answer.scores is None or isinstance(answer.point.rule, (LowestCost, Triage)):
        return ""
    from camri.decision.curve import trace

    curve = trace(answer.scores, answer.point.rule.name)
    alarms, recall = curve.alarms / curve.total, curve.mean_recall
    right = max(float(alarms.max()), 1e-9)
    kept = sorted({int(place) for place in (len(alarms) - 1) * np.linspace(0, 1, 200)})
    width, height = 320, 160
    path = "L".join(f"{40 + alarms[k] / right * width:.1f},{10 + (1 - recall[k]) * height:.1f}" for k in kept)
    now = curve.before
    places = [(now.alarms[0] / now.total, now.mean_recall[0], "none")]
    if words.has_change(answer):
        state = curve.find(answer.point.rule)
        places.append((alarms[state], recall[state], "currentColor"))
    dots = "".join(
        f'<circle cx="{40 + x / right * width:.1f}" cy="{10 + (1 - y) * height:.1f}" r="4" stroke="currentColor" '
        f'fill="{fill}"/>'
        for x, y, fill in places
    )
    labels = (
        f'<text x="36" y="16" text-anchor="end">1</text><text x="36" y="{10 + height}" text-anchor="end">0</text>'
        f'<text x="{40 + width}" y="{26 + height}" text-anchor="end">{percent(right)} of rows are false alarms</text>'
        f'<text x="40" y="{26 + height}">0</text><text x="46" y="22">recall</text>'
    )
    return (
        f'<svg width="400" height="200" font-size="11" fill="currentColor" role="img" aria-label="recall against false '
        f'alarms"><path d="M{path}" fill="none" stroke="currentColor"/>{dots}{labels}</svg>'
    )
