"""Checking a decision on new rows: exact tests by hand, three verdicts and exit codes, looks that add up to 5 %."""

import json
import re

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, ndtri
from typer.testing import CliRunner

import camri
from benchmarks.three import watched
from camri.cli import app
from camri.decision.answer import Distribution
from camri.decision.check import drift_of, load_watch, rule_of, wealth
from camri.errors import InputError
from tests.decision.three_cases import CLASSES, made, write


def run(*words):
    done = CliRunner().invoke(app, [*map(str, words)])
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def found():
    labels, (scores,), _ = made(3000, 2.0)
    return camri.audit(scores, labels, "melanoma", classes=CLASSES, at_least=0.9)


def new_rows(num, seed=1, moved=0.0):
    labels, (scores,), _ = made(num, 2.0, seed=seed)
    scores[labels == 1, 1] += moved
    return scores, labels


def test_the_recall_is_tested_exactly_against_what_was_guaranteed(found):
    for moved, kind in ((0.0, "holds"), (-2.0, "broken")):
        scores, labels = new_rows(2000, moved=moved)
        told = camri.check(found, scores, labels)
        said = found.rule.predict(scores)
        hits, num = int((said[labels == 1] == 1).sum()), int(labels.sum())
        (own,) = told.classes
        assert told.verdict.kind == kind
        assert (own.recall.hits, own.recall.num, own.floor, own.is_guaranteed) == (hits, num, 0.9, True)
        assert own.p == pytest.approx(stats.binomtest(hits, num, 0.9, alternative="less").pvalue)
        assert own.p_near == pytest.approx(stats.binomtest(hits, num, 0.85, alternative="greater").pvalue)
        assert (told.alarms.hits, told.precision.hits) == ((said == 1).sum(), hits)
        assert (told.alarms_then.hits, told.alarms_then.num) == (found.evidence.arms[1].precisions[0].num, 3000)
    assert any(one.p < 0.001 and not one.is_higher for one in told.drift)
    assert json.loads(json.dumps(told.to_json()))["verdict"]["kind"] == "broken"


def test_alarms_are_expected_at_the_prevalence_that_was_told():
    labels, (scores,), _ = made(4000, 2.0, share=0.5)
    found = camri.audit(scores, labels, 1, classes=CLASSES, at_least=0.9, prevalence={"melanoma": 0.1})
    (cut,) = found.rule.values.values()
    alarm = expit(scores[:, 1]) > cut
    right, wrong = 0.1 * alarm[labels == 1].mean(), 0.9 * alarm[labels == 0].mean()
    drawn = np.random.default_rng(3)
    there, (rest,), _ = made(60000, 2.0, seed=4, share=0.5)
    kept = drawn.random(len(there)) < np.where(there == 1, 1 / 9, 1)
    told = camri.check(found, rest[kept], there[kept])
    then, precise = told.alarms_then, told.precision_then
    assert (then.value, precise.value) == (pytest.approx(right + wrong), pytest.approx(right / (right + wrong)))
    assert then.low < then.value < then.high
    assert precise.low < precise.value < precise.high
    for change in (told.alarms_change, told.precision_change):
        assert change.low < 0 < change.high
    assert (then.hits, then.num, told.verdict.kind) == (alarm.sum(), 4000, "holds")


def test_a_rule_without_a_guarantee_is_tested_against_what_was_expected():
    labels, (scores,), _ = made(3000, 2.0)
    for given in (camri.audit(scores, labels, 1), camri.audit(scores, labels, 1, cost_matrix=[[0, 1], [5, 0]])):
        rule, arm = rule_of(given)
        assert rule == given.rule
        fresh, truth = new_rows(2000)
        told = camri.check(given, fresh, truth)
        assert (told.classes[0].floor, told.classes[0].is_guaranteed) == (arm.recalls[0].low, False)
        assert told.verdict.kind == "holds"
        assert camri.check(given, *new_rows(2000, moved=-2.5)).verdict.kind == "broken"


def several(num, seed):
    """Rows of four classes, two of them important."""
    drawn = np.random.default_rng(seed)
    labels = drawn.integers(0, 4, num)
    return drawn.normal(size=(num, 4)) + 2.5 * np.eye(4)[labels], labels


def test_every_rule_and_several_classes_are_checked_as_they_predict():
    scores, labels = several(3000, 0)
    fresh, truth = several(3000, 1)
    costs = np.ones((4, 4)) - np.eye(4)
    costs[1] *= 6
    answers = [
        camri.audit(scores, labels, [1, 3], at_least=0.85),
        camri.audit(scores, labels, [1, 3]),
        camri.audit(scores, labels, [1, 3], cost_matrix=costs),
        camri.compare(scores, scores + np.eye(4)[labels], labels, [1, 3], at_least=0.9),
    ]
    names = set()
    for given in answers:
        told = camri.check(given, fresh, truth)
        rule, arm = rule_of(given)
        names.add(rule.name)
        said = rule.predict(fresh)
        assert [one.recall.hits for one in told.classes] == [((said == k) & (truth == k)).sum() for k in (1, 3)]
        assert told.alarms.hits == np.isin(said, [1, 3]).sum()
        assert told.alarms_then.hits == sum(one.num for one in arm.precisions)
        away = camri.check(given, fresh)
        assert len(away.label_first) == 100
        assert away.alarms.hits == told.alarms.hits
        lost = fresh - 2 * np.eye(4)[3] * (truth == 3)[:, None]  # one of the two classes is broken
        assert camri.check(given, lost, truth).verdict.kind == "broken"
    assert "lowest_cost" in names
    assert rule_of(answers[3])[0] == answers[3].candidates[1].point.rule


