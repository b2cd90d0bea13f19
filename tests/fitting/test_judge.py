"""Rules tuned to each goal, the model that is handed over, the controls of a rival, and the evidence over seeds."""

import numpy as np
import pytest

from camri.decision import AtLeast, LeastCost, MostRecall, Present, Shift, Threshold, argmax_of, compare, is_argmax
from camri.decision.compare import Judging
from camri.decision.scores import exact
from camri.fitting.finals import _figures
from camri.fitting.judge import (
    Aim,
    Held,
    apply,
    bolder,
    find_median,
    has_learnt,
    is_chosen,
    mean_of,
    rows_of,
    rules_of,
    shift_to,
)


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


def test_a_shift_to_a_recall_reaches_it_at_the_highest_accuracy():
    model = leads(1.0, -1.0, -5.0, -0.5, -2.0, -4.0, important=3)
    assert 1 < shift_to(2 / 3, [model]).values[1] < 2
    assert shift_to(0.7, [model]).values[1] > 5
    assert -1 < shift_to(1 / 3, [model]).values[1] < 0.5  # all right that can be without a larger shift


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


def right_of(rule, model, split="val", goal=None):
    """Which rows of a model a rule gets right, and which are false alarms."""
    arm = apply("", [model], rule, split, goal or MostRecall())
    return arm.right[0], arm.alarm[0]


def aim(goal, baseline, prior_rows=0, groups=None):
    return Aim(goal, baseline, prior_rows, groups)


def test_a_rule_on_condensed_scores_predicts_what_it_does_on_logits():
    logits, model = drawn_logits(), drawn()
    labels = model.scores["val"].labels
    for rule in (argmax_of((1,)), Shift({1: 0.7}), Threshold({1: 0.23})):
        predicted = rule.predict(logits)
        arm = apply("an arm", [model, model], rule, "val", LeastCost(np.eye(3)))
        assert (arm.title, arm.right.shape) == ("an arm", (2, len(labels)))
        assert np.array_equal(arm.right[1], predicted == labels)
        assert np.array_equal(arm.alarm[1], (predicted == 1) & (labels != 1))
        assert np.array_equal(arm.cost[1], np.eye(3)[labels, predicted])
    each = apply("", [model, model], [argmax_of((1,)), Shift({1: 0.7})], "val", MostRecall())
    assert (each.predicted[0] == 1).sum() < (each.predicted[1] == 1).sum()
    assert each.cost is None


def test_the_most_recall_keeps_the_accuracy_of_the_baseline():
    model = leads(2.0, -0.5, -3.0, -1.0, -2.0, -2.5, important=3)
    own = aim(MostRecall(), [model])
    assert own.present == Present(pytest.approx(4 / 6), pytest.approx(1 / 6), (pytest.approx(1 / 3),))
    (point,) = own.tune_arm([model], is_baseline=True)
    right, _ = right_of(point.rule, model)
    assert right.tolist() == [True, True, False, True, True, True]
    better = leads(2.0, 0.5, 3.0, -1.0, -2.0, -2.5, important=3)
    (missed,) = aim(MostRecall(), [better]).tune_arm([model])
    assert (missed.has_met, missed.rank[0], missed.rule) == (False, -np.inf, argmax_of((1,)))


def test_the_fewest_false_alarms_at_a_recall_is_the_highest_cut_off_that_reaches_it():
    model, poor = leads(4.0, 3.0, 2.0, -1.0, 2.5, 0.0, -2.0, important=4), leads(*[-3.0] * 7, important=4)
    right, alarm = right_of(aim(AtLeast(0.75, is_seen=True), [poor]).tune([model]).rule, model)
    assert (right[:4].mean(), alarm.sum()) == (0.75, 1)
    right, _ = right_of(aim(AtLeast(0.99, is_seen=True), [poor]).tune([model]).rule, model)
    assert right[:4].all()


def test_at_a_recall_no_arm_finds_less_than_the_baseline_does_now():
    """Else a rival that finds less, and so has fewer false alarms, would look better."""
    baseline = leads(4.0, 3.0, 2.0, -1.0, 2.5, 0.0, -2.0, important=4)
    rival = leads(6.0, 5.0, 4.0, 3.5, 3.0, 1.0, -2.0, important=4)
    own = aim(AtLeast(0.25, is_seen=True), [baseline])
    for model, is_baseline, alarms in ((baseline, True, 1), (rival, False, 0)):
        right, alarm = right_of(own.tune([model], is_baseline).rule, model)
        assert right[:4].mean() >= 0.75
        assert alarm.sum() == alarms
    assert rival.scores["val"].recall()[0] == 1.0  # its own argmax is nobody's decision


def normal(seed, num=200, others=400, gap=1.0):
    drawn = np.random.default_rng(seed)
    return leads(*drawn.normal(gap, 1.0, num), *drawn.normal(-gap, 1.0, others), important=num, seed=seed)


