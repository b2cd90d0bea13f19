"""Save a model to a folder, and load it without unpickling anything."""

import contextlib
import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
import torch
from safetensors import SafetensorError
from safetensors import numpy as tensors_file

import camri
from camri.decision.rules import DecisionRule, rule_from_json
from camri.engine import Training
from camri.errors import InputError
from camri.export.model import Model, Trained, check_weights, make_classifier
from camri.files import PART, cannot_write, checksum, refuse_special, replacing
from camri.methods import Setting
from camri.models import MODELS, without_counters
from camri.text import markdown, quoted

FORMAT = "camri-model"
CONFIG_VERSION = 2
MAX_BYTES = 32 * 2**20  # of config.json or a safetensors header: enough for 100,000 classes
WEIGHTS, CONFIG, CARD, ONNX = "model.safetensors", "config.json", "README.md", "model.onnx"
CROPPED = """
## Cropped images

The training images were cropped to the box of the object, so give the model crops. `camri predict` takes files whole
and says so; it crops the rows of a table with the columns roi_x1, roi_y1, roi_x2, roi_y2, width and height.
"""
CLUTTER = ("thumbs.db", "desktop.ini")
REMEDY = "choose a folder that camri fit or camri.export.save wrote"
AGAIN = "copy the model's folder again"
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)


class Input(_Strict):
    """Kind and shape of one input: a uint8 image (H, W, C) or float32 features (D,)."""

    kind: Literal["image", "features"]
    dtype: Literal["uint8", "float32"]
    shape: list[int]


class Scaling(_Strict):
    """Standardisation of the inputs: (x − mean) / sd."""

    mean: list[float]
    sd: list[float]


class Categories(_Strict):
    """How a column of texts becomes numbers: one for each category, and one for a missing text if `flag`."""

    categories: list[str]
    flag: bool


class Filled(_Strict):
    """How a column of numbers is filled where one is missing; with `flag` another column says so."""

    fill: pydantic.FiniteFloat
    flag: bool


class Preprocessing(pydantic.BaseModel):
    """How a file becomes an input, as far as `camri predict` reads it; others may note more."""

    model_config = pydantic.ConfigDict(extra="allow", strict=True)
    resize: str = ""
    path_column: str | None = None
    label_column: str | None = None
    feature_columns: list[str] = []
    encoding: dict[str, Categories | Filled] = {}


class StoredRule(_Strict):
    """A decision rule: {class name: constant added to its logit, or probability it must exceed}."""

    rule: Literal["shift", "threshold"]
    values: dict[str, float]


class Config(_Strict):
    """Everything about a model except its weights."""

    format: Literal["camri-model"] = "camri-model"
    version: Literal[2] = 2
    camri: str
    classes: list[str]
    important: list[str]
    rule: StoredRule | None
    input: Input
    preprocessing: dict[str, Any]
    standardise: Scaling | None
    setting: dict[str, Any]
    training: dict[str, Any]
    seed: int
    class_counts: list[int]
    weights_sha256: str
    checksum: int | None = None  # of all other values; to edit the file, remove it


def write_config(trained: Trained, weights_sha256: str) -> str:
    """The text of config.json."""
    standardise = trained.standardise
    kind: Any = ("image", "uint8") if trained.is_image else ("features", "float32")
    training = trained.training.to_json()
    training["model_options"].pop("initial", None)  # the path of the initial weights; their sha256 stays
    config = Config(
        camri=camri.__version__,
        classes=list(trained.classes),
        important=[trained.classes[index] for index in trained.important],
        rule=None if trained.rule is None else StoredRule(**trained.rule.to_json(trained.classes)),
        input=Input(kind=kind[0], dtype=kind[1], shape=list(trained.input_shape)),
        preprocessing=dict(trained.preprocessing),
        standardise=None if standardise is None else Scaling(mean=list(standardise[0]), sd=list(standardise[1])),
        setting=trained.setting.to_json(),
        training=training,
        seed=trained.seed,
        class_counts=list(trained.class_counts),
        weights_sha256=weights_sha256,
    )
    try:
        values = json.loads(json.dumps(config.model_dump(exclude={"checksum"}), allow_nan=False))
        values["checksum"] = _checksum(values)
        fields = (
            f' "{name}": {json.dumps(value, ensure_ascii=False, allow_nan=False)}' for name, value in values.items()
        )
        return "{\n" + ",\n".join(fields) + "\n}\n"
    except (TypeError, ValueError) as error:
        raise InputError(f"the model cannot be written as JSON ({error}); preprocessing holds plain values") from None


def _short(text: object, most: int = 200) -> str:
    """The text on one line, of which the beginning tells enough."""
    shown = " ".join(str(text).split())
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _checksum(values: Mapping[str, Any]) -> int:
    """Checksum of a config's values, independent of the layout of the text."""
    return checksum(json.dumps(values, sort_keys=True).encode())