def test_several_classes_share_the_error():
    given = camri.audit(*several(3000, 0), [1, 3], at_least=0.85)
    for tail, kind in ((0.05, "not broken"), (0.025, "broken")):
        hits = int(stats.binom.ppf(tail, 400, 0.85)) - 1  # the most with a chance below the tail
        assert stats.binom.cdf(hits, 400, 0.85) < tail
        labels = np.repeat([1, 3, 0], 400)
        said = labels.copy()
        said[:hits], said[hits:400] = 1, 0
        told = camri.check(given, 20.0 * np.eye(4)[said], labels)
        assert (told.verdict.kind == "broken") == (kind == "broken")
        assert told.classes[0].recall.hits == hits


def test_too_few_rows_say_how_many_to_label(found):
    told = camri.check(found, *new_rows(60))
    assert (told.verdict.kind, told.verdict.reason) == ("cannot_tell", "few_rows")
    more, num = told.verdict.more_rows, told.classes[0].num
    rate = 1 - found.point.recall[0]
    for total, passes in ((num + more, True), (num + more - 1, False)):
        misses = np.ceil(total * rate + np.sqrt(total * rate * (1 - rate)))
        assert (stats.binom.cdf(misses, total, 0.15) <= 0.05) == passes
    none = camri.check(found, new_rows(60)[0], np.zeros(60, int))
    assert none.verdict.kind == "cannot_tell"
    assert "no row of “melanoma”" in str(none)
    assert f"Label {more:,} more rows of “melanoma”" in str(told)


