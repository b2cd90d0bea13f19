"""A made data set that trains in a fraction of a second, and trials of several methods on it."""

import pytest
import torch

from camri.data import DataSet, Split
from camri.engine import Training, Trial
from camri.methods import setting


def made_images(num_rows, seed):
    """Grey 8 × 8 images of three classes: a bright row, a bright column, a bright corner, under noise."""
    drawn = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (num_rows,), generator=drawn)
    images = torch.randint(0, 120, (num_rows, 8, 8, 1), generator=drawn, dtype=torch.int16)
    for place, label in enumerate(labels.tolist()):
        if label == 0:
            images[place, 3, :] += 70
        elif label == 1:
            images[place, :, 3] += 70
        else:
            images[place, :3, :3] += 70
    return Split(images.to(torch.uint8), labels, None)


@pytest.fixture(scope="session")
def data():
    splits = {"train": made_images(200, 1), "val": made_images(60, 2), "test": made_images(90, 3)}
    return DataSet("made", ("row", "column", "corner"), splits, "made-fingerprint", {})


@pytest.fixture(scope="session")
def training():
    """Everything on: dropout, mirroring, moving, averaging, smoothing, a falling rate, a ramp."""
    return Training(
        model="small",
        model_options=(("dropout", 0.2), ("width", 4)),
        epochs=3,
        batch_size=32,
        average=0.9,
        flip=True,
        translate_px=1,
        label_smoothing=0.05,
    )


@pytest.fixture(scope="session")
def trials():
    return [
        Trial(setting("ce"), 0),
        Trial(setting("camri", 1, m=0.3, s=8), 0),
        Trial(setting("camri", [0, 2], m=[0.1, 0.2], s=16), 1),
        Trial(setting("crwwce", 1, fn=4, fp=1.4), 0),
        Trial(setting("vector_scaling", 1, delta=0.8, d=1.0), 2),
        Trial(setting("two_sided_logits", [0, 1], m=[1.0, 0.5], w=[0.5, 1.0], g=2.0), 1),
    ]


def same(one, other):
    """Whether two outcomes agree to the bit."""
    assert one.status == other.status == "done"
    assert one.trial == other.trial
    assert one.weights.keys() == other.weights.keys()
    for name in one.weights:
        assert (one.weights[name] == other.weights[name]).all(), name
    for split in ("val", "test"):
        assert (one.confusion[split] == other.confusion[split]).all()
        assert (one.logits[split] == other.logits[split]).all()
        assert (one.angle_sd[split] == other.angle_sd[split]).all()
        assert (one.angle_sd["train"] == other.angle_sd["train"]).all()
        assert (one.scores[split].lead == other.scores[split].lead).all()
    for name in one.curves:
        assert (one.curves[name] == other.curves[name]).all()
    return True
