"""A made data set, a small study on it, and outcomes made up without training."""

import numpy as np
import pytest

from camri.data import DataSet
from camri.decision.counts import confusion
from camri.decision.scores import condense
from camri.engine.outcome import Outcome
from camri.engine.spec import Training, Trial, identity
from camri.methods import Setting
from camri.study.run_folder import facts_of
from camri.study.spec import study
from camri.study.store import ARRAY_FIELDS, PLAIN, Store
from tests.engine.conftest import made_images

TRAINING = Training(model="small", model_options=(("width", 2),), epochs=2, batch_size=32)


@pytest.fixture(scope="session")
def data():
    splits = {"train": made_images(96, 1), "val": made_images(40, 2), "test": made_images(50, 3)}
    return DataSet("made", ("row", "column", "corner"), splits, "made-fingerprint", {"layout": "made"})


@pytest.fixture(scope="session")
def small():
    """Three settings after merging, two seeds: six trials."""
    return study(
        "small",
        "made",
        "column",
        {"ce": {}, "l2softmax": {"s": [8]}, "camri": {"m": [0.0, 0.2], "s": [8]}},
        seeds=2,
        training=TRAINING,
    )


def made_outcome(data, trial, training=TRAINING, important=(1,), status="done", seed=0):
    """An outcome as the engine would give it, of scores drawn at random."""
    drawn = np.random.default_rng([trial.seed, seed, int(trial.setting.key, 16)])
    logits, labels = {}, {}
    for split in ("val", "test"):
        labels[split] = data.splits[split].labels.numpy()
        logits[split] = drawn.normal(size=(len(labels[split]), 3)) + 2 * np.eye(3)[labels[split]]
    done = status == "done"
    return Outcome(
        trial=trial,
        training=training,
        fingerprint=data.fingerprint,
        status=status,
        error=None if done else "the loss became nan",
        epochs_done=2,
        confusion={s: confusion(v.argmax(axis=1), labels[s], 3) for s, v in logits.items()} if done else {},
        scores={s: condense(v, labels[s], important) for s, v in logits.items()} if done and important else {},
        angle_mean={s: drawn.normal(size=3).astype(np.float32) for s in logits} if done else {},
        angle_sd={s: np.array([0.1, np.nan, 0.3]) for s in logits} if done else {},
        curves={"train_loss": np.array([1.5, np.nan], np.float32), "val_hits": np.array([[1, 2, 3]], np.int32)},
        wall_s=0.1 + 0.2,
        device_s=1 / 3,
        environment={"torch": "2", "cores": 2},
    )


@pytest.fixture
def store(tmp_path, data, small):
    """A fresh store of the small study."""
    opened = Store.open(tmp_path, facts_of(small, data))
    opened.add_study(small, [((1, 1.0),)])
    yield opened
    opened.close()


def put(store, outcome):
    name = identity(outcome.trial, outcome.training, outcome.fingerprint)
    store.add(name, outcome)
    return name


def stored_outcome(run, row):
    """The outcome as the engine made it, from what the store gives back."""
    arrays = run.arrays(row)
    fields = {
        field: {name.split(".", 1)[1]: array for name, array in arrays.items() if name.startswith(f"{field}.")}
        for field in ARRAY_FIELDS
    }
    return Outcome(
        trial=Trial(Setting.from_json(row.setting), row.seed),
        training=Training.from_json(run.training),
        fingerprint=run.fingerprint,
        scores={split: run.scores(row, split) for split in run.important(row)},
        logits=run.logits(row),
        weights=run.weights(row),
        **{name: getattr(row, name) for name in (*PLAIN, "environment")} | fields,
    )


def first_trials(study, columns=(((1, 1.0),),)):
    return [Trial(trial.setting, trial.seed) for trial in study.trials(columns)]
