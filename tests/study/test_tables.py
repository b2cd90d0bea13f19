"""What is made of stores: status, one out of several, and tables to take away."""

import csv
import dataclasses
import itertools
import math
import shutil
import sqlite3

import numpy as np
import pytest
from pyarrow import parquet

from camri.decision import MostRecall, Present, pool, tune
from camri.decision.scores import condense
from camri.engine import Progress
from camri.errors import InputError
from camri.study import combine as merging
from camri.study import run_folder, runner
from camri.study.combine import merge
from camri.study.export import export, tidy
from camri.study.finalists import status
from camri.study.recipes import cifar10
from camri.study.store import open_run
from tests.study.conftest import TRAINING, made_outcome
from tests.study.test_runner import Pretender, assert_same_table


@pytest.fixture
def run_into(data, small, tmp_path):
    """A run of the small study, or of one like it, in a folder of that name."""

    def run(name, executor=None, **changes):
        runner.run(small.with_(**changes), tmp_path / name, executor or Pretender(), data=data)
        return tmp_path / name

    return run


def test_status_counts(run_into):
    folder = run_into("a", Pretender(fails=[1], stop_after=4))
    found = status(folder)
    assert (found.total, found.done, found.failed, found.pending) == (6, 3, 1, 2)
    assert (found.names, found.columns, found.pid, found.progress) == (("small",), ("column",), None, None)
    assert found.errors == ("ce seed 1: the loss became nan",)
    assert found.left_s == pytest.approx(2 / 3)  # two pending at a third of a second each


def test_status_before_the_important_class_is_found(run_into):
    found = status(run_into("a", Pretender(stop_after=1), important="worst"))
    assert (found.total, found.done, found.pending, found.columns, found.best) == (6, 1, 5, (), ())


def test_status_of_a_run_under_way(run_into):
    folder = run_into("a", Pretender(stop_after=4))
    progress = Progress(4, 2, 6, 0.75, 100.0, 10.0, 0.9, 0.8, failed=0)
    run_folder.write_progress(folder, progress)
    assert status(folder).progress is None  # nobody holds the lock: it is a killed run's
    with run_folder.hold(folder):
        found = status(folder)
    assert (found.progress, found.left_s) == (progress, 15.0)
    assert found.pid is not None


def test_best_is_recall_at_the_baselines_accuracy(run_into, data):
    folder = run_into("a")
    found = {best.method: best for best in status(folder).best}
    assert list(found) == ["ce", "l2softmax", "camri"]
    with open_run(folder) as run:
        ce = [run.scores(row, "val", (1,)) for row in run.rows(method="ce")]
        present = Present.of(pool(ce))
        floor = present.accuracy
        how = {"present": present, "keeps_recall": False, "prior_rows": 0}
        point = tune(ce, MostRecall(), **how)
        assert (found["ce"].recall, found["ce"].accuracy, found["ce"].num_seeds) == (*point.recall, point.accuracy, 2)
        assert found["ce"].recall >= np.mean([scores.recall() for scores in ce])
        for best in found.values():
            assert best.accuracy >= floor - 1e-9
        camri = {one.title: one.key for one in run.plan() if one.method == "camri"}
        values = {
            title: tune([run.scores(row, "val", (1,)) for row in run.rows(key=key)], MostRecall(), **how)
            for title, key in camri.items()
        }
        reached = {title: one.recall[0] for title, one in values.items() if one.has_met}
        assert len(set(reached.values())) == 2  # so that this test can fail
        assert found["camri"].recall == max(reached.values())
        assert reached[str(found["camri"].setting)] == max(reached.values())


