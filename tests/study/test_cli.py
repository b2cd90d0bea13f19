"""`camri study`: what it prints, how it refuses, that killed and stopped runs go on."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from camri.cli import app
from camri.cli import run as run_command
from camri.cli.study_view import print_result, print_status
from camri.errors import InputError
from camri.study.finalists import Finalist, Status
from camri.study.runner import Result
from camri.study.store import ColumnFacts, open_run
from tests.study.test_runner import assert_same_table

EXAMPLE = Path(__file__).parents[2] / "examples" / "study.toml"
RUNNER = CliRunner()


def camri(line, code=0):
    result = RUNNER.invoke(app, ["study", *shlex.split(line)], env={"COLUMNS": "160"}, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture(scope="module")
def example_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "example"
    out = camri(f"run {EXAMPLE} --out {folder} --workers 1")
    assert out.replace("\n", "") == f"{folder}: 12 done, 12 of them now"
    return folder


def test_list_names_the_studies():
    lines = camri("list").splitlines()
    assert lines[1].split()[:3] == ["paper.cifar10", "834", "8,340"]
    assert [line.split()[0] for line in lines[1:-1]][-4:] == ["small.fig5", "small.fig6", "digits", "digits.pair"]


def test_show():
    out = camri("show paper.cifar10 --column cat --schedule paper --methods ce,arcface,camri --num-seeds 5 --no-cost")
    assert [line.rstrip() for line in out.splitlines()[1:]] == [
        "data: cifar10, validation 0.1 of the train split",
        "columns: cat",
        "training: model paper, 300 epochs of batch 64, adam 0.001, hold 1.0, ramp [0.0, 0.0], beyond_pi paper",
        "method   settings  values",
        "ce       1",
        "arcface  63        m 0, 1π/64, 2π/64, 3π/64, 4π/64, 5π/64, 6π/64, 7π/64, 8π/64; s 1, 2, 4, 8, 16, 32, 64",
        "camri    63        m 0, 1π/64, 2π/64, 3π/64, 4π/64, 5π/64, 6π/64, 7π/64, 8π/64; s 1, 2, 4, 8, 16, 32, 64",
        "127 settings, 120 after merging those that train the same; × 5 seeds = 600 trials",
    ]


def test_show_says_where_its_estimate_comes_from():
    out = camri("show digits --num-seeds 2 --device cpu --methods ce")
    assert re.search(r"cost on \d+ CPU cores: about .* a trial, [\d,]+ inputs/s \(measured just now", out)


def test_show_refuses_a_class_that_is_not_there():
    with pytest.raises(InputError, match="--column '10' is not a class"):
        camri("show digits --column 10 --device cpu")


def test_the_example_runs(example_run):
    with open_run(example_run) as run:
        assert [column.title for column in run.columns()] == ["8", "3 + 8"]
        assert {row.title for row in run.rows(method="camri")} == {
            "camri m=4π/64 s=8", "camri m=4π/64,2π/64 s=8", "camri m=8π/64 s=8", "camri m=8π/64,4π/64 s=8",
        }  # fmt: skip
        assert {row.status for row in run.rows(status=None)} == {"done"}


def test_a_run_resumes(example_run):
    assert camri(f"run {EXAMPLE} --out {example_run}").replace("\n", "") == f"{example_run}: 12 done, 0 of them now"


def test_grid_words_after_one_option(tmp_path):
    out = camri("show digits --grid m=2pi/64 s=4,16 --methods ce,camri --column 8 --seeds 5-7 --no-cost")
    assert "m 2π/64; s 4, 16" in out
    assert "× 3 seeds = 9 trials" in out


def test_status(example_run):
    out = camri(f"status {example_run}")
    assert "12 of 12 done, 0 failed, 0 pending" in out.replace("\n", " ")
    assert re.search(r"^3 \+ 8\nmethod .*\nce .*\nl2softmax .*\ncamri +camri m=", out, flags=re.M)
    assert "best so far" not in camri(f"status {example_run} --no-best")


def test_merge_and_export(example_run, tmp_path):
    shutil.copytree(example_run, tmp_path / "copy")
    out = camri(f"merge {example_run} {tmp_path}/copy --out {tmp_path}/all")
    assert "12 outcomes, 12 of them new; 12 were there twice and agree" in out.replace("\n", " ")
    out = camri(f"export {tmp_path}/all --csv {tmp_path}/t.csv")
    assert out.startswith("24 rows")
    assert len((tmp_path / "t.csv").read_text(encoding="utf-8").splitlines()) == 25


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run nothing --out {}", "study 'nothing' is neither a recipe nor a TOML or JSON file"),
        ("run digits digits.pair --out {}", "give one study, not 2"),
        ("run digits --out {} --num-seeds 2 --seeds 1", "give --num-seeds 2 or --seeds 1, not both"),
        ("run digits --out {} --grid m=4", 'camri m=4 is above π; margins are radians: write "4pi/64"'),
        ("run digits --out {} --column 8+3 --strength 5=0.5", "--strength '5' is not a class of a joint column"),
        ("run digits.pair --out {} --column 8", "digits.pair does not take columns"),
        ("run paper.cifar10 --out {}", "cifar10 is not in"),
        ("status {}", "holds no run"),
        ("export {}", "nothing to write"),
        ("merge {}-none --out {}", "holds no run"),
        ("merge {}-a {}-a/../new-a --out {}", "new-a is given twice; give each run once"),
        ("merge {} --out {}/.", "new is given twice; give each run once"),
        (
            "run digits --out {} --methods ce --grid m=4",
            "no method of the study has that knob; none of its methods has",
        ),
        ("run digits --out {} --grid m=0.2 m=0.4", "--grid m is given twice"),
        ("run digits --out {} --methods ce --methods camri", "--methods is given 2 times; give it once"),
        ("run digits --out {} --num-seeds 1 --column 10", "--column '10' is not a class; did you mean '1' or '0'?"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(line, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CAMRI_DATA", str(tmp_path / "none"))
    folder = tmp_path / "new"
    monkeypatch.setattr(sys, "argv", ["camri", "study", *shlex.split(line.format(folder, folder, folder))])
    with pytest.raises(SystemExit) as end:
        run_command()
    told = capsys.readouterr()
    assert end.value.code == 2
    assert told.out == ""
    assert told.err.startswith("camri: ")
    assert said in told.err
    assert told.err.count("\n") == 1
    assert not folder.exists()


def start(arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "camri", "study", *shlex.split(arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_the_command_killed_with_its_workers_resumes(example_run, tmp_path):
    folder = tmp_path / "run"
    first = start(f"run {EXAMPLE} --out {folder} --workers 2")
    while _num_rows(folder) < 2:
        assert first.poll() is None, first.communicate()
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    kept = _num_rows(folder)
    second = start(f"run {EXAMPLE} --out {folder} --workers 2")
    out, _ = second.communicate()
    assert (second.returncode, out.replace("\n", "")) == (0, f"{folder}: 12 done, {12 - kept} of them now")
    assert_same_table(folder, example_run)


def _num_rows(folder):
    try:
        with open_run(folder) as run:
            return len(run.rows())
    except InputError:
        return 0


def made_status(**changed):
    made = Status(
        names=("signs",), total=6, done=4, failed=2, pending=0, retried=0, pid=None, progress=None, left_s=None,
        errors=(), columns=(), split="val", best=(),
    )  # fmt: skip
    return replace(made, **changed)


def made_best(title, method, setting, recall, accuracy, reaches_floor=True):
    column = ColumnFacts(0, (0,), (title,), (1.0,))
    return Finalist(column, method, setting, (), 1, 10, recall, accuracy, reaches_floor, edges=())


def test_long_names_of_classes_have_a_line_of_their_own(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    columns = ("End of speed limit (80km/h)", "End of speed limit (80km/h) + End of no passing")
    best = [made_best(column, "camri", setting, 0.99125, 0.9931) for column, setting in zip(columns, "ab", strict=True)]
    best.insert(1, made_best(columns[0], "wce", "c", float("nan"), 0.1, reaches_floor=False))
    print_status(made_status(columns=columns, best=tuple(best)), Path("runs/signs"))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "signs in runs/signs: 4 of 6 done, 2 failed, 0 pending",
        "best, validation recall at no less than cross-entropy's accuracy, each after its",
        "best shift:",
        "",
        "End of speed limit (80km/h)",
        "method  best setting                   seeds  recall  accuracy",
        "camri   a                              10     0.9912  0.9931",
        "wce     – none is as accurate as ce –",
        "",
        "End of speed limit (80km/h) + End of no passing",
        "method  best setting                   seeds  recall  accuracy",
        "camri   b                              10     0.9912  0.9931",
    ]


def test_a_narrow_terminal_gets_the_whole_table_too(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "50")
    best = [made_best(f"class {name}", "camri", f"camri m={name}π/64 s=8 and more", 0.5, 0.25) for name in (4, 8)]
    print_status(made_status(columns=("class 4", "class 8"), best=tuple(best)), Path("runs/signs"))
    out = capsys.readouterr().out
    assert out.count("0.5000") == out.count("0.2500") == 2
    assert max(map(len, out.splitlines())) <= 50


def test_failures_are_shown_with_their_reasons(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    errors = tuple(f"camri m=4π/64 s=8 seed {seed}: RuntimeError: [red] ran out of memory" for seed in range(7))
    print_status(made_status(failed=7, errors=errors), Path("runs/signs"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:6] == [f"failed: {error}" for error in errors[:5]]
    assert "2 more" in lines[6]
    print_result(Result(True, 4, 7, 0, 11, errors[0]), Path("runs/signs"))
    assert capsys.readouterr().out.splitlines() == [
        "runs/signs: 4 done, 11 of them now",
        f"first failure: {errors[0]}",
        "7 trials failed; --retry-failed trains them again",
    ]
