"""The audit: counts that argmax repeats, rows judged by rules they did not tune, intervals that hold."""

import json
import math
import warnings

import numpy as np
import pytest

from camri.decision import Tuner, audit, design_effect, exact, share_of, wilson
from camri.decision.stats import change_of, expect
from camri.errors import InputError
from camri.report.words import caution_text, class_table, price_table, say
from tests.decision.made import predict, rows, softmax

CLASSES = ("limit", "stop", "yield", "entry")


def made(num=800, seed=0, bias=-1.2):
    """Logits of a model that holds class 1 back, and labels."""
    drawn = np.random.default_rng(seed)
    labels = drawn.choice(4, p=[0.4, 0.15, 0.3, 0.15], size=num)
    logits = drawn.normal(size=(num, 4)) + 2.5 * np.eye(4)[labels]
    logits[:, 1] += bias
    return logits, labels


def made_groups(num_groups=120, size=6, seed=0):
    """Logits, labels and groups: rows of a group have one label and share half of their noise."""
    drawn = np.random.default_rng(seed)
    labels = np.repeat(drawn.choice(4, p=[0.4, 0.15, 0.3, 0.15], size=num_groups), size)
    shared = drawn.normal(size=(num_groups, 4)).repeat(size, axis=0)
    logits = math.sqrt(0.5) * (shared + drawn.normal(size=shared.shape)) + 2.5 * np.eye(4)[labels] - [0, 1.2, 0, 0]
    return logits, labels, np.repeat(np.arange(num_groups), size)


@pytest.fixture(scope="module")
def found():
    return audit(*made(), "stop", classes=CLASSES)


# ---- figures are counts


@pytest.mark.parametrize("important", [[1], [1, 3]], ids=str)
@pytest.mark.parametrize(
    "goal", [{}, {"at_least": 0.7}, {"cost_matrix": (1 - np.eye(4)) * [[1], [4], [1], [4]]}], ids=str
)
def test_all_figures_are_counts_of_the_judged_rows(important, goal):
    logits, labels = made()
    split = np.array(["val", "test"] * 400)
    found = audit(logits, labels, important, split=split, **goal)
    here, truth, rule = logits[split == "test"], labels[split == "test"], found.point.rule
    now = here.argmax(axis=1)
    then = rule.predict(here) if goal.get("cost_matrix") is not None else predict(rule, here)
    before, after = found.evidence.arms
    for arm, said in ((before, now), (after, then)):
        right, alarm = said == truth, np.isin(said, important) & ~np.isin(truth, important)
        assert (arm.accuracy.hits, arm.accuracy.num, arm.false_alarms.hits) == (right.sum(), 400, alarm.sum())
        for index, recall, precision in zip(important, arm.recalls, arm.precisions, strict=True):
            assert (recall.hits, recall.num) == (right[truth == index].sum(), (truth == index).sum())
            assert (precision.hits, precision.num) == (right[said == index].sum(), (said == index).sum())
        share = share_of(right)
        assert (arm.accuracy.low, arm.accuracy.high) == (share.low, share.high) == wilson(int(right.sum()), 400)
    gains = [(then == truth)[truth == k].mean() - (now == truth)[truth == k].mean() for k in important]
    assert found.change.recall.value == pytest.approx(np.mean(gains))
    for index, one in enumerate(found.evidence.classes):
        own = truth == index
        wrong = np.bincount(now[own & (now != truth)], minlength=4)
        assert (one.name, one.important) == (str(index), index in important)
        assert (one.before.hits, one.after.hits) == ((now == truth)[own].sum(), (then == truth)[own].sum())
        assert dict(one.mistaken_for) == {str(k): n for k, n in enumerate(wrong) if n}
    if "cost_matrix" in goal:
        costs = goal["cost_matrix"]
        assert (before.cost, after.cost) == pytest.approx((costs[truth, now].mean(), costs[truth, then].mean()))
    assert (found.tuned_on, found.source.num_judged) == ("split", 400)
    alone = audit(logits[split == "val"], labels[split == "val"], important, **goal)
    assert alone.point.rule == rule, "it was tuned on other rows than the val rows"


