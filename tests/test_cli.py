"""The command line: what it prints and how it ends."""

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
