"""Choose a setting by its validation scores, and evaluate the choice on the test images.

`choose` sees validation scores only; `judge` takes the finished choice and reads the test scores of the chosen setting
and of the controls, of no other. `choose_as_paper` is the paper's rule, which chooses by the test images; it is here to
reproduce the paper's tables. `compare_curves` compares two settings at equal recall, so that no shift has to be chosen.
Near its best accuracy a curve is flat, so recall at a given accuracy is noisy: for CIFAR-10's cat and ten trials of
shifted cross-entropy its standard deviation over seeds is 5.4 points, that of accuracy at a given recall 0.2
(reproduce/table1/cifar10).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from camri.decision import (
    FALL,
    SLACK,
    Array,
    Difference,
    MostRecall,
    OperatingPoint,
    Present,
    Reliability,
    Scores,
    divide,
    pool,
    reliability,
    trace,
    tune,
)
from camri.decision.stats import compare
from camri.errors import InputError, closest


@dataclass(frozen=True, eq=False)
class Trial:
    """One seed of a setting: the model's scores of the validation and test images."""

    seed: int
    val: Scores
    test: Scores


@dataclass(frozen=True, eq=False)
class Validation:
    """A setting as `choose` sees it: its validation scores by seed."""

    key: str
    scores: Mapping[int, Scores]

    def of(self, seeds: Collection[int]) -> "Validation":
        """The same setting with these seeds only."""
        return Validation(self.key, {seed: scores for seed, scores in self.scores.items() if seed in seeds})


@dataclass(frozen=True, eq=False)
class Candidate:
    """A setting with its trials; `key` is its name in tables."""

    key: str
    trials: Sequence[Trial]

    def validation(self) -> Validation:
        """The part that `choose` may see."""
        return Validation(self.key, {trial.seed: trial.val for trial in self.trials})


@dataclass(frozen=True)
class Rule:
    """How much accuracy may be lost, and how shifts are tuned.

    `negative`: whether shifts may be negative, for penalties that are too strong. `prior_rows`: weight, in rows, of
    what calibrated scores expect of accuracy; a study's validation data are many, so it is 0 by default.
    """

    negative: bool = True
    max_accuracy_drop: float = 0.0
    prior_rows: int = 0

    @property
    def goal(self) -> MostRecall:
        """What is asked of a shift."""
        return MostRecall(self.max_accuracy_drop)

    def tune(self, setting: Validation, present: Present) -> OperatingPoint:
        """The setting's best shift, one for all its seeds, that keeps the accuracy of the present decision."""
        scores = list(setting.scores.values())
        return tune(scores, self.goal, present=present, keeps_recall=not self.negative, prior_rows=self.prior_rows)


def present_of(baseline: Validation) -> Present:
    """The decision that every setting is measured by: cross-entropy as trained."""
    return Present.of(pool(list(baseline.scores.values())))


@dataclass(frozen=True)
class Pick:
    """The best setting on some validation data, with the present decision and every setting's operating point."""

    key: str
    present: Present
    points: Mapping[str, OperatingPoint]

    @staticmethod
    def of(present: Present, points: Mapping[str, OperatingPoint]) -> "Pick":
        """Pick the best of these settings; a setting that cannot keep the accuracy ranks below all others."""
        return Pick(max(points, key=lambda key: points[key].rank), present, points)

    def only(self, keys: Sequence[str]) -> "Pick":
        """The pick among these settings only; the baseline must be one of them."""
        return Pick.of(self.present, {key: self.points[key] for key in keys if key in self.points})


@dataclass(frozen=True)
class Choice:
    """`final` is the pick on all seeds; each of `folds` is a group of seeds and the pick made without these seeds.

    Validation images guard against chance in the images, not in the seeds: a setting with lucky seeds is better on all
    images. So each seed is evaluated with a pick that has not seen it, and results hold for new trainings. With a
    single seed this is impossible: `fresh_seeds` is then False, and results are about these models only.
    """

    rule: Rule
    final: Pick
    folds: tuple[tuple[frozenset[int], Pick], ...]
    fresh_seeds: bool

    def only(self, keys: Sequence[str]) -> "Choice":
        """The choice among these settings only, the baseline first, as `choose` makes it; no shift is tuned again."""
        return replace(self, final=self.final.only(keys), folds=tuple((g, pick.only(keys)) for g, pick in self.folds))


