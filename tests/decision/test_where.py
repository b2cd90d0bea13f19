"""Where a rule will run: prevalence, budgets of alarms, places, and a guarantee on average."""

import numpy as np
import pytest

from camri import ImportantClassifier, InputError, audit
from camri.decision import exact, load_answer
from camri.decision.goals import AtLeast, Within
from camri.decision.tune import Tuner


def made(num, seed=0, share=0.3):
    drawn = np.random.default_rng(seed)
    labels = (drawn.random(num) < share).astype(int)
    lead = drawn.normal(size=num) + 2 * labels - 1.5
    return np.column_stack([np.zeros(num), lead]), labels


def judged(num=4000, seed=0, **options):
    return audit(*made(num, seed), "fraud", classes=["ok", "fraud"], **options)


def test_recall_does_not_depend_on_the_prevalence_and_the_rest_is_that_of_the_prevalence():
    here, there = judged(at_least=0.9), judged(at_least=0.9, prevalence={"fraud": 0.01})
    assert there.rule == here.rule
    one, two = (found.evidence.arms[1] for found in (here, there))
    assert one.recalls == two.recalls
    hit, wrong = one.recalls[0].value, one.false_alarms.hits / (4000 - one.recalls[0].num)
    assert two.false_alarms.value == pytest.approx(0.99 * wrong)
    assert two.accuracy.value == pytest.approx(0.01 * hit + 0.99 * (1 - wrong))
    assert two.precisions[0].value == pytest.approx(0.01 * hit / (0.01 * hit + 0.99 * wrong))
    for share in (two.false_alarms, two.accuracy, two.precisions[0]):
        assert share.low < share.value < share.high


def test_a_prevalence_equal_to_that_of_the_rows_changes_nothing():
    _, labels = made(4000)
    plain, weighed = judged(), judged(prevalence={"fraud": float(labels.mean())})
    assert weighed.rule == plain.rule
    one, two = (found.evidence.arms[1] for found in (plain, weighed))
    assert two.accuracy.value == pytest.approx(one.accuracy.value)
    assert two.precisions[0].value == pytest.approx(one.precisions[0].value)


@pytest.mark.parametrize("there", [None, 0.05])
@pytest.mark.parametrize("goal", [Within(false_alarms=0.04), Within(alarms=0.1)], ids=["false", "all"])
def test_a_budget_is_kept_on_new_rows(goal, there):
    fresh, truth = made(200_000, 99)
    scores, kept = exact(fresh, truth, [1]), []
    for seed in range(150):
        tuner = Tuner(exact(*made(1500, seed), [1]), goal, prevalence=there)
        chosen = tuner.choose()
        if not chosen.has_met:
            continue
        called = chosen.rule.predict(scores) == 1
        share = truth.mean() if there is None else there
        wrong = (1 - share) * called[truth == 0].mean()
        kept.append((wrong + share * called[truth == 1].mean() if goal.alarms else wrong) <= goal.share)
    assert len(kept) > 100
    assert np.mean(kept) >= 0.95 - 2 * np.sqrt(0.05 * 0.95 / len(kept))


def test_a_recall_on_average_is_the_mean_over_calibration_sets():
    fresh = exact(*made(200_000, 99), [1])
    found = []
    for seed in range(200):
        chosen = Tuner(exact(*made(300, seed), [1]), AtLeast(0.9)).choose()
        found.append(float(fresh.recall(chosen.rule)[0]))
    assert np.mean(found) >= 0.9 - 2 * np.std(found) / np.sqrt(len(found))
    assert np.mean(found) < 0.93
    sure = judged(300, at_least=0.9)
    assert judged(300, at_least=0.9, confidence=None).evidence.arms[1].false_alarms.value <= (
        sure.evidence.arms[1].false_alarms.value
    )


def test_nineteen_rows_are_enough_on_average_for_95():
    lead = np.r_[np.linspace(1, 2, 19), np.linspace(-2, 1, 60)]
    labels = np.r_[np.ones(19, int), np.zeros(60, int)]
    scores = exact(np.column_stack([np.zeros(79), lead]), labels, [1])
    assert Tuner(scores, AtLeast(0.95)).choose().has_met
    fewer = exact(np.column_stack([np.zeros(78), lead[1:]]), labels[1:], [1])
    assert not Tuner(fewer, AtLeast(0.95)).choose().has_met


def test_a_recall_is_guaranteed_in_every_place_or_the_missing_rows_are_named():
    logits, labels = made(4000)
    places = np.random.default_rng(1).choice(["Ulm", "Bonn", "Kiel"], 4000)
    found = judged(at_least=0.8, per=places)
    said = found.rule.predict(logits)
    for one in found.guarantee.places:
        own = (places == one.name) & (labels == 1)
        assert (one.hits, one.num) == ((said[own] == 1).sum(), own.sum())
        assert one.hits / one.num >= 0.8
    assert found.is_guaranteed
    places[np.flatnonzero(labels == 1)[:10]] = "Hof"
    refused = judged(at_least=0.8, per=places)
    assert not refused.is_guaranteed
    assert [(one.name, one.missing) for one in refused.guarantee.places if one.missing] == [("Hof", 4)]
    assert "Hof: 4 more of “fraud”" in str(refused)


def test_counts_a_day_are_those_of_the_figures():
    found = judged(at_least=0.9, prevalence={"fraud": 0.01}, rows_per_day=1000)
    arm = found.evidence.arms[1]
    right = 10 * arm.recalls[0].value
    alarms = right + 1000 * arm.false_alarms.value
    assert f"{alarms:,.0f} alarms a day" in str(found)
    assert f"1 in {alarms / right:,.2g}" in str(found)


def test_an_answer_with_all_of_it_is_saved_and_loaded(tmp_path):
    found = judged(at_least=0.9, prevalence={"fraud": 0.01}, rows_per_day=1000, per=["a", "b"] * 2000)
    assert load_answer(found.save(tmp_path / "decision.json")).to_json() == found.to_json()


def test_the_estimator_keeps_a_budget_and_a_prevalence():
    from sklearn.linear_model import LogisticRegression

    logits, labels = made(3000)
    model = ImportantClassifier(LogisticRegression(), 1, max_false_alarms=0.02, prevalence={1: 0.1}).fit(logits, labels)
    wrong = (model.predict(logits) == 1)[labels == 0].mean()
    assert 0.005 < 0.9 * wrong <= 0.02


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prevalence": {"frod": 0.1}}, "prevalence names 'frod'.*did you mean 'fraud'"),
        ({"prevalence": {"fraud": 1.5}}, "prevalence fraud=1.5 is not allowed"),
        ({"prevalence": {"fraud": "x"}}, "prevalence='x' is not a number"),
        ({"prevalence": {"fraud": 0.5, "ok": 0.4}}, "leave a rest for the other classes"),
        ({"alarms_per_day": 5}, "give rows_per_day too"),
        ({"rows_per_day": -1}, "rows_per_day=-1 is not allowed"),
        ({"max_false_alarms": 2}, "max_false_alarms=2 of the rows is not allowed"),
        ({"max_false_alarms": 0.1, "at_least": 0.9}, "give one goal"),
        ({"max_false_alarms": 0.1, "confidence": None}, "a budget is kept with a confidence, not on average"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        judged(300, **options)
