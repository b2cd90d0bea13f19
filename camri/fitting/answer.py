"""A fit's result in sentences, and the card that goes with its model."""

import shlex

from camri.data import DataSet
from camri.data.catalog import notes as data_notes
from camri.fitting import ramps
from camri.fitting.result import LEAST_SEEDS, Fitted, Interval
from camri.methods import METHODS, Setting
from camri.report.table import percent, points
from camri.text import duration, listed, quoted

COLUMNS_SHOWN = 50  # of a table, by name
NEVER = "none (never predicted)"  # the precision of such a class


def gain(found: Interval, num_seeds: int, unit: str = " points", decimals: int = 1) -> str:
    """
    >>> gain(Interval(0.012, -0.004, 0.028), 10), gain(Interval(0.012, -0.4, 0.5), 2)
    ('+1.2 points [−0.4, +2.8]', '+1.2 points (no interval of 2 models)')
    """
    estimate, low, high = (points(value, decimals) for value in (found.estimate, found.low, found.high))
    ends = f"(no interval of {num_seeds} models)" if num_seeds < LEAST_SEEDS else f"[{low}, {high}]"
    return f"{estimate}{unit} {ends}"


def share(found: Interval, hits: int, num: int) -> str:
    """
    >>> share(Interval(0.95, 0.9, 0.98), 95, 100)
    '0.950 (95/100; 0.900 to 0.980)'
    """
    return f"{found.estimate:.3f} ({hits}/{num}; {found.low:.3f} to {found.high:.3f})"


def named(important: tuple[str, ...]) -> str:
    return " and ".join(quoted(name) for name in important)


def title_of(setting: Setting) -> str:
    """A setting for people who know its method's name: "CAMRI, m=8π/64 s=8"."""
    values = str(setting).removeprefix(setting.method).strip()
    return f"{METHODS[setting.method].title}, {values}" if values else METHODS[setting.method].title


def verdict(fitted: Fitted) -> str:
    """Whether the method earned its keep, in one sentence."""
    if fitted.over_shifted is None:
        given = "cross-entropy and a constant added to the important scores"
        if not any(fitted.shift):
            given = "cross-entropy, whose best shift for all models together is none; in the steps each has its own"
        return (
            f"No method beat cross-entropy with a shift on validation data, so that is what you get: {given}. It needs "
            "no special loss."
        )
    gained = gain(fitted.over_shifted, fitted.num_seeds)
    over = f"Over cross-entropy with a shift of its own, same training: {gained} of recall. "
    shown = "The method earns its keep."
    if not fitted.gain_is_shown:
        shown = "That a method was needed is not shown; the shift alone may do."
    split = " The two halves of the seeds picked different settings, so the gain is that of choosing so, not of one."
    return over + shown + ("" if fitted.is_unanimous else split)


def compose(fitted: Fitted) -> str:
    """The answer, a sentence or two a line."""
    before, after, num_seeds = fitted.before, fitted.after, fitted.num_seeds
    fell = " It fell by more than was allowed; validation data did not show it." if fitted.accuracy_fell else ""
    lines = [
        f"Recall of {named(fitted.important)}: {before.recall:.3f} → {after.recall:.3f}, "
        f"{gain(fitted.recall_gain, num_seeds)}; hits {before.hits}/{before.num} → {after.hits}/{after.num}, "
        f"{num_seeds} models each.",
        f"Accuracy: {before.accuracy:.3f} → {after.accuracy:.3f}, {gain(fitted.accuracy_gain, num_seeds)}.{fell}",
        false_alarms(fitted),
        verdict(fitted),
        who_paid(fitted),
        f"Handed over: {title_of(fitted.setting)}, seed {fitted.handed.seed}, {shift_text(fitted)}. This one model on "
        f"test data: {own_figures(fitted)}.",
        tried(fitted),
    ]
    if len(fitted.ramps) > 1:
        lines.append(ramp_text(fitted))
    if fitted.caution is not None:
        lines.append(f"Caution: {fitted.caution}.")
    if not fitted.finished:
        lines.append("Stopped before all seeds had ended: the same command goes on and makes the intervals narrower.")
    return "\n".join(lines)


def note(fitted: Fitted) -> dict[str, object]:
    """The answer as the page shows it: recall and accuracy first, the rest below."""
    recall, accuracy, *details = compose(fitted).split("\n")
    return {
        "kind": "gain" if fitted.has_intervals and fitted.recall_gain.low > 0 and not fitted.accuracy_fell else "none",
        "sentence": f"{recall} {accuracy}",
        "details": details,
    }


def false_alarms(fitted: Fitted) -> str:
    """What the recall costs in false alarms, and the precision of each important class."""
    before, after = fitted.before, fitted.after
    precisions = ", ".join(
        f"of {quoted(name)} {_precision(one)} → {_precision(other)}"
        for name, one, other in zip(fitted.important, before.precisions, after.precisions, strict=True)
    )
    return (
        f"False alarms: {percent(before.false_alarms)} → {percent(after.false_alarms)} in a hundred, "
        f"{gain(fitted.false_alarms_added, fitted.num_seeds, unit='', decimals=2)}; precision {precisions}."
    )


def _precision(share: float | None) -> str:
    return NEVER if share is None else f"{share:.3f}"


def who_paid(fitted: Fitted) -> str:
    if not fitted.paid:
        return "Who paid: no other class lost recall."
    paid = "; ".join(f"{quoted(name)} {gain(found, fitted.num_seeds)}" for name, found in fitted.paid)
    return f"Who paid: {paid}."


