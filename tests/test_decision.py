"""The shift and its curve, against hand-counted images and against trying every shift."""

import math
from dataclasses import replace

import numpy as np
import pytest

from camri.decision import Prior, _order, choose_shift, promise, trace
from camri.errors import InputError
from camri.metrics import condense

# Six images of class 0 or 1; the logit of class 0 is 0 throughout, so the lead of class 1 is its logit.
LEADS = np.array([0.5, -1.0, -2.0, -1.5, -3.0, 0.25])
LABELS = np.array([1, 1, 1, 0, 0, 0])


def scores_of(leads, labels):
    return condense(np.stack([np.zeros(len(leads)), leads], axis=1), labels, (1,))


def made_scores(num=400, num_classes=6, important=(1, 4), seed=0, signal=1.5):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, num)
    logits = rng.normal(0, 1.5, (num, num_classes))
    logits[np.arange(num), labels] += signal
    return condense(logits.astype(np.float32), labels, important)


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_breakpoints_are_sorted_as_numpy_sorts_them(kind):
    drawn = np.random.default_rng(0).normal(0, 2, 5000).astype(kind).astype(np.float64)
    values = np.concatenate([drawn, drawn[:99], [0.0, -0.0, 60000.0, -60000.0, 6e-8, -6e-8]])
    assert _order(values).tolist() == np.argsort(values, kind="stable").tolist()
    assert _order(values * 1e9).tolist() == np.argsort(values * 1e9, kind="stable").tolist()  # beyond halves


def test_the_curve_of_six_images_by_hand():
    curve = trace(scores_of(LEADS, LABELS))
    # Going up, class 1 wins: image 0 above −.5, 5 above −.25, 1 above 1, 3 above 1.5, 2 above 2, 4 above 3.
    assert curve.value.tolist() == [-1.5, -0.375, 0.0, 1.25, 1.75, 2.5, 4.0]
    assert curve.hits[:, 0].tolist() == [0, 1, 1, 2, 2, 3, 3]
    assert curve.predicted[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert curve.correct.tolist() == [3, 4, 3, 4, 3, 4, 3]
    assert curve.reach(0.5) == 3
    assert curve.reach([0.0, 1 / 3, 2 / 3, 1.0]).tolist() == [0, 1, 3, 5]
    assert curve.precision[curve.reach(1.0)].tolist() == [3 / 5]
    for wrong in (1.5, [0.5, 1.5], [-0.1, 0.5]):
        with pytest.raises(InputError, match=r"recall=.* is not allowed"):
            curve.reach(wrong)


@pytest.mark.parametrize("important", [(2,), (1, 4), (0, 3, 5)])
def test_the_curve_is_what_each_of_its_shifts_does(important):
    scores = made_scores(important=important)
    curve = trace(scores)
    assert (np.diff(curve.value) > 0).all()
    assert (np.diff(curve.mean_recall) >= 0).all()
    assert 0.0 in curve.value
    for state in range(0, len(curve.value), 7):
        shift = curve.value[state]
        np.testing.assert_array_equal(curve.recall[state], scores.recall(shift))
        np.testing.assert_array_equal(curve.precision[state], scores.precision(shift))
        assert curve.accuracy[state] == scores.accuracy(shift)
    # Complete: any other shift is in one of the states.
    states = {(tuple(hits), correct) for hits, correct in zip(curve.hits.tolist(), curve.correct.tolist(), strict=True)}
    for shift in np.linspace(-8, 8, 101):
        assert (tuple(scores.hits(shift).tolist()), int(scores.correct(shift).sum())) in states


def test_images_that_are_level_change_together():
    curve = trace(scores_of([-1.0, -1.0, -1.0], [1, 0, 1]))
    assert curve.value.tolist() == [0.0, 2.0]
    assert curve.correct.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("floor", "expected"),
    [
        (0.5, (2.5, 1.0, 4 / 6)),  # all three found; not 4.0, which finds no more
        (4 / 6, (2.5, 1.0, 4 / 6)),  # equal to the floor is not below it
        (0.7, None),
    ],
)
def test_the_chosen_shift_of_six_images(floor, expected):
    found = choose_shift(scores_of(LEADS, LABELS), accuracy_floor=floor)
    assert (found if found is None else (*found.shift, *found.recall, found.accuracy)) == expected