def test_a_method_that_is_never_accurate_enough_has_no_best(run_into, data):
    class Poor(Pretender):
        def train(self, trials, job, hooks):
            def spoil(outcome):
                if outcome.trial.setting.method != "camri":
                    return hooks.on_outcome(outcome)
                scores = {}
                for split in ("val", "test"):
                    labels = outcome.scores[split].labels
                    scores[split] = condense(-9 * np.eye(3)[labels], labels, (1,))
                return hooks.on_outcome(dataclasses.replace(outcome, scores=scores))

            return super().train(trials, job, dataclasses.replace(hooks, on_outcome=spoil))

    found = {best.method: best for best in status(run_into("a", Poor())).best}
    # CAMRI at m = 0 is L2-softmax, which is accurate; so CAMRI has a best setting, and it is that one.
    assert str(found["camri"].setting) == "camri m=0π/64 s=8"
    spoiled = run_into("b", Poor(), methods={"ce": {}, "camri": {"m": [0.2], "s": [8]}})
    camri = {best.method: best for best in status(spoiled).best}["camri"]
    assert not camri.reaches_floor
    assert math.isnan(camri.recall)


def test_merging_parts_gives_the_whole(run_into, tmp_path):
    whole = run_into("whole", seeds=[0, 1, 2])
    merged = merge([run_into("a", seeds=[0, 1]), run_into("b", seeds=[1, 2])], tmp_path / "both")
    assert status(tmp_path / "both").names == ("small",)  # of two studies that differ in their seeds
    assert (merged.total, merged.added, merged.agreed, merged.conflicts) == (9, 9, 3, [])
    assert_same_table(tmp_path / "both", whole)
    with open_run(tmp_path / "both") as run, open_run(whole) as other:
        assert run.columns() == other.columns()
        assert run.plan() == other.plan()
        assert [spec["seeds"] for spec in run.studies] == [[0, 1], [1, 2]]
    assert status(tmp_path / "both").pending == 0
    again = merge([tmp_path / "both"], whole)
    assert (again.total, again.added, again.agreed) == (9, 0, 9)


def test_what_disagrees_is_reported_and_the_first_kept(run_into, data, small, tmp_path):
    class Other(Pretender):
        def train(self, trials, job, hooks):
            for trial in trials:
                salt = 9 if trial.setting.method == "ce" and trial.seed == 1 else 0
                hooks.on_outcome(made_outcome(data, trial, job.training, job.important, seed=salt))
            return True

    first, second = run_into("a"), run_into("b", Other())
    merged = merge([first, second], tmp_path / "both")
    assert merged.agreed == 5
    assert merged.conflicts == [f"ce seed 1: {second / 'outcomes.sqlite'} has other val and test counts"]
    assert_same_table(tmp_path / "both", first)


def test_done_takes_the_place_of_failed(run_into, tmp_path):
    merged = merge([run_into("a", Pretender(fails=[0])), run_into("b")], tmp_path / "both")
    assert (merged.total, merged.added, merged.agreed, merged.conflicts) == (6, 9, 3, [])
    with open_run(tmp_path / "both") as run:
        assert len(run.rows()) == 6
        assert sorted(row.attempts for row in run.rows()) == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("also_fails", [(), (0,)])
def test_failed_takes_no_place(run_into, tmp_path, also_fails):
    first = run_into("a", Pretender(fails=also_fails))
    merged = merge([first, run_into("b", Pretender(fails=[0]))], tmp_path / "both")
    assert (merged.total, merged.added, merged.agreed, merged.conflicts) == (6, 6, 3, [])
    assert_same_table(tmp_path / "both", first)


