"""A claim by value: figures, gains and losses of small tables, and what every step is compared with."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from camri.errors import InputError
from camri.fitting import claims
from camri.fitting.claims import (
    MOST_LOST,
    claim_of,
    compare_arms,
    figures_of,
    find_lost,
    loose_floor,
    measure,
    pick_model,
)
from camri.methods import setting
from camri.metrics import condense
from camri.selection import ArmScores, Floor, Rule, Validation
from camri.stats import Estimate, compare, design_effect, wilson
from camri.study.store import open_run
from camri.study.verdict import SEED
from camri.text import noun_of
from tests.report.conftest import CLASSES, make_run

ROWS = noun_of((2,))
LABELS = np.repeat([0, 1, 2, 3, 4, 5], [4, 6, 2, 5, 5, 5])  # 1 and 2 are important
NAMES = ("a", "b", "c", "d", "e", "f")


def right(*shares):
    """Which images of two models are right: of each class so many, the second model one less of class 3."""
    table = np.zeros((2, len(LABELS)), bool)
    for seed in range(2):
        for label, num in enumerate(shares):
            table[seed, np.flatnonzero(label == LABELS)[: num - (seed and label == 3)]] = True
    return table


def arm(*shares, wrong=0):
    """Two models of such shares; what is not right is taken for class `wrong`, what is of that one for the next."""
    said = [np.where(row, LABELS, np.where(wrong == LABELS, wrong + 1, wrong)) for row in right(*shares)]
    return ArmScores.of([condense(np.eye(6)[one], LABELS, (1, 2)) for one in said], [("x", (0.0,))] * 2)


def test_figures_are_the_classes_mean_recall_their_hits_and_the_accuracy_of_all():
    found = figures_of(arm(4, 3, 2, 5, 0, 1))
    assert (found.recall, found.hits, found.num) == (0.75, 10, 16)  # 3/6 and 2/2; of two models
    assert found.accuracy == pytest.approx((15 + 14) / 54)
    assert type(found.hits) is type(found.num) is int


def test_false_alarms_are_of_no_important_class_and_precision_counts_every_wrong_call():
    # Class 2 is said of 1 a, 3 b (an important class: no false alarm), 5 e and 4 f; the second model adds a d.
    found = figures_of(arm(3, 3, 2, 5, 0, 1, wrong=2))
    assert found.false_alarms == pytest.approx((10 + 11) / 54)
    assert found.precisions == (1.0, 4 / (15 + 16))  # 2 of 2 + 1 + 3 + 5 + 4, and of one more
    # No model says class 2: what is of it is taken for 3.
    never = figures_of(arm(4, 6, 0, 5, 5, 5, wrong=0))
    assert (never.false_alarms, never.precisions) == (0.0, (1.0, None))
    assert json.dumps(vars(never), allow_nan=False)


def test_changes_are_of_mean_recall_accuracy_and_false_alarms_after_less_before():
    after, before = arm(4, 3, 2, 5, 0, 1, wrong=2), arm(4, 4, 0, 5, 2, 1)
    gains = compare_arms(after, before, LABELS, None, (1, 2))
    assert gains.recall.value == pytest.approx((-1 / 6 + 1) / 2)
    assert gains.accuracy.value == pytest.approx(-1 / 27)
    assert gains.false_alarms.value == pytest.approx((9 + 10) / 54)  # before, wrong ones are taken for class 0
    assert gains.false_alarms.low < gains.false_alarms.value < gains.false_alarms.high
    assert gains == compare_arms(after, before, LABELS, None, (1, 2)), "the same data give the same interval"


def test_intervals_are_of_groups_where_rows_come_in_groups():
    arms, groups = (arm(4, 3, 2, 5, 0, 1, wrong=2), arm(4, 4, 0, 5, 2, 2, wrong=1)), np.arange(len(LABELS)) // 2
    after, before = (one.correct for one in arms)
    assert np.array_equal(after, right(4, 3, 2, 5, 0, 1))
    own, fifth = np.isin(LABELS, (1, 2)), LABELS == 5
    expected = [
        compare(after[:, own], before[:, own], parts=LABELS[own], groups=groups[own], seed=SEED),
        compare(after, before, groups=groups, seed=SEED),
        compare(arms[0].false_alarms, arms[1].false_alarms, groups=groups, seed=SEED),
        compare(after[:, fifth], before[:, fifth], groups=groups[fifth], seed=SEED),
    ]

    def found(groups):
        lost = dict(find_lost(after, before, LABELS, groups, (1, 2), NAMES))
        return [*vars(compare_arms(*arms, LABELS, groups, (1, 2))).values(), lost["f"]]

    assert found(groups) == [one.plain for one in expected]
    assert all(one != other for one, other in zip(found(groups), found(None), strict=True))


def test_classes_that_lost_recall_are_at_most_three_largest_loss_first():
    before, after = right(4, 6, 2, 5, 5, 5), right(3, 0, 0, 5, 3, 1)
    lost = find_lost(after, before, LABELS, None, (1, 2), NAMES)
    assert [name for name, _ in lost] == ["f", "e", "a"]  # d lost nothing, b and c are the important ones
    assert [loss.value for _, loss in lost] == pytest.approx([-0.8, -0.4, -0.25])
    assert find_lost(before, after, LABELS, None, (1, 2), NAMES) == ()
    most = find_lost(right(3, 6, 2, 3, 2, 1), before, LABELS, None, (1, 2), NAMES)
    assert [name for name, _ in most] == ["f", "e", "d"]
    assert len(most) == MOST_LOST == 3
    assert most[-1][1].value == pytest.approx(-0.4)


def test_a_model_s_figures_are_counts_of_its_test_images_after_the_shift():
    logits = np.array([[0, 1, 0], [0, -1, 0], [0, -3, 0], [1, 0, 0], [3, 0, 0], [0, 0, 1]])
    test = condense(logits, [1, 1, 1, 0, 0, 2], important=(1,))
    found = measure(setting("ce"), 7, (1.5,), test)
    assert (found.setting, found.seed, found.shift) == (setting("ce"), 7, (1.5,))
    assert (found.hits, found.num) == ((2,), (3,))
    assert (found.num_right, found.num_images) == (3, 6)  # two of the three others are captured
    assert (found.accuracy, *found.recalls) == (Estimate(0.5, *wilson(3, 6)), Estimate(2 / 3, *wilson(2, 3)))
    assert measure(setting("ce"), 7, (0.0,), test).num_right == 4
    assert (found.called, found.num_false_alarms) == ((4,), 2)
    assert (found.precisions, found.false_alarms) == (
        (Estimate(0.5, *wilson(2, 4)),),
        Estimate(2 / 6, *wilson(2, 6)),
    )
    grouped = measure(setting("ce"), 7, (1.5,), test, np.array([0, 0, 1, 2, 2, 3]))
    assert grouped.effects == (
        design_effect([1, 1, 0], [0, 0, 1]),
        design_effect([1, 1, 0, 0, 1, 0], [0, 0, 1, 2, 2, 3]),
        design_effect([0, 0, 0, 1, 0, 1], [0, 0, 1, 2, 2, 3]),
        design_effect([1, 1, 0, 0], [0, 0, 2, 3]),
    )
    own, every, alarms, called = grouped.effects
    assert (grouped.false_alarms.low, grouped.false_alarms.high) == wilson(2 / alarms, 6 / alarms)
    assert (grouped.precisions[0].low, grouped.precisions[0].high) == wilson(2 / called, 4 / called)
    assert (grouped.recalls[0].low, grouped.recalls[0].high) == wilson(2 / own, 3 / own)
    assert (grouped.accuracy.low, grouped.accuracy.high) == wilson(3 / every, 6 / every)
    assert json.dumps([found.hits, found.num, found.called, found.num_right, found.effects]), "counts are plain"


def test_a_model_that_never_predicts_a_class_has_no_precision_of_it():
    # Of classes 1 and 2: the first is taken for the second once, which is no false alarm but a wrong call.
    logits = np.eye(4)[[1, 2, 2, 0, 1, 3, 3]]
    test = condense(logits, [1, 1, 2, 0, 3, 3, 3], important=(1, 2))
    both = measure(setting("ce"), 7, (0.0, 0.0), test)
    assert (both.called, both.num_false_alarms) == ((2, 2), 1)
    assert both.precisions == (Estimate(0.5, *wilson(1, 2)),) * 2
    for groups in (None, np.array([0, 0, 1, 2, 2, 3, 3])):
        found = measure(setting("ce"), 7, (-5.0, 0.0), test, groups)
        assert (found.called, found.num_false_alarms) == ((0, 2), 0)
        assert found.precisions[0] is None
        assert (groups is None) == (found.effects == ())


def leads(*values):
    """Two important images and two others, with these leads of the important score."""
    return condense(np.array([[0.0, lead] for lead in values]), [1, 1, 0, 0], important=(1,))


def test_of_equal_models_the_first_seed_is_handed_over_and_a_model_at_the_floor_counts():
    same = leads(0.5, -0.5, -1.0, -1.0)
    assert pick_model(Validation("x", {9: same, 2: same, 5: same}), Floor(0.5), Rule())[0] == 2
    # Exactly at the floor, to the rounding of a mean.
    found = Validation("x", {1: leads(1, -9, -9, -9), 2: leads(1, 1, 1, -9)})
    assert pick_model(found, Floor(0.75 + 1e-13), Rule()) == (2, (0.0,))


def test_of_models_at_or_above_the_floor_recall_decides_before_accuracy():
    def ten(*captured):
        logits = np.array([[0.0, 1.0 if place in captured else -9.0] for place in range(10)])
        return condense(logits, [1] * 4 + [0] * 6, important=(1,))

    found = Validation("x", {1: ten(0, 1, 2), 2: ten(0, 1, 2, 3, 4, 5)})  # .75 at .9 accuracy, and 1 at .8
    assert pick_model(found, Floor(0.8), Rule())[0] == 2
    assert pick_model(found, Floor(0.85), Rule())[0] == 1


def test_two_important_classes_without_a_shift_have_two_zeros():
    scores = condense(np.eye(3), [1, 2, 0], important=(0, 1))  # every image is wrong
    assert pick_model(Validation("x", {0: scores}), Floor(1.0), Rule())[1] == (0.0, 0.0)


def shares(run, row, shift, index=1):
    """Recall of a class, accuracy and false alarms of a trial on the run's test images."""
    scores, labels = run.scores(row, "test", (index,)), run.labels("test")
    correct, said = scores.correct(shift), scores.predict(shift)
    return correct[labels == index].mean(), correct.mean(), (said[labels != index] == index).sum() / len(labels)


