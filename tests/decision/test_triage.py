"""Three ways out: what is cleared and what alarms are, counted by hand from the printed rule; both promises kept."""

import json
import re

import numpy as np
import pytest
import scipy.special
from scipy import stats
from typer.testing import CliRunner

import camri
from benchmarks.three import triage_tables
from camri.cli import app
from camri.decision import answer_from_json, rule_from_json
from camri.decision.goals import FewestToPerson, goal_from_json, goal_to_json
from camri.decision.read import read
from camri.decision.rules import PERSON, Triage
from camri.decision.scores import exact
from camri.decision.triage import Sorter
from camri.errors import InputError
from camri.report.words import text_of, triage_code, triage_sentence, triage_text
from tests.decision.three_cases import CLASSES, made, write


@pytest.fixture(scope="module")
def table():
    labels, (scores,), _ = made(3000, 2.5)
    return scores, labels


@pytest.fixture(scope="module")
def found(table):
    return camri.audit(*table, "melanoma", classes=CLASSES, clear_misses_at_most=0.03, alarm_precision=0.9)


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_the_printed_code_does_what_the_figures_count(table, kind):
    scores, labels = table
    scores = scores if kind == "logits" else scipy.special.softmax(scores, axis=1)
    found = camri.audit(scores, labels, 1, classes=CLASSES, clear_misses_at_most=0.03, alarm_precision=0.9)
    known = {"np": np, "scipy": scipy, "logits": scores, "p": scores}
    exec(triage_code(found), known)
    ways, own = known["ways"], labels == 1
    work = found.workload
    assert (work.cleared.hits, work.alarms.hits, work.person.hits) == tuple(
        (ways == way).sum() for way in ("clear", "alarm", "person")
    )
    assert (work.missed.hits, work.missed.num) == ((ways[own] == "clear").sum(), own.sum())
    assert (work.precision.hits, work.precision.num) == (own[ways == "alarm"].sum(), (ways == "alarm").sum())
    assert found.guarantee.hits == (own.sum() - work.missed.hits,)
    assert stats.binom.cdf(work.missed.hits, own.sum(), 0.03) <= 0.05
    predicted = found.predict(scores)
    if found.labels is not None:
        assert [one is None for one in predicted] == (ways == "person").tolist()
    raw = found.rule.predict(scores, kind)
    assert (raw == PERSON).tolist() == (ways == "person").tolist()
    assert (raw[ways == "alarm"] == 1).all()
    assert (raw[ways == "clear"] == 0).all()
    condensed = found.rule.predict(exact(scores, labels, [1], kind))
    assert np.array_equal(np.where(condensed == -1, 0, condensed), raw)


def test_a_higher_cut_off_would_not_pass(found, table):
    """No cut-off between two rows that clears more is sure: the next one misses a row more than the binomial allows."""
    scores, labels = table
    (low,) = found.rule.values.values()
    own = np.sort(scipy.special.expit(scores[labels == 1, 1]))
    missed = (own <= low).sum()
    assert stats.binom.cdf(missed, len(own), 0.03) <= 0.05 < stats.binom.cdf(missed + 1, len(own), 0.03)
    assert not (own > low).sum() < len(own) - missed


def test_first_line_and_words(found):
    first = triage_sentence(found)
    assert re.fullmatch(
        r"Clears [\d.]+ % of rows \(at most 3 % of “melanoma” missed, guaranteed\), raises an alarm for [\d.]+ % "
        r"\(at least 90 % right\), leaves [\d.]+ % to a person\.",
        first,
    )
    assert sum(float(one) for one in re.findall(r"([\d.]+) %(?= of rows|, leaves| \(at least| to a)", first)) == (
        pytest.approx(100, abs=0.2)
    )
    assert first in text_of(found)
    assert "What is left to a person" in text_of(found)
    assert repr(found).startswith("Answer(clear ")
    for one in found.trade_offs:
        if one.person is not None:
            assert one.person == pytest.approx(1 - one.cleared - one.alarms)
    same = next(one for one in found.trade_offs if (one.clear_misses, one.alarm_precision) == (0.02, 0.9))
    assert same.cleared < found.workload.cleared.value