def test_groups_are_the_units_of_the_test(found):
    scores, labels = new_rows(1000)
    one = camri.check(found, scores, labels)
    doubled = camri.check(found, scores.repeat(2, axis=0), labels.repeat(2), groups=np.arange(2000) // 2)
    assert doubled.classes[0].num == one.classes[0].num
    assert doubled.classes[0].p >= one.classes[0].p
    assert doubled.num_groups == 1000


def test_rows_without_labels_are_listed_by_their_distance_from_the_cut_off(found):
    scores, _ = new_rows(500)
    told = camri.check(found, scores)
    ((_, cut),) = found.rule.values.items()
    away = np.abs(scores[:, 1] - scores[:, 0] - (np.log(cut / (1 - cut)) if found.rule.name == "threshold" else -cut))
    assert list(told.label_first) == np.argsort(away, kind="stable")[:100].tolist()
    assert (told.verdict.kind, told.verdict.reason) == ("cannot_tell", "no_labels")
    assert "drawn at random" in str(told)
    with pytest.raises(InputError, match="give labels"):
        camri.check(found, scores, since="state.json")


def test_a_drift_is_kolmogorov_and_smirnovs():
    drawn = np.random.default_rng(0)
    then, now = expit(drawn.normal(size=3000)), expit(drawn.normal(0.1, size=2000))
    mine, known = drift_of("", now, Distribution.of(then)), stats.ks_2samp(then, now, method="asymp")
    assert known.statistic - 1 / 50 <= mine.distance <= known.statistic + 1e-9
    assert mine.p >= known.pvalue * 0.99
    assert mine.is_higher
    ties = np.round(then, 1)
    assert drift_of("", ties, Distribution.of(ties)).p > 0.99
    same = [drift_of("", drawn.random(400), Distribution.of(drawn.random(400))).p <= 0.05 for _ in range(400)]
    assert np.mean(same) <= 0.07


def test_wealth_is_a_fair_bet_and_grows_where_recall_is_lower():
    """Its mean is at most 1 for every recall at the floor: counted over all outcomes of two looks."""
    for floor in (0.8, 0.95):
        for sizes in ((3, 4), (6, 1)):
            mean = 0.0
            for first in range(sizes[0] + 1):
                for second in range(sizes[1] + 1):
                    chance = stats.binom.pmf(first, sizes[0], 1 - floor) * stats.binom.pmf(second, sizes[1], 1 - floor)
                    mean += chance * wealth(np.array([first, second], float), np.array(sizes, float), floor)
            assert mean == pytest.approx(1.0)
    assert wealth(np.array([0.0, 30.0]), np.array([100.0, 100.0]), 0.9) > 20
    assert wealth(np.array([5.0, 5.0]), np.array([100.0, 100.0]), 0.9) < 1


def test_looks_are_kept_and_the_same_rows_count_once(found, tmp_path):
    state, saved = tmp_path / "state.json", found.save(tmp_path / "decision.json")
    kinds = []
    for day in range(20):
        told = camri.check(saved, *new_rows(300, seed=day, moved=-0.7), since=state)
        kinds.append(told.verdict.kind)
        assert told.looks == day + 1
        if day == 0:
            same = camri.check(saved, *new_rows(300, seed=0, moved=-0.7), since=state)
            assert (same.looks, same.is_repeated, same.classes[0].num) == (1, True, told.classes[0].num)
    first = kinds.index("broken")
    assert set(kinds[first:]) == {"broken"}  # whatever comes later
    assert 0 < first < 20
    watch = load_watch(state, *(found.rule, (0.9,)))
    assert len(watch.looks) == 20
    assert told.classes[0].num == watch.totals[1][0]
    other = camri.audit(*new_rows(3000, seed=9), 1, at_least=0.8)
    with pytest.raises(InputError, match="another decision"):
        camri.check(other, *new_rows(300), since=state)
    for text in ("{", "[]", '{"looks": 3, "format": 1}', '{"format": 2, "looks": []}'):
        state.write_text(text)
        with pytest.raises(InputError):
            camri.check(saved, *new_rows(300), since=state)


def test_other_scores_than_those_of_the_decision_are_refused(found, tmp_path):
    scores, labels = new_rows(100)
    with pytest.raises(InputError, match=r"classes|columns"):
        camri.check(found, np.column_stack([scores, scores[:, 0]]), labels)
    with pytest.raises(InputError, match="margin=2"):
        camri.check(found, scores, labels, margin=2)
    with pytest.raises(InputError, match="cannot be read"):
        camri.check(tmp_path / "none.json", scores, labels)


def test_the_command_exits_with_what_it_found(found, tmp_path):
    decision = found.save(tmp_path / "decision.json")
    for num, moved, code, begins in (
        (2000, 0, 0, "Holds: "),
        (2000, -2, 1, "Broken: "),
        (60, 0, 3, "Cannot tell yet: "),
    ):
        scores, labels = new_rows(num, moved=moved)
        file = write(tmp_path / "march.csv", labels, scores)
        (tmp_path / "march.csv").write_text(re.sub(r"(?m)^(id|row \d+),", "", file.read_text()))
        ended, told = run("check", decision, file)
        assert ended == code
        assert told.startswith(begins)
        assert "90 % was guaranteed" in told
        ended, told = run("check", decision, file, "--json")
        assert (ended, json.loads(told)["num_rows"]) == (code, num)
        ended, _ = run("check", decision, file, "--since", tmp_path / f"state{num}{moved}.json")
        assert ended in (code, 3)
    assert re.match(
        r"Holds: [\d.]+ % of \d+ rows of “melanoma” found; 90 % was guaranteed\. "
        r"Alarms [\d.]+ % of rows, (as|fewer than) expected ",
        str(camri.check(found, *new_rows(2000))),
    )
    plain = write(tmp_path / "plain.csv", None, new_rows(200)[0])
    first = tmp_path / "first.csv"
    ended, told = run("check", decision, plain, "--to-label", first)
    assert ended == 3
    assert first.read_text().splitlines()[0] == "row"
    assert len(first.read_text().splitlines()) == 101


def test_an_audit_can_fail_unless_guaranteed(tmp_path):
    labels, (scores,), _ = made(400, 2.0)
    file = write(tmp_path / "scores.csv", labels, scores)
    file.write_text(re.sub(r"(?m)^(id|row \d+),", "", file.read_text()))
    words = ["audit", file, "--important", "melanoma", "--fail-unless-guaranteed"]
    assert run(*words, "--at-least", "0.9")[0] == 0
    assert run(*words, "--at-least", "0.99")[0] == 1
    with pytest.raises(InputError, match="--at-least"):
        CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)


def test_broken_is_rarely_said_falsely_in_one_look_and_in_many():
    labels, (scores,), _ = made(2000, 2.0)
    known = camri.audit(scores, labels, 1, at_least=0.9)
    ((_, cut),) = known.rule.values.items()
    cut = np.log(cut / (1 - cut)) if known.rule.name == "threshold" else -cut
    said = []
    for seed in range(200):
        truth, (fresh,), _ = made(600, 2.0, seed=100 + seed)
        # Moved so that the true recall is 90 %: the log-odds of the class have mean 2 + log(1/4) and deviation 2.
        fresh[truth == 1, 1] += cut - 2 * ndtri(0.1) - (2 + np.log(0.25))
        said.append(camri.check(known, fresh, truth).verdict.kind)
    assert 0 < said.count("broken") <= 20
    never, soon = watched(60, 0.9, [(0.0, 0), (0.1, 0)], num_looks=200)
    assert never["broken"] <= 0.1 < never["broken, the exact test at every look"]
    assert soon["broken"] == 1
