"""Flipped bits and truncated files are reported or rebuilt; they never change an answer."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

import camri
from camri.data import load
from camri.data.cache import read_cache
from camri.engine import Stopped, train
from camri.engine.replica import read_checkpoint
from camri.fitting import trainer
from camri.fitting.trainer import file_of, outcome_with_weights, write_weights
from tests.data.pictures import write_folder
from tests.engine.conftest import same
from tests.fitting.conftest import weights_of

KEEP = {"important": [1], "keep_logits": True, "keep_weights": True}


def flip(path, place, bit=0):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_a_data_cache_with_a_flipped_bit_is_rebuilt(tmp_path):
    write_folder(tmp_path / "pets", {"cat": 3, "dog": 3})
    first = load(tmp_path / "pets", cache=tmp_path)
    (cached,) = tmp_path.glob("*.data")
    content = cached.read_bytes()
    place = content.index(first.splits["train"].inputs.numpy().tobytes())
    flip(cached, place + 7, bit=3)
    with pytest.warns(UserWarning, match="its checksum differs"):
        again = load(tmp_path / "pets", cache=tmp_path)
    assert np.array_equal(again.splits["train"].inputs, first.splits["train"].inputs)
    assert cached.read_bytes() == content
    assert read_cache(cached) is not None


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, trials, data, training):
    """A checkpoint in the middle of a trial, and the trial's outcome without a stop."""
    folder, calls = tmp_path_factory.mktemp("checkpoint"), []
    with pytest.raises(Stopped):
        train(trials[:1], data, "cpu", training=training, workers=1, checkpoints=folder,
              should_stop=lambda: calls.append(1) or len(calls) > 9)  # fmt: skip
    (file,) = folder.glob("*.safetensors")
    (outcome,) = train(trials[:1], data, "cpu", training=training, workers=1, **KEEP)
    return file, outcome


@pytest.mark.filterwarnings("ignore:.*is damaged")
@pytest.mark.parametrize("where", ["tensor", "notes", "any", "cut"])
def test_a_checkpoint_with_a_flipped_bit_starts_over(tally, tmp_path, checkpoint, trials, data, training, where):
    original, undisturbed = checkpoint
    content = original.read_bytes()
    drawn = random.Random(where)
    header = 8 + int.from_bytes(content[:8], "little")
    places = {"tensor": (header, len(content)), "notes": (content.index(b"train_loss"), header), "any": (0, header)}
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / original.name).write_bytes(content)
        if where == "cut":
            (folder / original.name).write_bytes(content[: drawn.randrange(len(content))])
        else:
            flip(folder / original.name, drawn.randrange(*places[where]), drawn.randrange(7))
        (outcome,) = train(trials[:1], data, "cpu", training=training, workers=1, checkpoints=folder, **KEEP)
        assert same(outcome, undisturbed)
        tally("checkpoint damaged", "the same bits")


def test_a_whole_checkpoint_is_resumed_and_a_damaged_one_reported(tmp_path, checkpoint):
    file = tmp_path / checkpoint[0].name
    file.write_bytes(checkpoint[0].read_bytes())
    tensors, notes = read_checkpoint(file, "cpu")
    assert notes["step_in_epoch"] > 0
    assert tensors
    flip(file, -100)
    with pytest.warns(UserWarning, match="is damaged; its trial starts over"):
        assert read_checkpoint(file, "cpu") is None


def test_weights_of_a_fit_with_a_flipped_bit_are_trained_again(tmp_path, trials, data, training):
    request = SimpleNamespace(data=data, device="cpu")
    (outcome,) = train(trials[:1], data, "cpu", training=training, workers=1, **KEEP)
    path = file_of(tmp_path, trials[0], training, data.fingerprint)
    write_weights(path, outcome.weights)

    def read():
        found = outcome_with_weights(request, tmp_path, trials[0], training).weights
        return {name: array.tobytes() for name, array in found.items()}

    whole = read()
    assert whole == {name: array.tobytes() for name, array in outcome.weights.items()}
    flip(path, -100, bit=5)
    with pytest.warns(UserWarning, match="its checksum differs"):
        assert read() == whole
    path.unlink()
    assert read() == whole


def test_a_fit_that_is_run_again_notices_a_damaged_model(tmp_path, rows, without_files, monkeypatch):
    monkeypatch.setattr(trainer.Trainer, "workers", 1)
    asked = {"num_trials": 16, "epochs": 1, "device": "cpu"}
    fitted = camri.fit(rows, "storm", tmp_path, **asked)
    whole = weights_of(fitted)
    (fitted.model_path / "model.safetensors").write_bytes(b"")
    assert weights_of(camri.fit(rows, "storm", tmp_path, **asked)) == whole
    config = fitted.model_path / "config.json"
    content = config.read_bytes()
    flip(config, 0)
    assert weights_of(camri.fit(rows, "storm", tmp_path, **asked)) == whole
    assert config.read_bytes() == content
