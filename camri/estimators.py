"""scikit-learn estimators: ImportantClassifier tunes the decision of any classifier, CamriClassifier trains one."""

import math
import os
import warnings
from collections.abc import Callable, Collection, ItemsView, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.model_selection import StratifiedGroupKFold, check_cv
from sklearn.preprocessing import StandardScaler
from sklearn.utils import _safe_indexing, check_random_state, column_or_1d, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted

from camri import export, methods
from camri.backbones import find, is_backbone, is_frozen
from camri.data import Split
from camri.data.dataset import assemble, choose_rows, to_float
from camri.data.features import embed
from camri.data.listing import check_classes
from camri.decision import (
    PRIOR_ROWS,
    AtLeast,
    BestRecall,
    Goal,
    OperatingPoint,
    Prior,
    Promise,
    Shift,
    choose_shift,
    parse_goal,
    promise,
    trace,
    tune,
)
from camri.engine import Outcome, Stopped, Training, Trial, train
from camri.engine.spec import PROBE, frozen
from camri.engine.training import pick_device
from camri.errors import InputError, closest, last_line, require
from camri.export.model import Network
from camri.metrics import Scores, exact

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


def find_important(important: Any, classes: np.ndarray) -> dict[int, float | None]:
    """Class index -> strength, or None if only a label was given; in ascending order.

    >>> find_important({"yield": 0.1, "stop": 0.3}, np.array(["limit", "stop", "yield"]))
    {1: 0.3, 2: 0.1}
    """
    if important is None:
        return {}
    if isinstance(important, Mapping):
        given = dict(important)
    else:
        is_collection = isinstance(important, (list, tuple, set, frozenset, np.ndarray))
        given = dict.fromkeys(important if is_collection else [important])
    known = classes.tolist()
    for label in given:
        if label not in known:
            same = [name for name in known if str(name) == str(label)]
            hint = f"give {same[0]!r}, as y has it" if same else closest(label, known)
            if isinstance(label, str) and known == list(range(len(known))):
                hint += "; a tool such as VotingClassifier may have numbered your labels in sorted order"
            raise InputError(f"important={label!r} is not a label of y; {hint}", argument="important")
    if len({strength is None for strength in given.values()}) > 1:
        wrong = "has a strength for some classes only; give one for each, or none"
        raise InputError(f"important={important!r} {wrong}", argument="important")
    if len(given) == len(known):
        wrong = f"names all {len(known)} classes; leave at least one out"
        raise InputError(f"important={important!r} {wrong}", argument="important")
    return dict(sorted((known.index(label), strength) for label, strength in given.items()))


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

        shift, self.validation_ = (0.0,) * len(strengths), None
        held_out = self._hold_out(codes, strengths, trial.seed)
        if held_out.any():
            scores = self._train(rows, codes, trial, tuple(strengths), held_out)[0].scores["val"]
            best = choose_shift(scores, accuracy_floor=scores.accuracy(), prior=Prior.of(scores))
            assert best is not None  # a shift of 0 reaches the floor
            shift = best.shift
            self.validation_ = {
                "num_rows": len(scores),
                "recall_before": scores.recall().tolist(),
                "recall": list(best.recall),
                "accuracy_before": scores.accuracy(),
                "accuracy": scores.accuracy(shift),
                "false_alarms_before": float(scores.false_alarms().mean()),
                "false_alarms": float(scores.false_alarms(shift).mean()),
            }
        # Train again on all rows: without the held-out fifth, accuracy on new rows was 1.0 to 2.6 points lower
        # (simulated tables of 200 to 1,500 rows, means of eight, two methods).
        outcome, trained = self._train(rows, codes, trial, tuple(strengths), np.zeros(len(rows), dtype=bool))
        self.loss_curve_ = outcome.curves["train_loss"].astype(float)
        rule = Shift(dict(zip(strengths, shift, strict=True))) if strengths else None
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


def _has(method: str) -> Callable[["ImportantClassifier"], bool]:
    return lambda wrapper: hasattr(getattr(wrapper, "estimator_", wrapper.estimator), method)


def score_rows(estimator: Any, X: Any, classes: np.ndarray) -> tuple[np.ndarray, str]:
    """The estimator's scores, float (N, C), and their kind, "probabilities" or "logits"."""
    kind = "probabilities" if hasattr(estimator, "predict_proba") else "logits"
    if kind == "logits" and not hasattr(estimator, "decision_function"):
        wrong = f"{type(estimator).__name__} has no predict_proba and no decision_function"
        raise InputError(f"{wrong}; give a classifier that has one", argument="estimator")
    scores = np.asarray(estimator.predict_proba(X) if kind == "probabilities" else estimator.decision_function(X))
    if scores.ndim == 1:  # two classes: the score of the second
        scores = np.stack([np.zeros(len(scores)), scores], axis=1)
    known = estimator.classes_
    if scores.shape[1] != len(known):
        wrong = f"decision_function gives {scores.shape[1]} columns for {len(known)} classes"
        raise InputError(f"{wrong}; give a classifier with one score for each (SVC: probability=True)", "estimator")
    if np.array_equal(known, classes):
        return scores, kind
    lowest = 0.0 if kind == "probabilities" else scores.min(initial=0.0) - 50.0  # for classes that a fold lacks
    whole = np.full((len(scores), len(classes)), lowest)
    whole[:, _codes(known, classes)] = scores
    return whole, kind


