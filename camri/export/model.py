"""A trained model: as a record (`Trained`), and as a network from raw inputs to logits and class names (`Model`)."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from camri.data import DataSet, Split
from camri.data.dataset import to_float
from camri.data.rows import Inputs, Rows
from camri.decision.rules import RULES, DecisionRule, LowestCost, Shift, Threshold, rule_from_json
from camri.engine import Outcome, Training
from camri.errors import InputError, blame
from camri.heads import HEADS
from camri.methods import Setting
from camri.models import Classifier, build, without_counters
from camri.text import is_printable

LONGEST_SHOWN = 200  # characters of a value in an error message
MOST_VALUES = 2**28  # of one input
NOT_FINITE = "the model's scores are not finite; its features are far from those of training, or the model is damaged"
Standardise = tuple[tuple[float, ...], tuple[float, ...]]
NOT_EXPORTED = "a rule of least cost cannot be exported; give a shift or a threshold"


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model with everything that is needed to use it.

    input_shape: (H, W, C) of uint8 images, (D,) of float32 features.
    class_counts: training rows of each class, for losses that need them.
    important: class indices. rule: the decision rule; None: the largest score wins.
    weights: the state of a `camri.models.Classifier`; batch norm's counters may be missing.
    preprocessing: how a file becomes an input, as plain JSON.
    standardise: (mean, sd) of each feature: the model gets (x − mean) / sd, in float32. None for images.
    """

    setting: Setting
    training: Training
    seed: int
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    is_image: bool
    class_counts: tuple[int, ...]
    important: tuple[int, ...]
    rule: DecisionRule | None
    weights: Mapping[str, np.ndarray]
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    standardise: Standardise | None = None

    def __post_init__(self) -> None:
        def need(condition: bool, field: str, allowed: str) -> None:
            if not condition:
                value = repr(getattr(self, field))
                shown = value if len(value) <= LONGEST_SHOWN else f"{value[:LONGEST_SHOWN]}…"
                raise InputError(f"a trained model's {field}={shown} is not allowed; {allowed}")

        num = len(self.classes)
        need(num >= 2 and len(set(self.classes)) == num, "classes", "give two names or more, all different")
        need(all(map(is_printable, self.classes)), "classes", "give printable names")
        fits = len(self.input_shape) == (3 if self.is_image else 1) and all(size >= 1 for size in self.input_shape)
        fits = fits and math.prod(self.input_shape) <= MOST_VALUES
        need(fits, "input_shape", f"give (H, W, C) of images or (D,) of features, at most {MOST_VALUES:,} values")
        need(len(self.class_counts) == num, "class_counts", f"give {num} numbers, one a class")
        indices = all(0 <= index < num for index in self.important) and len(set(self.important)) == len(self.important)
        need(indices and len(self.important) < num, "important", f"give different classes of 0 … {num - 1}, not all")
        values = {} if self.rule is None else self.rule.values
        matching = self.rule is None or set(values) == set(self.important)
        finite = bool(np.isfinite(_as_float32(list(values.values()))).all())
        need(matching and finite, "rule", "give each important class one number, finite in float32")
        if self.standardise is not None:
            need(not self.is_image, "standardise", "it is for features, and these are images")
            mean, sd = self.standardise
            finite = bool(np.isfinite(_as_float32((*mean, *sd))).all() and (_as_float32(sd) > 0).all())
            whole = len(mean) == len(sd) == self.input_shape[0]
            allowed = "give (mean, sd), finite in float32, one number a feature, every sd above 0"
            need(whole and finite, "standardise", allowed)

    @property
    def shift(self) -> tuple[float, ...]:
        """The constant that the rule adds to each important class's logit; 0 if it is not a shift."""
        values = self.rule.values if isinstance(self.rule, Shift) else {}
        return tuple(values.get(index, 0.0) for index in self.important)

    @property
    def is_cropped(self) -> bool:
        """Whether the training images were cropped to the object's box."""
        return bool(self.preprocessing.get("roi"))

    @staticmethod
    def of(
        outcome: Outcome,
        data: DataSet,
        important: Sequence[int],
        rule: DecisionRule | Sequence[float] | float | None = None,
        standardise: Standardise | None = None,
    ) -> "Trained":
        """The model of an outcome of `train(..., keep_weights=True)` and its training data.

        rule: a decision rule, or a shift: one number for all important classes or one for each.
        """
        if outcome.weights is None:
            why = outcome.error or "train it with keep_weights=True"
            raise InputError(
                f"the outcome of {outcome.trial.setting}, seed {outcome.trial.seed}, has no weights; {why}"
            )
        if "backbone" in data.provenance:
            outcome, data, standardise = *_on_images(outcome, data, standardise), None
        assert outcome.weights is not None
        indices = tuple(int(index) for index in important)
        if isinstance(rule, LowestCost):
            raise InputError(f"{NOT_EXPORTED}, or predict with `rule.predict`", argument="rule")
        if rule is not None and not isinstance(rule, DecisionRule):
            shifts = [float(rule)] * len(indices) if isinstance(rule, (int, float)) else list(map(float, rule))
            if len(shifts) != len(indices):
                raise InputError(f"rule={shifts} does not fit {len(indices)} important classes; give one number each")
            rule = Shift(dict(zip(indices, shifts, strict=True))) if indices else None
        return Trained(
            setting=outcome.trial.setting,
            training=outcome.training,
            seed=outcome.trial.seed,
            classes=data.classes,
            input_shape=data.input_shape,
            is_image=data.is_image,
            class_counts=tuple(data.class_counts("train").tolist()),
            important=indices,
            rule=rule,
            weights=outcome.weights,
            preprocessing=preprocessing_of(data),
            standardise=standardise,
        )


