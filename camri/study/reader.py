"""Read a run: its settings with their outcomes, and the choice on validation data, judged on test data.

Needs no torch.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from camri import selection
from camri.decision.scores import Array, Scores
from camri.decision.stats import Difference, compare, holm
from camri.errors import InputError
from camri.methods import BASELINE, Setting, control_of, in_order, is_known
from camri.study import SMALL, run_folder
from camri.study.store import ColumnFacts, Row, by_key, open_run
from camri.text import Noun, noun_of, plural, quoted

VERSIONS = ("camri", "python", "torch", "numpy", "cuda")
HARDWARE = ("gpu", "processor", "cores", "system", "device")
SEED = 0  # of every bootstrap, so that the same store gives the same page
LEVEL = 0.05  # of significance, after correction
LEAST_SEEDS = 3  # for an interval and a test
OnStep = Callable[[str, float], None]  # called with the current step and the share of the work that is done


@dataclass(frozen=True)
class SettingResults:
    """A setting that a column compares, with its done outcomes."""

    key: str
    method: str
    title: str
    knobs: dict[str, Any]
    rows: tuple[Row, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(row.seed for row in self.rows)

    @property
    def setting(self) -> Setting:
        return Setting.from_json(self.rows[0].setting)

    def value(self, knob: str) -> float:
        """A knob's value; of a knob with a value per important class, the largest."""
        return float(np.max(self.knobs[knob]))


@dataclass(frozen=True)
class TrialCounts:
    """The run's trials by status. `total` may be unknown; `is_running` if a process is training it now."""

    done: int
    failed: int
    total: int | None
    is_running: bool

    @property
    def is_finished(self) -> bool:
        return not self.is_running and self.total is not None and self.done + self.failed >= self.total


