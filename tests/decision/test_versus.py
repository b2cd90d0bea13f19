"""Comparing models: false alarms counted by hand, four verdicts, rows joined or refused, exit codes for CI."""

import json
import re

import numpy as np
import pytest
from scipy.special import expit
from typer.testing import CliRunner

import camri
from benchmarks.three import compare_tables
from camri.cli import app
from camri.decision import AtLeast, answer_from_json, load_answer
from camri.decision.read import read
from camri.decision.versus import compare_rows, is_not_worse
from camri.errors import InputError
from camri.report.words import text_of
from tests.decision.three_cases import CLASSES, made, write


def run(*words):
    done = CliRunner().invoke(app, [*map(str, words)])
    return done.exit_code, done.output


def by_hand(scores, labels, folds, recall):
    """Each row by the first cut-off that finds enough of the class in the other folds: the false alarms."""
    alarms = np.zeros(len(labels), dtype=bool)
    for fold in np.unique(folds):
        others = folds != fold
        own = np.sort(expit(scores[others & (labels == 1), 1] - scores[others & (labels == 1), 0]))[::-1]
        last = own[int(np.ceil(recall * len(own) - 1e-9)) - 1]
        here = expit(scores[:, 1] - scores[:, 0]) >= last
        alarms[~others] = (here & (labels == 0))[~others]
    return alarms


def test_false_alarms_are_those_of_each_model_at_the_recall_cross_fitted_on_the_same_folds():
    from camri.decision.audit import keep_apart

    labels, (old, new), _ = made(1500, 2.0, 2.6)
    found = camri.compare(old, new, labels, "melanoma", classes=CLASSES, at_least=0.9)
    fold = keep_apart(read(old, labels, 1))[2]
    counts = [by_hand(table, labels, fold, 0.9).sum() for table in (old, new)]
    # A cut-off lies between two scores, so a row of another fold may fall on either side of it.
    for arm, count in zip(found.evidence.arms, counts, strict=True):
        assert abs(arm.false_alarms.hits - count) <= 0.01 * len(labels)
        assert 0.87 < arm.recall < 0.94
    assert found.verdict.gain.value == pytest.approx(
        (found.evidence.arms[1].false_alarms.hits - found.evidence.arms[0].false_alarms.hits) / 1500
    )
    assert found.goal == AtLeast(0.9, None, is_seen=True)
    assert found.guarantee is None
    assert np.array_equal(found.predict(new), found.candidates[1].point.rule.predict(new))


def test_better_worse_no_difference_and_cannot_tell():
    labels, (weak, strong), _ = made(3000, 1.5, 2.5)
    same = weak + np.random.default_rng(1).normal(scale=0.01, size=weak.shape)
    kinds = {
        "better": camri.compare(weak, strong, labels, 1, at_least=0.9),
        "worse": camri.compare(strong, weak, labels, 1, at_least=0.9),
        "no_difference": camri.compare(weak, same, labels, 1, at_least=0.9, margin=0.02),
    }
    for kind, found in kinds.items():
        assert found.verdict.kind == kind
    assert [is_not_worse(found) for found in kinds.values()] == [True, False, True]
    few, (one, two), _ = made(300, 2.0, 2.2, seed=3)
    open_ = camri.compare(one, two, few, 1, at_least=0.9)
    assert (open_.verdict.kind, open_.verdict.reason) == ("cannot_tell", "not_significant")
    assert open_.verdict.more_rows > 20
    assert not is_not_worse(open_)
    tiny = camri.compare(one[:80], two[:80], few[:80], 1, at_least=0.9)
    assert (tiny.verdict.reason, tiny.verdict.more_rows) == ("few_rows", 20 - few[:80].sum())
    assert f"{20 - few[:80].sum()} more" in text_of(tiny)


def test_more_recall_at_a_lower_accuracy_is_not_better():
    labels, (old,), _ = made(4000, 3.0)
    new = np.array(old)
    new[(labels == 0) & (np.random.default_rng(0).random(4000) < 0.25)] = [0.0, 30.0]  # always an alarm
    found = camri.compare(old, new, labels, 1)
    assert found.verdict.kind in ("worse", "cannot_tell")


@pytest.mark.parametrize("goal", [{}, {"at_least": 0.9}, {"cost_matrix": [[0, 1], [8, 0]]}])
def test_every_goal_several_models_and_groups(goal):
    labels, (old, *new), groups = made(2000, 1.8, 1.8, 2.8, per_group=4)
    found = camri.compare(old, {"a": new[0], "b": new[1]}, labels, 1, groups=groups, **goal)
    verdicts = {one.name: one.verdict for one in found.candidates}
    assert [*verdicts] == ["old", "a", "b"]
    assert verdicts["old"] is None
    assert (verdicts["a"].kind, verdicts["b"].kind) == ("cannot_tell", "better")
    assert found.verdict == verdicts["b"]
    assert (found.advised.name, found.evidence.final, found.rule) == ("b", "b", found.candidates[2].point.rule)
    alone = camri.compare(old, new[1], labels, 1, groups=groups, **goal)
    assert verdicts["b"].gain.p == pytest.approx(2 * alone.verdict.gain.p)  # Holm
    again = answer_from_json(json.loads(json.dumps(found.to_json())))
    assert again.to_json() == found.to_json()
    assert "held together (Holm)" in text_of(found)


