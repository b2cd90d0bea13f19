"""The engine: trials in, outcomes out. Names are imported on first use, so importing the package needs no torch."""

from typing import TYPE_CHECKING

from camri.imports import on_first_use

if TYPE_CHECKING:
    from camri.engine.cpu import Pool as Pool
    from camri.engine.outcome import Hooks as Hooks
    from camri.engine.outcome import Outcome as Outcome
    from camri.engine.outcome import Progress as Progress
    from camri.engine.replica import Job as Job
    from camri.engine.spec import FAST as FAST
    from camri.engine.spec import PAPER as PAPER
    from camri.engine.spec import Training as Training
    from camri.engine.spec import Trial as Trial
    from camri.engine.training import Stopped as Stopped
    from camri.engine.training import train as train
    from camri.engine.training import train_job as train_job

__all__ = [
    "FAST", "PAPER", "Hooks", "Job", "Outcome", "Pool", "Progress", "Stopped", "Training", "Trial", "train", "train_job"
]  # fmt: skip
__getattr__, __dir__ = on_first_use(
    __name__,
    cpu=["Pool"],
    outcome=["Hooks", "Outcome", "Progress"],
    replica=["Job"],
    spec=["FAST", "PAPER", "Training", "Trial"],
    training=["Stopped", "train", "train_job"],
)
