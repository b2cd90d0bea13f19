"""A fit's result as text, made from its records: sentences, the table of steps, and the model card."""

import shlex
from typing import Any

from camri.data import DataSet
from camri.data.catalog import notes as data_notes
from camri.fitting.result import LEAST_SEEDS, LEVEL, Fitted
from camri.methods import METHODS, Setting
from camri.stats import Estimate
from camri.text import duration, listed, percent, plural, points, quoted

COLUMNS_SHOWN = 50  # names of a table's columns on the card
BLANK = "–"


def compose(fitted: Fitted) -> list[str]:
    """The answer, most important line first."""
    lines = [headline(fitted), verdict(fitted), expectation(fitted), lost_recall(fitted), handed(fitted), tried(fitted)]
    if fitted.accuracy_dropped:
        lines.insert(3, "Accuracy on test data dropped by more than allowed, which validation data did not show.")
    lines += [f"Caution: {caution}." for caution in fitted.cautions]
    if not fitted.finished:
        lines.append("Stopped before all seeds had ended: the same command resumes and makes the intervals narrower.")
    return lines


def note(fitted: Fitted) -> dict[str, Any]:
    """The answer as the store keeps it for the page."""
    evidence = fitted.evidence
    is_gain = evidence.has_intervals and evidence.gains.recall.low > 0 and not fitted.accuracy_dropped
    sentence, *details = compose(fitted)
    return {"kind": "gain" if is_gain else "none", "sentence": sentence, "details": details}


def headline(fitted: Fitted) -> str:
    """The model that is handed over, beside plain cross-entropy."""
    model, before, num_models = fitted.handed, fitted.evidence.before, fitted.evidence.num_seeds
    return (
        f"{named(fitted)}: found {sum(model.hits):,} of {sum(model.num):,} (before: {before.hits / num_models:.1f}); "
        f"false alarms {model.num_false_alarms:,} of {model.num_images:,} (before: "
        f"{before.false_alarms * model.num_images:.1f}); accuracy {percent(model.accuracy.value)} (before: "
        f"{percent(before.accuracy)}). Before: mean of {plural(num_models, 'plain cross-entropy model')}."
    )


def verdict(fitted: Fitted) -> str:
    """Whether a method was worth it."""
    evidence, title = fitted.evidence, METHODS[fitted.handed.setting.method].title
    if evidence.over_shifted is None:
        if any(fitted.handed.shift):
            return "Change the decision: no method beat shifted cross-entropy on validation data."
        return (
            "Nothing to gain: no method and no shift beat cross-entropy on validation data without losing accuracy. In "
            "the table each model has a shift of its own; the best common one is 0."
        )
    gained = gain(evidence.over_shifted, evidence.num_seeds)
    if evidence.gain_is_shown:
        text = f"Train with {title}: {gained} of recall over shifted cross-entropy under the same training."
    else:
        is_gain = evidence.has_intervals and evidence.over_shifted.low > 0
        reason = f" Not significant: p = {evidence.p:.2g}." if is_gain and evidence.p >= LEVEL else ""
        reason = " Accuracy dropped by more than allowed." if is_gain and not reason else reason
        text = (
            f"Cannot tell yet whether {title} is better than a shift: {gained} of recall over shifted cross-entropy."
            f"{reason} The shift alone may be enough."
        )
    split = (
        " The two halves of the seeds chose different settings: the gain describes the selection procedure, not this "
        "setting."
    )
    return text + ("" if evidence.is_unanimous else split)


def expectation(fitted: Fitted) -> str:
    """What to expect from a new training: means over the finals' seeds, before and after."""
    evidence = fitted.evidence
    before, after, num = evidence.before, evidence.after, evidence.num_seeds
    alarms = gain(evidence.gains.false_alarms, num, decimals=2)
    precisions = ", ".join(
        f"precision of {quoted(name)} {_precision(one)} → {_precision(other)}"
        for name, one, other in zip(fitted.important, before.precisions, after.precisions, strict=True)
    )
    return (
        f"Expect from a new training (mean of {plural(num, 'seed')}): recall {percent(before.recall)} → "
        f"{percent(after.recall)}, {gain(evidence.gains.recall, num)}; accuracy {percent(before.accuracy)} → "
        f"{percent(after.accuracy)}, {gain(evidence.gains.accuracy, num)}; false alarms "
        f"{percent(before.false_alarms, 2)} → {percent(after.false_alarms, 2)}, {alarms}; {precisions}."
    )


