"""Class names in the order of the scores, from a list or from a mapping between names and indices."""

import reprlib
from collections.abc import Mapping, Sequence, Set
from numbers import Integral
from typing import Any

from camri.errors import InputError

Names = Sequence[str] | Mapping[str, int] | Mapping[int, str]


def class_names(classes: Names) -> Sequence[str]:
    """The class names in the order of the scores, from a list or from a mapping of the indices 0 … C − 1.

    >>> class_names({"yield": 2, "limit": 0, "stop": 1})  # torchvision's class_to_idx, Hugging Face's label2id
    ['limit', 'stop', 'yield']
    >>> class_names({1: "stop", 0: "limit"})  # id2label
    ['limit', 'stop']
    """
    if isinstance(classes, Mapping):
        pairs: list[tuple[Any, Any]] = list(classes.items())
        if pairs and isinstance(pairs[0][0], str):
            pairs = [(index, name) for name, index in pairs]
        if sorted(index for index, _ in pairs if isinstance(index, (int, Integral))) == list(range(len(pairs))):
            return [name for _, name in sorted(pairs)]
        wrong = f"does not have each index from 0 to {len(pairs) - 1} once, as an int"
    elif isinstance(classes, (str, Set)) or not hasattr(classes, "__len__"):
        wrong = "is not a list"
    else:
        return classes
    hint = "give the class names as a list, in the order of the scores"
    raise InputError(f"classes={reprlib.repr(classes)} {wrong}; {hint}", argument="classes")
