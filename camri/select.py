"""From trials to a chosen setting: the paper's rule, which looks at the test set, and the honest one, which does not.

The honest way has two steps that cannot be mixed up: `choose` is given validation scores and nothing else; `judge`
takes its finished choice and opens the test scores of the chosen setting and of the controls, of no other.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from camri.errors import InputError, closest
from camri.metrics import Array, Reliability, Scores, pool, reliability
from camri.posthoc import SLACK, Objective, Prior, Shift, choose_shift, value_of
from camri.stats import FALL, Difference, compare

OPTIMISTIC = "chosen on the test set: optimistic"


@dataclass(frozen=True, eq=False)
class Trial:
    """One seed of a setting: the trained model's scores of the validation and of the test images."""

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
        return Validation(self.key, {seed: one for seed, one in self.scores.items() if seed in seeds})


@dataclass(frozen=True, eq=False)
class Candidate:
    """A setting with its trials; `key` is its name in tables."""

    key: str
    trials: Sequence[Trial]

    def validation(self) -> Validation:
        """What `choose` may see of it."""
        return Validation(self.key, {trial.seed: trial.val for trial in self.trials})


@dataclass(frozen=True)
class Measured:
    """A setting's recall (the important classes' mean) and accuracy on the test images, one number a seed."""

    key: str
    recall: tuple[float, ...]
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class PaperChoice:
    """What the paper's rule kept; its means are those the choice was made by."""

    key: str
    recall: float
    accuracy: float
    optimistic: bool = field(default=True, init=False)
    note: str = field(default=OPTIMISTIC, init=False)


def measure(candidate: Candidate) -> Measured:
    """A setting's recall and accuracy on the test images, unshifted, as the paper's tables have them."""
    tests = [trial.test for trial in candidate.trials]
    recalls = tuple(float(test.recall().mean()) for test in tests)
    return Measured(candidate.key, recalls, tuple(test.accuracy() for test in tests))


def choose_as_paper(baseline: Measured, settings: Sequence[Measured]) -> PaperChoice | None:
    """The setting of the highest mean recall whose mean accuracy is not below the baseline's; None: a blank cell.

    Equal recalls: the first. It is chosen by the test images it is shown on, so what it gains is partly luck.

    >>> ce = Measured("ce", (0.70,), (0.88,))
    >>> choose_as_paper(ce, [Measured("w=4", (0.75,), (0.88,)), Measured("w=8", (0.80,), (0.87,))]).key
    'w=4'
    """
    recall = np.array([np.mean(one.recall) for one in settings])
    accuracy = np.array([np.mean(one.accuracy) for one in settings])
    kept = accuracy >= np.mean(baseline.accuracy) - SLACK
    if not kept.any():
        return None
    index = int(np.where(kept, recall, -np.inf).argmax())
    return PaperChoice(settings[index].key, float(recall[index]), float(accuracy[index]))


def mark_best(cells: Mapping[str, PaperChoice | None]) -> set[str]:
    """The methods of a column to print in bold: those with the highest recall that is shown.

    >>> mark_best({"ce": PaperChoice("ce", 0.7, 0.9), "wce": None, "camri": PaperChoice("m=4", 0.8, 0.9)})
    {'camri'}
    """
    shown = {method: cell.recall for method, cell in cells.items() if cell is not None}
    return {method for method, recall in shown.items() if recall >= max(shown.values()) - SLACK}


@dataclass(frozen=True)
class Floor:
    """The least accuracy allowed; with a prior it is kept by the accuracy to expect (see `posthoc.Prior`)."""

    accuracy: float
    prior: Prior | None = None


