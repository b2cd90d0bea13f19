"""reproduce/: study files are sound, one command runs each and resumes, splits stand beside each other."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from camri.cli import app
from camri.engine.spec import PAPER
from camri.report.records import FromRun
from camri.report.tables import make_table
from camri.study.reader import RunReader
from camri.study.runner import LocalExecutor
from camri.study.runner import run as run_study
from camri.study.study_file import read_study
from tests.report.conftest import make_run

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "reproduce"
STUDIES = sorted(FOLDER.glob("table1/*.toml")) + sorted(FOLDER.glob("table1/splits/*.toml"))
PAPERS = {"ce", "wce", "crwwce", "wasserstein", "l2softmax", "arcface", "camri"}


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_study_file_is_one(path):
    study = read_study(path)
    text = path.read_text(encoding="utf-8")
    assert f"camri study run {path.relative_to(ROOT)} --out runs/" in text
    if path.stem.endswith("-rows"):
        assert {grid.method for grid in study.methods} == PAPERS
        assert (len(study.important), len(study.seeds)) == (3, 10)
        assert study.data in text


def test_the_papers_protocol_is_whole():
    study = read_study(FOLDER / "table1" / "cat-300.toml")
    assert study.training == PAPER
    assert (study.training.epochs, study.val_fraction, len(study.seeds)) == (300, 0.0, 10)
    (camri,) = (grid for grid in study.methods if grid.method == "camri")
    assert dict(camri.axes) == {"m": (4 * np.pi / 64,), "s": (16.0,)}


def test_the_splits_differ_in_their_split_alone():
    studies = [read_study(path) for path in sorted(FOLDER.glob("table1/splits/*.toml"))]
    assert [one.split_seed for one in studies] == [1, 2, 3]
    assert len({one.with_(name="x", split_seed=0).key for one in studies}) == 1


def fake_python(folder):
    """A python that notes its words; a study "finishes" at once."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\necho "$@" >>"{folder}/said"\necho done\n')
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


def test_one_command_runs_every_study_and_stops_in_time(tmp_path):
    environment = {**os.environ, "PYTHON": str(fake_python(tmp_path)), "CAMRI_DATA": str(tmp_path), "ONE_LANE": "1"}
    command = [str(FOLDER / "table1" / "run"), "900", str(tmp_path / "runs")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "said").read_text().splitlines()
    run = {words.split()[4] for words in said}
    assert {Path(path).resolve() for path in run} == set(STUDIES)
    assert all("--max-wall" in words for words in said)
    assert "cat-300" in said[0], "the most telling first"
    late = subprocess.run([command[0], "5", command[2]], env=environment, capture_output=True, text=True)
    assert late.stdout.count("no time left") == len(said)
    assert (tmp_path / "said").read_text().splitlines() == said
    told = subprocess.run([str(FOLDER / "table1" / "run")], capture_output=True, text=True)
    assert told.returncode == 2
    assert "CAMRI_DATA=FOLDER reproduce/table1/run SECONDS RUNS" in told.stderr


def test_the_protocol_small_gives_recall_as_trained_under_a_shift_and_a_threshold(tmp_path, capsys):
    """cat-300.toml on digits for two epochs: no validation data, and still every interval of the row."""
    study = read_study(FOLDER / "table1" / "cat-300.toml")
    training = study.training.with_(epochs=2, model="small")
    small = study.with_(data="digits", important=["8"], seeds=[0, 1, 2], training=training)
    assert run_study(small, tmp_path / "run", LocalExecutor("cpu", workers=1)).finished
    with RunReader(tmp_path / "run") as reading:
        source = FromRun(reading)
        assert make_table("paper", source).rows
        for name in ("trained", "recall", "alarms", "threshold"):
            (row,) = make_table(name, source).rows
            assert "[" in " ".join(cell.text for cell in row), name
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    (tmp_path / "runs").mkdir()
    (tmp_path / "run").rename(tmp_path / "runs" / "cat-300")
    status = [str(FOLDER / "table1" / "status"), str(tmp_path / "runs")]
    told = subprocess.run(status, env=environment, capture_output=True, text=True).stdout.splitlines()
    assert told[0] == "cat-300: 6 of 6 done, 0 failed, 0 pending"
    assert "--results reproduce/table1/cat-300" in told[1]
    assert told[2] == "cifar10-rows: not run"


def test_splits_stand_beside_each_other(tmp_path, capsys):
    methods = {"ce": {}, "wce": {"w": [4]}}
    runs = [make_run(tmp_path / str(n), methods=methods, seeds=[3 * n, 3 * n + 1, 3 * n + 2]) for n in range(3)]
    command = [sys.executable, str(FOLDER / "table1" / "splits" / "summary.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, *map(str, runs)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    gaps = []
    for run in runs:
        with RunReader(run) as reading:
            gaps.append(FromRun(reading).records("gaps")[0]["recall_change"])
    line = next(line for line in done.stdout.splitlines() if "as trained" in line)
    shown = [cell.strip() for cell in line.split("|")][4:7]
    assert [float(text.replace("−", "-")) for text in shown] == pytest.approx([100 * gap for gap in gaps], abs=0.051)
    assert f"| {100 * np.std(gaps, ddof=1):.2f} |" in line
    assert line.rstrip().endswith("| 9 |")
    alone = subprocess.run([*command, str(runs[0])], env=environment, capture_output=True, text=True)
    assert (alone.returncode, alone.stderr) == (2, "camri: one split shows no variation; give at least two runs\n")


def test_small_recipes_are_named_where_the_papers_are(capsys):
    app(["study", "list"], standalone_mode=False)
    assert "small.table1" in capsys.readouterr().out
