"""Decision rules on raw scores: predictions, every cut-off, goals and promises, checked by brute force."""

import json

import numpy as np
import pytest

from camri.decision import AtLeast, BestRecall, LeastCost, Shift, Threshold, rule_from_json, trace, tune
from camri.errors import InputError
from camri.metrics import condense, exact, pool


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


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rules_say_the_same_of_condensed_scores(rule):
    logits, labels = made()
    important = tuple(rule.values)
    expected = np.where(np.isin(by_hand(rule, logits), important), by_hand(rule, logits), -1)
    for scores in (
        exact(logits, labels, important),
        exact(softmax(logits), labels, important, "probabilities"),
        condense(logits, labels, important),  # half precision: no row of these is so near to the cut-off
    ):
        np.testing.assert_array_equal(rule.predict(scores), expected)
        np.testing.assert_array_equal(scores.correct(rule), by_hand(rule, logits) == labels)
        np.testing.assert_array_equal(scores.called(rule), [np.sum(expected == index) for index in important])
        chance = np.take_along_axis(softmax(logits), by_hand(rule, logits)[:, None], axis=1)[:, 0]
        np.testing.assert_allclose(scores.confidence(rule), chance, rtol=5e-3)
    with pytest.raises(InputError, match="does not fit scores of the important classes"):
        rule.predict(exact(logits, labels, [3]))


@pytest.mark.parametrize(
    "wrong", [lambda: Threshold({1: 1.2}), lambda: Threshold({1: np.nan}), lambda: Shift({1: np.inf})]
)
def test_values_that_no_rule_has_are_refused(wrong):
    with pytest.raises(InputError, match="is not allowed; give"):
        wrong()


GOALS = [BestRecall(), BestRecall(0.05), AtLeast(0.9), AtLeast(1.0), LeastCost(1 - np.eye(4) + 4 * np.eye(4, k=1))]


@pytest.mark.parametrize("rule", ["shift", "threshold"])
@pytest.mark.parametrize("important", [[1], [0, 2]], ids=str)
@pytest.mark.parametrize("goal", GOALS, ids=str)
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_no_cut_off_does_better(rule, important, goal, kind):
    logits, labels = made(120, seed=3)
    scores = logits if kind == "logits" else softmax(logits).round(3)
    found = tune(exact(scores, labels, important, kind), goal, rule=rule)
    cuts = np.linspace(-9, 9, 1201) if rule == "shift" else np.linspace(0, 1, 1201)[1:-1]
    make = Shift if rule == "shift" else Threshold
    plain = np.mean(scores.argmax(axis=1) == labels)
    if found is None:
        predicted = [make(dict.fromkeys(important, cut)).predict(scores, kind) for cut in cuts]
        if isinstance(goal, AtLeast):  # classes that are taken for each other: no cut-off finds enough of both
            assert max(min(figures(one, labels, important)[0]) for one in predicted) < goal.recall
        else:  # no threshold is as accurate as the largest score
            assert max(np.mean(one == labels) for one in predicted) < plain - goal.max_accuracy_drop
        return
    predicted = found.rule.predict(scores, kind)
    recall, accuracy, alarms = figures(predicted, labels, important)
    assert found.recall == pytest.approx(recall)
    assert (found.accuracy, found.false_alarms) == pytest.approx((accuracy, alarms))
    assert found.spread[0] <= found.spread[1]

    for cut in cuts:
        other = make(dict.fromkeys(important, cut)).predict(scores, kind)
        its_recall, its_accuracy, its_alarms = figures(other, labels, important)
        if isinstance(goal, BestRecall):
            if its_accuracy >= plain - goal.max_accuracy_drop:
                assert np.mean(its_recall) <= np.mean(recall) + 1e-9
        elif isinstance(goal, AtLeast):
            assert min(its_recall) < goal.recall or its_alarms >= alarms - 1e-9
        else:
            assert np.mean(goal.matrix[labels, other]) >= found.cost - 1e-9
    if isinstance(goal, AtLeast):
        assert min(recall) >= goal.recall
    elif isinstance(goal, BestRecall):
        assert accuracy >= plain - goal.max_accuracy_drop - 1e-9