@dataclass(frozen=True)
class Rule:
    """How recall is weighed and shifts are made (see `posthoc.choose_shift`), and how much accuracy may be lost.

    `prior_rows`: how many rows count for the expectation that no setting is more accurate than the baseline.
    """

    objective: Objective = "mean"
    each: bool = False
    negative: bool = True  # a penalty that overshot is shifted back: it trains a curve, not a point of it
    tolerance: float = 0.0
    prior_rows: int = 0

    def floor(self, baseline: Validation) -> Floor:
        """The least accuracy allowed: that of the unshifted baseline, less the tolerance."""
        pooled = pool(list(baseline.scores.values()))
        return Floor(pooled.accuracy() - self.tolerance, Prior.of(pooled, self.prior_rows) if self.prior_rows else None)

    def tune(self, setting: Validation, floor: Floor) -> Shift | None:
        """The setting's best shift, one for all its seeds; None where none reaches the floor."""
        return choose_shift(
            list(setting.scores.values()),
            accuracy_floor=floor.accuracy,
            objective=self.objective,
            each=self.each,
            negative=self.negative,
            prior=floor.prior,
        )

    def value(self, scores: Scores, shift: Sequence[float]) -> float:
        """What the rule maximises: a model's recall with a shift, as the objective weighs it."""
        return float(value_of(self.objective, scores.important)(scores.recall(shift)[None])[0])


@dataclass(frozen=True)
class Pick:
    """The best setting on some validation data, with the accuracy floor and every setting's own best shift there."""

    key: str
    floor: Floor
    shifts: Mapping[str, Shift | None]

    @staticmethod
    def of(floor: Floor, shifts: Mapping[str, Shift | None]) -> "Pick":
        """The best of these settings."""
        found = {key: shift for key, shift in shifts.items() if shift is not None}
        best = max(found, key=lambda key: (found[key].value, found[key].accuracy, -sum(map(abs, found[key].shift))))
        return Pick(best, floor, shifts)

    def only(self, keys: Sequence[str]) -> "Pick":
        """What it would be among these settings; the baseline must be one."""
        return Pick.of(self.floor, {key: self.shifts[key] for key in keys if key in self.shifts})


@dataclass(frozen=True)
class Choice:
    """`final` was picked on all seeds; each of `folds` is a group of seeds and the pick made without their models.

    Validation images guard against the luck of images, not of seeds: a setting that drew good seeds is good on
    every image. So seeds are judged by a pick that has not seen them, and what is claimed holds for new trainings.
    One seed alone cannot be left out: `fresh_seeds` is then False and the claim is about these models only.
    """

    rule: Rule
    final: Pick
    folds: tuple[tuple[frozenset[int], Pick], ...]
    fresh_seeds: bool

    def only(self, keys: Sequence[str]) -> "Choice":
        """What `choose` returns of these settings alone, the baseline first: no shift is tuned again."""
        return replace(self, final=self.final.only(keys), folds=tuple((g, pick.only(keys)) for g, pick in self.folds))


def choose(baseline: Validation, candidates: Sequence[Validation], rule: Rule | None = None) -> Choice:
    """The setting with the best validation recall at no less than the baseline's validation accuracy.

    Every setting, the baseline too, is taken with its own best shift. There is always a choice, at worst the baseline
    as it is. Equal values: higher accuracy, then the smaller shift, then the first given; the baseline comes first.
    Each half of the seeds chooses for the other half.

    >>> from camri.metrics import condense
    >>> def scores(leads):
    ...     return condense(np.array([[0.0, lead] for lead in leads]), [1, 1, 0, 0], important=(1,))
    >>> ce = Validation("ce", {0: scores([0.5, -2.0, -1.0, -1.0])})
    >>> choice = choose(ce, [Validation("camri", {0: scores([0.5, -0.5, -1.0, -1.0])})])
    >>> choice.final.key, choice.final.floor.accuracy, choice.final.shifts["camri"].shift
    ('camri', 0.75, (0.75,))
    """
    rule = rule or Rule()
    settings = [baseline, *candidates]
    for one in settings:
        if not isinstance(one, Validation):
            raise InputError(f"choose sees validation scores only, not a {type(one).__name__}; give .validation()")
    keys = [one.key for one in settings]
    if len(set(keys)) < len(keys):
        twice = sorted({key for key in keys if keys.count(key) > 1})
        raise InputError(f"settings need different keys; given twice: {', '.join(twice)}")
    seeds = sorted(baseline.scores)
    if not seeds:
        raise InputError(f"the baseline {baseline.key!r} has no trials")

    def pick(left_out: frozenset[int]) -> Pick:
        kept = [rest for one in settings if (rest := one.of(set(one.scores) - left_out)).scores]
        floor = rule.floor(kept[0])
        return Pick.of(floor, {one.key: rule.tune(one, floor) for one in kept})

    final = pick(frozenset())
    if len(seeds) == 1:
        return Choice(rule, final, ((frozenset(seeds), final),), fresh_seeds=False)
    groups = [frozenset(seeds[first::2]) for first in (0, 1)]
    return Choice(rule, final, tuple((group, pick(group)) for group in groups), fresh_seeds=True)


