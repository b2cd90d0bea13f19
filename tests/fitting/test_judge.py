"""Rules tuned to each goal, the model that is handed over, the evidence, and the table of verdicts."""

import types

import numpy as np
import pytest

from camri.decision import AtLeast, BestRecall, LeastCost, Shift, Threshold
from camri.fit_record import Arm, Change, Comparison, Evidence
from camri.fit_record import Goal as GoalRecord
from camri.fitting import handover
from camri.fitting.judge import (
    Held,
    apply,
    argmax_of,
    bolder,
    count,
    decide,
    floor_of,
    gather,
    goal_record,
    has_learnt,
    is_better,
    median_model,
    shift_to,
    tune_arm,
    tune_rule,
)
from camri.metrics import exact
from camri.selection import Floor

NO_FLOOR = Floor(-np.inf)


def held(logits, labels, seed=0, important=(1,)):
    """A model with the same scores on both splits."""
    return Held(seed, dict.fromkeys(("val", "test"), exact(logits, labels, important)))


def leads(*values, important, seed=0):
    """Two classes; the lead of class 1 in each row, the first rows being of class 1."""
    logits = np.stack([np.zeros(len(values)), np.array(values)], axis=1)
    return held(logits, [1] * important + [0] * (len(values) - important), seed)


LABELS = np.random.default_rng(0).choice(3, 600, p=[0.5, 0.1, 0.4])


def drawn_logits(gap=1.5):
    """Rows of three classes, the second rare."""
    return np.random.default_rng(1).normal(size=(600, 3)) + gap * np.eye(3)[LABELS]


def drawn(gap=1.5):
    return held(drawn_logits(gap), LABELS)


def test_a_rule_on_condensed_scores_predicts_what_it_does_on_logits():
    logits, model = drawn_logits(), drawn()
    labels = model.scores["val"].labels
    for rule in (argmax_of((1,)), Shift({1: 0.7}), Threshold({1: 0.23})):
        predicted = rule.predict(logits)
        decided = apply(rule, model, "val", LeastCost(np.eye(3)))
        assert np.array_equal(decided.correct, predicted == labels)
        assert np.array_equal(decided.false_alarms, (predicted == 1) & (labels != 1))
        assert np.array_equal(decided.cost, np.eye(3)[labels, predicted])


def test_the_most_recall_keeps_the_accuracy_of_the_baseline():
    model = leads(2.0, -0.5, -3.0, -1.0, -2.0, -2.5, important=3)
    goal = BestRecall()
    floor = floor_of(goal, [model], prior_rows=0)
    assert floor.accuracy == pytest.approx(4 / 6)
    tuned = tune_rule(goal, [model], floor)
    decided = apply(tuned.rule, model, "val", goal)
    assert decided.correct.tolist() == [True, True, False, True, True, True]
    assert tune_rule(goal, [model], Floor(1.0)).rule is None
    assert tune_rule(goal, [model], Floor(1.0)).rank[0] == -np.inf
    assert tune_arm(goal, [model], Floor(1.0), is_baseline=True) == [argmax_of((1,))]


def test_the_fewest_false_alarms_at_a_recall_is_the_highest_cut_off_that_reaches_it():
    model = leads(4.0, 3.0, 2.0, -1.0, 2.5, 0.0, -2.0, important=4)
    decided = apply(tune_rule(AtLeast(0.75), [model], NO_FLOOR).rule, model, "val", AtLeast(0.75))
    assert (decided.correct[:4].mean(), decided.false_alarms.sum()) == (0.75, 1)
    every = tune_rule(AtLeast(0.99), [model], NO_FLOOR).rule
    assert apply(every, model, "val", AtLeast(0.99)).correct[:4].all()


