"""An audit as one self-contained page, in the look of the report's."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from camri.auditing.answer import (
    CLASSES_SHOWN,
    actions,
    answer,
    class_table,
    codes,
    evidence,
    is_factor,
    note,
    price_table,
)
from camri.auditing.result import Audit
from camri.auditing.verdict import SPLIT_SEED
from camri.report.page import Section, fill, make_bars, put
from camri.report.slider import Slider, make_slider
from camri.report.table import span
from camri.text import percent, quoted

WORDS = {
    "recall": "share of a class’s rows that are predicted as that class; of several important classes the mean",
    "accuracy": "share of all rows that are predicted right",
    "false alarm": "a row of no important class that is predicted as one; shown as a share of all rows",
    "precision": "share of the rows predicted as a class that are of it",
    "point": "percentage point: from 70 % to 71 % is one",
    "shift": "a constant added to the important class’s score (or to the logarithm of its probability) before the "
    "largest score wins: the rule that costs the least accuracy",
    "threshold": "predict the important class where its probability is above a value: the rule with the fewest false "
    "alarms, if the probabilities are right",
    "[low, high]": "95 % interval: 95 of 100 such intervals hold the true value",
    "group": "rows that belong together, such as those of one patient or film; tuned on or judged, never both",
}


def write_page(found: Audit, path: str | Path, source: str, command: Sequence[str] = ()) -> Path:
    """Write the page, whole or not at all. `source` is what the table of scores is called."""
    return put(render(found, source, command), Path(path))


def render(found: Audit, source: str, command: Sequence[str] = ()) -> str:
    """The page as HTML."""
    prices, told = price_table(found), answer(found)
    others = {one.name: one.recall.change for one in found.by_class if not one.important}
    changes = {name: (one.value, one.low, one.high) for name, one in others.items() if one is not None}
    is_shown = found.kind != "unknown" and found.is_changed
    slider = Section("point", "Operating point", "Choose the operating point", slider=slider_of(found))
    folded = [
        Section("evidence", "Evidence", "How sure this is", text="\n".join([*evidence(found), note(found)])),
        Section("classes-all", "Classes", "Recall of every class", tables=(class_table(found, CLASSES_SHOWN),)),
        Section("prices", "Prices", "What more recall costs", tables=() if prices is None else (prices,)),
    ]
    first, *more = actions(found) or (told.sentence,)
    if told.kind != "gain":
        first, more = told.sentence, list(actions(found))
    return fill(
        "answer.html.j2",
        [slider],
        folded,
        brand="camri audit",
        title=f"{source}: {', '.join(quoted(name) for name in found.important)}",
        kind=told.kind,
        lead=first,
        cautions=(),
        figures=numbers(found),
        actions=more,
        examples=(),
        bars=make_bars(changes, "Change of recall of the other classes") if is_shown else None,
        words=[(word, text) for word, text in WORDS.items() if word != "group" or found.num_groups is not None],
        facts=facts(found, source, command),
        source="the table of scores alone",
    )


def numbers(found: Audit) -> list[tuple[str, str, str, str]]:
    """Recall, false alarms and accuracy, before and after."""
    own = [one for one in found.by_class if one.important]
    rows = {
        **{f"Recall of {quoted(one.name)}": one.recall for one in own},
        "False alarms, of all rows": found.false_alarms,
        "Accuracy": found.accuracy,
    }
    is_shown = found.kind != "unknown" and found.is_changed
    figures = []
    for name, one in rows.items():
        before, after = (percent(share.value) for share in (one.before, one.after))
        change = "" if one.change is None else f"{span(one.change.value, one.change.low, one.change.high)} points"
        figures.append((name, before, after, change) if is_shown else (name, "", before, "as it is"))
    return figures


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
        ("models", f"{found.num_models}: rows of one input are a group" if found.num_models > 1 else "1"),
        ("maximal drop of accuracy", f"{found.max_accuracy_drop:g}"),
    ]
    if made is not None:
        pairs.append(("recall to guarantee", f"{made.at_least:g}, {100 * made.confidence:g} % confidence"))
    return [*pairs, ("command", shlex.join(command))] if command else pairs


def slider_of(found: Audit) -> Slider:
    """The operating points that the advised rule reaches on the judged rows."""
    note = "Counted on the rows of the answer."
    if found.is_cross_fitted:
        note = (
            "Counted on the rows that tuned the rule: the advised point looks a little better here than in the answer, "
            "where every row is judged by a rule that was tuned on other rows."
        )
    return make_slider(found.scores, found.rule, found.important, codes(found), as_factor=is_factor(found), note=note)
