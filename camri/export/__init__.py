"""Save, load and export trained models. Names are imported on first use, so importing the package needs no torch."""

from typing import TYPE_CHECKING

from camri.imports import on_first_use

if TYPE_CHECKING:
    from camri.export.folder import load as load
    from camri.export.folder import save as save
    from camri.export.model import Model as Model
    from camri.export.model import Trained as Trained
    from camri.export.model import with_rule as with_rule
    from camri.export.onnx_file import to_onnx as to_onnx
    from camri.export.onnx_file import write_onnx as write_onnx
    from camri.export.onnx_file import write_program as write_program

__all__ = ["Model", "Trained", "load", "save", "to_onnx", "with_rule", "write_onnx", "write_program"]
__getattr__, __dir__ = on_first_use(
    __name__,
    folder=["load", "save"],
    model=["Model", "Trained", "with_rule"],
    onnx_file=["to_onnx", "write_onnx", "write_program"],
)