def lost_recall(fitted: Fitted) -> str:
    """The classes that lost recall."""
    if not fitted.evidence.lost:
        return "No other class lost recall."
    lost = (f"{quoted(name)} {gain(loss, fitted.evidence.num_seeds)}" for name, loss in fitted.evidence.lost)
    return f"Classes that lost recall: {'; '.join(lost)}."


def handed(fitted: Fitted) -> str:
    """The model that is handed over, with its own figures."""
    return (
        f"Model: {title_of(fitted.handed.setting)}, seed {fitted.handed.seed}, {shift_text(fitted)}. On test data: "
        f"{own_figures(fitted)}."
    )


def tried(fitted: Fitted) -> str:
    """What was trained, and how long it took."""
    effort = fitted.effort
    failed = f" ({effort.num_failed} failed)" if effort.num_failed else ""
    return (
        f"Trained {plural(effort.num_trials, 'model')}{failed} in {duration(effort.wall_s)}: "
        f"{plural(effort.num_trainings, 'training')}, {plural(effort.num_settings, 'setting')}."
    )


def named(fitted: Fitted) -> str:
    return " and ".join(quoted(name) for name in fitted.important)


def gain(interval: Estimate, num_seeds: int, decimals: int = 1) -> str:
    """
    >>> gain(Estimate(0.012, -0.004, 0.028), 10), gain(Estimate(0.012, -0.4, 0.5), 2)
    ('+1.2 points (95 % CI −0.4 to +2.8)', '+1.2 points (no interval: 2 seeds)')
    """
    estimate, low, high = (points(value, decimals) for value in vars(interval).values())
    ends = f"no interval: {plural(num_seeds, 'seed')}" if num_seeds < LEAST_SEEDS else f"95 % CI {low} to {high}"
    return f"{estimate} points ({ends})"


def share(interval: Estimate, hits: int, num: int, decimals: int = 1) -> str:
    """
    >>> share(Estimate(0.95, 0.9, 0.98), 95, 100)
    '95.0 % (95/100; 95 % CI 90.0 to 98.0)'
    """
    ends = f"{100 * interval.low:.{decimals}f} to {100 * interval.high:.{decimals}f}"
    return f"{percent(interval.value, decimals)} ({hits}/{num}; 95 % CI {ends})"


def _precision(share: float | None) -> str:
    return "none (never predicted)" if share is None else percent(share)


def title_of(setting: Setting) -> str:
    """A setting by its method's title and its values: "CAMRI, m=8π/64 s=8"."""
    values = str(setting).removeprefix(setting.method).strip()
    return f"{METHODS[setting.method].title}, {values}" if values else METHODS[setting.method].title


def shift_text(fitted: Fitted) -> str:
    if not any(fitted.handed.shift):
        return "no shift"
    return "shift " + ", ".join(
        f"{value:+.3g}".replace("-", "−") + f" on {quoted(name)}"
        for name, value in zip(fitted.important, fitted.handed.shift, strict=True)
    )


def own_figures(fitted: Fitted) -> str:
    """The figures of the model that is handed over, with intervals over test data."""
    model, parts = fitted.handed, []
    for place, name in enumerate(fitted.important):
        hits, precision = model.hits[place], model.precisions[place]
        parts.append(f"recall of {quoted(name)} {share(model.recalls[place], hits, model.num[place])}")
        counted = _precision(None) if precision is None else share(precision, hits, model.called[place])
        parts.append(f"precision {counted}")
    parts.append(f"accuracy {share(model.accuracy, model.num_right, model.num_images)}")
    parts.append(f"false alarms {share(model.false_alarms, model.num_false_alarms, model.num_images, decimals=2)}")
    return ", ".join(parts)


