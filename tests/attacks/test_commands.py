"""Pipes in the place of files and numbers beyond reason: one sentence, at once."""

import os

import pytest

from camri.engine import Training
from camri.errors import InputError
from camri.study import run_folder
from camri.study.spec import study
from camri.study.study_file import find_study, in_radians
from tests.attacks.test_fuzz import attack


@pytest.mark.parametrize("name", ["study.toml", "study.json"])
def test_a_study_file_that_is_a_pipe_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    assert attack(lambda path: find_study(str(path)), tmp_path / name, name, most_s=5)


def test_a_lock_that_is_a_pipe_is_refused_by_a_run_and_held_by_nobody(tmp_path):
    def hold(folder):
        with run_folder.hold(folder):
            pass

    os.mkfifo(tmp_path / run_folder.LOCK_FILE)
    assert attack(hold, tmp_path, "hold", most_s=5)
    assert not attack(run_folder.holder, tmp_path, "holder", most_s=5)


@pytest.mark.parametrize("num", [10**6 + 1, 10**11, 10**30])
def test_more_seeds_than_anybody_trains_are_refused_before_memory_is_taken(num):
    with pytest.raises(InputError, match=f"seeds={num} is not allowed; give a number of seeds from 1 to 1,000,000"):
        study("mine", "digits", "8", ["ce"], seeds=num)


@pytest.mark.parametrize("field", ["epochs", "batch_size"])
def test_more_epochs_than_fit_a_number_are_refused(field):
    with pytest.raises(InputError, match=f"{field}=99999999999999999999 is not allowed; give a whole number from 1"):
        Training(**{field: 99999999999999999999})


def test_an_endless_margin_is_refused_without_a_hint_that_makes_no_sense():
    with pytest.raises(InputError, match=r"camri m=inf is not a finite number"):
        study("mine", "digits", "8", {"camri": in_radians("camri", {"m": [float("inf")]})})