class RunReader:
    """A run opened to read. Use it as a context manager.

    with RunReader("runs/x") as reading:
        print(reading.columns, reading.progress())
    """

    def __init__(self, folder: str | Path, on_step: OnStep | None = None):
        self.folder = Path(folder)
        self.run = open_run(self.folder)
        self.classes = self.run.classes
        self.columns: list[ColumnFacts] = self.run.columns()
        self._scores: dict[tuple[str, str, tuple[int, ...]], Scores] = {}
        self._on_step, self._num_steps = on_step, 0

    def __enter__(self) -> "RunReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.run.close()

    def begin(self, step: str) -> None:
        """Report a step to `on_step`. There are two for each column (judge it, compare its curves), then drawing."""
        if self._on_step is not None:
            self._on_step(step, min(1.0, self._num_steps / (2 * len(self.columns) + 1)))
        self._num_steps += 1

    @property
    def name(self) -> str:
        """The data set's name."""
        return str(self.run.data["name"])

    @property
    def noun(self) -> Noun:
        """The word for one or several inputs; "image" and "images" for older runs, which lack their shape."""
        return noun_of(self.run.data.get("input_shape", ()))

    @property
    def rule(self) -> selection.Rule:
        """How settings are chosen: the rule that the run recorded, or else the default without loss of accuracy."""
        return selection.Rule(**(self.run.note("rule") or {}))

    @cached_property
    def small(self) -> str:
        """A sentence on a run of small recipes alone; "" for others."""
        names = [str(study["name"]) for study in self.run.studies]
        if not names or not all(name.startswith(SMALL) for name in names):
            return ""
        training = self.run.training
        seeds = max(len(study["seeds"]) for study in self.run.studies)
        return (
            f"This is a small run ({training['model']} model, {plural(training['epochs'], 'epoch')}, "
            f"{plural(seeds, 'seed')}): it shows how the paper’s tables and figures are made, not what they say."
        )

    @property
    def has_validation(self) -> bool:
        """Whether there is validation data to choose settings on."""
        return "val" in self.run.splits

    @cached_property
    def rows(self) -> list[Row]:
        """All outcomes, failed ones too."""
        return self.run.rows(status=None)

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.status != "done"]

    def settings(self, column: ColumnFacts, method: str | None = None) -> list[SettingResults]:
        """The column's settings that have outcomes, in the study's order; each once per method."""
        done, settings = by_key(self.rows), {}
        for planned in self.run.plan(column.number):
            name, key = planned.method, planned.key
            if key in done and method in (None, name):
                rows = tuple(sorted(done[key], key=lambda row: row.seed))
                settings[name, key] = SettingResults(key, name, planned.title, planned.setting["knobs"], rows)
        return list(settings.values())

    def methods(self) -> list[str]:
        """The methods of the plan, in the order of Table I."""
        return in_order({setting.method for setting in self.run.plan()})

    def scores(self, row: Row, split: str, column: ColumnFacts) -> Scores:
        """The condensed scores of the column's important classes; read once."""
        name = (row.identity, split, column.indices)
        if name not in self._scores:
            self._scores[name] = self.run.scores(row, split, important=column.indices)
        return self._scores[name]

    def validation(self, setting: SettingResults, column: ColumnFacts) -> selection.Validation:
        """A setting's validation scores, all that a choice may see of it."""
        return selection.Validation(setting.key, {row.seed: self.scores(row, "val", column) for row in setting.rows})

    def candidate(self, setting: SettingResults, column: ColumnFacts) -> selection.Candidate:
        """A setting with its trials' validation and test scores."""
        scores = {row.seed: [self.scores(row, split, column) for split in ("val", "test")] for row in setting.rows}
        return selection.Candidate(setting.key, [selection.Trial(seed, *both) for seed, both in scores.items()])

    def confusion(self, setting: SettingResults) -> Array:
        """Share of each true class (row) predicted as each class, on test data, mean over trials: (C, C).

        The row of a class without test images is nan.
        """
        counts = np.mean([self.run.confusion(row, "test") for row in setting.rows], axis=0)
        with np.errstate(invalid="ignore"):
            return counts / counts.sum(axis=1, keepdims=True)

    @cached_property
    def angles_of(self) -> str:
        """The split whose angles are shown: train, or test if some outcomes lack those of the training images.

        paper: does not say which images its Table II is about / here: the training images / why: its angles are a fifth
        of those of test images.
        """
        done = [row for row in self.rows if row.status == "done"]
        return "train" if done and all("angle_sd.train" in self.run.arrays(row) for row in done) else "test"

    def angles(self, setting: SettingResults) -> tuple[Array, Array]:
        """Mean and sd of the angles of each class, averaged over trials, in radians: (C,), (C,)."""
        split = self.angles_of
        arrays = [self.run.arrays(row) for row in setting.rows]
        if not all(f"angle_sd.{split}" in own for own in arrays):
            raise InputError(f"{setting.title} has no angles: an ensemble has several weight vectors for a class")
        return tuple(np.mean([own[f"{name}.{split}"] for own in arrays], axis=0) for name in ("angle_mean", "angle_sd"))

    def cautions(self) -> list[str]:
        """Problems of the data, a sentence each: copies in two splits, images left out, doubtful names."""
        origin = self.run.data.get("provenance", {})
        rare = [
            f"{quoted(name)} was made rare for this study: {100 * part:g} % of its train rows were kept"
            for name, part in origin.get("thinned", {}).get("parts", {}).items()
        ]
        notes = [self.small, *origin.get("notes", []), origin.get("skipped_note"), *rare, self.mute_validation]
        return [note for note in notes if note]

    @cached_property
    def mute_validation(self) -> str | None:
        """A caution if cross-entropy finds all validation images of an important class: they cannot rank settings."""
        rows = [row for row in self.rows if row.method == BASELINE and row.status == "done"]
        if not rows or not self.has_validation:
            return None
        labels = self.run.labels("val")
        solved = [
            f"{quoted(self.classes[index])} ({np.sum(labels == index)})"
            for index in dict.fromkeys(index for column in self.columns for index in column.indices)
            if all(row.recall["val"][index] == 1 for row in rows)
        ]
        if not solved:
            return None
        which = f"every validation {self.noun.one} of {' and of '.join(solved)}"
        return (
            f"cross-entropy finds {which} in every trial, so they cannot say how far to shift or which setting finds "
            "more; hold out more of them"
        )

    def environment(self) -> dict[str, list[str]]:
        """Versions and hardware by name, each with all its values: a run may resume on another machine."""
        names = dict.fromkeys(name for row in self.rows for name in row.environment)
        every = {name: dict.fromkeys(str(row.environment.get(name) or "") for row in self.rows) for name in names}
        return {name: [value for value in values if value] for name, values in every.items() if any(values)}

    def progress(self) -> TrialCounts:
        """The number of trials done, failed and planned."""
        plan = {setting.key for setting in self.run.plan()}
        seeds = {tuple(study["seeds"]) for study in self.run.studies}
        total = len(plan) * len(next(iter(seeds))) if plan and len(seeds) == 1 else None
        total = self.run.note("num_trials") or total  # a fit trains its seeds in several studies
        folder = self.folder if self.folder.is_dir() else self.folder.parent
        return TrialCounts(
            len(self.rows) - len(self.failed), len(self.failed), total, run_folder.holder(folder) is not None
        )


