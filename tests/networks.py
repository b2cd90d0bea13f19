"""Networks of timm and transformers to test with, and images for them.

Where torchvision's wheel does not fit torch, its operators are declared before it is imported.
"""

import contextlib
import importlib
import importlib.util
import itertools

import numpy as np
import pytest
import torch
from PIL import Image

_LIBRARIES = []  # a library that is collected takes its operators with it


def declare_operators():
    """Declare what torchvision asks for when it is imported, where it is installed; transformers imports it too."""
    if importlib.util.find_spec("torchvision") is None or _LIBRARIES:
        return
    _LIBRARIES.append(torch.library.Library("torchvision", "DEF"))
    with contextlib.suppress(RuntimeError):  # declared by a torchvision that fits
        for operator in ("nms", "qnms"):
            _LIBRARIES[0].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def import_timm():
    """timm; the test is skipped where it cannot be imported."""
    declare_operators()
    try:
        return importlib.import_module("timm")
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"timm cannot be imported: {error}")


def tiny_resnet(num_labels=3):
    """A ResNet of transformers with two convolutions and 16 features, and random weights."""
    declare_operators()
    hf = importlib.import_module("transformers")
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=num_labels
    )
    torch.manual_seed(0)
    return hf.ResNetForImageClassification(config).eval()


def image_processor(name, **options):
    """The image processor of that name that needs no torchvision."""
    hf = importlib.import_module("transformers")
    kind = getattr(hf, f"{name}ImageProcessorPil", None) or getattr(hf, f"{name}ImageProcessor")
    return kind(**options)


def save_tiny(folder):
    """Write a tiny pretrained network, 32 x 32 pixels from a shorter side of 42, as `save_pretrained` does."""
    tiny_resnet().save_pretrained(folder)
    image_processor("ConvNext", size={"shortest_edge": 32}, crop_pct=0.75).save_pretrained(folder)
    return f"hf:{folder}"


def picture(shape, seed=0):
    """A smooth image with an edge, as photographs are, of mode L, RGB or RGBA."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (5, 4, shape[2]), dtype=np.uint8)
    planes = [Image.fromarray(coarse[..., c]).resize(shape[1::-1], Image.Resampling.BICUBIC) for c in range(shape[2])]
    pixels = np.stack([np.asarray(plane) for plane in planes], axis=-1).copy()
    pixels[: shape[0] // 3, : shape[1] // 2, :3] = 250
    return Image.fromarray(pixels[..., 0] if shape[2] == 1 else pixels)


def photos(folder, num=2, shape=(40, 30, 3)):
    """A folder of images of two classes, one of them reddish; all are different."""
    for place, (part, label) in enumerate(itertools.product(("train", "test"), ("a", "b"))):
        (folder / part / label).mkdir(parents=True)
        for number in range(num):
            pixels = np.array(picture(shape, place * num + number))
            if label == "b":
                pixels[..., 1:] //= 2
            Image.fromarray(pixels).save(folder / part / label / f"{number}.png")
    return folder