def _on_images(outcome: Outcome, data: DataSet, standardise: Standardise | None) -> tuple[Outcome, DataSet]:
    """Turn the outcome of a trial on a frozen backbone's features into that of the whole network on images."""
    backbone, training = data.provenance["backbone"], outcome.training
    shape = tuple(backbone["input_shape"])
    trunk = build(backbone["model"], (shape[2], *shape[:2]), **backbone["options"])
    assert outcome.weights is not None
    mean, sd = standardise or ((0.0,), (1.0,))
    weights = {f"trunk.{name}": value.numpy() for name, value in trunk.state_dict().items()}
    for name, value in (("feature_mean", mean), ("feature_sd", sd)):
        weights[f"trunk.{name}"] = np.broadcast_to(_as_float32(value), trunk.num_features).copy()
    weights |= {name.replace("trunk.", "trunk.probe.", 1): value for name, value in outcome.weights.items()}
    probe = json.dumps({"model": training.model, "options": dict(training.model_options)}, sort_keys=True)
    options = tuple(sorted({**backbone["options"], "probe": probe}.items()))
    # The images themselves are not needed: one empty image has their shape.
    image = torch.zeros(1, *shape, dtype=torch.uint8)
    images = {name: Split(image, split.labels) for name, split in data.splits.items()}
    training = training.with_(model=backbone["model"], model_options=options)
    return replace(outcome, training=training, weights=weights), replace(data, splits=images)


def _as_float32(values: Sequence[float]) -> np.ndarray:
    """The numbers in float32; those too large become infinite, those too small 0."""
    with np.errstate(over="ignore"):
        return np.array(values, dtype=np.float32)


def preprocessing_of(data: DataSet) -> dict[str, Any]:
    """How a file becomes an input of this data set, as plain JSON: size and mode of images, or columns of a table."""
    source = data.provenance
    if not data.is_image:
        names = ("feature_columns", "num_feature_columns", "label_column", "encoding")
        return {name: source[name] for name in names if name in source}
    height, width, channels = data.input_shape
    steps: dict[str, Any] = {"size": [height, width], "mode": "L" if channels == 1 else "RGB"}
    steps["resize"] = source.get("options", {}).get("resize", "lanczos")
    if "path_column" in source:
        steps["path_column"] = source["path_column"]
    if source.get("roi"):  # from the source, not the options: only GTSRB has boxes to crop to
        steps["roi"] = True
    return steps


INITIAL = ("initial", "initial_sha256")  # options that name the initial weights; a trained model does not need them


