"""`config.json` of a saved model: what is in it, and what is refused.

A model's folder: written whole or not at all, read without unpickling anything.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
import torch
from safetensors import SafetensorError
from safetensors import numpy as tensors_file

import camri
from camri.engine import Training
from camri.errors import InputError
from camri.export.model import COUNTER, Model, Trained, check_weights, make_classifier
from camri.files import cannot_write
from camri.methods import Setting
from camri.models import MODELS, Classifier

FORMAT = "camri-model"
CONFIG_VERSION = 1
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


def write_config(trained: Trained, weights_sha256: str) -> str:
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
        fields = (f' "{name}": {_json(value)}' for name, value in {**values, "sha256": config_digest(values)}.items())
        return "{\n" + ",\n".join(fields) + "\n}\n"
    except (TypeError, ValueError) as error:
        raise InputError(f"the model cannot be written as JSON ({error}); preprocessing holds plain values") from None


def config_digest(values: Mapping[str, Any]) -> str:
    """The sha256 of a config's fields but itself: a shift or a class name changed by hand is noticed."""
    told = {name: value for name, value in values.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _portable(training: dict[str, Any]) -> dict[str, Any]:
    """The training without the path of the file that it started from; its sha256 stays."""
    options = {name: value for name, value in training["model_options"].items() if name != "initial"}
    return {**training, "model_options": options}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read_config(text: bytes, where: str) -> Config:
    """The checked config; what is foreign, damaged or newer is refused by name."""
    if len(text) > MAX_BYTES:
        raise InputError(f"{where} has {len(text):,} bytes and cannot be a camri model's; choose the model's folder")
    try:
        values = json.loads(text.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{where} is damaged ({error}); copy the model's folder again") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InputError(f"{where} is not a camri model's; choose a folder that camri fit or camri.export.save wrote")
    if values.get("version") != CONFIG_VERSION:
        raise InputError(
            f"{where} has format version {values.get('version')!r}, and camri {camri.__version__} reads version "
            f"{CONFIG_VERSION}; install the camri that wrote it ({values.get('camri')!r})"
        )
    try:
        found = Config.model_validate(values)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{where} is damaged: {place} is {_short(first.get('input'))} ({first['msg']}); copy the folder again"
        ) from None
    if found.sha256 != config_digest(values):
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


WEIGHTS, CONFIG, CARD, ONNX = "model.safetensors", "config.json", "README.md", "model.onnx"
FILES = (WEIGHTS, CONFIG, CARD, ONNX)
CROPPED = """
## Cropped images

The training images were cropped to the box of the object, so give the model crops. `camri predict` takes files whole
and says so; it crops the rows of a table with the columns roi_x1, roi_y1, roi_x2, roi_y2, width and height.
"""
CLUTTER = ("thumbs.db", "desktop.ini")
REMEDY = "choose a folder that camri fit or camri.export.save wrote"


def save(trained: Trained, folder: str | Path, *, card: str, onnx: bool = True) -> Path:
    """The folder with model.safetensors, config.json, README.md (the card) and, with the onnx extra, model.onnx.

    The card of a model that was trained on cropped images is ended by a word on that.

    It is written whole or not at all. A model that stands there is replaced; anything else is left and refused.
    """
    path = Path(folder)
    _refuse_foreign(path)
    model = Model.of(trained)  # it must load before it is written
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _building(path) as part:
            weights = tensors_file.save(_plain(trained))
            (part / WEIGHTS).write_bytes(weights)
            text = write_config(trained, hashlib.sha256(weights).hexdigest())
            (part / CONFIG).write_text(text, encoding="utf-8")
            (part / CARD).write_text(card + CROPPED if trained.is_cropped else card, encoding="utf-8")
            if onnx:
                _add_onnx(model, part / ONNX)
            _move(part, path)
    except OSError as error:
        raise cannot_write(path, error, "; choose another folder") from None
    return path


def load(folder: str | Path) -> Model:
    """The model in a folder that `save` or `camri fit` wrote; damaged, tampered or foreign ones are refused by name.

    Nothing is unpickled: weights are safetensors, everything else is JSON.
    """
    path = Path(folder)
    if not path.is_dir():
        missing = "is a file" if path.exists() else "does not exist"
        raise InputError(f"{path} {missing}; give a model's folder, with {CONFIG} and {WEIGHTS} in it")
    text = _read(path / CONFIG)
    found = read_config(text, str(path / CONFIG))
    if extra := _extras(path):
        raise InputError(f"{path} holds {extra[0]!r}, which is no part of a model; move it away")
    data = _read(path / WEIGHTS)
    if hashlib.sha256(data).hexdigest() != found.weights_sha256:
        raise InputError(
            f"{path / WEIGHTS} is not the file that was saved: its sha256 differs from the one in {CONFIG}; copy the "
            "model's folder again from where you trust it"
        )
    try:
        weights = tensors_file.load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{path / WEIGHTS} is damaged ({error}); copy the model's folder again") from None
    trained = to_trained(found, weights, str(path / CONFIG))
    for name, value in weights.items():
        if value.dtype != np.float32:
            raise InputError(f"{path / WEIGHTS}: tensor {name!r} is {value.dtype}, and weights are float32")
    if trained.training.model in MODELS:  # timm's cannot be built without memory
        with torch.device("meta"):  # no memory yet: a config may ask for a model of any size
            check_weights(weights, _unfilled(trained, str(path / CONFIG)), str(path / WEIGHTS))
    return Model.of(trained)


def _unfilled(trained: Trained, where: str) -> Classifier:
    """The classifier that a config asks for; model options of a kind that it cannot have are refused."""
    try:
        return make_classifier(trained)
    except TypeError as error:
        raise InputError(f"{where} is damaged ({error}); copy the model's folder again") from None


def _plain(trained: Trained) -> dict[str, np.ndarray]:
    """The weights as safetensors takes them: row-major float32, without batch norm's counters."""
    return {
        name: np.ascontiguousarray(value, dtype=np.float32)
        for name, value in trained.weights.items()
        if not name.endswith(COUNTER)
    }


def _add_onnx(model: Model, file: Path) -> None:
    """Writes model.onnx; a model is not lost where that cannot be done, and a warning says why."""
    from camri.export.onnx_file import is_installed, write_onnx

    if not is_installed():
        return
    try:
        write_onnx(model, file)
    except Exception as error:
        file.unlink(missing_ok=True)
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        warnings.warn(f"{ONNX} was not written: {reason[0]}", stacklevel=3)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        inner = file.parent / "model"
        remedy = f"give {inner}" if (inner / CONFIG).is_file() else REMEDY  # the folder of a whole fit
        raise InputError(f"{file.parent} has no {file.name}, so it is not a camri model's folder; {remedy}") from None
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}); {REMEDY}") from None


