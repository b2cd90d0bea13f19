"""Whole curves compared: accuracy and false alarms at equal recall."""

import numpy as np
import pytest

from camri.decision import trace
from camri.decision.scores import Scores, condense
from camri.decision.stats import compare
from camri.errors import InputError
from camri.selection import common_range, compare_curves, recall_range


def models(strength, num=6, seed=0, num_images=600):
    """Scores of made models on the same images; a higher `strength` makes the right class stand out more."""
    labels = np.random.default_rng(99).integers(0, 4, num_images)
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(num):
        logits = rng.normal(size=(num_images, 4))
        logits[np.arange(num_images), labels] += strength
        found.append(condense(logits.astype(np.float32), labels, (1,)))
    return found


def everywhere(gap):
    """The differences at all of its recalls."""
    return [gap.at(place) for place in range(len(gap.recall))]


def test_the_same_models_differ_by_nothing():
    arm = models(1.5)
    gap = compare_curves(arm, arm, seed=0)
    assert gap.mean.value == 0
    assert gap.mean.p == 1
    assert -0.0035 < gap.mean.low < 0 < gap.mean.high < 0.0035  # 1.96/602: on other images they would differ
    assert all(one.value == 0 for one in everywhere(gap))


def test_a_better_model_is_above_and_a_worse_one_below():
    weak, strong = models(1.2, seed=1), models(2.0, seed=2)
    above, below = compare_curves(strong, weak, seed=0), compare_curves(weak, strong, seed=0)
    assert above.mean.low > 0.05
    assert below.mean.high < -0.05
    assert all(one.low > 0 for one in everywhere(above))


def views(seed, important, num_images=600):
    """Two models of the same images, each with its own view of them."""
    labels = np.arange(num_images) % 4
    rng = np.random.default_rng(seed)
    hardness = rng.normal(size=(num_images, 4)) + 2 * np.eye(4)[labels]
    return [condense(hardness + rng.normal(size=(num_images, 4)), labels, important) for _ in range(2)]


def alarms_at(scores, curve, recall):
    """The share of images that are of no important class and taken for one, at each recall, one by one."""
    is_other = ~np.isin(scores.labels, scores.important)
    return np.array([np.mean(is_other & (scores.predict(curve.value[s]) != -1)) for s in curve.reach(recall)])


def drawn_gaps(arm, baseline, recall, num_draws=300, figure="accuracy"):
    """Gaps at the recalls with both models shifted anew on images drawn with replacement: (num_draws, G)."""
    rng, found = np.random.default_rng(0), []
    for _ in range(num_draws):
        images = rng.integers(0, len(arm), len(arm))
        drawn = [
            Scores(one.labels[images], one.important, *(x[images] for x in (one.lead, one.rest_right, one.rest_spread)))
            for one in (arm, baseline)
        ]
        curves = [trace(one) for one in drawn]
        if figure == "alarms":
            found.append(np.subtract(*(alarms_at(s, c, recall) for s, c in zip(drawn, curves, strict=True))))
        else:
            found.append(np.subtract(*(curve.accuracy[curve.reach(recall)] for curve in curves)))
    return np.array(found)


@pytest.mark.parametrize(("important", "recall"), [((1,), [0.7, 0.9]), ((1, 2), [0.65, 0.75])])
@pytest.mark.parametrize("figure", ["accuracy", "alarms"])
def test_intervals_are_those_of_shifts_found_anew_on_other_images(important, recall, figure):
    # With shifts taken as given they are .99 and .49 as wide for one class, 1.04 and .68 for two.
    arm, baseline = views(3, important)
    gap = compare_curves([arm], [baseline], seed=0, recall=np.array(recall), figure=figure)
    drawn = drawn_gaps(arm, baseline, gap.recall, figure=figure)
    for found, wanted in zip((*everywhere(gap), gap.mean), (*drawn.T, drawn.mean(axis=1)), strict=True):
        assert found.draws.std() == pytest.approx(wanted.std(), rel=0.15)
    if figure == "alarms":
        mine, its = (alarms_at(one, trace(one), recall) for one in (arm, baseline))
        assert [one.value for one in everywhere(gap)] == pytest.approx(mine - its)
        assert gap.baseline == pytest.approx(its)
        return
    assert gap.at(0).value == pytest.approx(
        np.subtract(*(trace(one).accuracy[trace(one).reach(recall[0])] for one in (arm, baseline)))
    )


