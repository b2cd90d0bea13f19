"""The end of a fit: which arm validation data choose, and the answer on test data; the core tunes and concludes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from camri.data import DataSet
from camri.decision.answer import Answer, Caution, Effort, HandedOver, Length, Made, Source
from camri.decision.compare import Arm, Evidence, Judged, Judging, compare
from camri.decision.goals import Goal, MostRecall
from camri.decision.rules import DecisionRule, argmax_of, is_argmax
from camri.decision.scores import Array
from camri.decision.stats import FEWEST_GROUPS, FEWEST_ROWS, design_effect, wilson
from camri.decision.tune import OperatingPoint
from camri.decision.verdict import Context, conclude
from camri.engine import Outcome, Training
from camri.errors import InputError
from camri.export import Trained
from camri.fitting.judge import (
    Aim,
    Held,
    apply,
    bolder,
    find_median,
    is_chosen,
    mean_of,
    rows_of,
    rules_of,
    shift_to,
)
from camri.fitting.request import Request, command, model_name
from camri.fitting.rivals import TREES
from camri.fitting.saved import score
from camri.fitting.trainer import CE, Point, TrainingRun, describe_training
from camri.methods import METHODS, Setting
from camri.study.spec import Resolved
from camri.study.store import open_run

LOOSE = 0.04  # ± of validation accuracy; if wider, some models are a point less accurate elsewhere
# The comparisons of a fit, arm over arm: see `verdict.conclude` for what each is.
PAIRS = (
    ("redecided", "baseline"),
    ("method", "redecided"),
    ("method", "baseline"),
    ("method", "control"),
    ("method", "shifted"),
    ("bolder", "baseline"),
)


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

    @property
    def important(self) -> tuple[int, ...]:
        """Indices of the important classes."""
        return tuple(sorted(index for index, _ in self.column))


@dataclass(frozen=True, eq=False)
class Arms:
    """The models of each arm, "baseline", "method", "control" and "trees", tuned; and which validation data chose.

    setting: of the chosen arm. grown: the boosted trees, where they were chosen. points: of each arm's models.
    titles: of the arms beside the baseline.
    """

    aim: Aim
    models: Mapping[str, Sequence[Held]]
    points: Mapping[str, Sequence[OperatingPoint]]
    titles: Mapping[str, str]
    setting: Setting
    training: Training
    title: str
    is_method: bool
    grown: Outcome | None

    @property
    def final(self) -> str:
        """The arm whose model is handed over."""
        return "method" if self.is_method else "baseline"


@dataclass(frozen=True, eq=False)
class Picked:
    """The model that is handed over, as its run stored it, and its operating point."""

    model: Held
    point: OperatingPoint


def choose_arms(request: Request, run: TrainingRun, finals: Finals) -> Arms:
    """Read the models of the finals, let validation data choose among them, and tune all."""
    models = _read(run, finals)
    baseline = models["baseline"]
    with open_run(run.folder) as stored:
        groups = stored.groups("val")
    aim = Aim(request.goal, baseline, request.prior_rows, groups)
    is_method = "method" in models and finals.learnt and is_chosen(aim, models["method"], baseline)
    setting = finals.winner if is_method and finals.winner is not None else CE
    training, title, grown = run.training, title_of(setting), None
    titles = {
        name: title_of(one)
        for name, one in (("method", finals.winner), ("control", finals.control))
        if name in models and one is not None
    }
    if finals.trees is not None:
        trees = _repeat(request, finals.trees, finals.important, baseline)
        best = models["method" if is_method else "baseline"]
        if finals.learnt and is_chosen(aim, trees, best, is_baseline=not is_method):
            grown, is_method, titles = finals.trees, True, {"method": TREES}
            setting, training, title = CE, finals.trees.training, TREES
            models = {"baseline": baseline, "method": trees}
        else:
            models["trees"], titles["trees"] = trees, TREES
    return Arms(aim, models, aim.tune_arms(models), titles, setting, training, title, is_method, grown)


def _read(run: TrainingRun, finals: Finals) -> dict[str, Sequence[Held]]:
    """The models of the baseline, the best rival and its control that have the same seeds."""
    settings = {"baseline": CE, "method": finals.winner, "control": finals.control}
    models = {
        name: run.models(setting, finals.important, finals.seeds, ("val", "test"))
        for name, setting in settings.items()
        if setting is not None
    }
    if not models["baseline"]:
        raise InputError(f"{run.folder}: every cross-entropy trial of the finals failed; see `camri study status`")
    shared = set.intersection(*({model.seed for model in arm} for arm in models.values()))
    if not shared:  # every trial of the rival failed
        return {"baseline": models["baseline"]}
    return {name: [model for model in arm if model.seed in shared] for name, arm in models.items()}


def _repeat(request: Request, trees: Outcome, important: Sequence[int], baseline: Sequence[Held]) -> list[Held]:
    """The boosted trees as an arm: the same for every seed."""
    found, _ = score(request, Trained.of(trees, request.data, important))
    return [replace(found, seed=model.seed) for model in baseline]


def pick(arms: Arms) -> Picked:
    """The median model of the chosen arm on validation data, with its operating point."""
    models, points = arms.models[arms.final], arms.points[arms.final]
    place = find_median(arms.aim.goal, models, rules_of(points))
    return Picked(models[place], arms.aim.secure(models[place], points[place], is_baseline=not arms.is_method))


def title_of(setting: Setting) -> str:
    """A setting by its method's title and its values: "CAMRI, m=8π/64 s=8"."""
    values = str(setting).removeprefix(setting.method).strip()
    return f"{METHODS[setting.method].title}, {values}" if values else METHODS[setting.method].title


