"""Features of a frozen backbone: computed, cached, trained on, and in the final model."""

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import camri
from camri.backbones import Preprocessing, find
from camri.data import DataSet, Split, features, load
from camri.data.features import embed
from camri.engine import Training, Trial, train
from camri.errors import InputError
from camri.export import Model, Trained
from camri.methods import setting
from camri.models import Backbone, build
from camri.study.runner import LocalExecutor, run
from camri.study.study_file import read_study
from tests.networks import photos, save_tiny

PROBE = Training(model="linear", model_options=(("dropout", 0.2),), epochs=20, batch_size=8, learning_rate=0.01)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", num=12)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CAMRI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def made(num=5, shape=(10, 12, 3), seed=0):
    images = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (num, *shape), dtype=np.uint8))
    split = Split(images, torch.arange(num) % 2)
    return DataSet("made", ("a", "b"), {"train": split, "test": split}, f"made-{seed}", {})


def test_features_are_the_network_s_in_float16_and_cached(model, cache, monkeypatch):
    data, options = made(), find(model)
    calls = []
    embedded = embed(data, model, options, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(5, 5)]  # the test images are the train images: computed once
    trunk = build(model, (3, 10, 12), **options).eval()
    with torch.no_grad():
        wanted = trunk(data.splits["train"].inputs.permute(0, 3, 1, 2) / 255)
    torch.testing.assert_close(embedded.splits["test"].inputs.float(), wanted, atol=1e-3, rtol=2e-3)
    assert embedded.splits["train"].inputs.dtype == torch.float16
    assert torch.equal(embedded.splits["train"].inputs, embedded.splits["test"].inputs)
    assert (embedded.input_shape, embedded.is_image) == ((16,), False)
    monkeypatch.setattr(features, "_compute", None)  # not called again
    again = embed(data, model, options)
    assert torch.equal(again.splits["train"].inputs, embedded.splits["train"].inputs)
    assert again.fingerprint == embedded.fingerprint != data.fingerprint
    assert not list(cache.glob(".part*"))


def test_other_images_weights_and_preprocessing_are_computed_again(model):
    options = find(model)
    first = embed(made(), model, options)
    others = (
        embed(made(seed=1), model, options),
        embed(made(), model, find(model, from_scratch=True)),
        embed(made(), model, find(model, size=16)),
    )
    for other in others:
        assert other.fingerprint != first.fingerprint
        assert not torch.equal(other.splits["train"].inputs, first.splits["train"].inputs)


def test_time_that_runs_out_leaves_some_images_of_every_class(model, monkeypatch):
    data, options = made(100), find(model)
    data = replace(data, splits={"train": data.splits["train"], "test": made(50, seed=1).splits["test"]})
    monkeypatch.setattr(features, "BATCH_ROWS", 8)
    whole = embed(data, model, options, cache=Path(os.environ["CAMRI_CACHE"]) / "other")
    images, cut = features.embed_within(data, model, options, limit_s=1e-9)
    for part, split in images.splits.items():
        assert split.labels.bincount().tolist() == [4, 4]
        assert cut.splits[part].labels.equal(split.labels)
        rows = [
            row for row, image in enumerate(data.splits[part].inputs) if (split.inputs == image).all((1, 2, 3)).any()
        ]
        torch.testing.assert_close(cut.splits[part].inputs, whole.splits[part].inputs[rows], atol=1e-3, rtol=1e-3)
    assert len({cut.fingerprint, whole.fingerprint, images.fingerprint, data.fingerprint}) == 4
    again = features.embed_within(data, model, options, limit_s=0)
    assert [one.fingerprint for one in again] == [images.fingerprint, cut.fingerprint]
    calls = []
    images, rest = features.embed_within(data, model, options, limit_s=60, progress=lambda *how: calls.append(how))
    assert images is data
    assert calls[0][0] >= 24
    assert calls[-1] == (150, 150)
    assert rest.fingerprint == whole.fingerprint
    torch.testing.assert_close(rest.splits["train"].inputs, whole.splits["train"].inputs, atol=1e-3, rtol=1e-3)


def test_a_progress_that_raises_ends_the_computation(model, cache, monkeypatch):
    batches = []

    def slow(found):
        batches.append(found)
        time.sleep(0.02)
        return found

    def stop(done, total):
        raise KeyboardInterrupt

    monkeypatch.setattr(features, "BATCH_ROWS", 1)
    monkeypatch.setattr(features, "to_half", slow)
    with pytest.raises(KeyboardInterrupt):
        embed(made(60), model, find(model), progress=stop)
    assert len(batches) < 50
    assert not list(cache.glob("*.features"))


class Counting(torch.nn.Module):
    """A network that a trace cannot follow: what it gives depends on the number of images."""

    def forward(self, x):
        return x.mean((2, 3)) * int(x.shape[0])


def test_a_network_that_cannot_be_traced_is_run_as_it_is(model, monkeypatch):
    data, record = made(), Preprocessing((10, 12), "none")
    monkeypatch.setattr(features, "build", lambda *_, **__: Backbone(Counting(), record, (3, 10, 12)))
    pixels = data.splits["train"].inputs.permute(0, 3, 1, 2) / 255
    mean, sd = (torch.tensor(values).view(-1, 1, 1) for values in (record.mean, record.sd))
    wanted = ((pixels - mean) / sd).mean((2, 3)) * 5
    torch.testing.assert_close(embed(data, model, {}).splits["train"].inputs.float(), wanted, atol=1e-3, rtol=1e-3)