def pulls_one_by_one(scores, recall):
    """How each image pulls at the accuracy at a recall: its share of recall, found too much, times the slope there."""
    curve, labels = trace(scores), scores.labels
    at = curve.reach(recall)
    num = {index: int((labels == index).sum()) for index in scores.important}
    found = dict(zip(scores.important, curve.recall[at].tolist(), strict=True))
    luck = sum((found[k] * (1 - found[k]) + 1 / num[k]) / num[k] for k in num) ** 0.5 / len(num)
    low, high = (curve.reach(min(max(recall + step, 0.0), curve.mean_recall[-1])) for step in (-luck, luck))
    slope = (curve.accuracy[high] - curve.accuracy[low]) / (curve.mean_recall[high] - curve.mean_recall[low])
    right = scores.correct(curve.value[at])
    return [
        slope * len(labels) / (len(num) * num[label]) * (found[label] - is_right) if label in num else 0.0
        for label, is_right in zip(labels.tolist(), right.tolist(), strict=True)
    ]


def test_each_image_pulls_by_the_slope_over_one_standard_error_of_recall():
    arm, baseline = views(5, (1, 2), num_images=240)
    most = min(trace(one).mean_recall[-1] for one in (arm, baseline))
    recalls, groups = [0.6, 0.7, most], np.arange(240) // 3
    found = compare_curves([arm], [baseline], seed=0, recall=np.array(recalls), groups=groups)
    counted, pull = [], []
    for recall in recalls:
        counted.append([one.correct(trace(one).value[trace(one).reach(recall)]) for one in (arm, baseline)])
        pull.append(np.subtract(*(pulls_one_by_one(one, recall) for one in (arm, baseline))))
    for gap, sides, besides in zip(
        (*everywhere(found), found.mean),
        (*counted, np.mean(counted, axis=0)),
        (*pull, np.mean(pull, axis=0)),
        strict=True,
    ):
        wanted = compare(sides[0][None], sides[1][None], besides=besides[None], groups=groups, seed=0)
        assert gap.draws == pytest.approx(wanted.draws)


def test_models_of_one_accuracy_may_differ_in_false_alarms():
    # At recall 1 either is wrong of two images: one calls both important, the other takes them for each other.
    labels = np.array([1, 1, 0, 2, 0, 2])
    loud = np.array([[0, 9, 0], [0, 9, 0], [5, 0, 0], [0, 0, 5], [0, 9, 0], [0, 9, 0]], dtype=float)
    calm = loud.copy()
    calm[4], calm[5] = [0, 0, 5], [5, 0, 0]
    arm, baseline = (condense(one, labels, (1,)) for one in (calm, loud))
    recall = np.array([1.0])
    assert compare_curves([arm], [baseline], seed=0, recall=recall).mean.value == 0
    found = compare_curves([arm], [baseline], seed=0, recall=recall, figure="alarms")
    assert (found.mean.value, found.baseline[0]) == pytest.approx((-2 / 6, 2 / 6))
    calm[4] = [3, 3, 0]  # a tie goes to the first of the classes, which is not the important one
    tied = compare_curves([condense(calm, labels, (1,))], [baseline], seed=0, recall=recall, figure="alarms")
    assert tied.mean.value == pytest.approx(-2 / 6)
    with pytest.raises(InputError, match="figure='alarm' is not compared; did you mean 'alarms'"):
        compare_curves([arm], [baseline], seed=0, figure="alarm")


def test_a_shift_alone_moves_along_the_curve_and_not_above_it():
    plain = models(1.5)
    shifted = [
        type(one)(**{**vars(one), "lead": (one.lead.astype(np.float32) + 0.5).astype(one.lead.dtype)}) for one in plain
    ]
    assert shifted[0].recall()[0] > plain[0].recall()[0] + 0.03
    gap = compare_curves(shifted, plain, seed=0)
    assert gap.mean.value == pytest.approx(0, abs=0.003)  # leads are float16


