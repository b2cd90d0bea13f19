"""A model's folder: written whole or not at all, read without unpickling anything."""

import contextlib
import hashlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors import numpy as tensors_file

from camri.errors import InputError
from camri.export import config
from camri.export.model import COUNTER, Model, check_weights, make_classifier
from camri.export.trained import Trained
from camri.files import cannot_write
from camri.models import MODELS, Classifier

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
            text = config.write(trained, hashlib.sha256(weights).hexdigest())
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
    found = config.read(text, str(path / CONFIG))
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
    trained = config.to_trained(found, weights, str(path / CONFIG))
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
        config.read(_read(path / CONFIG), str(path / CONFIG))
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