def test_a_promise_finds_more_than_the_recall_itself_and_is_given_up_where_rows_are_few():
    rng = np.random.default_rng(0)
    model = leads(*rng.normal(1.0, 1.0, 200), *rng.normal(-1.0, 1.0, 400), important=200)
    goals = AtLeast(0.9), AtLeast(0.9, 0.95)
    plain, promised = (
        apply(tune_rule(goal, [model], NO_FLOOR).rule, model, "val", goal).correct[:200].mean() for goal in goals
    )
    assert (plain, promised) == (0.9, pytest.approx(0.935, abs=0.006))
    few = leads(1.0, 2.0, 3.0, -1.0, important=3)
    assert tune_rule(goals[1], [few], NO_FLOOR) == tune_rule(goals[0], [few], NO_FLOOR)


def test_the_least_cost_is_that_of_the_matrix():
    model, goal = drawn(), LeastCost(np.array([[0, 1, 1], [20, 0, 20], [1, 1, 0]]))
    tuned = tune_rule(goal, [model], NO_FLOOR)
    cost = apply(tuned.rule, model, "val", goal).cost.mean()
    assert tuned.rank == (pytest.approx(-cost),)
    others = [Threshold({1: value}) for value in (0.01, 0.1, 0.3, 0.5)]
    assert cost <= min(apply(one, model, "val", goal).cost.mean() for one in [argmax_of((1,)), *others])
    even = LeastCost(np.zeros((3, 3)))
    assert tune_rule(even, [model], NO_FLOOR).rule == argmax_of((1,))


def test_the_baseline_is_never_shifted_back():
    goal = BestRecall()
    good, poor = leads(1.0, -1.0, -1.0, -1.0, important=2), leads(1.0, 0.5, 0.5, -1.0, important=2, seed=1)
    floor = floor_of(goal, [good], prior_rows=0)
    assert all(rule.values[1] >= 0 for rule in tune_arm(goal, [poor, poor], floor, is_baseline=True))
    overshot = leads(2.0, 1.0, 0.5, 0.4, important=2)
    (rule,) = tune_arm(goal, [overshot], floor, is_baseline=False)
    assert rule.values[1] < 0


def test_the_models_of_an_arm_share_a_rule_unless_a_recall_is_promised():
    rng = np.random.default_rng(1)
    models = [
        leads(*rng.normal(1.0, 1.0, 60), *rng.normal(-1.0, 1.0, 90), important=60, seed=seed) for seed in range(3)
    ]
    goal = BestRecall(max_accuracy_drop=0.02)
    floor = floor_of(goal, models, prior_rows=0)
    own = [tune_rule(goal, [model], floor).rule for model in models]
    assert len(set(map(str, own))) == 3
    assert tune_arm(goal, models, floor, is_baseline=False) == [tune_rule(goal, models, floor).rule] * 3
    promise = AtLeast(0.9, 0.95)
    each = [tune_rule(promise, [model], NO_FLOOR).rule for model in models]
    assert tune_arm(promise, models, NO_FLOOR, is_baseline=False) == each


def test_a_bolder_rule_finds_two_points_more_on_test_rows_at_the_highest_accuracy():
    drawn = np.random.default_rng(0)
    model = leads(*drawn.normal(1.0, 1.0, 100), *drawn.normal(-2.0, 1.0, 300), important=100)
    other = leads(*drawn.normal(1.0, 1.0, 100), *drawn.normal(-2.0, 1.0, 300), important=100)
    model = Held(0, {"test": model.scores["val"], "val": other.scores["val"]})
    plain, bold = (apply(rule, model, "test", BestRecall()) for rule in (argmax_of((1,)), bolder([model])))
    own = model.scores["test"].labels == 1
    assert bold.correct[own].sum() - plain.correct[own].sum() >= 2
    for value in np.linspace(0, 3, 301):  # no shift that finds as much is more accurate
        found = apply(Shift({1: value}), model, "test", BestRecall())
        if found.correct[own].sum() >= plain.correct[own].sum() + 2:
            assert found.correct.sum() <= bold.correct.sum()
    sure = leads(*[5.0] * 100, *[-5.0] * 300, important=100)
    found = apply(bolder([Held(0, {"test": sure.scores["val"]})]), sure, "val", BestRecall())
    assert found.correct.all()  # nothing is missed: no more can be found


