"""Ensembles: mean probabilities of disjoint groups of trials, as a run that everything else can read."""

import dataclasses

import numpy as np
import pytest
from typer.testing import CliRunner

from camri.cli import app
from camri.errors import InputError
from camri.study.combine import average, make_ensembles
from camri.study.run_folder import facts_of
from camri.study.runner import run as run_study
from camri.study.store import Store, open_run
from tests.study.conftest import first_trials, made_outcome, put

SEEDS = (3, 1, 4, 0, 7)


def fill(folder, data, study, without=()):
    """A run with logits drawn at random, those of every trial known."""
    study = study.with_(seeds=list(SEEDS), keep_logits=True)
    known = {}
    folder.mkdir()
    with Store.open(folder, facts_of(study, data)) as store:
        store.add_study(study, [((1, 1.0),)])
        for trial in first_trials(study):
            drawn = np.random.default_rng([trial.seed, int(trial.setting.key, 16)])
            logits = {
                split: (2 * drawn.normal(size=(len(labels), 3)) + np.eye(3)[labels]).astype(np.float16)
                for split in ("val", "test")
                for labels in [data.splits[split].labels.numpy()]
            }
            known[trial.setting.key, trial.seed] = logits
            kept = {} if (trial.setting.method, trial.seed) in without else logits
            put(store, dataclasses.replace(made_outcome(data, trial), logits=kept))
    return folder, study, known


def softmax(logits):
    odds = np.exp(logits.astype(np.float64))
    return odds / odds.sum(axis=1, keepdims=True)


def test_an_ensemble_is_its_members_mean_probability(tmp_path, data, small):
    folder, _, known = fill(tmp_path / "run", data, small)
    made = make_ensembles(folder, tmp_path / "two", 2)
    assert (made.num_settings, made.num_each, made.left_over) == (3, 2, (7,))
    with open_run(tmp_path / "two") as run:
        assert run.training["model_options"] == {"ensemble": 2, "width": 2}
        rows = run.rows()
        assert [row.seed for row in rows] == [0, 1] * 3
        for row in rows:
            members = ((0, 1), (3, 4))[row.seed]
            for split in ("val", "test"):
                wanted = np.mean([softmax(known[row.key, seed][split]) for seed in members], axis=0)
                np.testing.assert_allclose(softmax(run.logits(row)[split]), wanted, atol=2e-3)
                labels = data.splits[split].labels.numpy()
                assert run.confusion(row, split).trace() == (wanted.argmax(axis=1) == labels).sum()
                found = run.scores(row, split)
                assert found.important == (1,)
                others = np.delete(wanted, 1, axis=1).max(axis=1)
                np.testing.assert_allclose(found.lead[:, 0], np.log(wanted[:, 1] / others), atol=0.02)
            assert row.wall_s == pytest.approx(0.6)


def test_the_mean_is_of_probabilities_not_of_logits_and_nothing_overflows():
    sure, unsure = np.array([[80.0, 0.0]]), np.array([[0.0, 1.0]])
    np.testing.assert_allclose(np.exp(average([sure, unsure])), [[(1 + 1 / (1 + np.e)) / 2, 0.5 * np.e / (1 + np.e)]])
    assert np.isfinite(average([np.array([[6e4, -6e4]])] * 3)).all()
    np.testing.assert_array_equal(average([unsure + 7]), average([unsure]))
    halves = [np.float16([[3.0, 0.1, -2.0]]), np.float16([[-1.0, 0.3, 2.0]])]
    wanted = np.log(np.mean([softmax(one) for one in halves], axis=0))
    np.testing.assert_allclose(average(halves), wanted, rtol=1e-6)  # computed in full precision


def test_only_seeds_that_every_setting_has_are_grouped(tmp_path, data, small):
    folder, study, _ = fill(tmp_path / "run", data, small)
    with Store.open(folder, facts_of(study, data)) as store:
        trial = next(one for one in first_trials(study) if one.setting.method == "camri" and one.seed == 1)
        put(store, made_outcome(data, trial, status="failed"))
    assert make_ensembles(folder, tmp_path / "two", 2).left_over == ()
    with open_run(tmp_path / "two") as run:
        assert len(run.rows()) == 6  # of the seeds 0, 3 and 4, 7