def test_it_is_kept_as_json(found):
    again = answer_from_json(json.loads(json.dumps(found.to_json())))
    assert again.to_json() == found.to_json()
    assert (again.rule, again.goal) == (found.rule, found.goal)
    assert rule_from_json(found.rule.to_json(CLASSES), CLASSES) == found.rule
    assert goal_from_json(goal_to_json(FewestToPerson(0.01, 0.9))) == FewestToPerson(0.01, 0.9)
    assert "a person decides the rest" in found.rule.describe(CLASSES)
    told = camri.check(again, *found_rows())
    assert (told.verdict.kind, told.classes[0].floor) == ("holds", pytest.approx(0.97))
    assert told.alarms_then == found.workload.alarms


def found_rows():
    labels, (scores,), _ = made(3000, 2.5, seed=5)
    return scores, labels


def fallback(right, precision, error):
    """The numbers of alarms that pass, from how many of the first k rows are right: Wiens' procedure by hand."""
    most = len(right) - 1
    num_shares = int(np.floor(np.log2(most / np.ceil(np.log(error) / np.log(precision))))) + 1
    first = int(np.ceil(np.log(error / num_shares) / np.log(precision)))
    at, budget, used, passed = float(first), 0.0, 0, []
    while at <= most:
        num = int(np.ceil(at))
        if used < num_shares and at >= first * 2.0**used:
            budget, used = budget + error / num_shares, used + 1
        if budget and stats.binom.cdf(num - right[num], num, 1 - precision) <= budget:
            passed.append(num)
        else:
            budget = 0.0
        at = max(1.05 * at, at + 1)
    return passed


@pytest.mark.parametrize(("precision", "seed"), [(0.9, 0), (0.5, 1), (0.8, 2), (0.97, 3)])
def test_alarms_are_tested_with_the_fallback_by_hand(precision, seed):
    labels, (scores,), _ = made(1500, 1.8, seed=seed)
    labels[np.argsort(-scores[:, 1])[60:100]] = 0  # a dip that some tests fail at, and later ones may pass
    work = Sorter.of(read(scores, labels, 1), np.arange(1500))
    order = np.argsort(-scores[:, 1], kind="stable")
    right = np.append(0, np.cumsum(labels[order]))
    found = [int(work.curve.predicted[state, 0]) for state in work.passed(precision, 0.05)]
    assert found == fallback(right, precision, 0.05)


def test_alarms_never_begin_below_what_is_cleared(table):
    wide = camri.audit(*table, 1, clear_misses_at_most=0.4, alarm_precision=0.3)
    ((_, low),), ((_, high),) = wide.rule.values.items(), wide.rule.alarms.items()
    assert low <= high < 1
    assert wide.workload.precision.value > 0.3


def test_what_cannot_be_promised_is_said(table):
    scores, labels = table
    few = camri.audit(scores[:200], labels[:200], 1, classes=CLASSES, clear_misses_at_most=0.01)
    assert (few.verdict.kind, few.workload, few.is_guaranteed) == ("cannot_guarantee", None, False)
    assert few.guarantee.missing == (299 - labels[:200].sum(),)
    assert f"{299 - labels[:200].sum()} more rows of “melanoma” are needed" in text_of(few)
    blurred, (weak,), _ = made(2000, 0.5)
    none = camri.audit(weak, blurred, 1, clear_misses_at_most=0.1, alarm_precision=0.95)
    assert (none.workload.alarms.hits, none.workload.lowest_precision, none.workload.missing) == (0, None, 59)
    assert "raises no alarm (at least 95 % right cannot be shown" in triage_sentence(none)
    without = camri.audit(scores, labels, 1, clear_misses_at_most=0.05)
    assert "raises no alarm, leaves" in triage_sentence(without)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clear_misses_at_most": 0}, "clear_misses_at_most=0 is not allowed"),
        ({"clear_misses_at_most": 0.1, "alarm_precision": 1.5}, "alarm_precision=1.5"),
        ({"clear_misses_at_most": 0.1, "at_least": 0.9}, "one goal"),
        ({"alarm_precision": 0.9}, "give clear_misses_at_most too"),
        ({"clear_misses_at_most": 0.1, "confidence": 0.2}, "confidence=0.2"),
        ({"clear_misses_at_most": 0.1, "confidence": None}, "on average is for at_least"),
        ({"clear_misses_at_most": 0.1, "max_false_alarms": 0.1}, "one goal"),
        ({"clear_misses_at_most": 0.1, "prevalence": {1: 0.01}}, "prevalence does not go with clear_misses_at_most"),
    ],
)
def test_bad_promises_are_refused(table, options, words):
    with pytest.raises(InputError, match=re.escape(words)):
        camri.audit(*table, 1, **options)


