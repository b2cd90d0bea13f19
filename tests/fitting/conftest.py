"""One small fit of digits for all tests, and what makes fits quick."""

import os
from dataclasses import dataclass, field, replace

import pytest
import torch

from camri.data import DataSet, Split
from camri.fitting import Fitted, fit, handover, trainer
from camri.study import runner

ASKED = {"num_trials": 30, "epochs": 2, "device": "cpu"}
IMPORTANT = "9"


@dataclass
class Trained:
    """The trials that the engine was given, call by call, and what it should do after this many outcomes."""

    calls: list = field(default_factory=list)
    ended: list = field(default_factory=list)
    after: dict = field(default_factory=dict)  # number of outcomes -> what is called then

    @property
    def trials(self):
        return [key for call in self.calls for key in call]


@pytest.fixture
def trained(monkeypatch):
    """Hears of every trial that goes to the engine, as (training, setting, seed)."""
    heard, real = Trained(), runner.train_job

    def listen(trials, job, hooks, pool=None):
        training = job.training
        heard.calls.append([(training.key, trial.setting.key, trial.seed) for trial in trials])

        def ended(outcome):
            hooks.on_outcome(outcome)
            heard.ended.append((training.key, outcome.trial.setting.key, outcome.trial.seed))
            heard.after.get(len(heard.ended), lambda: None)()

        return real(trials, job, replace(hooks, on_outcome=ended), pool)

    monkeypatch.setattr(runner, "train_job", listen)
    return heard


@pytest.fixture(scope="session")
def in_this_process():
    """Trials of a tenth of a second need no processes of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Trainer, "workers", 1)
        yield


@pytest.fixture
def without_files(monkeypatch):
    """Page and ONNX file take seconds, and one fit has shown them."""
    monkeypatch.setattr(handover, "write_page", lambda folder: folder)
    monkeypatch.setattr("camri.export.onnx_file.is_installed", lambda: False)


@pytest.fixture(scope="session")
def fitted(tmp_path_factory, in_this_process) -> Fitted:
    return fit("digits", IMPORTANT, tmp_path_factory.mktemp("fit") / "out", **ASKED)


@pytest.fixture(scope="session")
def rows():
    """A table of two features: a class that is rare and not easy to tell."""
    drawn = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 4 == 0
    inputs = torch.randn((400, 2), generator=drawn) + 1.2 * labels[:, None]
    return DataSet("weather", ("calm", "storm"), {"train": Split(inputs, labels.long())}, "made")


def weights_of(fitted):
    return (fitted.model_path / "model.safetensors").read_bytes()


def facts(fitted):
    """Everything about a fit but where and how long."""
    made = fitted.answer.made
    timeless = replace(fitted.answer, made=replace(made, effort=replace(made.effort, wall_s=0.0)))
    return timeless.to_json(), fitted.setting, fitted.training


def interrupt():
    os.kill(os.getpid(), 2)
