"""Every outcome becomes one run of the tracker, with its setting, its figures and its curves."""

import sys
import types
from collections import namedtuple

import numpy as np
import pytest

from camri.engine import Trial
from camri.errors import InputError
from camri.methods import setting
from camri.study import runner
from camri.study.export import MlflowTracker, TensorBoardTracker, describe_outcome, find_tracker, listen
from tests.study.conftest import made_outcome
from tests.study.test_runner import Pretender

Metric = namedtuple("Metric", "key value timestamp step")
Param = namedtuple("Param", "key value")
TRIAL = Trial(setting("camri", [1, 2], m=[0.2, 0.1], s=8), 3)


class Client:
    """As much of an MlflowClient as the tracker uses; it keeps what it is told."""

    def __init__(self):
        self.experiments, self.runs = [], []

    def get_experiment_by_name(self, name):
        found = self.experiments.index(name) if name in self.experiments else None
        return None if found is None else types.SimpleNamespace(experiment_id=str(found))

    def create_experiment(self, name):
        self.experiments.append(name)
        return str(len(self.experiments) - 1)

    def create_run(self, experiment_id, tags=None, run_name=None):
        run = {"experiment": experiment_id, "tags": tags, "name": run_name, "params": {}, "metrics": [], "batches": []}
        self.runs.append(run)
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=len(self.runs) - 1))

    def log_batch(self, run_id, metrics=(), params=()):
        run = self.runs[run_id]
        run["params"] |= {param.key: param.value for param in params}
        run["metrics"] += [(metric.key, metric.step, metric.value) for metric in metrics]
        run["batches"].append(len(metrics))

    def set_terminated(self, run_id, status):
        self.runs[run_id]["status"] = status


def test_an_outcome_in_words_and_figures(data):
    outcome = made_outcome(data, TRIAL)
    entry = describe_outcome(outcome, data)
    assert entry.name == f"{TRIAL.setting}, column, corner, seed 3"
    assert entry.params == {
        "method": "camri", "setting": str(TRIAL.setting), "important": "column, corner", "seed": 3, "data": "made",
        "model": "small", "epochs": 2, "m": "(0.2, 0.1)", "s": 8.0,
    }  # fmt: skip
    assert entry.metrics["test/accuracy"] == outcome.accuracy("test")
    assert entry.metrics["val/recall/corner"] == outcome.recall(2, "val")
    assert len(entry.metrics) == 2 + 2 * (1 + 3)
    rows = data.class_counts("val").tolist()
    assert entry.curves["val/accuracy"] == pytest.approx([6 / sum(rows)])
    assert entry.curves["val/recall/corner"] == pytest.approx([3 / rows[2]])
    assert "val/recall/row" not in entry.curves  # nobody asked for it to be important


def test_a_study_becomes_runs_of_mlflow(data, small, tmp_path):
    client = Client()
    tracker = MlflowTracker("small", client, Metric, Param)
    runner.run(small, tmp_path, Pretender(fails=[1]), data=data, listeners=[listen(tracker, data, "mlflow")])
    assert client.experiments == ["small"]
    assert {run["experiment"] for run in client.runs} == {"0"}
    assert [run["status"] for run in client.runs].count("FAILED") == 3
    done = next(run for run in client.runs if run["params"]["method"] == "camri" and run["status"] == "FINISHED")
    assert (done["params"]["seed"], done["params"]["s"], done["params"]["important"]) == ("0", "8.0", "column")
    assert ("curve/train_loss", 1, 1.5) in done["metrics"]
    assert {name for name, _, _ in done["metrics"]} >= {"test/accuracy", "val/recall/column", "curve/val/accuracy"}
    assert all(np.isfinite(value) for _, _, value in done["metrics"])  # the made loss of the second epoch is nan
    failed = next(run for run in client.runs if run["status"] == "FAILED")
    assert failed["tags"] == {"error": "the loss became nan"}


def test_no_request_to_mlflow_is_too_large(data):
    client = Client()
    outcome = made_outcome(data, TRIAL)
    outcome.curves["train_loss"] = np.ones(2500, np.float32)
    MlflowTracker("s", client, Metric, Param)(describe_outcome(outcome, data))
    (run,) = client.runs
    assert sum(run["batches"]) == 2500 + 3 + 10
    assert max(run["batches"]) <= 1000


