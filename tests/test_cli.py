"""The command line: what it prints and how it ends."""

import re
import subprocess
import sys

import pytest

import camri
from camri import demo


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
    assert run("demo", "--seeds", "1").returncode == 2


@pytest.mark.slow
def test_demo_prints_a_table_with_spread_and_counts():
    done = run("demo", "--seeds", "2")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "±" in line and "│" in line]
    assert [line.split("│")[1].split(",")[0].strip() for line in lines] == [
        "cross-entropy",
        "cross-entropy",
        "L2-softmax",
        "CAMRI",
    ]
    for line in lines:
        assert re.search(r"0\.\d{3} ± 0\.\d{3} │ +\d+/\d+ │ +0\.\d{3} ± 0\.\d{3}", line), line


def test_the_demo_shifts_on_validation_and_counts_on_test():
    """Hand-made scores: one model whose important class wins on validation from a shift of 1.5 on."""
    import numpy as np
    import torch

    from camri.data import DataSet, Split
    from camri.engine import Outcome, Training, Trial
    from camri.methods import setting

    labels = torch.tensor([1, 1, 0, 0])
    split = Split(torch.zeros(4, 1), labels, None)
    data = DataSet("made", ("a", "b"), {"train": split, "val": split, "test": split}, "f", {})
    val = np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0], [4.0, 0.0]])
    test = np.array([[1.0, 0.0], [5.0, 0.0], [0.5, 0.0], [4.0, 0.0]])
    outcome = Outcome(Trial(setting("ce"), 0), Training(), "f", "done", logits={"val": val, "test": test})
    plain = demo.row("plain", [outcome], data, important=1)
    assert (plain.recall, plain.accuracy, plain.hits, plain.num) == ((0.0,), (0.5,), 0, 2)
    shifted = demo.row("shifted", [outcome], data, important=1, shifted=True)
    # The shift lies between 1 and 3, chosen for validation: on test it wins one image of "b" and loses one of "a".
    assert (shifted.recall, shifted.accuracy, shifted.hits, shifted.num) == ((0.5,), (0.5,), 1, 2)
