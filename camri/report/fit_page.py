"""The page of a fit, from its answer, its examples and its run."""

import base64
import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import special

from camri.decision.answer import EXAMPLES_FILE, Answer
from camri.decision.rules import DecisionRule
from camri.decision.scores import Array, exact
from camri.errors import InputError
from camri.report import fit_words
from camri.report.fit_words import made, num_others, value_of
from camri.report.html import Section, fill, make_bars
from camri.report.page import facts, sections
from camri.report.records import FromRun
from camri.report.slider import VALUE, make_slider
from camri.report.table import Table, cells
from camri.study.reader import RunReader
from camri.tables import BAD_ARRAYS
from camri.text import percent, quoted

SHOWN = 12  # examples of each kind
MOST_FEATURES = 6
BEFORE = "Before: another model, plain cross-entropy, whose largest score decides. After: the model handed over."
SAME = "Before: the largest score of this model decides. After: its tuned rule."
WORDS = (
    "recall", "accuracy", "false alarm", "precision", "point", "before", "tuned", "shift", "threshold", "hits / n",
    "trial, seed", "setting", "[low, high]", "±", "p (Holm)", "CE, ce", "CE + shift",
)  # fmt: skip


def render_fit(answer: Answer, reading: RunReader) -> str:
    """The page as HTML."""
    arrays, rule, effort = read_examples(reading.run.path.parent), made(answer).handed.rule, made(answer).effort
    header, *rows = fit_words.evidence_table(answer)
    changes = {
        one.name: (one.change.value, one.change.low, one.change.high)
        for one in answer.evidence.classes
        if one.change is not None and not one.important
    }
    about = [one(answer) for one in (fit_words.headline, fit_words.handed, fit_words.lost_recall, fit_words.tried)]
    evidence = Table("Means over seeds on test data", tuple(header), (tuple(cells(*row) for row in rows),), ())
    source = FromRun(reading)
    of_run = [one for one in sections(source, with_paper=False) if not one.is_empty and one.name != "changes"]
    reading.begin("writing the page")
    lead = [fit_words.compose(answer)[-1]] * (not made(answer).finished)
    if effort.still_improving:
        lead.insert(0, f"{fit_words.still_improving(answer)}: {effort.enough} would train longer.")
    return fill(
        "answer.html.j2",
        [] if arrays is None else [_slider(answer, arrays, rule), *_examples(answer, arrays, rule)],
        [Section("evidence", "Evidence over seeds", tables=(evidence,), text="\n".join(about)), *of_run],
        brand="camri fit",
        title=f"{answer.source.name}: {', '.join(map(quoted, answer.source.names))}",
        kind="gain" if answer.verdict.kind in fit_words.GOOD else "none",
        lead=" ".join([*lead, fit_words.verdict(answer), *fit_words.guarantee_lines(answer)]),
        cautions=[f"Caution: {text}." for text in fit_words.cautions(answer)],
        figures=_figures(answer),
        actions=[SAME if made(answer).handed.method == "ce" else BEFORE],
        bars=make_bars(changes, "Change of recall of the other classes, mean over seeds"),
        words=WORDS,
        many=answer.source.noun[1],
        facts=[(name, text) for name, text in facts(reading) if name != "study.json"],
        source="the fit’s folder alone",
    )


def read_examples(folder: Path) -> dict[str, Array] | None:
    """The arrays beside a fit's answer; None if there are none."""
    path = folder / EXAMPLES_FILE
    try:
        with np.load(path, allow_pickle=False) as held:
            return {name: held[name] for name in held.files}
    except FileNotFoundError:
        return None
    except BAD_ARRAYS as error:
        raise InputError(f"{path} cannot be read ({error}); fit again into another folder") from None


def _figures(answer: Answer) -> list[tuple[str, str, str, str]]:
    """Recall, false alarms and accuracy of the model handed over, before and after."""
    before, after, many = made(answer).handed.before, made(answer).handed.after, answer.source.noun[1]
    old, new = before.false_alarms, after.false_alarms
    names = [f"Recall of {quoted(name)}" for name in answer.source.names]
    found = [f"{one.hits:,} of {one.num:,} found" for one in after.recalls]
    alarms = f"{new.hits:,} of {num_others(after):,} others; before {old.hits:,}"
    rows = [
        *zip(names, before.recalls, after.recalls, found, strict=True),
        (f"False alarms, of all {many}", old, new, alarms),
        ("Accuracy", before.accuracy, after.accuracy, f"{after.accuracy.num:,} test {many}"),
    ]
    return [(name, percent(value_of(one)), percent(value_of(two)), text) for name, one, two, text in rows]