@pytest.mark.filterwarnings("ignore:.*copies")
def test_ties_are_broken_as_argmax_does():
    logits = np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 2.0], [3.0, 0.0]] * 25)
    for important in (0, 1):
        found = audit(logits, np.array([0, 1, 1, 0] * 25), important)
        assert found.evidence.arms[0].accuracy.hits == 75
        assert found.evidence.classes[1].before.hits == 25


@pytest.mark.filterwarnings("ignore:.*copies")
def test_a_class_is_mistaken_for_the_five_it_is_taken_for_most():
    predicted = np.repeat([1, 2, 3, 4, 5, 6, 7], [2, 1, 7, 5, 3, 2, 4])
    logits = np.eye(8)[np.concatenate([predicted, np.repeat(np.arange(8), 30)])]
    labels = np.concatenate([np.zeros(24, dtype=int), np.repeat(np.arange(8), 30)])
    classes = audit(logits, labels, 0, kind="logits").evidence.classes
    assert classes[0].mistaken_for == (("3", 7), ("4", 5), ("7", 4), ("5", 3), ("1", 2))
    assert classes[1].mistaken_for == ()


def test_a_class_that_is_never_predicted_or_has_no_rows_has_no_nan():
    logits, labels = made()
    logits[:, 3] -= 100.0
    found = audit(np.column_stack([logits, np.full(800, -999.0)]), labels, [1, 3])
    never = [arm.precisions[1] for arm in found.evidence.arms]
    assert [(one.value, one.num) for one in never] == [(None, 0)] * 2
    assert found.evidence.classes[4].change is None
    assert json.dumps(found.to_json(), allow_nan=False)
    assert price_table(found) is not None


def test_every_row_is_judged_by_a_rule_it_had_no_part_in(monkeypatch):
    logits, labels = made(400)
    seen, choose = [], Tuner.choose

    def spy(self, rows=None, *how, **named):
        chosen = choose(self, rows, *how, **named)
        seen.append((rows, chosen.rule))
        return chosen

    monkeypatch.setattr(Tuner, "choose", spy)
    found = audit(logits, labels, 1)
    every, after, times = exact(logits, labels, (1,)), np.zeros(400, bool), np.zeros(400, int)
    folds = [(others, rule) for others, rule in seen if others is not None]
    assert len(folds) == found.num_folds == 10
    for others, rule in folds:
        left_out = ~np.isin(np.arange(400), others)
        times += left_out
        after[left_out] = every.correct(rule)[left_out]
        assert np.bincount(labels[left_out], minlength=4).min() >= np.bincount(labels).min() // 10
    assert (times == 1).all()
    assert found.evidence.arms[1].accuracy.hits == after.sum()
    assert found.change.recall.gained == (after & ~every.correct())[labels == 1].sum()


# ---- what it advises


def test_no_gain_is_claimed_from_nothing_and_a_true_one_is_seen():
    claimed = [audit(*made(600, seed, bias=0.0), 1).verdict.kind == "change_the_decision" for seed in range(20)]
    assert sum(claimed) <= 2
    gains = [audit(*made(600, seed), 1) for seed in range(10)]
    assert all(one.change.recall.low > 0 for one in gains)


def test_intervals_hold_the_truth_of_the_advised_rule():
    fresh, inside = exact(*made(100_000, 999), (1,)), []
    for seed in range(25):
        one = audit(*made(500, seed), 1)
        rule = one.point.rule
        recall = float(fresh.recall(rule)[0] - fresh.recall()[0])
        alarms = float(fresh.false_alarms(rule).mean() - fresh.false_alarms().mean())
        truths = recall, fresh.accuracy(rule) - fresh.accuracy(), alarms
        for change, true in zip((one.change.recall, one.change.accuracy, one.change.false_alarms), truths, strict=True):
            inside.append(change.low <= true <= change.high)
    assert np.mean(inside) > 0.9, f"{sum(inside)} of {len(inside)}"