def test_a_model_that_cannot_reach_the_recall_is_compared_by_recall():
    labels, (old, new), _ = made(2000, 2.0, 2.0)
    blind = np.column_stack([np.ones(2000), np.zeros(2000)])  # the class's probability is 0
    blind[:, 1] = np.where(expit(old[:, 1]) > 0.5, 0.6, 0.0)
    blind[:, 0] = 1 - blind[:, 1]
    found = camri.compare(blind, expit(new) / expit(new).sum(axis=1, keepdims=True), labels, 1, at_least=0.9)
    assert (found.verdict.kind, found.verdict.figure) == ("better", "recall")


def test_rows_are_joined_by_ids_and_other_rows_are_refused():
    labels, (old, new), _ = made(1000, 2.0, 2.5)
    order = np.random.default_rng(0).permutation(1000)
    names = np.array([f"row {k}" for k in range(1000)])
    as_is = camri.compare(old, new, labels, 1, at_least=0.9)
    joined = camri.compare(old, new[order], labels, 1, at_least=0.9, ids={"old": names, "new": names[order]})
    assert joined.to_json() == as_is.to_json()
    for ids, words in (
        ({"old": names}, "none for 'new'"),
        ({"old": names, "new": np.append(names[:-1], "other")}, "no row 'other'"),
        ({"old": names, "new": np.append(names[:-1], "row 0")}, "'row 0' is twice in new"),
    ):
        with pytest.raises(InputError, match=words):
            camri.compare(old, new, labels, 1, ids=ids)
    rows = {"old": read(old, labels, 1), "new": read(new[order], labels[order], 1)}
    with pytest.raises(InputError, match=r"row \d+ is '.' in old and '.' in new .*--id"):
        compare_rows(rows, AtLeast(0.9, is_seen=True))
    with pytest.raises(InputError, match="old has 1,000 rows, new 999"):
        compare_rows({"old": rows["old"], "new": read(new[:-1], labels[:-1], 1)}, AtLeast(0.9, is_seen=True))
    other = read(new, labels, 1, classes=["a", "b"])
    with pytest.raises(InputError, match="class"):
        compare_rows({"old": rows["old"], "new": other}, AtLeast(0.9, is_seen=True))
    named = np.array(["a", "b"])[labels]
    swapped = read(new[:, ::-1], named, "b", classes=["b", "a"])
    base = read(old, named, "b", classes=["a", "b"])
    straight = read(new, named, "b", classes=["a", "b"])
    verdicts = [
        compare_rows({"old": base, "new": one}, AtLeast(0.9, is_seen=True)).verdict for one in (swapped, straight)
    ]
    assert verdicts[0] == verdicts[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"margin": 1.5}, "margin=1.5"),
        ({"margin": "much"}, "margin='much'"),
        ({"at_least": 0.9, "max_accuracy_drop": 0.1}, "one goal"),
        ({"at_least": 2}, "at_least=2"),
    ],
)
def test_bad_options_are_refused(options, words):
    labels, (old, new), _ = made(300, 2.0, 2.5)
    with pytest.raises(InputError, match=re.escape(words)):
        camri.compare(old, new, labels, 1, **options)


def test_the_command_says_it_and_exits_as_asked(tmp_path):
    labels, (old, new), _ = made(2000, 1.8, 2.6)
    order = np.random.default_rng(0).permutation(2000)
    files = [write(tmp_path / "old.csv", labels, old), write(tmp_path / "new.csv", labels, new, order=order)]
    words = ["--important", "melanoma", "--at-least", "0.95", "--id", "id"]
    saved = tmp_path / "found.json"
    code, told = run("compare", *files, *words, "--fail-unless", "better", "--save", saved)
    assert code == 0
    first = told.splitlines()[1]
    assert re.fullmatch(
        r"new\.csv is better: at 95 % recall, false alarms [\d.]+ % → [\d.]+ % \(−[\d.]+ points, "
        rf"95 % CI −[\d.]+ to −[\d.]+; {labels.sum()} rows of “melanoma”\)\.",
        first,
    )
    assert load_answer(saved).verdict.kind == "better"
    back = files[::-1]
    assert run("compare", *back, *words, "--fail-unless", "better")[0] == 1
    assert run("compare", *back, *words, "--fail-unless", "not-worse")[0] == 1
    assert run("compare", *back, *words, "--fail-unless", "not-worse", "--margin", "0.9")[0] == 0
    assert run("compare", *back, *words)[0] == 0
    code, told = run("compare", *files, *words, "--json")
    assert json.loads(told)["verdict"]["kind"] == "better"
    with pytest.raises(InputError, match="twice"):
        CliRunner().invoke(app, ["compare", *map(str, files[:1] * 2), *words], catch_exceptions=False)


def test_better_is_rarely_said_falsely_and_intervals_cover():
    cases = ((600, (2.0, (2.0,)), 1, {"at_least": 0.9}), (600, (2.0, (2.6,)), 1, {"at_least": 0.9}))
    same, apart = compare_tables(30, cases)
    assert same["better"][0] <= 0.1
    assert same["covered"] >= 0.85
    assert apart["covered"] >= 0.85