@dataclass(frozen=True, eq=False)
class Arm:
    """One side of the judgement on test, a row a seed: recall and precision (S, I), accuracy (S,), correct (S, N).

    hits and num (I,) are summed over seeds; calibration is over all seeds' images.
    """

    keys: tuple[str, ...]
    shifts: tuple[tuple[float, ...], ...]
    recall: Array
    precision: Array
    accuracy: Array
    hits: Array
    num: Array
    correct: Array
    calibration: Reliability


@dataclass(frozen=True, eq=False)
class Gain:
    """The chosen setting less another arm, on the same images and seeds.

    recall is the important classes' mean; chance_of_fall is the probability that accuracy fell by more than epsilon.
    `over` makes the difference over some of the images.
    """

    recall: Difference
    accuracy: Difference
    chance_of_fall: float
    labels: Array
    over: Callable[[Array], Difference]

    @cached_property
    def by_class(self) -> Mapping[int, Difference]:
        """Every class's recall, so that it shows who paid. Made when first asked for: few of a report's rows are."""
        return {int(index): self.over(self.labels == index) for index in np.unique(self.labels)}


@dataclass(frozen=True, eq=False)
class Judgement:
    """Arms by name ("chosen", "baseline", "baseline shifted", the controls) and the gains over each but the first."""

    seeds: tuple[int, ...]
    important: tuple[int, ...]
    arms: Mapping[str, Arm]
    gains: Mapping[str, Gain]
    fresh_seeds: bool
    optimistic: bool = field(default=False, init=False)


def judge(
    choice: Choice,
    baseline: Candidate,
    candidates: Sequence[Candidate],
    *,
    seed: int,
    controls: Sequence[str] = (),
    groups: Array | None = None,
    epsilon: float = FALL,
    num_draws: int = 2000,
) -> Judgement:
    """The finished choice on the test images, beside the baseline as it is, the baseline shifted, and the controls.

    Each seed is judged with the setting picked without it; seeds the choice has never seen, with the final one. A
    shift belongs to a model, not to a setting: each is tuned on its own model's validation scores, in every arm alike,
    to the floor that came with the pick, and is 0 where none reaches it. Why so:
    - a shift that came with the pick would be as lucky as the picked models: with 63 equal settings it showed +.07
      recall for −.03 accuracy, both from nothing;
    - a floor of the judged baseline's own would treat the arms unequally: recall is steep where accuracy is flat, so
      an equal setting seemed to gain .027;
    - one shift for a fold would tie its seeds together, and the 95 % intervals of the gain covered 83 %;
    - a model a little below the floor by chance would be shifted back, and where validation recall is 1 that may be
      far: on GTSRB cross-entropy lost 1 point of recall by "its best shift". So see `_rule_for`.
    `groups` are the test images' patients or films, as in `stats.compare`.
    Only seeds that all arms have are counted. Test scores of settings that are in no arm are not opened.

    >>> from camri.metrics import condense
    >>> def scores(leads):
    ...     return condense(np.array([[0.0, lead] for lead in leads]), [1, 1, 0, 0], important=(1,))
    >>> plain, sharp = scores([0.5, -2.0, -1.0, -1.0]), scores([0.5, -0.5, -1.0, -1.0])
    >>> ce, camri = (Candidate(k, [Trial(i, v, v) for i in (0, 1)]) for k, v in [("ce", plain), ("camri", sharp)])
    >>> found = judge(choose(ce.validation(), [camri.validation()]), ce, [camri], seed=0)
    >>> found.arms["chosen"].keys, found.gains["baseline shifted"].recall.estimate
    (('camri', 'camri'), 0.5)
    """
    settings = {one.key: one for one in (baseline, *candidates)}
    for key in (choice.final.key, *controls):
        if key not in settings:
            raise InputError(f"{key!r} is to be judged but is not among the settings; {closest(key, settings)}")
    plans = _plan(choice, {key: one.validation() for key, one in settings.items()}, baseline.key, controls)
    trials = {key: {trial.seed: trial for trial in one.trials} for key, one in settings.items()}
    first = trials[baseline.key][plans[0][0]].test
    judged = {}
    for name in plans[0][1]:
        planned = [arms[name] for _, arms in plans]
        tests = [trials[arms[name][0]][number].test for number, arms in plans]
        if not all(np.array_equal(test.labels, first.labels) and test.important == first.important for test in tests):
            raise InputError(f"{name}: test data or important classes differ from the baseline's; they must be paired")
        judged[name] = _arm(tests, planned)
    gains = {
        name: _gain(judged["chosen"], arm, first, groups, epsilon, seed=seed, num_draws=num_draws)
        for name, arm in judged.items()
        if name != "chosen"
    }
    numbers = tuple(number for number, _ in plans)
    seen = frozenset[int]().union(*(group for group, _ in choice.folds))
    return Judgement(numbers, first.important, judged, gains, choice.fresh_seeds or seen.isdisjoint(numbers))