def test_the_chance_of_a_drop_weighs_what_to_expect():
    before, after = np.arange(40) < 20, (np.arange(40) < 30) & (np.arange(40) >= 3)
    seen = change_of(before, after)
    shrunk = expect(seen, -0.05, 120)
    assert (shrunk.stdev, shrunk.mean) == (seen.normal.stdev, pytest.approx((7 / 42 - 3 * 0.05) / 4))
    groups = np.arange(40) // 4
    worth = 40 / design_effect(after.astype(int) - before, groups)
    grouped = change_of(before, after, groups=groups)
    assert worth < 40
    assert expect(grouped, 0.1, 40).mean == pytest.approx((worth * grouped.normal.mean + 4.0) / (worth + 40))
    found = audit(*made(300), 1)
    assert 0 < found.change.chance_of_fall < found.change.chance_of_drop < 1


@pytest.mark.parametrize("num", [19, 20])
@pytest.mark.parametrize("side", ["all", "val", "test"])
def test_too_few_rows_on_either_side_are_too_few(num, side):
    logits, labels = made(1200)
    own = np.flatnonzero(labels == 1)
    if side == "all":
        kept = np.flatnonzero((labels != 1) | (np.cumsum(labels == 1) <= num))
        found = audit(logits[kept], labels[kept], 1)
    else:
        split = np.where(np.arange(1200) % 2, "val", "test")
        split[own] = {"val": "test", "test": "val"}[side]
        split[own[:num]] = side
        found = audit(logits, labels, [1, 3], split=split)
    assert (found.verdict.kind == "cannot_tell") is (num == 19)
    assert (price_table(found) is None) is (num == 19)
    assert (len(class_table(found).header) > 4) is (num == 20 and found.is_changed)


def test_more_accuracy_may_be_given_up_and_what_costs_too_much_is_a_choice():
    logits, labels = made()
    free, paid = audit(logits, labels, 1), audit(logits, labels, 1, max_accuracy_drop=0.03)
    assert paid.shift > free.shift
    assert paid.evidence.arms[1].accuracy.hits < free.evidence.arms[1].accuracy.hits
    kinds = {audit(*made(300, seed, bias=-0.3), 1).verdict.reason for seed in range(8)}
    assert "not_significant" in kinds


