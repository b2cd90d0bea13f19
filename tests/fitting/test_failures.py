"""A fit whose trials fail says why, and what to do."""

import dataclasses

import pytest

from camri.engine import Outcome
from camri.errors import InputError
from camri.fitting import baseline, fit
from camri.fitting.job import SEEDS_APART
from camri.study import runner

TRACEBACK = "Traceback (most recent call last):\n  File “net.py”, line 3\nRuntimeError: out of memory"


@pytest.fixture
def breaking(monkeypatch):
    """Make those trials fail for which a function returns True."""

    def break_where(is_broken):
        real = runner.train_job

        def train_job(trials, job, hooks, pool=None):
            def ended(outcome):
                fails = is_broken(outcome)
                told = Outcome(outcome.trial, outcome.training, outcome.fingerprint, "failed", error=TRACEBACK)
                hooks.on_outcome(told if fails else outcome)

            return real(trials, job, dataclasses.replace(hooks, on_outcome=ended), pool)

        monkeypatch.setattr(runner, "train_job", train_job)

    return break_where


@pytest.mark.parametrize("important", [None, "9"])
def test_a_fit_whose_baseline_fails_says_why_and_what_to_do(breaking, in_this_process, tmp_path, important):
    breaking(lambda outcome: True)
    with pytest.raises(InputError) as end:
        fit("digits", important, tmp_path / "out", num_trials=16, epochs=2, device="cpu")
    for text in ("every trial of cross-entropy failed", "RuntimeError: out of memory", "--out", str(tmp_path / "out")):
        assert text in str(end.value)


@pytest.mark.parametrize("important", [None, "9"])
def test_a_training_that_fails_is_passed_over(breaking, in_this_process, monkeypatch, tmp_path, important):
    monkeypatch.setattr(baseline, "CHANGES_FROM", 4)
    breaking(lambda outcome: outcome.training.label_smoothing > 0)
    fitted = fit("digits", important, tmp_path / "out", num_trials=12, epochs=2, device="cpu")
    assert fitted.training.label_smoothing == 0
    assert fitted.answer.made.effort.num_failed > 0
    assert len(fitted.important) == 1


def test_a_fit_whose_finals_lose_cross_entropy_says_why(breaking, in_this_process, tmp_path):
    breaking(lambda outcome: outcome.trial.setting.method == "ce" and outcome.trial.seed >= SEEDS_APART // 2)
    with pytest.raises(InputError, match=r"cross-entropy in the finals failed.*RuntimeError: out of memory"):
        fit("digits", "9", tmp_path / "out", num_trials=20, epochs=2, device="cpu")


def test_a_rival_that_fails_leaves_cross_entropy(breaking, in_this_process, tmp_path):
    breaking(lambda outcome: outcome.trial.setting.method != "ce" and outcome.trial.seed >= SEEDS_APART // 2)
    fitted = fit("digits", "9", tmp_path / "out", num_trials=20, epochs=2, device="cpu")
    assert fitted.setting.method == "ce"
    assert fitted.answer.evidence.arm("method") is None
    assert fitted.answer.made.effort.num_failed > 0