def test_a_run_that_came_meanwhile_is_not_overwritten(run_into, tmp_path, monkeypatch):
    one, other, real = run_into("a"), run_into("b", seeds=[7]), merging._merge

    def slow(sources, folder):
        shutil.copytree(other, tmp_path / "both")
        return real(sources, folder)

    monkeypatch.setattr(merging, "_merge", slow)
    with pytest.raises(InputError, match=r"both was filled by another process"):
        merge([one], tmp_path / "both")
    assert_same_table(tmp_path / "both", other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "both"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training": TRAINING.with_(epochs=9)}, r"another training \(epochs=2\)"),
        ({"important": "row"}, "other important classes"),
    ],
)
def test_strangers_are_not_merged(run_into, tmp_path, changes, said):
    one, other = run_into("a"), run_into("b", **changes)
    with pytest.raises(InputError, match=said):
        merge([one, other], tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_runs_are_not_merged_into_a_folder_of_other_files(run_into, tmp_path):
    one, folder = run_into("a"), tmp_path / "mine"
    folder.mkdir()
    for name in ("thesis.tex", "notes.txt"):
        (folder / name).touch()
    with pytest.raises(
        InputError, match=r"mine holds other files \(notes\.txt, …\) and no run; choose an empty or new"
    ):
        merge([one], folder)
    assert sorted(path.name for path in folder.iterdir()) == ["notes.txt", "thesis.tex"]


def test_runs_are_merged_into_an_empty_folder(run_into, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "run.lock").touch()  # of a call that was killed before it wrote anything
    assert merge([run_into("a")], tmp_path / "empty").added == 6
    assert {path.name for path in (tmp_path / "empty").iterdir()} == {"outcomes.sqlite", "run.lock"}


def test_what_a_killed_merge_left_is_no_part_of_the_next(run_into, tmp_path):
    one = run_into("a")
    shutil.copytree(run_into("b", seeds=[7]), tmp_path / "both.part")
    assert merge([one], tmp_path / "both").total == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "both"]


def test_a_damaged_run_leaves_no_half_of_a_merged_one(run_into, tmp_path):
    whole, damaged = run_into("a", seeds=[0, 1]), run_into("b", seeds=[2])
    with sqlite3.connect(damaged / "outcomes.sqlite") as connection:
        connection.execute("UPDATE outcomes SET setting = 'no JSON'")
    connection.close()
    with pytest.raises((InputError, ValueError)):
        merge([whole, damaged], tmp_path / "both")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_runs_that_found_different_classes_are_not_merged(run_into, tmp_path):
    folders = [run_into(f"seed {seed}", important="worst", seeds=[seed]) for seed in range(8)]
    found = {}
    for folder in folders:
        with open_run(folder) as run:
            found.setdefault(run.columns()[0].title, folder)
    (first, one), (second, other), *_ = found.items()
    with pytest.raises(InputError, match=rf"found different important classes \({first}; {second}\)"):
        merge([one, other], tmp_path / "both")


def test_a_run_that_has_not_found_its_classes_is_not_merged_with_one_that_has(run_into, tmp_path):
    begun, found = run_into("a", Pretender(stop_after=1), important="worst"), run_into("b", important="worst")
    with pytest.raises(InputError, match=r"found different important classes \(\w+; none yet\); they cannot be merged"):
        merge([begun, found], tmp_path / "both")


def test_runs_that_have_not_found_their_classes_yet_are_merged_and_resume(run_into, data, small, tmp_path):
    begun = [run_into(name, Pretender(stop_after=1), important="worst", seeds=seeds) for name, seeds in
             (("a", [0, 1]), ("b", [5, 6]))]  # fmt: skip
    assert (merge(begun, tmp_path / "both").total, status(tmp_path / "both").columns) == (2, ())
    assert runner.run(small.with_(important="worst"), tmp_path / "both", Pretender(), data=data).finished
    (found,) = status(tmp_path / "both").columns
    assert found in data.classes


