"""Raise the recall of the classes you cannot afford to miss, and see what it costs.

Public names and submodules are imported on first use, so that `camri --help` starts without torch.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> its module.
_PUBLIC = {
    "CamriClassifier": "fitting.classifier",
    "CamriLoss": "modules",
    "CosineHead": "heads",
    "ImportantClassifier": "decision.estimator",
    "InputError": "errors",
    "LinearHead": "heads",
    "LogitAdjustedLoss": "modules",
    "TwoSidedMarginLoss": "modules",
    "WeightedCrossEntropyLoss": "modules",
    "audit": "decision",
    "check": "decision.check",
    "compare": "decision.versus",
    "fit": "fitting",
    "load": "export",
    "replace_head": "heads",
}

__all__ = [
    "CamriClassifier",
    "CamriLoss",
    "CosineHead",
    "ImportantClassifier",
    "InputError",
    "LinearHead",
    "LogitAdjustedLoss",
    "TwoSidedMarginLoss",
    "WeightedCrossEntropyLoss",
    "__version__",
    "audit",
    "check",
    "compare",
    "fit",
    "load",
    "replace_head",
]
_MODULES = {module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")}

if TYPE_CHECKING:
    from camri.decision.audit import audit
    from camri.decision.check import check
    from camri.decision.estimator import ImportantClassifier
    from camri.decision.versus import compare
    from camri.errors import InputError
    from camri.export import load
    from camri.fitting import fit
    from camri.fitting.classifier import CamriClassifier
    from camri.heads import CosineHead, LinearHead, replace_head
    from camri.modules import CamriLoss, LogitAdjustedLoss, TwoSidedMarginLoss, WeightedCrossEntropyLoss


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        from camri.errors import needing

        with needing(f"camri.{name}"):
            return getattr(importlib.import_module(f"camri.{_PUBLIC[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"camri.{name}")
    raise AttributeError(f"module 'camri' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