def test_every_step_is_compared_with_the_one_before_and_all_together_with_the_first(tmp_path):
    folder = make_run(tmp_path / "run", seeds=4, sharpness={"camri": 1.2}, bias={"camri": 1.5})
    others = {"ce": {}, "l2softmax": {"s": [8]}}
    plain = make_run(tmp_path / "plain", methods=others, seeds=[6, 5, 4, 3, 2, 1, 0], bias={"ce": -0.5})
    claim = claim_of(folder, plain, "label smoothing 0.1", 5)
    steps = claim.evidence.steps
    assert [step.name for step in steps] == ["before", "training", "shift", "method", "together"]
    assert "label smoothing 0.1" in steps[1].title
    assert "camri" in steps[3].title
    assert steps[0].gains is None
    for before, step in (*itertools.pairwise(steps[:4]), (steps[0], steps[-1])):
        for name in ("recall", "accuracy", "false_alarms"):
            change = getattr(step.figures, name) - getattr(before.figures, name)
            assert getattr(step.gains, name).value == pytest.approx(change), (step.name, name)
    assert steps[-1].figures == steps[-2].figures
    with open_run(plain) as run:
        of_plain = np.mean([shares(run, row, (0.0,)) for row in run.rows(method="ce") if row.seed < 4], axis=0)
    with open_run(folder) as run:
        of_ce = np.mean([shares(run, row, (0.0,)) for row in run.rows(method="ce")], axis=0)
    for step, expected in zip(steps, (of_plain, of_ce), strict=False):
        one = step.figures
        assert (one.recall, one.accuracy, one.false_alarms) == pytest.approx(tuple(expected)), step.name
    assert steps[-1].figures.false_alarms > steps[0].figures.false_alarms, "the bias costs some"
    assert steps[0].figures.num == 4 * 100
    # Losses are over all steps together: four classes of equal size share what accuracy lost or won.
    lost = claim.evidence.lost
    assert {name for name, _ in lost} == set(CLASSES) - {"column"}
    changes = steps[-1].gains.recall.value + sum(loss.value for _, loss in lost)
    assert changes / 4 == pytest.approx(steps[-1].gains.accuracy.value)
    assert (claim.evidence.num_seeds, len(claim.shift), claim.evidence.is_unanimous) == (4, 1, True)
    assert claim.seed in range(4)


