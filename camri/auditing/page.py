"""An audit as one self-contained page, in the look of the report's."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from camri.auditing.answer import CLASSES_SHOWN, answer, class_table, codes, note, price_table
from camri.auditing.result import Audit
from camri.auditing.verdict import SPLIT_SEED, advised
from camri.report.page import Section, fill, put
from camri.report.slider import Slider, make_slider
from camri.text import quoted

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
    sections = [
        Section(
            "curve",
            "Operating point",
            "Choose the operating point",
            tables=() if prices is None else (prices,),
            slider=slider_of(found),
        ),
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


def slider_of(found: Audit) -> Slider:
    """The operating points that a shift reaches on the judged rows."""
    return make_slider(
        found.scores,
        found.important,
        codes(found),
        advised=found.shift,
        unit="multiply" if found.scores_are == "probabilities" else "add",
        number=f"{advised(found.shift, found.scores_are):.4g}",
        note=_counted(found),
    )


def _counted(found: Audit) -> str:
    """Which rows the slider counts."""
    if found.is_cross_fitted:
        return (
            "Counted on the rows that the shift was tuned on: the advised point looks a little better here than in the "
            "answer, where every row is judged by a shift that was tuned on other rows."
        )
    return "Counted on the rows of the answer."
