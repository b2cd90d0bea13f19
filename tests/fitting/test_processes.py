"""The processes of a fit: started once for all its calls, and ended with it, however it ends."""

import pytest

from camri.fitting import Unfinished, fit, trainer
from tests.fitting.conftest import facts, interrupt

ASKED = {"num_trials": 16, "epochs": 1, "device": "cpu"}


@pytest.fixture(autouse=True)
def two(monkeypatch, without_files):
    monkeypatch.setattr(trainer.Trainer, "workers", 2)


def test_they_start_once_and_give_what_one_process_gives(started, trained, rows, tmp_path, monkeypatch):
    found = fit(rows, "storm", tmp_path / "two", **ASKED)
    assert sum(len(call) > 1 for call in trained.calls) >= 2
    assert [process.poll() is None for process in started] == [False, False]
    monkeypatch.setattr(trainer.Trainer, "workers", 1)
    assert facts(found) == facts(fit(rows, "storm", tmp_path / "one", **ASKED))
    assert len(started) == 2


@pytest.mark.parametrize("end", [RuntimeError, Unfinished])
def test_they_end_where_a_fit_breaks_off(started, trained, rows, tmp_path, end):
    def break_off():
        if end is RuntimeError:
            raise end
        interrupt()

    trained.after[1] = break_off
    with pytest.raises(end):
        fit(rows, "storm", tmp_path, **ASKED)
    assert [process.poll() is None for process in started] == [False, False]