def test_equal_recall_takes_the_smaller_shift_and_the_floor_binds():
    leads, labels = [-1.0, -2.0, -3.0, -9.0], [1, 0, 0, 0]
    found = choose_shift(scores_of(leads, labels), accuracy_floor=0.5)
    assert (found.shift, found.accuracy) == ((1.5,), 1.0)
    # The last image of class 1 lies behind two of class 0: the floor keeps the shift before it.
    leads, labels = [-1.0, -2.0, -3.0, -4.0, -9.0], [1, 0, 0, 1, 0]
    assert choose_shift(scores_of(leads, labels), accuracy_floor=0.8).recall == (0.5,)
    assert choose_shift(scores_of(leads, labels), accuracy_floor=0.6).recall == (1.0,)


def test_a_shift_is_negative_only_where_allowed():
    leads, labels = [2.0, 1.0, 1.0, 1.0], [1, 0, 0, 0]
    assert choose_shift(scores_of(leads, labels), accuracy_floor=0.9) is None
    found = choose_shift(scores_of(leads, labels), accuracy_floor=0.9, negative=True)
    assert (found.shift, found.recall, found.accuracy) == ((-1.5,), (1.0,), 1.0)
    assert choose_shift(scores_of(leads, labels), accuracy_floor=0.1).shift == (0.0,)


def test_of_equal_recalls_no_shift_wins_over_one_up_and_one_down():
    found = choose_shift(scores_of([1.0, -2.0], [1, 0]), accuracy_floor=0.4)  # at 3 all is found too
    assert (found.shift, found.accuracy) == ((0.0,), 1.0)
    found = choose_shift(scores_of([3.0, 1.0, -1.0], [1, 0, 0]), accuracy_floor=0.5, negative=True)  # and at −2
    assert (found.shift, found.recall, found.accuracy) == ((0.0,), (1.0,), 2 / 3)


def test_models_that_share_a_shift_are_counted_together():
    one, other = scores_of([-1.0, -5.0], [1, 0]), scores_of([-3.0, -5.0], [1, 0])
    assert choose_shift(one, accuracy_floor=1.0).shift == (3.0,)
    assert choose_shift([one, other], accuracy_floor=1.0).shift == (4.0,)


def test_the_accuracy_to_expect_of_six_images_by_hand():
    scores = scores_of(LEADS, LABELS)
    curve = trace(scores)
    # Two classes: an image with a lead x is of class 1 with 1 / (1 + exp(−x)), so to take it adds tanh(x / 2) image.
    thought = [-math.tanh(0.25) - math.tanh(0.125), -math.tanh(0.125), 0.0]
    for lead in (-1.0, -1.5, -2.0, -3.0):
        thought.append(thought[-1] + math.tanh(lead / 2))
    seen = curve.correct - 3
    half = Prior(accuracy=0.5, share=2 / 6, num_rows=6).weigh(curve, 6)
    np.testing.assert_allclose(half, 0.5 + (seen + thought) / 12, atol=1e-3)  # leads are kept in half precision
    quarter = Prior(0.5, 2 / 6, 18).weigh(curve, 6)
    np.testing.assert_allclose(quarter, 0.5 + (0.25 * seen + 0.75 * np.array(thought)) / 6, atol=1e-3)
    # Told what each image gains, it takes that for its probabilities: LEADS' own order counts, not the gains'.
    gain = np.array([0.0, 0.0, 0.4, 0.3, 0.2, 0.1])
    rising = [0.0, *np.cumsum(gain[np.argsort(-np.array(LEADS))])]
    told = Prior(0.5, 2 / 6, 6).weigh(curve, 6, gain)
    np.testing.assert_allclose(told, 0.5 + (seen + rising - np.float64(rising[2])) / 12, atol=1e-12)
    assert choose_shift(scores, accuracy_floor=0.5).shift == (2.5,)
    found = choose_shift(scores, accuracy_floor=0.5, prior=Prior(0.5, 2 / 6, 6))
    assert (found.shift, found.recall) == ((1.25,), (2 / 3,))
    assert found.accuracy == pytest.approx(0.5 + (1 + math.tanh(-0.5)) / 12)
    assert choose_shift(scores, accuracy_floor=0.5, prior=Prior(0.5, 2 / 6, 18)).shift == (0.0,)
    # The same images seen by two models are six all the same.
    assert choose_shift([scores, scores], accuracy_floor=0.5, prior=Prior(0.5, 2 / 6, 6)).accuracy == found.accuracy


