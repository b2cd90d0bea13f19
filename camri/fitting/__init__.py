"""Data in, chosen model and its proof out: `fit`, the practitioner's whole job.

Names are imported when they are first asked for, so importing this package does not import torch.
"""

from typing import TYPE_CHECKING

from camri.imports import on_first_use

if TYPE_CHECKING:
    from camri.fitting.job import Unfinished as Unfinished
    from camri.fitting.job import fit as fit
    from camri.fitting.result import Figures as Figures
    from camri.fitting.result import Fitted as Fitted
    from camri.fitting.result import Handed as Handed
    from camri.fitting.result import Interval as Interval
    from camri.fitting.result import Step as Step
    from camri.fitting.trainer import Progress as Progress

__all__ = ["Figures", "Fitted", "Handed", "Interval", "Progress", "Step", "Unfinished", "fit"]
__getattr__, __dir__ = on_first_use(
    __name__,
    job=["Unfinished", "fit"],
    result=["Figures", "Fitted", "Handed", "Interval", "Step"],
    trainer=["Progress"],
)
