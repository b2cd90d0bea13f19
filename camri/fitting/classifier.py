"""scikit-learn: `CamriClassifier` trains a network that raises the recall of its important classes."""

import math
import os
import warnings
from collections.abc import Collection, ItemsView, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from camri import export, methods
from camri.backbones import find, is_backbone, is_frozen
from camri.data import Split
from camri.data.dataset import assemble, choose_rows, to_float
from camri.data.features import embed
from camri.data.listing import check_classes
from camri.decision.estimator import find_important
from camri.decision.goals import MostRecall
from camri.decision.rules import Shift
from camri.decision.tune import tune
from camri.engine import Outcome, Stopped, Training, Trial, train
from camri.engine.spec import PROBE, frozen
from camri.engine.training import pick_device
from camri.errors import InputError, last_line
from camri.export.model import Network

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn before 1.6

    def validate_data(estimator: Any, /, *args: Any, **options: Any) -> Any:
        return estimator._validate_data(*args, **options)


def check_arrays(estimator: Any, X: Any, **checks: Any) -> Any:
    """Check X and return it as float rows (N, D) or uint8 images (N, H, W, C); with y among the checks, (X, y).

    scikit-learn checks the rows, for images the flattened ones, and sets `n_features_in_` and `feature_names_in_`.
    """
    if getattr(X, "ndim", 2) > 2:
        images = np.asarray(X)[..., None] if np.ndim(X) == 3 else np.asarray(X)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
            raise InputError(
                f"X is {images.dtype} {np.shape(X)}; give features (N, D), or images as uint8 (N, H, W) or "
                "(N, H, W, 1 or 3), values 0 to 255"
            )
        images = np.ascontiguousarray(images)
        flat = images.reshape(len(images), math.prod(images.shape[1:]))
        checked = validate_data(estimator, flat, dtype=None, **checks)
        return (images, checked[1]) if "y" in checks else images
    checked = validate_data(estimator, X, dtype=[np.float64, np.float32], **checks)
    rows = checked[0] if "y" in checks else checked
    if np.abs(rows).max() > np.finfo(np.float32).max:
        raise InputError("X has values that are too large for dtype('float32'); rescale its features")
    return checked


def describe_fitted(estimator: "CamriClassifier") -> dict[str, Any]:
    """Parameters and fitted attributes as plain JSON."""
    params = estimator.get_params(deep=False)
    if not isinstance(params["random_state"], (int, np.integer)):
        params["random_state"] = None  # a generator cannot be saved
    # As pairs: JSON keys are strings, and labels may be numbers.
    mappings = {name: _plain_value(value.items()) for name, value in params.items() if isinstance(value, Mapping)}
    names = getattr(estimator, "feature_names_in_", None)
    return {
        "params": {name: _plain_value(value) for name, value in params.items() if name not in mappings},
        "mappings": mappings,
        "labels": estimator.classes_.tolist(),
        "label_dtype": estimator.classes_.dtype.str,
        "feature_names": None if names is None else names.tolist(),
        "loss_curve": estimator.loss_curve_.tolist(),
        "validation": estimator.validation_,
    }