def _plan(
    choice: Choice, settings: Mapping[str, Validation], baseline: str, controls: Sequence[str]
) -> list[tuple[int, dict[str, tuple[str, tuple[float, ...]]]]]:
    """For every seed to be judged, each arm's setting and shift; made of validation scores alone."""
    plans = []
    unseen = frozenset(settings[baseline].scores).difference(*(group for group, _ in choice.folds))
    for group, pick in (*choice.folds, (unseen, choice.final)):
        names = {
            "chosen": pick.key,
            "baseline": baseline,
            "baseline shifted": baseline,
            **{key: key for key in controls},
        }
        rules = {key: _rule_for(settings[key], choice.rule, pick, group) for key in names.values()}
        for number in group.intersection(*(settings[key].scores for key in names.values())):
            tuned = {key: rule.tune(settings[key].of({number}), pick.floor) for key, rule in rules.items()}
            shifts = {key: (0.0,) if shift is None else shift.shift for key, shift in tuned.items()}
            plans.append((number, {n: (key, (0.0,) if n == "baseline" else shifts[key]) for n, key in names.items()}))
    if not plans:
        raise InputError(f"no seed has a trial of all: the chosen {choice.final.key!r}, the baseline, the controls")
    return sorted(plans, key=lambda plan: plan[0])


def _rule_for(setting: Validation, rule: Rule, pick: Pick, group: frozenset[int]) -> Rule:
    """The rule for a setting's single models: they are shifted back only where the setting as a whole has to be.

    Seeds outside the group say whether it has to. The baseline never has to, so that as a control it is never worse
    for being shifted.
    """
    others = setting.of(set(setting.scores) - group)
    whole = others if others.scores else setting
    # Where it keeps the floor as it is, no common shift down is better: recall never falls with the shift.
    is_kept = pool(list(whole.scores.values())).accuracy() >= pick.floor.accuracy
    if not rule.negative or (is_kept and not rule.each and pick.floor.prior is None):
        return replace(rule, negative=False)
    shift = rule.tune(whole, pick.floor)
    return replace(rule, negative=shift is None or min(shift.shift) < 0)


def _arm(tests: Sequence[Scores], planned: Sequence[tuple[str, tuple[float, ...]]]) -> Arm:
    keys, shifts = (tuple(part) for part in zip(*planned, strict=True))
    pairs = list(zip(tests, shifts, strict=True))
    correct = np.array([test.correct(shift) for test, shift in pairs])
    return Arm(
        keys=keys,
        shifts=shifts,
        recall=np.array([test.recall(shift) for test, shift in pairs]),
        precision=np.array([test.precision(shift) for test, shift in pairs]),
        accuracy=correct.mean(axis=1),
        hits=np.sum([test.hits(shift) for test, shift in pairs], axis=0),
        num=np.sum([test.num for test in tests], axis=0),
        correct=correct,
        calibration=reliability(np.concatenate([test.confidence(s) for test, s in pairs]), correct.ravel()),
    )


def _gain(
    chosen: Arm, other: Arm, images: Scores, groups: Array | None, epsilon: float, *, seed: int, num_draws: int
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
        chance_of_fall=accuracy.chance_of_fall(epsilon),
        labels=labels,
        over=over,
    )
