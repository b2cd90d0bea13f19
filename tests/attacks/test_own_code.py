"""Python files beside a data set are data: no command, worker or cluster imports them."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.data.pictures import write_folder
from tests.study.test_cli import EXAMPLE
from tests.study.test_cluster import QUIET, needs_ray

NAMES = ("queue", "torch", "sitecustomize", "camri", "pickle", "numpy")
# Several commands in one process, each as `camri` runs it: torch takes seconds to import.
START = """
import sys
sys.path = [path for path in sys.path if path]
from camri.cli import app
for words in map(str.split, sys.argv[1:]):
    app(words, standalone_mode=False)
"""
STUDY = 'name = "s"\ncolumns = ["dog"]\nseeds = 2\ndata.source = "."\ntraining = { model = "small", epochs = 1 }\n'


@pytest.fixture
def trapped(tally, tmp_path, monkeypatch):
    """A data set with Python files that leave a mark; the current folder."""
    write_folder(tmp_path, {"cat": 20, "dog": 20})
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("import os\nos.close(os.open('executed', os.O_CREAT))\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CAMRI_CACHE", str(tmp_path / ".cache"))
    yield tmp_path
    assert not list(tmp_path.rglob("executed"))
    tally("Python files beside the data", "not executed", len(NAMES))


def with_path():
    """The environment, with this package on the path of processes in other folders."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run(*commands, **environment):
    ended = subprocess.run(
        [sys.executable, "-c", START, *commands],
        capture_output=True,
        text=True,
        env={**with_path(), **environment},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_data_and_studies(trapped):
    (trapped / "study.toml").write_text(STUDY + "methods.ce = {}\n")
    said = run("data show .", "study run study.toml --out out --workers 1")
    assert "dog" in said
    assert "2 done" in said


@pytest.mark.long
def test_fits_and_predictions(trapped):
    run("fit . --important dog --out out --trials 16 --epochs 1")
    assert "dog" in run("predict out/model cat dog")


@pytest.mark.long
@needs_ray
@pytest.mark.xdist_group("ray")
def test_clusters(trapped):
    (trapped / "study.toml").write_text(EXAMPLE.read_text())
    with tempfile.TemporaryDirectory() as folder:  # another cluster on this machine, dead or alive, is not this one's
        options = {**QUIET, "RAY_TMPDIR": folder}
        assert "12 done" in run("study run study.toml --out out --on ray", **options)


def test_the_package_run_as_a_module(trapped):
    """Python itself puts the current folder first for `python -m camri`: camri.py there would be taken for camri."""
    (trapped / "camri.py").unlink()
    ended = subprocess.run([sys.executable, "-m", "camri", "data", "show", "."], env=with_path(), capture_output=True)
    assert ended.returncode == 0, ended.stderr
