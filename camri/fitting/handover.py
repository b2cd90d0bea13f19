"""The end of a fit: the arms judged, the model's folder with its card, the record, the page."""

import contextlib
import importlib.util
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from camri.backbones import is_backbone, weights_from
from camri.data import DataSet
from camri.data.catalog import notes as data_notes
from camri.data.rows import Inputs
from camri.decision import AtLeast, BestRecall, DecisionRule
from camri.engine import Outcome, Training, Trial
from camri.errors import InputError
from camri.export import Model, Trained, load, save
from camri.files import replacing
from camri.fit_record import (
    EXAMPLES_FILE,
    Counts,
    Effort,
    FitRecord,
    HandedOver,
    Length,
    compose,
    evidence_table,
    handed,
    headline,
    lost_recall,
    show,
    verdict,
)
from camri.fitting.judge import (
    Decided,
    Held,
    apply,
    argmax_of,
    bolder,
    count,
    decide,
    floor_of,
    gather,
    goal_record,
    is_better,
    mean_recall,
    median_model,
    shift_to,
    tune_arm,
    tune_rule,
)
from camri.fitting.request import Request, command, model_name
from camri.fitting.rivals import TREES
from camri.fitting.trainer import CE, Point, TrainingRun, describe_training, outcome_with_weights, statuses_of
from camri.methods import METHODS, Setting
from camri.metrics import Array, exact
from camri.selection import Floor, Rule
from camri.stats import FEWEST_GROUPS, FEWEST_ROWS, Estimate, design_effect, wilson
from camri.study import run_folder
from camri.study.reader import RunReader
from camri.study.run_folder import facts_of
from camri.study.spec import Resolved, Study
from camri.study.store import Store, open_run
from camri.text import Noun, listed, percent, plural, quoted

MODEL, PAGE = "model", "report.html"  # in the folder of a fit
WEIGHTS = "weights"  # folder of trained weights, until the fit has finished
PAGE_NEEDS = ("altair", "vl_convert", "jinja2")
LOOSE = 0.04  # ± of validation accuracy; if wider, some models are a point less accurate elsewhere
MOST_EXAMPLES = 24
COLUMNS_SHOWN = 50  # names of a table's columns on the card


@dataclass(frozen=True, eq=False)
class Fitted:
    """The result of a fit: its record, and the setting and training of the model that is handed over."""

    record: FitRecord
    setting: Setting
    training: Training
    out: Path

    @property
    def important(self) -> tuple[str, ...]:
        return self.record.names

    @property
    def finished(self) -> bool:
        """False if it was stopped before all seeds had ended."""
        return self.record.finished

    @property
    def model_path(self) -> Path:
        return self.out / MODEL

    @property
    def page_path(self) -> Path | None:
        """The report; None if it could not be written because altair or jinja2 is missing."""
        path = self.out / PAGE
        return path if path.exists() else None

    @property
    def answer(self) -> str:
        """The result in sentences, one or two a line."""
        return "\n".join(compose(self.record))

    def load(self) -> Model:
        """Load the model, ready to predict."""
        return load(self.model_path)

    def __str__(self) -> str:
        return self.answer


@dataclass(frozen=True)
class Finals:
    """What the stages of a fit have decided.

    winner: the best rival on validation data, None if there is none. trees: boosted trees, of tables only.
    """

    column: Resolved
    winner: Setting | None
    control: Setting | None
    trees: Outcome | None
    points: Sequence[Point]
    seeds: Sequence[int]
    lengths: Sequence[tuple[int, float]]
    still_improving: bool
    learnt: bool
    num_settings: int
    given_up: tuple[str, ...]
    wall_s: float
    enough: str
    is_finished: bool