def test_the_rule_follows_the_goal_and_what_cannot_be_met_is_none():
    logits, labels = made()
    rows = exact(logits, labels, [1])
    assert isinstance(tune(rows, BestRecall()).rule, Shift)
    assert isinstance(tune(rows, AtLeast(0.9)).rule, Threshold)
    zero = exact([[1.0, 0.0], [0.4, 0.6], [0.9, 0.1]], [1, 1, 0], [1], "probabilities")
    assert tune(zero, AtLeast(0.9)) is None  # no threshold finds a 0
    assert tune(zero, AtLeast(0.9), rule="shift") is None  # and no factor
    assert tune(rows.take(np.arange(20)), AtLeast(0.95, confidence=0.95)) is None  # too few rows


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda rows: tune(rows, BestRecall(), rule="best"), "rule='best' is unknown"),
        (lambda rows: tune(rows, BestRecall(1.5)), "max_accuracy_drop=1.5 is not allowed"),
        (lambda rows: tune(rows, LeastCost(np.ones((4, 3)))), r"cost_matrix of shape \(4, 3\) is not allowed"),
        (lambda rows: tune(rows, LeastCost(np.ones((2, 2)))), "does not fit class 3"),
        (lambda rows: tune(rows, BestRecall(), weights=[1.0]), "weights .* do not fit"),
        (lambda rows: tune(rows, BestRecall(), groups=[1]), "groups .* do not fit 300 rows"),
        (lambda rows: tune(rows.take(rows.labels != 1), BestRecall()), r"classes \[1\] have no rows"),
        (lambda rows: tune(condense(*made(), (1,)), LeastCost(np.eye(4))), "costs need the scores of all classes"),
    ],
)
def test_what_cannot_be_asked_is_refused(ask, message):
    with pytest.raises(InputError, match=message):
        ask(exact(*made(), [1]))


@pytest.mark.parametrize("scores", [[[0.2, np.nan]], [[0.2, np.inf]], [[0.2, 1.3]], [[-0.2, 0.3]]])
def test_scores_that_are_no_probabilities_are_refused(scores):
    with pytest.raises(InputError, match=r"not finite|lie between 0 and 1"):
        Threshold({1: 0.5}).predict(scores, kind="probabilities")


@pytest.mark.parametrize("rule", ["shift", "threshold"])
@pytest.mark.parametrize("goal", [BestRecall(0.01), AtLeast(0.8), LeastCost(1 - np.eye(4))], ids=str)
def test_weights_count_rows_several_times(rule, goal):
    logits, labels = made(200)
    times = np.random.default_rng(1).integers(0, 4, 200)
    weighed = tune(exact(logits, labels, [1]), goal, rule=rule, weights=times)
    repeated = tune(exact(logits.repeat(times, axis=0), labels.repeat(times), [1]), goal, rule=rule)
    assert (weighed is None) == (repeated is None)
    if weighed is not None:
        names = ("recall", "precision", "accuracy", "false_alarms", "cost")
        for name in names:
            assert getattr(weighed, name) == pytest.approx(getattr(repeated, name))


def test_several_models_share_a_rule_and_rows_that_are_pooled_are_more_rows():
    first, second = (exact(*made(300, seed=seed), [1]) for seed in (0, 0))
    assert tune([first, second], AtLeast(0.8), num_draws=0).rule == tune(first, AtLeast(0.8), num_draws=0).rule
    more = pool([first, exact(*made(300, seed=5), [1])])
    assert len(more) == 600
    assert tune(more, LeastCost(1 - np.eye(4))).accuracy == pytest.approx(1 - tune(more, LeastCost(1 - np.eye(4))).cost)


@pytest.mark.parametrize("seed", [1, 2, 6])
def test_a_prior_keeps_few_rows_from_overfitting(seed):
    rows = exact(*made(100, seed=seed), [1])
    careful, free = (tune(rows, BestRecall(prior_rows=num)).rule.values[1] for num in (500, 0))
    assert 0 < careful < free


def test_the_spread_shrinks_with_rows_and_widens_with_groups():
    def width(num, groups=None):
        low, high = tune(exact(*made(num), [1]), AtLeast(0.9), num_draws=60, groups=groups).spread
        return high - low

    assert width(8000) < 0.6 * width(800)
    logits, labels = made(100)
    rows = exact(logits.repeat(20, axis=0), labels.repeat(20), [1])
    low, high = tune(rows, AtLeast(0.9), num_draws=60).spread
    wide = tune(rows, AtLeast(0.9), num_draws=60, groups=np.repeat(np.arange(100), 20)).spread
    assert wide[1] - wide[0] > 1.5 * (high - low)


