"""camri report: what it writes, what it refuses, and that it starts without torch."""

import re
import shutil
import subprocess
import sys

import pytest

from camri.cli import app
from camri.errors import InputError


def camri(*arguments, block=()):
    """Runs the command line; `block` names modules that cannot be imported."""
    script = (
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {list(block)!r}: raise ImportError(name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "from camri.cli import main\n"
        "sys.argv[0] = 'camri'\nmain()\n"
    )
    return subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True)


def test_the_page_is_written_beside_the_run_without_torch(gain, tmp_path):
    out = tmp_path / "page.html"
    done = camri("report", gain, "--out", out, block=["torch"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}\n"
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == [out]


def test_a_table_in_markdown_and_csv(gain):
    done = camri("report", gain, "--table", 1, block=["torch", "altair"])
    assert done.returncode == 0, done.stderr
    assert "chosen on the test set: optimistic" in done.stdout
    assert done.stdout.count("**Table") == done.stdout.count("**Honest") + 1 == 1, "one table a file"
    honest = camri("report", gain, "--table", "honest", block=["torch", "altair"])
    assert "| control: cross-entropy, shifted |" in honest.stdout
    table = camri("report", gain, "--table", 2, "--format", "csv", block=["torch", "altair"])
    assert table.stdout.splitlines()[0] == "column,important,line,method,setting,num_trials,images,sd_rad"


def test_a_figure_by_its_suffix(gain, tmp_path):
    out = tmp_path / "five.svg"
    done = camri("report", gain, "--figure", 5, "--out", out, block=["torch"])
    assert done.returncode == 0, done.stderr
    assert out.read_text().startswith("<svg")
    assert "as the penalty grows" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--table", "3"], "--table 3 is unknown; choices: paper, own, trained, recall, alarms, threshold, honest"),
        (["--figure", "4"], "--figure 4 is unknown; choices: 3, 5, 6, curve"),
        (["--table", "own", "--split", "val"], "--split: only --table settings takes that"),
        (["--table", "settings", "--split", "train"], "--split 'train' has no scores; choices: test, val"),
        (["--table", "settings", "--recalls", "0.9,high"], "--recalls 0.9,high is not a list of recalls"),
        (["--table", "settings", "--control", "wce w=3"], "--control 'wce w=3' is no setting of column"),
        (["--table", "all"], "--table all writes a file for each table; give it a folder"),
        (["--table", "1", "--figure", "5"], "cannot be given together"),
        (["--format", "png"], "--format png needs --table or --figure"),
        (["--table", "1", "--format", "png"], "--format 'png' is not for a table; choices: md, latex, csv"),
        (["--figure", "6"], "Fig. 6 needs features"),
        (["--figure", "training"], "the figure of training needs validation recalls of each epoch"),
        (["--table", "1", "--format", "latex", "--out", "t.csv"], "--format latex is not what --out t.csv is called"),
        (["--figure", "3", "--format", "pdf", "--out", "f.png"], "--format pdf is not what --out f.png is called"),
        (["--table", "1", "--table", "2"], "--table is given 2 times; give it once"),
        (["--table", "2", "--out", "/no/such/folder/x.md"], "cannot be written (No such file or directory)"),
    ],
)
def test_bad_calls_are_refused_with_a_sentence(gain, arguments, said):
    with pytest.raises(InputError, match=re.escape(said)):
        app(["report", str(gain), *arguments], standalone_mode=False)


def test_the_page_of_a_store_goes_beside_it(gain, tmp_path):
    store = shutil.copy(gain / "outcomes.sqlite", tmp_path)
    app(["report", store], standalone_mode=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outcomes.sqlite", "report.html"]


def test_a_folder_without_a_run_and_a_missing_extra(gain, tmp_path):
    done = camri("report", tmp_path)
    assert (done.returncode, done.stderr) == (2, f"camri: {tmp_path} holds no run: there is no outcomes.sqlite in it\n")
    done = camri("report", gain, block=["vl_convert"])
    assert done.returncode == 2
    assert "camri report needs vl_convert, which is not installed: pip install 'camri-loss[report]'" in done.stderr


def test_steps_are_shown_on_a_terminal_and_nowhere_else(gain, no_gain, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    app(["report", str(gain), "--table", "1"], standalone_mode=False)
    assert "judging" not in capsys.readouterr().err
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    for line in ("--results results", "--out page.html"):
        app(["report", str(gain), *line.split()], standalone_mode=False)
        assert "judging “" in capsys.readouterr().err, line
    app(["report", str(gain), str(no_gain), "--table", "1"], standalone_mode=False)  # one bar for both runs
    assert "judging “" in capsys.readouterr().err