def read_config(text: bytes, where: str) -> Config:
    """Parse and check config.json; InputError if it is not a camri model's, damaged, or of another version."""
    try:
        values = json.loads(text.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{where} is damaged ({_short(error)}); {AGAIN}") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InputError(f"{where} is not a camri model's; {REMEDY}")
    if values.get("version") != CONFIG_VERSION:
        raise InputError(
            f"{where} has format version {values.get('version')!r}, and camri {camri.__version__} reads version "
            f"{CONFIG_VERSION}; install the camri that wrote it ({values.get('camri')!r})"
        )
    try:
        config = Config.model_validate(values)
        steps = Preprocessing.model_validate(config.preprocessing)
        if unknown := set(steps.encoding) - set(steps.feature_columns):
            raise InputError(
                f"{where} is damaged: the encoding's {_short(unknown.pop())} is no feature column; {AGAIN}"
            )
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place, value = _short(".".join(map(str, first["loc"]))), _short(repr(first.get("input")), 60)
        raise InputError(f"{where} is damaged: {place} is {value} ({first['msg']}); {AGAIN}") from None
    stored = values.pop("checksum", None)
    if stored is not None and stored != _checksum(values):
        edited = 'or, if you edited it, remove its line "checksum"'
        raise InputError(f"{where} is not as it was saved: its checksum differs; {AGAIN}, {edited}")
    return config


def _rule_of(config: Config) -> DecisionRule | None:
    rule = None if config.rule is None else rule_from_json(config.rule.model_dump(), config.classes)
    assert rule is None or isinstance(rule, DecisionRule)
    return rule


def to_trained(config: Config, weights: Mapping[str, np.ndarray], where: str) -> Trained:
    """Make the trained model from its config and weights; InputError for impossible values."""
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
            rule=_rule_of(config),
            weights=weights,
            preprocessing=config.preprocessing,
            standardise=None if scaling is None else (tuple(scaling.mean), tuple(scaling.sd)),
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{where} is damaged ({type(error).__name__}: {_short(error)}); {AGAIN}") from None


def save(trained: Trained, folder: str | Path, *, card: str, onnx: bool = True) -> Path:
    """Write model.safetensors, config.json, README.md (the card) and, with the onnx extra, model.onnx.

    All are on the disk before the first takes its place. A model in the folder is replaced; its other files stay. A
    folder with files and no model is refused. Links and HTML in the card are escaped: class names may contain some.
    """
    path = Path(folder)
    try:
        _refuse_foreign(path)
        model = Model(trained)  # check that it can be loaded
        tensors = without_counters(trained.weights)
        weights = tensors_file.save({k: np.ascontiguousarray(v, dtype=np.float32) for k, v in tensors.items()})
        cropped = CROPPED if trained.is_cropped and CROPPED not in f"{card}\n" else ""
        files = {CARD: _as_text(card + cropped, trained.classes).encode(), WEIGHTS: weights}
        files[CONFIG] = write_config(trained, hashlib.sha256(weights).hexdigest()).encode()
        if exported := _make_onnx(model) if onnx else None:
            files = {ONNX: exported, **files}
        path.mkdir(parents=True, exist_ok=True)
        # They take their places in reverse order, the config first: it says that the folder is a model's.
        with contextlib.ExitStack() as stack:
            for name, content in files.items():
                stack.enter_context(replacing(path / name, "; choose another folder")).write_bytes(content)
            if exported is None:
                (path / ONNX).unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error, "; choose another folder") from None
    return path


