"""Raise the recall of the classes that must not be missed, without giving up accuracy."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> module. They are imported on first use, so that `camri --help` starts without torch.
_PUBLIC = {
    "ArcFaceLoss": "modules",
    "CamriClassifier": "estimator",
    "CamriLoss": "modules",
    "CosFaceLoss": "modules",
    "CosineHead": "heads",
    "CrossEntropyLoss": "modules",
    "FocalLoss": "modules",
    "InputError": "errors",
    "L2SoftmaxLoss": "modules",
    "LdamLoss": "modules",
    "LinearHead": "heads",
    "LogitAdjustedLoss": "modules",
    "OneVsRestLoss": "modules",
    "RealWorldWeightCrossEntropyLoss": "modules",
    "TwoSidedMarginLoss": "modules",
    "VectorScalingLoss": "modules",
    "WassersteinLoss": "modules",
    "WeightedCrossEntropyLoss": "modules",
    "fit": "fitting",
    "load": "export",
    "replace_head": "heads",
}

__all__ = [
    "ArcFaceLoss",
    "CamriClassifier",
    "CamriLoss",
    "CosFaceLoss",
    "CosineHead",
    "CrossEntropyLoss",
    "FocalLoss",
    "InputError",
    "L2SoftmaxLoss",
    "LdamLoss",
    "LinearHead",
    "LogitAdjustedLoss",
    "OneVsRestLoss",
    "RealWorldWeightCrossEntropyLoss",
    "TwoSidedMarginLoss",
    "VectorScalingLoss",
    "WassersteinLoss",
    "WeightedCrossEntropyLoss",
    "__version__",
    "audit",
    "curves",
    "data",
    "engine",
    "export",
    "fit",
    "guarantee",
    "heads",
    "load",
    "losses",
    "methods",
    "metrics",
    "models",
    "penalties",
    "posthoc",
    "replace_head",
    "select",
    "stats",
    "study",
]
_MODULES = {name for name in __all__ if name not in _PUBLIC and not name.startswith("__")}

if TYPE_CHECKING:
    from camri import (
        audit,
        curves,
        data,
        engine,
        export,
        guarantee,
        heads,
        losses,
        methods,
        metrics,
        models,
        penalties,
        posthoc,
        select,
        stats,
        study,
    )
    from camri.errors import InputError
    from camri.estimator import CamriClassifier
    from camri.export import load
    from camri.fitting import fit
    from camri.heads import CosineHead, LinearHead, replace_head
    from camri.modules import (
        ArcFaceLoss,
        CamriLoss,
        CosFaceLoss,
        CrossEntropyLoss,
        FocalLoss,
        L2SoftmaxLoss,
        LdamLoss,
        LogitAdjustedLoss,
        OneVsRestLoss,
        RealWorldWeightCrossEntropyLoss,
        TwoSidedMarginLoss,
        VectorScalingLoss,
        WassersteinLoss,
        WeightedCrossEntropyLoss,
    )


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"camri.{name}")
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"camri.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'camri' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
