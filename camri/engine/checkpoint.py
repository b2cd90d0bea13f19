"""Half-trained trials on disk: tensors and plain JSON in one safetensors file, written whole or not at all."""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

VERSION = "1"


def write(path: Path, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
    """Nothing; the file at `path` is the new one, even after a power cut, or the old one."""
    data = save({name: t.detach().contiguous() for name, t in tensors.items()}, {"v": VERSION, "n": json.dumps(notes)})
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def read(path: Path, engine: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and notes of a checkpoint; None where there is none that this engine ("cpu", "cuda") wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("v") != VERSION:
                return None
            notes = json.loads(header["n"])
            if notes["engine"] != engine:
                return None
            return {name: file.get_tensor(name) for name in file.keys()}, notes  # noqa: SIM118
    except (FileNotFoundError, SafetensorError, json.JSONDecodeError, KeyError):
        return None


def remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
