"""The benchmarks run and say what they must; their timings are nobody's test."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import audit as auditing
from benchmarks import decision, free_rules, guarantee
from benchmarks import fit as fitting
from camri.data import hold_out, load
from camri.decision import AtLeast, audit, condense, folds, trace
from camri.decision import tune as tune_rule
from camri.engine import Training
from camri.study import runner
from camri.study.runner import LocalExecutor
from camri.study.spec import study
from camri.study.store import open_run
from reproduce.studies import tune

ROOT = Path(__file__).parents[1]


def test_guarantees_are_counted_on_fresh_rows_and_on_the_test_images_of_a_run(tmp_path, capsys, monkeypatch):
    def told(*words):
        monkeypatch.setattr(sys, "argv", ["guarantee", *words])
        guarantee.main()
        return {(one.get("setting"), one["rule"]): one for one in json.loads(capsys.readouterr().out)["found"]}

    found = told("--tables", "60", "--rows", "1000")
    assert found[None, "guaranteed"]["made"] == "60/60"
    assert found[None, "guaranteed"]["kept"] >= 0.9 > 0.7 > found[None, "seen"]["kept"]
    assert found[None, "guaranteed"]["recall"] > found[None, "seen"]["recall"]
    assert found[None, "guaranteed"]["accuracy"] < found[None, "seen"]["accuracy"] < 0

    spec = study("s", "digits", ["9"], {"ce": {}}, seeds=[0, 1], training=Training(model="small", epochs=1))
    data = hold_out(load("digits"), fraction=0.3)
    runner.run(spec, tmp_path, LocalExecutor("cpu", workers=1), data=data)
    (guaranteed, seen) = told("--run", str(tmp_path), "--at-least", "0.8").values()
    with open_run(tmp_path) as run:
        rows = run.rows()
        vals = [run.scores(row, "val", (9,)) for row in rows]
        points = [tune_rule(val, AtLeast(0.8, 0.95)) for val in vals]
        shifts = [point.rule if point.has_met else None for point in points]
        tests = [run.scores(row, "test", (9,)) for row in rows]
    recalls = [test.recall(shift)[0] for test, shift in zip(tests, shifts, strict=True) if shift is not None]
    assert guaranteed["made"] == f"{len(recalls)}/2" == "2/2"
    assert guaranteed["kept"] == np.mean([recall >= 0.8 for recall in recalls])
    assert guaranteed["recall"] == pytest.approx(np.mean(recalls))
    assert seen["made"] == "2/2"


def test_audits_are_judged_by_what_their_shift_truly_gives(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["audit", "--tables", "6", "--rows", "1000"])
    monkeypatch.setattr(folds, "NUM_FOLDS", 10)
    auditing.main()
    shown = [float(word.strip("()").replace(",", "")) for word in capsys.readouterr().out.splitlines()[3].split()]

    fresh, labels = auditing.made_rows(100_000, -0.8, np.random.default_rng(99))
    hit, own = fresh.argmax(axis=1) == labels, labels == auditing.IMPORTANT
    true, held, called, told = [], [], [], []
    for seed in range(6):
        one = audit(*auditing.made_rows(1000, -0.8, np.random.default_rng([seed, 1000])), auditing.IMPORTANT)
        after = (fresh + one.shift * np.eye(4)[auditing.IMPORTANT]).argmax(axis=1) == labels
        recall, accuracy = after[own].mean() - hit[own].mean(), after.mean() - hit.mean()
        true.append([100 * recall, 100 * accuracy, accuracy < -0.005])
        held.append([one.change.recall.low <= recall <= one.change.recall.high, recall < one.change.recall.low,
                     one.change.accuracy.low <= accuracy <= one.change.accuracy.high,
                     accuracy < one.change.accuracy.low])  # fmt: skip
        called.append(one.is_advised)
        told.append(one.change.chance_of_fall)
    assert 0 < sum(called) < 6, "the tables are to be of both kinds"
    gains = np.array(true)[called].mean(axis=0)
    chance = np.array(told)[called].mean()
    expected = [-0.8, 1000, *np.mean(true, axis=0), np.mean(called), *gains, chance, *np.mean(held, axis=0)]
    assert shown == pytest.approx(expected, abs=0.006)


@pytest.mark.slow
def test_a_fit_is_judged_by_fresh_rows_and_beside_what_a_user_would_do(monkeypatch, capsys):
    monkeypatch.setattr(fitting.handover, "can_draw", lambda: False)

    def told(*words):
        monkeypatch.setattr(sys, "argv", ["fit", *words])
        fitting.main()
        return json.loads(capsys.readouterr().out)

    (found,) = told("--truth", "change", "--fits", "1", "--trials", "12", "--fresh", "2000", "--new", "2")["fits"]
    assert found["right"] == fitting.is_right(found["verdict"], found["gains"])
    assert found["gains"]["could"] >= 0  # no shift at all is a shift, too
    assert found["verdict"] in ("change_the_decision", "train_with", "nothing_to_gain", "cannot_tell")
    assert found["predicts"] is True
    assert set(found["held"]) == {"recall", "accuracy", "false_alarms"}
    (cell,) = told("--task", "breast_cancer", "--budget", "1", "--arms", "trees")["cells"]
    assert 0.9 < cell["recall"] <= 1
    assert cell["num"] == 64
    assert cell["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("verdict", "changed", "right"),
    [
        ("train_with", {"method": 0.01}, True),
        ("train_with", {}, False),
        ("change_the_decision", {"rule_recall": 0.03}, True),
        ("change_the_decision", {"rule_recall": 0.03, "rule_accuracy": -0.01}, False),
        ("change_the_decision", {"rule_recall": 0.03, "method": 0.03}, False),
        ("nothing_to_gain", {"could": 0.01}, True),
        ("nothing_to_gain", {"could": 0.03}, False),
        ("cannot_tell", {"method": 0.1}, None),
    ],
)
def test_a_verdict_is_right_if_what_it_states_is_true(verdict, changed, right):
    gains = dict.fromkeys(("rule_recall", "rule_accuracy", "could", "method"), 0.0)
    assert fitting.is_right(verdict, gains | changed) is right


@pytest.mark.slow
def test_losses_benchmark_runs_and_reports_every_contender(tmp_path):
    command = [sys.executable, "benchmarks/losses.py", "--quick", "--device", "cpu", "--json", tmp_path / "out.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["benchmark"] == "losses"
    assert {"date", "commit", "versions", "hardware", "threads", "settings", "skipped"} <= result.keys()
    assert result["versions"]["torch"]
    assert result["threads"] == 1

    contenders = {"camri", "camri-arcface", "pml", "arccos", "one-hot"}
    cases = {(row["batch"], row["classes"]) for row in result["rows"]}
    assert len(result["rows"]) == len(cases) * len(contenders)
    for row in result["rows"]:
        assert row["contender"] in contenders
        assert 0 < row["fastest_s"] <= row["median_s"]
        assert row["repeats"] >= 3
        assert row["peak_bytes"] >= 4 * row["batch"] * row["classes"]  # the cosines at least
        assert row["contender"] in done.stdout
    for ratio in result["ratios"]:
        assert ratio["contender"].startswith("camri")
        assert ratio["best_other"] in contenders
        assert ratio["time_ratio"] > 0
        assert ratio["memory_ratio"] > 0
    assert len(result["ratios"]) == 2 * len(cases)


def test_decisions_are_judged_on_fresh_rows(monkeypatch):
    monkeypatch.setattr(decision, "NUM_FRESH", 4000)
    found = decision.kept_recalls(3)
    guaranteed, seen = found["camri, guaranteed, prefit"], found["camri, seen, prefit"]
    assert guaranteed["recall"] > seen["recall"]
    assert guaranteed["false alarms"] > seen["false alarms"]
    assert abs(found["scikit-learn, prefit"]["recall"] - seen["recall"]) < 0.03
    assert set(decision.large_table(2000, 5)) >= {"peak memory, GiB", "recall at an accuracy, s"}


def test_the_training_that_is_best_on_validation_data_is_the_one_that_studies_get(tmp_path, monkeypatch):
    study = 'columns = ["9"]\nseeds = [1]\ndata = "digits"\n[split]\nval_fraction = 0.2\n[training]\nmodel = "small"\n'
    methods = {"first": "ce = {}", "second": "wce = { w = [2] }"}
    for name, method in methods.items():
        (tmp_path / f"{name}.toml").write_text(f"{study}[methods]\n{method}\n")
    monkeypatch.setattr(tune, "VALUES", {"epochs": (1, 3), "learning_rate": (1e-9, 1e-3)})
    monkeypatch.setattr(tune, "SEEDS", (900,))
    tune.main([str(tmp_path / "first.toml"), str(tmp_path / "second.toml"), "--out", str(tmp_path)])
    with (tmp_path / "first-tuning.csv").open() as file:
        tried = list(csv.DictReader(file))
    best = max(tried, key=lambda one: float(one["val_accuracy"]))
    assert len(tried) == 4
    with open_run(tmp_path / "first") as run:
        training, *others = [one["training"] for one in run.studies]
        assert [(row.method, row.seed) for row in run.rows()] == [("ce", 1), ("wce", 1)]
    assert others == [training]
    assert [str(training[name]) for name in tune.VALUES] == [best[name] for name in tune.VALUES]
    assert best["learning_rate"] == "0.001"


def test_changes_tried_in_turn_stay_if_they_raise_the_accuracy(tmp_path, monkeypatch):
    text = 'columns = ["9"]\nseeds = [1]\ndata = "digits"\n[split]\nval_fraction = 0.2\n[training]\nmodel = "small"\n'
    (tmp_path / "one.toml").write_text(f"{text}epochs = 1\n[methods]\nce = {{}}\n")
    monkeypatch.setattr(tune, "STEPS", ({"epochs": 6}, {"learning_rate": 1e-9}, {"batch_size": 32}))
    tune.main([str(tmp_path / "one.toml"), "--out", str(tmp_path), "--in-turn", "--seeds", "1"])
    with (tmp_path / "one-tuning.csv").open() as file:
        tried = list(csv.DictReader(file))
    values = [[one[name] for name in ("epochs", "learning_rate", "batch_size")] for one in tried]
    assert values == [["1", "0.001", "64"], ["6", "0.001", "64"], ["6", "1e-09", "64"], ["6", "0.001", "32"]]
    best = max(tried, key=lambda one: float(one["val_accuracy"]))
    with open_run(tmp_path / "one") as run:
        assert [str(run.studies[0]["training"][name]) for name in ("epochs", "batch_size")] == [
            best["epochs"],
            best["batch_size"],
        ]


def test_rules_learnt_on_all_scores_win_where_the_model_hides_something(tmp_path, capsys, monkeypatch):
    drawn = np.random.default_rng(0)
    true = 2.0 * drawn.normal(size=(8000, 4))
    labels = (true + drawn.gumbel(size=true.shape)).argmax(axis=1)
    val, test = slice(0, 4000), slice(4000, None)
    assert free_rules.temperature(3.0 * true, labels) == pytest.approx(3.0, rel=0.05)

    def alarms(logits):  # at a recall of 0.9 of class 1
        arms = dict(free_rules.learnt(logits[val], labels[val], logits[test], 1))
        found = {}
        for name, one in {"threshold": logits[test], **arms}.items():
            curve = trace(condense(one, labels[test], (1,)).odds())
            found[name] = float(curve.alarms[curve.reach(0.9)])
        return found

    plain = alarms(true)
    assert all(abs(num / plain["threshold"] - 1) < 0.05 for num in plain.values())
    hidden = true.copy()
    hidden[:, 1] += 0.8 * hidden[:, 2]  # what a class's logit says depends on another's
    found = alarms(hidden)
    assert found["temperature"] > 0.95 * found["threshold"]
    for name in ("logistic regression of the class", "logistic regression of all classes"):
        assert found[name] < 0.8 * found["threshold"]

    training = Training(model="small", epochs=1)
    spec = study("s", "digits", ["9"], {"ce": {}}, seeds=[0, 1], training=training).with_(keep_logits=True)
    runner.run(spec, tmp_path, LocalExecutor("cpu", workers=1), data=hold_out(load("digits"), fraction=0.3))
    monkeypatch.setattr(sys, "argv", ["free_rules", str(tmp_path), "--recalls", "0.9"])
    free_rules.main()
    records = {one["rule"]: one for one in json.loads(capsys.readouterr().out)}
    assert {"shift", "temperature"} < records.keys()
    assert records["threshold"]["relative"][0] == 0.0
    assert records["shift"]["models"] == 2


def test_lanes_run_every_cell_once_and_the_loop_again_where_a_budget_cuts_it(monkeypatch, tmp_path, capsys):
    ran = []

    def run_pinned(lane, words, file):
        ran.append(file.name)
        arms, budget = words[words.index("--arms") + 1 :], float(words[words.index("--budget") + 1])
        cell = {"budget_s": budget, "hits": 9, "num": 10, "recall": 0.9, "accuracy": 0.8, "false_alarms": 3}
        cell |= {"wall_s": 100.0, "late": budget < 70, "verdict": "cannot_tell"}
        file.write_text(json.dumps({"commit": "abc", "cells": [{**cell, "arm": arm} for arm in arms]}))
        return 0

    monkeypatch.setattr(fitting, "run_pinned", run_pinned)
    words = ["--cells", "60", "600", "--tasks", "table:1", "--lanes", "0,1", "2,3", "--out", str(tmp_path)]
    for _ in range(2):  # the second time there is nothing left
        monkeypatch.setattr(sys, "argv", ["fit", *words])
        fitting.main()
    names = ["table-1_600_fit", "table-1_600_rivals", "table-1_60_fit", "table-1_60_loop"]
    assert sorted(ran) == [f"{name}.json" for name in names]
    monkeypatch.setattr(sys, "argv", ["fit", "--table", str(tmp_path)])
    capsys.readouterr()
    fitting.main()
    shown = capsys.readouterr().out
    assert "| made table, state 1 | 10 | 60 s | 0.900 at 0.800 (3, 100 s) |" in shown
    assert "2 fits; the longest took 1.67 × budget; 1 late 100 of 60 s (table-1_60_fit)" in shown
