"""A fit with a frozen backbone: heads are trained on features, and the model handed over takes photos."""

import sys
import types

import numpy as np
import pytest
from PIL import Image

import camri
from camri.backbones import at_hand
from camri.data import load
from camri.errors import InputError
from camri.fitting.request import Journal, command, make_request
from camri.study.store import open_run
from tests.networks import photos, save_tiny


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("CAMRI_CACHE", str(tmp_path / "cache"))
    return save_tiny(tmp_path / "tiny")


def test_a_fit_of_heads_hands_over_a_model_that_takes_photos(model, tmp_path):
    folder, stages = photos(tmp_path / "photos", num=40, shape=(34, 36, 3)), {}
    fitted = camri.fit(
        folder, "b", tmp_path / "out", model=model, num_trials=16, epochs=3, device="cpu",
        on_progress=lambda progress: stages.setdefault(progress.stage, progress),
    )  # fmt: skip
    assert "reading data" in stages
    assert stages["computing features"].left_s is not None
    trained = camri.load(fitted.model_path).trained
    assert (trained.is_image, trained.training.model) == (True, model)
    images = load(folder, size=32, resize="bicubic 42 floor").splits["test"]
    predicted = camri.load(fitted.model_path).predict(images.inputs)
    found = int(sum(name == "b" and int(label) == 1 for name, label in zip(predicted, images.labels, strict=True)))
    assert found == pytest.approx(fitted.answer.made.handed.after.recalls[0].hits, abs=1)
    card = (fitted.model_path / "README.md").read_text()
    assert "linear on hf:" in card
    assert f"{model} started from the published weights (sha256 " in card
    assert "32x32x3 images, uint8" in card
    with np.load(tmp_path / "out" / "examples.npz") as stored:
        assert stored["missed_inputs"].shape[1:] == (32, 32, 3)


def test_features_that_take_too_long_are_those_of_fewer_images(model, tmp_path, monkeypatch):
    monkeypatch.setattr("camri.data.features.BATCH_ROWS", 4)
    monkeypatch.setattr("camri.fitting.request.FEATURES_SHARE", 0.0)
    folder = photos(tmp_path / "photos", num=40)

    def ask():
        return make_request(folder, "b", tmp_path / "out", model=model, budget="60s", device="cpu")

    request = ask()
    assert 0 < request.inputs.share < 1
    for part, split in request.data.splits.items():
        assert split.labels.equal(request.inputs.images.splits[part].labels)
    (tmp_path / "out").mkdir()
    Journal(tmp_path / "out", {}).set(share=request.inputs.share)
    monkeypatch.setattr("camri.fitting.request.FEATURES_SHARE", 1.0)
    assert ask().data.fingerprint == request.data.fingerprint  # a fit resumes with the images that it had


def test_the_command_and_the_refusals(model, tmp_path):
    folder = photos(tmp_path / "photos", num=12)
    request = make_request(folder, "b", tmp_path / "out", model=model, num_trials=16, frozen=True, device="cpu")
    assert request.plain.model == "linear"
    assert request.data.noun.many == "images"
    words = command(request)
    assert f"--frozen --trials 16 --model {model}" in words
    assert "--size 32" in words
    whole = make_request(folder, "b", tmp_path / "o", model=model, num_trials=16, frozen=False, device="cpu")
    assert whole.plain.model == model
    with pytest.raises(InputError, match="frozen=True needs a pretrained network"):
        make_request(folder, "b", tmp_path / "o", model="small", num_trials=16, frozen=True)


def test_weights_at_hand_are_used_for_a_folder_of_jpeg_files(model, tmp_path, monkeypatch):
    monkeypatch.setattr("camri.fitting.request.at_hand", lambda: model)
    folder = photos(tmp_path / "photos", num=12)

    def ask(**options):
        return make_request(folder, "b", tmp_path / "out", num_trials=16, **{"device": "cpu", **options}).plain.model

    assert ask() == "small"  # PNG files
    for file in folder.rglob("*.png"):
        Image.open(file).save(file.with_suffix(".JPG"))
        file.unlink()
    with pytest.warns(UserWarning, match="the weights of hf:.* are in the hub's cache, so heads are trained on its"):
        assert ask() == "linear"
    assert ask(model="small") == ask(frozen=False) == ask(from_scratch=True) == "small"


def test_the_smallest_cached_network_that_timm_knows_is_at_hand(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    timm = types.ModuleType("timm")
    timm.list_models = lambda: ["large", "small"]
    monkeypatch.setitem(sys.modules, "timm", timm)
    assert at_hand() is None
    for name, size in (("large.a", 9), ("small.b", 5), ("unknown", 1)):
        file = tmp_path / f"models--timm--{name}" / "snapshots" / "1a" / "model.safetensors"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"0" * size)
    assert at_hand() == "timm:small.b"
    monkeypatch.setitem(sys.modules, "timm", None)
    assert at_hand() is None


def test_rivals_race_on_features_and_finalists_are_fine_tuned(model, tmp_path):
    folder, out = photos(tmp_path / "photos", num=60, shape=(34, 36, 3)), tmp_path / "out"
    fitted = camri.fit(folder, "b", out, model=model, frozen=False, num_trials=24, epochs=40, device="cpu")
    raced, tuned = (open_run(where) for where in (out / "trainings" / "features", out))
    assert raced.training["model"] == "linear"
    assert {row.method for row in raced.rows()} > {"ce"}
    training = tuned.training
    assert (training["model"], training["optimizer"], training["cosine"]) == (model, "adamw", True)
    methods = {row.method for row in tuned.rows()}
    assert "ce" in methods
    assert methods - {"ce"} <= {row.method for row in raced.rows()} | {"l2softmax"}
    assert len(methods) > 1
    assert raced.fingerprint != tuned.fingerprint
    stored = sum(len(open_run(file.parent).rows()) for file in out.rglob("outcomes.sqlite"))
    assert 20 <= stored <= 24
    trained = camri.load(fitted.model_path).trained
    assert "probe" not in dict(trained.training.model_options)
    again = camri.fit(folder, "b", out, model=model, frozen=False, num_trials=24, epochs=40, device="cpu")
    assert again.answer.to_json() == fitted.answer.to_json()
