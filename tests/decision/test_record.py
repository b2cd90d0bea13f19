"""The record of an answer: what is written is read again, and whatever else is refused in a sentence."""

import copy
import json
import sys
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from camri.decision import audit
from camri.decision.answer import answer_from_json, load_answer
from camri.errors import InputError
from tests.decision.made import costs_of, rows, softmax


def answers():
    module = sys.modules["camri.decision.audit"]
    drawn, module.MOST_DRAWS, module.FEWEST_DRAWS = (module.MOST_DRAWS, module.FEWEST_DRAWS), 3, 3
    logits, labels = rows(400, held_back=[1])
    groups = np.arange(400) // 4
    asked = [
        (logits, {}),
        (softmax(logits), {"groups": groups, "max_accuracy_drop": 0.02}),
        (100 * softmax(logits), {"at_least": 0.8}),
        (logits, {"at_least": 0.999}),
        (logits, {"at_least": {"1": 0.6}, "split": ["val", "test"] * 200}),
        (logits, {"cost_matrix": costs_of([1], 4)}),
        (logits, {"at_least": 0.6, "prevalence": {1: 0.01}, "rows_per_day": 1000, "per": np.arange(400) % 2}),
        (logits, {"max_false_alarms": 0.2}),
        (logits, {"clear_misses_at_most": 0.4, "alarm_precision": 0.5}),
        (np.column_stack([logits, np.full(400, -9.0)]), {}),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [audit(scores, labels, 1, **how) for scores, how in asked]
    module.MOST_DRAWS, module.FEWEST_DRAWS = drawn
    return found


ANSWERS = answers()


@pytest.mark.parametrize("found", ANSWERS, ids=lambda one: one.verdict.kind)
def test_what_is_written_is_read_again(found, tmp_path):
    told = found.to_json()
    text = json.dumps(told, allow_nan=False)
    again = answer_from_json(json.loads(text))
    assert again.to_json() == told
    assert (again.source, again.goal, again.point, again.verdict) == (
        found.source,
        found.goal,
        found.point,
        found.verdict,
    )
    assert (again.evidence, again.where) == (found.evidence, found.where)
    assert (again.rule, again.is_advised, repr(again)) == (found.rule, found.is_advised, repr(found))
    assert load_answer(found.save(tmp_path / "a.json")).to_json() == told
    assert "labels" not in told
    assert "scores" not in told


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}), st.just([[]]),
    st.just({"rule": "shift"}), st.just({"goal": "most_recall", "x": 1}), st.just("nan"), st.just(10**400),
)  # fmt: skip


def paths(value, path=()):
    """Every place of a nested JSON value."""
    yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in pairs:
        yield from paths(one, (*path, key))


PLACES = [(which, path) for which, found in enumerate(ANSWERS) for path in paths(found.to_json()) if path]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PLACES), ODD, st.sampled_from(["change", "remove", "add"]))
def test_a_changed_record_is_read_or_refused_and_nothing_else(place, odd, how):
    which, path = place
    told = copy.deepcopy(ANSWERS[which].to_json())
    parent = told
    for key in path[:-1]:
        parent = parent[key]
    if how == "change":
        parent[path[-1]] = odd
    elif how == "remove":
        del parent[path[-1]]
    elif isinstance(parent, dict):
        parent["strange"] = odd
    said = "read"
    try:
        answer_from_json(told)
    except InputError as error:
        said = str(error)
    assert said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no JSON; give the file that"),
        ("[]", "is no answer of camri"),
        ('{"format": 2}', "is no answer of camri"),
        ('{"format": 1, "verdict": {}}', "has format 1, this camri reads 2; make it again"),
        ("\x00", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ('{"format": 2, "verdict": {}}', "cannot be read"),
    ],
)
def test_files_that_are_no_answers_are_refused(tmp_path, text, said):
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        load_answer(tmp_path / "a.json")
    with pytest.raises(InputError, match="cannot be read"):
        load_answer(tmp_path / "none.json")
