"""Calibration: what scikit-learn fits with the same ridge, finite, and of many rows a part."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from camri.decision import Calibration, Probabilities, exact
from camri.decision.calibrate import MOST_ROWS
from tests.decision.made import rows, softmax


def chances(logits, found, important):
    """Calibrated probabilities, of the formula alone."""
    return softmax(found.slope * logits + found.constant * np.isin(np.arange(logits.shape[1]), important))


@pytest.mark.parametrize("num", [200, 40])
def test_it_is_what_scikit_learn_fits_with_the_same_ridge(num):
    drawn = np.random.default_rng(0)
    labels = drawn.integers(0, 2, num)
    logits = 3 * (drawn.normal(size=(num, 2)) + 1.5 * np.eye(2)[labels]) - [0, 2.0]
    scores = exact(logits, labels, [1])
    spread = scores.lead.std()
    features = np.column_stack([10 * scores.lead[:, 0] / spread, np.full(num, 0.5)])
    fitted = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=1000).fit(features, labels)
    found = Calibration.of(scores)
    assert (found.slope, found.constant) == pytest.approx(fitted.coef_[0] * [10 / spread, 0.5], rel=1e-4)
    np.testing.assert_allclose(found.gain(scores), 2 * fitted.predict_proba(features)[:, 1] - 1, atol=1e-4)


@pytest.mark.parametrize("important", [(1,), (1, 3)])
def test_the_gain_is_of_the_calibrated_probabilities(important):
    logits, labels = rows(800, held_back=important)
    scores = exact(logits, labels, important)
    found = Calibration.of(scores)
    assert found.constant > 0.2, "the model holds the classes back"
    # The classes beside the best of the others count together, so the slope moves them as one.
    lead, rest = scores.shifted(), np.log(np.expm1(scores.rest_spread))
    odds = np.exp(np.column_stack([found.slope * lead + found.constant, np.zeros(800), found.slope * rest]))
    chance = odds / odds.sum(axis=1, keepdims=True)
    wanted = chance[:, : len(important)].max(axis=1) - chance[:, len(important)]
    np.testing.assert_allclose(found.gain(scores), wanted, atol=1e-12)
    weights = np.random.default_rng(0).integers(0, 3, 800)
    repeated = Calibration.of(exact(logits.repeat(weights, axis=0), labels.repeat(weights), important))
    weighed = Calibration.of(scores, weights)
    assert (weighed.slope, weighed.constant) == pytest.approx((repeated.slope, repeated.constant), rel=0.02)


def test_it_stays_finite_and_leaves_alone_what_rows_cannot_tell():
    labels = np.repeat([0, 1, 2], 40)
    separable = 5.0 * np.eye(3)[labels]
    found = Calibration.of(exact(separable, labels, (1,)))
    assert 0 < found.slope < 10
    assert abs(found.constant) < 1
    assert np.isfinite(found.gain(exact(1e3 * separable, labels, (1,)))).all()
    assert Calibration.of(exact(np.full((120, 3), 0.3), labels, (1,))) == Calibration()
    assert Calibration.of(exact(-separable, labels, (1,))).slope == 0.0, "scores that mislead are not turned round"
    logits, labels = rows(800)
    for few in (labels == 1, labels != 1):  # of the class, or of all others
        for num, is_told in ((9, False), (10, True)):
            kept = np.flatnonzero(~few | (np.cumsum(few) <= num))
            assert (Calibration.of(exact(logits[kept], labels[kept], (1,))) != Calibration()) is is_told


def test_of_many_rows_it_is_of_some_and_hardly_another(monkeypatch):
    drawn = np.random.default_rng(0)
    labels = np.sort(drawn.choice(4, 3 * MOST_ROWS, p=[0.4, 0.02, 0.4, 0.18]))
    logits = drawn.normal(size=(len(labels), 4)) + 2.5 * np.eye(4)[labels]
    scores = exact(logits, labels, (1,))
    found = Calibration.of(scores)
    assert found == Calibration.of(scores)
    monkeypatch.setattr("camri.decision.calibrate.MOST_ROWS", 10**9)
    whole = Calibration.of(scores)
    assert whole != found
    assert (found.slope, found.constant) == pytest.approx((whole.slope, whole.constant), rel=0.05, abs=0.05)


def test_probabilities_of_all_classes_are_calibrated():
    drawn = np.random.default_rng(0)
    labels = drawn.choice(3, 4000, p=[0.6, 0.1, 0.3])
    logits = 2 * (2 * (drawn.normal(size=(4000, 3)) + 1.5 * np.eye(3)[labels]))
    found = Probabilities.of(logits, labels)
    assert found.slope == pytest.approx(1.5 / 4, rel=0.1)
    assert found.bias[0] - found.bias[1] == pytest.approx(np.log(6), abs=0.3)
    assert found(logits).sum(axis=1) == pytest.approx(1)
    assert found == Probabilities(float(f"{found.slope:.6g}"), tuple(float(f"{one:.6g}") for one in found.bias))
    assert Probabilities.of(np.zeros((9, 3)), labels[:9]) == Probabilities(1.0, (0.0, 0.0, 0.0))