def test_a_guarantee_finds_more_than_the_recall_itself():
    poor = leads(*[-3.0] * 600, important=200)
    plain, sure = (aim(goal, [poor]) for goal in (AtLeast(0.9, is_seen=True), AtLeast(0.9, 0.95)))
    model = normal(0)
    (one,), (two,) = plain.tune_arm([model]), sure.tune_arm([model])
    assert (one.recall[0], two.recall[0]) == (0.9, pytest.approx(0.935, abs=0.006))
    assert (one.guarantee, two.guarantee.is_given) == (None, True)
    assert sure.secure(model, two, is_baseline=False) is two
    assert sure.tune([model]).rule == one.rule  # to compare, not to hand over
    assert plain.secure(model, one, is_baseline=False) is one


def test_where_rows_are_too_few_no_arm_is_guaranteed_and_the_model_says_how_many_are_missing():
    few = leads(1.0, 2.0, 3.0, -1.0, important=3)
    own = aim(AtLeast(0.9, 0.95), [few])
    points = own.tune_arms({"baseline": [few], "method": [few]})
    assert points == own.without_guarantee().tune_arms({"baseline": [few], "method": [few]})
    point = own.secure(few, points["baseline"][0], is_baseline=True)
    assert point.rule == points["baseline"][0].rule
    assert (point.guarantee.is_given, point.guarantee.missing) == (False, (26,))  # 29 rows, all found
    groups = np.array([0, 0, 1, 2])  # two independent units of the class
    grouped = aim(AtLeast(0.9, 0.95), [few], groups=groups)
    assert grouped.secure(few, points["baseline"][0], is_baseline=True).guarantee.missing == (27,)


def test_arms_are_compared_under_one_kind_of_rule():
    """One model that cannot be guaranteed makes all arms go without; the model that can be is handed over with it."""
    sure, own = normal(0), normal(1)
    stuck = leads(*[-2000.0] * 30, *own.scores["val"].lead[30:, 0], important=200)  # a probability of 0
    asked = aim(AtLeast(0.9, 0.95), [sure])
    points = asked.tune_arms({"baseline": [sure, own], "method": [sure, stuck]})
    assert all(point.guarantee is None for arm in points.values() for point in arm)
    (alone,) = asked.tune_arm([sure], is_baseline=True)
    assert asked.secure(sure, points["baseline"][0], is_baseline=True).rule == alone.rule
    both = asked.tune_arms({"baseline": [sure, own], "method": [own, sure]})
    assert all(point.guarantee.is_given for arm in both.values() for point in arm)


def test_the_least_cost_is_that_of_the_matrix_by_a_shift_or_a_threshold():
    model, goal = drawn(), LeastCost(np.array([[0, 1, 1], [20, 0, 20], [1, 1, 0]]))
    point = aim(goal, [model]).tune([model])
    assert isinstance(point.rule, Shift | Threshold)
    cost = apply("", [model], point.rule, "val", goal).cost.mean()
    assert point.rank[0] == pytest.approx(-cost)
    others = [Threshold({1: value}) for value in (0.01, 0.1, 0.3, 0.5)]
    assert cost <= min(apply("", [model], one, "val", goal).cost.mean() for one in [argmax_of((1,)), *others])
    assert is_argmax(aim(LeastCost(np.zeros((3, 3))), [model]).tune([model]).rule)


def test_the_baseline_is_never_shifted_back():
    good, poor = leads(1.0, -1.0, -1.0, -1.0, important=2), leads(1.0, 0.5, 0.5, -1.0, important=2, seed=1)
    own = aim(MostRecall(), [good])
    assert all(point.rule.values[1] >= 0 for point in own.tune_arm([poor, poor], is_baseline=True))
    overshot = leads(2.0, 1.0, 0.5, 0.4, important=2)
    (point,) = own.tune_arm([overshot])
    assert point.rule.values[1] < 0


def test_the_models_of_an_arm_share_a_rule_unless_a_recall_is_asked_for():
    models = [normal(seed, 60, 90) for seed in range(3)]
    own = aim(MostRecall(0.02), models)
    assert len({str(own.tune([model]).rule) for model in models}) == 3
    assert rules_of(own.tune_arm(models)) == [own.tune(models).rule] * 3
    each = aim(AtLeast(0.9, 0.95), models)
    assert rules_of(each.tune_arm(models)) == [each.tune_arm([model])[0].rule for model in models]


def test_a_bolder_rule_finds_two_points_more_on_test_rows_at_the_highest_accuracy():
    model, other = normal(0, 100, 300, 1.5), normal(1, 100, 300, 1.5)
    model = Held(0, {"test": model.scores["val"], "val": other.scores["val"]})
    plain, bold = (right_of(rule, model, "test")[0] for rule in (argmax_of((1,)), bolder([model])))
    own = model.scores["test"].labels == 1
    assert bold[own].sum() - plain[own].sum() >= 2
    for value in np.linspace(0, 3, 301):  # no shift that finds as much is more accurate
        found, _ = right_of(Shift({1: value}), model, "test")
        if found[own].sum() >= plain[own].sum() + 2:
            assert found.sum() <= bold.sum()
    sure = leads(*[5.0] * 100, *[-5.0] * 300, important=100)
    found, _ = right_of(bolder([Held(0, {"test": sure.scores["val"]})]), sure)
    assert found.all()  # nothing is missed: no more can be found


