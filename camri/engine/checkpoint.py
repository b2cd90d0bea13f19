"""Half-trained trials on disk: tensors and plain JSON in one safetensors file, written whole or not at all."""

import contextlib
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

CHECKPOINT_VERSION = "1"
UNREADABLE = (FileNotFoundError, SafetensorError, json.JSONDecodeError, KeyError)


def write_checkpoint(path: Path, tensors: dict[str, Tensor], notes: dict[str, Any]) -> bool:
    """Write a checkpoint and return whether that worked; even after a power cut the file is the new or the old one.

    A full or read-only disk does not end the trial: it warns, and training continues.
    """
    data = save(
        {name: t.detach().contiguous() for name, t in tensors.items()},
        {"v": CHECKPOINT_VERSION, "n": json.dumps(notes)},
    )
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        warnings.warn(f"no checkpoint at {path}: {error}; a trial that is stopped now starts over", stacklevel=2)
        return False
    return True


def read_checkpoint(path: Path, engine: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and notes of a checkpoint; None if there is none that this engine ("cpu", "cuda") wrote."""
    return _read(path, engine, lambda file: {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118


def read_notes(path: Path, engine: str) -> dict[str, Any] | None:
    """The notes of a checkpoint without its tensors."""
    found = _read(path, engine, lambda file: {})
    return None if found is None else found[1]


def _read(path: Path, engine: str, tensors_of: Callable[[Any], dict[str, Tensor]]) -> Any:
    try:
        with safe_open(path, framework="pt") as file:  # once: a dying worker may replace the file meanwhile
            header = file.metadata() or {}
            notes = json.loads(header["n"])
            is_ours = header.get("v") == CHECKPOINT_VERSION and notes.get("engine") == engine
            return (tensors_of(file), notes) if is_ours else None
    except UNREADABLE:
        return None