def test_a_shift_to_a_recall_reaches_it_at_the_highest_accuracy():
    model = leads(1.0, -1.0, -5.0, -0.5, -2.0, -4.0, important=3)
    assert 1 < shift_to(2 / 3, [model]).values[1] < 2
    assert shift_to(0.7, [model]).values[1] > 5
    assert -1 < shift_to(1 / 3, [model]).values[1] < 0.5  # all right that can be without a larger shift


def test_a_rival_that_is_only_bolder_is_not_chosen():
    logits, goal = drawn_logits() - np.array([0.0, 1.5, 0.0]), BestRecall()
    baseline, modest, better = ([held(one, LABELS)] for one in (5 * logits, 0.2 * logits, drawn_logits(2.5)))
    floor = floor_of(goal, baseline, prior_rows=5000)
    cautious, bold = (tune_rule(goal, arm, floor, negative=False) for arm in (baseline, modest))
    assert bold.rank[0] > cautious.rank[0] + 0.05  # the same curve, but less confident: a larger shift is allowed
    request = types.SimpleNamespace(goal=goal)
    assert not handover._is_chosen(request, modest, baseline, floor)
    assert handover._is_chosen(request, better, baseline, floor)


def test_the_median_model_is_neither_the_best_nor_the_worst():
    recalls = {7: 0.2, 3: 1.0, 5: 0.6, 4: 0.8, 6: 0.4}
    models = [
        leads(*np.where(np.arange(10) < 10 * recall, 1.0, -1.0), *[-1.0] * 10, important=10, seed=seed)
        for seed, recall in recalls.items()
    ]
    goal, plain = BestRecall(), argmax_of((1,))
    picked, rule = median_model(goal, models, [plain] * 5)
    assert (picked.seed, rule) == (5, plain)
    assert median_model(goal, models[:4], [plain] * 4)[0].seed == 5  # of .2, .6, .8, 1.0 the lower one in the middle
    assert median_model(goal, models[:1], [plain])[0].seed == 7


def test_counts_are_those_of_the_rule():
    model = leads(2.0, -0.5, -3.0, 1.0, -2.0, -2.5, important=3)
    found = count(Shift({1: 1.0}), model, BestRecall())
    assert (found.hits, found.num, found.called, found.num_false_alarms) == ((2,), (3,), (3,), 1)
    assert (found.num_right, found.num_rows, found.num_others, found.cost) == (4, 6, 3, None)
    grouped = count(Shift({1: 1.0}), model, BestRecall(), np.array([0, 0, 0, 1, 1, 1]))
    assert len(grouped.effects) == 4
    wide, narrow = (one.accuracy.high - one.accuracy.low for one in (grouped, found))
    assert wide >= narrow


def test_a_standard_error_decides_between_arms():
    goal, plain = BestRecall(), argmax_of((1,))
    less, more = (
        [apply(plain, leads(*np.where(np.arange(40) < num, 1.0, -1.0), -1.0, important=40, seed=seed), "val", goal)
         for seed in range(3)]
        for num in (20, 30)
    )  # fmt: skip
    labels = np.array([1] * 40 + [0])
    assert is_better(more, less, labels, (1,), "recall")
    assert not is_better(less, more, labels, (1,), "recall")
    assert not is_better(less, less, labels, (1,), "recall")


