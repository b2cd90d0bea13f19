"""A full disk, a fault or the end of the process at any call that changes a file: the same command then ends right."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Where faults may be met: in the first run one sentence, the right answer or the end; in the second the right answer.
MAY = {"kill": {"killed", "right"}, "fail": {"said", "right"}, "full": {"said", "right"}}


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    """The library of faults.c, which is loaded before any other."""
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("it takes Linux and a C compiler")
    built = tmp_path_factory.mktemp("shim") / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", built, HERE / "faults.c", "-ldl"], check=True)
    return built


def survey(shim, tally, commands, hows, which):
    environment = {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "tests.attacks.faults", commands, hows, which]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [one for one in found if one["ended"][0] not in MAY[one["how"]] or one["ended"][1] != "right"]
    assert found
    assert not wrong, "\n".join(map(str, wrong[:5]))
    for one in found:
        tally("a write, sync, rename … that fails or kills, at any call", f"{one['ended'][0]}, then right")


SMALL = "save,save over,page,cache,store"


def test_files_and_stores(tally, shim):
    survey(shim, tally, SMALL, "full,kill", "::5")


@pytest.mark.long
def test_files_and_stores_at_every_call(tally, shim):
    survey(shim, tally, SMALL, "fail,full,kill", "::")


@pytest.mark.long
@pytest.mark.parametrize("how", ["fail", "full", "kill"])
@pytest.mark.parametrize(("command", "which"), [("study", "::"), ("fit", "::10")])
def test_runs(tally, shim, command, how, which):
    survey(shim, tally, command, how, which)
