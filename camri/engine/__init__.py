"""Trials in, outcomes out: `train` many models side by side, each as if it were alone.

Names are imported when they are first asked for, so importing this package does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from camri.engine.cpu import Pool as Pool
    from camri.engine.outcome import Outcome as Outcome
    from camri.engine.outcome import Progress as Progress
    from camri.engine.spec import FAST as FAST
    from camri.engine.spec import PAPER as PAPER
    from camri.engine.spec import Training as Training
    from camri.engine.spec import Trial as Trial
    from camri.engine.training import Stopped as Stopped
    from camri.engine.training import train as train

_HOME = {
    "FAST": "spec",
    "Outcome": "outcome",
    "PAPER": "spec",
    "Pool": "cpu",
    "Progress": "outcome",
    "Stopped": "training",
    "Training": "spec",
    "Trial": "spec",
    "train": "training",
}
__all__ = ["FAST", "PAPER", "Outcome", "Pool", "Progress", "Stopped", "Training", "Trial", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
