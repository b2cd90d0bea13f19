"""Is any decision rule for a trained model better than a threshold on the probability?

python -m benchmarks.free_rules runs/logits                     # a run whose trials kept their logits
python -m benchmarks.free_rules runs/logits --recalls 0.9,0.95

Rules that are learnt on the validation logits of each cross-entropy model, against the threshold on its probability:
a temperature (least log-loss), a logistic regression of the class on all log-probabilities, and one for all classes
(matrix scaling), both with the penalty that cross-validation chooses. Every rule is brought to the same recalls on test
data. Prints JSON: false alarms relative to the threshold's and change of accuracy, with 95 % intervals over seeds and
images.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Iterator

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from camri.decision.scores import Scores, condense
from camri.report.ranking import compare_with_intervals
from camri.selection import common_range
from camri.study.reader import RunReader
from camri.study.store import ColumnFacts

Array = np.ndarray
PENALTIES = [0.01, 0.1, 1.0, 10.0, 100.0]


def fitted(features: Array, labels: Array) -> Pipeline:
    """A logistic regression of scaled features, its penalty chosen by five folds and log-loss."""
    one = LogisticRegressionCV(Cs=PENALTIES, cv=5, scoring="neg_log_loss", max_iter=5000, l1_ratios=(0,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return make_pipeline(StandardScaler(), one).fit(features, labels)


def temperature(logits: Array, labels: Array) -> float:
    """What logits are divided by for the least log-loss."""

    def loss(log_t: float) -> float:
        return -float(log_softmax(logits / np.exp(log_t), axis=1)[np.arange(len(labels)), labels].mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x))


def learnt(val: Array, labels: Array, test: Array, index: int) -> Iterator[tuple[str, Array]]:
    """Name and test logits of each rule; a threshold on their probability is the rule."""
    yield "temperature", test / temperature(val, labels)
    val, test = log_softmax(val, axis=1), log_softmax(test, axis=1)
    own = test.copy()
    odds = fitted(val, labels == index).decision_function(test)
    own[:, index] = odds + logsumexp(np.delete(test, index, axis=1), axis=1)
    yield "logistic regression of the class", own
    yield "logistic regression of all classes", fitted(val, labels).decision_function(test)


def compare(reading: RunReader, column: ColumnFacts, recalls: Array | None) -> Iterator[dict[str, object]]:
    """A record for each rule."""
    (index,) = column.indices
    run, (ce,) = reading.run, (one for one in reading.settings(column) if one.method == "ce")
    labels = {split: run.labels(split) for split in ("val", "test")}
    arms: dict[str, list[Scores]] = {}
    for row in ce.rows:
        val, test = (run.logits(row)[split].astype(np.float64) for split in ("val", "test"))
        plain = condense(test, labels["test"], (index,))
        arms.setdefault("threshold", []).append(plain.odds())
        arms.setdefault("shift", []).append(plain)
        for name, logits in learnt(val, labels["val"], test, index):
            arms.setdefault(name, []).append(condense(logits, labels["test"], (index,)).odds())
    grid = common_range(arms["shift"]) if recalls is None else recalls
    for name, arm in arms.items():
        found = compare_with_intervals(arm, arms["threshold"], grid, run.groups("test"))
        of = found["alarms_of_ce"]
        yield {
            "column": column.title,
            "rule": name,
            "models": len(arm),
            "recalls": [round(float(grid[0]), 3), round(float(grid[-1]), 3)],
            "alarms_percent": round(100 * of, 2),
            "relative": [round(100 * found[part] / of, 1) for part in ("alarms", "alarms_low", "alarms_high")],
            "accuracy_points": [round(100 * found[part], 2) for part in ("accuracy", "accuracy_low", "accuracy_high")],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--recalls", help="such as 0.9,0.95; default: from cross-entropy's own to half way to 1")
    asked = parser.parse_args()
    recalls = None if asked.recalls is None else np.array([float(text) for text in asked.recalls.split(",")])
    with RunReader(asked.run) as reading:
        records = [record for column in reading.columns for record in compare(reading, column, recalls)]
    json.dump(records, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