def test_a_tracker_that_fails_is_off_and_the_study_continues(data, small, tmp_path):
    calls = []

    def broken(entry):
        calls.append(entry)
        raise ConnectionError("nobody\nat home")

    with pytest.warns(UserWarning, match=r"tracking to mlflow=x failed .*\(nobody at home\)") as told:
        result = runner.run(small, tmp_path, Pretender(), data=data, listeners=[listen(broken, data, "mlflow=x")])
    assert (result.finished, result.done) == (True, 6)
    assert len(told) == len(calls) == 1


def test_mlflow_itself(data, small, tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'camri-loss[track]'")
    where = f"sqlite:///{tmp_path}/mlflow.db"
    runner.run(small, tmp_path / "run", Pretender(fails=[1]), data=data,
               listeners=[find_tracker(f"mlflow={where}", "small", data, tmp_path / "run")])  # fmt: skip
    client = mlflow.MlflowClient(tracking_uri=where)
    runs = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert sorted(run.info.status for run in runs) == ["FAILED"] * 3 + ["FINISHED"] * 3
    camri = next(r for r in runs if r.data.params["method"] == "camri" and r.info.status == "FINISHED")
    assert camri.data.params["seed"] == "0"
    assert 0 <= camri.data.metrics["test/recall/column"] <= 1
    (point,) = client.get_metric_history(camri.info.run_id, "curve/train_loss")
    assert (point.step, point.value) == (1, 1.5)


def test_tensorboard_itself(data, small, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'camri-loss[track]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = find_tracker("tensorboard", "small", data, tmp_path)
    runner.run(small, tmp_path, Pretender(fails=[1]), data=data, listeners=[tracker])
    folders = sorted(path.name for path in (tmp_path / "tensorboard").iterdir())
    assert folders[0] == "camri m=4.074π-64 s=8, column, seed 0"
    assert len(folders) == 6
    events = EventAccumulator(str(tmp_path / "tensorboard" / folders[0]))
    events.Reload()
    assert [(point.step, point.value) for point in events.Scalars("curve/train_loss")] == [(1, 1.5)]
    assert events.Scalars("test/accuracy")[0].value == pytest.approx(made_outcome(data, TRIAL_0).accuracy(), abs=1e-6)


TRIAL_0 = Trial(setting("camri", 1, m=0.2, s=8), 0)


def test_tensorboard_writes_where_it_is_asked(data, tmp_path):
    made = []

    class Writer:
        def __init__(self, folder):
            made.append((folder, self))
            self.scalars, self.closed = [], False

        def add_scalar(self, name, value, step):
            self.scalars.append(name)

        def add_hparams(self, params, metrics, run_name):
            self.params, self.metrics = params, metrics

        def add_text(self, name, text):
            self.text = text

        def close(self):
            self.closed = True

    TensorBoardTracker(tmp_path, Writer)(describe_outcome(made_outcome(data, TRIAL, status="failed"), data))
    ((folder, writer),) = made
    assert folder == str(tmp_path / describe_outcome(made_outcome(data, TRIAL), data).name.replace("/", "-"))
    assert writer.text == "the loss became nan"
    assert writer.closed
    assert writer.params["seed"] == 3
    assert "test/accuracy" not in writer.metrics


def test_an_unknown_tracker_is_refused(data, tmp_path):
    with pytest.raises(InputError, match=r"track='wandb' is unknown; choices: mlflow\[=URI\], tensorboard\[=DIR\]"):
        find_tracker("wandb", "s", data, tmp_path)


@pytest.mark.parametrize(
    ("asked", "module"), [("mlflow", "mlflow.entities"), ("tensorboard", "torch.utils.tensorboard")]
)
def test_a_missing_tracker_names_the_install_command(data, tmp_path, monkeypatch, asked, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"track='{asked}' needs {asked} .*pip install 'camri-loss\[track\]'"):
        find_tracker(asked, "s", data, tmp_path)
