"""False alarms at equal recall of ensembles of cross-entropy models against single ones, from stored scores.

    python benchmarks/variants/ensembles.py results/scores/columns-small-cifar10.sqlite.xz RUN... --important cat

Members' probabilities of the class are averaged, and the class is predicted above a threshold. A store has no other
class's probability, so an ensemble's accuracy is not known here. Runs must have the same test data and training.
"""

import argparse
import contextlib
from pathlib import Path

import numpy as np

from camri.stats import summarise
from camri.study.reader import RunReader
from tools.releases import unpacked


def false_alarms(probability: np.ndarray, own: np.ndarray, recalls: np.ndarray) -> float:
    """Share of false alarms where a threshold reaches each recall, mean over the recalls.

    >>> false_alarms(np.array([0.9, 0.8, 0.3, 0.1]), np.array([True, False, True, False]), np.array([0.5, 1.0]))
    0.125
    """
    found = np.sort(probability[own])[::-1]
    thresholds = found[np.ceil(recalls * len(found)).astype(int) - 1]
    return float(np.mean([(probability >= threshold) & ~own for threshold in thresholds]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--important", required=True)
    parser.add_argument("--size", type=int, default=5)
    asked = parser.parse_args()
    members = []
    for path in asked.runs:
        with contextlib.ExitStack() as stack:
            reading = stack.enter_context(RunReader(stack.enter_context(unpacked(path))))
            (column,) = (one for one in reading.columns if one.title == asked.important)
            rows = sorted((row for row in reading.rows if row.method == "ce"), key=lambda row: row.seed)
            members += [reading.scores(row, "test", column) for row in rows]
    own = members[0].labels == members[0].important[0]
    recall = float(np.mean([scores.recall()[0] for scores in members]))
    recalls = np.linspace(recall, (1 + recall) / 2, 9)
    num = len(members) // asked.size
    probabilities = np.array([scores.probabilities()[:, 0] for scores in members[: num * asked.size]])
    single = np.array([false_alarms(one, own, recalls) for one in probabilities]).reshape(num, asked.size).mean(axis=1)
    groups = probabilities.reshape(num, asked.size, -1).mean(axis=1)
    change = summarise(np.array([false_alarms(one, own, recalls) for one in groups]) / single - 1)
    changed = " ".join(f"{100 * value:+.1f}" for value in (change.mean, change.low, change.high))
    print(
        f"{asked.important}: {num} ensembles of {asked.size}, recalls {recalls[0]:.3f} to {recalls[-1]:.3f}; "
        f"false alarms of one model {100 * single.mean():.2f} % of all images; change in %, 95 % interval over "
        f"ensembles: {changed}"
    )


if __name__ == "__main__":
    main()