def steps_table(fitted: Fitted) -> dict[str, Any]:
    """The table of steps as terminal, page and card show it: header, rows of cells, a note; and its numbers."""
    evidence = fitted.evidence

    def cell(interval: Estimate) -> str:
        estimate, low, high = (points(value) for value in vars(interval).values())
        return f"{estimate} [{low}, {high}]" if evidence.has_intervals else estimate

    rows, records = [], []
    for step in evidence.steps:
        figures, gains = step.figures, step.gains
        rows.append(
            [
                step.title,
                percent(figures.recall),
                f"{figures.hits}/{figures.num}",
                percent(figures.accuracy),
                percent(figures.false_alarms, 2),
                *([BLANK] * 2 if gains is None else [cell(gains.recall), cell(gains.accuracy)]),
            ]
        )
        record = {"step": step.name, **vars(figures)}
        for name, interval in {} if gains is None else vars(gains).items():
            stored = {"estimate": interval.value}
            if evidence.has_intervals:
                stored |= {"low": interval.low, "high": interval.high}
            record |= {f"{name}_gain_{end}": value for end, value in stored.items()}
        records.append(record)
    ends = "[95 % CI]" if evidence.has_intervals else f"no intervals with {plural(evidence.num_seeds, 'seed')}"
    return {
        "header": ["step", "recall", "found", "accuracy", "false alarms", "recall gained", "accuracy gained"],
        "rows": rows,
        "note": (
            f"Mean of {plural(evidence.num_seeds, 'model')} per row on test data, with seeds that nothing was chosen "
            f"by. Gained: percentage points over the row above, in the last row over the first; {ends}. False alarms: "
            "share of all test data that is predicted as an important class but belongs to none. A number after a "
            "setting: the seeds it was chosen for."
        ),
        "records": records,
    }


def _columns(data: DataSet) -> str:
    """A paragraph that names the features in order; empty for images and for features without names."""
    names = [f"`{name}`" for name in data.provenance.get("feature_columns", ())]
    if data.input_shape != (len(names),):  # a column may hold a list of them
        return ""
    rest = " `config.json` has all of them." if len(names) > COLUMNS_SHOWN else ""
    return (
        f"The {len(names):,} columns in order, which `camri predict` finds by name: "
        f"{listed(names, COLUMNS_SHOWN)}.{rest}\n\n"
    )


def card(fitted: Fitted, data: DataSet) -> str:
    """The model card: what it is, how to use it, its figures and their limits."""
    model, training, many = fitted.handed, fitted.training, data.noun.many
    table = steps_table(fitted)
    lines = [table["header"], ["---"] * len(table["header"]), *table["rows"]]
    rows = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    splits = ", ".join(f"{len(split):,} {name}" for name, split in data.splits.items())
    kind = "x".join(map(str, data.input_shape)) + (" images, uint8" if data.is_image else " features, float32")
    grouped = ", corrected for groups" if model.effects else ""
    cautions = "".join(f"\n- {text}." for text in (*data_notes(data.provenance), *fitted.cautions))
    example = "images)  # uint8 (N, H, W, C)" if data.is_image else f"rows)  # numbers (N, {data.input_shape[0]})"
    inside = "Preprocessing is part of the model, also in `model.onnx`."
    if any(model.shift):
        inside = (
            "Preprocessing and the shift are part of the model, also in `model.onnx`. Probabilities are those of the\n"
            "shifted scores: calibrate them before reading them as frequencies."
        )
    return f"""# {data.name}: a classifier that must not miss {named(fitted)}

{data.num_classes} classes; inputs are {kind}; {splits}. Trained by camri with {title_of(model.setting)};
training “{fitted.training_name}” ({training.model}, {plural(training.epochs, "epoch")});
{shift_text(fitted)}.

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

This model on {model.num_images:,} test {many} that nothing was chosen on: {own_figures(fitted)}. 95 % intervals over
{many}{grouped}.

The procedure that chose it:

{rows}

{table["note"]}

{expectation(fitted)} Precision: the share of the {many} predicted as a class that belong to it.

{verdict(fitted)}

{lost_recall(fitted)}

## Limits

- The figures hold for data like the test {many}. {named(fitted)}: {" and ".join(map(str, model.num))} test {many}; a
  recall is known no better than its interval.
- The model was chosen among {plural(fitted.evidence.num_seeds, "seed")} on validation data, with one shift tuned on all
  of them. In the table each has its own. Expect the table's figures from a new training, not this model's.
- Accuracy was held on validation data, at cross-entropy’s under the same training minus what was allowed; on new data
  it can be lower.
- A higher recall of some classes costs others: see the classes that lost recall, and the report.{cautions}
"""