def choose(baseline: Validation, candidates: Sequence[Validation], rule: Rule | None = None) -> Choice:
    """Choose the setting with the best validation recall at or above the baseline's validation accuracy.

    Every setting, the baseline too, has its own best shift. There is always a choice, at worst the unshifted baseline.
    Ties: higher accuracy, then the smaller shift, then the first given; the baseline comes first. Each half of the
    seeds chooses for the other half.

    >>> import numpy as np
    >>> from camri.decision import condense
    >>> def scores(leads):
    ...     return condense(np.array([[0.0, lead] for lead in leads]), [1, 1, 0, 0], important=(1,))
    >>> ce = Validation("ce", {0: scores([0.5, -2.0, -1.0, -1.0])})
    >>> choice = choose(ce, [Validation("camri", {0: scores([0.5, -0.5, -1.0, -1.0])})])
    >>> choice.final.key, choice.final.present.accuracy, choice.final.points["camri"].rule
    ('camri', 0.75, Shift(values={1: 0.8}))
    """
    rule = rule or Rule()
    settings = [baseline, *candidates]
    for setting in settings:
        if not isinstance(setting, Validation):
            raise InputError(f"choose sees validation scores only, not a {type(setting).__name__}; give .validation()")
    keys = [setting.key for setting in settings]
    if len(set(keys)) < len(keys):
        twice = sorted({key for key in keys if keys.count(key) > 1})
        raise InputError(f"settings need different keys; given twice: {', '.join(twice)}")
    seeds = sorted(baseline.scores)
    if not seeds:
        raise InputError(f"the baseline {baseline.key!r} has no trials")

    def pick(left_out: frozenset[int]) -> Pick:
        kept = [rest for setting in settings if (rest := setting.of(set(setting.scores) - left_out)).scores]
        present = present_of(kept[0])
        return Pick.of(present, {setting.key: rule.tune(setting, present) for setting in kept})

    final = pick(frozenset())
    if len(seeds) == 1:
        return Choice(rule, final, ((frozenset(seeds), final),), fresh_seeds=False)
    groups = [frozenset(seeds[first::2]) for first in (0, 1)]
    return Choice(rule, final, tuple((group, pick(group)) for group in groups), fresh_seeds=True)


@dataclass(frozen=True, eq=False)
class ArmScores:
    """Test results of one arm, one row per seed: recall and precision (S, I), accuracy (S,), correct (S, N).

    false_alarms (S, N): whether an image is of no important class but predicted as one. hits, num and called (I,) are
    sums over seeds: images found, of how many, and images predicted as the class. calibration: over all seeds' images.
    """

    keys: tuple[str, ...]
    shifts: tuple[tuple[float, ...], ...]
    recall: Array
    precision: Array
    accuracy: Array
    hits: Array
    num: Array
    called: Array
    correct: Array
    false_alarms: Array
    calibration: Reliability

    @staticmethod
    def of(tests: Sequence[Scores], planned: Sequence[tuple[str, tuple[float, ...]]]) -> "ArmScores":
        """Evaluate each seed's test scores with its (setting, shift)."""
        keys, shifts = (tuple(part) for part in zip(*planned, strict=True))
        pairs = list(zip(tests, shifts, strict=True))
        correct = np.array([test.correct(shift) for test, shift in pairs])
        return ArmScores(
            keys=keys,
            shifts=shifts,
            recall=np.array([test.recall(shift) for test, shift in pairs]),
            precision=np.array([test.precision(shift) for test, shift in pairs]),
            accuracy=correct.mean(axis=1),
            hits=np.sum([test.hits(shift) for test, shift in pairs], axis=0),
            num=np.sum([test.num for test in tests], axis=0),
            called=np.sum([test.called(shift) for test, shift in pairs], axis=0),
            correct=correct,
            false_alarms=np.array([test.false_alarms(shift) for test, shift in pairs]),
            calibration=reliability(np.concatenate([test.confidence(s) for test, s in pairs]), correct.ravel()),
        )