def _codes(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The index of each label in `classes`."""
    places = {label: place for place, label in enumerate(classes.tolist())}
    try:
        return np.array([places[label] for label in labels.tolist()], dtype=np.int64)
    except KeyError as error:
        wrong = f"label {error.args[0]!r} of y is none of the estimator's"
        raise InputError(f"{wrong}; {closest(error.args[0], classes.tolist())}", argument="y") from None


class ImportantClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Tune the decision of any classifier, so that it misses its important classes less often.

    Parameters
    ----------
    estimator : a classifier or pipeline with predict_proba or decision_function.
    important : a label of y, or a list of labels. None: the classifier is not changed.
    at_least : recall of every important class, reached with the fewest false alarms.
    max_accuracy_drop : find the most recall at no more than this loss of accuracy, 0.01 for one percentage point.
    cost_matrix : (C, C), row = true class, column = predicted class, in the order of `classes_`; find the least cost.
        Give one of these three goals; the default is `max_accuracy_drop=0.0`.
    confidence : of the guarantee that new rows have the recall `at_least`; None: no guarantee.
    rule : "shift" (least accuracy lost), "threshold" (fewest false alarms) or "auto", by the goal.
    cv : number of folds, a splitter, or "prefit" for a fitted estimator (as `FrozenEstimator`), tuned on all rows.
    n_jobs : folds that are fitted in parallel.

    Attributes
    ----------
    decision_ : the `camri.decision.OperatingPoint`: the rule, its figures on held-out rows, the spread of its value.
    promise_ : the `camri.decision.Promise` if `at_least` has a confidence, else None.
    cv_results_ : recall, accuracy and false alarms before and after tuning, one entry per fold.
    estimator_, classes_ : the estimator, fitted on all rows unless it was prefit, and its labels.

    The promise
    -----------
    For a prefit estimator, tuned on rows it was not fitted on: new rows like these have a recall of at least
    `at_least` with this confidence, for any distribution of the scores and any number of rows. With `groups`, new
    groups do. With folds the promise is approximate: the scores are those of models fitted on fewer rows than
    `estimator_`, and the rows of one fold share a model. It was kept on 97.5 % of 200 simulated tables
    (benchmarks/decision.py).

    `fit` passes `sample_weight` to the estimator and uses it in figures and goals; a promise ignores it.

    >>> from sklearn.datasets import make_classification
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = make_classification(2000, weights=[0.9], class_sep=0.3, random_state=0)
    >>> model = ImportantClassifier(LogisticRegression(), important=1, at_least=0.8).fit(X, y)
    >>> model.decision_.rule, model.promise_.hits, model.promise_.num
    (Threshold(values={1: 0.04801}), (177,), (208,))
    """

    decision_: OperatingPoint | None
    promise_: Promise | None
    cv_results_: dict[str, np.ndarray]

    def __init__(
        self,
        estimator: Any,
        important: Any = None,
        *,
        at_least: float | None = None,
        max_accuracy_drop: float | None = None,
        cost_matrix: Any = None,
        confidence: float | None = 0.95,
        rule: str = "auto",
        cv: Any = 5,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.important = important
        self.at_least = at_least
        self.max_accuracy_drop = max_accuracy_drop
        self.cost_matrix = cost_matrix
        self.confidence = confidence
        self.rule = rule
        self.cv = cv
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, *, groups: Any = None, **params: Any) -> "ImportantClassifier":
        """Tune the rule on rows that the estimator was not fitted on, then fit the estimator on all rows.

        groups: patients or films (N,): each is held out as a whole, and the promise is about new groups. params: for
        the estimator's `fit`, by metadata routing if enabled.
        """
        X, y = indexable(X, y)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        for_fit = params
        if sklearn.get_config().get("enable_metadata_routing"):
            passed = params if groups is None else {**params, "groups": groups}
            for_fit = process_routing(self, "fit", **passed).estimator.fit
        if self._is_prefit:
            check_is_fitted(self.estimator)
        self.classes_ = np.asarray(self.estimator.classes_) if self._is_prefit else np.unique(y)
        names = [str(label) for label in self.classes_]
        goal = parse_goal(names, self.max_accuracy_drop, self.at_least, self.cost_matrix, self.confidence)
        if isinstance(goal, BestRecall):
            goal = replace(goal, prior_rows=PRIOR_ROWS)
        self.estimator_ = self.estimator if self._is_prefit else clone(self.estimator).fit(X, y, **for_fit)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        self.decision_, self.promise_, self.cv_results_ = None, None, {}
        important = find_important(self.important, self.classes_)
        if any(strength is not None for strength in important.values()):
            raise InputError(f"important={self.important!r} has strengths; give labels", argument="important")
        if important:
            self._tune(goal, tuple(important), X, y, groups, for_fit, params.get("sample_weight"))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The label of each row by the tuned rule."""
        check_is_fitted(self)
        if self.decision_ is None:
            return self.estimator_.predict(X)
        return self.classes_[self.decision_.rule.predict(*score_rows(self.estimator_, X, self.classes_))]

    @available_if(_has("predict_proba"))
    def predict_proba(self, X: Any) -> np.ndarray:
        """The estimator's own probabilities; `predict` follows the rule, not the largest probability."""
        check_is_fitted(self)
        return self.estimator_.predict_proba(X)

    @available_if(_has("predict_log_proba"))
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The estimator's own log-probabilities."""
        check_is_fitted(self)
        return self.estimator_.predict_log_proba(X)

    @available_if(_has("decision_function"))
    def decision_function(self, X: Any) -> np.ndarray:
        """The estimator's own scores."""
        check_is_fitted(self)
        return self.estimator_.decision_function(X)

    def get_metadata_routing(self) -> MetadataRouter:
        """The metadata that `fit` passes to the estimator and to the splitter."""
        to_fit = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=self).add_self_request(self).add(estimator=self.estimator, method_mapping=to_fit)
        if not self._is_prefit:
            to_split = MethodMapping().add(caller="fit", callee="split")
            router.add(splitter=check_cv(self.cv, classifier=True), method_mapping=to_split)
        return router

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import get_tags

        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags, tags.classifier_tags = inner.input_tags, inner.classifier_tags
        return tags

    @property
    def _is_prefit(self) -> bool:
        is_word = isinstance(self.cv, str) and self.cv == "prefit"
        return is_word or type(self.estimator).__name__ == "FrozenEstimator"

    def _tune(
        self,
        goal: Goal,
        important: tuple[int, ...],
        X: Any,
        y: np.ndarray,
        groups: Any,
        for_fit: Mapping[str, Any],
        weights: Any,
    ) -> None:
        codes = _codes(y, self.classes_)
        if self._is_prefit:
            parts = [np.arange(len(codes))]
            scored = [score_rows(self.estimator_, X, self.classes_)]
        else:
            pairs = list(self._splits(X, y, groups))
            parts = [held_out for _, held_out in pairs]
            jobs = (delayed(_score_fold)(clone(self.estimator), X, y, *pair, for_fit, self.classes_) for pair in pairs)
            scored = Parallel(n_jobs=self.n_jobs)(jobs)
        rows, kind = np.concatenate(parts), scored[0][1]
        scores = exact(np.concatenate([part for part, _ in scored]), codes[rows], important, kind)
        units = None if groups is None else np.asarray(groups)[rows]
        if units is None and len(np.unique(rows)) < len(rows):  # repeated folds
            units = rows
        counted = None if weights is None else np.asarray(weights, dtype=np.float64)[rows]
        for index in important:
            if counted is not None and not counted[scores.labels == index].any():
                label = self.classes_[index].item()
                raise InputError(f"sample_weight is 0 for every row of {label!r}, which is important", "sample_weight")
        self.decision_ = tune(scores, goal, rule=self.rule, groups=units, weights=counted)
        if self.decision_ is None:
            raise InputError(self._refusal(goal, scores, units), argument="at_least")
        self.promise_ = self.decision_.promise
        ends = np.cumsum([len(part) for part in parts])
        folds = [scores.take(np.arange(end - len(part), end)) for part, end in zip(parts, ends, strict=True)]
        self.cv_results_ = {"num_rows": np.array([len(part) for part in parts])}
        for suffix, decision in (("_before", 0.0), ("", self.decision_.rule)):
            self.cv_results_ |= {
                f"recall{suffix}": np.array([fold.recall(decision) for fold in folds]),
                f"accuracy{suffix}": np.array([fold.accuracy(decision) for fold in folds]),
                f"false_alarms{suffix}": np.array([fold.false_alarms(decision).mean() for fold in folds]),
            }

    def _splits(self, X: Any, y: np.ndarray, groups: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        is_number = isinstance(self.cv, (int, np.integer)) and not isinstance(self.cv, bool)
        if groups is not None and is_number:
            return StratifiedGroupKFold(int(self.cv)).split(X, y, groups)
        splitter = check_cv(self.cv, y, classifier=True)
        return splitter.split(X, y) if groups is None else splitter.split(X, y, groups)

    def _refusal(self, goal: Goal, scores: Scores, groups: Any) -> str:
        """Message that no rule meets the goal, why, and what to do."""
        if not isinstance(goal, AtLeast):
            return "no threshold keeps the accuracy; give rule='shift' or a larger max_accuracy_drop"
        names = [repr(self.classes_[index].item()) for index in scores.important]
        chosen = "threshold" if self.rule == "auto" else self.rule
        wrong = f"a recall of {goal.recall:g} of {' and '.join(names)} cannot be"
        if goal.confidence is None:
            return f"{wrong} reached by any {chosen}; give a lower at_least"
        made = promise(scores, goal.recall, goal.confidence, rule=chosen, groups=groups)
        units = "rows" if groups is None else "groups"
        remedy = "give a lower at_least, or confidence=None to reach it on the rows seen only"
        few = [f"{name} has {num}" for name, num in zip(names, made.num_units, strict=True) if num < made.fewest]
        if few:
            return f"{wrong} promised: it takes {made.fewest} {units}, and {', '.join(few)}; give more, or {remedy}"
        found = ", ".join(f"{hits}/{num}" for hits, num in zip(made.hits, made.num, strict=True))
        return f"{wrong} promised: no {chosen} finds more than {found} of the held-out rows; {remedy}"


def _score_fold(
    estimator: Any,
    X: Any,
    y: np.ndarray,
    fitted: np.ndarray,
    held_out: np.ndarray,
    for_fit: Mapping[str, Any],
    classes: np.ndarray,
) -> tuple[np.ndarray, str]:
    """Fit on one side of a split and score the other."""
    own = {
        name: _safe_indexing(value, fitted) if hasattr(value, "__len__") and len(value) == len(y) else value
        for name, value in for_fit.items()
    }
    estimator.fit(_safe_indexing(X, fitted), y[fitted], **own)
    return score_rows(estimator, _safe_indexing(X, held_out), classes)


@dataclass(eq=False, kw_only=True)
class DecisionDisplay:
    """Plot of recall against false alarms for every value of a rule; made by `from_estimator`.

    false_alarms, recall: of each state of the rule (K,), as a share of all rows, and mean over the important classes.
    points: {name: (false alarms, recall)}, "as it is" and "tuned".
    """

    false_alarms: np.ndarray
    recall: np.ndarray
    points: Mapping[str, tuple[float, float]]
    name: str

    @classmethod
    def from_estimator(
        cls, estimator: ImportantClassifier, X: Any, y: Any, *, name: str | None = None, ax: Any = None, **line: Any
    ) -> "DecisionDisplay":
        """Plot the curve of a fitted `ImportantClassifier` on some rows; `line` is passed to matplotlib's `plot`."""
        check_is_fitted(estimator)
        if estimator.decision_ is None:
            raise InputError("the classifier has no important class and no rule; give it `important`", "estimator")
        rule, codes = estimator.decision_.rule, _codes(np.asarray(y), estimator.classes_)
        table, kind = score_rows(estimator.estimator_, X, estimator.classes_)
        scores = exact(table, codes, tuple(rule.values), kind)
        curve = trace(scores, rule.name)
        points = {
            title: (float(scores.false_alarms(decision).mean()), float(scores.recall(decision).mean()))
            for title, decision in (("as it is", 0.0), ("tuned", rule))
        }
        display = cls(
            false_alarms=curve.alarms / curve.total,
            recall=curve.mean_recall,
            points=points,
            name=name or type(estimator.estimator).__name__,
        )
        return display.plot(ax=ax, **line)

    def plot(self, ax: Any = None, *, name: str | None = None, **line: Any) -> "DecisionDisplay":
        """Draw into `ax`, or into new axes; sets `ax_`, `figure_` and `line_`."""
        require("a display", "matplotlib", install="matplotlib")
        from matplotlib import pyplot

        if ax is None:
            _, ax = pyplot.subplots()
        (self.line_,) = ax.plot(self.false_alarms, self.recall, **{"label": name or self.name, **line})
        for (title, (alarms, recall)), marker in zip(self.points.items(), "os", strict=True):
            how = {"color": self.line_.get_color(), "fillstyle": "none" if marker == "o" else "full"}
            ax.plot(alarms, recall, marker, label=title, **how)
        ax.set(xlabel="False alarms (share of all rows)", ylabel="Recall of the important classes")
        ax.legend(loc="lower right")
        self.ax_, self.figure_ = ax, ax.figure
        return self