def test_bad_rules_and_several_classes_are_refused(table):
    for cuts in (({1: 0.5}, {1: 0.4}), ({1: 0.5}, {2: 0.9}), ({1: 0.1, 2: 0.1}, {1: 0.2, 2: 0.2}), ({1: -1}, {1: 2})):
        with pytest.raises(InputError):
            Triage(*cuts)
    three = np.column_stack([table[0], table[0][:, 0]])
    with pytest.raises(InputError, match="for one, so name one"):
        camri.audit(three, table[1], [0, 1], clear_misses_at_most=0.1)


def test_groups_and_a_split():
    labels, (scores,), groups = made(4000, 2.5, per_group=4)
    grouped = camri.audit(scores, labels, 1, groups=groups, clear_misses_at_most=0.05, alarm_precision=0.8)
    alone = camri.audit(scores, labels, 1, clear_misses_at_most=0.05, alarm_precision=0.8)
    assert grouped.workload.person.value > alone.workload.person.value
    assert "means over groups" in "\n".join(triage_text(grouped))
    split = np.array(["val", "test"] * 2000)
    halves = camri.audit(scores, labels, 1, split=split, clear_misses_at_most=0.05, alarm_precision=0.8)
    val = camri.audit(scores[::2], labels[::2], 1, clear_misses_at_most=0.05, alarm_precision=0.8)
    assert halves.rule == val.rule
    assert (halves.tuned_on, halves.workload.cleared.num) == ("split", 2000)


def test_few_are_missed_in_each_place_too(found, table):
    scores, labels = table
    site = np.where(np.arange(len(labels)) % 3 == 0, "north", "south")
    shifted = scores - np.where(site == "north", 0.5, 0.0)[:, None] * [0, 1]
    options = {"classes": CLASSES, "clear_misses_at_most": 0.05, "rows_per_day": 1000}
    each = camri.audit(shifted, labels, 1, per=site, **options)
    whole = camri.audit(shifted, labels, 1, **options)
    (low,) = each.rule.values.values()
    assert low < whole.rule.values[1]
    own = scipy.special.expit(shifted[labels == 1, 1])
    for one in each.guarantee.places:
        here = own[site[labels == 1] == one.name]
        assert (one.hits, one.num) == ((here > low).sum(), len(here))
        assert stats.binom.cdf(one.num - one.hits, one.num, 0.05) <= 0.05
    assert [one.name for one in each.guarantee.places] == ["north", "south"]
    text = text_of(each)
    assert "missed in each of 2 places, guaranteed" in text
    cleared = each.workload.cleared.value * 1000
    assert f"On 1,000 rows a day: {cleared:.0f} cleared" in text
    assert answer_from_json(json.loads(json.dumps(each.to_json()))).to_json() == each.to_json()
    few = camri.audit(shifted[:600], labels[:600], 1, per=site[:600], **options)
    assert few.workload is None
    assert "places have too few rows" in text_of(few)


def test_the_command_says_it(tmp_path, table):
    scores, labels = table
    file = write(tmp_path / "scores.csv", labels, scores)
    file.write_text(re.sub(r"(?m)^(id|row \d+),", "", file.read_text()))
    words = ["audit", str(file), "--important", "melanoma", "--clear-misses-at-most", "3%", "--alarm-precision", "0.9"]
    done = CliRunner().invoke(app, [*words, "--fail-unless-guaranteed"])
    assert done.exit_code == 0
    assert done.output.splitlines()[1].startswith("Clears ")
    assert CliRunner().invoke(app, [*words[:5], "0.001", "--fail-unless-guaranteed"]).exit_code == 1


def test_promises_are_kept_on_made_tables():
    (one,) = triage_tables(100, ((1000, 2.5, 1, 0.05, 0.8),))
    assert one["clears"] == 1
    assert one["missed"] >= 0.9
    assert one["precise"] >= 0.9
