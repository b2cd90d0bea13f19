"""How often the audit's intervals hold the truth: made tables, and a hundred thousand fresh rows for the truth.

python benchmarks/audit.py                # tuned on nine tenths, as the audit does
python benchmarks/audit.py --folds 2      # halves that tune for each other
"""

import argparse

import numpy as np

from camri.audit import audit, verdict
from camri.audit.scores import exact

CLASSES = 4
IMPORTANT = 3


def made_rows(num_rows: int, bias: float, drawn: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels, a tenth of them of the important class, whose logits are moved by the bias."""
    labels = drawn.choice(CLASSES, p=[0.3, 0.3, 0.3, 0.1], size=num_rows)
    logits = drawn.normal(size=(num_rows, CLASSES)) + 1.8 * np.eye(CLASSES)[labels]
    logits[:, IMPORTANT] += bias
    return logits, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folds", type=int, default=verdict.NUM_FOLDS)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 1000, 4000])
    asked = parser.parse_args()
    verdict.NUM_FOLDS = asked.folds
    print("bias   rows  recall: within  below  accuracy: within  below")
    for bias in (-0.8, 0.0):
        fresh = exact(*made_rows(100_000, bias, np.random.default_rng(99)), (IMPORTANT,))
        for num_rows in asked.rows:
            marks = []
            for seed in range(asked.tables):
                found = audit(*made_rows(num_rows, bias, np.random.default_rng([seed, num_rows])), IMPORTANT)
                recall = float((fresh.recall(found.shift) - fresh.recall())[0])
                accuracy = fresh.accuracy(found.shift) - fresh.accuracy()
                for true, told in ((recall, found.recall), (accuracy, found.accuracy)):
                    marks += [told.low <= true <= told.high, true < told.low]
            shares = np.array(marks).reshape(-1, 4).mean(axis=0)
            print("{:4.1f} {:6,} {:15.3f} {:6.3f} {:17.3f} {:6.3f}".format(bias, num_rows, *shares), flush=True)


if __name__ == "__main__":
    main()
