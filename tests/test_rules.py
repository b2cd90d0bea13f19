"""Decision rules on raw scores: predictions, every cut-off, goals and promises, checked by brute force."""

import json

import numpy as np
import pytest

from camri.decision import AtLeast, BestRecall, LeastCost, Shift, Threshold, rule_from_json, tune
from camri.errors import InputError


def made(num=300, num_classes=4, seed=0, spread=1.5):
    drawn = np.random.default_rng(seed)
    labels = drawn.integers(0, num_classes, num)
    return drawn.normal(size=(num, num_classes)) + spread * np.eye(num_classes)[labels], labels


def softmax(logits):
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def figures(predicted, labels, important):
    own = np.isin(labels, important)
    recall = [np.mean(predicted[labels == index] == index) for index in important]
    return recall, np.mean(predicted == labels), np.mean(~own & np.isin(predicted, important))


def by_hand(rule, logits):
    """Predictions of a rule, row by row in plain Python, as its docstring says."""
    predicted = []
    for row in logits.tolist():
        if isinstance(rule, Shift):
            row = [value + rule.values.get(index, 0.0) for index, value in enumerate(row)]
            predicted.append(row.index(max(row)))
            continue
        p = softmax(np.array([row]))[0].tolist()
        passing = {k: (p[k] / (1 - p[k])) / (t / (1 - t)) for k, t in rule.values.items() if p[k] > t}
        others = [index for index in range(len(row)) if index not in rule.values]
        predicted.append(max(passing, key=passing.get) if passing else max(others, key=row.__getitem__))
    return np.array(predicted)


RULES = [Shift({1: 0.7}), Shift({0: -0.4, 2: 1.1}), Threshold({1: 0.2}), Threshold({0: 0.6, 2: 0.15})]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rules_predict_what_they_say_from_logits_and_from_probabilities(rule):
    logits, _ = made()
    np.testing.assert_array_equal(rule.predict(logits), by_hand(rule, logits))
    np.testing.assert_array_equal(rule.predict(softmax(logits), kind="probabilities"), by_hand(rule, logits))
    assert rule_from_json(json.loads(json.dumps(rule.to_json()))) == rule


GOALS = [BestRecall(), BestRecall(0.05), AtLeast(0.9), AtLeast(1.0), LeastCost(1 - np.eye(4) + 4 * np.eye(4, k=1))]


@pytest.mark.parametrize("rule", ["shift", "threshold"])
@pytest.mark.parametrize("important", [[1], [0, 2]], ids=str)
@pytest.mark.parametrize("goal", GOALS, ids=str)
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_no_cut_off_does_better(rule, important, goal, kind):
    logits, labels = made(120, seed=3)
    scores = logits if kind == "logits" else softmax(logits).round(3)
    found = tune(scores, labels, important, goal, rule=rule, kind=kind)
    cuts = np.linspace(-9, 9, 1201) if rule == "shift" else np.linspace(0, 1, 1201)[1:-1]
    make = Shift if rule == "shift" else Threshold
    if found is None:  # important classes that are taken for each other: no common cut-off finds enough of both
        predicted = [make(dict.fromkeys(important, cut)).predict(scores, kind) for cut in cuts]
        assert max(min(figures(one, labels, important)[0]) for one in predicted) < goal.recall
        return
    predicted = found.rule.predict(scores, kind)
    recall, accuracy, alarms = figures(predicted, labels, important)
    assert found.recall == pytest.approx(recall)
    assert (found.accuracy, found.false_alarms) == pytest.approx((accuracy, alarms))
    assert found.spread[0] <= found.spread[1]

    plain = np.mean(scores.argmax(axis=1) == labels)
    for cut in cuts:
        other = make(dict.fromkeys(important, cut)).predict(scores, kind)
        its_recall, its_accuracy, its_alarms = figures(other, labels, important)
        if isinstance(goal, BestRecall):
            if rule == "shift" and its_accuracy >= plain - goal.max_accuracy_drop:
                assert np.mean(its_recall) <= np.mean(recall) + 1e-9
        elif isinstance(goal, AtLeast):
            assert min(its_recall) < goal.recall or its_alarms >= alarms - 1e-9
        else:
            assert np.mean(goal.matrix[labels, other]) >= found.cost - 1e-9
    if isinstance(goal, AtLeast):
        assert min(recall) >= goal.recall


def test_the_rule_follows_the_goal_and_what_cannot_be_met_is_none():
    logits, labels = made()
    assert isinstance(tune(logits, labels, [1], BestRecall()).rule, Shift)
    assert isinstance(tune(logits, labels, [1], AtLeast(0.9)).rule, Threshold)
    zero = np.array([[1.0, 0.0], [0.4, 0.6], [0.9, 0.1]])
    assert tune(zero, [1, 1, 0], [1], AtLeast(0.9), kind="probabilities") is None  # no threshold finds a 0
    assert tune(logits[:20], labels[:20], [1], AtLeast(0.95, confidence=0.95)) is None  # too few rows
    for wrong, message in (({"rule": "best"}, "rule='best'"), ({"kind": "scores"}, "kind='scores'")):
        with pytest.raises(InputError, match=message):
            tune(logits, labels, [1], BestRecall(), **wrong)


COARSE = {
    "1 digit": lambda p: p.round(1),
    "2 digits": lambda p: p.round(2),
    "6 digits": lambda p: p.round(6),
    "half": lambda p: p.astype(np.float16),
    "underflow": lambda p: np.where(p < 1e-3, 0, p).astype(np.float32),
    "tiny": lambda p: np.where(p < 1e-2, 5e-324, p),
}


@pytest.mark.parametrize("coarse", COARSE)
def test_a_promise_is_kept_when_the_rule_is_followed_literally_on_coarse_probabilities(coarse):
    kept, num = 0, 0
    for seed in range(100):
        logits, labels = made(900, 3, seed=seed, spread=2.5)
        scores = COARSE[coarse](softmax(logits))
        found = tune(scores, labels, [1], AtLeast(0.9, confidence=0.95), kind="probabilities", num_draws=0)
        if found is None:
            continue
        num += 1
        fresh_logits, fresh_labels = made(20_000, 3, seed=10_000 + seed, spread=2.5)
        fresh = COARSE[coarse](softmax(fresh_logits))
        threshold = found.rule.values[1]
        kept += np.mean(fresh[fresh_labels == 1, 1] > threshold) >= 0.9
    assert num == 0 or kept >= 0.9 * num
    if coarse in ("6 digits", "half", "2 digits"):
        assert num > 80


def test_a_promise_for_groups_counts_groups():
    logits, labels = made(2000, 3, spread=3.0)
    rows = tune(logits, labels, [1], AtLeast(0.9, confidence=0.95), num_draws=0)
    grouped = tune(logits, labels, [1], AtLeast(0.9, confidence=0.95), groups=np.arange(2000) // 10, num_draws=0)
    assert grouped.rule.values[1] < rows.rule.values[1]