def test_evidence_has_no_intervals_below_three_seeds():
    goal, labels = BestRecall(), drawn().scores["test"].labels
    for num_seeds in (2, 3):
        models = [drawn(1.5 + 0.1 * seed) for seed in range(num_seeds)]
        arms = {
            name: (name, [apply(Shift({1: shift}), model, "test", goal) for model in models])
            for name, shift in [("baseline", 0.0), ("redecided", 1.0)]
        }
        found = gather(arms, [("redecided", "baseline")], labels, None, (1,), "abc", final="redecided")
        change = found.compare("redecided", "baseline")
        assert found.num_seeds == num_seeds
        assert (change.recall.low is None) == (num_seeds < 3)
        before, after = found.arms
        assert change.recall.value == pytest.approx(after.recall - before.recall)
        assert change.false_alarms.value == pytest.approx(after.false_alarms - before.false_alarms)
        assert min(change.recall.value, change.false_alarms.value) > 0
        assert before.recall == pytest.approx(before.hits / before.num)
        assert [one.name for one in found.classes] == ["a", "c"]
        assert all(one.recall.value <= 0 for one in found.classes)


@pytest.mark.parametrize(
    ("diagonal", "sizes", "is_ranked", "learnt"),
    [
        ([31] * 10, [252] * 10, True, False),  # 0.122 of ten classes
        ([200] * 10, [252] * 10, False, True),
        ([970, 0], [970, 30], True, True),  # always the frequent class, but scores that rank
        ([970, 0], [970, 30], False, False),
        ([960, 25], [970, 30], False, True),
        ([700, 20], [970, 30], True, False),
    ],
)
def test_a_baseline_no_better_than_guessing_is_seen(diagonal, sizes, is_ranked, learnt):
    confusion = np.diag(diagonal)
    confusion[np.arange(len(sizes)), (np.arange(len(sizes)) + 1) % len(sizes)] += np.array(sizes) - diagonal
    model = leads(*([1.0, 2.0] if is_ranked else [-1.0, -2.0]), 0.0, 0.5, important=2)
    assert has_learnt(confusion, model) is learnt


def evidence(num_seeds=5, accuracy=0.01, control=None, **changes):
    """Comparisons of arms by "arm over", each (value, low, high) of recall."""
    pairs = {"redecided baseline": changes.get("rule"), "method redecided": changes.get("method")}
    pairs |= {"method baseline": changes.get("method"), "method control": control}
    pairs |= {"bolder baseline": changes.get("bolder"), "method shifted": changes.get("shifted")}
    known = Change(accuracy, accuracy - 0.02, accuracy + 0.02)
    alarms = Change(*changes.get("alarms", (0.0, -0.01, 0.01)))
    comparisons = tuple(
        Comparison(*pair.split(), Change(*values), known, alarms)
        for pair, values in pairs.items()
        if values is not None
    )
    return Evidence(num_seeds, (Arm("baseline", "", 0.5, 0.9, 0.0, 250, 500, (0.5,)),), comparisons, ())


UP, WIDE, FLAT, DOWN = (0.05, 0.02, 0.08), (0.05, -0.02, 0.12), (0.0, -0.01, 0.01), (-0.05, -0.08, -0.02)


