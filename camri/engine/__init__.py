"""Trials in, outcomes out: `train` many models side by side, each as if it were alone.

Names are imported when they are first asked for, so importing this package does not import torch.
"""

from typing import TYPE_CHECKING

from camri.imports import on_first_use

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

__all__ = ["FAST", "PAPER", "Outcome", "Pool", "Progress", "Stopped", "Training", "Trial", "train"]
__getattr__, __dir__ = on_first_use(
    __name__,
    cpu=["Pool"],
    outcome=["Outcome", "Progress"],
    spec=["FAST", "PAPER", "Training", "Trial"],
    training=["Stopped", "train"],
)
