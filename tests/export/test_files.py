"""A model's folder: its files and no others are replaced, loaded to the same values, refused if changed."""

import dataclasses
import hashlib
import json
import os
import shutil
import sys
import types

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import camri
from camri.decision import Shift
from camri.errors import InputError
from camri.export import Model, load, save
from camri.export import folder as folders
from camri.export.onnx_file import example
from camri.methods import setting
from tests.export.conftest import made_trained


@pytest.fixture
def copied(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copied")


def edit(folder, **changes):
    """Put other values into config.json; its checksum is removed, as it says who edits it must."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes, "checksum": None}))


def test_a_shift_changed_by_hand_is_used(copied):
    edit(copied, rule={"rule": "shift", "values": {"stop": 2.5}})
    assert load(copied).trained.shift == (2.5,)


def put_weights(folder, weights):
    """Other weights, with the sha256 that belongs to them."""
    save_file(weights, folder / "model.safetensors")
    edit(folder, weights_sha256=hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest())


@pytest.mark.parametrize(
    "made",
    [
        made_trained("mlp", setting("camri", 1, m=0.2, s=8), (3,), options={"hidden": (4, 5)}),
        made_trained("mlp", setting("ldam", 1, m=0.1, max_m=0.3, s=8), (2,), standardise=((1.5, 0.0), (2.0, 0.1))),
        made_trained("small", setting("ce"), (4, 5, 3), options={"width": 2, "dropout": 0.5}),
    ],
    ids=["mlp", "standardised", "small"],
)
def test_a_model_comes_back_as_it_was_saved(made, tmp_path):
    path = save(dataclasses.replace(made, preprocessing={"a": [1, "ä"]}), tmp_path / "m", card="über", onnx=False)
    found = load(path).trained
    for field in dataclasses.fields(made):
        if field.name not in ("weights", "preprocessing"):
            assert getattr(found, field.name) == getattr(made, field.name), field.name
    assert found.preprocessing == {"a": [1, "ä"]}
    kept = {name: value for name, value in made.weights.items() if "num_batches" not in name}
    assert found.weights.keys() == kept.keys()
    assert all(np.array_equal(found.weights[name], kept[name]) for name in kept)
    assert (path / "README.md").read_text(encoding="utf-8") == "über"


def test_the_folder_holds_what_is_promised(saved):
    assert sorted(os.listdir(saved)) == ["README.md", "config.json", "model.safetensors"]
    config = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    assert config["format"] == "camri-model"
    assert config["version"] == 2
    assert config["camri"] == camri.__version__
    assert config["important"] == ["stop"]
    assert config["rule"] == {"rule": "shift", "values": {"stop": 0.75}}
    assert config["setting"]["method"] == "camri"
    assert config["input"] == {"kind": "image", "dtype": "uint8", "shape": [8, 8, 1]}
    assert config["weights_sha256"] == hashlib.sha256((saved / "model.safetensors").read_bytes()).hexdigest()


def test_one_changed_bit_of_the_weights_is_refused(copied):
    file = copied / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"model.safetensors is not the file that was saved: its sha256 differs"):
        load(copied)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 1, "camri": "9.9"}, r"format version 1, and camri .* reads version 2; install .*'9.9'"),
        ({"classes": "abc"}, r"is damaged: classes is 'abc'"),
        ({"classes": ["a", "b", "c", "stop"]}, r"class_counts=.* is not allowed; give 4 numbers"),
        ({"more": 1}, "is damaged: more is 1"),
        ({"input": {"kind": "image", "dtype": "uint8", "shape": [10**5, 10**5, 1]}}, "input_shape=.* is not allowed"),
        ({"rule": {"rule": "shift", "values": {"halt": 1.0}}}, "the rule's 'halt' is not a class"),
        ({"rule": {"rule": "threshold", "values": {"stop": 1.5}}}, "give probabilities, from 0 to 1"),
        ({"rule": {"rule": "best", "values": {"stop": 0.5}}}, "is damaged: rule.rule is 'best'"),
        ({"setting": {"method": "pickle", "important": [], "knobs": {}}}, "method 'pickle' is unknown"),
        ({"setting": {}}, "is damaged .*method"),
        ({"training": {"model": "small"}}, "is damaged .*model_options"),
    ],
)
def test_a_config_that_no_model_has_is_refused_by_name(copied, change, said):
    edit(copied, **change)
    with pytest.raises(InputError, match=said):
        load(copied)


def test_tensors_that_are_missing_or_of_another_kind_are_refused_by_name(copied):
    weights = load_file(copied / "model.safetensors")
    put_weights(copied, {name: value for name, value in weights.items() if name != "head.weight"})
    with pytest.raises(InputError, match=r"model.safetensors has no tensor 'head.weight'; it is not the model"):
        load(copied)
    put_weights(copied, {**weights, "head.weight": weights["head.weight"].astype(np.float16)})
    with pytest.raises(InputError, match=r"'head.weight' is F16, and weights are F32"):
        load(copied)


def test_a_config_that_asks_for_a_giant_is_refused_before_memory_is_taken(copied):
    config = json.loads((copied / "config.json").read_text())
    edit(copied, training={**config["training"], "model_options": {"width": 10**6}})
    with pytest.raises(InputError, match=r"has shape .* and its model needs \(1000000,"):
        load(copied)


def write_raw(folder, header, size):
    """A safetensors file with that header and this many bytes after it."""
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + b"\0" * size
    (folder / "model.safetensors").write_bytes(data)
    edit(folder, weights_sha256=hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize(
    ("shape", "size"), [([20_000, 20_000], 64), ([4], 0), ([4], 20), ([-4, -1], 16), ([2**62, 2**62], 16), (["a"], 4)]
)
def test_tensors_that_do_not_fill_their_file_are_refused_before_it_is_read(copied, shape, size, monkeypatch):
    write_raw(copied, {"head.weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}, size)
    monkeypatch.setattr("safetensors.numpy.load", lambda data: pytest.fail("memory was taken"))
    with pytest.raises(InputError, match=r"model\.safetensors is damaged"):
        load(copied)


def test_a_header_that_is_longer_than_its_file_is_refused(copied):
    (copied / "model.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}")
    with pytest.raises(InputError, match=r"model\.safetensors is damaged"):
        load(copied)


def test_a_config_with_more_layers_than_tensors_is_refused_at_once(tmp_path):
    path = save(made_trained("mlp", setting("ce"), (3,), options={"hidden": (4,)}), tmp_path / "m", card="", onnx=False)
    config = json.loads((path / "config.json").read_text())
    edit(path, training={**config["training"], "model_options": {"hidden": [4] * 200_000}})
    with pytest.raises(InputError, match="hidden has 200,000 layers"):
        load(path)


def test_a_giant_config_is_not_read(copied, monkeypatch):
    size = (copied / "config.json").stat().st_size
    monkeypatch.setattr(folders, "MAX_BYTES", size - 1)
    with pytest.raises(InputError, match=rf"config\.json has {size:,} bytes"):
        load(copied)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_pipes_and_devices_are_refused(copied, name):
    (copied / name).unlink()
    os.mkfifo(copied / name)
    with pytest.raises(InputError, match="is not a file but a folder, pipe or device"):
        load(copied)
    (copied / name).unlink()
    (copied / name).symlink_to("/dev/zero")
    with pytest.raises(InputError, match="is not a file but a folder, pipe or device"):
        load(copied)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(copied, value):
    weights = load_file(copied / "model.safetensors")
    weights["head.weight"][0, 0] = value
    put_weights(copied, weights)
    with pytest.raises(InputError, match=r"tensor 'head.weight' holds values that are not finite"):
        load(copied)


def test_the_card_holds_no_html_but_its_code_is_kept(trained, tmp_path):
    name = "<script>alert(1)</script>"
    card = f"# {name}\n\n```python\nif 1 < 2: pass\n```\n\n- {name}\n"
    text = (save(trained, tmp_path / "m", card=card, onnx=False) / "README.md").read_text(encoding="utf-8")
    assert "<script" not in text
    assert text.count("&lt;script>") == 2
    assert "if 1 < 2" in text


def test_where_training_started_from_is_neither_needed_nor_stored(trained, tmp_path):
    started = tmp_path / "pretrained.safetensors"
    options = (*trained.training.model_options, ("initial", str(started)), ("initial_sha256", "0" * 64))
    pretrained = dataclasses.replace(trained, training=trained.training.with_(model_options=options))
    path = save(pretrained, tmp_path / "m", card="", onnx=False)
    assert "pretrained" not in (path / "config.json").read_text()
    assert ("initial_sha256", "0" * 64) in load(path).trained.training.model_options
    config = json.loads((path / "config.json").read_text())
    options = {**config["training"]["model_options"], "initial": "/etc/passwd"}
    edit(path, training={**config["training"], "model_options": options})
    load(path)  # a config names no file that is read


@pytest.mark.parametrize("known", [True, False])
def test_timm_s_models_come_back(tmp_path, monkeypatch, known):
    """A stand-in for timm, which draws from the global generator and cannot be built without memory."""

    class Trunk(torch.nn.Module):
        num_features = 4

        def __init__(self):
            super().__init__()
            self.dense = torch.nn.Linear(3, 4)

        def forward(self, x):
            return self.dense(x.mean((2, 3)))

    timm = types.ModuleType("timm")
    timm.list_models = lambda: ["tiny"] if known else []
    timm.create_model = lambda name, **options: Trunk()
    monkeypatch.setitem(sys.modules, "timm", timm)
    if not known:
        with pytest.raises(InputError, match="is not one of timm's"):
            made_trained("timm:tiny", setting("ce"), (4, 4, 3))
        return
    made = made_trained("timm:tiny", setting("ce"), (4, 4, 3))
    found = load(save(made, tmp_path / "m", card="", onnx=False))
    rows = example(made, 3)
    np.testing.assert_array_equal(found.logits(rows), Model(made).logits(rows))


def test_weights_that_are_not_safetensors_are_refused_and_nothing_is_unpickled(copied):
    bomb = b"\x80\x04cos\nsystem\n(S'touch " + str(copied / "exploded").encode() + b"'\ntR."
    (copied / "model.safetensors").write_bytes(bomb)
    edit(copied, weights_sha256=hashlib.sha256(bomb).hexdigest())
    with pytest.raises(InputError, match=r"model.safetensors is damaged"):
        load(copied)
    assert not (copied / "exploded").exists()


def test_folders_that_are_no_model_are_refused_with_what_to_do(copied, tmp_path):
    with pytest.raises(InputError, match=r"nowhere does not exist; give a model's folder, with config.json"):
        load(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"config.json is a file; give a model's folder"):
        load(copied / "config.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty has no config.json, so it is not a camri model"):
        load(tmp_path / "empty")
    (tmp_path / "fit").mkdir()
    shutil.copytree(copied, tmp_path / "fit" / "model")
    with pytest.raises(InputError, match=r"fit has no config.json, so it is not a .* folder; give .*/fit/model"):
        load(tmp_path / "fit")
    (copied / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has no model.safetensors"):
        load(copied)


def test_saving_replaces_a_model_and_nothing_else(trained, copied, tmp_path):
    kept = {".git/config": "[core]", ".gitattributes": "*.onnx lfs", ".env": "TOKEN=1", "figures.csv": "a,b"}
    for name, content in kept.items():
        (copied / name).parent.mkdir(exist_ok=True)
        (copied / name).write_text(content)
    (copied / "model.onnx").write_text("of another model")
    (copied / "config.json").chmod(0o600)
    save(dataclasses.replace(trained, rule=Shift({1: 2.0})), copied, card="new", onnx=False)
    assert load(copied).trained.shift == (2.0,)
    assert {name: (copied / name).read_text() for name in kept} == kept
    ours = {"README.md", "config.json", "model.safetensors"}
    assert {*os.listdir(copied)} == ours | {name.split("/")[0] for name in kept}
    assert sys.platform == "win32" or (copied / "config.json").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["copied"], "something was left beside it"


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right there")
def test_saving_follows_links_and_leaves_them(trained, copied, tmp_path):
    (tmp_path / "link").symlink_to("copied")
    (copied / "config.json").rename(tmp_path / "elsewhere.json")
    (copied / "config.json").symlink_to("../elsewhere.json")
    save(dataclasses.replace(trained, rule=Shift({1: 2.0})), tmp_path / "link", card="new", onnx=False)
    assert (tmp_path / "link").is_symlink()
    assert (copied / "config.json").is_symlink()
    assert load(copied).trained.shift == (2.0,)


def test_saving_refuses_what_is_no_model(trained, tmp_path):
    for name in ("notes.txt", "weights.bin"):
        other = tmp_path / name.split(".")[0]
        other.mkdir()
        (other / name).write_text("mine")
        with pytest.raises(InputError, match=f"holds '{name}' and no config.json; choose a new folder"):
            save(trained, other, card="", onnx=False)
        assert (other / name).read_text() == "mine"
    with pytest.raises(InputError, match="is a file; choose a new folder"):
        save(trained, other / "weights.bin", card="", onnx=False)
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match="is not a camri model's"):
        save(trained, strange, card="", onnx=False)


def test_a_model_that_cannot_be_written_leaves_the_old_one_and_no_rubbish(trained, copied, tmp_path, monkeypatch):
    before = (copied / "config.json").read_bytes()

    def full(self, *arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(InputError, match=r"cannot be written .No space left on device.; make room and run the same"):
        save(trained, copied, card="", onnx=False)
    monkeypatch.undo()
    assert (copied / "config.json").read_bytes() == before
    load(copied)
    assert os.listdir(tmp_path) == ["copied"]


def test_weights_that_do_not_fit_are_not_saved(trained, tmp_path):
    broken = {name: value for name, value in trained.weights.items() if name != "head.weight"}
    with pytest.raises(InputError, match=r"the trained model has no tensor 'head.weight'"):
        save(dataclasses.replace(trained, weights=broken), tmp_path / "m", card="")
    with pytest.raises(InputError, match="cannot be written as JSON"):
        save(dataclasses.replace(trained, preprocessing={"a": float("nan")}), tmp_path / "m", card="")
    assert not (tmp_path / "m").exists()


def test_where_onnx_fails_the_model_is_kept_and_the_reason_shown(trained, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("no such operator\nand a long trace")

    monkeypatch.setattr("torch.onnx.export", fail)
    with pytest.warns(UserWarning, match=r"model.onnx was not written: no such operator$") as heard:
        path = save(trained, tmp_path / "m", card="")
    assert heard[0].filename == __file__, "the warning points at what called save"
    assert "model.onnx" not in os.listdir(path)
    load(path)


def test_without_the_extra_there_is_no_onnx_file_and_no_complaint(trained, tmp_path, monkeypatch, recwarn):
    monkeypatch.setattr("camri.export.onnx_file.NEEDED", ("json", "onnx_that_is_not_there"))
    path = save(trained, tmp_path / "m", card="")
    assert "model.onnx" not in os.listdir(path)
    assert not recwarn.list
    from camri.export import write_onnx

    with pytest.raises(InputError, match=r"needs onnx_that_is_not_there, .* pip install 'camri-loss\[onnx\]'"):
        write_onnx(load(path), tmp_path / "m.onnx")


def test_what_file_managers_leave_is_no_part_of_a_model_and_is_ignored(trained, copied):
    for name in ("Thumbs.db", "desktop.ini", ".DS_Store"):
        (copied / name).touch()
    assert load(copied).trained.shift == (0.75,)
    save(dataclasses.replace(trained, rule=Shift({1: 2.0})), copied, card="", onnx=False)
    assert load(copied).trained.shift == (2.0,)


def test_a_folder_takes_a_model_where_it_is_new_empty_or_a_model_s(trained, tmp_path):
    for name in ("empty", "cloned"):
        (tmp_path / name).mkdir()
    (tmp_path / "cloned" / ".git").mkdir()
    for path in (tmp_path / "cloned", tmp_path / "empty", tmp_path / "new" / "deep" / "m"):
        assert save(trained, str(path), card="", onnx=False) == path
        assert load(path).trained.shift == (0.75,)
    (path / "config.json").unlink()
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_text("mine")
    with pytest.raises(InputError, match=r"holds 'model.safetensors' and no config\.json; choose a new folder"):
        save(trained, other, card="", onnx=False)
    assert (other / "model.safetensors").read_text() == "mine"
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"m cannot be written \(.+\); choose another folder"):
        save(trained, tmp_path / "file" / "m", card="", onnx=False)


def test_where_a_file_cannot_take_its_place_the_model_is_refused_until_it_is_saved_again(
    trained, copied, tmp_path, monkeypatch
):
    other = dataclasses.replace(trained, weights={name: value * 1.5 for name, value in trained.weights.items()})
    replace, moved = os.replace, []

    def failing(source, target):
        moved.append(target.name)
        if len(moved) == 2:
            raise OSError(16, "Device or resource busy")
        replace(source, target)

    monkeypatch.setattr("os.replace", failing)
    with pytest.raises(InputError, match=r"model\.safetensors cannot be written \(Device or resource busy\)"):
        save(other, copied, card="", onnx=False)
    assert moved == ["config.json", "model.safetensors"]
    with pytest.raises(InputError, match="its sha256 differs"):
        load(copied)
    save(other, copied, card="", onnx=False)
    load(copied)
    assert os.listdir(tmp_path) == ["copied"]
    assert len(os.listdir(copied)) == 3


def test_every_file_is_written_before_the_first_takes_its_place(trained, tmp_path, monkeypatch):
    heard, replace = [], os.replace

    def note(source, target):
        heard.append(list(target.parent.glob("*.part")))
        replace(source, target)

    monkeypatch.setattr("os.replace", note)
    save(trained, tmp_path / "m", card="a card", onnx=False)
    assert [len(parts) for parts in heard] == [3, 2, 1]


def test_weights_are_written_as_they_are_however_they_lie_in_memory(tmp_path):
    made = made_trained("mlp", setting("ce"), (3,), options={"hidden": (4,)})
    turned = {name: np.asfortranarray(value, dtype=np.float64) for name, value in made.weights.items()}
    assert not turned["trunk.layers.0.weight"].flags.c_contiguous
    found = load(save(dataclasses.replace(made, weights=turned), tmp_path / "m", card="", onnx=False)).trained.weights
    assert all(value.dtype == np.float32 and np.array_equal(value, made.weights[name]) for name, value in found.items())


def test_an_error_without_words_is_named_by_its_kind(trained, tmp_path, monkeypatch):
    def fail(model):
        raise MemoryError

    monkeypatch.setattr("camri.export.onnx_file.make_onnx", fail)
    with pytest.warns(UserWarning, match=r"^model\.onnx was not written: MemoryError$"):
        path = save(trained, tmp_path / "m", card="")
    assert sorted(os.listdir(path)) == ["README.md", "config.json", "model.safetensors"]


@pytest.mark.parametrize("options", [{"width": "a"}, {"width": [2]}, {"dropout": "a"}, {"generator": 1}])
def test_model_options_of_another_kind_are_refused(copied, options):
    config = json.loads((copied / "config.json").read_text())
    edit(copied, training={**config["training"], "model_options": {**config["training"]["model_options"], **options}})
    with pytest.raises(InputError):
        load(copied)


def test_saving_leaves_the_mask_of_new_files_alone(trained, tmp_path):
    before = os.umask(0o027)
    try:
        path = save(trained, tmp_path / "m", card="", onnx=False)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    if sys.platform != "win32":
        assert path.stat().st_mode & 0o777 == 0o750
