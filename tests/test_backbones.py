"""Backbones: preprocessing against the libraries' own transforms, weights, refusals, the exported model."""

import importlib
import io
import json
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from camri import backbones
from camri.backbones import Preprocessing, find, frame
from camri.data import load
from camri.data.decode import to_array
from camri.errors import InputError
from camri.export.model import Model
from camri.methods import setting
from camri.models import Backbone, build
from tests.networks import declare_operators, image_processor, import_timm, photos, picture, tiny_resnet

warnings.filterwarnings("ignore", message=".*requires torchvision.*")
SIZES = [(40, 40, 3), (91, 60, 3), (33, 57, 1), (50, 31, 4)]


def as_rgb(image):
    """What the library's transform is given: transparency on white, as camri decodes it."""
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Tiny models of transformers with their image processors, as `save_pretrained` writes them."""
    resnet = tiny_resnet()
    import transformers as hf

    vit = hf.ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=48,
                       patch_size=16, hidden_dropout_prob=0.1)  # fmt: skip
    pil = image_processor
    made = {
        "resnet": (resnet, pil("ConvNext", size={"shortest_edge": 32}, crop_pct=0.75)),
        "vit": (hf.ViTForImageClassification(vit), pil("ViT", size={"height": 48, "width": 48})),
        "clip": (resnet, pil("CLIP", size={"shortest_edge": 41}, crop_size={"height": 32, "width": 36})),
    }
    home = tmp_path_factory.mktemp("hf")
    for name, (model, processor) in made.items():
        model.eval().save_pretrained(home / name)
        processor.save_pretrained(home / name)
    return {name: (f"hf:{home / name}", *pair) for name, pair in made.items()}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CAMRI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def normalised(pixels, record):
    return (pixels.transpose(2, 0, 1) / 255 - np.reshape(record.mean, (3, 1, 1))) / np.reshape(record.sd, (3, 1, 1))


@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("name", ["resnet", "vit", "clip"])
def test_files_are_prepared_as_transformers_prepares_them(folders, name, shape):
    model, _, processor = folders[name]
    record = Preprocessing.from_text(find(model)["preprocessing"])
    image, stream = picture(shape), io.BytesIO()
    image.save(stream, "PNG")
    decoded = to_array(memoryview(stream.getvalue()), (*record.size, 3), None, record.resize)
    wanted = np.asarray(processor(images=as_rgb(image))["pixel_values"][0])
    np.testing.assert_allclose(normalised(decoded, record), wanted, atol=1e-6)


@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("name", ["resnet", "vit", "clip"])
def test_arrays_are_prepared_inside_the_network_within_two_levels(folders, name, shape):
    model, _, processor = folders[name]
    options, image = find(model), as_rgb(picture(shape))
    wanted = np.asarray(processor(images=image)["pixel_values"][0])
    channels = 1 if shape[2] == 1 else 3
    trunk = build(model, (channels, *shape[:2]), **options)
    pixels = torch.from_numpy(np.array(image)[..., :channels]).permute(2, 0, 1)[None] / 255
    levels = np.abs(trunk.prepare(pixels)[0].numpy() - wanted) * trunk.sd.numpy() * 255
    assert levels.max() < 2.01  # ties are rounded twice, and Pillow's weights have 22 bits
    assert (levels > 0.5).mean() < 0.05


@pytest.mark.parametrize("name", ["resnet", "vit"])
def test_features_are_what_the_library_s_classifier_sees(folders, name):
    model, net, processor = folders[name]
    trunk = build(model, (3, 91, 60), torch.Generator().manual_seed(3), **find(model)).eval()
    image = as_rgb(picture((91, 60, 3)))
    with torch.no_grad():
        features = trunk(torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255)
        last = net.classifier[-1] if name == "resnet" else net.classifier
        wanted = net(torch.from_numpy(np.asarray(processor(images=image)["pixel_values"]))).logits
        torch.testing.assert_close(last(features), wanted, atol=1e-3, rtol=0)
    assert trunk.num_features == 16
    assert not [m for m in trunk.modules() if isinstance(m, torch.nn.Dropout) and m.p > 0]


def test_from_scratch_and_weights_of_a_file(folders, tmp_path):
    model, net, _ = folders["resnet"]
    assert "initial" not in find(model, from_scratch=True)
    first, same, other = (
        build(model, (3, 8, 8), torch.Generator().manual_seed(seed), **find(model, from_scratch=True))
        for seed in (1, 1, 2)
    )
    name = "net.resnet.embedder.embedder.convolution.weight"
    assert torch.equal(first.state_dict()[name], same.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])
    state = net.state_dict()
    save_file({key: value.contiguous() for key, value in state.items()}, tmp_path / "w.safetensors")
    trunk = build(model, (3, 8, 8), **find(model, weights=tmp_path / "w.safetensors"))
    assert torch.equal(trunk.state_dict()[name], state[name.removeprefix("net.")])
    published = load_file(find(model)["initial"])
    assert torch.equal(published[name.removeprefix("net.")], state[name.removeprefix("net.")])
    with pytest.raises(InputError, match="not both"):
        find(model, weights="w", from_scratch=True)
    with pytest.raises(InputError, match=r"weights=.*no\.safetensors cannot be read"):
        find(model, weights=tmp_path / "no.safetensors")


def test_what_cannot_be_had_names_the_ways_out(folders, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # else it tries for 20 s
    with pytest.raises(InputError, match=r"config.json cannot be had \(.*\); give the folder of a downloaded model"):
        find("hf:nobody/nothing")
    _, net, processor = folders["resnet"]
    net.config.save_pretrained(tmp_path / "bare")
    processor.save_pretrained(tmp_path / "bare")
    torch.save(net.state_dict(), tmp_path / "bare" / "pytorch_model.bin")  # a pickle is no way
    with pytest.raises(InputError, match=r"weights cannot be had.*weights= \(--weights\).*\(--from-scratch\)"):
        find(f"hf:{tmp_path / 'bare'}")
    net.save_pretrained(tmp_path / "plain")
    with pytest.raises(InputError, match=r"no preprocessor_config.json, which says how images are prepared"):
        find(f"hf:{tmp_path / 'plain'}")


def test_code_of_a_model_s_author_is_not_run(folders, tmp_path):
    _, net, processor = folders["resnet"]
    folder = tmp_path / "remote"
    net.save_pretrained(folder)
    processor.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "evil.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\n")
    with pytest.raises(InputError, match="cannot be had"):
        find(f"hf:{folder}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_flip_channel_order": True}, "do_flip_channel_order, which is not supported"),
        ({"rescale_factor": 1 / 127.5}, "rescale_factor"),
        ({"do_resize": False}, "do_resize=False"),
    ],
)
def test_preprocessing_that_is_not_understood_is_refused(folders, changes, message):
    import copy

    processor = copy.copy(folders["vit"][2])
    for name, value in changes.items():
        setattr(processor, name, value)
    with pytest.raises(InputError, match=message):
        backbones._of_processor(processor, "hf:x")


def test_another_size(folders):
    model = folders["resnet"][0]
    assert Preprocessing.from_text(find(model, size=64)["preprocessing"]).resize == "bicubic 84 floor"
    with pytest.raises(InputError, match="cannot take images of 32 x 32 pixels"):
        build(folders["vit"][0], (3, 32, 32), **find(folders["vit"][0], size=32))
    decoded = Preprocessing((32, 32), "bicubic 42 floor").decoded()
    with pytest.raises(InputError, match="have 16 x 16 pixels, and the model was made for 32 x 32"):
        build(model, (3, 16, 16), preprocessing=decoded.to_text())


def test_images_smaller_than_the_crop_are_padded():
    assert frame(10, 20, (16, 16), "bicubic 10 round") == (10, 20, -3, 2)
    assert frame(11, 20, (16, 16), "bicubic 11 floor") == (11, 20, -3, 2)
    stream = io.BytesIO()
    Image.new("RGB", (20, 10), "white").save(stream, "PNG")
    rows = to_array(memoryview(stream.getvalue()), (16, 16, 3), None, "bicubic 10 round")[:, 0, 0]
    assert rows.tolist() == [0] * 3 + [255] * 10 + [0] * 3


def test_the_exported_model_prepares_images_itself(folders, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from camri.export.onnx_file import write_onnx
    from tests.export.conftest import made_trained

    model = folders["resnet"][0]
    made = made_trained(model, setting("ce"), (24, 20, 3), options=find(model))
    ready = Model(made)
    file = write_onnx(ready, tmp_path / "model.onnx")
    rows = np.stack([np.asarray(picture((24, 20, 3), seed)) for seed in range(3)])
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["logits"], {"inputs": rows})[0], ready.logits(rows), atol=1e-4)


@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224", "convnext_atto"])
def test_files_are_prepared_as_timm_prepares_them(name, shape):
    timm = import_timm()
    record = Preprocessing.from_text(find(f"timm:{name}", from_scratch=True)["preprocessing"])
    config = timm.data.resolve_data_config({}, model=timm.create_model(name))
    image, stream = picture(shape), io.BytesIO()
    image.save(stream, "PNG")
    decoded = to_array(memoryview(stream.getvalue()), (*record.size, 3), None, record.resize)
    wanted = timm.data.create_transform(**config)(as_rgb(image)).numpy()
    np.testing.assert_allclose(normalised(decoded, record), wanted, atol=1e-6)


def test_timm_at_another_size_and_its_refusals():
    timm = import_timm()
    options = find("timm:vit_tiny_patch16_224", from_scratch=True, size=64)
    assert build("timm:vit_tiny_patch16_224", (3, 64, 64), **options).net.patch_embed.img_size == (64, 64)
    config = timm.data.resolve_data_config({"img_size": 96}, model=timm.create_model("resnet10t"))
    assert backbones.preprocessing_of({**config, "input_size": (3, 96, 96)}).resize == "bicubic 109 round"
    with pytest.raises(InputError, match=r"did you mean 'resnet10t\.c3_in1k'"):
        find("timm:resnet10t.c3_in1")
    with pytest.raises(InputError, match=r"weights cannot be had.*weights= \(--weights\).*\(--from-scratch\)"):
        find("timm:resnet10t")


def test_load_decodes_as_a_backbone_wants_it(tmp_path):
    photos(tmp_path / "photos")
    data = load(tmp_path / "photos", size=16, resize="bicubic 20 floor")
    file = str(tmp_path / "photos" / "train" / "a" / "1.png")
    assert np.array_equal(data.splits["train"].inputs[1].numpy(), to_array(file, (16, 16, 3), None, "bicubic 20 floor"))
    assert data.provenance["options"]["resize"] == "bicubic 20 floor"
    assert data.fingerprint != load(tmp_path / "photos", size=16).fingerprint
    with pytest.raises(InputError, match="needs a size"):
        load(tmp_path / "photos", resize="bicubic")
    with pytest.raises(InputError, match=r"resize='bicubics' is not known; did you mean 'bicubic'"):
        load(tmp_path / "photos", size=16, resize="bicubics")


def test_a_network_that_saves_memory_has_the_same_gradients():
    declare_operators()
    hf = importlib.import_module("transformers")
    config = hf.ViTConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8,
                          image_size=16, patch_size=8, num_labels=4)  # fmt: skip
    net = hf.ViTForImageClassification(config)
    trunk = Backbone(net, Preprocessing((16, 16), "none"), (3, 16, 16)).train()
    images = torch.rand(3, 3, 16, 16)

    def gradients():
        trunk.zero_grad()
        trunk(images).square().sum().backward()
        return [parameter.grad.clone() for parameter in trunk.parameters()]

    before = gradients()
    trunk.save_memory()
    assert net.is_gradient_checkpointing
    for mine, plain in zip(gradients(), before, strict=True):
        torch.testing.assert_close(mine, plain)
    Backbone(torch.nn.Flatten(), Preprocessing((4, 4), "none"), (3, 4, 4)).save_memory()  # cannot, and stays as it is