def test_a_rival_that_is_only_bolder_is_not_chosen():
    logits = drawn_logits() - np.array([0.0, 1.5, 0.0])
    baseline, modest, better = ([held(one, LABELS)] for one in (5 * logits, 0.2 * logits, drawn_logits(2.5)))
    own = aim(MostRecall(), baseline, prior_rows=5000)
    assert not is_chosen(own, modest, baseline)
    assert not is_chosen(own, baseline, baseline)
    assert is_chosen(own, better, baseline)
    poor = [held(drawn_logits(0.5), LABELS)]
    assert not is_chosen(own, poor, baseline)


def test_fewer_false_alarms_or_less_cost_choose_a_rival():
    baseline, better = [held(drawn_logits(1.0), LABELS)], [held(drawn_logits(2.5), LABELS)]
    for goal in (
        AtLeast(0.9, is_seen=True),
        AtLeast(0.9, 0.95),
        LeastCost(np.array([[0, 1, 1], [20, 0, 20], [1, 1, 0]])),
    ):
        assert is_chosen(aim(goal, baseline), better, baseline)
        assert not is_chosen(aim(goal, better), baseline, better)


def test_the_median_model_is_neither_the_best_nor_the_worst():
    recalls = {7: 0.2, 3: 1.0, 5: 0.6, 4: 0.8, 6: 0.4}
    models = [
        leads(*np.where(np.arange(10) < 10 * recall, 1.0, -1.0), *[-1.0] * 10, important=10, seed=seed)
        for seed, recall in recalls.items()
    ]
    goal, plain = MostRecall(), argmax_of((1,))
    assert models[find_median(goal, models, [plain] * 5)].seed == 5
    assert models[find_median(goal, models[:4], [plain] * 4)].seed == 5  # of .2, .6, .8, 1.0 the lower in the middle
    assert models[find_median(goal, models[:1], [plain])].seed == 7
    alarms = [leads(1.0, *np.where(np.arange(9) < num, 1.0, -1.0), important=1, seed=num) for num in (5, 1, 3)]
    assert alarms[find_median(AtLeast(0.9), alarms, [plain] * 3)].seed == 3


def test_figures_are_those_of_the_rule_and_are_wider_for_groups():
    model = leads(2.0, -0.5, -3.0, 1.0, -2.0, -2.5, important=3)
    found = _figures("after", model, Shift({1: 1.0}), MostRecall(), "ab", None)
    (recall,), (precision,) = found.recalls, found.precisions
    assert (recall.hits, recall.num, precision.hits, precision.num) == (2, 3, 2, 3)
    assert (found.false_alarms.hits, found.accuracy.hits, found.accuracy.num, found.cost) == (1, 4, 6, None)
    grouped = _figures("after", model, Shift({1: 1.0}), MostRecall(), "ab", np.array([0, 0, 0, 1, 1, 1]))
    assert grouped.accuracy.num_groups == 2
    wide, narrow = (one.accuracy.high - one.accuracy.low for one in (grouped, found))
    assert wide >= narrow


def test_evidence_has_no_intervals_below_three_seeds():
    for num_seeds in (2, 3):
        models = [drawn(1.5 + 0.1 * seed) for seed in range(num_seeds)]
        rows = rows_of(models, "test", "abc")
        arms = {
            name: apply(name, models, Shift({1: shift}), "test", MostRecall())
            for name, shift in [("baseline", 0.0), ("redecided", 1.0)]
        }
        found = compare(arms, [("redecided", "baseline"), ("method", "baseline")], rows, final="redecided")
        change = found.compare("redecided", "baseline")
        assert (found.num_seeds, len(found.comparisons)) == (num_seeds, 1)
        assert (change.recall.low is None) == (num_seeds < 3)
        before, after = found.arms
        assert change.recall.value == pytest.approx(after.recall - before.recall)
        assert change.false_alarms.value == pytest.approx(after.false_alarms.value - before.false_alarms.value)
        assert min(change.recall.value, change.false_alarms.value) > 0
        assert before.recall == pytest.approx(before.recalls[0].hits / before.recalls[0].num)
        assert mean_of(arms["baseline"], rows, "recall") == pytest.approx(before.recall)
        assert [one.name for one in found.classes] == ["a", "b", "c"]
        assert all(one.change.value <= 0 for one in found.classes if not one.important)


def test_one_trained_model_has_intervals_over_rows_and_none_over_seeds():
    model = drawn()
    arm = {"baseline": apply("", [model], argmax_of((1,)), "test", MostRecall())}
    over_seeds = compare(arm, [], rows_of([model], "test", "abc"), "baseline").arms[0]
    over_rows = compare(arm, [], Judging([model.scores["test"]], "abc"), "baseline").arms[0]
    assert over_seeds.accuracy.low is None
    assert over_rows.accuracy.low < over_rows.accuracy.value < over_rows.accuracy.high
