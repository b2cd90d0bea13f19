"""Files that are there whole or not at all."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from camri.errors import InputError
from camri.files import PART, SCRATCH, replacing, scratch_folder
from camri.study.run_folder import refuse_other_files


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "page.html"
    with replacing(path) as last:
        with replacing(path) as first:
            first.write_text("first")
            last.write_text("la")
        assert path.read_text() == "first"
        last.write_text("last")
    assert path.read_text() == "last"
    assert list(tmp_path.iterdir()) == [path]


def write_half(path, error):
    with replacing(path, "; choose another") as part:
        part.write_text("ne")
        raise error


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        write_half(path, KeyboardInterrupt)
    for error, remedy in ((errno.ENOSPC, "make room and run the same command again"), (errno.EACCES, "choose another")):
        said = rf"page\.html cannot be written \({os.strerror(error)}\); {remedy}$"
        with pytest.raises(InputError, match=said):
            write_half(path, OSError(error, os.strerror(error)))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_removed_after_a_day_and_nothing_else(tmp_path):
    path, mine = tmp_path / "a[1].json", tmp_path / "a[1].json.txt"
    long_ago, lately, other = (tmp_path / f"{name}{PART}" for name in ("a[1].json.0", "a[1].json.1", "a1.json.0"))
    for one in (mine, long_ago, lately, other):
        one.touch()
    for one in (mine, long_ago, other):
        os.utime(one, (time.time() - 90_000,) * 2)
    with replacing(path) as part:
        part.write_text("{}")
    assert set(tmp_path.iterdir()) == {path, mine, lately, other}


def test_what_a_killed_writer_left_does_not_bar_its_folder(tmp_path):
    with replacing(tmp_path / "fit.json") as part:
        part.touch()
        refuse_other_files(tmp_path, "outcomes.sqlite", "run")
    with pytest.raises(InputError, match=r"holds other files \(fit\.json, …\) and no run"):
        refuse_other_files(tmp_path, "outcomes.sqlite", "run")


HOLD = """
import sys, time
from camri.files import scratch_folder
with scratch_folder() as folder:
    (folder / "inputs.npy").write_bytes(b"0" * 1000)
    print(folder, flush=True)
    sys.stdin.read()
"""


def make_old(path):
    os.utime(path, (time.time() - 100,) * 2)


def test_what_a_killed_process_left_in_the_temporary_folder_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = tmp_path / f"{SCRATCH.removesuffix('scratch-')}results"
    mine.mkdir()
    make_old(mine)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen([sys.executable, "-c", HOLD], **pipes) as process:
        try:
            left = Path(process.stdout.readline().strip())
            make_old(left)
            with scratch_folder() as other:
                assert other.parent == left.parent == tmp_path
                assert (left / "inputs.npy").exists()  # its owner is there
        finally:
            process.kill()
            process.wait()
        assert set(tmp_path.iterdir()) == {mine, left}
        with scratch_folder() as other:
            assert set(tmp_path.iterdir()) == {mine, other}
    assert list(tmp_path.iterdir()) == [mine]
