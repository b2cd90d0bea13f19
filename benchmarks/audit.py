"""How often the audit's intervals hold the truth: made tables, and a hundred thousand fresh rows for the truth.

python benchmarks/audit.py                # tuned on nine tenths, as the audit does
python benchmarks/audit.py --folds 2      # halves that tune for each other
python benchmarks/audit.py --group-rows 8             # eight rows a group, half of their noise shared
python benchmarks/audit.py --group-rows 8 --ungrouped # the same, and the audit is not told
"""

import argparse

import numpy as np

from camri.audit import audit, parts
from camri.audit.scores import exact

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folds", type=int, default=parts.NUM_FOLDS)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 1000, 4000])
    parser.add_argument("--group-rows", type=int, default=1, help="rows that come together")
    parser.add_argument("--ungrouped", action="store_true", help="do not tell the audit which rows come together")
    asked = parser.parse_args()
    parts.NUM_FOLDS = asked.folds
    print("bias   rows  recall: within  below  accuracy: within  below")
    for bias in (-0.8, 0.0):
        fresh = exact(*made_rows(100_000, bias, np.random.default_rng(99)), (IMPORTANT,))
        for num_rows in asked.rows:
            marks = []
            for seed in range(asked.tables):
                drawn = np.random.default_rng([seed, num_rows])
                logits, labels = made_rows(num_rows, bias, drawn, asked.group_rows)
                groups = None if asked.ungrouped else np.arange(num_rows) // asked.group_rows
                found = audit(logits, labels, IMPORTANT, groups=groups)
                recall = float((fresh.recall(found.shift) - fresh.recall())[0])
                accuracy = fresh.accuracy(found.shift) - fresh.accuracy()
                for true, told in ((recall, found.recall), (accuracy, found.accuracy)):
                    marks += [told.low <= true <= told.high, true < told.low]
            shares = np.array(marks).reshape(-1, 4).mean(axis=0)
            print("{:4.1f} {:6,} {:15.3f} {:6.3f} {:17.3f} {:6.3f}".format(bias, num_rows, *shares), flush=True)


if __name__ == "__main__":
    main()
