"""Judge a trained model from a table of its scores: no training, no torch."""

from typing import TYPE_CHECKING

from camri.imports import on_first_use

if TYPE_CHECKING:
    from camri.auditing.scores import Scored as Scored
    from camri.auditing.scores import read_scores as read_scores
    from camri.auditing.verdict import Audit as Audit
    from camri.auditing.verdict import audit as audit

__all__ = ["Audit", "Scored", "audit", "read_scores"]
__getattr__, __dir__ = on_first_use(__name__, scores=["Scored", "read_scores"], verdict=["Audit", "audit"])