@pytest.mark.parametrize(
    ("found", "chosen", "kind", "reason"),
    [
        (evidence(method=UP, rule=UP), {"method": "CAMRI"}, "train_with", ""),
        (evidence(method=UP, rule=UP, num_seeds=4), {"method": "CAMRI"}, "cannot_tell", "few_seeds"),
        (evidence(method=UP, rule=UP), {"method": "CAMRI", "num_rows": 19}, "cannot_tell", "few_rows"),
        (evidence(method=UP, rule=UP), {"method": "CAMRI", "learnt": False}, "cannot_tell", "not_learnt"),
        (evidence(method=UP, rule=UP, control=UP), {"method": "CAMRI"}, "train_with", ""),
        (evidence(method=UP, rule=UP, control=DOWN), {"method": "CAMRI"}, "cannot_tell", "control_as_good"),
        (evidence(method=UP, rule=UP, shifted=UP, accuracy=0.03), {"method": "CAMRI"}, "train_with", ""),
        (evidence(method=UP, rule=UP, shifted=UP), {"method": "CAMRI"}, "cannot_tell", "shift_as_good"),
        (evidence(method=UP, rule=UP, accuracy=-0.03), {"method": "CAMRI"}, "cannot_tell", "accuracy_dropped"),
        (evidence(method=WIDE, rule=UP), {"method": "CAMRI"}, "cannot_tell", "not_significant"),
        (evidence(method=FLAT, rule=UP), {"method": "CAMRI"}, "change_the_decision", ""),
        (evidence(method=FLAT, rule=FLAT), {"method": "CAMRI"}, "nothing_to_gain", ""),
        (evidence(method=FLAT, rule=FLAT, bolder=UP), {"method": "CAMRI"}, "cannot_tell", "not_chosen"),
        (evidence(method=UP, rule=UP), {}, "change_the_decision", ""),
        (evidence(rule=UP, accuracy=-0.03), {}, "cannot_tell", "accuracy_dropped"),
        (evidence(rule=WIDE), {}, "cannot_tell", "not_significant"),
        (evidence(rule=DOWN), {}, "nothing_to_gain", ""),
        (evidence(rule=FLAT), {"is_redecided": False}, "nothing_to_gain", ""),
        (evidence(rule=FLAT), {"is_redecided": False, "has_rivals": False}, "cannot_tell", "no_rivals"),
        (evidence(rule=FLAT, bolder=FLAT), {"is_redecided": False}, "nothing_to_gain", ""),
        (evidence(rule=FLAT, bolder=UP), {"is_redecided": False}, "cannot_tell", "not_chosen"),
        (evidence(rule=FLAT, bolder=UP, accuracy=-0.03), {"is_redecided": False}, "nothing_to_gain", ""),
        (evidence(rule=DOWN, bolder=WIDE), {}, "cannot_tell", "not_chosen"),
        (evidence(rule=UP, bolder=UP), {}, "change_the_decision", ""),
        (evidence(rule=FLAT, method=WIDE), {"is_redecided": False}, "cannot_tell", "not_chosen"),
        (evidence(rule=FLAT, method=FLAT), {"is_redecided": False}, "nothing_to_gain", ""),
        (evidence(rule=FLAT, method=(-0.01, -0.05, 0.03)), {"is_redecided": False}, "nothing_to_gain", ""),
        (evidence(rule=DOWN), {"still_improving": True}, "cannot_tell", "still_improving"),
        (evidence(rule=UP), {"still_improving": True, "has_rivals": False}, "change_the_decision", ""),
    ],
)
def test_the_table_of_verdicts(found, chosen, kind, reason):
    verdict = decide(found, GoalRecord(), **{"method": None, "is_redecided": True, **chosen})
    assert (verdict.kind, verdict.reason) == (kind, reason)
    if kind == "train_with":
        assert (verdict.method, verdict.gain, verdict.over) == ("CAMRI", Change(*UP), "redecided")


def test_what_would_help_is_counted_in_rows():
    verdict = decide(evidence(rule=(0.0, -0.2, 0.2)), GoalRecord(), method=None, is_redecided=True)
    assert (verdict.more_rows, verdict.settles) == (300, 0.1)  # half as wide takes four times the 100 rows


def test_fewer_false_alarms_decide_at_a_promised_recall():
    goal = goal_record(AtLeast(0.9, 0.95))
    assert (goal.figure, goal.recall) == ("false_alarms", 0.9)
    fewer = evidence(method=FLAT, rule=UP, alarms=(-0.02, -0.03, -0.01))
    assert decide(fewer, goal, method="CAMRI", is_redecided=True).kind == "train_with"
    more = evidence(method=UP, rule=UP, alarms=(0.02, 0.01, 0.03))
    alone = decide(more, goal, method="CAMRI", is_redecided=True)
    assert (alone.kind, alone.method, alone.over) == ("change_the_decision", "CAMRI", "baseline")
    reached = decide(more, goal, method=None, is_redecided=True)  # argmax missed the recall
    assert (reached.kind, reached.gain) == ("change_the_decision", Change(*UP))
