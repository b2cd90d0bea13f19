"""Trained models: one that the engine trained, and others of every kind with random weights."""

import numpy as np
import pytest
import torch

from camri.data import DataSet, Split
from camri.data.dataset import to_float
from camri.decision import Shift
from camri.engine import Training, Trial, train
from camri.export import Model, Trained, save
from camri.export.model import make_classifier
from camri.export.onnx_file import example
from camri.methods import setting

CLASSES = ("limit", "stop", "yield")


def made_split(num_rows, seed, kind="image"):
    """Images with a bright row, column or corner under noise; or features about three centres, off 0 and unequal."""
    drawn = np.random.default_rng(seed)
    labels = drawn.integers(0, 3, num_rows)
    if kind == "features":
        rows = drawn.normal(size=(num_rows, 6)) + np.eye(3, 6)[labels] * 3
        return Split(torch.from_numpy(rows.astype(np.float32)), torch.from_numpy(labels))
    images = drawn.integers(0, 150, (num_rows, 8, 8, 1))
    for image, label in zip(images, labels, strict=True):
        image[(slice(3, 4), slice(None), slice(3))[label], (slice(None), slice(3, 4), slice(3))[label]] += 100
    return Split(torch.from_numpy(images.astype(np.uint8)), torch.from_numpy(labels))


def made_data(kind="image"):
    splits = {part: made_split(num, seed, kind) for seed, (part, num) in enumerate([("train", 160), ("test", 90)])}
    return DataSet("made", CLASSES, splits, f"made-{kind}", {})


@pytest.fixture(scope="session")
def data():
    return made_data()


@pytest.fixture(scope="session")
def outcome(data):
    """A CAMRI model with dropout, averaged weights and more, trained by the engine."""
    options = (("dropout", 0.3), ("width", 4))
    training = Training(model="small", model_options=options, epochs=6, batch_size=32, average=0.8, learning_rate=5e-3)
    trials = [Trial(setting("camri", 1, m=0.3, s=8), 3)]
    (found,) = train(trials, data, "cpu", training=training, important=[1], keep_weights=True, keep_logits=True)
    return found


@pytest.fixture(scope="session")
def trained(outcome, data):
    return Trained.of(outcome, data, [1], 0.75)


@pytest.fixture(scope="session")
def saved(trained, tmp_path_factory):
    """A saved model; tests that change it take a copy."""
    return save(trained, tmp_path_factory.mktemp("saved") / "model", card="# The card\n", onnx=False)


def made_trained(model, chosen, shape, *, options=(), rule=None, standardise=None, seed=0):
    """A model with random weights, batch norm's statistics among them, as if it had been trained."""
    is_image = len(shape) == 3
    training = Training(model=model, model_options=tuple(sorted(dict(options).items())))
    bare = {
        "setting": chosen,
        "training": training,
        "seed": seed,
        "classes": CLASSES,
        "input_shape": shape,
        "is_image": is_image,
        "class_counts": (50, 20, 30),
        "important": (1,),
        "rule": rule or Shift({1: 0.7}),
        "standardise": standardise,
    }
    untrained = Trained(weights={}, **bare)
    drawn = torch.Generator().manual_seed(seed)
    classifier = make_classifier(untrained, drawn)
    for module in classifier.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.momentum = None  # the statistics of what is seen next, so that inputs matter to the outputs
            torch.nn.init.normal_(module.bias, 0, 0.3, generator=drawn)
    with torch.no_grad():
        classifier(to_float(torch.from_numpy(example(untrained, 64))))
    return Trained(weights={name: tensor.numpy() for name, tensor in classifier.state_dict().items()}, **bare)


@pytest.fixture(scope="session")
def model(trained):
    return Model(trained)