def _plain_value(value: Any) -> Any:
    """Convert a value for JSON: collections to lists, numpy numbers to Python's."""
    if isinstance(value, (list, tuple, set, frozenset, np.ndarray, ItemsView)):
        return [_plain_value(element) for element in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if isinstance(value, np.generic) else value


def write_card(estimator: "CamriClassifier") -> str:
    """The README.md of a saved model."""
    trained, chosen_on = estimator.trained_, estimator.validation_

    def numbers(values: Any) -> str:
        return ", ".join(f"{value:.3f}" for value in values)

    card = f"""# A classifier trained with camri

- method: {trained.setting}
- model: {trained.training.model}, {trained.training.epochs} epochs, {sum(trained.class_counts)} rows
- input: {"image" if trained.is_image else "features"} {trained.input_shape}
- classes: {", ".join(trained.classes)}
"""
    if trained.important:
        names = ", ".join(trained.classes[index] for index in trained.important)
        how = "" if trained.rule is None else f"; {trained.rule.describe(trained.classes)}"
        card += f"- important: {names}{how}\n"
    if chosen_on is not None:
        card += (
            f"- on the {chosen_on['num_rows']} rows the shift was chosen on, before → after: recall "
            f"{numbers(chosen_on['recall_before'])} → {numbers(chosen_on['recall'])}, accuracy "
            f"{chosen_on['accuracy_before']:.3f} → {chosen_on['accuracy']:.3f}; measure on rows of your own\n"
        )
    return f'{card}\n```python\nmodel = camri.CamriClassifier.load("path/to/this/folder")\nmodel.predict(X)\n```\n'


BATCH_ROWS = 512  # rows per batch of a prediction
MIN_HELD_OUT = 5  # rows of an important class: with fewer, a shift seems to cost no accuracy by chance


class CamriClassifier(ClassifierMixin, BaseEstimator):
    """A classifier that raises the recall of its important classes, in scikit-learn's interface.

    `X` is a table of features (N, D), standardised inside, or uint8 images (N, H, W) or (N, H, W, 1 or 3).

    important: a label, a list of labels, or {label: strength}; None: no important classes, no margin and no shift.
        The strength is the margin in radians for "camri", as in `CamriLoss`; for other methods, their own value for
        the class, such as the weight of "wce".
    method: a name in `camri.methods.METHODS`: "camri", "ce", "l2softmax", "arcface", "wce", …
    margin: radians, for important classes without a strength.
    scale: factor of the cosines.
    knobs: other values that a method needs, such as {"gamma": 2.0} for "focal".
    model: "auto", an MLP for features or a small CNN for images; a name in `camri.models.MODELS`; or a pretrained
        network, "timm:NAME" or "hf:NAME".
    model_options: such as {"hidden": (256, 128), "dropout": 0.1} for the MLP.
    weights, from_scratch: for a pretrained network, a safetensors file instead of its published weights, or random
        weights.
    frozen: keep a pretrained network fixed and train a head on its features; "auto" does so without a GPU.
    epochs, batch_size, learning_rate: of the training; training_options: other fields of `camri.engine.Training`.
    shift: "auto" first trains without `validation_fraction` of the rows, finds on these rows the constant to add to the
        important classes' logits for the best recall at no loss of accuracy, then trains on all rows. None: no shift.
    random_state: with a number, results on the CPU are reproducible to the bit.
    device: "auto" (a GPU if there is one), "cpu" or "cuda".

    After `fit`: `classes_`, `important_` (labels), `shift_` (n_classes,), `loss_curve_` (epochs,), `validation_`
    (recall, accuracy and false alarms before and after the shift, on the rows it was chosen on; or None) and
    `trained_`.

    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> model = CamriClassifier(important=1, epochs=10, random_state=0).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.9
    True
    """

    def __init__(
        self,
        important: Any = None,
        *,
        method: str = "camri",
        margin: float = 0.2,
        scale: float = 8.0,
        knobs: Mapping[str, Any] | None = None,
        model: str = "auto",
        model_options: Mapping[str, Any] | None = None,
        weights: Any = None,
        from_scratch: bool = False,
        frozen: bool | str = "auto",
        epochs: int = 40,
        batch_size: int = 128,
        learning_rate: float = 3e-3,
        training_options: Mapping[str, Any] | None = None,
        shift: str | None = "auto",
        validation_fraction: float = 0.2,
        random_state: Any = None,
        device: str = "auto",
    ):
        self.important = important
        self.method = method
        self.margin = margin
        self.scale = scale
        self.knobs = knobs
        self.model = model
        self.model_options = model_options
        self.weights = weights
        self.from_scratch = from_scratch
        self.frozen = frozen
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.training_options = training_options
        self.shift = shift
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def fit(self, X: Any, y: Any) -> "CamriClassifier":
        """Train on (X, y) and return the estimator."""
        rows, y = check_arrays(self, X, y=y, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        check_classes("y", [str(label) for label in self.classes_.tolist()], {"train": codes})
        strengths = find_important(self.important, self.classes_)
        trial = Trial(self._setting(strengths), int(check_random_state(self.random_state).randint(2**31 - 1)))

        values, self.validation_ = dict.fromkeys(strengths, 0.0), None
        held_out = self._hold_out(codes, strengths, trial.seed)
        if held_out.any():
            scores = self._train(rows, codes, trial, tuple(strengths), held_out)[0].scores["val"]
            point = tune(scores, MostRecall())
            assert isinstance(point.rule, Shift)
            values = dict(point.rule.values)
            self.validation_ = {
                "num_rows": len(scores),
                "recall_before": scores.recall().tolist(),
                "recall": list(point.recall),
                "accuracy_before": scores.accuracy(),
                "accuracy": point.accuracy,
                "false_alarms_before": float(scores.false_alarms().mean()),
                "false_alarms": point.false_alarms,
            }
        # Train again on all rows: without the held-out fifth, accuracy on new rows was 1.0 to 2.6 points lower
        # (simulated tables of 200 to 1,500 rows, means of eight, two methods).
        outcome, trained = self._train(rows, codes, trial, tuple(strengths), np.zeros(len(rows), dtype=bool))
        self.loss_curve_ = outcome.curves["train_loss"].astype(float)
        rule = Shift(values) if strengths else None
        self._take(replace(trained, rule=rule))
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits after the shift, (N, C); with two classes the difference second − first, (N,)."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities after the shift, (N, C), columns as in `classes_`."""
        return softmax(self._logits(X), axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The label with the highest logit after the shift, (N,)."""
        best = self._logits(X).argmax(axis=1)  # first, as it checks that the estimator is fitted
        return self.classes_[best]

    def save(self, folder: str | Path, *, onnx: bool = False) -> Path:
        """Write a folder for `CamriClassifier.load`, `camri.load` and `camri predict`; it contains no pickle."""
        check_is_fitted(self)
        notes = {**self.trained_.preprocessing, "estimator": describe_fitted(self)}
        trained = replace(self.trained_, preprocessing=notes)
        return export.save(trained, folder, card=write_card(self), onnx=onnx)

    @classmethod
    def load(cls, folder: str | Path) -> "CamriClassifier":
        """Load the fitted estimator that `save` wrote."""
        trained = export.load(folder).trained
        notes = dict(trained.preprocessing)
        if "estimator" not in notes:
            raise InputError(f"{folder} holds no CamriClassifier; read it with camri.load({str(folder)!r})")
        try:
            fitted = notes.pop("estimator")
            params = fitted["params"]
            params |= {name: dict(map(tuple, pairs)) for name, pairs in fitted["mappings"].items()}
            estimator = cls(**params)
            estimator.classes_ = np.array(fitted["labels"], dtype=np.dtype(fitted["label_dtype"]))
            estimator.loss_curve_ = np.array(fitted["loss_curve"], dtype=float)
            estimator.validation_ = fitted["validation"]
            if fitted["feature_names"] is not None:
                estimator.feature_names_in_ = np.array(fitted["feature_names"], dtype=object)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{folder} is damaged ({error}); copy the model's folder again") from None
        estimator.n_features_in_ = math.prod(trained.input_shape)
        estimator._take(replace(trained, preprocessing=notes))
        return estimator

    def _setting(self, strengths: Mapping[int, float | None]) -> methods.Setting:
        knobs = methods.method(self.method).knobs
        values: dict[str, Any] = {"m": self.margin, "s": self.scale}
        values = {name: value for name, value in values.items() if name in knobs} | dict(self.knobs or {})
        own = next((name for name, knob in knobs.items() if knob.per_class), None)
        if own is not None and strengths and None not in strengths.values():
            values[own] = dict(strengths)
        chosen = methods.setting(self.method, strengths, **values)
        return chosen if strengths else chosen.canonical()  # CAMRI without important classes is L2-softmax

    def _training(self, is_image: bool) -> Training:
        options = sorted((self.model_options or {}).items())
        automatic = "small" if is_image else "features"
        return Training(
            model=automatic if self.model == "auto" else self.model,
            model_options=tuple((name, frozen(value)) for name, value in options),
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
        ).with_(**(self.training_options or {}))

    def _hold_out(self, codes: np.ndarray, important: Collection[int], seed: int) -> np.ndarray:
        """The rows to choose the shift on, bool (N,): some of every class; none if no shift is chosen."""
        if self.shift not in ("auto", None):
            raise InputError(f"shift={self.shift!r} is unknown; choices: 'auto', None", argument="shift")
        none = np.zeros(len(codes), dtype=bool)
        if self.shift is None or not important:
            return none
        fraction = self.validation_fraction
        if not 0 < fraction < 1:
            raise InputError(f"validation_fraction={fraction!r} must lie between 0 and 1", "validation_fraction")
        num_rows = max(1, round(fraction * len(codes)))
        labels = Split(torch.empty(len(codes), 0), torch.from_numpy(codes))
        taken = choose_rows(labels, len(self.classes_), num_rows, salt=f"{seed}/val")
        num, index = min((int((codes[taken] == index).sum()), index) for index in important)
        if num >= MIN_HELD_OUT:
            return taken
        warnings.warn(
            f"no shift is chosen: only {num} rows of class {self.classes_[index]} would be held out, less than "
            f"{MIN_HELD_OUT}; give more rows, a larger validation_fraction, or shift=None",
            stacklevel=3,
        )
        return none

    def _train(
        self, rows: np.ndarray, codes: np.ndarray, trial: Trial, important: tuple[int, ...], held_out: np.ndarray
    ) -> tuple[Outcome, export.Trained]:
        """Train one model on the rows that are not held out, in this process."""
        scaling, is_image = None, rows.dtype == np.uint8
        columns = getattr(self, "feature_names_in_", None)  # `camri predict` finds them in a table by these names
        source: dict[str, Any] = {} if columns is None else {"feature_columns": columns.tolist()}
        training = self._training(is_image)
        names = tuple(str(label) for label in self.classes_.tolist())
        if is_backbone(self.model):
            options = dict(training.model_options)
            asked = {"weights": self.weights, "from_scratch": self.from_scratch, "size": options.pop("size", None)}
            found = find(self.model, **asked)
            training = training.with_(model_options=tuple(sorted({**found, **options}.items())))
            if is_frozen(self.frozen, self.from_scratch, pick_device(self.device).type):
                whole = assemble("X", names, {"train": Split(torch.from_numpy(rows), torch.from_numpy(codes))}, source)
                embedded = embed(whole, self.model, found)  # all rows: the second training reads them from the cache
                rows, source = embedded.splits["train"].inputs.numpy(), dict(embedded.provenance)
                training = training.with_(**PROBE)
        if rows.dtype != np.uint8:
            scaler = StandardScaler().fit(rows[~held_out].astype(np.float64))
            scaling = (tuple(scaler.mean_.tolist()), tuple(scaler.scale_.tolist()))
            rows = scaler.transform(rows).astype(np.float32)
        splits = {
            part: Split(torch.from_numpy(rows[mask]), torch.from_numpy(codes[mask]))
            for part, mask in (("train", ~held_out), ("val", held_out))
            if mask.any()
        }
        data = assemble("X", names, splits, source)
        how: dict[str, Any] = {"keep_weights": True, "workers": 1, "deterministic": True}
        try:
            (outcome,) = train([trial], data, self.device, training=training, important=important, **how)
        except Stopped:  # by Ctrl-C
            raise KeyboardInterrupt from None
        if outcome.status != "done":
            raise RuntimeError(f"training failed: {last_line(outcome.error)}")
        return outcome, export.Trained.of(outcome, data, important, standardise=scaling)

    def _take(self, trained: export.Trained) -> None:
        """Set the attributes that follow from the trained model."""
        self.trained_ = trained
        self.important_ = self.classes_[list(trained.important)]
        self.shift_ = np.zeros(len(self.classes_))
        self.shift_[list(trained.important)] = trained.shift

    @torch.inference_mode()
    def _logits(self, X: Any) -> np.ndarray:
        """Logits after the shift, float64 (N, C)."""
        check_is_fitted(self)
        rows, trained = check_arrays(self, X, reset=False), self.trained_
        if rows.shape[1:] != trained.input_shape:
            raise InputError(f"X has rows of shape {rows.shape[1:]}; the model was trained on {trained.input_shape}")
        device = pick_device(self.device)
        network = Network(trained).to(device)
        if not trained.is_image:
            # In float32 a row's score would depend on its batch by some 1e-6, through the order of summation.
            network.double()
            assert trained.standardise is not None
            mean, sd = map(np.array, trained.standardise)
        logits = []
        for start in range(0, len(rows), BATCH_ROWS):
            batch = rows[start : start + BATCH_ROWS]
            batch = batch if trained.is_image else (batch - mean) / sd
            outputs = network.classifier(to_float(torch.from_numpy(batch).to(device)))
            logits.append(network.criterion.logits(outputs).double().cpu().numpy())
        return np.concatenate(logits) + self.shift_
