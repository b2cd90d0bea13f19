"""Decision rules on raw and on condensed scores: what they predict, against plain Python."""

import json

import numpy as np
import pytest

from camri.decision import LowestCost, Probabilities, Shift, Threshold, condense, exact, is_argmax, rule_from_json
from camri.errors import InputError
from tests.decision.made import predict, rows, softmax

RULES = [Shift({1: 0.7}), Shift({0: -0.4, 2: 1.1}), Threshold({1: 0.2}), Threshold({0: 0.6, 2: 0.15})]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rules_predict_what_they_say_of_any_scores(rule):
    logits, labels = rows()
    wanted, important = predict(rule, logits), tuple(rule.values)
    np.testing.assert_array_equal(rule.predict(logits), wanted)
    np.testing.assert_array_equal(rule.predict(softmax(logits), kind="probabilities"), wanted)
    assert rule_from_json(json.loads(json.dumps(rule.to_json()))) == rule
    expected = np.where(np.isin(wanted, important), wanted, -1)
    for scores in (
        exact(logits, labels, important),
        exact(softmax(logits), labels, important, "probabilities"),
        condense(logits, labels, important),  # half precision: no row of these is so near to the cut-off
    ):
        np.testing.assert_array_equal(rule.predict(scores), expected)
        np.testing.assert_array_equal(scores.correct(rule), wanted == labels)
        np.testing.assert_array_equal(scores.called(rule), [np.sum(expected == index) for index in important])
        chance = np.take_along_axis(softmax(logits), wanted[:, None], axis=1)[:, 0]
        np.testing.assert_allclose(scores.confidence(rule), chance, rtol=5e-3)
    with pytest.raises(InputError, match="does not fit scores of the important classes"):
        rule.predict(exact(logits, labels, [3]))
    assert rule.predict(logits[:0]).tolist() == []


def test_the_lowest_cost_is_of_calibrated_probabilities():
    logits, _ = rows()
    matrix = np.array([[0, 1, 1, 2], [9, 0, 1, 1], [1, 1, 0, 1], [1, 2, 1, 0.0]])
    rule = LowestCost(tuple(map(tuple, matrix.tolist())), Probabilities(1.4, (0.1, -0.2, 0.0, 0.3)), {1: 0.0})
    wanted = (softmax(1.4 * logits + [0.1, -0.2, 0.0, 0.3]) @ matrix).argmin(axis=1)
    np.testing.assert_array_equal(rule.predict(logits), wanted)
    np.testing.assert_array_equal(rule.predict(softmax(logits), "probabilities"), wanted)
    assert rule_from_json(json.loads(json.dumps(rule.to_json()))) == rule
    assert rule.predict([[1.0, 0.0, 0.0, 0.0]], "probabilities").tolist() == [0]
    with pytest.raises(InputError, match=r"scores \(300, 3\) do not fit 4 classes"):
        rule.predict(logits[:, :3])


@pytest.mark.parametrize(
    "wrong",
    [lambda: Threshold({1: 1.2}), lambda: Threshold({1: np.nan}), lambda: Shift({1: np.inf}), lambda: Shift({})],
)
def test_values_that_no_rule_has_are_refused(wrong):
    with pytest.raises(InputError, match="; give"):
        wrong()


@pytest.mark.parametrize("scores", [[[0.2, np.nan]], [[0.2, np.inf]], [[0.2, 1.3]], [[-0.2, 0.3]]])
@pytest.mark.parametrize("rule", [Threshold({1: 0.5}), Shift({1: 0.5})])
def test_scores_that_are_no_probabilities_are_refused(rule, scores):
    with pytest.raises(InputError, match=r"not finite|lie between 0 and 1"):
        rule.predict(scores, kind="probabilities")


def test_shifts_decide_between_important_classes_where_the_others_have_no_probability():
    table = np.array([[0.0, 0.2, 0.8], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.6, 0.4, 0.0]])
    for shifts, wanted in (
        ({1: 0.0, 2: 0.0}, [2, 1, 2, 0]),
        ({1: 1.5, 2: 0.0}, [1, 1, 2, 1]),
        ({1: -9, 2: -9}, [2, 1, 2, 0]),
    ):
        assert Shift(shifts).predict(table, kind="probabilities").tolist() == wanted
        said = Shift(shifts).predict(exact(table, [0] * 4, [1, 2], "probabilities"))
        assert np.where(said == -1, 0, said).tolist() == wanted


def test_where_shifted_scores_are_level_the_first_wins_as_in_argmax():
    assert Shift({1: 1.4}).predict([[1.4, 0.6, 2.0], [2.0, 0.6, 1.4]]).tolist() == [1, 0]
    assert Shift({0: np.log(4)}).predict([[0.1, 0.4, 0.5]], "probabilities").tolist() == [2]
    assert Shift({0: np.log(4)}).predict([[0.1, 0.4, 0.4]], "probabilities").tolist() == [0]
    assert is_argmax(Shift({0: 0.0}))
    assert not is_argmax(Threshold({0: 0.0}))
