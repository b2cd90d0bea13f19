"""Networks of timm and transformers: their weights, their own preprocessing, and their features.

`timm:NAME[.TAG]` is a model of timm, `hf:ORG/NAME` or `hf:FOLDER` an image classifier of transformers. Weights are
safetensors, from the hub or its cache or from a file; nothing is unpickled, and no code from a model's folder is run.

An image file is resized and cropped by Pillow, exactly as the model's own transform does it. Arrays of images of
another size are resized inside the network, by two matrix products with 8-bit rounding in between, columns first, as in
Pillow: some pixels differ by one of 255 levels, few by two. (Pillow 13 takes rows first for some oblong images.)
"""

import contextlib
import functools
import hashlib
import importlib
import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from camri.errors import InputError, closest
from camri.files import cache_folder, replacing

if TYPE_CHECKING:
    from torch import nn

PREFIXES = ("timm:", "hf:")
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and sd
FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # in the order of Pillow's numbers
UNDERSTOOD = ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb")
WAYS_OUT = (
    "give a safetensors file with weights= (--weights), or start from random weights with from_scratch=True "
    "(--from-scratch)"
)
IMPORT_ERRORS = (ImportError, RuntimeError)  # RuntimeError: a torchvision made for another torch


def is_backbone(name: object) -> bool:
    """Whether the name has the form of a timm or transformers model; the model need not exist."""
    return isinstance(name, str) and any(name.startswith(prefix) and name != prefix for prefix in PREFIXES)


@dataclass(frozen=True)
class Preprocessing:
    """How a backbone prepares an image.

    size: (height, width) of its input; None accepts any size. resize: an interpolation, which stretches an image to
    `size`; or an interpolation, the shorter side (or HxW) to scale to, and how the centre of the crop is rounded, such
    as "bicubic 201 round"; or "none" for images that were decoded this way. mean, sd: of each colour, for pixels in
    [0, 1].
    """

    size: tuple[int, int] | None = None
    resize: str = "bicubic"
    mean: tuple[float, ...] = IMAGENET[0]
    sd: tuple[float, ...] = IMAGENET[1]

    def decoded(self) -> "Preprocessing":
        """The rest of the preprocessing, for images that were decoded with `size` and `resize`."""
        return replace(self, resize="none")

    def to_text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_text(text: str) -> "Preprocessing":
        """The record that `to_text` wrote.

        >>> Preprocessing.from_text(Preprocessing((96, 96)).to_text()) == Preprocessing((96, 96))
        True
        """
        values: dict[str, Any] = json.loads(text)
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return Preprocessing(**values)

    def at(self, size: tuple[int, int] | None) -> "Preprocessing":
        """The same for another input size; it crops the same share of the image.

        >>> Preprocessing((224, 224), "bicubic 256 floor").at((112, 112)).resize
        'bicubic 128 floor'
        """
        if size is None or size == self.size or self.size is None:
            return self if size is None else replace(self, size=size)
        name, *rest = self.resize.split()
        if rest:
            sides = [int(side) for side in rest[0].split("x")]
            before = self.size if len(sides) == 2 else (min(self.size),)
            after = size if len(sides) == 2 else (min(size),)
            scaled = [math.floor(new * side / old) for side, old, new in zip(sides, before, after, strict=True)]
            rest[0] = "x".join(map(str, scaled))
        return replace(self, size=size, resize=" ".join([name, *rest]))


