"""Measure what the audit's shift gives on fresh rows of made tables, and how often its intervals hold that.

python benchmarks/audit.py                # tuned on nine tenths, as the audit does
python benchmarks/audit.py --folds 2      # halves that tune for each other
python benchmarks/audit.py --group-rows 8             # eight rows a group, half of their noise shared
python benchmarks/audit.py --group-rows 8 --ungrouped # the same, without groups=…
"""

import argparse
from collections.abc import Sequence

import numpy as np

from camri.decision import FALL, Answer, Array, audit, exact, folds

CLASSES = 4
IMPORTANT = 3


def made_rows(
    num_rows: int, bias: float, drawn: np.random.Generator, group_rows: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels, a tenth of them of the important class, whose logits are moved by the bias.

    Consecutive rows are a group: of one class, and half of the noise is the group's. A row's own odds are the same.
    """
    num_groups = -(-num_rows // group_rows)
    labels = drawn.choice(CLASSES, p=[0.3, 0.3, 0.3, 0.1], size=num_groups)
    noise = drawn.normal(size=(num_groups, CLASSES))
    if group_rows > 1:
        labels = labels.repeat(group_rows)[:num_rows]
        own = drawn.normal(size=(num_rows, CLASSES))
        noise = np.sqrt(0.5) * (noise.repeat(group_rows, axis=0)[:num_rows] + own)
    logits = noise + 1.8 * np.eye(CLASSES)[labels]
    logits[:, IMPORTANT] += bias
    return logits, labels


def held(found: Sequence[Answer], recall: Array, accuracy: Array) -> Array:
    """How often the intervals hold these true changes, and how often the truth lies below: recall's, accuracy's."""
    marks = [
        mark
        for one, *true in zip(found, recall, accuracy, strict=True)
        for change, truth in zip((one.change.recall, one.change.accuracy), true, strict=True)
        for mark in (change.low <= truth <= change.high, truth < change.low)
    ]
    return np.array(marks).reshape(-1, 4).mean(axis=0)


def given(recall: Array, accuracy: Array) -> list[float]:
    """Mean true changes in points, and how often accuracy drops by more than half a point; nan of no tables."""
    if not len(recall):
        return [float("nan")] * 3
    return [100 * float(recall.mean()), 100 * float(accuracy.mean()), float((accuracy < -FALL).mean())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folds", type=int, default=folds.NUM_FOLDS)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 1000, 4000])
    parser.add_argument("--group-rows", type=int, default=1, help="rows that come together")
    parser.add_argument("--ungrouped", action="store_true", help="leave the groups out")
    asked = parser.parse_args()
    folds.NUM_FOLDS = asked.folds
    print("true changes in points; drop: of accuracy by more than half a point")
    print("             of every shift          of those called a gain                  intervals: within, below")
    print("bias   rows  recall accuracy  drop   share recall accuracy  drop (pred)      recall      accuracy")
    for bias in (-0.8, 0.0):
        fresh = exact(*made_rows(100_000, bias, np.random.default_rng(99)), (IMPORTANT,))
        for num_rows in asked.rows:
            found = []
            for seed in range(asked.tables):
                drawn = np.random.default_rng([seed, num_rows])
                logits, labels = made_rows(num_rows, bias, drawn, asked.group_rows)
                groups = None if asked.ungrouped else np.arange(num_rows) // asked.group_rows
                found.append(audit(logits, labels, IMPORTANT, groups=groups))
            recall = np.array([float((fresh.recall(one.shift) - fresh.recall())[0]) for one in found])
            accuracy = np.array([fresh.accuracy(one.shift) - fresh.accuracy() for one in found])
            gain = np.array([one.is_advised for one in found])
            chances = [one.change.chance_of_fall for one in found if one.is_advised]
            print(
                "{:4.1f} {:6,} {:7.2f} {:8.2f} {:5.3f} {:7.3f} {:6.2f} {:8.2f} {:5.3f} ({:.3f}) "
                "{:7.3f} {:5.3f} {:7.3f} {:5.3f}".format(
                    bias,
                    num_rows,
                    *given(recall, accuracy),
                    gain.mean(),
                    *given(recall[gain], accuracy[gain]),
                    np.mean(chances) if chances else float("nan"),
                    *held(found, recall, accuracy),
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
