"""The honest rule's first step: validation scores to a chosen setting; test scores are not known here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from camri.errors import InputError
from camri.metrics import Scores, pool
from camri.posthoc import Objective, Prior, Shift, choose_shift, value_of
from camri.select.trials import Validation


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

    >>> import numpy as np
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
