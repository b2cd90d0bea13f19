"""Data in, chosen model and its proof out: `fit`, the practitioner's whole job.

Names are imported when they are first asked for, so importing this package does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from camri.fitting.job import Unfinished as Unfinished
    from camri.fitting.job import fit as fit
    from camri.fitting.result import Figures as Figures
    from camri.fitting.result import Fitted as Fitted
    from camri.fitting.result import Handed as Handed
    from camri.fitting.result import Interval as Interval
    from camri.fitting.result import Step as Step
    from camri.fitting.workshop import Progress as Progress

_HOME = {
    "Figures": "result",
    "Fitted": "result",
    "Handed": "result",
    "Interval": "result",
    "Progress": "workshop",
    "Step": "result",
    "Unfinished": "job",
    "fit": "job",
}
__all__ = ["Figures", "Fitted", "Handed", "Interval", "Progress", "Step", "Unfinished", "fit"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
