"""A data set on its way to another process: plain facts, and arrays that travel however the way wants them to."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from camri.data import DataSet, Split


def ship(data: DataSet, put: Callable[[str, np.ndarray], Any]) -> dict[str, Any]:
    """The data set as plain values; what `put(name, array)` returns stands for each of its arrays."""
    parts: dict[str, dict[str, Any]] = {}
    for name, split in data.splits.items():
        parts[name] = {}
        for field in ("inputs", "labels", "groups"):
            tensor = getattr(split, field)
            parts[name][field] = None if tensor is None else put(f"{name}-{field}", tensor.cpu().numpy())
    return {
        "name": data.name,
        "classes": data.classes,
        "fingerprint": data.fingerprint,
        "provenance": dict(data.provenance),
        "parts": parts,
    }


def unship(manifest: dict[str, Any], get: Callable[[Any], np.ndarray]) -> DataSet:
    """The data set of :func:`ship`; `get` gives the array back for what stands for it. Nothing is copied."""

    def tensor(stand_in: Any) -> torch.Tensor | None:
        return None if stand_in is None else torch.from_numpy(get(stand_in))

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is not writable")  # and nobody writes into a data set
        splits = {name: Split(**{k: tensor(v) for k, v in part.items()}) for name, part in manifest["parts"].items()}  # type: ignore[arg-type]
    known = {key: manifest[key] for key in ("name", "classes", "fingerprint", "provenance")}
    return DataSet(splits=splits, **known)