def test_export(run_into, data, tmp_path):
    folder = run_into("a", Pretender(fails=[1]))
    assert export(folder, tmp_path / "t.csv", tmp_path / "t.parquet") == 9  # three done in two splits, three failed
    with open(tmp_path / "t.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    (row,) = [row for row in rows if row["method"] == "camri" and row["split"] == "test"]
    with open_run(folder) as run:
        (camri,) = run.rows(method="camri")
        names, _ = tidy(run)
    assert list(rows[0]) == names
    assert (float(row["m"]), float(row["s"]), row["important"], row["seed"]) == (0.2, 8.0, "column", "0")
    assert float(row["accuracy"]) == camri.accuracy["test"]
    assert [float(row[f"recall:{name}"]) for name in data.classes] == list(camri.recall["test"])
    failed = [row for row in rows if row["status"] == "failed"]
    assert {(row["split"], row["accuracy"], row["error"]) for row in failed} == {("", "", "the loss became nan")}
    table = parquet.read_table(tmp_path / "t.parquet")
    assert table.column_names == names
    assert table.num_rows == 9
    assert {str(table.schema.field(name).type) for name in ("m", "s", "accuracy", "recall:row")} == {"double"}
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["t.csv", "t.parquet"]


def test_export_of_several_classes_at_once(run_into, tmp_path):
    folder = run_into("a", important=[{"row": 1.0, "column": 0.5}])
    export(folder, tmp_path / "t.csv", tmp_path / "t.parquet")
    with open(tmp_path / "t.csv", encoding="utf-8", newline="") as file:
        assert {(row["important"], row["m"]) for row in csv.DictReader(file) if row["method"] == "camri"} == {
            ("row;column", "0.2;0.1")
        }
    assert "0.2;0.1" in parquet.read_table(tmp_path / "t.parquet")["m"].to_pylist()


def test_export_to_nowhere_is_a_sentence(run_into, tmp_path):
    with pytest.raises(InputError, match=r"t.csv cannot be written \(No such file or directory\)"):
        export(run_into("a"), tmp_path / "no" / "t.csv")


def test_the_store_answers_plain_sql(run_into):
    """The query of docs/study.md."""
    folder = run_into("a")
    connection = sqlite3.connect(f"file:{folder / 'outcomes.sqlite'}?mode=ro", uri=True)
    found = connection.execute(
        'SELECT plan.title, count(*), avg(test_accuracy) FROM plan JOIN outcomes USING (key) WHERE "column" = 0 '
        "AND status = 'done' GROUP BY plan.setting ORDER BY plan.rowid"
    ).fetchall()
    connection.close()
    assert [(title, num) for title, num, _ in found] == [
        ("ce", 2), ("l2softmax s=8", 2), ("camri m=0π/64 s=8", 2), ("camri m=4.074π/64 s=8", 2),
    ]  # fmt: skip


def test_cost_is_images_by_throughput(monkeypatch):
    monkeypatch.setattr(runner, "measure", lambda *_: 1000.0)
    study = cifar10("cat", num_seeds=2).with_(methods=["ce"])
    device = runner.torch.device("cpu")
    found = runner.estimate(study, device, workers=4)
    images = 18 * (45_000 // 64) * 64
    assert (found.images_per_s, found.device) == (4000.0, "4 CPU cores")
    assert found.trial_s == pytest.approx(images / 4000)
    assert found.total_s == pytest.approx(2 * images / 4000)
    assert found.source == "measured just now in one process, times 4"
    assert runner.estimate(study, device, workers=1).source == "measured just now"


def test_stored_throughput_is_used_where_there_is_one(monkeypatch):
    monkeypatch.setattr(runner.torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(runner, "measure", lambda *_: pytest.fail("measured"))
    found = runner.estimate(cifar10("cat"), runner.torch.device("cuda"), workers=1)
    assert (found.images_per_s, found.source) == (80_998.0, "stored: measured before on this kind of GPU")


def test_throughput_is_measured(monkeypatch):
    rate = runner.measure(TRAINING, (8, 8, 1), 3, runner.torch.device("cpu"))
    assert 100 < rate < 1e7
    # 0.2 s to start and 0.01 s an epoch: the start does not count.
    assert runner._slope(lambda epochs: 0.2 + 0.01 * epochs) == pytest.approx(0.01)


@pytest.mark.parametrize("held_up", range(8))
def test_one_call_that_was_held_up_does_not_count(held_up):
    calls = itertools.count()
    found = runner._slope(lambda epochs: 0.2 + 0.01 * epochs + (3.0 if next(calls) == held_up else 0.0))
    assert found == pytest.approx(0.01)
    assert next(calls) <= 9
