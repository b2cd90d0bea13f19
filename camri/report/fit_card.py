"""The card of a fit's model: what it is, how to use it, its figures and their limits."""

import shlex
from pathlib import Path

from camri.backbones import is_backbone, weights_from
from camri.data import DataSet
from camri.data.catalog import notes as data_notes
from camri.decision.answer import Answer
from camri.decision.compare import Arm, Share
from camri.engine import Training
from camri.report.fit_words import (
    cautions,
    evidence_table,
    guarantee_lines,
    handed,
    headline,
    lost_recall,
    made,
    show,
    value_of,
    verdict,
)
from camri.text import listed, percent, plural, quoted

COLUMNS_SHOWN = 50  # names of a table's columns on the card


def write_card(answer: Answer, data: DataSet, training: Training, model_path: Path) -> str:
    """The model card."""
    evidence, named = answer.evidence, " and ".join(map(quoted, answer.source.names))
    after, many = made(answer).handed.after, data.noun.many
    splits = ", ".join(f"{len(split):,} {name}" for name, split in data.splits.items())
    doubts = "".join(f"\n- {text}." for text in (*data_notes(data.provenance), *cautions(answer)))
    sure = "".join(f"\n\n{line}" for line in guarantee_lines(answer))
    grouped = "" if after.accuracy.num_groups is None else ", corrected for groups"
    counts = " and ".join(str(one.num) for one in after.recalls)
    what = f"{data.num_classes} classes; inputs are {_kind(data)}; {splits}"
    return f"""# {data.name}: a classifier that must not miss {named}

{headline(answer)}

{what}. Trained by camri. {handed(answer)}{_how(answer, data, training)}

## Use

{_use(data, model_path)}

{_columns(data)}{_inside(answer)}

## Figures

This model on {after.accuracy.num:,} test {many} that nothing was chosen on:
{own_figures(answer.source.names, after)}. 95 % intervals over {many}{grouped}.

{verdict(answer)}{sure}

What to expect from a new training, mean of {plural(evidence.num_seeds, "seed")} on test data:

{_table(answer)}

{_gains(answer)}

{lost_recall(answer)}

## Limits

- The figures hold for data like the test {many}. {named}: {counts} test {many}; a
  recall is known no better than its interval.
- Validation data chose the setting and the rule; on new data accuracy can be lower than there.
- A higher recall of some classes costs others: see the classes that lost recall, and the report.{doubts}
"""


def own_figures(names: tuple[str, ...], model: Arm) -> str:
    """The figures of one model, with intervals over test data."""
    parts = []
    for name, recall, precision in zip(names, model.recalls, model.precisions, strict=True):
        parts.append(f"recall of {quoted(name)} {share(recall)}")
        parts.append(f"precision {'none (never predicted)' if precision.value is None else share(precision)}")
    return ", ".join([*parts, f"accuracy {share(model.accuracy)}", f"false alarms {share(model.false_alarms, 2)}"])


def share(one: Share, decimals: int = 1) -> str:
    """
    >>> share(Share(0.95, 95, 100, 0.9, 0.98))
    '95.0 % (95/100; 95 % CI 90.0 to 98.0)'
    """
    ends = (
        ""
        if one.low is None or one.high is None
        else (f"; 95 % CI {100 * one.low:.{decimals}f} to {100 * one.high:.{decimals}f}")
    )
    return f"{percent(value_of(one), decimals)} ({one.hits}/{one.num}{ends})"


def _table(answer: Answer) -> str:
    header, *cells = evidence_table(answer)
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *cells])


def _gains(answer: Answer) -> str:
    return "\n".join(
        f"- {one.arm} over {one.over}: recall {show(one.recall)}, accuracy {show(one.accuracy)}, false alarms "
        f"{show(one.false_alarms, 2)}"
        for one in answer.evidence.comparisons
    )


def _is_image(data: DataSet) -> bool:
    return len(_shape(data)) == 3


def _shape(data: DataSet) -> tuple[int, ...]:
    """The shape of an input, before a frozen backbone."""
    return tuple(data.provenance.get("backbone", {}).get("input_shape", data.input_shape))


def _kind(data: DataSet) -> str:
    return "x".join(map(str, _shape(data))) + (" images, uint8" if _is_image(data) else " features, float32")


def _how(answer: Answer, data: DataSet, training: Training) -> str:
    """What was added to the plain training, and the weights that a backbone started from."""
    how = "" if made(answer).handed.method == "trees" else f" Training: {made(answer).effort.training}."
    tuned = {"model": training.model, "options": dict(training.model_options)}
    backbone = data.provenance.get("backbone", tuned)
    if is_backbone(backbone["model"]):
        how += f" {backbone['model']} started from {weights_from(backbone['options'])}."
    return how


def _inside(answer: Answer) -> str:
    if made(answer).handed.is_redecided:
        return "Preprocessing and the decision rule are part of the model, also in `model.onnx`."
    return "Preprocessing is part of the model, also in `model.onnx`."


def _use(data: DataSet, model_path: Path) -> str:
    example = "images)  # uint8 (N, H, W, C)" if _is_image(data) else f"rows)  # numbers (N, {data.input_shape[0]})"
    return f"""```
camri predict {shlex.quote(str(model_path))} FILES…
```

```
import camri
model = camri.load({str(model_path)!r})
model.predict({example}
```"""


def _columns(data: DataSet) -> str:
    """A paragraph that names the features in order; empty for images and for features without names."""
    names = [f"`{name}`" for name in data.provenance.get("feature_columns", ())]
    encoding = data.provenance.get("encoding")
    if data.input_shape != (len(names),) and encoding is None:  # a column may hold a list of them
        return ""
    coded = (
        ""
        if encoding is None
        else (
            f" Texts are categories and missing values are filled in, which makes {data.input_shape[0]:,} numbers a "
            "row (`preprocessing.encoding` in `config.json`): `camri predict` does so; `model.predict` and `model.onnx`"
            " take the numbers."
        )
    )
    rest = " `config.json` has all of them." if len(names) > COLUMNS_SHOWN else ""
    return (
        f"The {len(names):,} columns in order, which `camri predict` finds by name: "
        f"{listed(names, COLUMNS_SHOWN)}.{rest}{coded}\n\n"
    )