def hand_over(request: Request, run: TrainingRun, finals: Finals, stores: Sequence[Path]) -> Fitted:
    """Judge the finals; write the model, its card, the record and the page."""
    goal, data, training = request.goal, request.data, run.training
    important = tuple(sorted(index for index, _ in finals.column))
    asked = run.study(finals.points, finals.seeds)
    settings = {"baseline": CE, "method": finals.winner, "control": finals.control}
    models = {
        name: run.models(setting, important, finals.seeds, ("val", "test"))
        for name, setting in settings.items()
        if setting is not None
    }
    if not models["baseline"]:
        raise InputError(f"{run.folder}: every cross-entropy trial of the finals failed; see `camri study status`")
    shared = set.intersection(*({model.seed for model in arm} for arm in models.values()))
    if not shared:  # every trial of the rival failed
        models, shared = {"baseline": models["baseline"]}, {model.seed for model in models["baseline"]}
    models = {name: [model for model in arm if model.seed in shared] for name, arm in models.items()}
    baseline = models["baseline"]
    floor = floor_of(goal, baseline, request.prior_rows)
    is_method = "method" in models and finals.learnt and _is_chosen(request, models["method"], baseline, floor)
    chosen = finals.winner if is_method and finals.winner is not None else CE
    title = title_of(chosen)
    grown = None
    if finals.trees is not None:
        found, _ = _scores(request, Trained.of(finals.trees, data, important))
        trees = [replace(found, seed=model.seed) for model in baseline]  # the same for every seed
        best = models["method" if is_method else "baseline"]
        if finals.learnt and _is_chosen(request, trees, best, floor, is_baseline=not is_method):
            grown, models, is_method = finals.trees, {"baseline": baseline, "method": trees}, True
            chosen, training, title = CE, finals.trees.training, TREES
        else:
            models["trees"] = trees
    plain = argmax_of(important)
    rules = {name: tune_arm(goal, arm, floor, is_baseline=name == "baseline") for name, arm in models.items()}
    arm = "method" if is_method else "baseline"
    picked, rule = median_model(goal, models[arm], rules[arm])
    if grown is not None:
        trained = Trained.of(grown, data, important, rule, request.inputs.standardise)
        scored, logits = _scores(request, trained)
    else:
        trained, bare = _trained(request, training, important, chosen, picked.seed, rule)
        scored, logits = _scores(request, bare, picked.seed)

    with open_run(run.folder) as stored:
        labels, groups = stored.labels("test"), stored.groups("test")
    arms: dict[str, tuple[str, list[Decided]]] = {
        "baseline": ("cross-entropy" if finals.learnt else "cross-entropy, no better than guessing",
                     [apply(plain, model, "test", goal) for model in baseline]),
    }  # fmt: skip
    titles = {"baseline": "cross-entropy, tuned"} if finals.learnt else {}
    for name, named in (("method", settings["method"]), ("control", settings["control"])):
        if name in models:
            titles[name] = f"{TREES if grown is not None or named is None else title_of(named)}, tuned"
    if "trees" in models:
        titles["trees"] = f"{TREES}, tuned"
    for name, arm_title in titles.items():
        decided = [apply(one, model, "test", goal) for one, model in zip(rules[name], models[name], strict=True)]
        arms["redecided" if name == "baseline" else name] = (arm_title, decided)
    if is_method and isinstance(goal, BestRecall):
        own = baseline[0].scores["val"].labels
        recall = mean_recall([apply(rule, model, "val", goal) for model in models["method"]], own, important)
        same = shift_to(recall, baseline)
        arms["shifted"] = "cross-entropy, shifted to that recall", [apply(same, one, "test", goal) for one in baseline]
    if finals.learnt and isinstance(goal, BestRecall):
        bold = bolder(baseline)
        arms["bolder"] = "cross-entropy, larger shift", [apply(bold, model, "test", goal) for model in baseline]
    pairs = [("redecided", "baseline"), ("method", "redecided"), ("method", "baseline"), ("method", "control"),
             ("method", "shifted"), ("bolder", "baseline")]  # fmt: skip
    evidence = gather(
        arms,
        [pair for pair in pairs if set(pair) <= set(arms)],
        labels,
        groups,
        important,
        data.classes,
        final="method" if is_method else "redecided" if "redecided" in arms else "baseline",
    )
    before = scored  # the same network, if only its decision changes
    if is_method:
        before, _ = median_model(goal, baseline, [plain] * len(baseline))
    handed_over = HandedOver(
        method="trees" if grown is not None else chosen.method,
        title=title,
        seed=picked.seed,
        model=model_name(training, data),
        epochs=training.epochs,
        rule=rule.to_json(),
        before=count(plain, before, goal, groups),
        after=count(rule, scored, goal, groups),
    )
    concluded = decide(
        evidence,
        goal_record(goal),
        method=title if is_method else None,
        is_redecided=handed_over.is_redecided,
        learnt=finals.learnt,
        still_improving=finals.still_improving,
        has_rivals=finals.num_settings > 1 or grown is not None,
        num_rows=int(min(data.class_counts(part)[index] for part in ("val", "test") for index in important)),
    )
    if concluded.arm != "bolder":
        evidence = evidence.without("bolder")
    statuses = statuses_of(stores)
    record = FitRecord(
        data=data.name,
        noun=tuple(data.noun),  # type: ignore[arg-type]
        num_rows={name: len(split) for name, split in data.splits.items()},
        classes=tuple(data.classes),
        important=important,
        goal=goal_record(goal),
        handed=handed_over,
        verdict=concluded,
        evidence=evidence,
        effort=Effort(
            tuple(Length(epochs, accuracy) for epochs, accuracy in finals.lengths),
            finals.still_improving,
            describe_training(training),
            finals.num_settings,
            len(statuses),
            list(statuses.values()).count("failed"),
            finals.wall_s,
            finals.enough,
            finals.given_up,
        ),
        cautions=(
            *_cautions(request, run, baseline),
            *doubts(data, important),
        ),
        command=command(request, finals.is_finished),
        finished=finals.is_finished,
    )
    fitted = Fitted(record, chosen, training, request.out)
    save(trained, fitted.model_path, card=write_card(fitted, data))
    write_examples(request, scored, logits, rule)
    record.write(request.out)
    sentence, *details = compose(record)
    kind = "gain" if record.verdict.kind in ("train_with", "change_the_decision") else "none"
    drop = goal.max_accuracy_drop if isinstance(goal, BestRecall) else 0.0
    num_trials = len(statuses_of([request.out])) if finals.is_finished else len(asked.trials(asked.placeholders()))
    _note(
        request,
        asked,
        command=record.command,
        num_trials=num_trials,
        answer={"kind": kind, "sentence": sentence, "details": details},
        rule=vars(Rule(max_accuracy_drop=drop, prior_rows=request.prior_rows)),
    )
    if finals.is_finished:
        shutil.rmtree(request.out / WEIGHTS, ignore_errors=True)
    return fitted


