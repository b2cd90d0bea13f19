"""Finals: each method's best setting on validation data, its controls, seeds that the screening did not use."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from camri.cli import app
from camri.decision.counts import confusion
from camri.decision.scores import condense
from camri.engine.outcome import Outcome
from camri.engine.spec import FAST, identity
from camri.errors import InputError
from camri.methods import MARGIN_UNIT, setting
from camri.study.finalists import Edge, find_column, find_finalists, make_finals
from camri.study.reader import RunReader, judge_columns
from camri.study.run_folder import facts_of
from camri.study.spec import Column, Grid, Study, study
from camri.study.store import Store, open_run
from camri.study.study_file import find_study, override
from tests.study.conftest import TRAINING

METHODS = {
    "ce": {},
    "wce": {"w": [4, 8, 12]},
    "l2softmax": {"s": [4, 8]},
    "arcface": {"m": [4 * MARGIN_UNIT], "s": [32]},
    "camri": {"m": [0.0, 4 * MARGIN_UNIT, 8 * MARGIN_UNIT], "s": [8, 16]},
    "wasserstein": {"c": [3.0, 2.0], "entropy": [0.01]},
}
COLUMNS = [((1, 1.0),), ((2, 1.0),)]
# How much better an important image's score is: the best setting of each method and column stands out.
SHARPNESS = {
    ("wce", 1, 8.0): 1.0,
    ("wce", 2, 12.0): 1.0,
    ("camri", 1, 4 * MARGIN_UNIT, 16.0): 2.0,
    ("camri", 2, 8 * MARGIN_UNIT, 8.0): 2.0,
}


def worth(one, index):
    values = [value[0] if isinstance(value, tuple) else value for _, value in one.knobs]
    return SHARPNESS.get((one.method, index, *values), 0.0)


def make_screening(folder, data, methods=METHODS, val_fraction=0.1, without=(), seeds=(100, 101), drop=()):
    asked = study("screen", "made", ["column", "corner"], methods, seeds=seeds, training=TRAINING).with_(
        val_fraction=val_fraction
    )
    splits = {name: part for name, part in data.splits.items() if name != "val" or val_fraction}
    data = type(data)(data.name, data.classes, splits, data.fingerprint, data.provenance)
    folder.mkdir(exist_ok=True)
    with Store.open(folder, facts_of(asked, data)) as store:
        store.add_study(asked, COLUMNS)
        for trial in asked.trials(COLUMNS):
            if (trial.setting.method, trial.seed) in drop or trial.setting.method in without:
                continue
            common = {"trial": trial, "training": TRAINING, "fingerprint": data.fingerprint, "status": "done"}
            scores, counts = {}, {}
            for split in splits.keys() & {"val", "test"}:
                labels = splits[split].labels.numpy()
                drawn = np.random.default_rng([trial.seed, len(labels)])
                logits = 1.2 * np.eye(3)[labels] + drawn.normal(size=(len(labels), 3))
                if trial.setting.method == "wasserstein":  # learns nothing: no shift makes it as accurate
                    logits = drawn.normal(size=logits.shape) - trial.setting.knobs[0][1][0] * 0.1 * np.eye(3)[labels]
                for index in trial.setting.important:
                    logits[labels == index, index] += worth(trial.setting, index)
                    if split == "test":  # what is good on test images must not matter
                        logits[labels == index, index] -= 3 * worth(trial.setting, index)
                counts[split], scores[split] = confusion(logits.argmax(1), labels, 3), condense(logits, labels, (1, 2))
            outcome = Outcome(**common, epochs_done=2, confusion=counts, scores=scores, environment={"torch": "2"})
            store.add(identity(trial, TRAINING, data.fingerprint), outcome)
    return folder


@pytest.fixture(scope="module")
def screening(tmp_path_factory, data):
    return make_screening(tmp_path_factory.mktemp("screening"), data)


@pytest.fixture
def run(screening):
    with open_run(screening) as opened:
        yield opened


def named(found):
    return {(one.column.title, one.method): str(one.setting) for one in found}


def test_the_best_on_validation_images_wins_whatever_the_test_images_say(run):
    assert named(find_finalists(run)) == {
        ("column", "ce"): "ce",
        ("column", "wce"): "wce w=8",
        ("column", "l2softmax"): "l2softmax s=4",  # equal to s = 8: the first
        ("column", "arcface"): "arcface m=4π/64 s=32",
        ("column", "camri"): "camri m=4π/64 s=16",
        ("column", "wasserstein"): "wasserstein c=2 entropy=0.01",  # neither reaches the floor: the more accurate one
        ("corner", "ce"): "ce",
        ("corner", "wce"): "wce w=12",
        ("corner", "l2softmax"): "l2softmax s=4",
        ("corner", "arcface"): "arcface m=4π/64 s=32",
        ("corner", "camri"): "camri m=8π/64 s=8",
        ("corner", "wasserstein"): "wasserstein c=2 entropy=0.01",
    }


def test_the_report_finds_the_same(run, screening):
    with RunReader(screening) as reading:
        own = {(v.column.title, method): one.title for v in judge_columns(reading) for method, one in v.own.items()}
    assert own == named(find_finalists(run))


def test_a_finalist_s_record(run):
    found = {(one.column.title, one.method): one for one in find_finalists(run)}
    assert {key: one.num_settings for key, one in found.items() if key[0] == "column"} == {
        ("column", "ce"): 1, ("column", "wce"): 3, ("column", "l2softmax"): 2, ("column", "arcface"): 1,
        ("column", "camri"): 6, ("column", "wasserstein"): 2,
    }  # fmt: skip
    assert found["column", "wce"].edges == ()
    assert found["corner", "wce"].edges == (Edge("w", 12.0, 16.0),)
    assert found["column", "camri"].edges == (Edge("s", 16.0, 32.0),)
    beyond = pytest.approx(12 * MARGIN_UNIT)
    assert [(e.knob, e.beyond) for e in found["corner", "camri"].edges] == [("m", beyond), ("s", 4.0)]
    assert found["column", "l2softmax"].edges == (Edge("s", 4.0, 2.0),)
    assert found["column", "arcface"].edges == ()  # one value is no grid
    camri, ce, lost = (found["column", name] for name in ("camri", "ce", "wasserstein"))
    assert camri.recall > ce.recall
    assert ce.accuracy >= np.mean([row.accuracy["val"] for row in run.rows(method="ce")]) - 1e-9
    assert (lost.reaches_floor, np.isnan(lost.recall), lost.num_seeds) == (False, True, 2)


def test_a_knob_that_does_nothing_is_no_edge(tmp_path, data):
    make_screening(tmp_path, data, {"ce": {}, "camri": {"m": [0.0, 0.3], "s": [4, 8, 16]}})
    with open_run(tmp_path) as run:
        camri = find_finalists(run, ["camri"])[0]
    assert (camri.point, camri.edges) == ((0.0, 4.0), (Edge("s", 4.0, 2.0),))


def test_finals_of_one_column_are_a_plain_study_with_controls(run):
    first = [run.columns()[0]]
    finals = make_finals(run, find_finalists(run, columns=first))
    assert finals.name == "screen.finals"
    assert finals.seeds == tuple(range(10))
    assert finals.training == TRAINING
    assert [column.classes for column in finals.important] == [("column",)]
    assert {grid.method: dict(grid.axes) for grid in finals.methods} == {
        "ce": {},
        "wce": {"w": (8.0,)},
        "l2softmax": {"s": (4.0, 16.0, 32.0)},  # its own best, and the scales of CAMRI and ArcFace
        "arcface": {"m": (4 * MARGIN_UNIT,), "s": (32.0,)},
        "camri": {"m": (4 * MARGIN_UNIT,), "s": (16.0,)},
        "wasserstein": {"c": (2.0,), "entropy": (0.01,)},
    }
    assert not any(grid.points for grid in finals.methods)
    assert Study.from_json(json.loads(json.dumps(finals.to_json()))) == finals


def test_finals_of_several_columns_train_each_finalist_for_its_own(run):
    finals = make_finals(run, find_finalists(run), seeds=[7])
    by_column = [sorted(str(one) for number, one in finals.settings(COLUMNS) if number == place) for place in (0, 1)]
    shared = ["arcface m=4π/64 s=32", "ce"]
    assert by_column[0] == sorted([*shared, "camri m=4π/64 s=16", "l2softmax s=16", "l2softmax s=32", "l2softmax s=4",
                                   "wasserstein c=2 entropy=0.01", "wce w=8"])  # fmt: skip
    assert by_column[1] == sorted([*shared, "camri m=8π/64 s=8", "l2softmax s=32", "l2softmax s=4", "l2softmax s=8",
                                   "wasserstein c=2 entropy=0.01", "wce w=12"])  # fmt: skip
    assert len(finals.trials(COLUMNS)) == 12  # ce, arcface and two scales of l2softmax are trained once
    again = Study.from_json(json.loads(json.dumps(finals.to_json())))
    assert (again, again.key) == (finals, finals.key)
    assert again.key != finals.with_(seeds=[8]).key


def test_points_change_a_study_and_plain_grids_do_not():
    plain = study("s", "digits", ["8", "3"], {"ce": {}, "camri": {"m": [0.1, 0.2], "s": [8]}})
    pointed = plain.with_(methods=[Grid.of("ce"), Grid.at("camri", [[(0.1, 8)], [(0.2, 8)]])])
    assert plain.to_json()["methods"] == [["ce", []], ["camri", [["m", [0.1, 0.2]], ["s", [8.0]]]]]
    assert pointed.to_json()["methods"][1] == ["camri", [["m", [0.1, 0.2]], ["s", [8.0]]], [[[0.1, 8.0]], [[0.2, 8.0]]]]
    assert pointed.key != plain.key
    assert list(pointed.settings([((8, 1.0),), ((3, 1.0),)])) == [
        (0, setting("ce")), (0, setting("camri", 8, m=0.1, s=8)),
        (1, setting("ce")), (1, setting("camri", 3, m=0.2, s=8)),
    ]  # fmt: skip
    assert override(pointed, "camri").methods == (pointed.methods[1],)
    with pytest.raises(InputError, match="camri has points of its own in each column"):
        override(pointed, None, ["camri.m=4"])
    with pytest.raises(InputError, match="camri has points for 2 columns, and the study has 1"):
        pointed.with_(important="8")
    with pytest.raises(InputError, match="give a value for each of m, s"):
        Grid.at("camri", [[(0.1,)]])


def test_two_columns_that_turned_out_to_be_one_class_are_one_in_the_finals(run):
    found = find_finalists(run, ["camri"])
    one_class = dataclasses.replace(found[0].column, number=1)  # as "second" and "median" of four classes are
    finals = make_finals(run, [found[0], dataclasses.replace(found[1], column=one_class)])
    assert finals.important == (Column.of("column"),)
    assert [grid.points for grid in finals.methods if grid.method == "camri"] == [
        (((4 * MARGIN_UNIT, 16.0), (8 * MARGIN_UNIT, 8.0)),)
    ]


def test_finals_keep_away_from_the_screenings_seeds(run):
    found = find_finalists(run, ["camri"])
    assert make_finals(run, found, seeds=range(3)).seeds == (0, 1, 2)
    with pytest.raises(InputError, match="seeds=100, 101 chose the finalists"):
        make_finals(run, found, seeds=range(99, 105))


def test_seeds_are_the_smallest_unused_ones_by_default(tmp_path, data):
    make_screening(tmp_path, data, {"ce": {}}, seeds=(0, 1, 4))
    with open_run(tmp_path) as run:
        assert make_finals(run, find_finalists(run)).seeds == (2, 3, 5, 6, 7, 8, 9, 10, 11, 12)


def test_another_training_keeps_the_model(run):
    found = find_finalists(run, ["wce"])
    assert make_finals(run, found, epochs=5).training == TRAINING.with_(epochs=5)
    fast = make_finals(run, found, schedule="fast", epochs=30).training
    assert fast == FAST.with_(epochs=30, model=TRAINING.model, model_options=TRAINING.model_options)
    assert [grid.method for grid in make_finals(run, found).methods] == ["ce", "wce"]


def test_a_column_by_its_name_or_number(tmp_path, data):
    make_screening(tmp_path, data, {"ce": {}})
    with open_run(tmp_path) as run:
        columns = run.columns()
        assert find_column(columns, "corner") is columns[1]
        assert find_column(columns, "1") is columns[1]
        with pytest.raises(InputError, match=r"column='ring' is not a column of the run; choices: 0 \(column\), 1"):
            find_column(columns, "ring")


def test_refusals(tmp_path, data, run):
    with pytest.raises(InputError, match="method 'focal' is not in the screening"):
        find_finalists(run, ["focal"])
    make_screening(tmp_path / "a", data, {"ce": {}}, val_fraction=0.0)
    make_screening(tmp_path / "b", data, {"ce": {}, "wce": {"w": [4]}}, without=["ce"])
    with (
        open_run(tmp_path / "a") as bare,
        pytest.raises(InputError, match="held out no validation data, so nothing can be chosen"),
    ):
        find_finalists(bare)
    with open_run(tmp_path / "b") as bare, pytest.raises(InputError, match="no cross-entropy trial has ended well"):
        find_finalists(bare)


def camri(*words):
    return CliRunner().invoke(app, ["study", *map(str, words)], env={"COLUMNS": "160"}, catch_exceptions=False)


def test_the_command_writes_a_study_that_runs_and_names_edges(screening, tmp_path):
    out = tmp_path / "finals.json"
    said = camri("finalists", screening, "--out", out, "--column", "corner", "--seeds", "0-4", "--epochs", 3)
    assert said.exit_code == 0, said.output
    lines = said.stdout.splitlines()
    camri_line = next(line for line in lines if line.startswith("camri "))
    assert camri_line.split()[1:4] == ["camri", "m=8π/64", "s=8"]
    assert camri_line.split()[-3:] == ["6", "m,", "s"]
    assert "the best of camri is at the edge of its grid, m 8π/64: screen camri.m=12π/64 too before the finals" in lines
    assert "– none is as accurate as ce –" in said.stdout
    assert f"{out}: 40 trials, 3 epochs, seeds 0, 1, 2, 3, 4" in said.stdout.replace("\n", " ")
    finals = find_study(str(out))
    assert (finals.training.epochs, finals.seeds, finals.important[0].classes) == (3, (0, 1, 2, 3, 4), ("corner",))
    assert [path.name for path in tmp_path.iterdir()] == ["finals.json"]


def test_an_unfinished_screening_is_reported(tmp_path, data):
    make_screening(tmp_path / "run", data, {"ce": {}, "wce": {"w": [4]}}, drop=[("wce", 101)])
    said = camri("finalists", tmp_path / "run", "--out", tmp_path / "f.json").stdout
    assert "2 trials pending, 0 failed" in said


def test_a_study_runs_where_little_is_installed(tmp_path):
    """GPU machines have torch, numpy, scipy, Pillow and the command line's own, and little else."""
    labels = np.arange(120) % 3
    images = np.random.default_rng(0).integers(0, 255, (120, 8, 8, 1), dtype=np.uint8)
    np.savez(tmp_path / "made.npz", x=images, y=labels)
    (tmp_path / "made.toml").write_text(
        'columns = "1"\nseeds = [100]\ndata = "made.npz"\n[training]\nmodel = "small"\nepochs = 1\n'
        '[methods]\nce = {}\ncamri = { m = ["4pi/64"], s = [8] }\n'
    )
    script = (
        "import builtins, sys\n"
        "absent = {'pydantic', 'altair', 'vl_convert', 'jinja2', 'sklearn', 'pyarrow', 'pandas', 'ray', 'optuna'}\n"
        "real = builtins.__import__\n"
        "def guarded(name, scope=None, *rest, **more):\n"  # only what camri itself imports: typer may need pydantic
        "    if name.split('.')[0] in absent and (scope or {}).get('__name__', '').startswith('camri'):\n"
        "        raise ImportError(f'{scope[\"__name__\"]} imports {name}')\n"
        "    return real(name, scope, *rest, **more)\n"
        "builtins.__import__ = guarded\n"
        "from camri.cli import app\n"
        "for line in sys.argv[1:]:\n"
        "    app(line.split(), standalone_mode=False)\n"
    )
    lines = [
        "study run made.toml --out screen --device cpu --workers 1",
        "study finalists screen --out finals.json --seeds 0-1",
        "study run finals.json --out finals --device cpu --workers 1",
        "study status finals",
        "study export finals --csv finals.csv",
    ]
    done = subprocess.run([sys.executable, "-c", script, *lines], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "finals: 6 done, 6 of them now" in done.stdout
