"""`fit`: data in, a chosen model with its evidence out.

Names are imported on first use, so importing this package does not import torch.
"""

from typing import TYPE_CHECKING

from camri.imports import on_first_use

if TYPE_CHECKING:
    from camri.fitting.handover import Fitted as Fitted
    from camri.fitting.job import Unfinished as Unfinished
    from camri.fitting.job import fit as fit
    from camri.fitting.request import Progress as Progress

__all__ = ["Fitted", "Progress", "Unfinished", "fit"]
__getattr__, __dir__ = on_first_use(__name__, job=["Unfinished", "fit"], request=["Progress"], handover=["Fitted"])
