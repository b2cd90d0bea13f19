"""The command line: what it prints and how it ends."""

import itertools
import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import camri
from camri.cli import app


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "camri", *arguments], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_version():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"camri {camri.__version__}\n")


def test_bad_input_is_one_sentence_and_exit_code_2():
    done = run("data", "show", "no-such-folder")
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"camri: [^\n]*no-such-folder[^\n]*\n", done.stderr), done.stderr


def test_unknown_command_and_option_exit_with_2():
    assert run("demmo").returncode == 2
    assert run("demo", "--seds", "1").returncode == 2


def test_signs_that_a_stream_cannot_show_are_written_out(tmp_path):
    table = tmp_path / "scores.csv"
    table.write_text("label,日本,stop\n" + "日本,1.5,0.5\nstop,0.5,1.5\n" * 25, encoding="utf-8")
    done = run("audit", str(table), "--important", "日本", PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u65e5\u672c" in done.stdout


def test_an_error_cannot_steer_the_terminal():
    done = run("data", "show", "no-such\x1b[2Jfolder")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert r"no-such\x1b[2Jfolder" in done.stderr


def test_help_is_wrapped_by_the_terminal_and_not_by_the_source():
    for words in (["fit"], ["report"], ["study", "run"]):
        done = subprocess.run(
            [sys.executable, "-m", "camri", *words, "--help"],
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "100"},
        )
        assert done.returncode == 0
        text = done.stdout.split("Examples")[0].split("╭")[0]
        lines = [line.rstrip() for line in text.splitlines()]
        for line, following in itertools.pairwise(lines):
            if line.strip() and following.strip() and not line.startswith(" Usage"):
                word = following.split()[0]
                assert len(line) + 1 + len(word) > 96, (line, following)


COMMANDS = (
    "fit", "predict", "export", "audit", "compare", "check", "report", "demo", "data get", "data show", "study list",
    "study show", "study run", "study status", "study merge", "study finalists", "study ensembles", "study export",
)  # fmt: skip


def all_commands(group, before=()):
    for command in group.registered_commands:
        yield " ".join([*before, command.name or command.callback.__name__])
    for one in group.registered_groups:
        yield from all_commands(one.typer_instance, (*before, one.typer_instance.info.name))


def test_every_command_is_looked_at_below():
    assert sorted(all_commands(app)) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_terminal_of_80_columns(command):
    done = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert not re.search(r"\w… *│|^│[ *]+--\S*…", done.stdout, flags=re.MULTILINE)  # nothing is cut off
    assert not re.search(r"\.\.\.\}|  of the study", done.stdout)  # no dots twice in the usage, no word lost to markup
    # An example is on one line, to be copied.
    after = done.stdout.split("Examples")[1].splitlines()[1:]
    examples = [line.strip() for line in itertools.takewhile(lambda line: not line.startswith("╭"), after)]
    assert all(not line or line.startswith(("camri ", "Stopped", "Broken")) for line in examples), examples
    assert any(line.startswith(f"camri {command}") for line in examples)
