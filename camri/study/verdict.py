"""What a run says, column by column: the choice made on validation data and its judgement on test images."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from camri.methods import BASELINE, control_of, is_known
from camri.metrics import Array
from camri.selection import Choice, Judgement, Measured, PaperChoice, Pick, choose, choose_as_paper, judge, worth
from camri.stats import Difference, compare, holm
from camri.study.reader import RunReader, SettingResults, measure
from camri.study.store import ColumnFacts
from camri.text import quoted

SEED = 0  # of every bootstrap: the same store gives the same page
LEVEL = 0.05  # of p after correction
LEAST_SEEDS = 3  # an interval or a test of fewer says nothing


@dataclass(frozen=True, eq=False)
class Judged:
    """A choice among some settings, and its judgement; `control` is the L2-softmax of the chosen scale, if trained."""

    choice: Choice
    judgement: Judgement
    final: SettingResults
    control: SettingResults | None

    @property
    def keeps_baseline(self) -> bool:
        """Whether nothing but the shifted baseline was picked: there is no setting to judge then."""
        arms = self.judgement.arms
        return set(arms["chosen"].keys) == set(arms["baseline"].keys)

    @property
    def num_seeds(self) -> int:
        return len(self.judgement.seeds)

    @property
    def gain(self) -> Difference:
        """Recall over the shifted baseline: what the method adds to what a shift alone gives."""
        return self.judgement.gains["baseline shifted"].recall

    @property
    def accuracy(self) -> Difference:
        """Accuracy less that of the baseline as it is: whether it was given up."""
        return self.judgement.gains["baseline"].accuracy

    @property
    def p(self) -> float:
        return self.gain.p


@dataclass(frozen=True, eq=False)
class ColumnVerdict:
    """All that is known about one column. `best` is the choice among all methods, None without validation data.

    `by_method` has the choice among one method's settings and the baseline; `own` the method's own best setting on
    validation data; `paper` the paper's choice, made on the test set; `fitted` the method's best setting for each seed,
    by seeds of the other half.
    """

    column: ColumnFacts
    baseline: SettingResults | None
    settings: tuple[SettingResults, ...]
    best: Judged | None
    by_method: dict[str, Judged]
    own: dict[str, SettingResults]
    paper: dict[str, PaperChoice | None]
    fitted: dict[str, dict[int, SettingResults]] = field(default_factory=dict)

    def find(self, key: str, method: str | None = None) -> SettingResults:
        """The setting of a key; where several methods share it, that of the method."""
        found = [one for one in self.settings if one.key == key]
        return next((one for one in found if one.method == method), found[0])

    def of(self, method: str) -> list[SettingResults]:
        return [one for one in self.settings if one.method == method]

    def shown(self, method: str) -> SettingResults | None:
        """A method's setting in charts: its best on validation data, else the paper's, else its first."""
        if method in self.own:
            return self.own[method]
        return self.in_table_one(method) or next(iter(self.of(method)), None)

    def in_table_one(self, method: str) -> SettingResults | None:
        """The setting of a method in Table I; None where its cell is blank."""
        cell = self.paper.get(method)
        return None if cell is None else self.find(cell.key, method)


def judge_columns(reading: RunReader) -> list[ColumnVerdict]:
    """The verdict of every column of the run, in its order."""
    found = []
    for column in reading.columns:
        reading.begin(f"judging {quoted(column.title)}")
        found.append(judge_column(reading, column))
    return found


def judge_column(reading: RunReader, column: ColumnFacts) -> ColumnVerdict:
    """The verdict of one column."""
    settings = tuple(reading.settings(column))
    baseline = next((one for one in settings if one.method == BASELINE), None)
    methods = list(dict.fromkeys(one.method for one in settings))
    paper: dict[str, PaperChoice | None] = {}
    by_method: dict[str, Judged] = {}
    own: dict[str, SettingResults] = {}
    fitted: dict[str, dict[int, SettingResults]] = {}
    best = None
    if baseline is not None:
        measured = {method: [measure(s, column.indices) for s in settings if s.method == method] for method in methods}
        paper = choose_paper(measured)
        if reading.has_validation:
            choice = choose(
                reading.validation(baseline, column),
                [reading.validation(one, column) for one in _distinct(settings, baseline)],
                reading.rule,
            )
            best = _judge(reading, column, baseline, settings, choice, settings)
            for method in methods:
                rivals = [one for one in settings if one.method == method and one.key != baseline.key]
                if rivals:
                    by_method[method] = _judge(reading, column, baseline, rivals, choice, settings)
                    by_key = {one.key: one for one in rivals}
                    accuracies = {key: _accuracies(one) for key, one in by_key.items()}
                    own[method] = by_key[best_setting(choice.final, accuracies)]
                    picks = cross_fit(choice, accuracies)
                    fitted[method] = {seed: by_key[key] for seed, key in picks.items()}
            own[BASELINE] = baseline
    return ColumnVerdict(column, baseline, settings, best, by_method, own, paper, fitted)


def choose_paper(measured: dict[str, list[Measured]]) -> dict[str, PaperChoice | None]:
    """The paper's choice of every method of a column; None: a blank cell. The baseline must be among them."""
    baseline = measured[BASELINE][0]
    return {method: choose_as_paper(baseline, settings) for method, settings in measured.items()}