@dataclass(frozen=True, eq=False)
class Gain:
    """The chosen setting less another arm, on the same images and seeds.

    recall: mean over important classes. chance_of_fall: probability that accuracy dropped by more than `FALL`.
    over: gives the difference over some of the images.
    """

    recall: Difference
    accuracy: Difference
    chance_of_fall: float
    labels: Array
    over: Callable[[Array], Difference]

    @cached_property
    def by_class(self) -> Mapping[int, Difference]:
        """The change of each class's recall. Computed on first use, as few reports need it."""
        return {int(index): self.over(self.labels == index) for index in np.unique(self.labels)}


@dataclass(frozen=True, eq=False)
class Judgement:
    """Arms by name ("chosen", "baseline", "baseline shifted", controls), and the gains of "chosen" over the others."""

    seeds: tuple[int, ...]
    important: tuple[int, ...]
    arms: Mapping[str, ArmScores]
    gains: Mapping[str, Gain]
    fresh_seeds: bool


def judge(
    choice: Choice,
    baseline: Candidate,
    candidates: Sequence[Candidate],
    *,
    seed: int,
    controls: Sequence[str] = (),
    groups: Array | None = None,
    num_draws: int = 2000,
) -> Judgement:
    """Evaluate a choice on the test images, beside the baseline, the shifted baseline, and the controls.

    Each seed is evaluated with the setting that was picked without it; seeds new to the choice, with the final pick.
    Each model has its own shift, tuned on its own validation scores to the floor of the pick, in every arm alike; it is
    0 if no shift reaches the floor. The alternatives were worse:
    - the shift of the pick overfits the same chance as the pick: of 63 equal settings, the chosen one showed +.07
      recall for −.03 accuracy;
    - the baseline's own accuracy as floor treats arms unequally: recall is steep where accuracy is flat, so an equal
      setting seemed to gain .027;
    - one shift per fold correlates its seeds: 95 % intervals of the gain covered 83 %;
    - a model slightly below the floor by chance would be shifted back, far back where validation recall is 1: on GTSRB
      cross-entropy lost 1 point of recall by "its best shift". `_rule_for` prevents this.
    `groups` are the test images' patients or films, as in `stats.compare`.
    Only seeds that all arms have are evaluated. Test scores of settings in no arm are not read.

    >>> from camri.decision import condense
    >>> from camri.selection import Trial, choose
    >>> def scores(leads):
    ...     return condense(np.array([[0.0, lead] for lead in leads]), [1, 1, 0, 0], important=(1,))
    >>> plain, sharp = scores([0.5, -2.0, -1.0, -1.0]), scores([0.5, -0.5, -1.0, -1.0])
    >>> ce, camri = (Candidate(k, [Trial(i, v, v) for i in (0, 1)]) for k, v in [("ce", plain), ("camri", sharp)])
    >>> found = judge(choose(ce.validation(), [camri.validation()]), ce, [camri], seed=0)
    >>> found.arms["chosen"].keys, found.gains["baseline shifted"].recall.value
    (('camri', 'camri'), 0.5)
    """
    settings = {setting.key: setting for setting in (baseline, *candidates)}
    for key in (choice.final.key, *controls):
        if key not in settings:
            raise InputError(f"{key!r} is to be judged but is not among the settings; {closest(key, settings)}")
    plans = _plan(choice, {key: setting.validation() for key, setting in settings.items()}, baseline.key, controls)
    trials = {key: {trial.seed: trial for trial in setting.trials} for key, setting in settings.items()}
    first = trials[baseline.key][plans[0][0]].test
    judged = {}
    for name in plans[0][1]:
        planned = [arms[name] for _, arms in plans]
        tests = [trials[arms[name][0]][number].test for number, arms in plans]
        if not all(np.array_equal(test.labels, first.labels) and test.important == first.important for test in tests):
            raise InputError(f"{name}: test data or important classes differ from the baseline's; they must be paired")
        judged[name] = ArmScores.of(tests, planned)
    gains = {
        name: _gain(judged["chosen"], arm, first, groups, seed=seed, num_draws=num_draws)
        for name, arm in judged.items()
        if name != "chosen"
    }
    numbers = tuple(number for number, _ in plans)
    seen = frozenset[int]().union(*(group for group, _ in choice.folds))
    return Judgement(numbers, first.important, judged, gains, choice.fresh_seeds or seen.isdisjoint(numbers))