def test_every_point_is_the_accuracy_at_that_recall():
    arm, baseline = models(1.6, seed=1), models(1.4, seed=2)
    grid = np.array([0.6, 0.8])
    gap = compare_curves(arm, baseline, seed=0, recall=grid)
    for place, recall in enumerate(grid):
        wanted = []
        for mine, its in zip(arm, baseline, strict=True):
            accuracies = []
            for one in (mine, its):
                curve = trace(one)
                accuracies.append(curve.accuracy[np.flatnonzero(curve.mean_recall >= recall)[0]])
            wanted.append(accuracies)
        assert gap.at(place).value == pytest.approx(np.diff(wanted, axis=1).mean() * -1)
        assert gap.baseline[place] == pytest.approx(np.mean(wanted, axis=0)[1])
    assert gap.mean.value == pytest.approx(np.mean([one.value for one in everywhere(gap)]))


def test_the_range_of_one_class_goes_from_the_baselines_recall_to_half_its_misses():
    baseline = models(1.5)
    start = np.mean([one.recall()[0] for one in baseline])
    grid = recall_range(baseline, num=5)
    assert grid[0] == pytest.approx(start)
    assert 1 - grid[-1] == pytest.approx((1 - start) / 2)
    assert np.diff(grid) == pytest.approx(np.full(4, (1 - start) / 8))


def test_the_range_of_several_classes_ends_half_way_to_what_a_shift_can_find():
    # Important: 1 and 2. One of the four is found, with an endless shift three: class 2 takes one of class 1.
    leads = np.array([[1.0, -9.0], [-1.0, 5.0], [-9.0, -3.0], [-9.0, -2.0], [-9.0, -9.0]])
    scores = condense(np.column_stack([np.zeros(5), leads]), [1, 1, 2, 2, 0], (1, 2))
    assert (scores.recall().mean(), trace(scores).mean_recall[-1]) == (0.25, 0.75)
    assert recall_range([scores], num=3).tolist() == [0.25, 0.375, 0.5]


def test_trials_that_cannot_be_paired_are_refused():
    with pytest.raises(InputError, match="3 and 2 trials cannot be paired"):
        compare_curves(models(1.5, num=3), models(1.5, num=2), seed=0)


def test_a_recall_that_no_common_shift_reaches_is_refused_and_not_in_the_range():
    # Important: 1 and 2. The second image comes last, above a shift of 3; `blocked` has the third taken by class 2.
    leads = np.array([[1.0, -9.0], [-9.0, -3.0], [5.0, -1.0], [-9.0, 1.0], [-9.0, -2.0]])
    labels = [1, 2, 1, 2, 0]
    full = condense(np.column_stack([np.zeros(5), leads]), labels, (1, 2))
    leads[2] = -1.0, 5.0
    blocked = condense(np.column_stack([np.zeros(5), leads]), labels, (1, 2))
    assert (trace(full).mean_recall[-1], trace(blocked).mean_recall[-1]) == (1.0, 0.75)
    for arm, baseline in ((full, blocked), (blocked, full)):
        with pytest.raises(InputError, match=r"recall=1 is not reached by every model; give recalls up to 0\.75$"):
            compare_curves([arm, arm], [baseline, baseline], seed=0, recall=np.array([0.5, 1.0]))
        found = compare_curves([arm, arm], [baseline, baseline], seed=0, recall=np.array([0.75]))
        assert abs(found.mean.value) == pytest.approx(0.2)  # 4 of 5 at no shift, 3 of 5 at the last
    assert compare_curves([blocked], [full], seed=0).recall.tolist() == [0.75] * 9  # else .75 to .875
    assert compare_curves([full], [blocked], seed=0).recall.tolist() == np.linspace(0.5, 0.625, 9).tolist()
    assert common_range([full], [full]).tolist() == np.linspace(0.75, 0.875, 9).tolist()
    assert common_range([full], [full], [blocked]).tolist() == [0.75] * 9
    leads[[0, 2]] = -1.0, 5.0  # no shift finds class 1: not even the baseline's own recall is reached
    worst = condense(np.column_stack([np.zeros(5), leads]), labels, (1, 2))
    assert common_range([full], [worst]).tolist() == [0.5] * 9
