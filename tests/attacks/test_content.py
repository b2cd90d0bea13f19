"""Bits flip and files are cut: that is reported or made anew, and never another answer."""

import random

import numpy as np
import pytest

from camri.data import load
from camri.data.cache import read_cache
from camri.engine import Stopped, train
from camri.engine.replica import read_checkpoint
from tests.data.pictures import write_folder
from tests.engine.conftest import same

KEEP = {"important": [1], "keep_logits": True, "keep_weights": True}


def flip(path, place, bit=0):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_a_data_cache_with_a_flipped_bit_is_made_anew(tmp_path):
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
def test_a_checkpoint_with_a_flipped_bit_starts_over(tmp_path, checkpoint, trials, data, training, where):
    original, undisturbed = checkpoint
    content = original.read_bytes()
    drawn = random.Random(where)
    header = 8 + int.from_bytes(content[:8], "little")
    places = {"tensor": (header, len(content)), "notes": (content.index(b"train_loss"), header), "any": (0, header)}
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / original.name).write_bytes(content)
        if where == "cut":
            (folder / original.name).write_bytes(content[: drawn.randrange(len(content))])
        else:
            flip(folder / original.name, drawn.randrange(*places[where]), drawn.randrange(7))
        (outcome,) = train(trials[:1], data, "cpu", training=training, workers=1, checkpoints=folder, **KEEP)
        assert same(outcome, undisturbed)


def test_a_whole_checkpoint_is_resumed_and_a_damaged_one_reported(tmp_path, checkpoint):
    file = tmp_path / checkpoint[0].name
    file.write_bytes(checkpoint[0].read_bytes())
    tensors, notes = read_checkpoint(file, "cpu")
    assert notes["step_in_epoch"] > 0
    assert tensors
    flip(file, -100)
    with pytest.warns(UserWarning, match="is damaged; its trial starts over"):
        assert read_checkpoint(file, "cpu") is None