def test_of_a_model_that_seems_better_than_the_baseline_rows_are_believed_in_part_and_of_a_worse_one_wholly():
    scores = scores_of(LEADS, LABELS)
    curve = trace(scores)
    start = int(np.flatnonzero(curve.value == 0.0)[0])  # 3 of 6 are right
    assert Prior(0.3, 2 / 6, 18).weigh(curve, 6)[start] == pytest.approx(0.3 + 0.2 / 4)
    assert Prior(0.7, 2 / 6, 18).weigh(curve, 6)[start] == pytest.approx(0.5)
    np.testing.assert_allclose(Prior(0.3, 2 / 6, 0).weigh(curve, 6), curve.accuracy)


@pytest.mark.parametrize("important", [(1,), (1, 4)])
def test_what_a_method_tilted_is_the_same_to_a_prior(important):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, 200)
    logits = np.round(1.5 * rng.normal(size=(200, 6)) + 2.0 * np.eye(6)[labels], 3)
    tilted = logits + 2.0 * np.isin(np.arange(6), important)
    plain, method = (condense(one, labels, important) for one in (logits, tilted))
    prior = Prior(plain.accuracy(), float((plain.predict() != -1).mean()), 100)
    one, other = (choose_shift(s, accuracy_floor=prior.accuracy, negative=True, prior=prior) for s in (plain, method))
    assert one.shift[0] > 0
    assert list(other.shift) == pytest.approx([shift - 2.0 for shift in one.shift], abs=0.01)
    assert other.recall == one.recall
    assert other.accuracy == pytest.approx(one.accuracy, abs=1e-3)


def test_with_a_prior_few_rows_are_not_overfitted():
    """The best possible model, so that every shift costs: on average 1.2 points, and 0.05 with a prior."""

    def rows(num, seed):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 4, num)
        return condense(1.8 * (rng.normal(size=(num, 4)) + 1.8 * np.eye(4)[labels]), labels, (0,))

    fresh = rows(20_000, 99)
    lost, careful = [], []
    for draw in range(40):
        scores = rows(100, [1, draw])
        accuracy = scores.accuracy()
        prior = Prior(accuracy, float((scores.predict() != -1).mean()), 500)
        free = choose_shift(scores, accuracy_floor=accuracy)
        held = choose_shift(scores, accuracy_floor=accuracy, prior=prior)
        lost.append(fresh.accuracy() - fresh.accuracy(free.shift))
        careful.append(fresh.accuracy() - fresh.accuracy(held.shift))
    assert np.mean(lost) > 0.008
    assert np.mean(careful) < 0.002
    assert np.max(careful) < 0.01


@pytest.mark.parametrize("floor", [85, 1.01, math.nan])
def test_a_floor_that_no_accuracy_can_be_is_refused(floor):
    with pytest.raises(InputError, match=f"accuracy_floor={floor} is not allowed; give a share of at most 1"):
        choose_shift(made_scores(), accuracy_floor=floor)


def test_a_class_without_held_out_images_is_refused():
    with pytest.raises(InputError, match=r"important classes \[1\] have no held-out data"):
        choose_shift(scores_of([0.5, 0.3], [0, 0]), accuracy_floor=0.0)
    with pytest.raises(InputError, match=r"important classes \[2\] have no held-out data"):
        choose_shift(condense(np.eye(3), [0, 1, 1], (1, 2)), accuracy_floor=0.0)


def test_no_shift_moves_a_probability_of_exactly_0_or_1():
    with np.errstate(divide="ignore"):
        lead = np.log([[0.0], [0.5], [1.0], [0.2]]) - np.log([[1.0], [0.5], [0.0], [0.8]])
    scores = replace(scores_of([0.0] * 4, [1, 1, 1, 0]), lead=lead)
    curve = trace(scores)
    assert np.isfinite(curve.value).all()
    assert curve.hits[:, 0].tolist() == [1, 2, 2]
    assert promise(scores, at_least=0.5, confidence=0.5, rule="shift").hits[0] == 2