def test_halves_that_picked_another_setting_than_the_one_handed_over_are_reported(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "run", seeds=4, sharpness={"camri": 1.2})
    real = claims.judge_column

    def picked(*keys):
        def judge(reading, column):
            verdict = real(reading, column)
            said = verdict.best.judgement
            arms = {**said.arms, "chosen": replace(said.arms["chosen"], keys=keys or said.arms["chosen"].keys)}
            return replace(verdict, best=replace(verdict.best, judgement=replace(said, arms=arms)))

        return judge

    handed, other = claim_of(folder, None, "plain", 1).setting.key, setting("wce", 1, w=4).key
    for keys, is_unanimous in (((), True), ((handed, other), False), ((other, other), False)):
        monkeypatch.setattr(claims, "judge_column", picked(*keys))
        assert claim_of(folder, None, "plain", 1).evidence.is_unanimous is is_unanimous, keys


def test_other_trainings_that_were_no_better_are_counted(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "run", seeds=2, sharpness={"camri": -1.0, "wce": -1.0, "l2softmax": -1.0})
    for num, said in ((5, "4 other trainings were"), (2, "1 other training was"), (1, "")):
        assert said in claim_of(folder, None, "plain", num).evidence.steps[0].title
    monkeypatch.setattr(claims, "is_sure", lambda *_: True)
    claim = claim_of(folder, None, "plain", 1)
    assert claim.evidence.is_unanimous
    assert not claim.evidence.gain_is_shown, "cross-entropy has no gain over itself"
    assert claim.setting == setting("ce")