def shift_text(fitted: Fitted) -> str:
    if not any(fitted.shift):
        return "no shift"
    return "shift " + ", ".join(
        f"{value:+.3g}".replace("-", "−") + f" on {quoted(name)}"
        for name, value in zip(fitted.important, fitted.shift, strict=True)
    )


def own_figures(fitted: Fitted) -> str:
    one = fitted.handed
    told = []
    for place, name in enumerate(fitted.important):
        hits, precision = one.hits[place], one.precisions[place]
        told.append(f"recall of {quoted(name)} {share(one.recalls[place], hits, one.num[place])}")
        told.append(f"precision {NEVER if precision is None else share(precision, hits, one.called[place])}")
    told.append(f"accuracy {share(one.accuracy, one.num_right, one.num_images)}")
    estimate, low, high = map(percent, vars(one.false_alarms).values())
    told.append(f"false alarms {estimate} in a hundred ({one.num_false_alarms}/{one.num_images}; {low} to {high})")
    return ", ".join(told)


def ramp_text(fitted: Fitted) -> str:
    """Which ramps were compared and what came of it, in one sentence."""
    compared = "Ramps of the penalties, compared on validation data: " + ", ".join(
        map(ramps.describe_ramp, fitted.ramps)
    )
    if fitted.ramp_name == ramps.EARLY:
        return f"{compared}; none was better than {ramps.EARLY}."
    return f"{compared}; {fitted.ramp_name} was better, and the finals have it."


def tried(fitted: Fitted) -> str:
    failed = f", {fitted.num_failed} of them failed" if fitted.num_failed else ""
    return (
        f"Tried: {_plural(fitted.num_trainings, 'training')} and {_plural(fitted.num_settings, 'setting')} in "
        f"{fitted.num_trials:,} models{failed}; {duration(fitted.wall_s)}."
    )


def _plural(num: int, noun: str) -> str:
    return f"{num} {noun}" if num == 1 else f"{num:,} {noun}s"


def _columns(data: DataSet) -> str:
    """A paragraph that names the features in their order; nothing for images and for features without names."""
    names = [f"`{name}`" for name in data.provenance.get("feature_columns", ())]
    if data.input_shape != (len(names),):  # a column may hold a list of them
        return ""
    rest = " `config.json` has all of them." if len(names) > COLUMNS_SHOWN else ""
    return (
        f"The {len(names):,} columns in their order, which `camri predict` finds by name: "
        f"{listed(names, COLUMNS_SHOWN)}.{rest}\n\n"
    )


def card(fitted: Fitted, data: DataSet) -> str:
    """The model card: what it is, how to use it, the honest figures and their limits."""

    def added(found: Interval | None) -> str:
        return "–" if found is None else gain(found, fitted.num_seeds)

    rows = "\n".join(
        f"| {step.title} | {step.figures.recall:.3f} | {step.figures.hits}/{step.figures.num} | "
        f"{step.figures.accuracy:.3f} | {percent(step.figures.false_alarms)} | {added(step.recall_gain)} | "
        f"{added(step.accuracy_gain)} |"
        for step in fitted.steps
    )
    parts = ", ".join(f"{len(split):,} {name}" for name, split in data.splits.items())
    kind = "x".join(map(str, data.input_shape)) + (" images, uint8" if data.is_image else " features, float32")
    many = data.noun.many
    worth = ", which count for as many as their groups show them to be worth" if fitted.handed.effects else ""
    ramp = (
        f", penalties in {ramps.describe_ramp(fitted.ramp_name)}" if ramps.depends_on_ramp(fitted.setting, data) else ""
    )
    notes = [*data_notes(data.provenance), *([fitted.caution] if fitted.caution is not None else [])]
    cautions = "".join(f"\n- About the data: {one}." for one in notes)
    example = "images)  # uint8 (N, H, W, C)" if data.is_image else f"rows)  # numbers (N, {data.input_shape[0]})"
    inside = "Preprocessing is inside: in `model.onnx` too, where it is there."
    if any(fitted.shift):
        inside = (
            "Preprocessing and the shift are inside: in `model.onnx` too, where it is there. Probabilities are those "
            "of the shifted\nscores, so they are not the frequencies of the training data."
        )
    return f"""# {data.name}: a classifier that must not miss {named(fitted.important)}

{data.num_classes} classes; inputs are {kind}; {parts}. Trained by camri with {title_of(fitted.setting)};
training “{fitted.training_name}” ({fitted.training.model}, {fitted.training.epochs} epochs{ramp});
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

This one model on {fitted.handed.num_images:,} test {many} that nothing was chosen on: {own_figures(fitted)}. Intervals
are 95 %, over {many}{worth}.

The procedure that chose it, over {fitted.num_seeds} models of new seeds, on the same {many}, differences with 95 %
intervals over seeds and {many}:

| step | recall | hits / n | accuracy | false alarms | recall added | accuracy added |
|---|---|---|---|---|---|---|
{rows}

{false_alarms(fitted)} A false alarm is one of the {many} of no important class that is taken for one; in a hundred of
all. Precision: of what is taken for a class, the share that is of it.

{verdict(fitted)}

{who_paid(fitted)}

## Limits

- The figures hold for data like the test {many}. Of {named(fitted.important)} there are
  {" and ".join(map(str, fitted.handed.num))} of them; a recall is known no better than its interval says.
- The model was picked among {fitted.num_seeds} on validation data, with a shift tuned to all of them together, which
  is steadier; in the table each has its own. Over new trainings expect the table's figures, not the picked model's.
- Accuracy was allowed to be as low as that of cross-entropy under the same training, on validation data, and no lower
  than asked; on test data it can be.
- A higher recall of some classes is paid by others: see who paid, and the report.{cautions}
"""