def frame(height: int, width: int, size: tuple[int, int], resize: str) -> tuple[int, int, int, int]:
    """The (height, width) that an image is scaled to, and the (top, left) corner of the crop of `size`.

    A negative corner is outside the image, where pixels are 0.

    >>> frame(300, 200, (176, 176), "bicubic 201 round")
    (301, 201, 62, 12)
    >>> frame(300, 200, (96, 96), "bilinear")
    (96, 96, 0, 0)
    """
    name, *rest = resize.split()
    resampling(name)
    if not rest:
        return *size, 0, 0
    sides, rounding = [int(side) for side in rest[0].split("x")], rest[1]
    if len(sides) == 2:
        scaled = (sides[0], sides[1])
    elif width <= height:
        scaled = (int(sides[0] * height / width), sides[0])
    else:
        scaled = (sides[0], int(sides[0] * width / height))
    corner = []
    for whole, part in zip(scaled, size, strict=True):
        if rounding == "floor":  # transformers
            corner.append((whole - part) // 2)
        else:  # torchvision, which pads first where the image is smaller
            corner.append(-((part - whole) // 2) if part > whole else round((whole - part) / 2))
    return *scaled, corner[0], corner[1]


def resampling(resize: str) -> int:
    """Pillow's number of the interpolation.

    >>> resampling("bicubic 201 round")
    3
    """
    name = resize.split()[0]
    if name not in _KERNELS:
        raise InputError(f"resize={resize!r} is not known; {closest(name, _KERNELS)}", argument="resize")
    return FILTERS.index(name)


def _cubic(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    near, far = (1.5 * x - 2.5) * x * x + 1, -0.5 * (((x - 5) * x + 8) * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


_KERNELS: dict[str, tuple[float, Any]] = {  # support, weight at a distance; as Pillow defines them
    "box": (0.5, lambda x: ((x > -0.5) & (x <= 0.5)).astype(float)),
    "bilinear": (1.0, lambda x: np.maximum(0.0, 1 - np.abs(x))),
    "hamming": (1.0, lambda x: np.where(np.abs(x) < 1, np.sinc(x) * (0.54 + 0.46 * np.cos(np.pi * x)), 0.0)),
    "bicubic": (2.0, _cubic),
    "lanczos": (3.0, lambda x: np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)),
}


def scaling_matrix(num_in: int, num_scaled: int, first: int, num_out: int, resize: str) -> np.ndarray:
    """Matrix (num_out, num_in) that scales a row of pixels to `num_scaled` and crops `num_out` of them from `first` on.

    The weights are Pillow's, which widens the filter when it makes images smaller.

    >>> scaling_matrix(4, 2, 0, 2, "box")
    array([[0.5, 0.5, 0. , 0. ],
           [0. , 0. , 0.5, 0.5]])
    """
    matrix = np.zeros((num_out, num_in))
    name, scale = resize.split()[0], num_in / num_scaled
    for row in range(max(0, -first), min(num_out, num_scaled - first)):
        centre = (first + row + 0.5) * scale
        support, kernel = _KERNELS[name]
        wide = max(scale, 1.0)
        start, end = max(0, int(centre - support * wide + 0.5)), min(num_in, int(centre + support * wide + 0.5))
        weights = kernel((np.arange(start, end) - centre + 0.5) / wide)
        matrix[row, start:end] = weights / weights.sum()
    return matrix


def find(
    model: str,
    *,
    weights: str | os.PathLike[str] | None = None,
    from_scratch: bool = False,
    size: int | tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Find a pretrained backbone; return the `model_options` of a training that starts from it.

    weights: a safetensors file with the network's own names instead of the published weights. from_scratch: random
    weights. size: of the network's input in pixels, by default the model's own. Published weights are written to the
    cache, so that workers and resumed trainings start from the same values.
    """
    if weights is not None and from_scratch:
        raise InputError(f"give weights={weights} or from_scratch=True, not both", argument="weights")
    sides = (size, size) if isinstance(size, int) else size
    options: dict[str, Any] = {}
    if model.startswith("hf:"):
        options["config"], own = _read_folder(model, from_scratch or weights is not None)
        record = own.at(sides)
    else:
        config = _timm_config(model)
        record = preprocessing_of(config if sides is None else {**config, "input_size": (3, *sides)})
    options["preprocessing"] = record.to_text()
    if weights is not None:
        options |= read_weights(weights)
    elif not from_scratch:
        options |= read_weights(_fetch(model, options, record))
    return options


def read_weights(weights: str | os.PathLike[str]) -> dict[str, Any]:
    """The `model_options` of a training that starts from a safetensors file."""
    path = Path(weights).absolute()
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        message = f"weights={weights} cannot be read ({error.strerror}); give a safetensors file"
        raise InputError(message, argument="weights") from None
    return {"initial": str(path), "initial_sha256": digest}


def weights_from(options: Mapping[str, Any]) -> str:
    """Origin of the weights of a backbone with these `model_options`, for a model's card.

    >>> weights_from({})
    'random weights'
    """
    if "initial" not in options:
        return "random weights"
    path = Path(options["initial"])
    where = "the published weights" if path.parent == published_folder().absolute() else f"the weights in {path.name}"
    return f"{where} (sha256 {options['initial_sha256'][:16]}…)"


def is_frozen(frozen: bool | str, from_scratch: bool, device: str) -> bool:
    """Whether a backbone is kept fixed: as asked, or with "auto" if it is pretrained and there is no GPU.

    >>> is_frozen("auto", False, "cpu"), is_frozen("auto", False, "cuda"), is_frozen(True, False, "cuda")
    (True, False, True)
    """
    if frozen not in (True, False, "auto"):
        raise InputError(f"frozen={frozen!r} is not allowed; choices: auto, True, False", argument="frozen")
    if frozen is True and from_scratch:
        raise InputError("frozen=True keeps pretrained weights, and from_scratch=True has none; give one", "frozen")
    return frozen is True or (frozen == "auto" and not from_scratch and device == "cpu")


def at_hand() -> str | None:
    """The timm network with the smallest weight file in the hub's cache; None without one, or without timm."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except IMPORT_ERRORS:
        return None
    files = Path(HF_HUB_CACHE).glob("models--timm--*/snapshots/*/model.safetensors")
    for _, folder in sorted((file.stat().st_size, file.parents[2].name) for file in files):
        name = f"timm:{folder.removeprefix('models--timm--')}"
        with contextlib.suppress(InputError):  # unknown to this timm, or with unsupported preprocessing
            preprocessing_of(_timm_config(name))
            return name
    return None


def is_transformer(model: str, options: Mapping[str, Any]) -> bool:
    """Whether a network is a vision transformer, by its name or its configuration.

    >>> is_transformer("timm:vit_tiny_patch16_224", {}), is_transformer("timm:resnet10t", {})
    (True, False)
    """
    name = json.loads(options["config"])["model_type"] if "config" in options else model.partition(":")[2]
    return any(part in name for part in ("vit", "beit", "eva", "swin", "dino"))


def decoding(found: Mapping[str, Any], data_options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Model options, and options of `camri.data.load`, with which images are decoded as the backbone needs them.

    Data options that have a `resize` of their own are kept; the network then resizes the images.
    """
    record = Preprocessing.from_text(found["preprocessing"])
    if record.size is None or "resize" in data_options:
        return dict(found), dict(data_options)
    decoded = {**data_options, "size": record.size, "resize": record.resize}
    return {**found, "preprocessing": record.decoded().to_text()}, decoded


def make_net(model: str, options: Mapping[str, Any]) -> "nn.Module":
    """Make the network without its classifier, initialised from torch's global generator.

    options: `config` of a transformers model, as `find` returns it; the others are passed to timm's create_model.
    """
    if model.startswith("hf:"):
        text = options.get("config") or _read_folder(model, without_weights=True)[0]
        return _make_hf(model, json.loads(text))
    name, rest = model.removeprefix("timm:"), dict(options)
    text = rest.pop("preprocessing", None)
    record = None if text is None else Preprocessing.from_text(text)
    config = _timm_config(model)
    if config.get("fixed_input_size") and record is not None and record.size not in (None, config["input_size"][1:]):
        rest.setdefault("img_size", record.size)
    return _package(model).create_model(name, pretrained=False, num_classes=0, **rest)


def preprocessing_of(config: Mapping[str, Any]) -> Preprocessing:
    """The preprocessing that timm's configuration of pretrained weights asks for.

    >>> preprocessing_of({"input_size": (3, 176, 176), "crop_pct": 0.875, "interpolation": "bicubic"}).resize
    'bicubic 201 round'
    """
    if "input_size" not in config:
        return Preprocessing()
    size = tuple(config["input_size"][1:])
    share = config.get("crop_pct") or 0.875
    scaled = [math.floor(side / share) for side in size]
    name, mode = config.get("interpolation") or "bilinear", config.get("crop_mode") or "center"
    if mode == "border" or (mode == "center" and size[0] != size[1]):
        what = f"crop_mode={mode!r} with input_size={config['input_size']}"
        raise InputError(f"the preprocessing of this model, {what}, is not supported; choose another model", "model")
    sides = "x".join(map(str, scaled)) if mode == "squash" else scaled[0]
    mean, sd = config.get("mean") or IMAGENET[0], config.get("std") or IMAGENET[1]
    return Preprocessing(size, f"{name} {sides} round", tuple(mean), tuple(sd))


def _package(model: str) -> Any:
    """Import timm or transformers, by the prefix of the model's name."""
    name = "transformers" if model.startswith("hf:") else "timm"
    try:
        return importlib.import_module(name)
    except IMPORT_ERRORS as error:
        message = f"model={model!r} needs {name}, which cannot be imported ({error}): pip install {name}"
        raise InputError(message, argument="model") from None


def _timm_config(model: str) -> dict[str, Any]:
    """timm's configuration of a model's pretrained weights; empty if it has none."""
    timm, name = _package(model), model.removeprefix("timm:")
    known = timm.list_models()
    if name.partition(".")[0] not in known:
        raise InputError(f"model={model!r} is not one of timm's; {closest(name, known)}", argument="model")
    if not hasattr(timm, "get_pretrained_cfg"):
        return {}
    try:
        config = timm.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError:  # of a tag that the model does not have
        tagged = timm.list_models(f"{name.partition('.')[0]}.*", pretrained=True)
        raise InputError(f"model={model!r} is not one of timm's; {closest(name, tagged)}", argument="model") from None
    return {} if config is None else config.to_dict()


def _read_folder(model: str, without_weights: bool) -> tuple[str, Preprocessing]:
    """The config.json of a transformers model, without dropout, and its preprocessing."""
    transformers, name = _package(model), model.removeprefix("hf:")

    def read(local_only: bool) -> Any:
        return transformers.AutoConfig.from_pretrained(name, trust_remote_code=False, local_files_only=local_only)

    config = _from_hub(model, "its config.json", "give the folder of a downloaded model: hf:FOLDER", read)
    if type(config) not in transformers.AutoModelForImageClassification._model_mapping:
        raise InputError(f"model={model!r} is a {config.model_type}, which is no image classifier", argument="model")
    for field, value in config.to_dict().items():
        # Dropout draws from torch's global generator: a trial would depend on the trials beside it.
        if ("dropout" in field or "drop_path" in field) and isinstance(value, float):
            setattr(config, field, 0.0)
    text = json.dumps({**json.loads(config.to_json_string(use_diff=False)), "model_type": config.model_type})
    # Resize by Pillow: torchvision rounds differently and is not always installed. transformers 4 has another option.
    is_new = int(transformers.__version__.split(".")[0]) >= 5
    how: dict[str, Any] = {"backend": "pil"} if is_new else {"use_fast": False}
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(name, trust_remote_code=False, **how)
    except (OSError, ValueError) as error:
        if without_weights:
            side = getattr(config, "image_size", None)
            return text, Preprocessing((side, side) if isinstance(side, int) else None, "bilinear")
        message = f"model={model!r} has no preprocessor_config.json, which says how images are prepared"
        remedy = "add the one of the model that it was trained from"
        raise InputError(f"{message} ({_first(error)}); {remedy}", argument="model") from None
    return text, _of_processor(processor, model)


def _of_processor(processor: Any, model: str) -> Preprocessing:
    """The preprocessing of a transformers image processor; unsupported steps are refused by name."""

    def refuse(what: str) -> InputError:
        return InputError(f"model={model!r} prepares images by {what}, which is not supported", argument="model")

    flags = {name for name in dir(processor) if name.startswith("do_") and getattr(processor, name) is True}
    if unknown := sorted(flags - set(UNDERSTOOD)):
        raise refuse(unknown[0])
    factor = getattr(processor, "rescale_factor", 1 / 255)
    if "do_rescale" not in flags or abs(factor * 255 - 1) > 1e-6 or getattr(processor, "rescale_offset", None):
        raise refuse(f"rescale_factor={factor}")
    size, crop = dict(processor.size or {}), dict(getattr(processor, "crop_size", None) or {})
    size = {name: value for name, value in size.items() if value}
    short, share = size.get("shortest_edge"), getattr(processor, "crop_pct", None)
    interpolation = FILTERS[int(getattr(processor, "resample", 2))]
    if "do_resize" not in flags:
        raise refuse("do_resize=False")
    if short is not None and share is not None:  # ConvNeXt: cropped below 384 pixels, stretched from there on
        final = (short, short)
        resize = f"{interpolation} {int(short / share)} floor" if short < 384 else interpolation
    elif set(size) == {"shortest_edge"} and "do_center_crop" in flags:
        final, resize = (crop["height"], crop["width"]), f"{interpolation} {short} floor"
    elif set(size) == {"height", "width"}:
        final, resize = (size["height"], size["width"]), interpolation
        if "do_center_crop" in flags:
            final, resize = (crop["height"], crop["width"]), f"{interpolation} {size['height']}x{size['width']} floor"
    else:
        raise refuse(f"size={size}")
    mean, sd = processor.image_mean, processor.image_std
    if "do_normalize" not in flags:
        mean, sd = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return Preprocessing(final, resize, tuple(map(float, mean)), tuple(map(float, sd)))


def _make_hf(model: str, config: Mapping[str, Any]) -> "nn.Module":
    from torch import nn

    transformers = _package(model)
    made = transformers.AutoConfig.for_model(**config)
    net = transformers.AutoModelForImageClassification.from_config(made)
    last = getattr(net, "classifier", None)
    if isinstance(last, nn.Sequential) and isinstance(last[-1], nn.Linear):
        last[-1] = nn.Identity()
    elif isinstance(last, (nn.Linear, nn.Identity)):
        net.classifier = nn.Identity()
    else:
        raise InputError(f"model={model!r}: {type(net).__name__} has no linear classifier to replace", argument="model")
    return net


def published_folder() -> Path:
    """The folder of the cache with published weights."""
    return cache_folder() / "backbones"


def _fetch(model: str, options: Mapping[str, Any], record: Preprocessing) -> Path:
    """A safetensors file in the cache with the published weights of the network, without its classifier."""
    from safetensors.torch import save

    net = _load_hf(model, options) if model.startswith("hf:") else _load_timm(model, record)
    state = {name: value.float().contiguous() for name, value in net.state_dict().items() if value.is_floating_point()}
    data = save(state)
    path = published_folder() / f"{hashlib.sha256(data).hexdigest()}.safetensors"
    if not path.exists():
        with replacing(path, "; set CAMRI_CACHE to a folder with space") as part:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(data)
    return path


def _load_timm(model: str, record: Preprocessing) -> "nn.Module":
    timm, name, config = _package(model), model.removeprefix("timm:"), _timm_config(model)

    def download(local_only: bool) -> str:
        if not config.get("hf_hub_id"):
            raise OSError("they are not published as safetensors")
        get = importlib.import_module("huggingface_hub").hf_hub_download
        file = config.get("hf_hub_filename") or "model.safetensors"
        return get(config["hf_hub_id"], file, local_files_only=local_only)

    file = _from_hub(model, "its pretrained weights", WAYS_OUT, download)
    source = {"file": file, "url": "", "hf_hub_id": None, "custom_load": False}
    rest = {"img_size": record.size} if config.get("fixed_input_size") else {}
    return timm.create_model(name, pretrained=True, num_classes=0, pretrained_cfg_overlay=source, **rest)


def _load_hf(model: str, options: Mapping[str, Any]) -> "nn.Module":
    transformers, name = _package(model), model.removeprefix("hf:")
    net = _make_hf(model, json.loads(options["config"]))
    before = transformers.logging.get_verbosity()

    def read(local_only: bool) -> Any:
        return transformers.AutoModelForImageClassification.from_pretrained(
            name, trust_remote_code=False, use_safetensors=True, output_loading_info=True, local_files_only=local_only
        )

    transformers.logging.set_verbosity_error()  # it warns about the classifier's weights, which are not used
    try:
        loaded, info = _from_hub(model, "its pretrained weights", WAYS_OUT, read)
    finally:
        transformers.logging.set_verbosity(before)
    if missing := sorted(key for key in info["missing_keys"] if not key.startswith("classifier")):
        raise InputError(f"model={model!r}: its weights have no {missing[0]!r} ({len(missing)} missing)", "model")
    wanted = net.state_dict()
    net.load_state_dict({key: value for key, value in loaded.state_dict().items() if key in wanted})
    return net


def _from_hub(model: str, what: str, ways: str, read: Callable[[bool], Any]) -> Any:
    """Call `read(local_only)` for the hub's cache, then for the hub; InputError if neither has it."""
    log = logging.getLogger("huggingface_hub")  # it logs every retry
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        try:
            return read(True)
        except Exception:  # huggingface_hub raises a dozen types
            return read(False)
    except Exception as error:
        message = f"model={model!r}: {what} cannot be had ({_first(error)}); {ways}"
        raise InputError(message, argument="model") from None
    finally:
        log.setLevel(level)


def _first(error: Exception) -> str:
    """The first sentence of an error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].partition(". ")[0].rstrip(".")[:160]


@functools.cache
def axes(height: int, width: int, size: tuple[int, int], resize: str) -> tuple[np.ndarray, np.ndarray] | None:
    """The matrices (size[0], height) and (size[1], width) of a preprocessing; None if nothing is resized."""
    if resize == "none" and (height, width) != size:
        raise InputError(f"the images have {height} x {width} pixels, and the model was made for {size[0]} x {size[1]}")
    if resize == "none" or ((height, width) == size and len(resize.split()) == 1):
        return None
    scaled_height, scaled_width, top, left = frame(height, width, size, resize)
    rows = scaling_matrix(height, scaled_height, top, size[0], resize)
    columns = scaling_matrix(width, scaled_width, left, size[1], resize)
    return rows.astype(np.float32), columns.astype(np.float32)
