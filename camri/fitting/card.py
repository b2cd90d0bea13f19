"""The model card of a fit, made from its record."""

import shlex

from camri.backbones import is_backbone, weights_from
from camri.data import DataSet
from camri.data.catalog import notes as data_notes
from camri.engine import Training
from camri.fit_record import Counts, evidence_table, handed, headline, lost_recall, show, verdict
from camri.fitting.result import Fitted
from camri.stats import Estimate
from camri.text import listed, percent, plural, quoted

COLUMNS_SHOWN = 50  # names of a table's columns on the card


def share(interval: Estimate, hits: int, num: int, decimals: int = 1) -> str:
    """
    >>> share(Estimate(0.95, 0.9, 0.98), 95, 100)
    '95.0 % (95/100; 95 % CI 90.0 to 98.0)'
    """
    ends = f"{100 * interval.low:.{decimals}f} to {100 * interval.high:.{decimals}f}"
    return f"{percent(interval.value, decimals)} ({hits}/{num}; 95 % CI {ends})"


def own_figures(names: tuple[str, ...], model: Counts) -> str:
    """The figures of one model, with intervals over test data."""
    parts = []
    for place, name in enumerate(names):
        hits, precision = model.hits[place], model.precisions[place]
        parts.append(f"recall of {quoted(name)} {share(model.recalls[place], hits, model.num[place])}")
        counted = "none (never predicted)" if precision is None else share(precision, hits, model.called[place])
        parts.append(f"precision {counted}")
    parts.append(f"accuracy {share(model.accuracy, model.num_right, model.num_rows)}")
    parts.append(f"false alarms {share(model.false_alarms, model.num_false_alarms, model.num_rows, decimals=2)}")
    return ", ".join(parts)


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


def model_name(training: Training, data: DataSet) -> str:
    """The model of a training: its name, with the frozen network whose features it takes."""
    backbone = data.provenance.get("backbone")
    return training.model if backbone is None else f"{training.model} on {backbone['model']}, frozen"


def write_card(fitted: Fitted, data: DataSet) -> str:
    """The model card: what it is, how to use it, its figures and their limits."""
    record, many = fitted.record, data.noun.many
    model, evidence, named = record.handed, record.evidence, " and ".join(map(quoted, record.names))
    header, *cells = evidence_table(record)
    rows = "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *cells])
    gains = "\n".join(
        f"- {one.arm} over {one.over}: recall {show(one.recall)}, accuracy {show(one.accuracy)}, false alarms "
        f"{show(one.false_alarms, 2)}"
        for one in evidence.comparisons
    )
    splits = ", ".join(f"{len(split):,} {name}" for name, split in data.splits.items())
    shape = data.provenance.get("backbone", {}).get("input_shape", data.input_shape)
    is_image = len(shape) == 3
    kind = "x".join(map(str, shape)) + (" images, uint8" if is_image else " features, float32")
    grouped = ", corrected for groups" if model.after.effects else ""
    cautions = "".join(f"\n- {text}." for text in (*data_notes(data.provenance), *record.cautions))
    example = "images)  # uint8 (N, H, W, C)" if is_image else f"rows)  # numbers (N, {data.input_shape[0]})"
    how = "" if model.method == "trees" else f" Training: {record.effort.training}."
    tuned = {"model": fitted.training.model, "options": dict(fitted.training.model_options)}
    backbone = data.provenance.get("backbone", tuned)
    if is_backbone(backbone["model"]):
        how += f" {backbone['model']} started from {weights_from(backbone['options'])}."
    inside = "Preprocessing is part of the model, also in `model.onnx`."
    if model.is_redecided:
        inside = "Preprocessing and the decision rule are part of the model, also in `model.onnx`."
    return f"""# {data.name}: a classifier that must not miss {named}

{headline(record)}

{data.num_classes} classes; inputs are {kind}; {splits}. Trained by camri. {handed(record)}{how}

## Use

```
camri predict {shlex.quote(str(fitted.model_path))} FILES…
```

```
import camri
model = camri.load({str(fitted.model_path)!r})
model.predict({example}
```

{_columns(data)}{inside}

## Figures

This model on {model.after.num_rows:,} test {many} that nothing was chosen on:
{own_figures(record.names, model.after)}. 95 % intervals over {many}{grouped}.

{verdict(record)}

What to expect from a new training, mean of {plural(evidence.num_seeds, "seed")} on test data:

{rows}

{gains}

{lost_recall(record)}

## Limits

- The figures hold for data like the test {many}. {named}: {" and ".join(map(str, model.after.num))} test {many}; a
  recall is known no better than its interval.
- Validation data chose the setting and the rule; on new data accuracy can be lower than there.
- A higher recall of some classes costs others: see the classes that lost recall, and the report.{cautions}
"""