def _is_chosen(
    request: Request, mine: Sequence[Held], theirs: Sequence[Held], floor: Floor, is_baseline: bool = True
) -> bool:
    """Whether validation data prefer models to others, both with tuned decisions, by more than a standard error.

    For the most recall they must also be more accurate than the others shifted to the same recall.
    is_baseline: whether the others are the baseline.
    """
    goal, val = request.goal, theirs[0].scores["val"]
    rule = tune_rule(goal, mine, floor).rule
    if rule is None:
        return False
    one = [apply(rule, model, "val", goal) for model in mine]
    other = tune_rule(goal, theirs, floor, negative=not is_baseline).rule or argmax_of(val.important)
    two = [apply(other, model, "val", goal) for model in theirs]
    if not is_better(one, two, val.labels, val.important, goal_record(goal).figure):
        return False
    if not isinstance(goal, BestRecall):
        return True
    same = shift_to(mean_recall(one, val.labels, val.important), theirs)
    two = [apply(same, model, "val", goal) for model in theirs]
    return is_better(one, two, val.labels, val.important, "accuracy")


def title_of(setting: Setting) -> str:
    """A setting by its method's title and its values: "CAMRI, m=8π/64 s=8"."""
    values = str(setting).removeprefix(setting.method).strip()
    return f"{METHODS[setting.method].title}, {values}" if values else METHODS[setting.method].title


def _trained(
    request: Request, training: Training, important: Sequence[int], setting: Setting, seed: int, rule: DecisionRule
) -> tuple[Trained, Trained]:
    """The model to hand over; and as it takes the rows of `request.data`, which may be a frozen backbone's features."""
    # Without the file of initial weights, which may not exist where the model is loaded.
    kept = tuple(pair for pair in training.model_options if not pair[0].startswith("initial"))
    portable = training.with_(model_options=kept)
    trained = None
    with contextlib.suppress(InputError):  # an earlier call may have saved it, and left no other weights
        trained = load(request.out / MODEL).trained
    bare = None
    if trained is None or (trained.setting, trained.seed, trained.training) != (setting, seed, portable):
        outcome = outcome_with_weights(request, request.out / WEIGHTS, Trial(setting, seed), training)
        outcome = replace(outcome, training=portable)
        trained = Trained.of(outcome, request.data, important, rule, request.inputs.standardise)
        if request.inputs.images is not None:  # the head alone: the features of all images are at hand
            bare = Trained.of(outcome, replace(request.data, provenance={}), important)
    trained = replace(trained, rule=rule)
    return trained, bare or trained


def _scores(request: Request, trained: Trained, seed: int = 0) -> tuple[Held, dict[str, Array]]:
    """A model's scores before its rule, in full precision as it is saved: a GPU trains and counts in half."""
    # As it takes the features in `data`, which are scaled already.
    model = Model(replace(trained, rule=None, standardise=None))
    model.module.to(request.device)
    splits = request.data.splits
    logits = {name: model.logits(splits[name].inputs) for name in ("val", "test")}
    held = {name: exact(v, splits[name].labels.numpy(), trained.important) for name, v in logits.items()}
    return Held(seed, held), logits