def test_probabilities_that_saturate_still_find_their_rows():
    """Logits so far apart that probabilities round to 1: no threshold below 1 tells them apart, and none is lost."""
    leads = np.concatenate([np.linspace(40, 60, 100), np.linspace(-60, 45, 100)])
    rows = exact(np.stack([np.zeros(200), leads], axis=1), np.repeat([1, 0], 100), [1])
    found = tune(rows, AtLeast(0.95))
    assert rows.recall(found.rule)[0] == found.recall[0] == 1.0
    assert 0 < found.rule.values[1] < 1


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_a_threshold_separates_neighbouring_numbers_in_their_own_precision(kind):
    low = kind(0.3)
    high = np.nextafter(low, kind(1), dtype=kind)
    table = np.array([[1 - low, low], [1 - high, high]], dtype=kind)
    threshold = tune(exact(table, [0, 1], [1], "probabilities"), AtLeast(0.9)).rule.values[1]
    assert (table[:, 1] > kind(threshold)).tolist() == (table[:, 1] > threshold).tolist() == [False, True]


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
        found = tune(exact(scores, labels, [1], "probabilities"), AtLeast(0.9, confidence=0.95), num_draws=0)
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
    scores, goal = exact(logits, labels, [1]), AtLeast(0.9, confidence=0.95)
    rows = tune(scores, goal, num_draws=0)
    grouped = tune(scores, goal, groups=np.arange(2000) // 10, num_draws=0)
    assert grouped.rule.values[1] < rows.rule.values[1]
    assert rows.promise.num_units == rows.promise.num == ((labels == 1).sum(),)
    assert grouped.promise.num_units[0] <= 200
    assert rows.promise.hits[0] == round(rows.recall[0] * rows.promise.num[0])


def votes(num_trees, seed, num=300):
    """Shares of the votes of a few trees, which tie all the time: .3 / .6 is .1 / .2 but for rounding."""
    drawn = np.random.default_rng(seed)
    logits, labels = made(num, seed=seed)
    return np.stack([drawn.multinomial(num_trees, p * (1 - 1e-12)) for p in softmax(logits)]) / num_trees, labels


@pytest.mark.parametrize("num_trees", [10, 20, 100])
def test_every_state_of_tied_probabilities_is_reached_by_its_factor(num_trees):
    for seed in range(4):
        table, labels = votes(num_trees, seed)
        curve = trace(exact(table, labels, [1], "probabilities"))
        for state in range(len(curve.value)):
            moved = table.copy()
            moved[:, 1] *= curve.number(state, as_factor=True)
            predicted = moved.argmax(axis=1)
            assert ((predicted == 1) & (labels == 1)).sum() == curve.hits[state, 0]
            assert (predicted == labels).sum() == curve.correct[state]


@pytest.mark.parametrize("important", [[1, 2], [0, 3], [0, 1, 2]])
@pytest.mark.parametrize("num_trees", [3, 10])
def test_a_rule_that_changes_nothing_predicts_the_largest_probability(important, num_trees):
    table, labels = votes(num_trees, seed=7)
    assert ((table[:, important] > 0).sum(axis=1) > 1)[table[:, important].sum(axis=1) == 1].any()
    scores = exact(table, labels, important, "probabilities")
    unchanged = Shift(dict.fromkeys(important, 0.0))
    assert unchanged.predict(table, kind="probabilities").tolist() == table.argmax(axis=1).tolist()
    assert scores.accuracy() == np.mean(table.argmax(axis=1) == labels)
    curve = trace(scores)
    state = curve.find(unchanged)
    assert curve.correct[state] == (table.argmax(axis=1) == labels).sum()
    assert curve.hits[state].tolist() == [((table.argmax(axis=1) == k) & (labels == k)).sum() for k in important]


def test_shifts_decide_between_important_classes_where_the_others_have_no_probability():
    table = np.array([[0.0, 0.2, 0.8], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.6, 0.4, 0.0]])
    for shifts, wanted in (
        ({1: 0.0, 2: 0.0}, [2, 1, 2, 0]),
        ({1: 1.5, 2: 0.0}, [1, 1, 2, 1]),
        ({1: -9, 2: -9}, [2, 1, 2, 0]),
    ):
        assert Shift(shifts).predict(table, kind="probabilities").tolist() == wanted