def correct_for_columns(verdicts: Sequence[ColumnVerdict]) -> list[float]:
    """p of the gain over the shifted baseline, a column each, corrected for being several (Holm)."""
    return correct_several([1.0 if one.best is None else one.best.p for one in verdicts])


def correct_several(values: Sequence[float]) -> list[float]:
    """p values corrected for being several (Holm); nan, which a single trial has, stays."""
    known = np.array([1.0 if np.isnan(value) else value for value in values])
    return [float("nan") if np.isnan(v) else float(p) for v, p in zip(values, holm(known), strict=True)]


def gain_over_shifted(judged: Judged, arm: str, labels: Array, groups: Array | None = None) -> Difference:
    """Recall of any arm over the shifted baseline."""
    arms, important = judged.judgement.arms, judged.judgement.important
    own = np.isin(labels, important)
    mine, other = arms[arm].correct[:, own], arms["baseline shifted"].correct[:, own]
    return compare(mine, other, parts=labels[own], groups=None if groups is None else groups[own], seed=SEED)


Accuracies = Mapping[str, Mapping[int, float]]  # of settings on validation data: key -> seed -> accuracy


def best_setting(pick: Pick, accuracies: Accuracies) -> str:
    """The best of these settings on the pick's validation data; where no shift reaches the floor, the most accurate."""
    return max(accuracies, key=lambda key: worth(pick.shifts.get(key), float(np.mean([*accuracies[key].values()]))))


def cross_fit(choice: Choice, accuracies: Accuracies) -> dict[int, str]:
    """For each seed, the best of these settings by the validation data of the other half of the seeds: seed -> key.

    A setting picked by the seeds it is then judged on has drawn good ones: of 20 equal settings over 5 seeds the best
    one seems better with p < 0.05 in a seventh of all studies (docs/log.md). A seed that the setting picked for it does
    not have is left out. With one setting nothing is picked; with one seed the pick is its own.
    """
    if len(accuracies) == 1:
        return {seed: key for key, own in accuracies.items() for seed in own}
    found: dict[int, str] = {}
    for group, pick in choice.folds:
        left_out = group if choice.fresh_seeds else frozenset[int]()
        rest = {key: {seed: a for seed, a in own.items() if seed not in left_out} for key, own in accuracies.items()}
        if known := {key: own for key, own in rest.items() if own}:
            key = best_setting(pick, known)
            found |= {seed: key for seed in group if seed in accuracies[key]}
    return found


def _accuracies(setting: SettingResults) -> dict[int, float]:
    return {row.seed: row.accuracy["val"] for row in setting.rows}


def _distinct(settings: Sequence[SettingResults], baseline: SettingResults) -> list[SettingResults]:
    """The settings but for the baseline, each once, where methods share one as the first of them has it."""
    by_key = {one.key: one for one in reversed(settings) if one.key != baseline.key}
    return list(reversed(by_key.values()))


def _judge(
    reading: RunReader,
    column: ColumnFacts,
    baseline: SettingResults,
    rivals: Sequence[SettingResults],
    among_all: Choice,
    settings: Sequence[SettingResults],
) -> Judged:
    by_key = {one.key: one for one in _distinct(rivals, baseline)}
    choice = among_all.only([baseline.key, *by_key])
    final = by_key.get(choice.final.key, baseline)
    control = control_among(final, settings)
    picked = {choice.final.key, *(pick.key for _, pick in choice.folds)} - {baseline.key}
    if control is not None:
        picked.add(control.key)
    every = {one.key: one for one in settings}
    judgement = judge(
        choice,
        reading.candidate(baseline, column),
        [reading.candidate(every[key], column) for key in sorted(picked)],
        seed=SEED,
        controls=[] if control is None else [control.key],
        groups=reading.run.groups("test"),
    )
    return Judged(choice, judgement, final, control)


def control_among(final: SettingResults, settings: Sequence[SettingResults]) -> SettingResults | None:
    """The trained control of a setting (see `methods.control_of`) with all its seeds; None where there is none."""
    control = control_of(final.setting) if is_known(final.method) else None
    trained = (one for one in settings if control is not None and one.key == control.key)
    return next((one for one in trained if set(final.seeds) <= set(one.seeds)), None)


def picked(one: ColumnVerdict, row: Judged, in_words: bool = False) -> str:
    """The settings picked for the judged seeds, the most frequent first; of several, each with its number of seeds."""
    return list_picks([one.find(key, row.final.method).title for key in row.judgement.arms["chosen"].keys], in_words)


def list_picks(titles: Sequence[str], in_words: bool = False) -> str:
    """Settings by their titles, one for each seed, the most frequent first; of several, each with its number of seeds.

    >>> list_picks(["wce w=4", "wce w=8", "wce w=8"]), list_picks(["ce"])
    ('wce w=8 (2), wce w=4 (1)', 'ce')
    """
    counted = Counter(titles).most_common()
    if len(counted) == 1:
        return counted[0][0]
    return ", ".join(f"{name} ({seeds(count) if in_words else count})" for name, count in counted)


def seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def is_significant(p: float | None, num_seeds: int) -> bool:
    """Whether a corrected p counts: below 0.05, of at least three seeds."""
    return p is not None and p < LEVEL and num_seeds >= LEAST_SEEDS
