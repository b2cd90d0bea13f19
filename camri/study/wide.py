"""Scores of all classes, kept while it is not yet known which of them will be important.

Leads over class 0 of every other class say all that full logits say, up to a constant, and they keep the order of
classes exactly (see `metrics.condense`). So what any class predicts is the same to the image; a lead between two other
classes is rounded twice.
"""

from collections.abc import Sequence

import numpy as np

from camri.metrics import Scores, condense


def all_but_first(num_classes: int) -> tuple[int, ...]:
    """The important classes to keep scores of when all may be wanted."""
    return tuple(range(1, num_classes))


def narrow(scores: Scores, important: Sequence[int], num_classes: int) -> Scores:
    """The scores of some of the classes, out of those of more or of all.

    >>> wide = condense(np.array([[2.0, 1.0, 0.5]]), labels=[0], important=(1, 2))
    >>> narrow(wide, (0,), num_classes=3).lead.tolist()
    [[1.0]]
    """
    wanted = tuple(sorted(important))
    if wanted == scores.important:
        return scores
    if set(wanted) <= set(scores.important) or scores.important != all_but_first(num_classes):
        return scores.only(wanted)
    first = np.zeros((len(scores), 1))
    return condense(np.concatenate([first, scores.shifted()], axis=1), scores.labels, wanted)
