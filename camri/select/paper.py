"""The paper's rule, which chooses by the test images it is shown on; kept to reproduce the paper's tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from camri.posthoc import SLACK

OPTIMISTIC = "chosen on the test set: optimistic"


@dataclass(frozen=True)
class Measured:
    """A setting's recall (the important classes' mean) and accuracy on the test images, one number a seed."""

    key: str
    recall: tuple[float, ...]
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class PaperChoice:
    """What the paper's rule kept; its means are those the choice was made by."""

    key: str
    recall: float
    accuracy: float
    optimistic: bool = field(default=True, init=False)
    note: str = field(default=OPTIMISTIC, init=False)


def choose_as_paper(baseline: Measured, settings: Sequence[Measured]) -> PaperChoice | None:
    """The setting of the highest mean recall whose mean accuracy is not below the baseline's; None: a blank cell.

    Equal recalls: the first. It is chosen by the test images it is shown on, so what it gains is partly luck.

    >>> ce = Measured("ce", (0.70,), (0.88,))
    >>> choose_as_paper(ce, [Measured("w=4", (0.75,), (0.88,)), Measured("w=8", (0.80,), (0.87,))]).key
    'w=4'
    """
    recall = np.array([np.mean(one.recall) for one in settings])
    accuracy = np.array([np.mean(one.accuracy) for one in settings])
    kept = accuracy >= np.mean(baseline.accuracy) - SLACK
    if not kept.any():
        return None
    index = int(np.where(kept, recall, -np.inf).argmax())
    return PaperChoice(settings[index].key, float(recall[index]), float(accuracy[index]))


def mark_best(cells: Mapping[str, PaperChoice | None]) -> set[str]:
    """The methods of a column to print in bold: those with the highest recall that is shown.

    >>> mark_best({"ce": PaperChoice("ce", 0.7, 0.9), "wce": None, "camri": PaperChoice("m=4", 0.8, 0.9)})
    {'camri'}
    """
    shown = {method: cell.recall for method, cell in cells.items() if cell is not None}
    return {method for method, recall in shown.items() if recall >= max(shown.values()) - SLACK}
