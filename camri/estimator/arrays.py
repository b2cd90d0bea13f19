"""What people give the estimator, checked: rows, images, important labels."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from camri.errors import InputError, closest

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn before 1.6

    def validate_data(estimator: Any, /, *args: Any, **options: Any) -> Any:
        return estimator._validate_data(*args, **options)


def check_arrays(estimator: Any, X: Any, **checks: Any) -> Any:
    """X as float rows (N, D) or uint8 images (N, H, W, C), and y behind it where that is among the checks.

    What scikit-learn checks and remembers (`n_features_in_`, `feature_names_in_`) is its own; images count as flat.
    """
    if getattr(X, "ndim", 2) > 2:
        images = _as_images(X)
        flat = images.reshape(len(images), math.prod(images.shape[1:]))
        checked = validate_data(estimator, flat, dtype=None, **checks)
        return (images, checked[1]) if "y" in checks else images
    checked = validate_data(estimator, X, dtype=[np.float64, np.float32], **checks)
    rows = checked[0] if "y" in checks else checked
    if max(rows.max(), -rows.min()) > np.finfo(np.float32).max:
        raise InputError("X has values that are too large for dtype('float32'); rescale its features")
    return checked


def _as_images(X: Any) -> np.ndarray:
    images = np.asarray(X)
    images = images[..., None] if images.ndim == 3 else images
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        raise InputError(
            f"X is {images.dtype} {np.shape(X)}; give features (N, D), or images as uint8 (N, H, W) or "
            "(N, H, W, 1 or 3), values 0 to 255"
        )
    return np.ascontiguousarray(images)


def find_important(important: Any, classes: np.ndarray) -> dict[int, float | None]:
    """Class index -> strength, None where only a label was given; by ascending index.

    >>> find_important({"yield": 0.1, "stop": 0.3}, np.array(["limit", "stop", "yield"]))
    {1: 0.3, 2: 0.1}
    """
    if important is None:
        return {}
    if isinstance(important, Mapping):
        given = dict(important)
    else:
        several = isinstance(important, (list, tuple, set, frozenset, np.ndarray))
        given = dict.fromkeys(important if several else [important])
    known = classes.tolist()
    for label in given:
        if label not in known:
            same = [one for one in known if str(one) == str(label)]
            hint = f"give {same[0]!r}, as y has it" if same else closest(label, known)
            if isinstance(label, str) and known == list(range(len(known))):
                hint += (
                    "; where your y has names, a tool has numbered them in sorted order before fitting, as "
                    "cross_val_predict(method='predict_proba') and VotingClassifier do: give the number"
                )
            raise InputError(f"important={label!r} is not a label of y; {hint}")
    if len({strength is None for strength in given.values()}) > 1:
        raise InputError(f"important={important!r} has a strength for some classes only; give one for each, or none")
    if len(given) == len(known):
        raise InputError(f"important={important!r} names all {len(known)} classes; leave at least one out")
    return dict(sorted((known.index(label), strength) for label, strength in given.items()))