def make_answer(
    request: Request,
    run: TrainingRun,
    finals: Finals,
    arms: Arms,
    picked: Picked,
    scored: Held,
    statuses: Sequence[str],
) -> Answer:
    """The answer of a fit. scored: the model that is handed over, as it is saved. statuses: of every trial."""
    data, point = request.data, picked.point
    with open_run(run.folder) as stored:
        groups = stored.groups("test")
    evidence = _compare(arms, finals.learnt, data.classes, groups)
    context = Context(
        trains=True,
        method=arms.title if arms.is_method else None,
        is_changed=not is_argmax(point.rule),
        num_rows=int(min(data.class_counts(part)[index] for part in ("val", "test") for index in finals.important)),
        learnt=finals.learnt,
        still_improving=finals.still_improving,
        has_rivals=finals.num_settings > 1 or arms.grown is not None,
    )
    verdict = conclude(evidence, request.goal, context)
    handed = _describe(request, arms, picked, scored, groups)
    return Answer(
        source=Source(
            data.name,
            tuple(data.classes),
            finals.important,
            num_rows=sum(map(len, data.splits.values())),
            num_judged=len(data.splits["test"]),
            num_groups=evidence.num_groups,
            noun=tuple(data.noun),  # type: ignore[arg-type]
        ),
        goal=request.goal,
        point=point,
        evidence=evidence if verdict.arm == "bolder" else evidence.without("bolder"),
        verdict=verdict,
        tuned_on="split",
        cautions=tuple(_cautions(request, run, finals.important, arms.models["baseline"])),
        made=Made(
            handed,
            effort_of(finals, arms.training, statuses),
            num_rows={name: len(split) for name, split in data.splits.items()},
            command=command(request, finals.is_finished),
            finished=finals.is_finished,
        ),
    )


def _compare(arms: Arms, learnt: bool, classes: Sequence[str], groups: Array | None) -> Evidence:
    """The evidence of all arms on test data; of a baseline that has not learnt, no decision is tuned."""
    goal, models, baseline = arms.aim.goal, arms.models, arms.models["baseline"]
    plain = argmax_of(baseline[0].scores["test"].important)
    title = "cross-entropy" if learnt else "cross-entropy, no better than guessing"
    judged = {"baseline": apply(title, baseline, plain, "test", goal)}
    titles = {**({"baseline": "cross-entropy"} if learnt else {}), **arms.titles}
    for name, named in titles.items():
        arm = apply(f"{named}, tuned", models[name], rules_of(arms.points[name]), "test", goal)
        judged["redecided" if name == "baseline" else name] = arm
    if isinstance(goal, MostRecall):
        judged |= dict(_controls(arms, learnt))
    final = "method" if arms.is_method else "redecided" if learnt else "baseline"
    return compare(judged, PAIRS, rows_of(baseline, "test", classes, groups), final)