def _plan(
    choice: Choice, settings: Mapping[str, Validation], baseline: str, controls: Sequence[str]
) -> list[tuple[int, dict[str, tuple[str, tuple[float, ...]]]]]:
    """Each arm's setting and shift, for every seed to be evaluated; from validation scores alone."""
    plans = []
    unseen = frozenset(settings[baseline].scores).difference(*(group for group, _ in choice.folds))
    for group, pick in (*choice.folds, (unseen, choice.final)):
        names = {"chosen": pick.key, "baseline": baseline, "baseline shifted": baseline}
        names |= {key: key for key in controls}
        rules = {key: _rule_for(settings[key], choice.rule, pick, group) for key in names.values()}
        for number in group.intersection(*(settings[key].scores for key in names.values())):
            tuned = {key: rule.tune(settings[key].of({number}), pick.present) for key, rule in rules.items()}
            shifts = {key: tuple(point.rule.values.values()) for key, point in tuned.items()}
            plans.append((number, {n: (key, (0.0,) if n == "baseline" else shifts[key]) for n, key in names.items()}))
    if not plans:
        raise InputError(f"no seed has a trial of all: the chosen {choice.final.key!r}, the baseline, the controls")
    return sorted(plans, key=lambda plan: plan[0])


def _rule_for(setting: Validation, rule: Rule, pick: Pick, group: frozenset[int]) -> Rule:
    """The rule for the single models of a setting: negative shifts only if the setting as a whole needs one.

    Seeds outside the group decide whether it does. The baseline never does, so that shifting never makes it a weaker
    control.
    """
    others = setting.of(set(setting.scores) - group)
    whole = others if others.scores else setting
    # If it reaches the floor unshifted, no negative shift is better: recall never falls as the shift rises.
    is_kept = pool(list(whole.scores.values())).accuracy() >= pick.present.accuracy - rule.max_accuracy_drop
    if not rule.negative or (is_kept and not rule.prior_rows):
        return replace(rule, negative=False)
    point = rule.tune(whole, pick.present)
    return replace(rule, negative=not point.has_met or min(point.rule.values.values()) < 0)


def _gain(
    chosen: ArmScores, other: ArmScores, images: Scores, groups: Array | None, *, seed: int, num_draws: int
) -> Gain:
    labels = images.labels

    def over(columns: Array, parts: Array | None = None) -> Difference:
        mine, theirs = chosen.correct[:, columns], other.correct[:, columns]
        units = None if groups is None else groups[columns]
        return compare(mine, theirs, parts=parts, groups=units, seed=seed, num_draws=num_draws)

    own = np.isin(labels, images.important)
    accuracy = over(np.ones(len(labels), dtype=bool))
    return Gain(
        recall=over(own, labels[own]),
        accuracy=accuracy,
        chance_of_fall=accuracy.chance_of_fall(FALL),
        labels=labels,
        over=over,
    )


OPTIMISTIC = "chosen on the test set: optimistic"


