"""Data sets of the paper and the user's own: `load` one, `hold_out` a part of it, feed it through `batches`.

Names are imported when they are first asked for, so importing this package does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from camri.data.catalog import load as load
    from camri.data.dataset import DataSet as DataSet
    from camri.data.dataset import Split as Split
    from camri.data.splits import hold_out as hold_out
    from camri.data.splits import make_test as make_test
    from camri.data.splits import thin_out as thin_out

_HOME = {
    "load": "catalog",
    "DataSet": "dataset",
    "Split": "dataset",
    "hold_out": "splits",
    "make_test": "splits",
    "thin_out": "splits",
}
__all__ = ["DataSet", "Split", "hold_out", "load", "make_test", "thin_out"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
