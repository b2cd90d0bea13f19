"""Ramps that a fit tries with its finalists: when in a training the penalties of a method come in."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from camri.data import DataSet
from camri.engine import Training
from camri.fitting.search import CE
from camri.fitting.trainer import ONE_ERROR, Point, TrainingRun, setting_of
from camri.methods import Setting
from camri.selection import Validation, common_range, compare_curves
from camri.study.spec import Resolved

EARLY = "early"  # what trainings have unless told; everything before the finals was trained with it
# Then the more promising first. Late is while the rate falls, as LDAM's deferred weights come in with a lower rate.
RAMPS: dict[str, tuple[float, float]] = {EARLY: Training().ramp, "late": (0.5, 0.8), "at once": (0.0, 0.0)}


def depends_on_ramp(one: Setting, data: DataSet) -> bool:
    """Whether the setting's loss has anything that a ramp brings in: cross-entropy, weights and L2-softmax do not."""
    loss = one.criterion(data.num_classes, data.class_counts("train").tolist())
    return any(bool((getattr(loss, name) != off).any()) for name, off in loss.training_only)


def compare_ramps(
    benches: Mapping[str, TrainingRun],
    finalists: Sequence[Point],
    column: Resolved,
    seeds: Sequence[int],
    may_try: Callable[[str], bool] = lambda name: True,
) -> str:
    """The ramp to use, by name, after the finalists were trained under each that may be tried, with these seeds.

    The bench of the early ramp is the search's own: it has these trials, and cross-entropy's, which no ramp changes.
    """
    important = [index for index, _ in column]
    reached: dict[str, list[Validation]] = {}
    for name, bench in benches.items():
        if name != EARLY and not may_try(name):
            continue
        if name != EARLY:
            bench.train(finalists, seeds, f"ramps: {name}")
        reached[name] = [bench.validation(setting_of(one, column), important).of(seeds) for one in finalists]
    return choose_ramp(benches[EARLY].validation(CE, important).of(seeds), reached)


def choose_ramp(baseline: Validation, reached: Mapping[str, Sequence[Validation]]) -> str:
    """The ramp with the best validation accuracy at equal recall; the early one unless it is surpassed.

    `reached` has the same finalists for each ramp. Recalls are those that `compare_curves` would take for
    cross-entropy, the baseline: a finalist that overshot finds every image, and there its accuracy says little.

    Surpassed: by more than one standard error over all finalists' trials and images. Finalists are pooled, a pair for
    each finalist and seed, because all arms of the finals get the one ramp: what is good for the best of them alone
    must not cost the others. Pairs of one seed are alike (their gains' correlation over finalists was .0 to .3: digits,
    four methods, twelve seeds), which does little: an equal ramp surpassed in .13 to .19 of 400 made tables, nominally
    .16. The early ramp has the better of it, since finalists won their race with these seeds under it. A ramp under
    which a trial fails that ended well under the early one is passed over.
    """
    usual = reached[EARLY]
    best, gain = EARLY, 0.0
    for name, others in reached.items():
        if name == EARLY or any(set(its.scores) - set(mine.scores) for mine, its in zip(others, usual, strict=True)):
            continue
        pairs = [
            (mine.scores[seed], scores)
            for mine, its in zip(others, usual, strict=True)
            for seed, scores in sorted(its.scores.items())
        ]
        if not pairs or not baseline.scores:
            continue
        arm, other = zip(*pairs, strict=True)
        recall = common_range(list(baseline.scores.values()), arm, other)
        found = compare_curves(arm, other, seed=0, recall=recall).mean
        if np.quantile(found.draws, (1 - ONE_ERROR) / 2) > 0 and found.estimate > gain:
            best, gain = name, found.estimate
    return best


def describe_ramp(name: str) -> str:
    """A ramp's name with what it means, for people.

    >>> describe("late"), describe("at once")
    ('late (50 to 80 % of the training)', 'at once')
    """
    start, end = RAMPS[name]
    return f"{name} ({100 * start:g} to {100 * end:g} % of the training)" if end else name
