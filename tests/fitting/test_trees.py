"""Boosted trees: scikit-learn's, as weights of a model, and as an arm of a fit."""

import types

import numpy as np
import onnxruntime
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier

import camri
from camri.data import DataSet, Split
from camri.errors import InputError
from camri.fitting import fit, handover, job
from camri.fitting.budget import Budget
from camri.fitting.rivals import can_grow, grow, to_weights
from camri.models import Trees
from tests.fitting.conftest import weights_of
from tests.fitting.test_request import ask


def trunk_of(model, num_iterations, num_classes, num_features):
    options, weights = to_weights(model, num_iterations, num_classes)
    trunk = Trees(num_features, **options)
    trunk.load_state_dict(
        {name.removeprefix("trunk."): torch.tensor(value) for name, value in weights.items() if "trunk" in name}
    )
    return trunk


@pytest.mark.parametrize("num_classes", [2, 3, 5])
def test_scores_are_those_of_scikit_learn(num_classes):
    rows, labels = make_classification(800, 8, n_informative=6, n_classes=num_classes, random_state=num_classes)
    rows = rows.astype(np.float32)
    rows[:, 0] = rows[:, 0].round()  # values that lie on thresholds
    model = HistGradientBoostingClassifier(max_iter=20, early_stopping=False).fit(rows, labels)
    found = trunk_of(model, 20, num_classes, 8)(torch.from_numpy(rows)).softmax(dim=1)
    np.testing.assert_allclose(found, model.predict_proba(rows), atol=1e-6)
    fewer = trunk_of(model, 7, num_classes, 8)(torch.from_numpy(rows)).softmax(dim=1)
    np.testing.assert_allclose(fewer, list(model.staged_predict_proba(rows))[6], atol=1e-6)


def test_a_row_on_a_threshold_goes_where_scikit_learn_sends_it():
    """Thresholds are float64 there: between two neighbours of float32 they must not be rounded up."""
    low = np.float32(0.1)
    high = np.nextafter(low, np.float32(1))
    rows = np.array([[low], [high]] * 60, dtype=np.float32)
    model = HistGradientBoostingClassifier(max_iter=2, early_stopping=False).fit(rows, [0, 1] * 60)
    found = trunk_of(model, 2, 2, 1)(torch.from_numpy(rows)).softmax(dim=1)
    np.testing.assert_allclose(found, model.predict_proba(rows), atol=1e-6)
    assert found[0, 0] > 0.5 > found[1, 0]


def test_a_class_without_train_rows_is_never_predicted():
    rows = np.random.default_rng(0).normal(size=(90, 2)).astype(np.float32)
    labels = np.where(rows[:, 0] > 0, 2, 0)
    model = HistGradientBoostingClassifier(max_iter=5, early_stopping=False).fit(rows, labels)
    found = trunk_of(model, 5, 3, 2)(torch.from_numpy(rows)).softmax(dim=1)
    np.testing.assert_allclose(found[:, [0, 2]], model.predict_proba(rows), atol=1e-6)


def stripes(noise=0.0):
    """A class in stripes of one feature: trees find it, and a network of five epochs does not."""
    drawn = np.random.default_rng(0)
    rows = drawn.normal(size=(1200, 3)).astype(np.float32)
    rows[:, 0] = drawn.integers(0, 12, 1200)
    labels = ((rows[:, 0] % 2 == 0) & (rows[:, 1] > 0)) ^ (drawn.random(1200) < noise)
    train = Split(torch.from_numpy(rows), torch.from_numpy(labels.astype(np.int64)))
    return DataSet("stripes", ("no", "yes"), {"train": train}, f"made-{noise}")


def test_growing_stops_when_the_validation_loss_rises():
    grown = {noise: grow(ask(stripes(noise), "yes").data, Budget(None, 9, began=0.0)) for noise in (0.0, 0.4)}
    assert grown[0.4].training.epochs < grown[0.0].training.epochs <= 300
    assert can_grow(stripes())
    assert not can_grow(ask("digits", "9").data)


def test_growing_keeps_its_share_of_the_time(monkeypatch):
    passed = iter(range(0, 10_000, 3))
    clock = types.SimpleNamespace(monotonic=lambda: float(next(passed)))
    monkeypatch.setattr("camri.fitting.budget.time", clock)  # the fit's alone: scikit-learn's threads look at time, too
    assert grow(ask(stripes(), "yes").data, Budget(200.0, None, began=0.0)).training.epochs < 300
    assert grow(ask(stripes(), "yes").data, Budget(20.0, None, began=0.0)) is None  # no time for 25 iterations


def test_trees_that_do_better_are_handed_over_like_any_model(tmp_path, in_this_process, monkeypatch):
    monkeypatch.setattr(handover, "write_page", lambda folder: folder)
    data = stripes()
    fitted = fit(data, "yes", tmp_path / "out", num_trials=6, epochs=5, device="cpu")
    answer = fitted.answer
    assert (answer.made.handed.method, answer.verdict.kind, answer.verdict.method) == (
        "trees", "train_with", "boosted trees"
    )  # fmt: skip
    assert "iterations of HistGradientBoosting" in str(fitted)
    assert answer.evidence.compare("method", "shifted").accuracy.low > 0  # cross-entropy at the same recall
    model, rows = camri.load(fitted.model_path), data.splits["train"].inputs.numpy()
    probabilities = model.predict_proba(rows)
    session = onnxruntime.InferenceSession(fitted.model_path / "model.onnx")
    np.testing.assert_allclose(session.run(["probabilities"], {"inputs": rows})[0], probabilities, atol=1e-5)
    test = ask(data, "yes").data.splits["test"]
    mean, sd = (np.float32(values) for values in model.trained.standardise)
    said = np.array(model.predict(test.inputs.numpy() * sd + mean)) == np.array(data.classes)[test.labels]
    assert said.sum() == answer.made.handed.after.accuracy.hits
    before = weights_of(fitted)
    monkeypatch.setattr("camri.export.onnx_file.is_installed", lambda: False)
    again = fit(data, "yes", tmp_path / "out", num_trials=6, epochs=5, device="cpu")
    assert again.answer.to_json() == fitted.answer.to_json()
    assert weights_of(fitted) == before


def test_trees_that_do_not_are_shown_beside_the_others(tmp_path, rows, in_this_process, without_files):
    answer = fit(rows, "storm", tmp_path / "out", num_trials=6, epochs=20, device="cpu").answer
    assert answer.made.handed.method == "ce"
    assert [arm.name for arm in answer.evidence.arms] == ["baseline", "redecided", "trees"]


def test_trees_are_given_up_when_the_data_took_the_time(tmp_path, rows, in_this_process, without_files, monkeypatch):
    monkeypatch.setattr(job, "TREES_BEFORE", 0.0)
    answer = fit(rows, "storm", tmp_path / "out", budget=20, epochs=1, device="cpu").answer
    assert "boosted trees" in answer.made.effort.given_up
    assert answer.evidence.arm("trees") is None


def test_trees_cannot_be_asked_for():
    with pytest.raises(InputError, match="model='trees' is grown beside every fit of a table"):
        ask(stripes(), "yes", model="trees")