def list_environment(environment: Mapping[str, Sequence[str]], names: Sequence[str]) -> str:
    """Some of a run's versions and hardware on one line.

    >>> list_environment({"torch": ["2.11", "2.13"], "gpu": ["H200"]}, ("gpu", "torch", "cuda"))
    'gpu H200, torch 2.11 / 2.13'
    """
    named = [f"{name} {' / '.join(environment[name])}" for name in names if name in environment]
    return ", ".join(named) or "not recorded"


def measure(setting: SettingResults, important: Sequence[int]) -> selection.Measured:
    """Recall (the important classes' mean) and accuracy on the test images, one number per trial."""
    recalls = tuple(float(np.mean([row.recall["test"][index] for index in important])) for row in setting.rows)
    return selection.Measured(setting.key, recalls, tuple(row.accuracy["test"] for row in setting.rows))


@dataclass(frozen=True, eq=False)
class Judged:
    """A choice among settings and its judgement. `control` is L2-softmax at the chosen scale, if it was trained."""

    choice: selection.Choice
    judgement: selection.Judgement
    final: SettingResults
    control: SettingResults | None

    @property
    def keeps_baseline(self) -> bool:
        """Whether the shifted baseline was chosen for every seed, so that there is no other setting to judge."""
        arms = self.judgement.arms
        return set(arms["chosen"].keys) == set(arms["baseline"].keys)

    @property
    def num_seeds(self) -> int:
        return len(self.judgement.seeds)

    @property
    def gain(self) -> Difference:
        """Change of recall over the shifted baseline: what the method adds to a shift."""
        return self.judgement.gains["baseline shifted"].recall

    @property
    def accuracy(self) -> Difference:
        """Change of accuracy over the unshifted baseline."""
        return self.judgement.gains["baseline"].accuracy


@dataclass(frozen=True, eq=False)
class ColumnVerdict:
    """The result of one column. `best` is the choice among all methods; None without validation data.

    By method: `by_method` is the choice among its settings and the baseline, `own` its best setting on validation
    data, `paper` the paper's choice, made on test data, and `fitted` its best setting for each seed, chosen on the
    other half of the seeds; without validation data only methods with a single setting have one.
    """

    column: ColumnFacts
    baseline: SettingResults | None
    settings: tuple[SettingResults, ...]
    best: Judged | None = None
    by_method: dict[str, Judged] = field(default_factory=dict)
    own: dict[str, SettingResults] = field(default_factory=dict)
    paper: dict[str, selection.PaperChoice | None] = field(default_factory=dict)
    fitted: dict[str, dict[int, SettingResults]] = field(default_factory=dict)

    def find(self, key: str, method: str | None = None) -> SettingResults:
        """The setting with this key; if several methods share it, that of `method`."""
        sharing = [setting for setting in self.settings if setting.key == key]
        return next((setting for setting in sharing if setting.method == method), sharing[0])

    def of(self, method: str) -> list[SettingResults]:
        return [setting for setting in self.settings if setting.method == method]

    def shown(self, method: str) -> SettingResults | None:
        """A method's setting in charts: its best on validation data, else the paper's choice, else its first."""
        if method in self.own:
            return self.own[method]
        return self.in_table_one(method) or next(iter(self.of(method)), None)

    def in_table_one(self, method: str) -> SettingResults | None:
        """The setting of a method in Table I; None if its cell is blank."""
        cell = self.paper.get(method)
        return None if cell is None else self.find(cell.key, method)


