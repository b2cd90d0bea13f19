"""A model trained elsewhere, judged from a table of its scores: what its important classes could gain for free.

No training, and no torch. Names are imported when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from camri.audit.result import Audit as Audit
    from camri.audit.table import Scored as Scored
    from camri.audit.table import read_scores as read_scores
    from camri.audit.verdict import audit as audit

_HOME = {"Audit": "result", "Scored": "table", "audit": "verdict", "read_scores": "table"}
__all__ = ["Audit", "Scored", "audit", "read_scores"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
