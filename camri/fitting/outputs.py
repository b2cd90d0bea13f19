"""The end of a fit: the claim, the model's folder with its card, the notes in the store, the page."""

import importlib.util
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from camri.data import DataSet
from camri.engine import Training, Trial
from camri.export import Model, Trained, load, save
from camri.fitting import answer, trainer
from camri.fitting.claims import Claim, claim_of, measure
from camri.fitting.journal import Journal
from camri.fitting.plan import ENOUGH_FINAL_SEEDS, FEW_FINAL_SEEDS
from camri.fitting.ramps import EARLY
from camri.fitting.request import Request
from camri.fitting.result import LEAST_SEEDS, Fitted, Handed
from camri.fitting.trainer import describe_training
from camri.methods import Setting
from camri.metrics import condense
from camri.report.answer import NOTE as ANSWER
from camri.report.tables import NOTE as STEPS
from camri.selection import Rule
from camri.stats import FEWEST_GROUPS, FEWEST_ROWS
from camri.study import run_folder
from camri.study.run_folder import facts_of
from camri.study.spec import Study
from camri.study.store import Store, open_run
from camri.text import quoted

MODEL, PAGE = "model", "report.html"
PAGE_NEEDS = ("altair", "vl_convert", "jinja2")


@dataclass(frozen=True, eq=False)
class Finals:
    """What is handed over from: the finals' study in the request's folder, and where plain cross-entropy's run is.

    `plain` is None where the chosen training is the plain one; `stores` are the runs of the whole fit.
    """

    study: Study
    training_name: str
    training: Training
    plain: Path | None
    important: tuple[int, ...]
    stores: tuple[Path, ...]


def hand_over(
    request: Request, journal: Journal, ended: Finals, rule: Rule, wall_s: float, *, is_finished: bool
) -> Fitted:
    """The result, with its files written. `is_finished` is False where more seeds are still to come."""
    _note(request, ended.study, rule=vars(rule), command=command(request))
    title = describe_training(ended.training_name, ended.training)
    num_trainings = len(journal.get("trainings"))
    claim = claim_of(request.out, ended.plain, title, num_trainings)
    trained, handed = _trained(request, journal, ended, claim)
    num_trials, num_failed = _count(ended.stores)
    first, last = claim.steps[0], claim.steps[-1]
    num_planned = 0  # where it was stopped, or trials were counted, seeds are not fewer for the pace
    more = "the same command goes on"
    if is_finished and request.num_trials is None:
        num_planned = journal.get("planned_final_seeds") or 0
        more = "the same command with a larger --budget goes on"
    elif is_finished:
        more = "give more --trials and another --out"
    cautions = [
        few_seeds(claim.num_seeds, num_planned, more),
        claim.caution,
        *doubts(request.data, ended.important, first.figures.accuracy),
    ]
    assert last.recall_gain is not None
    assert last.accuracy_gain is not None
    assert last.false_alarms_added is not None
    fitted = Fitted(
        important=tuple(request.data.classes[index] for index in ended.important),
        setting=handed.setting,
        shift=handed.shift,
        training_name=ended.training_name,
        training=ended.training,
        ramp_name=journal.get("ramp") or EARLY,
        ramps=tuple(journal.get("ramps") or (EARLY,)),
        before=first.figures,
        after=last.figures,
        recall_gain=last.recall_gain,
        accuracy_gain=last.accuracy_gain,
        false_alarms_added=last.false_alarms_added,
        over_shifted=claim.over_shifted,
        gain_is_shown=claim.gain_is_shown and claim.num_seeds >= LEAST_SEEDS,
        is_unanimous=claim.is_unanimous,
        caution="; ".join(filter(None, cautions)) or None,
        steps=claim.steps,
        paid=claim.paid,
        handed=handed,
        num_seeds=claim.num_seeds,
        num_trainings=num_trainings,
        num_settings=journal.get("num_settings"),
        num_trials=num_trials,
        num_failed=num_failed,
        wall_s=wall_s,
        out=request.out,
        model_path=request.out / MODEL,
        page_path=request.out / PAGE if can_draw() else None,
        answer="",
        finished=is_finished,
        keep_accuracy=request.tolerance,
    )
    fitted = replace(fitted, answer=answer.compose(fitted))
    if trained is not None:
        save(trained, fitted.model_path, card=answer.card(fitted, request.data))
        journal.set(handed={"of": _identity(claim), **handed.to_json()})
    told = answer.note(fitted)
    _note(request, ended.study, **{STEPS: [step.to_json(fitted.has_intervals) for step in fitted.steps], ANSWER: told})
    if fitted.page_path is not None:
        write_page(request.out)
    if is_finished:
        shutil.rmtree(request.out / trainer.FINALS_FOLDER, ignore_errors=True)
    return fitted


def few_seeds(num: int, num_planned: int, more: str) -> str | None:
    """What to know where the finals had few seeds, or fewer than ten and than the time was to allow; else None.

    more: what to do about it.

    >>> few_seeds(5, 5, "give more"), few_seeds(12, 20, "give more")
    (None, None)
    >>> few_seeds(7, 8, "give more time")
    'the finals had 7 seeds of 8 planned, as trials took longer than was measured at first; give more time'
    """
    if num >= max(FEW_FINAL_SEEDS, min(num_planned, ENOUGH_FINAL_SEEDS)):
        return None
    said = f"the finals had {num} seeds"
    if num < num_planned:
        said += f" of {num_planned} planned, as trials took longer than was measured at first"
    if num < LEAST_SEEDS:
        said += ", which is too few for intervals: what was gained may be chance"
    elif num < FEW_FINAL_SEEDS:
        said += ", and intervals of so few are wide"
    return f"{said}; {more}"