class Network(nn.Module):
    """Raw inputs -> logits (B, C), float32: preprocessing, classifier, scale and shift in one module.

    A shift is added to the logits; a threshold does not change them, and is applied by `decide`. Inputs are uint8
    (B, H, W, C) images or float32 (B, D) features, as in a data set.
    """

    shift: Tensor
    mean: Tensor | None
    sd: Tensor | None

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        num_classes = len(trained.classes)
        self.classifier = make_classifier(trained, torch.Generator())
        self.criterion = trained.setting.criterion(num_classes, trained.class_counts)
        shift = torch.zeros(num_classes)
        shift[list(trained.important)] = torch.tensor(trained.shift)
        self.register_buffer("shift", shift)
        self.thresholds = dict(trained.rule.values) if isinstance(trained.rule, Threshold) else {}
        mean, sd = (None, None) if trained.standardise is None else map(torch.tensor, trained.standardise)
        self.register_buffer("mean", mean)
        self.register_buffer("sd", sd)
        check_weights(trained.weights, self.classifier, "the trained model")
        state = {
            name: torch.tensor(value, dtype=torch.float32) for name, value in without_counters(trained.weights).items()
        }
        self.classifier.load_state_dict(state, strict=False)  # only counters may be missing
        self.eval().requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.mean is not None and self.sd is not None:
            inputs = (inputs - self.mean) / self.sd
        return self.criterion.logits(self.classifier(to_float(inputs))).float() + self.shift

    def decide(self, logits: Tensor, probabilities: Tensor) -> Tensor:
        """Predict the class index by the rule, from logits of `forward` and their softmax: int64 (B,)."""
        if not self.thresholds:
            return logits.argmax(dim=1)
        own = list(self.thresholds)
        least = torch.tensor(list(self.thresholds.values()), dtype=torch.float32, device=logits.device)
        odds = probabilities[:, own].logit(eps=1e-30) - least.logit(eps=1e-30)
        passes = probabilities[:, own] > least
        best = odds.masked_fill(~passes, -torch.inf).argmax(dim=1)
        is_own = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
        is_own[own] = True
        rest = logits.masked_fill(is_own, -torch.inf).argmax(dim=1)
        return torch.where(passes.any(dim=1), torch.tensor(own, device=logits.device)[best], rest)


def make_classifier(trained: Trained, generator: torch.Generator | None = None) -> Classifier:
    """Make the untrained classifier as the engine does, initialised from the generator."""
    shape = trained.input_shape
    channels_first = (shape[-1], *shape[:-1]) if trained.is_image else shape
    options = {name: value for name, value in trained.training.model_options if name not in INITIAL}
    trunk = build(trained.training.model, channels_first, generator=generator, **options)
    head = HEADS[trained.setting.head](trunk.num_features, len(trained.classes), generator=generator)
    return Classifier(trunk, head)


def check_weights(weights: Mapping[str, Any], classifier: nn.Module, where: str) -> None:
    """Raise InputError unless the weights are this classifier's: none missing, unknown, or of another shape."""
    wanted = {name: tuple(tensor.shape) for name, tensor in without_counters(classifier.state_dict()).items()}
    given = {name: tuple(value.shape) for name, value in without_counters(weights).items()}
    if missing := [name for name in wanted if name not in given]:
        raise InputError(f"{where} has no tensor {missing[0]!r}{_more(missing)}; it is not the model its config says")
    if unknown := [name for name in given if name not in wanted]:
        raise InputError(f"{where} has a tensor {unknown[0]!r}{_more(unknown)} that its model does not have")
    for name, shape in wanted.items():
        if given[name] != shape:
            raise InputError(f"{where}: tensor {name!r} has shape {given[name]}, and its model needs {shape}")


def _more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


class Model:
    """A trained model to predict with; `camri.load(folder)` returns one.

    `module` maps raw inputs, uint8 (B, H, W, C) images or float32 (B, D) features, to logits (B, C). To use a GPU, call
    `model.module.to("cuda")`. A shift is included in logits and probabilities; a threshold is not, and is applied by
    `predict`.
    """

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        self.module: nn.Module = Network(trained)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.trained.classes

    @property
    def important(self) -> tuple[str, ...]:
        """Names of the important classes."""
        return tuple(self.trained.classes[index] for index in self.trained.important)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.trained.input_shape))
        return f"Model({self.trained.setting}, {len(self.classes)} classes, inputs {shape}, important {self.important})"

    def logits(self, inputs: np.ndarray | Inputs, batch_size: int = 256) -> np.ndarray:
        """Logits, float32 (N, C), with the shift added if the rule is one; InputError for any that is not finite."""
        logits = self.raw_logits(inputs, batch_size)
        if not (finite := np.isfinite(logits).all(axis=1)).all():
            raise InputError(f"row {int((~finite).argmax())}: {NOT_FINITE}", argument="inputs")
        return logits

    @torch.inference_mode()
    def raw_logits(self, inputs: np.ndarray | Inputs, batch_size: int = 256) -> np.ndarray:
        """Logits as the network computes them, which may overflow."""
        if batch_size < 1:
            raise InputError(
                f"batch_size={batch_size!r} is not allowed; give a whole number of at least 1", "batch_size"
            )
        rows: Inputs
        if isinstance(inputs, Rows):  # of a data set, so all are alike
            check_inputs(inputs[:1], self.trained)
            rows = inputs
        else:
            rows = check_inputs(inputs, self.trained)
        device = self.module.get_buffer("shift").device
        batches = (rows[start : start + batch_size] for start in range(0, len(rows), batch_size))
        outputs = [self.module(batch.to(device)).cpu().numpy() for batch in batches]
        return np.concatenate(outputs) if outputs else np.zeros((0, len(self.classes)), np.float32)

    def predict_proba(self, inputs: np.ndarray | Inputs, batch_size: int = 256) -> np.ndarray:
        """Probabilities, float32 (N, C), columns as in `classes`; after the shift if the rule is one."""
        return to_probabilities(self.logits(inputs, batch_size))

    def predict(self, inputs: np.ndarray | Tensor, batch_size: int = 256) -> list[str]:
        """Predict the class name of each input by the rule."""
        return [self.classes[index] for index in self.decide(self.predict_proba(inputs, batch_size))]

    def decide(self, probabilities: np.ndarray) -> np.ndarray:
        """Predict the class index by the rule from the probabilities of `predict_proba`, int (N,)."""
        rule = self.trained.rule
        if isinstance(rule, Threshold):
            return rule.predict(probabilities, kind="probabilities")
        return probabilities.argmax(axis=1)


