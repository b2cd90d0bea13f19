"""Files that are there whole or not at all."""

import os
import time

import pytest

from camri.errors import InputError
from camri.files import PART, replacing
from camri.study.lock import refuse_other_files


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
    with pytest.raises(InputError, match=r"page\.html cannot be written \(No space left on device\); choose another"):
        write_half(path, OSError(28, "No space left on device"))
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