@pytest.mark.parametrize(
    "scores",
    [np.zeros((90, 3)), 5 * np.eye(3)[np.arange(90) % 3], np.eye(3)[np.arange(90) % 3], -np.eye(3)[np.arange(90) % 3]],
    ids=["constant", "separable", "certain", "all wrong"],
)
@pytest.mark.parametrize("goal", [{}, {"at_least": 0.8}, {"cost_matrix": 1 - np.eye(3)}], ids=str)
def test_scores_that_leave_nothing_to_tune_have_a_finite_answer(scores, goal):
    for important in (1, [1, 2]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # copies of rows
            found = audit(scores, np.arange(90) % 3, important, **goal)
        assert "NaN" not in json.dumps(found.to_json(), allow_nan=False)
        assert found.verdict.kind != "change_the_decision" or goal or found.change.recall.low > 0
        assert str(found)
        assert repr(found)
        assert found._repr_html_()


def test_prices_are_of_more_recall_than_there_is_and_come_once():
    logits, labels = made(300)
    for important in ([1, 3], [1]):
        found = audit(logits, labels, important)
        now = found.evidence.arms[0].recall
        assert [one.recall for one in found.prices] == sorted({one.recall for one in found.prices})
        for price in found.prices:
            said = (logits + np.isin(np.arange(4), important) * price.value).argmax(axis=1)
            assert price.recall == pytest.approx(np.mean([(said == k)[labels == k].mean() for k in important]))
            assert price.recall > now
            assert price.accuracy == (said == labels).mean()
            assert price.precision == pytest.approx(np.mean([(labels[said == k] == k).mean() for k in important]))
            alarms = np.isin(said, important) & ~np.isin(labels, important)
            assert price.false_alarms == pytest.approx(alarms.mean())
    both = audit(logits, labels, 1, at_least=0.7).both
    assert set(both) == {"shift", "threshold"}
    assert abs(both["shift"].recall - both["threshold"].recall) < 0.05


# ---- rows that come in groups


def test_groups_of_one_row_change_no_number(found):
    logits, labels = made()
    same = audit(logits, labels, "stop", classes=CLASSES, groups=[f"patient {row}" for row in range(800)])
    assert (same.source.num_groups, found.source.num_groups) == (800, None)
    assert same.point == found.point
    assert same.change.recall.value == found.change.recall.value
    assert same.evidence.arms[0].accuracy.low == found.evidence.arms[0].accuracy.low


def test_intervals_of_groups_are_those_of_what_their_rows_are_worth():
    logits, labels, groups = made_groups()
    found, alone = audit(logits, labels, 1, groups=groups), audit(logits, labels, 1)
    own = labels == 1
    before = (logits.argmax(axis=1) == labels)[own]
    effect, recall = design_effect(before, groups[own]), found.own[0].before
    assert effect > 2
    assert (recall.low, recall.high) == wilson(before.sum() / effect, own.sum() / effect)
    assert (recall.hits, recall.num, recall.num_groups) == (before.sum(), own.sum(), own.sum() // 6)
    for change, other in ((found.change.accuracy, alone.change.accuracy), (found.change.recall, alone.change.recall)):
        assert change.high - change.low > other.high - other.low


def test_intervals_hold_the_truth_for_groups_and_not_where_they_are_ignored():
    logits, labels, _ = made_groups(100_000, 1, 999)
    right = logits.argmax(axis=1) == labels
    truth, inside = (right[labels == 1].mean(), right.mean()), {True: [], False: []}
    for seed in range(60):
        logits, labels, groups = made_groups(100, 8, seed)
        right, own = logits.argmax(axis=1) == labels, labels == 1
        for told, found in inside.items():
            shares = [share_of(right[part], groups[part] if told else None) for part in (own, slice(None))]
            found += [one.low <= true <= one.high for true, one in zip(truth, shares, strict=True)]
    assert np.mean(inside[True]) > 0.93 > 0.85 > np.mean(inside[False])


def test_a_group_is_tuned_on_or_judged_and_never_both(monkeypatch):
    logits, labels, groups = made_groups(150, 5)
    labels[::5] = 2  # groups of two classes
    seen, cross_fit = [], Tuner.cross_fit
    monkeypatch.setattr(Tuner, "cross_fit", lambda self, fold: seen.append(fold) or cross_fit(self, fold))
    audit(logits, labels, 1, groups=groups)
    (fold,) = seen
    assert all(len(set(fold[groups == group].tolist())) == 1 for group in range(150))
    assert 60 <= np.bincount(fold).min() <= np.bincount(fold).max() <= 90


# ---- what is said: records and cautions, not words


def codes_of(answer):
    return [one.code for one in answer.cautions]


def test_what_is_odd_about_the_input_is_a_caution_and_a_warning():
    logits, labels = made()
    with pytest.warns(UserWarning, match="'age'|“age”") as told:
        found = audit(np.column_stack([logits, np.full(800, 40.5)]), labels, "stop", classes=[*CLASSES, "age"])
    assert (codes_of(found), len(told)) == (["empty_class"], 1)
    assert dict(found.cautions[0].values) == {"name": "age", "num": 800, "total": 800, "more": 0}
    costs = 1 - np.eye(4)
    costs[1, 3] = -2
    with pytest.warns(UserWarning, match="check the sign"):
        found = audit(logits, labels, 1, cost_matrix=costs)
    assert dict(found.cautions[0].values) == {"name": "1", "other": "3", "cost": -2.0, "right": 0.0}
    with pytest.warns(UserWarning, match="copies"):
        found = audit(np.vstack([logits, logits]), np.hstack([labels, labels]), 1)
    assert (codes_of(found)[0], dict(found.cautions[0].values)) == ("copies", {"num": 1600, "total": 1600})
    for one in (
        audit(logits, labels, 1),
        audit(logits.round(1), labels, 1),
        audit(logits, labels, 1, cost_matrix=1 - np.eye(4)),
    ):
        assert one.cautions == ()
    assert "copies" not in codes_of(
        audit(*(x.repeat(2, axis=0) for x in (logits, labels)), 1, groups=np.arange(1600) // 2)
    )


def test_few_groups_are_a_caution():
    logits, labels, groups = made_groups(150, 8)
    for num in (9, 10):
        kept = np.isin(groups, [*np.unique(groups[labels == 1])[:num], *np.unique(groups[labels != 1])])
        few = audit(logits[kept], labels[kept], "stop", classes=CLASSES, groups=groups[kept])
        assert ("few_groups" in codes_of(few)) is (num == 9)
    only = np.isin(groups, [np.unique(groups[labels == 1])[0], *np.unique(groups[labels != 1])])
    with pytest.raises(InputError, match=r"'stop' has 8 rows in all, in 1 groups, and none to tune on; .* in several"):
        audit(logits[only], labels[only], "stop", classes=CLASSES, groups=groups[only])


def test_a_rule_that_predicts_the_class_for_most_rows_says_so():
    drawn = np.random.default_rng(0)
    labels = (drawn.random(3000) < 0.04).astype(int)
    scores = np.column_stack([np.zeros(3000), drawn.normal(size=3000) - 3 + 0.3 * labels])
    found, fewer = (audit(scores, labels, 1, at_least=recall) for recall in (0.9, 0.3))
    said = (found.predict(scores) == 1).mean()
    assert found.is_advised
    assert said > 0.5
    (caution,) = found.cautions
    assert dict(caution.values) == {"share": pytest.approx(said), "own": pytest.approx(labels.mean())}
    assert caution_text(caution, found) in say(found).actions[1]
    assert fewer.is_advised
    assert fewer.cautions == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda z, y: (z[np.isin(y, (1, 3))], y[np.isin(y, (1, 3))], [1, 3]), "rows to judge are of important classes"),
        (lambda z, y: (z[y != 1], y[y != 1], 1), "important='1' has 0 rows in all and none to judge; give at least 20"),
    ],
)
def test_what_cannot_be_judged_is_refused(change, said):
    with pytest.raises(InputError, match=said):
        audit(*change(*made()))


