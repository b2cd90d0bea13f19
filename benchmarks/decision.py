"""Decision rules: how often a recall of 0.95 is kept on fresh rows, and how long a large table takes.

python -m benchmarks.decision                      # both
python -m benchmarks.decision --tables 0           # the large table alone

Prints JSON. Recall: made binary tables of 1,500 rows, 15 % of them important, judged on 20,000 fresh rows;
`camri.ImportantClassifier` beside scikit-learn's TunedThresholdClassifierCV, which takes the best of 100 thresholds, or
of every cut-off of the tuning rows, by a score: fewest positive predictions with a recall of 0.95. With folds that
score wants such a recall in each of them.
Large table: `tune` on --rows × --classes logits; the peak memory is that of the process, with the logits.
"""

import argparse
import json
import resource
import time
from collections import defaultdict
from typing import Any

import numpy as np

from camri.decision import AtLeast, ImportantClassifier, MostRecall, exact, tune

NUM_ROWS, NUM_FRESH, AT_LEAST = 1_500, 20_000, 0.95


def draw(num: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of five features whose means differ by 0.8 between the classes."""
    drawn = np.random.default_rng(seed)
    labels = (drawn.random(num) < 0.15).astype(int)
    return drawn.normal(size=(num, 5)) + 0.8 * labels[:, None], labels


def score_recall(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Highest for the fewest positive predictions among those whose recall is high enough."""
    recall = float(np.mean(predicted[truth == 1]))
    return -float(np.mean(predicted)) if recall >= AT_LEAST else recall - 2


def kept_recalls(num_tables: int) -> dict[str, dict[str, float]]:
    """Share of tables whose fresh recall is at least 0.95, mean recall and false alarms, with standard errors."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import make_scorer
    from sklearn.model_selection import TunedThresholdClassifierCV

    figures: dict[str, list[tuple[float, float]]] = defaultdict(list)
    goal: dict[str, Any] = {"important": 1, "at_least": AT_LEAST}
    for seed in range(num_tables):
        X, y = draw(NUM_ROWS, seed)
        fresh_X, fresh_y = draw(NUM_FRESH, 10**6 + seed)
        fitted = LogisticRegression().fit(*draw(NUM_ROWS, 2 * 10**6 + seed))
        scorer = make_scorer(score_recall)
        for name, model in {
            "camri, guaranteed, 5 folds": ImportantClassifier(LogisticRegression(), **goal),
            "camri, guaranteed, prefit": ImportantClassifier(fitted, **goal, cv="prefit"),
            "camri, seen, 5 folds": ImportantClassifier(LogisticRegression(), **goal, confidence=None),
            "camri, seen, prefit": ImportantClassifier(fitted, **goal, cv="prefit", confidence=None),
            "scikit-learn, 5 folds": TunedThresholdClassifierCV(LogisticRegression(), scoring=scorer, cv=5),
            "scikit-learn, prefit": TunedThresholdClassifierCV(fitted, scoring=scorer, cv="prefit", refit=False),
            "scikit-learn, prefit, every cut-off": TunedThresholdClassifierCV(
                fitted, scoring=scorer, cv="prefit", refit=False, thresholds=np.unique(fitted.predict_proba(X)[:, 1])
            ),
        }.items():
            predicted = model.fit(X, y).predict(fresh_X)
            figures[name].append((np.mean(predicted[fresh_y == 1]), np.mean((predicted == 1) & (fresh_y == 0))))

    def summary(pairs: list[tuple[float, float]]) -> dict[str, float]:
        recall, alarms = np.array(pairs).T
        error = float(np.std(recall, ddof=1) / np.sqrt(len(recall)))
        kept = float(np.mean(recall >= AT_LEAST))
        return {"kept": kept, "recall": float(recall.mean()), "its se": error, "false alarms": float(alarms.mean())}

    return {name: {key: round(value, 4) for key, value in summary(pairs).items()} for name, pairs in figures.items()}


def large_table(num_rows: int, num_classes: int) -> dict[str, float]:
    """Seconds of `tune` for two goals, and the peak memory of the process in GiB."""
    drawn = np.random.default_rng(0)
    labels = drawn.integers(0, num_classes, num_rows)
    scores = drawn.standard_normal((num_rows, num_classes), dtype=np.float32)
    scores[np.arange(num_rows), labels] += 3
    found = {}
    for name, goal in (("recall at an accuracy", MostRecall()), ("false alarms at a recall", AtLeast(0.95, 0.95))):
        began, worked = time.perf_counter(), time.process_time()
        tune(exact(scores, labels, [1]), goal)
        found[f"{name}, s"] = round(time.perf_counter() - began, 2)
        found[f"{name}, CPU s"] = round(time.process_time() - worked, 2)
    found["peak memory, GiB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=100)
    asked = parser.parse_args()
    found: dict[str, Any] = {"large table": large_table(asked.rows, asked.classes)}  # first, for its peak memory
    if asked.tables:
        found[f"recall of {AT_LEAST}, {asked.tables} tables"] = kept_recalls(asked.tables)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