def _slider(answer: Answer, arrays: Mapping[str, Array], rule: DecisionRule) -> Section:
    """The operating points of the model handed over, on test data."""
    scores = exact(arrays["test_logits"], arrays["test_labels"], answer.source.important)
    words = " ".join(f"--{rule.name} {shlex.quote(f'{name}=')}{VALUE}" for name in answer.source.names)
    values = ", ".join(f"{name!r}: {VALUE}" for name in answer.source.names)
    codes = {
        "Python": "from camri.export import load, with_rule\n"
        f"model = with_rule(load('model'), {rule.name}s={{{values}}})\n"
        "predicted = model.predict(inputs)",
        "command line": f"camri export model {words} --out my-model",
    }
    note = (
        "Counted on test data with the model handed over. Without its rule, its largest score decides. The advised "
        "point was chosen on validation data. A point that you pick here looks better than it will be on new data; to "
        "have one chosen for you, fit with --at-least or --max-accuracy-drop."
    )
    label = "this model without its rule"
    made = make_slider(scores, rule, answer.source.names, codes, note=note, many=answer.source.noun[1], label=label)
    return Section("point", "Choose the operating point", slider=made)


def _examples(answer: Answer, arrays: Mapping[str, Array], rule: DecisionRule) -> list[Section]:
    """What the model still misses, and its worst false alarms."""
    names = " and ".join(map(quoted, answer.source.names))
    titles = {"missed": f"What it still misses of {names}", "false_alarms": "Its worst false alarms"}
    logits, labels, classes = arrays["test_logits"], arrays["test_labels"], answer.source.classes
    probability = special.softmax(logits, axis=1)
    found = []
    for name, title in titles.items():
        rows, inputs = arrays[name][:SHOWN], arrays[f"{name}_inputs"][:SHOWN]
        if not len(rows):
            found.append(Section(name, title, note=f"None on {len(labels):,} test {answer.source.noun[1]}."))
            continue
        said = rule.predict(logits[rows])
        own = probability[rows][:, list(answer.source.important)].max(axis=1)
        texts = [
            (classes[labels[row]], classes[called], f"{p:.2g}")
            for row, called, p in zip(rows.tolist(), said.tolist(), own.tolist(), strict=True)
        ]
        if inputs.ndim > 2:
            shown = tuple(
                (picture(one), f"{true} → {called}, p\u00a0=\u00a0{p}")
                for one, (true, called, p) in zip(inputs, texts, strict=True)
            )
            note = "True class → predicted class, and the probability of the important class. The worst come first."
            found.append(Section(name, title, pictures=shown, note=note))
        else:
            found.append(Section(name, title, tables=(_rows_table(title, rows, texts, inputs),)))
    return found


def _rows_table(title: str, rows: Array, texts: Sequence[tuple[str, str, str]], inputs: Array) -> Table:
    """Rows of a table of features, the first of them."""
    num = min(inputs.shape[1], MOST_FEATURES)
    header = ("test row", "true class", "predicted", "p", *(f"feature {place}" for place in range(num)))
    made = tuple(
        cells(f"{row:,}", *text, *(f"{value:.4g}" for value in features[:num]))
        for row, text, features in zip(rows.tolist(), texts, inputs.tolist(), strict=True)
    )
    more = f" The first {num} of {inputs.shape[1]:,} features." if num < inputs.shape[1] else ""
    notes = (f"p: probability of the important class. The worst come first.{more}",)
    return Table(title, header, (made,), (), notes, words=("true class", "predicted"))


def picture(image: Array) -> str:
    """A uint8 image (H, W, C) as a data URI of a PNG, at most 96 pixels wide or high."""
    from PIL import Image

    made = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    made.thumbnail((96, 96))
    file = io.BytesIO()
    made.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