def _controls(arms: Arms, learnt: bool) -> Iterator[tuple[str, Judged]]:
    """The baseline shifted to the method's recall on validation data; and to find 2 points more on test data."""
    goal, baseline = arms.aim.goal, arms.models["baseline"]
    if arms.is_method:
        method = arms.models["method"]
        tuned = apply("", method, rules_of(arms.points["method"]), "val", goal)
        same = shift_to(mean_of(tuned, rows_of(method, "val"), "recall"), baseline)
        yield "shifted", apply("cross-entropy, shifted to that recall", baseline, same, "test", goal)
    if learnt:
        yield "bolder", apply("cross-entropy, larger shift", baseline, bolder(baseline), "test", goal)


def _describe(request: Request, arms: Arms, picked: Picked, scored: Held, groups: Array | None) -> HandedOver:
    """The model that is handed over, beside the same network with argmax; a rival, beside plain cross-entropy."""
    goal, baseline = request.goal, arms.models["baseline"]
    plain, before = argmax_of(scored.scores["test"].important), scored
    if arms.is_method:
        before = baseline[find_median(goal, baseline, [plain] * len(baseline))]
    (rule,), classes = rules_of([picked.point]), request.data.classes
    return HandedOver(
        method="trees" if arms.grown is not None else arms.setting.method,
        title=arms.title,
        seed=picked.model.seed,
        model=model_name(arms.training, request.data),
        epochs=arms.training.epochs,
        rule=rule,
        before=_figures("before", before, plain, goal, classes, groups),
        after=_figures("after", scored, rule, goal, classes, groups),
    )


def effort_of(finals: Finals, training: Training, statuses: Sequence[str]) -> Effort:
    """What was trained."""
    return Effort(
        tuple(Length(epochs, accuracy) for epochs, accuracy in finals.lengths),
        finals.still_improving,
        describe_training(training),
        finals.num_settings,
        len(statuses),
        list(statuses).count("failed"),
        finals.wall_s,
        finals.enough,
        finals.given_up,
    )


def _figures(
    name: str, model: Held, rule: DecisionRule, goal: Goal, classes: Sequence[str], groups: Array | None
) -> Arm:
    """The figures of one model on test data, with intervals over its rows."""
    rows = Judging([model.scores["test"]], classes, groups)
    return compare({name: apply(name, [model], rule, "test", goal)}, [], rows, name).arms[0]


def _cautions(
    request: Request, run: TrainingRun, important: Sequence[int], baseline: Sequence[Held]
) -> Iterator[Caution]:
    """Why validation data may decide less than it seems, and figures say less."""
    with open_run(run.folder) as stored:
        rows, groups = stored.rows(key=CE.key), stored.groups("val")
        labels = stored.labels("val")
    solved = [index for index in important if rows and all(row.recall["val"][index] == 1 for row in rows)]
    if solved:
        values = {"names": [request.data.classes[index] for index in solved]}
        yield Caution("all_found", {**values, "num": [int((labels == index).sum()) for index in solved]})
    if isinstance(request.goal, MostRecall) and (caution := loose_accuracy(baseline, groups)) is not None:
        yield caution
    yield from doubts(request.data, important)


def loose_accuracy(baseline: Sequence[Held], groups: Array | None = None) -> Caution | None:
    """A caution if validation data, which may come in groups (N,), are too few to hold accuracy on; else None."""
    right = np.mean([model.scores["val"].correct() for model in baseline], axis=0)
    effect = 1.0 if groups is None else design_effect(right, groups)
    low, high = wilson(right.sum() / effect, len(right) / effect)
    return Caution("loose_accuracy", {"num": len(right), "width": high - low}) if high - low > 2 * LOOSE else None


def doubts(data: DataSet, important: Sequence[int]) -> Iterator[Caution]:
    """Cautions about few rows or groups of an important class."""
    test = data.splits["test"]
    for index in important:
        name = data.classes[index]
        num_val, num_test = (int(data.class_counts(part)[index]) for part in ("val", "test"))
        if min(num_val, num_test) < FEWEST_ROWS:
            yield Caution("few_rows", {"name": name, "num_val": num_val, "num_test": num_test})
        num_groups = num_test if test.groups is None else len(test.groups[test.labels == index].unique())
        if num_groups < min(num_test, FEWEST_GROUPS):
            yield Caution("few_groups_to_judge", {"name": name, "num": num_test, "num_groups": num_groups})
