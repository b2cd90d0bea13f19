"""The page of a fit, from its record, its examples and its run."""

import base64
import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import special

from camri.data.tables import BAD_ARRAYS
from camri.decision import DecisionRule, rule_from_json
from camri.errors import InputError
from camri.fit_record import (
    EXAMPLES_FILE,
    FitRecord,
    compose,
    evidence_table,
    handed,
    headline,
    lost_recall,
    still_improving,
    tried,
    verdict,
)
from camri.metrics import Array, exact
from camri.report.page import Section, facts, fill, make_bars, sections
from camri.report.records import FromRun
from camri.report.slider import VALUE, make_slider
from camri.report.tables import Table, cells
from camri.study.reader import RunReader
from camri.text import percent, quoted

SHOWN = 12  # examples of each kind
MOST_FEATURES = 6
GOOD = ("train_with", "change_the_decision")
BEFORE = "Before: another model, plain cross-entropy, whose largest score decides. After: the model handed over."
SAME = "Before: the largest score of this model decides. After: its tuned rule."
WORDS = (
    "recall", "accuracy", "false alarm", "precision", "point", "before", "tuned", "shift", "threshold", "hits / n",
    "trial, seed", "setting", "[low, high]", "±", "p (Holm)", "CE, ce", "CE + shift",
)  # fmt: skip


def render_fit(record: FitRecord, reading: RunReader) -> str:
    """The page as HTML."""
    arrays, rule = read_examples(reading.run.path.parent), rule_from_json(record.handed.rule)
    header, *rows = evidence_table(record)
    changes = {one.name: (one.recall.value, one.recall.low, one.recall.high) for one in record.evidence.classes}
    about = [headline(record), handed(record), lost_recall(record), tried(record)]
    evidence = Table("Means over seeds on test data", tuple(header), (tuple(cells(*row) for row in rows),), ())
    source = FromRun(reading)
    of_run = [one for one in sections(source, with_paper=False) if not one.is_empty and one.name != "changes"]
    reading.begin("writing the page")
    lead = [compose(record)[-1]] * (not record.finished)
    if record.effort.still_improving:
        lead.insert(0, f"{still_improving(record)}: {record.effort.enough} would train longer.")
    return fill(
        "answer.html.j2",
        [] if arrays is None else [_slider(record, arrays, rule), *_examples(record, arrays, rule)],
        [Section("evidence", "Evidence over seeds", tables=(evidence,), text="\n".join(about)), *of_run],
        brand="camri fit",
        title=f"{record.data}: {', '.join(map(quoted, record.names))}",
        kind="gain" if record.verdict.kind in GOOD else "none",
        lead=" ".join([*lead, verdict(record)]),
        cautions=[f"Caution: {text}." for text in record.cautions],
        figures=_figures(record),
        actions=[SAME if record.handed.method == "ce" else BEFORE],
        bars=make_bars(changes, "Change of recall of the other classes, mean over seeds"),
        words=WORDS,
        many=record.noun[1],
        facts=[(name, text) for name, text in facts(reading) if name != "study.json"],
        source="the fit’s folder alone",
    )


def read_examples(folder: Path) -> dict[str, Array] | None:
    """The arrays beside a fit's record; None if there are none."""
    path = folder / EXAMPLES_FILE
    try:
        with np.load(path, allow_pickle=False) as held:
            return {name: held[name] for name in held.files}
    except FileNotFoundError:
        return None
    except BAD_ARRAYS as error:
        raise InputError(f"{path} cannot be read ({error}); fit again into another folder") from None


def _figures(record: FitRecord) -> list[tuple[str, str, str, str]]:
    """Recall, false alarms and accuracy of the model handed over, before and after."""
    before, after, many = record.handed.before, record.handed.after, record.noun[1]
    figures = [
        (f"Recall of {quoted(name)}", percent(old.value), percent(new.value), f"{hits:,} of {num:,} found")
        for name, old, new, hits, num in zip(
            record.names, before.recalls, after.recalls, after.hits, after.num, strict=True
        )
    ]
    alarms = f"{after.num_false_alarms:,} of {after.num_others:,} others; before {before.num_false_alarms:,}"
    return [
        *figures,
        (f"False alarms, of all {many}", percent(before.false_alarms.value), percent(after.false_alarms.value), alarms),
        ("Accuracy", percent(before.accuracy.value), percent(after.accuracy.value), f"{after.num_rows:,} test {many}"),
    ]


def _slider(record: FitRecord, arrays: Mapping[str, Array], rule: DecisionRule) -> Section:
    """The operating points of the model handed over, on test data."""
    scores = exact(arrays["test_logits"], arrays["test_labels"], record.important)
    words = " ".join(f"--{rule.name} {shlex.quote(f'{name}=')}{VALUE}" for name in record.names)
    values = ", ".join(f"{name!r}: {VALUE}" for name in record.names)
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
    made = make_slider(scores, rule, record.names, codes, note=note, many=record.noun[1], label=label)
    return Section("point", "Choose the operating point", slider=made)


def _examples(record: FitRecord, arrays: Mapping[str, Array], rule: DecisionRule) -> list[Section]:
    """What the model still misses, and its worst false alarms."""
    names = " and ".join(map(quoted, record.names))
    titles = {"missed": f"What it still misses of {names}", "false_alarms": "Its worst false alarms"}
    logits, labels, classes = arrays["test_logits"], arrays["test_labels"], record.classes
    probability = special.softmax(logits, axis=1)
    found = []
    for name, title in titles.items():
        rows, inputs = arrays[name][:SHOWN], arrays[f"{name}_inputs"][:SHOWN]
        if not len(rows):
            found.append(Section(name, title, note=f"None on {len(labels):,} test {record.noun[1]}."))
            continue
        said = rule.predict(logits[rows])
        own = probability[rows][:, list(record.important)].max(axis=1)
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
