"""The end of a fit: the evidence, the model's folder with its card, the notes in the store, the page."""

import contextlib
import importlib.util
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from camri.backbones import is_backbone, published_folder
from camri.data import DataSet
from camri.engine import Training, Trial
from camri.errors import InputError
from camri.export import Model, Trained, load, save
from camri.fitting import answer
from camri.fitting.budget import FEW_FINAL_SEEDS
from camri.fitting.claims import Claim, claim_of, measure
from camri.fitting.request import BEFORE, Journal, Request
from camri.fitting.result import LEAST_SEEDS, MODEL, PAGE, Effort, Fitted, Handed
from camri.fitting.trainer import count_trials, describe_training, outcome_with_weights
from camri.metrics import condense
from camri.stats import FEWEST_GROUPS, FEWEST_ROWS
from camri.study import run_folder
from camri.study.run_folder import facts_of
from camri.study.spec import Study
from camri.study.store import Store, open_run
from camri.text import quoted

WEIGHTS = "weights"  # folder of the finals' weights, until the fit has finished
PAGE_NEEDS = ("altair", "vl_convert", "jinja2")


def hand_over(
    request: Request, journal: Journal, finals: Study, stores: Sequence[Path], wall_s: float, *, is_finished: bool
) -> Fitted:
    """Write the model, its card and the page. `is_finished` is False if more seeds are still to come.

    finals: the study in the request's folder. stores: all runs of the fit.
    """
    name, training, num_trainings = journal.get("training"), finals.training, len(journal.get("trainings"))
    important = tuple(sorted(index for index, _ in journal.get("important")))
    # A finished fit may have stopped for time before some seeds were complete: nothing is missing then.
    num_trials = count_trials([request.out]) if is_finished else len(finals.trials(finals.placeholders()))
    _note(request, finals, rule=vars(request.rule), command=command(request, is_finished), num_trials=num_trials)
    plain = None if name == "plain" else request.out / BEFORE
    claim = claim_of(request.out, plain, describe_training(name, training), num_trainings)
    trained, handed = _trained(request, training, important, claim)
    statuses: list[str] = []
    for folder in stores:
        with open_run(folder) as run:
            statuses += run.statuses().values()
    fitted = Fitted(
        important=tuple(request.data.classes[index] for index in important),
        evidence=claim.evidence,
        handed=handed,
        training_name=name,
        training=training,
        effort=Effort(num_trainings, journal.get("num_settings"), len(statuses), statuses.count("failed"), wall_s),
        cautions=(
            *few_seeds(claim.evidence.num_seeds, journal.get("planned_final_seeds")),
            *claim.cautions,
            *doubts(request.data, important, claim.evidence.before.accuracy),
        ),
        max_accuracy_drop=request.max_accuracy_drop,
        finished=is_finished,
        out=request.out,
    )
    save(trained, fitted.model_path, card=answer.card(fitted, request.data))
    _note(request, finals, steps=answer.steps_table(fitted), answer=answer.note(fitted))
    if can_draw():
        write_page(request.out)
    if is_finished:
        shutil.rmtree(request.out / WEIGHTS, ignore_errors=True)
    return fitted


def few_seeds(num: int, num_planned: int) -> list[str]:
    """A caution if the finals had few seeds."""
    if num >= FEW_FINAL_SEEDS:
        return []
    slow = f" of {num_planned} planned, because trials were slower than expected" if num < num_planned else ""
    wide = "too few for intervals, so gains may be chance" if num < LEAST_SEEDS else "so intervals are wide"
    return [f"the finals had {num} seeds{slow}, {wide}; give a larger --budget, or more --trials"]


def doubts(data: DataSet, important: Sequence[int], accuracy: float) -> list[str]:
    """Cautions about few rows or groups of an important class, and about a baseline that has learnt nothing.

    accuracy: cross-entropy's on test rows.
    """
    cautions, test, noun = [], data.splits["test"], data.noun
    counts = data.class_counts("test").tolist()
    share = max(counts) / sum(counts)
    if accuracy <= share:
        most = quoted(data.classes[counts.index(max(counts))])
        cautions.append(
            f"cross-entropy’s accuracy, {100 * accuracy:.1f} %, is no better than always predicting {most} "
            f"({100 * share:.1f} %); give a larger --budget or more --epochs"
        )
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


def _trained(request: Request, training: Training, important: Sequence[int], claim: Claim) -> tuple[Trained, Handed]:
    """The model to hand over and its figures, in full precision as it is saved: a GPU trains and counts in half."""
    # Without the file of initial weights, which may not exist where the model is loaded.
    kept = tuple(pair for pair in training.model_options if not pair[0].startswith("initial"))
    portable = training.with_(model_options=kept)
    trained = None
    with contextlib.suppress(InputError):  # an earlier call may have saved it, and left no other weights
        trained = load(request.out / MODEL).trained
    wanted = (claim.setting, claim.seed, claim.shift, portable)
    if trained is None or (trained.setting, trained.seed, trained.shift, trained.training) != wanted:
        outcome = outcome_with_weights(request, request.out / WEIGHTS, Trial(claim.setting, claim.seed), training)
        outcome = replace(outcome, training=portable)
        trained = Trained.of(outcome, request.data, important, claim.shift, request.inputs.standardise)
    # As it takes the features in `data`, which are scaled already.
    model = Model.of(replace(trained, rule=None, standardise=None))
    model.module.to(request.device)
    split = request.data.splits["test"]
    test = condense(model.logits(split.inputs), split.labels.numpy(), important)
    groups = None if split.groups is None else split.groups.numpy()
    return trained, measure(claim.setting, claim.seed, claim.shift, test, groups)


def _note(request: Request, study: Study, **notes: object) -> None:
    with run_folder.hold(request.out), Store.open(request.out, facts_of(study, request.data)) as store:
        for name, value in notes.items():
            store.write_note(name, value)


def command(request: Request, is_finished: bool = True) -> str:
    """The command that repeats this fit in a new folder, or resumes it if it has not finished."""
    column, words = request.important, ["camri", "fit", request.source]
    for name in column.classes:
        words += ["--important", str(name)]
    for name, strength in zip(column.classes, column.strengths, strict=True):
        words += [] if strength == 1 else ["--strength", f"{name}={strength:g}"]
    for name, value in request.data_options:
        if name == "verify":
            words += [] if value else ["--no-verify"]
        elif name == "resize":
            pass  # the model's own
        elif isinstance(value, tuple):  # a size
            words += ["--size", str(value[0])]
        elif value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    initial = dict(request.plain.model_options).get("initial")
    words += ["--from-scratch"] if is_backbone(request.plain.model) and initial is None else []
    options = {
        "--trials": request.num_trials,
        "--budget": None if request.budget_s is None else f"{request.budget_s:g}s",
        "--max-accuracy-drop": request.max_accuracy_drop or None,
        "--model": request.plain.model,
        "--weights": None if initial is None or initial.startswith(str(published_folder())) else initial,
        "--epochs": request.epochs,
        "--seed": request.seed or None,
        "--out": "runs/again" if is_finished else request.out,
    }
    return shlex.join(words + [str(word) for pair in options.items() if pair[1] is not None for word in pair])
