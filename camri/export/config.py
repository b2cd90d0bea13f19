"""`config.json` of a saved model: what is in it, and what is refused."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

import pydantic

import camri
from camri.engine import Training
from camri.errors import InputError
from camri.export.trained import Trained
from camri.methods import Setting

FORMAT = "camri-model"
VERSION = 1
MAX_BYTES = 32 * 2**20  # a hundred thousand classes fit; what is larger is not ours


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)


class Input(_Strict):
    """What one input is: uint8 images (H, W, C) or float32 features (D,)."""

    kind: Literal["image", "features"]
    dtype: Literal["uint8", "float32"]
    shape: list[int]


class Scaling(_Strict):
    """The model sees (x − mean) / sd."""

    mean: list[float]
    sd: list[float]


class Config(_Strict):
    """Everything about a model but its weights."""

    format: Literal["camri-model"] = "camri-model"
    version: Literal[1] = 1
    camri: str
    classes: list[str]
    important: list[str]
    shift: list[float]
    input: Input
    preprocessing: dict[str, Any]
    standardise: Scaling | None
    setting: dict[str, Any]
    training: dict[str, Any]
    seed: int
    class_counts: list[int]
    weights_sha256: str
    sha256: str = ""  # of all the other fields


def write(trained: Trained, weights_sha256: str) -> str:
    """The text of config.json."""
    standardise = trained.standardise
    kind: Any = ("image", "uint8") if trained.is_image else ("features", "float32")
    config = Config(
        camri=camri.__version__,
        classes=list(trained.classes),
        important=[trained.classes[index] for index in trained.important],
        shift=list(trained.shift),
        input=Input(kind=kind[0], dtype=kind[1], shape=list(trained.input_shape)),
        preprocessing=dict(trained.preprocessing),
        standardise=None if standardise is None else Scaling(mean=list(standardise[0]), sd=list(standardise[1])),
        setting=trained.setting.to_json(),
        training=_portable(trained.training.to_json()),
        seed=trained.seed,
        class_counts=list(trained.class_counts),
        weights_sha256=weights_sha256,
    )
    try:
        values = config.model_dump()
        fields = (f' "{name}": {_json(value)}' for name, value in {**values, "sha256": digest(values)}.items())
        return "{\n" + ",\n".join(fields) + "\n}\n"
    except (TypeError, ValueError) as error:
        raise InputError(f"the model cannot be written as JSON ({error}); preprocessing holds plain values") from None


def digest(values: Mapping[str, Any]) -> str:
    """The sha256 of a config's fields but itself: a shift or a class name changed by hand is noticed."""
    told = {name: value for name, value in values.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _portable(training: dict[str, Any]) -> dict[str, Any]:
    """The training without the path of the file that it started from; its sha256 stays."""
    options = {name: value for name, value in training["model_options"].items() if name != "initial"}
    return {**training, "model_options": options}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read(text: bytes, where: str) -> Config:
    """The checked config; what is foreign, damaged or newer is refused by name."""
    if len(text) > MAX_BYTES:
        raise InputError(f"{where} has {len(text):,} bytes and cannot be a camri model's; choose the model's folder")
    try:
        values = json.loads(text.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{where} is damaged ({error}); copy the model's folder again") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InputError(f"{where} is not a camri model's; choose a folder that camri fit or camri.export.save wrote")
    if values.get("version") != VERSION:
        raise InputError(
            f"{where} has format version {values.get('version')!r}, and camri {camri.__version__} reads version "
            f"{VERSION}; install the camri that wrote it ({values.get('camri')!r})"
        )
    try:
        found = Config.model_validate(values)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{where} is damaged: {place} is {_short(first.get('input'))} ({first['msg']}); copy the folder again"
        ) from None
    if found.sha256 != digest(values):
        raise InputError(
            f"{where} is not the file that was saved: its sha256 does not fit what it holds; copy the model's folder "
            "again from where you trust it"
        )
    return found


def to_trained(config: Config, weights: Any, where: str) -> Trained:
    """The trained model; values that no model could have are refused."""
    try:
        index = {name: place for place, name in enumerate(config.classes)}
        scaling = config.standardise
        return Trained(
            setting=Setting.from_json(config.setting),
            training=Training.from_json(config.training),
            seed=config.seed,
            classes=tuple(config.classes),
            input_shape=tuple(config.input.shape),
            is_image=config.input.kind == "image",
            class_counts=tuple(config.class_counts),
            important=tuple(index[name] for name in config.important),
            shift=tuple(config.shift),
            weights=weights,
            preprocessing=config.preprocessing,
            standardise=None if scaling is None else (tuple(scaling.mean), tuple(scaling.sd)),
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{where} is damaged ({type(error).__name__}: {error}); copy the folder again") from None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