def test_features_are_not_embedded_and_damaged_weights_are_reported(model):
    data = embed(made(), model, find(model))
    with pytest.raises(InputError, match="holds features already"):
        embed(data, model, find(model))
    with pytest.raises(InputError, match="weights=w is for a backbone"):
        load("digits", weights="w")


def test_a_cache_that_cannot_be_written_does_not_fail(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot be cached"):
        data = embed(made(), model, find(model), cache=tmp_path / "file")
    assert data.input_shape == (16,)


def test_the_final_model_takes_images(model, folder, tmp_path):
    data = load(folder, backbone=model)
    images = load(folder, size=32, resize="bicubic 42 floor")
    (outcome,) = train([Trial(setting("ce"), 0)], data, "cpu", training=PROBE, keep_weights=True, keep_logits=True)
    trained = Trained.of(outcome, data, [1], 0.5)
    assert (trained.is_image, trained.input_shape, trained.training.model) == (True, (32, 32, 3), model)
    logits = Model(trained).logits(images.splits["test"].inputs)
    np.testing.assert_allclose(logits - [0, 0.5], outcome.logits["test"], atol=2e-2)
    assert (logits[:, 1] - 0.5 > logits[:, 0]).mean() == pytest.approx(0.5, abs=0.2)

    found = camri.load(camri.export.save(trained, tmp_path / "model", card="", onnx=True))
    np.testing.assert_allclose(found.logits(images.splits["test"].inputs), logits, atol=1e-5)
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(tmp_path / "model" / "model.onnx"), providers=["CPUExecutionProvider"])
    rows = images.splits["test"].inputs.numpy()
    np.testing.assert_allclose(session.run(["logits"], {"inputs": rows})[0], logits, atol=2e-2)


def test_standardised_features_are_standardised_in_the_model_too(model, folder):
    data = load(folder, backbone=model)
    (outcome,) = train([Trial(setting("ce"), 0)], data, "cpu", training=PROBE, keep_weights=True)
    rows = data.splits["train"].inputs.float()
    mean, sd = rows.mean(dim=0), rows.std(dim=0).clamp_min(1e-3)  # a constant feature has none
    plain = Trained.of(outcome, data, [1])
    scaled = Trained.of(outcome, data, [1], standardise=(tuple(mean.tolist()), tuple(sd.tolist())))
    assert scaled.standardise is None
    images = load(folder, size=32, resize="bicubic 42 floor").splits["test"].inputs
    trunk = Model(plain).module.classifier
    with torch.no_grad():
        half = trunk.trunk.net(trunk.trunk.prepare(images.permute(0, 3, 1, 2) / 255)).logits.half().float()
        wanted = trunk.head(trunk.trunk.probe((half - mean) / sd))
    np.testing.assert_allclose(Model(scaled).logits(images), wanted.numpy(), atol=1e-4)


def test_the_estimator_freezes_a_pretrained_network_without_a_gpu(model, folder, tmp_path):
    data = load(folder, size=40)
    images, labels = data.splits["train"].inputs.numpy(), np.array(data.classes)[data.splits["train"].labels]
    how = {"model": model, "batch_size": 8, "learning_rate": 0.02, "shift": None, "device": "cpu", "random_state": 0}
    estimator = camri.CamriClassifier("b", epochs=25, **how).fit(images, labels)
    assert '"model": "linear"' in dict(estimator.trained_.training.model_options)["probe"]
    assert estimator.score(images, labels) > 0.8
    again = camri.CamriClassifier.load(estimator.save(tmp_path / "model"))
    assert (again.predict(images) == estimator.predict(images)).all()
    tuned = camri.CamriClassifier("b", frozen=False, epochs=1, **how).fit(images, labels)
    assert "probe" not in dict(tuned.trained_.training.model_options)
    with pytest.raises(InputError, match="frozen=True keeps pretrained weights"):
        camri.CamriClassifier("b", model=model, frozen=True, from_scratch=True).fit(images, labels)


def test_a_study_trains_heads_on_features_or_the_whole_network(model, folder, tmp_path):
    def study(text):
        (tmp_path / "s.toml").write_text(f'columns = ["b"]\nseeds = 1\n{text}\n[methods.ce]\n')
        return read_study(tmp_path / "s.toml")

    heads = study(
        f'[data]\nsource = "{folder}"\nbackbone = "{model}"\n[training]\nmodel = "linear"\nepochs = 2\ncosine = true'
    )
    assert heads.training.cosine
    result = run(heads, tmp_path / "heads", LocalExecutor("cpu", workers=1))
    assert (result.finished, result.new) == (True, 1)
    whole = study(f'[data]\nsource = "{folder}"\n[training]\nmodel = "{model}"\nepochs = 1\nbatch_size = 8')
    assert dict(whole.data_options) == {"size": (32, 32), "resize": "bicubic 42 floor"}
    assert run(whole, tmp_path / "whole", LocalExecutor("cpu", workers=1)).finished
    weights = dict(whole.training.model_options)["initial"]
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes(Path(weights).read_bytes())
    named = study(f'[data]\nsource = "{folder}"\n[training]\nmodel = "{model}"\nepochs = 1\nbatch_size = 8\n'
                  f'weights = "{moved}"')  # fmt: skip
    assert named.training.key == whole.training.key  # by content, not by path