def test_predict_refuses_scores_of_another_kind():
    logits, labels = made(600)
    p, fresh = softmax(logits), rows(50)[0]
    with pytest.raises(InputError, match=r"scores of shape \(600, 3\) do not fit 4 classes; give \(N, 4\)"):
        audit(logits, labels, 1).predict(logits[:, :3])
    for scores, wrong in ((p, 100 * p), (p, fresh), (100 * p, p), (100 * p, fresh)):
        with pytest.raises(InputError, match="which were judged; give the same kind"):
            audit(scores, labels, 1).predict(wrong)
    assert audit(p, labels, 1).predict(p[:0]).tolist() == []


def test_the_change_of_the_only_important_class_is_one_figure(found):
    (own,) = found.own
    assert own.change == found.change.recall


def test_copies_among_many_rows_are_noticed_in_a_part_of_them():
    drawn = np.random.default_rng(0)
    labels = drawn.integers(0, 3, 130_000)
    scores = drawn.normal(size=(130_000, 3)) + np.eye(3)[labels]
    alone = audit(scores, labels, 1)
    assert "copies" not in [one.code for one in alone.cautions]
    with pytest.warns(UserWarning, match="of 260,000 rows are exact copies of others"):
        twice = audit(np.r_[scores, scores], np.r_[labels, labels], 1)
    (told,) = (one.values for one in twice.cautions if one.code == "copies")
    assert told["num"] == 260_000
