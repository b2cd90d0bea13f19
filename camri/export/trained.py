"""A trained model with everything that is needed to use it, as one plain value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from camri.data import DataSet
from camri.engine import Outcome, Training
from camri.errors import InputError
from camri.methods import Setting

LONGEST_SHOWN = 200  # characters of a value that is refused: a mean has a number for each of thousands of features
Standardise = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model with everything that is needed to use it.

    input_shape: (H, W, C) of uint8 images, (D,) of float32 features.
    class_counts: rows of the train split (some losses need them).
    important: class indices; shift: one number for each, added to its logit; 0.0 where there is none.
    weights: the state of a `camri.models.Classifier`; batch norm's counters may be missing.
    preprocessing: plain JSON that says how a file becomes an input.
    standardise: features only, (mean, sd), one number a feature: the model sees (x − mean) / sd, in float32.
    """

    setting: Setting
    training: Training
    seed: int
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    is_image: bool
    class_counts: tuple[int, ...]
    important: tuple[int, ...]
    shift: tuple[float, ...]
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
        need(all(name.isprintable() for name in self.classes), "classes", "give printable names")
        fits = len(self.input_shape) == (3 if self.is_image else 1) and all(size >= 1 for size in self.input_shape)
        need(fits, "input_shape", "give (H, W, C) of images or (D,) of features")
        need(len(self.class_counts) == num, "class_counts", f"give {num} numbers, one a class")
        indices = all(0 <= index < num for index in self.important) and len(set(self.important)) == len(self.important)
        need(indices and len(self.important) < num, "important", f"give different classes of 0 … {num - 1}, not all")
        matching = len(self.shift) == len(self.important) and bool(np.isfinite(_as_float32(self.shift)).all())
        need(matching, "shift", f"give {len(self.important)} finite numbers, one for each important class, in float32")
        if self.standardise is not None:
            need(not self.is_image, "standardise", "it is for features, and these are images")
            mean, sd = self.standardise
            finite = bool(np.isfinite(_as_float32((*mean, *sd))).all() and (_as_float32(sd) > 0).all())
            whole = len(mean) == len(sd) == self.input_shape[0]
            allowed = "give (mean, sd), finite in float32, one number a feature, every sd above 0"
            need(whole and finite, "standardise", allowed)

    @property
    def is_cropped(self) -> bool:
        """True where the training images were cropped to the object's box, so that whole ones are strange to it."""
        return bool(self.preprocessing.get("roi"))

    @staticmethod
    def of(
        outcome: Outcome,
        data: DataSet,
        important: Sequence[int],
        shift: Sequence[float] | float = 0.0,
        standardise: Standardise | None = None,
    ) -> "Trained":
        """The model that `train(..., keep_weights=True)` left, on the data it was trained on."""
        if outcome.weights is None:
            why = outcome.error or "train it with keep_weights=True"
            raise InputError(
                f"the outcome of {outcome.trial.setting}, seed {outcome.trial.seed}, has no weights; {why}"
            )
        shifts = [float(shift)] * len(important) if isinstance(shift, (int, float)) else map(float, shift)
        return Trained(
            setting=outcome.trial.setting,
            training=outcome.training,
            seed=outcome.trial.seed,
            classes=data.classes,
            input_shape=data.input_shape,
            is_image=data.is_image,
            class_counts=tuple(data.class_counts("train").tolist()),
            important=tuple(int(index) for index in important),
            shift=tuple(shifts),
            weights=outcome.weights,
            preprocessing=preprocessing_of(data),
            standardise=standardise,
        )


def _as_float32(values: Sequence[float]) -> np.ndarray:
    """The numbers as the model has them: what is too large for it is infinite, what is too small is 0."""
    with np.errstate(over="ignore"):
        return np.array(values, dtype=np.float32)


def preprocessing_of(data: DataSet) -> dict[str, Any]:
    """How a file becomes an input of this data set, as plain JSON: the size and mode of images, a table's columns."""
    told = data.provenance
    if not data.is_image:
        names = ("feature_columns", "num_feature_columns", "label_column")
        return {name: told[name] for name in names if name in told}
    height, width, channels = data.input_shape
    found: dict[str, Any] = {"size": [height, width], "mode": "L" if channels == 1 else "RGB", "resize": "lanczos"}
    if "path_column" in told:
        found["path_column"] = told["path_column"]
    if told.get("roi"):  # of the source, not of the options: only GTSRB has boxes to crop to
        found["roi"] = True
    return found