def to_probabilities(logits: np.ndarray) -> np.ndarray:
    """The softmax of logits (N, C), float32."""
    return torch.from_numpy(logits).softmax(dim=1).numpy()


def with_rule(
    model: Model, *, thresholds: Mapping[str, float] | None = None, shifts: Mapping[str, float] | None = None
) -> Model:
    """The model with another rule: probabilities that classes must exceed, or constants added to their logits.

    The given classes become its important ones.
    """
    if bool(thresholds) == bool(shifts):
        raise InputError("a rule is thresholds or shifts; give one of them", argument="thresholds")
    name, values = ("threshold", thresholds) if thresholds else ("shift", shifts)
    low, high, hint = RULES[name].allowed
    with blame(f"{name}s"):
        for own, value in (values or {}).items():
            if not low <= value <= high:
                raise InputError(f"the {name} {own}={value:g} is not allowed; {hint}")
        rule = rule_from_json({"rule": name, "values": values}, model.classes)
        assert isinstance(rule, DecisionRule)
        return Model(replace(model.trained, rule=rule, important=tuple(rule.values)))


def arrange(rows: Any, shape: Sequence[int]) -> Any:
    """Rearrange images (N, H, W) of one channel, or with channels first, to (N, H, W, C); other arrays are unchanged.

    >>> arrange(np.zeros((5, 28, 28)), (28, 28, 1)).shape, arrange(np.zeros((5, 3, 8, 9)), (8, 9, 3)).shape
    ((5, 28, 28, 1), (5, 8, 9, 3))
    """
    if len(shape) == 3 and shape[2] == 1 and rows.ndim == 3:
        rows = rows[..., None]
    if len(shape) == 3 and tuple(rows.shape[1:]) == (shape[2], *shape[:2]) != tuple(shape):
        rows = rows.swapaxes(1, 2).swapaxes(2, 3)
    return rows


def check_inputs(inputs: np.ndarray | Tensor, trained: Trained) -> Tensor:
    """Convert inputs to a tensor of the model's kind and shape; InputError if they do not fit."""
    rows = inputs if isinstance(inputs, Tensor) else _to_tensor(inputs)
    shape = tuple(trained.input_shape)
    wanted = f"uint8 images (N, {', '.join(map(str, shape))})" if trained.is_image else f"numbers (N, {shape[0]})"
    if rows is None or rows.is_complex() or (trained.is_image and rows.dtype != torch.uint8):
        found = getattr(inputs, "dtype", type(inputs).__name__)
        raise InputError(f"inputs of dtype {found} do not fit this model; give {wanted}", argument="inputs")
    rows = arrange(rows, shape)
    if rows.dim() != 1 + len(shape) or tuple(rows.shape[1:]) != shape:
        raise InputError(f"inputs of shape {np.shape(inputs)} do not fit this model; give {wanted}", argument="inputs")
    if trained.is_image:
        return rows
    rows = rows.to(torch.float32)
    finite = rows.isfinite().all(dim=1)
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0])
        raise InputError(f"the features of row {row} are not all finite in float32; fill them in or leave the row out")
    return rows


def _to_tensor(inputs: object) -> Tensor | None:
    """Convert an array to a tensor, float32 unless it is uint8; None if it holds no numbers."""
    array = np.asarray(inputs)
    if array.dtype.kind not in "fiub":
        return None
    with np.errstate(over="ignore"):  # too large numbers become infinite, which is refused later
        array = np.ascontiguousarray(array, dtype=None if array.dtype == np.uint8 else np.float32)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