def judge_columns(reading: RunReader) -> list[ColumnVerdict]:
    """The verdict of every column of the run."""
    verdicts = []
    for column in reading.columns:
        reading.begin(f"judging {quoted(column.title)}")
        verdicts.append(_judge_column(reading, column))
    return verdicts


def _judge_column(reading: RunReader, column: ColumnFacts) -> ColumnVerdict:
    settings = tuple(reading.settings(column))
    baseline = next((setting for setting in settings if setting.method == BASELINE), None)
    if baseline is None:
        return ColumnVerdict(column, None, settings)
    by_method: dict[str, list[SettingResults]] = {}
    for setting in settings:
        by_method.setdefault(setting.method, []).append(setting)
    paper = choose_paper({name: [measure(s, column.indices) for s in own] for name, own in by_method.items()})
    if not reading.has_validation:  # a method's only setting needs no choice
        only = {name: own[0] for name, own in by_method.items() if len(own) == 1 and name != BASELINE}
        fitted = {name: {row.seed: setting for row in setting.rows} for name, setting in only.items()}
        return ColumnVerdict(column, baseline, settings, paper=paper, fitted=fitted)
    # A setting that several methods share is a candidate once, as the first of them has it.
    rivals_by_key = {setting.key: setting for setting in reversed(settings) if setting.key != baseline.key}
    distinct = list(rivals_by_key.values())[::-1]
    candidates = [reading.validation(setting, column) for setting in distinct]
    choice = selection.choose(reading.validation(baseline, column), candidates, reading.rule)
    best = _judge(reading, column, baseline, distinct, choice, settings)
    verdict = ColumnVerdict(column, baseline, settings, best, paper=paper)
    for name, own in by_method.items():
        rivals = {setting.key: setting for setting in own if setting.key != baseline.key}
        if rivals:
            verdict.by_method[name] = _judge(reading, column, baseline, list(rivals.values()), choice, settings)
            accuracies = {key: {row.seed: row.accuracy["val"] for row in s.rows} for key, s in rivals.items()}
            verdict.own[name] = rivals[best_setting(choice.final, accuracies)]
            verdict.fitted[name] = {seed: rivals[key] for seed, key in cross_fit(choice, accuracies).items()}
    verdict.own[BASELINE] = baseline
    return verdict


def choose_paper(measured: dict[str, list[selection.Measured]]) -> dict[str, selection.PaperChoice | None]:
    """The paper's choice for every method of a column, the baseline included; None for a blank cell."""
    baseline = measured[BASELINE][0]
    return {method: selection.choose_as_paper(baseline, settings) for method, settings in measured.items()}


def correct_several(values: Sequence[float]) -> list[float]:
    """p values after Holm's correction. A single trial has p = nan, which stays.

    >>> correct_several([0.01, float("nan"), 0.02])
    [0.03, nan, 0.04]
    """
    return [float(p) for p in np.where(np.isnan(values), np.nan, holm(np.nan_to_num(values, nan=1.0)))]


def gain_over_shifted(judged: Judged, arm: str, labels: Array, groups: Array | None = None) -> Difference:
    """Change of recall from the shifted baseline to an arm of the judgement."""
    arms, important = judged.judgement.arms, judged.judgement.important
    own = np.isin(labels, important)
    mine, other = arms[arm].correct[:, own], arms["baseline shifted"].correct[:, own]
    return compare(mine, other, parts=labels[own], groups=None if groups is None else groups[own], seed=SEED)


Accuracies = Mapping[str, Mapping[int, float]]  # of settings on validation data: key -> seed -> accuracy


def best_setting(pick: selection.Pick, accuracies: Accuracies) -> str:
    """The best of these settings on the pick's validation data; if none keeps the accuracy, the most accurate."""

    def rank(key: str) -> tuple[float, ...]:
        missed = (-np.inf, float(np.mean([*accuracies[key].values()])), 0.0)
        return pick.points[key].rank if key in pick.points else missed

    return max(accuracies, key=rank)