def test_the_page_and_table_take_it_and_nothing_is_trained_into_it(tmp_path, data, small):
    folder, study, _ = fill(tmp_path / "run", data, small)
    out = tmp_path / "two"
    call = CliRunner().invoke
    done = call(app, ["study", "ensembles", str(folder), "--size", "2", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "2 ensembles of 2 trials for each of 3 settings; seeds left over: 7" in done.output
    assert call(app, ["report", str(out), "--table", "1"]).exit_code == 0
    page = call(app, ["report", str(out)])
    assert page.exit_code == 0, page.output
    shown = (out / "report.html").read_text(encoding="utf-8")
    for words in ("small, ensembles of 2", f"camri study ensembles {folder} --size 2 --out {out}", "has no angles"):
        assert words in shown
    with pytest.raises(InputError, match="ensemble"):
        run_study(study, out, None, data=data)


@pytest.mark.parametrize(("size", "words"), [(1, "give 2 to 5"), (6, r"has 5 seeds of every setting")])
def test_a_size_that_cannot_be_is_refused(tmp_path, data, small, size, words):
    folder, *_ = fill(tmp_path / "run", data, small)
    with pytest.raises(InputError, match=words):
        make_ensembles(folder, tmp_path / "out", size)
    assert not (tmp_path / "out").exists()


def test_trials_without_logits_and_folders_in_use_are_refused_and_nothing_is_left(tmp_path, data, small):
    folder, *_ = fill(tmp_path / "run", data, small, without=[("camri", 4)])
    with pytest.raises(InputError, match=r"seed 4 kept no logits; train with `logits = true` under \[keep\]"):
        make_ensembles(folder, tmp_path / "out", 2)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run"]
    with pytest.raises(InputError, match="is not empty"):
        make_ensembles(folder, folder, 2)


def test_a_file_is_no_folder_for_ensembles(tmp_path, data, small):
    folder, *_ = fill(tmp_path / "run", data, small)
    (tmp_path / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(InputError, match=r"letter\.txt is no folder; choose a new folder with --out$"):
        make_ensembles(folder, tmp_path / "letter.txt", 2)
    with pytest.raises(InputError, match=r"letter\.txt/new cannot be written \(Not a directory\); choose a new folder"):
        make_ensembles(folder, tmp_path / "letter.txt" / "new", 2)
    assert (tmp_path / "letter.txt").read_text(encoding="utf-8") == "dear"


def test_what_the_new_run_says_of_itself(tmp_path, data, small):
    folder, _, known = fill(tmp_path / "run", data, small)
    (tmp_path / "five").mkdir()  # an empty folder will do
    (tmp_path / "five.part").mkdir()
    (tmp_path / "five.part" / "outcomes.sqlite").write_text("what a call left that was broken off")
    made = make_ensembles(folder, tmp_path / "five", 5)
    assert (made.num_settings, made.num_each, made.left_over) == (3, 1, ())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["five", "run"]
    with open_run(tmp_path / "five") as run, open_run(folder) as source:
        (told,) = run.studies
        assert (told["name"], told["seeds"]) == ("small, ensembles of 5", [0])
        assert told["training"] == run.training
        assert [(one.indices, one.strengths) for one in run.columns()] == [((1,), (1.0,))]
        assert run.note("command") == f"camri study ensembles {folder} --size 5 --out {tmp_path / 'five'}"
        rows = run.rows()
        assert {row.key for row in rows} == {key for key, _ in known}
        assert len({row.identity for row in rows}) == 3
        assert not {row.identity for row in rows} & {row.identity for row in source.rows()}
        for row in rows:
            assert (row.status, row.epochs_done, row.environment) == ("done", 2, {"torch": "2", "cores": 2})
            assert (row.wall_s, row.device_s) == (pytest.approx(1.5), pytest.approx(5 / 3))
            assert run.logits(row)["test"].dtype == np.float16
            wanted = np.mean([softmax(known[row.key, seed]["test"]) for seed in SEEDS], axis=0)
            labels, counts = data.splits["test"].labels.numpy(), np.zeros((3, 3), int)
            np.add.at(counts, (labels, wanted.argmax(axis=1)), 1)
            np.testing.assert_array_equal(run.confusion(row, "test"), counts)


def test_an_ensemble_s_name_tells_its_members(tmp_path, data, small):
    folder, *_ = fill(tmp_path / "run", data, small)
    names = {}
    for size, out in ((2, "two"), (2, "new/again"), (3, "three")):
        make_ensembles(folder, tmp_path / out, size)
        with open_run(tmp_path / out) as run:
            names[out] = [row.identity for row in run.rows()]
    assert names["new/again"] == names["two"]
    assert len({*names["two"], *names["three"]}) == len(names["two"]) + len(names["three"]) == 9
    assert {len(name) for name in names["two"]} == {32}


def test_a_run_without_trials_or_without_its_important_classes_is_refused(tmp_path, data, small):
    for name in ("empty", "early"):
        (tmp_path / name).mkdir()
        with Store.open(tmp_path / name, facts_of(small, data)) as store:
            if name == "early":
                put(store, made_outcome(data, first_trials(small)[0]))
    with pytest.raises(InputError, match=r"empty.* has no trial that ended well"):
        make_ensembles(tmp_path / "empty", tmp_path / "out", 2)
    with pytest.raises(InputError, match=r"early.*: its important classes are not known"):
        make_ensembles(tmp_path / "early", tmp_path / "out", 2)


def test_the_folder_one_is_in_can_take_them(tmp_path, data, small, monkeypatch):
    folder, _, _ = fill(tmp_path / "run", data, small)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    make_ensembles(folder, ".", 2)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["here", "run"]
    with open_run(tmp_path / "here") as run:
        assert len(run.rows()) == 6