def write_examples(request: Request, model: Held, logits: Mapping[str, Array], rule: DecisionRule) -> None:
    """Write examples.npz: see `camri.fit_record.EXAMPLES_FILE`."""
    decided, test, split = apply(rule, model, "test", request.goal), model.scores["test"], request.data.splits["test"]
    lead = test.lead.astype(np.float64).max(axis=1)
    own = np.isin(test.labels, test.important)
    missed = np.flatnonzero(own & ~decided.correct)
    alarms = np.flatnonzero(decided.false_alarms)
    worst = {
        "missed": missed[np.argsort(lead[missed], kind="stable")][:MOST_EXAMPLES],
        "false_alarms": alarms[np.argsort(-lead[alarms], kind="stable")][:MOST_EXAMPLES],
    }
    inputs = {f"{name}_inputs": _raw(request, split.inputs, rows) for name, rows in worst.items()}
    arrays: dict[str, Any] = {
        f"{name}_{what}": values
        for name in ("val", "test")
        for what, values in (("labels", model.scores[name].labels), ("logits", logits[name]))
    }
    with replacing(request.out / EXAMPLES_FILE, "; choose another folder") as part, open(part, "wb") as file:
        np.savez_compressed(file, **(arrays | worst | inputs))


def _raw(request: Request, inputs: Inputs, rows: Array) -> Array:
    """Test inputs as the user's data have them: images before a frozen backbone, features not yet standardised."""
    if request.inputs.images is not None:
        inputs = request.inputs.images.splits["test"].inputs
    chosen: Array = inputs[rows].numpy()
    if request.inputs.standardise is None or request.inputs.images is not None:
        return chosen
    mean, sd = (np.array(values, dtype=np.float32) for values in request.inputs.standardise)
    return chosen * sd + mean


def _cautions(request: Request, run: TrainingRun, baseline: Sequence[Held]) -> list[str]:
    """Why validation data may decide less than it seems."""
    with RunReader(run.folder) as reading:
        cautions = [reading.mute_validation]
        groups = reading.run.groups("val")
    if isinstance(request.goal, BestRecall):
        cautions.append(loose_floor(baseline, request.data.noun, groups))
    if isinstance(request.goal, AtLeast) and request.goal.confidence is not None:
        num = int(baseline[0].scores["val"].num.min())
        if request.goal.recall**num > (1 - request.goal.confidence) / len(baseline[0].scores["val"].important):
            cautions.append(
                f"{num} validation {request.data.noun.many} are too few to promise a recall of "
                f"{100 * request.goal.recall:g} %: it was reached on them, no more"
            )
    return [text for text in cautions if text]


def loose_floor(baseline: Sequence[Held], noun: Noun, groups: Array | None = None) -> str | None:
    """A caution if validation data, which may come in groups (N,), are too few to hold accuracy on; else None."""
    right = np.mean([model.scores["val"].correct() for model in baseline], axis=0)
    effect = 1.0 if groups is None else design_effect(right, groups)
    low, high = wilson(right.sum() / effect, len(right) / effect)
    if high - low <= 2 * LOOSE:
        return None
    return (
        f"accuracy was held on {len(right):,} validation {noun.many}, which measure it to ± {50 * (high - low):.0f} "
        f"points only; on new {noun.many} it may be {'a point or two' if high - low < 0.2 else 'many points'} lower"
    )


def doubts(data: DataSet, important: Sequence[int]) -> list[str]:
    """Cautions about few rows or groups of an important class."""
    cautions, test, noun = [], data.splits["test"], data.noun
    for index in important:
        name, num_val, num_test = (
            quoted(data.classes[index]), *(int(data.class_counts(part)[index]) for part in ("val", "test"))
        )  # fmt: skip
        if min(num_val, num_test) < FEWEST_ROWS:
            cautions.append(
                f"{name} has {num_val} validation and {num_test} test {noun.many}; with fewer than {FEWEST_ROWS} of "
                "either, no choice and no interval is reliable"
            )
        num_groups = num_test if test.groups is None else len(test.groups[test.labels == index].unique())
        if num_groups < min(num_test, FEWEST_GROUPS):
            cautions.append(
                f"the {num_test:,} test {noun.many} of {name} come from {num_groups} groups; fewer than "
                f"{FEWEST_GROUPS} cannot show how groups differ"
            )
    return cautions


def can_draw() -> bool:
    """Whether the page can be made here; if not, `camri report` makes it from the store on any machine."""
    return all(importlib.util.find_spec(name) is not None for name in PAGE_NEEDS)


def write_page(folder: Path) -> None:
    from camri.report.page import write_page as write

    write(folder, folder / PAGE)


def _note(request: Request, study: Study, **notes: object) -> None:
    with run_folder.hold(request.out), Store.open(request.out, facts_of(study, request.data)) as store:
        for name, value in notes.items():
            store.write_note(name, value)


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