def test_finals_without_cross_entropy_claim_nothing(tmp_path):
    folder = make_run(tmp_path / "run", seeds=2, failing={("ce", 0), ("ce", 1)})
    with pytest.raises(InputError, match="every cross-entropy trial of the finals failed"):
        claim_of(folder, None, "plain", 1)


def test_accuracy_that_may_be_given_up_is_not_held_against_a_method(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "run", seeds=4, sharpness={"camri": 0.5}, num_images=2000)
    monkeypatch.setattr(claims.RunReader, "rule", Rule(max_accuracy_drop=0.05))
    evidence = claim_of(folder, None, "plain", 1).evidence
    assert evidence.over_shifted.low > 0
    assert evidence.gains.accuracy.high < 0
    assert evidence.gain_is_shown


def test_few_validation_rows_or_few_groups_of_them_do_not_hold_accuracy(tmp_path):
    def rows(num, num_right):
        logits = np.where(np.arange(num)[:, None] < num_right, [[1.0, 0.0]], [[0.0, 1.0]])
        return condense(logits, [0] * num, important=(0,))

    two = Validation("ce", {0: rows(200, 150), 1: rows(200, 170)})  # 160 of 200: 0.738 to 0.850
    for pieces in ("on 200 validation rows", "± 6 points"):
        assert pieces in loose_floor(two, ROWS)
    many = Validation("ce", {0: rows(400, 320)})
    assert loose_floor(many, ROWS) is None  # ± 3.9
    assert "± 5 points" in loose_floor(Validation("ce", {0: rows(300, 240)}), ROWS)
    assert "± 11 points" in loose_floor(many, ROWS, np.arange(400) // 8)
    folder = make_run(tmp_path / "run", seeds=2, num_images=100)
    assert "100 validation images" in claim_of(folder, None, "plain", 1).cautions[0]