@dataclass(frozen=True)
class Measured:
    """A setting's recall (mean over important classes) and accuracy on the test images, one number per seed."""

    key: str
    recall: tuple[float, ...]
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class PaperChoice:
    """The setting that the paper's rule chose, with the means it was chosen by."""

    key: str
    recall: float
    accuracy: float
    note: str = field(default=OPTIMISTIC, init=False)


def choose_as_paper(baseline: Measured, settings: Sequence[Measured]) -> PaperChoice | None:
    """The setting with the highest mean recall whose mean accuracy is not below the baseline's; None if there is none.

    Of equal recalls the first wins. It is chosen by the test images it is reported on, so its gain is partly chance.

    >>> ce = Measured("ce", (0.70,), (0.88,))
    >>> choose_as_paper(ce, [Measured("w=4", (0.75,), (0.88,)), Measured("w=8", (0.80,), (0.87,))]).key
    'w=4'
    """
    recall = np.array([np.mean(setting.recall) for setting in settings])
    accuracy = np.array([np.mean(setting.accuracy) for setting in settings])
    kept = accuracy >= np.mean(baseline.accuracy) - SLACK
    if not kept.any():
        return None
    index = int(np.where(kept, recall, -np.inf).argmax())
    return PaperChoice(settings[index].key, float(recall[index]), float(accuracy[index]))


def mark_best(cells: Mapping[str, PaperChoice | None]) -> set[str]:
    """The methods of a table's column to print in bold: those with the highest recall.

    >>> mark_best({"ce": PaperChoice("ce", 0.7, 0.9), "wce": None, "camri": PaperChoice("m=4", 0.8, 0.9)})
    {'camri'}
    """
    shown = {method: cell.recall for method, cell in cells.items() if cell is not None}
    return {method for method, recall in shown.items() if recall >= max(shown.values()) - SLACK}


NUM_RECALLS = 9
CurveFigure = Literal["accuracy", "alarms"]  # alarms: false alarms as a share of all images
ENDLESS = 1e5  # a shift beyond every lead: float16 ends at 65,504


@dataclass(frozen=True, eq=False)
class Gap:
    """A figure of an arm minus the baseline's: the mean over the recalls (G,), and `at(place)` at one of them.

    `baseline`: the baseline's figure, mean over trials (G,). `at` computes on demand: one recall takes as long as the
    mean, and few are needed.
    """

    recall: Array
    baseline: Array
    mean: Difference
    at: Callable[[int], Difference]


def recall_range(baseline: Sequence[Scores], num: int = NUM_RECALLS) -> Array:
    """Recalls to compare at: from the unshifted baseline's mean, halfway to the highest that a shift can reach.

    The highest is 1 for one important class, and may be less for several, which compete for images. Close to it all
    other classes are lost, so no useful operating point is there.

    >>> from camri.decision import condense
    >>> recall_range([condense(np.array([[0.0, 1.0], [1.0, 0.0]]), [1, 1], (1,))], num=3)
    array([0.5  , 0.625, 0.75 ])
    """
    start = float(np.mean([scores.recall().mean() for scores in baseline]))
    reached = float(np.mean([_reached(scores) for scores in baseline]))
    return np.linspace(start, (start + reached) / 2, num)


def common_range(baseline: Sequence[Scores], *arms: Sequence[Scores]) -> Array:
    """The baseline's :func:`recall_range`, limited to what every model of the baseline and the arms can reach."""
    grid, most = recall_range(baseline), min(_reached(scores) for side in (baseline, *arms) for scores in side)
    return np.linspace(min(grid[0], most), min(grid[-1], most), len(grid))


def _reached(scores: Scores) -> float:
    """The highest mean recall that a shift can reach."""
    return float(scores.recall(ENDLESS).mean())


