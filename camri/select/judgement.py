"""The honest rule's second step: a finished choice on the test images, beside the baseline and the controls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from camri.errors import InputError, closest
from camri.metrics import Array, Reliability, Scores, pool, reliability
from camri.select.choice import Choice, Pick, Rule
from camri.select.trials import Candidate, Validation
from camri.stats import FALL, Difference, compare


@dataclass(frozen=True, eq=False)
class Arm:
    """One side of the judgement on test, a row a seed: recall and precision (S, I), accuracy (S,), correct (S, N).

    false_alarms (S, N): which images are of no important class and taken for one. hits, num and called (I,) are summed
    over seeds: images found, of how many, and all that are taken for the class. calibration is over all seeds' images.
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
    def of(tests: Sequence[Scores], planned: Sequence[tuple[str, tuple[float, ...]]]) -> "Arm":
        """The arm of each seed's test scores with its (setting, shift)."""
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
            called=np.sum([test.called(shift) for test, shift in pairs], axis=0),
            correct=correct,
            false_alarms=np.array([test.false_alarms(shift) for test, shift in pairs]),
            calibration=reliability(np.concatenate([test.confidence(s) for test, s in pairs]), correct.ravel()),
        )


@dataclass(frozen=True, eq=False)
class Gain:
    """The chosen setting less another arm, on the same images and seeds.

    recall is the important classes' mean; chance_of_fall is the probability that accuracy fell by more than `FALL`.
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
    >>> from camri.select import Trial, choose
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
        judged[name] = Arm.of(tests, planned)
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


def _gain(chosen: Arm, other: Arm, images: Scores, groups: Array | None, *, seed: int, num_draws: int) -> Gain:
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
