"""The command line: what it prints and how it ends."""

import itertools
import os
import re
import subprocess
import sys

import camri


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "camri", *arguments], capture_output=True, text=True)


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