def cross_fit(choice: selection.Choice, accuracies: Accuracies) -> dict[int, str]:
    """For each seed, the best of these settings on validation data of the other half of the seeds: seed -> key.

    A setting chosen and judged on the same seeds looks too good: of 20 equal settings over 5 seeds the best one seems
    better with p < 0.05 in a seventh of all studies (docs/log.md). A seed is left out if its setting was not trained
    with it. A single setting needs no choice; a single seed chooses for itself.
    """
    if len(accuracies) == 1:
        return {seed: key for key, own in accuracies.items() for seed in own}
    fitted: dict[int, str] = {}
    for group, pick in choice.folds:
        left_out = group if choice.fresh_seeds else frozenset[int]()
        rest = {key: {seed: a for seed, a in own.items() if seed not in left_out} for key, own in accuracies.items()}
        if known := {key: own for key, own in rest.items() if own}:
            key = best_setting(pick, known)
            fitted |= {seed: key for seed in group if seed in accuracies[key]}
    return fitted


def _judge(
    reading: RunReader,
    column: ColumnFacts,
    baseline: SettingResults,
    rivals: Sequence[SettingResults],
    among_all: selection.Choice,
    settings: Sequence[SettingResults],
) -> Judged:
    """Choose among the baseline and its rivals, and judge the choice beside its control on test data."""
    every = {setting.key: setting for setting in settings}
    choice = among_all.only([baseline.key, *(setting.key for setting in rivals)])
    final = next((setting for setting in rivals if setting.key == choice.final.key), baseline)
    control = control_among(final, settings)
    controls = [] if control is None else [control.key]
    opened = {choice.final.key, *(pick.key for _, pick in choice.folds), *controls} - {baseline.key}
    judgement = selection.judge(
        choice,
        reading.candidate(baseline, column),
        [reading.candidate(every[key], column) for key in sorted(opened)],
        seed=SEED,
        controls=controls,
        groups=reading.run.groups("test"),
    )
    return Judged(choice, judgement, final, control)


def judge_own(reading: RunReader, verdict: ColumnVerdict, method: str) -> selection.Judgement | None:
    """A method's own best settings on test data, without cross-entropy among them; None where seeds lack some.

    Chosen and shifted as the honest comparison does: for each seed by the other half of the seeds.
    """
    own = {setting.key: setting for setting in verdict.of(method)}
    if verdict.best is None or verdict.baseline is None or method == BASELINE or verdict.baseline.key in own:
        return None
    among_all = verdict.best.choice
    if not all(own.keys() & pick.points.keys() for _, pick in among_all.folds):
        return None
    choice = among_all.only(list(own))
    opened = {choice.final.key, *(pick.key for _, pick in choice.folds)}
    baseline = reading.candidate(verdict.baseline, verdict.column)
    candidates = [reading.candidate(own[key], verdict.column) for key in sorted(opened)]
    if not any(trial.seed in verdict.baseline.seeds for candidate in candidates for trial in candidate.trials):
        return None
    return selection.judge(choice, baseline, candidates, seed=SEED, groups=reading.run.groups("test"))


def control_among(final: SettingResults, settings: Sequence[SettingResults]) -> SettingResults | None:
    """The control of a setting (see `methods.control_of`), if it was trained with all the setting's seeds."""
    control = control_of(final.setting) if is_known(final.method) else None
    trained = (setting for setting in settings if control is not None and setting.key == control.key)
    return next((setting for setting in trained if set(final.seeds) <= set(setting.seeds)), None)


def picked(verdict: ColumnVerdict, row: Judged, in_words: bool = False) -> str:
    """The settings chosen for the judged seeds, as `list_picks` shows them."""
    keys = row.judgement.arms["chosen"].keys
    return list_picks([verdict.find(key, row.final.method).title for key in keys], in_words)


def list_picks(titles: Sequence[str], in_words: bool = False) -> str:
    """The titles of the settings chosen for each seed, the most frequent first, with their number of seeds.

    >>> list_picks(["wce w=4", "wce w=8", "wce w=8"]), list_picks(["ce"])
    ('wce w=8 (2), wce w=4 (1)', 'ce')
    """
    counted = Counter(titles).most_common()
    if len(counted) == 1:
        return counted[0][0]
    return ", ".join(f"{name} ({plural(count, 'seed') if in_words else count})" for name, count in counted)


def is_significant(p: float | None, num_seeds: int) -> bool:
    """Whether a corrected p is below 0.05 and from at least three seeds."""
    return p is not None and p < LEVEL and num_seeds >= LEAST_SEEDS
