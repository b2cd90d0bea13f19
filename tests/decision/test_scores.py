"""Counts and condensed scores: what a shift does, told from few bytes as from the full logits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camri.decision import counts as metrics
from camri.decision.counts import confusion, reliability
from camri.decision.scores import condense, pool
from camri.errors import InputError

# Five images, three classes, class 1 important.
LOGITS = np.array([[2.0, 1.0, 0.0], [0.0, 1.5, 1.0], [1.0, 0.0, 3.0], [4.0, 1.0, 2.0], [0.0, 1.0, 2.5]], np.float32)
LABELS = np.array([1, 1, 2, 2, 1])


def shift_by_hand(logits, important, shift):
    moved = np.asarray(logits, np.float64).copy()
    moved[:, list(important)] += shift
    return moved


def softmax(logits):
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def made_logits(num, num_classes, seed, dtype=np.float32, coarse=False):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (num, num_classes))
    return (np.round(logits * 2) / 2 if coarse else logits).astype(dtype), rng.integers(0, num_classes, num)


def test_confusion_has_true_classes_in_rows():
    counts = confusion([1, 1, 0, 2, 1], labels=[1, 0, 0, 2, 2], num_classes=4)
    assert counts.tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    assert counts.dtype == np.int64
    np.testing.assert_array_equal(metrics.recall(counts), [0.5, 1.0, 0.5, np.nan])
    np.testing.assert_array_equal(metrics.precision(counts), [1.0, 1 / 3, 1.0, np.nan])
    assert metrics.accuracy(counts) == 0.6
    assert confusion(np.array([1, 0], np.uint64), np.array([1, 1], np.uint8), 2).tolist() == [[0, 0], [1, 1]]
    assert confusion([], [], 2).tolist() == [[0, 0], [0, 0]]


@pytest.mark.filterwarnings("error")
def test_empty_classes_are_nan_without_a_warning():
    empty = np.zeros((2, 2), np.int64)
    assert np.isnan(metrics.recall(empty)).all()
    assert np.isnan(metrics.accuracy(empty))
    assert np.isnan(condense(LOGITS, [0, 0, 0, 0, 0], (1,)).recall()).all()
    assert np.isnan(condense(LOGITS, LABELS, (1,)).precision(-10.0)).all()


@pytest.mark.parametrize(
    ("predicted", "labels", "message"),
    [
        ([0, 3], [0, 1], "predicted are whole numbers from 0 to 2, not 3"),
        ([0, 1], [-1, 1], "labels.*not -1"),
        ([0.0, 1.0], [0, 1], "predicted are whole numbers from 0 to 2, not float64"),
        ([0, 1, 1], [0, 1], r"predicted \(3,\) and labels \(2,\) do not fit"),
        ([[0, 1]], [[0, 1]], r"predicted \(1, 2\) and labels \(1, 2\) do not fit"),
    ],
)
def test_confusion_refuses_what_is_no_class(predicted, labels, message):
    with pytest.raises(InputError, match=message):
        confusion(predicted, labels, 3)


def test_scores_of_five_images_by_hand():
    scores = condense(LOGITS, LABELS, important=(1,))
    assert scores.lead[:, 0].tolist() == [-1.0, 0.5, -3.0, -3.0, -1.5]
    assert scores.lead.dtype == scores.rest_spread.dtype == np.float16
    assert scores.rest_right.tolist() == [False, False, True, False, False]
    np.testing.assert_allclose(scores.rest_spread, np.log1p(np.exp([-2.0, -1, -2, -2, -2.5])), atol=1e-3)
    # Without a shift image 1 alone is found; with 1.25 image 0 as well; with 3.5 all five are called class 1.
    for shift, predicted, hits, accuracy, precision in [
        (0.0, [-1, 1, -1, -1, -1], 1, 2 / 5, 1.0),
        (1.25, [1, 1, -1, -1, -1], 2, 3 / 5, 1.0),
        (3.5, [1, 1, 1, 1, 1], 3, 3 / 5, 3 / 5),
    ]:
        assert scores.predict(shift).tolist() == predicted
        assert scores.hits(shift).tolist() == [hits]
        assert scores.num.tolist() == [3]
        assert scores.recall(shift).tolist() == [hits / 3]
        assert scores.accuracy(shift) == accuracy
        assert scores.precision(shift).tolist() == [precision]


def test_two_important_classes_are_counted_apart():
    scores = condense(LOGITS, LABELS, important=(1, 2))
    # Class 0 wins images 0 and 3, class 1 image 1, class 2 images 2 and 4; class 2 raised by 3.5 wins all.
    assert scores.num.tolist() == [3, 2]
    assert scores.hits().tolist() == [1, 1]
    assert scores.recall().tolist() == [1 / 3, 1 / 2]
    assert scores.precision().tolist() == [1.0, 1 / 2]
    assert scores.recall([0.0, 3.5]).tolist() == [0.0, 1.0]
    np.testing.assert_array_equal(scores.precision([0.0, 3.5]), [np.nan, 2 / 5])
    assert (scores.called().tolist(), scores.called([0.0, 3.5]).tolist()) == ([1, 2], [0, 5])
    # Every image is of an important class: what is taken for the other one is wrong, and no false alarm.
    assert not scores.false_alarms([0.0, 3.5]).any()


def test_false_alarms_are_of_no_important_class_and_taken_for_one():
    scores = condense(LOGITS, LABELS, important=(1,))  # images 2 and 3 are of class 2
    for shift, alarms in ((0.0, []), (1.25, []), (3.5, [2, 3])):
        assert np.flatnonzero(scores.false_alarms(shift)).tolist() == alarms
    other = condense(LOGITS, [1, 0, 2, 2, 0], important=(1, 2))  # 1 is taken for class 1, 4 for class 2; both are of 0
    assert other.false_alarms().tolist() == [False, True, False, False, True]
    assert other.precision().tolist() == [0.0, 1 / 2]


@pytest.mark.parametrize("shift", [0.0, 0.7, -0.4, np.array([1.1, -0.3])])
@pytest.mark.parametrize("num_classes", [3, 10])
def test_condensed_scores_agree_with_full_logits(shift, num_classes):
    logits, labels = made_logits(4000, num_classes, seed=1)
    important = (0, 2)
    scores, full = condense(logits, labels, important), shift_by_hand(logits, important, shift)
    predicted = full.argmax(axis=1)
    clear = np.diff(np.sort(full, axis=1)[:, -2:], axis=1)[:, 0] > 0.02  # half precision: 3 significant digits
    assert clear.mean() > 0.98
    expected = np.where(np.isin(predicted, important), predicted, -1)
    np.testing.assert_array_equal(scores.predict(shift)[clear], expected[clear])
    np.testing.assert_array_equal(scores.correct(shift)[clear], (predicted == labels)[clear])
    np.testing.assert_allclose(scores.confidence(shift), softmax(full).max(axis=1), atol=4e-3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("coarse", [False, True])
def test_at_shift_zero_condensed_scores_are_argmax(dtype, coarse):
    logits, labels = made_logits(20000, 5, seed=2, dtype=dtype, coarse=coarse)
    for important in [(0,), (4,), (2,), (1, 3), (0, 2, 3, 4)]:
        predicted = logits.argmax(axis=1)
        scores = condense(logits, labels, important)
        np.testing.assert_array_equal(scores.predict(), np.where(np.isin(predicted, important), predicted, -1))
        np.testing.assert_array_equal(scores.correct(), predicted == labels)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=4, max_size=4),
    st.lists(st.sampled_from([0.0, 1e-30, -1e-30, 1e-7, -1e-7, 3e-8, 1e6]), min_size=4, max_size=4),
)
def test_no_lead_loses_its_sign_and_no_two_their_order(base, nudge):
    logits = np.array([base, nudge, np.float32(base[0]) + np.array(nudge)], np.float32)
    for important in [(0,), (3,), (1, 2), (0, 2, 3)]:
        scores = condense(logits, [0, 1, 2], important)
        assert np.isfinite(scores.lead).all()
        np.testing.assert_array_equal(scores.correct(), logits.argmax(axis=1) == [0, 1, 2])
        others = np.delete(logits, important, axis=1).max(axis=1)
        for column, index in enumerate(important):
            lead = scores.lead[:, column]
            assert (lead[logits[:, index] > others] > 0).all()
            assert (lead[logits[:, index] < others] < 0).all()
        ranks = np.argsort(-scores.lead.astype(np.float64), axis=1, kind="stable")
        np.testing.assert_array_equal(
            ranks, np.argsort(-logits[:, list(important)].astype(float), axis=1, kind="stable")
        )


def test_leads_end_at_60000():
    assert condense(np.array([[0.0, 1e6], [1e6, 0.0], [0.0, 59968.0]]), [0, 1, 1], (1,)).lead.tolist() == [
        [60000.0],
        [-60000.0],
        [59968.0],
    ]


def test_equal_logits_go_to_the_lower_index():
    assert condense(np.zeros((1, 3), np.float32), [0], (0,)).predict().tolist() == [0]
    assert condense(np.zeros((1, 3), np.float32), [0], (1,)).predict().tolist() == [-1]
    assert condense(np.zeros((1, 3), np.float32), [0], (2, 1)).predict().tolist() == [-1]
    assert condense(np.array([[0.0, 1.0, 1.0]]), [0], (2, 1)).predict().tolist() == [1]
    assert condense(np.array([[0.0, 1.0, 1.0001]]), [0], (2, 1)).predict().tolist() == [2]
    # What a tie leaves is the smallest lead there is, or none.
    assert condense(np.zeros((1, 3)), [0], (0, 2)).lead.tolist() == [[2.0**-24, 0.0]]
    assert condense(np.zeros((1, 3)), [0], (0, 1)).lead.tolist() == [[2.0**-23, 2.0**-24]]


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("kept", [(1,), (3,), (1, 6), (3, 6)])
def test_fewer_important_classes_are_what_condensing_them_gives(kept, coarse):
    logits, labels = made_logits(5000, 8, seed=3, coarse=coarse)
    fewer, direct = condense(logits, labels, (1, 3, 6)).only(kept), condense(logits, labels, kept)
    assert fewer.important == direct.important == kept
    assert fewer.lead.dtype == fewer.rest_spread.dtype == np.float16
    np.testing.assert_allclose(fewer.lead, direct.lead, atol=0.02)
    np.testing.assert_allclose(fewer.rest_spread, direct.rest_spread, atol=0.01)
    np.testing.assert_array_equal(fewer.rest_right, direct.rest_right)
    np.testing.assert_array_equal(fewer.predict(), direct.predict())
    np.testing.assert_allclose(fewer.confidence(0.8), direct.confidence(0.8), atol=6e-3)


def test_only_refuses_classes_that_were_not_kept():
    scores = condense(LOGITS, LABELS, (1, 2))
    assert scores.only((2, 1)) is scores
    with pytest.raises(InputError, match=r"important=\(0,\) is not among the important classes \(1, 2\)"):
        scores.only((0,))


@pytest.mark.parametrize(
    ("logits", "labels", "important", "message"),
    [
        (LOGITS, LABELS[:2], (1,), r"logits \(5, 3\) and labels \(2,\) do not fit"),
        (LOGITS, LABELS, (3,), r"important=\(3,\) is not allowed; give at least one and not all of 0 … 2"),
        (LOGITS, LABELS, (), r"important=\(\) is not allowed"),
        (LOGITS, LABELS, (-1, 1), r"important=\(-1, 1\) is not allowed"),
        (LOGITS, LABELS, (1, 1), r"important=\(1, 1\) is not allowed"),
        (LOGITS, LABELS, 1, "important=1 is not allowed; give class indices"),
        (LOGITS, LABELS, [1.7], r"important=\[1.7\] is not allowed; give class indices"),
        (LOGITS, LABELS, (0, 1, 2), "not all of 0 … 2"),
        (LOGITS, LABELS + 1, (1,), "labels are whole numbers from 0 to 2, not 3"),
        (np.where(LOGITS > 3, np.nan, LOGITS), LABELS, (1,), "^1 of 5 images have logits that are not finite"),
    ],
)
def test_condense_refuses_by_name(logits, labels, important, message):
    with pytest.raises(InputError, match=message):
        condense(logits, labels, important)


def test_pooled_trials_add_up():
    scores = condense(LOGITS, LABELS, (1,))
    other = condense(LOGITS[::-1] + 1.0, LABELS, (1,))
    both = pool([scores, other])
    assert both.hits(1.25).tolist() == [int(scores.hits(1.25)[0] + other.hits(1.25)[0])]
    assert len(both) == 10
    with pytest.raises(InputError, match="different important classes"):
        pool([scores, condense(LOGITS, LABELS, (2,))])


def test_calibration_by_hand():
    confidence = np.array([0.5, 0.55, 0.95, 0.85, 1.0])
    bins = reliability(confidence, np.array([1, 0, 1, 0, 1], bool), num_bins=10)
    assert bins.count.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 1, 2]
    np.testing.assert_array_equal(bins.accuracy[[4, 5, 8, 9]], [1, 0, 0, 1])
    np.testing.assert_allclose(bins.confidence[9], 0.975)
    assert np.isnan(bins.accuracy[0])
    np.testing.assert_allclose(bins.ece, (0.5 + 0.55 + 0.85 + 2 * 0.025) / 5)
    low = reliability(np.array([0.0, 0.2]), np.array([False, True]))  # no image in the upper bins
    assert low.count.tolist() == [1, 0, 1] + 12 * [0]
    np.testing.assert_array_equal(low.confidence, [0.0, np.nan, 0.2] + 12 * [np.nan])
    np.testing.assert_array_equal(low.accuracy, [0.0, np.nan, 1.0] + 12 * [np.nan])


def test_an_honest_model_is_calibrated_and_a_shift_makes_it_less_so():
    rng = np.random.default_rng(4)
    logits = rng.normal(0, 2, (20000, 4))
    labels = (softmax(logits).cumsum(axis=1) > rng.random((20000, 1))).argmax(axis=1)
    scores = condense(logits, labels, (2,))
    before = reliability(scores.confidence(), scores.correct()).ece
    after = reliability(scores.confidence(1.5), scores.correct(1.5)).ece
    assert before < 0.015 < 0.08 < after


@pytest.mark.parametrize("important", [(1,), (0, 3)])
def test_odds_are_the_log_odds_against_all_other_classes(important):
    logits = np.random.default_rng(0).normal(scale=3, size=(200, 5))
    scores = condense(logits, np.zeros(200, dtype=int), important).odds()
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    wanted = np.log(p / (1 - p))[:, list(important)]
    np.testing.assert_allclose(scores.lead, wanted, atol=0.02)  # leads are kept in half precision
    bias = -np.log(0.3 / 0.7)
    predicted = scores.predict(bias)
    passes = p[:, list(important)].max(axis=1) > 0.3
    away = np.abs(p[:, list(important)] - 0.3).min(axis=1) > 0.01
    np.testing.assert_array_equal((predicted != -1)[away], passes[away])