def load(folder: str | Path) -> Model:
    """Load the model in a folder that `save` or `camri fit` wrote; InputError if it is damaged or not a camri model.

    Nothing is unpickled: weights are safetensors, everything else is JSON. Sizes are checked before memory is used.
    """
    path = Path(folder)
    if not os.path.isdir(path):
        missing = "is a file" if os.path.exists(path) else "does not exist"
        raise InputError(f"{path} {missing}; give a model's folder, with {CONFIG} and {WEIGHTS} in it")
    file, where = path / WEIGHTS, str(path / CONFIG)
    config = read_config(_read(path / CONFIG, MAX_BYTES), where)
    trained = to_trained(config, {}, where)
    shapes = _shapes(file)
    if trained.training.model in MODELS:  # timm's models cannot be built without memory
        _check_model(trained, shapes, where, str(file))
    data = _read(file)
    if hashlib.sha256(data).hexdigest() != config.weights_sha256:
        raise InputError(
            f"{file} is not the file that was saved: its sha256 differs from the one in {CONFIG}; {AGAIN} from where "
            "you trust it"
        )
    try:
        weights = tensors_file.load(data)
    except (SafetensorError, *UNREADABLE) as error:
        raise InputError(f"{file} is damaged ({_short(error)}); {AGAIN}") from None
    if broken := [name for name, value in weights.items() if not np.isfinite(value).all()]:
        raise InputError(f"{file}: tensor {broken[0]!r} holds values that are not finite; train the model again")
    return Model(replace(trained, weights=weights))


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor, from the header of a safetensors file; all must be float32 and fill the file."""
    with _opened(file) as stream:
        length = int.from_bytes(stream.read(8), "little")
        size = os.fstat(stream.fileno()).st_size - 8 - length
        header = stream.read(length) if size >= 0 and length <= MAX_BYTES else b""
    try:
        tensors = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        shapes = {name: tuple(map(int, entry["shape"])) for name, entry in tensors.items()}
        dtypes = {name: entry["dtype"] for name, entry in tensors.items()}
    except UNREADABLE as error:
        raise InputError(f"{file} is damaged ({_short(error)}); {AGAIN}") from None
    for name, dtype in dtypes.items():
        if dtype != "F32":
            raise InputError(f"{file}: tensor {name!r} is {dtype}, and weights are F32")
    if min(map(min, filter(None, shapes.values())), default=0) < 0 or size != sum(map(math.prod, shapes.values())) * 4:
        raise InputError(f"{file} is damaged (its tensors do not fill it: {size:,} bytes); {AGAIN}")
    return shapes


def _check_model(trained: Trained, shapes: Mapping[str, tuple[int, ...]], where: str, file: str) -> None:
    """Check that weights of these shapes fit the model of the config, without allocating memory."""
    for name, value in trained.training.model_options:
        if isinstance(value, tuple) and len(value) > len(shapes):
            raise InputError(f"{where}: {name} has {len(value):,} layers, and there are {len(shapes):,} tensors")
    try:
        with torch.device("meta"):
            weights = {name: torch.empty(shape) for name, shape in shapes.items()}
            check_weights(weights, make_classifier(trained), file)
    except (TypeError, RuntimeError) as error:
        raise InputError(f"{where} is damaged ({_short(error)}); {AGAIN}") from None


def _as_text(card: str, classes: Sequence[str]) -> str:
    """Escape class names, links and HTML in Markdown, so that a class is shown as text; code blocks stay as they are.

    >>> print(_as_text("- <b> and “a|b” ![](http://c)", ["a|b"]))
    - &lt;b> and “a\\|b” ![\\](http://c)
    """
    escaped = {name: markdown(name) for name in map(quoted, classes)}
    escaped = {name: text for name, text in escaped.items() if text != name}

    def shown(part: str) -> str:
        for name, text in escaped.items():
            part = part.replace(name, text)
        return re.sub(r"(?<!\\)\]\(", r"\\](", part.replace("<", "&lt;"))

    parts = re.split(r"(^```.*?^```)", card, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if place % 2 else shown(part) for place, part in enumerate(parts))


def _make_onnx(model: Model) -> bytes | None:
    """The content of model.onnx; None without the extra, and if it cannot be made, which is a warning."""
    from camri.export.onnx_file import is_installed, make_onnx

    if not is_installed():
        return None
    try:
        return make_onnx(model)
    except Exception as error:
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        warnings.warn(f"{ONNX} was not written: {reason[0]}", stacklevel=3)
        return None


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Open a model's file for reading; pipes and devices, which may never end, are refused."""
    refuse_special(file, REMEDY)
    try:
        with open(file, "rb") as stream:
            yield stream
    except FileNotFoundError:
        inner = file.parent / "model"
        remedy = f"give {inner}" if (inner / CONFIG).is_file() else REMEDY  # `camri fit` writes FOLDER/model
        raise InputError(f"{file.parent} has no {file.name}, so it is not a camri model's folder; {remedy}") from None
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}); {REMEDY}") from None


def _read(file: Path, most: float = math.inf) -> bytes:
    with _opened(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most:
            raise InputError(f"{file} has {size:,} bytes and cannot be a camri model's; {REMEDY}")
        data: bytes = stream.read()
        return data


def _refuse_foreign(path: Path) -> None:
    """Refuse a path where something other than a model would be replaced."""
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"{path} is a file; choose a new folder for the model")
    if (path / CONFIG).exists():
        if f'"{FORMAT}"'.encode() not in _read(path / CONFIG, MAX_BYTES):  # a damaged model may be replaced
            raise InputError(f"{path / CONFIG} is not a camri model's; choose a new folder for the model")
        return
    names = sorted(entry.name for entry in path.iterdir() if entry.suffix != PART)
    if mine := [name for name in names if name[0] != "." and name.lower() not in CLUTTER]:
        raise InputError(f"{path} holds {mine[0]!r} and no {CONFIG}; choose a new folder for the model")
