"""A fitted estimator as a model's folder, and back: what JSON holds beside the trained model."""

from collections.abc import ItemsView, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from camri.estimator.classifier import CamriClassifier


def describe(estimator: "CamriClassifier") -> dict[str, Any]:
    """What `restore` needs, as plain JSON."""
    params = estimator.get_params(deep=False)
    if not isinstance(params["random_state"], (int, np.integer)):
        params["random_state"] = None  # a generator cannot be written
    # Pairs, since JSON's keys are text and labels may be numbers.
    mappings = {name: _plain(value.items()) for name, value in params.items() if isinstance(value, Mapping)}
    names = getattr(estimator, "feature_names_in_", None)
    return {
        "params": {name: _plain(value) for name, value in params.items() if name not in mappings},
        "mappings": mappings,
        "labels": estimator.classes_.tolist(),
        "label_dtype": estimator.classes_.dtype.str,
        "feature_names": None if names is None else names.tolist(),
        "loss_curve": estimator.loss_curve_.tolist(),
        "validation": estimator.validation_,
    }


def restore(kind: type["CamriClassifier"], notes: Mapping[str, Any]) -> "CamriClassifier":
    """The estimator with its parameters and what it learned beside the trained model."""
    params = {**notes["params"], **{name: dict(map(tuple, pairs)) for name, pairs in notes["mappings"].items()}}
    found = kind(**params)
    found.classes_ = np.array(notes["labels"], dtype=np.dtype(notes["label_dtype"]))
    found.loss_curve_ = np.array(notes["loss_curve"], dtype=float)
    found.validation_ = notes["validation"]
    if notes["feature_names"] is not None:
        found.feature_names_in_ = np.array(notes["feature_names"], dtype=object)
    return found


def _plain(value: Any) -> Any:
    """The value as JSON has it: lists for collections, Python's numbers for numpy's."""
    if isinstance(value, (list, tuple, set, frozenset, np.ndarray, ItemsView)):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def write_card(estimator: "CamriClassifier") -> str:
    """README.md of the saved model."""
    trained, chosen_on = estimator.trained_, estimator.validation_
    important = ", ".join(map(str, estimator.important_.tolist()))
    lines = [
        "# A classifier trained with camri",
        "",
        f"- method: {trained.setting}",
        f"- model: {trained.training.model}, {trained.training.epochs} epochs, {sum(trained.class_counts)} rows",
        f"- input: {'image' if trained.is_image else 'features'} {trained.input_shape}",
        f"- classes: {', '.join(trained.classes)}",
    ]
    if important:
        lines.append(f"- important: {important}; added to their logits: {_numbers(trained.shift)}")
    if chosen_on is not None:
        lines.append(
            f"- on the {chosen_on['num_rows']} rows the shift was chosen on, before and after it: recall "
            f"{_numbers(chosen_on['recall_before'])} and {_numbers(chosen_on['recall'])}, accuracy "
            f"{chosen_on['accuracy_before']:.3f} and {chosen_on['accuracy']:.3f}; measure on rows of your own"
        )
    lines += ["", "```python", 'model = camri.CamriClassifier.load("path/to/this/folder")', "model.predict(X)", "```"]
    return "\n".join(lines) + "\n"


def _numbers(values: Any) -> str:
    return ", ".join(f"{value:.3f}" for value in values)