def _extras(path: Path) -> list[str]:
    """Names in a folder that are no part of a model; hidden ones and the clutter of file managers do not count."""
    names = sorted(entry.name for entry in path.iterdir())
    return [name for name in names if name not in FILES and not name.startswith(".") and name.lower() not in CLUTTER]


def _refuse_foreign(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"{path} is a file; choose a new folder for the model")
    if extra := _extras(path):
        raise InputError(f"{path} holds {extra[0]!r}, which is no part of a model; choose a new folder")
    if (path / CONFIG).exists():
        read_config(_read(path / CONFIG), str(path / CONFIG))
    elif any(path.iterdir()):
        raise InputError(f"{path} is not empty and has no {CONFIG}; choose a new folder for the model")


@contextlib.contextmanager
def _building(path: Path) -> Iterator[Path]:
    """A folder beside the path that is gone afterwards, unless it was moved."""
    part = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    try:
        part.chmod(0o777 & ~_umask())
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _move(part: Path, path: Path) -> None:
    """The new folder in the place of the old one, which stands until the new one can take its place."""
    for file in part.iterdir():
        with open(file, "rb+") as stream:
            os.fsync(stream.fileno())
    if not path.exists():
        os.rename(part, path)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent))
    os.rename(path, aside / "model")
    try:
        os.rename(part, path)
    except OSError:
        os.rename(aside / "model", path)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
