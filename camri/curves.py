"""Two settings by their whole curves: accuracy or false alarms at equal recall, where no shift has to be chosen.

Near its best accuracy a curve is flat, so the recall reached at a given accuracy is a noisy number: on CIFAR-10's cat,
ten trials, shifted cross-entropy's has a standard deviation of 5.4 points over seeds. The accuracy at a given recall
has one of 0.2 (results/cifar10).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from camri.errors import InputError, closest
from camri.metrics import Array, Scores, divide
from camri.posthoc import SLACK, trace
from camri.stats import Difference, compare

NUM_RECALLS = 9
Figure = Literal["accuracy", "alarms"]  # alarms: the share of all images that are taken for a class and of none of them
ENDLESS = 1e5  # beyond every lead: they are float16, 65,504 at most


@dataclass(frozen=True, eq=False)
class Gap:
    """A figure of an arm less the baseline's: the mean over `recall` (G,), and `at(place)` one of these recalls.

    `baseline` is the baseline's, mean over trials (G,). A single recall takes as long as the mean, and few are looked
    at, so each is found when it is asked for.
    """

    recall: Array
    baseline: Array
    mean: Difference
    at: Callable[[int], Difference]


def recall_range(baseline: Sequence[Scores], num: int = NUM_RECALLS) -> Array:
    """Recalls to compare at: from the unshifted baseline's mean to where half of what a shift can find is found.

    An endless shift finds every image of one important class. Of several it does not: one class takes some from
    another. Close to what it finds, all other classes are given up, and nobody works there.

    >>> from camri.metrics import condense
    >>> recall_range([condense(np.array([[0.0, 1.0], [1.0, 0.0]]), [1, 1], (1,))], num=3)
    array([0.5  , 0.625, 0.75 ])
    """
    start = float(np.mean([one.recall().mean() for one in baseline]))
    reached = float(np.mean([_reached(one) for one in baseline]))
    return np.linspace(start, (start + reached) / 2, num)


def common_range(baseline: Sequence[Scores], *arms: Sequence[Scores]) -> Array:
    """The baseline's :func:`recall_range`, cut to what every model of the baseline and the arms can reach."""
    grid, most = recall_range(baseline), min(_reached(one) for side in (baseline, *arms) for one in side)
    return np.linspace(min(grid[0], most), min(grid[-1], most), len(grid))


def _reached(scores: Scores) -> float:
    """The mean recall under an endless shift."""
    return float(scores.recall(ENDLESS).mean())


def compare_curves(
    arm: Sequence[Scores],
    baseline: Sequence[Scores],
    *,
    seed: int,
    recall: Array | None = None,
    groups: Array | None = None,
    figure: Figure = "accuracy",
) -> Gap:
    """The arm's accuracy, or false alarms, less the baseline's at equal recall, with intervals over seeds and images.

    A false alarm is an image of no important class that is taken for one; their share is of all images, as accuracy is.
    Two models of one accuracy and recall may differ in it: others then confuse the other classes with each other.

    Test scores of the same images, trial by trial of the same seeds. Each model is shifted on these very images until
    it reaches a recall, in both arms alike, so nothing is chosen and nothing can be lucky; it says which curve is
    higher, not what somebody gets who must choose a shift beforehand. The intervals hold that the shifts were
    found on the images that are judged: coverage of nominal 95 % in docs/numbers.md. `groups`: as in `stats.compare`.

    >>> from camri.metrics import condense
    >>> def scores(*leads):
    ...     return condense(np.array([[0.0, lead] for lead in leads]), [1, 1, 0, 0], important=(1,))
    >>> better, worse = scores(1.0, -0.5, -1.0, -2.0), scores(1.0, -1.5, -1.0, -2.0)
    >>> found = compare_curves([better, better], [worse, worse], seed=0, recall=np.array([0.5, 1.0]))
    >>> [float(found.at(place).estimate) for place in (0, 1)], float(found.mean.estimate)
    ([0.0, 0.25], 0.125)
    >>> float(compare_curves([better], [worse], seed=0, recall=np.array([1.0]), figure="alarms").mean.estimate)
    -0.25
    """
    if len(arm) != len(baseline):
        raise InputError(f"{len(arm)} and {len(baseline)} trials cannot be paired; give the same seeds of both")
    if figure not in get_args(Figure):
        raise InputError(f"figure={figure!r} is not compared; {closest(figure, get_args(Figure))}")
    grid = common_range(baseline, arm) if recall is None else np.asarray(recall, dtype=np.float64)
    reached = min(_reached(one) for one in (*arm, *baseline))
    if grid.max() > reached + SLACK:
        raise InputError(f"recall={grid.max():g} is not reached by every model; give recalls up to {reached:.4g}")
    (mine, my_pull), (its, its_pull) = (_outcomes_of(side, grid, figure) for side in (arm, baseline))
    pull = my_pull - its_pull

    def at(place: int) -> Difference:
        return compare(mine[:, place], its[:, place], besides=pull[:, place], groups=groups, seed=seed)

    mean = compare(mine.mean(axis=1), its.mean(axis=1), besides=pull.mean(axis=1), groups=groups, seed=seed)
    return Gap(grid, its.mean(axis=(0, 2)), mean, at)


def _outcomes_of(side: Sequence[Scores], grid: Array, figure: Figure) -> tuple[Array, Array]:
    """What the figure counts when each model is shifted to each recall, and how each image pulls at it: (S, G, N)."""
    counted, pulls = zip(*(_outcomes_at(one, grid, figure) for one in side), strict=True)
    return np.array(counted), np.array(pulls)


def _outcomes_at(scores: Scores, grid: Array, figure: Figure) -> tuple[Array, Array]:
    """What the figure counts when one model is shifted to each recall, and how each image pulls at it: (G, N).

    An important image that is found makes recall higher by its share, and a smaller shift reaches what is wanted: the
    figure goes back along the curve by the slope there. The slope is taken over one standard error of recall to
    either side, which is how far the luck of the images moves it.
    """
    curve = trace(scores)
    states = curve.reach(grid)
    correct = np.array([scores.correct(shift) for shift in curve.shift[states]], dtype=np.float64)
    recalls, num = curve.recall[states], curve.num
    error = np.sqrt(np.sum((recalls * (1 - recalls) + 1 / num) / num, axis=1)) / len(num)
    low, high = (curve.reach((grid + step).clip(0.0, curve.mean_recall[-1])) for step in (-error, error))
    own = scores.labels[:, None] == np.array(scores.important)
    counted, rise = correct, curve.accuracy[high] - curve.accuracy[low]
    if figure == "alarms":
        counted, more, fewer = (
            np.array([scores.false_alarms(shift) for shift in curve.shift[at]], dtype=np.float64)
            for at in (states, high, low)
        )
        rise = (more - fewer).mean(axis=1)
    slope = divide(rise, curve.mean_recall[high] - curve.mean_recall[low])
    shares = own @ (len(scores) / (len(num) * num))
    return counted, np.nan_to_num(slope)[:, None] * shares * (recalls @ own.T - correct)
