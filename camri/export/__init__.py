"""A trained model as files that anybody can use: save, load, predict, ONNX, torch.export.

Names are imported when they are first asked for, so importing this package does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from camri.export.files import load as load
    from camri.export.files import save as save
    from camri.export.model import Model as Model
    from camri.export.onnx_file import write_onnx as write_onnx
    from camri.export.program import write_program as write_program
    from camri.export.trained import Trained as Trained

_HOME = {
    "Model": "model",
    "Trained": "trained",
    "load": "files",
    "save": "files",
    "write_onnx": "onnx_file",
    "write_program": "program",
}
__all__ = ["Model", "Trained", "load", "save", "write_onnx", "write_program"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
