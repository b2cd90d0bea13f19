"""Data sets of the paper and the user's own: `load` one, `hold_out` a part of it, feed it in batches (`dataset`).

Names are imported when they are first asked for, so importing this package does not import torch.
"""

from typing import TYPE_CHECKING

from camri.imports import on_first_use

if TYPE_CHECKING:
    from camri.data.catalog import load as load
    from camri.data.dataset import DataSet as DataSet
    from camri.data.dataset import Split as Split
    from camri.data.dataset import hold_out as hold_out
    from camri.data.dataset import make_test as make_test
    from camri.data.dataset import thin_out as thin_out

__all__ = ["DataSet", "Split", "hold_out", "load", "make_test", "thin_out"]
__getattr__, __dir__ = on_first_use(
    __name__, catalog=["load"], dataset=["DataSet", "Split", "hold_out", "make_test", "thin_out"]
)