def doubts(data: DataSet, important: Sequence[int], accuracy: float) -> list[str]:
    """Why the figures say less than they seem to: few rows or groups of an important class, or nothing learnt.

    accuracy: cross-entropy's on test rows.
    """
    found, test, noun = [], data.splits["test"], data.noun
    counts = data.class_counts("test").tolist()
    share = max(counts) / sum(counts)
    if accuracy <= share:
        most = quoted(data.classes[counts.index(max(counts))])
        found.append(
            f"cross-entropy’s accuracy, {accuracy:.3f}, is no more than that of {most} for every {noun.one} "
            f"({share:.3f}); where it has not learnt yet, give a longer --budget or more --epochs"
        )
    for index in important:
        num_val, num_test = (int(data.class_counts(part)[index]) for part in ("val", "test"))
        if min(num_val, num_test) < FEWEST_ROWS:
            found.append(
                f"of {quoted(data.classes[index])} there are {num_val} validation and {num_test} test {noun.many}, and "
                f"with fewer than {FEWEST_ROWS} of either no choice and no interval is to be trusted"
            )
        num_groups = num_test if test.groups is None else len(test.groups[test.labels == index].unique())
        if num_groups < min(num_test, FEWEST_GROUPS):
            found.append(
                f"the {num_test:,} test {noun.many} of {quoted(data.classes[index])} are of {num_groups} groups, and "
                f"with fewer than {FEWEST_GROUPS} it cannot be told how groups differ"
            )
    return found


def can_draw() -> bool:
    """Whether the page can be made here; where not, `camri report` makes it of the store, on any machine."""
    return all(importlib.util.find_spec(name) is not None for name in PAGE_NEEDS)


def write_page(folder: Path) -> None:
    from camri.report.page import write_page as write

    write(folder, folder / PAGE)


def _identity(claim: Claim) -> list[object]:
    """What a saved model is known by; its shift too, which an earlier version chose by another rule."""
    return [claim.setting.key, claim.seed, claim.num_seeds, list(claim.shift)]


def _trained(request: Request, journal: Journal, ended: Finals, claim: Claim) -> tuple[Trained | None, Handed]:
    """The model to hand over with its shift, and its figures; no model where an earlier call saved the same.

    The figures are those of the model as it is saved, in full precision: a GPU trains and counts in half.
    """
    said = journal.get("handed")
    is_saved = said is not None and said["of"] == _identity(claim) and (request.out / MODEL).is_dir()
    if is_saved and "num_false_alarms" in said:
        counts = {name: value for name, value in said.items() if name not in ("of", "setting")}
        return None, Handed.of(Setting.from_json(said["setting"]), **counts)
    # What an earlier version saved, which counted no false alarms, stays the model, and is measured again.
    trained = load(request.out / MODEL).trained if is_saved else _train(request, ended, claim)
    # As it takes the features in `data`, which are scaled already.
    model = Model.of(replace(trained, shift=(0.0,) * len(trained.shift), standardise=None))
    model.module.to(request.device)
    split = request.data.splits["test"]
    test = condense(model.logits(split.inputs), split.labels.numpy(), ended.important)
    groups = None if split.groups is None else split.groups.numpy()
    return trained, measure(claim.setting, claim.seed, claim.shift, test, groups)


def _train(request: Request, ended: Finals, claim: Claim) -> Trained:
    """The claim's model with its shift; trained again where its weights are gone."""
    trial = Trial(claim.setting, claim.seed)
    outcome = trainer.outcome_with_weights(request, request.out / trainer.FINALS_FOLDER, trial, ended.training)
    # The file with the first values is not needed to build the trained model, and may not be where it is loaded.
    kept = tuple(pair for pair in ended.training.model_options if not pair[0].startswith("initial"))
    outcome = replace(outcome, training=ended.training.with_(model_options=kept))
    return Trained.of(outcome, request.data, ended.important, claim.shift, request.inputs.standardise)


def _note(request: Request, study: Study, **notes: object) -> None:
    with run_folder.hold(request.out), Store.open(request.out, facts_of(study, request.data)) as store:
        for name, value in notes.items():
            store.write_note(name, value)


def _count(stores: tuple[Path, ...]) -> tuple[int, int]:
    """Trials of all stores, and those of them that failed."""
    statuses: list[str] = []
    for folder in stores:
        with open_run(folder) as run:
            statuses += run.statuses().values()
    return len(statuses), sum(status == "failed" for status in statuses)


def command(request: Request) -> str:
    """The command that does this fit again, into a new folder."""
    words = ["camri", "fit", request.source]
    for name, strength in zip(request.important.classes, request.important.strengths, strict=True):
        words += ["--important", str(name) if strength == 1 else f"{name}:{strength:g}"]
    if request.num_trials is not None:
        words += ["--trials", str(request.num_trials)]
    else:
        words += ["--budget", f"{request.budget_s:g}s"]
    for name, value in request.data_options:
        if name == "verify":
            words += [] if value else ["--no-verify"]
        elif value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    if request.tolerance:
        words += ["--keep-accuracy", f"{request.tolerance:g}"]
    words += ["--model", request.plain.model]
    words += [word for name, path in request.plain.model_options if name == "initial" for word in ("--weights", path)]
    if request.epochs is not None:
        words += ["--epochs", str(request.epochs)]
    if request.seed:
        words += ["--seed", str(request.seed)]
    return shlex.join([*words, "--out", "runs/again"])
