"""Turn important classes and their strengths into the vectors and matrices of the losses.

`classes` is the number of classes, the list of their names in the order of the logits, or a mapping between names and
indices; an important class is given by name or index.
"""

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real

import numpy as np
import torch
from torch import Tensor

from camri.errors import InputError, closest
from camri.names import Names, class_names

ClassKey = str | int
Classes = int | Names


def class_index(key: ClassKey, classes: Classes) -> int:
    """The index of one class, given by name or index.

    >>> class_index("dog", ["cat", "dog"]), class_index(1, 10)
    (1, 1)
    """
    num_classes = _count(classes)
    if isinstance(key, str):
        if isinstance(classes, (int, Integral)):
            raise InputError(f"important class {key!r} is a name, but no class names are known; give classes=[…]")
        names = list(class_names(classes))
        if key not in names:
            key = unicodedata.normalize("NFC", key)  # as class names are; macOS writes accents as separate characters
        if (num := names.count(key)) != 1:
            wrong = f"is the name of {num} classes; give its index" if num else f"is not a class; {closest(key, names)}"
            raise InputError(f"important class {key!r} {wrong}")
        return names.index(key)
    if isinstance(key, bool) or not isinstance(key, (int, Integral)) or not 0 <= key < num_classes:
        raise InputError(
            f"important class {key!r} is not a class; give an index from 0 to {num_classes - 1}, or a name"
        )
    return int(key)


def strengths(
    important: Mapping[ClassKey, float] | Iterable[ClassKey] | str | int, classes: Classes
) -> dict[int, float]:
    """Class index -> strength, in the order of the classes; a bare class or list of classes has strength 1.

    >>> strengths({"dog": 0.3, "cat": 0.2}, ["cat", "dog", "bird"])
    {0: 0.2, 1: 0.3}
    >>> strengths("bird", ["cat", "dog", "bird"])
    {2: 1.0}
    """
    if isinstance(important, Mapping):
        given = dict(important)
    else:
        given = dict.fromkeys([important] if isinstance(important, (str, int, Integral)) else important, 1.0)
    found: dict[int, float] = {}
    for key, strength in given.items():
        index = class_index(key, classes)
        if index in found:
            raise InputError(f"important class {key!r} was given twice; give it once")
        number = strength.item() if isinstance(strength, (Tensor, np.ndarray)) and not strength.ndim else strength
        if not (isinstance(number, (int, float, Real)) and math.isfinite(number) and float(number) >= 0):
            raise InputError(
                f"strength {strength!r} of class {key!r} is not allowed; give a finite number of at least 0"
            )
        found[index] = float(number)
    return dict(sorted(found.items()))


def important_vector(classes: Classes, important: Mapping[ClassKey, float], elsewhere: float = 0.0) -> Tensor:
    """A vector (C,) with the strength of each important class, and `elsewhere` for all others.

    For margins of CAMRI (0 elsewhere), weights of WCE and of CRWWCE's false negatives (1 elsewhere).

    >>> important_vector(["cat", "dog", "bird"], {"dog": 0.3})
    tensor([0.0000, 0.3000, 0.0000])
    """
    vector = torch.full((_count(classes),), float(elsewhere))
    for index, strength in strengths(important, classes).items():
        vector[index] = strength
    return vector


def important_matrix(classes: Classes, important: Mapping[ClassKey, float]) -> Tensor:
    """A matrix (C, C): rows and columns of the important classes at their strength, the rest 1, the diagonal 0.

    The paper's costs for CRWWCE's false positives and for the Wasserstein loss. Between two important classes it is the
    larger strength.

    >>> important_matrix(3, {0: 2.5})
    tensor([[0.0000, 2.5000, 2.5000],
            [2.5000, 0.0000, 1.0000],
            [2.5000, 1.0000, 0.0000]])
    """
    strength_at = important_vector(classes, important, elsewhere=-math.inf)
    matrix = torch.maximum(strength_at.unsqueeze(0), strength_at.unsqueeze(1))
    return matrix.masked_fill(matrix == -math.inf, 1.0).fill_diagonal_(0.0)


def ldam_margins(class_counts: Sequence[int] | Tensor, max_margin: float = 0.5) -> Tensor:
    """LDAM's cosine margins (C,) from class frequencies: max_margin · (n_min / n)^¼.

    >>> ldam_margins([16, 256])
    tensor([0.5000, 0.2500])
    """
    counts = _counts(class_counts)
    return max_margin * (counts.min() / counts) ** 0.25


def log_priors(class_counts: Sequence[int] | Tensor, tau: float = 1.0) -> Tensor:
    """Logit adjustments (C,) from class frequencies: tau · log(n / Σn).

    >>> log_priors([1, 3]).exp()
    tensor([0.2500, 0.7500])
    """
    counts = _counts(class_counts)
    return tau * (counts / counts.sum()).log()


def _count(classes: Classes) -> int:
    return int(classes) if isinstance(classes, (int, Integral)) else len(class_names(classes))


def _counts(class_counts: Sequence[int] | Tensor) -> Tensor:
    counts = torch.as_tensor(class_counts, dtype=torch.float32)
    if counts.dim() != 1 or not len(counts) or not bool(((counts > 0) & counts.isfinite()).all()):
        raise InputError(
            f"class_counts={counts.tolist()} are not allowed; give one positive count a class", argument="class_counts"
        )
    return counts