def compare_curves(
    arm: Sequence[Scores],
    baseline: Sequence[Scores],
    *,
    seed: int,
    recall: Array | None = None,
    groups: Array | None = None,
    figure: CurveFigure = "accuracy",
) -> Gap:
    """The arm's accuracy, or false alarms, minus the baseline's at equal recall, with intervals over seeds and images.

    False alarms are images of no important class that are predicted as one, as a share of all images. Models of equal
    accuracy and recall may differ in them, if one confuses the other classes with each other more often.

    Give test scores of the same images and seeds. Each model is shifted on these images until it reaches a recall, in
    both arms alike, so nothing is chosen and nothing is overfitted. The result tells which curve is higher, not what a
    shift chosen beforehand gives. The intervals account for shifts found on the evaluated images (coverage of nominal
    95 %: docs/numbers.md). `groups`: as in `stats.compare`.

    >>> from camri.decision import condense
    >>> def scores(*leads):
    ...     return condense(np.array([[0.0, lead] for lead in leads]), [1, 1, 0, 0], important=(1,))
    >>> better, worse = scores(1.0, -0.5, -1.0, -2.0), scores(1.0, -1.5, -1.0, -2.0)
    >>> found = compare_curves([better, better], [worse, worse], seed=0, recall=np.array([0.5, 1.0]))
    >>> [float(found.at(place).value) for place in (0, 1)], float(found.mean.value)
    ([0.0, 0.25], 0.125)
    >>> float(compare_curves([better], [worse], seed=0, recall=np.array([1.0]), figure="alarms").mean.value)
    -0.25
    """
    if len(arm) != len(baseline):
        raise InputError(f"{len(arm)} and {len(baseline)} trials cannot be paired; give the same seeds of both")
    if figure not in get_args(CurveFigure):
        raise InputError(f"figure={figure!r} is not compared; {closest(figure, get_args(CurveFigure))}", "figure")
    grid = common_range(baseline, arm) if recall is None else np.asarray(recall, dtype=np.float64)
    reached = min(map(_reached, (*arm, *baseline)))
    if grid.max() > reached + SLACK:
        raise InputError(
            f"recall={grid.max():g} is not reached by every model; give recalls up to {reached:.4g}", argument="recall"
        )
    (mine, my_pull), (its, its_pull) = (
        map(np.array, zip(*(_outcomes_at(scores, grid, figure) for scores in side), strict=True))
        for side in (arm, baseline)
    )
    pull = my_pull - its_pull

    def at(place: int) -> Difference:
        return compare(mine[:, place], its[:, place], besides=pull[:, place], groups=groups, seed=seed)

    mean = compare(mine.mean(axis=1), its.mean(axis=1), besides=pull.mean(axis=1), groups=groups, seed=seed)
    return Gap(grid, its.mean(axis=(0, 2)), mean, at)


def _outcomes_at(scores: Scores, grid: Array, figure: CurveFigure) -> tuple[Array, Array]:
    """Outcomes of each image with the model shifted to each recall, and each image's indirect effect: (G, N) both.

    An important image that is found raises recall by its share, so a smaller shift is enough and the figure moves back
    along the curve, by the slope there. The slope is taken over one standard error of recall to either side, which is
    how far recall varies by chance.
    """
    curve = trace(scores)
    states = curve.reach(grid)
    correct = np.array([scores.correct(shift) for shift in curve.value[states]], dtype=np.float64)
    recalls, num = curve.recall[states], curve.num
    error = np.sqrt(np.sum((recalls * (1 - recalls) + 1 / num) / num, axis=1)) / len(num)
    low, high = (curve.reach((grid + step).clip(0.0, curve.mean_recall[-1])) for step in (-error, error))
    own = scores.labels[:, None] == np.array(scores.important)
    counted, rise = correct, curve.accuracy[high] - curve.accuracy[low]
    if figure == "alarms":
        counted, more, fewer = (
            np.array([scores.false_alarms(shift) for shift in curve.value[at]], dtype=np.float64)
            for at in (states, high, low)
        )
        rise = (more - fewer).mean(axis=1)
    slope = divide(rise, curve.mean_recall[high] - curve.mean_recall[low])
    shares = own @ (len(scores) / (len(num) * num))
    return counted, np.nan_to_num(slope)[:, None] * shares * (recalls @ own.T - correct)
