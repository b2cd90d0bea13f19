"""Decision rules: how often a recall of 0.95 is kept on fresh rows, and how long a large table takes.

`python -m benchmarks.decision` prints JSON. Kept recall: made binary tables, cross-fitted beside scikit-learn's
TunedThresholdClassifierCV, which tunes a threshold to a recall seen on its own folds and promises nothing. Time: `tune`
on --rows × --classes logits, in a process of its own for its peak memory.
"""

import argparse
import json
import resource
import time

import numpy as np

from camri.decision import AtLeast, BestRecall, tune
from camri.metrics import exact


def kept_recalls(num_tables: int, num_rows: int, at_least: float) -> dict[str, dict[str, float]]:
    """Share of tables whose recall on 20,000 fresh rows is at least that asked for, and the mean false-alarm share."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import make_scorer, recall_score
    from sklearn.model_selection import TunedThresholdClassifierCV, cross_val_predict

    def draw(seed: int, num: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = np.random.default_rng(seed)
        labels = (drawn.random(num) < 0.15).astype(int)
        return drawn.normal(size=(num, 5)) + 0.8 * labels[:, None], labels

    def score(truth: np.ndarray, predicted: np.ndarray) -> float:
        """The highest threshold whose recall on the fold is the one asked for."""
        recall = recall_score(truth, predicted, zero_division=0)
        return -np.mean(predicted) if recall >= at_least else recall - 2

    figures: dict[str, list[tuple[bool, float]]] = {"camri, promised": [], "camri, seen": [], "scikit-learn": []}
    for seed in range(num_tables):
        x, y = draw(seed, num_rows)
        fresh_x, fresh_y = draw(10**6 + seed, 20_000)
        model = LogisticRegression().fit(x, y)
        held_out = cross_val_predict(LogisticRegression(), x, y, cv=5, method="predict_proba")
        fresh = model.predict_proba(fresh_x)
        for name, confidence in (("camri, promised", 0.95), ("camri, seen", None)):
            point = tune(exact(held_out, y, [1], "probabilities"), AtLeast(at_least, confidence), num_draws=0)
            if point is not None:
                predicted = point.rule.predict(fresh, "probabilities")
                figures[name].append((np.mean(predicted[fresh_y == 1]) >= at_least, np.mean(predicted[fresh_y == 0])))
        tuned = TunedThresholdClassifierCV(LogisticRegression(), scoring=make_scorer(score), cv=5).fit(x, y)
        predicted = tuned.predict(fresh_x)
        figures["scikit-learn"].append((np.mean(predicted[fresh_y == 1]) >= at_least, np.mean(predicted[fresh_y == 0])))
    return {
        name: {
            "tables": len(rows),
            "kept": float(np.mean([kept for kept, _ in rows])),
            "false alarms": float(np.mean([alarms for _, alarms in rows])),
        }
        for name, rows in figures.items()
        if rows
    }


def large_table(num_rows: int, num_classes: int) -> dict[str, float]:
    """Seconds of `tune` for two goals, and the peak memory of the process in GiB."""
    drawn = np.random.default_rng(0)
    labels = drawn.integers(0, num_classes, num_rows)
    scores = drawn.standard_normal((num_rows, num_classes), dtype=np.float32)
    scores[np.arange(num_rows), labels] += 3
    found = {}
    for name, goal in (("recall at an accuracy", BestRecall()), ("false alarms at a recall", AtLeast(0.95, 0.95))):
        began = time.perf_counter()
        tune(exact(scores, labels, [1]), goal)
        found[f"{name}, s"] = round(time.perf_counter() - began, 2)
    found["peak memory, GiB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=100)
    asked = parser.parse_args()
    large = large_table(asked.rows, asked.classes)  # first: its peak memory is that of the process
    print(json.dumps({"large table": large, "recall of 0.95": kept_recalls(asked.tables, 1_000, 0.95)}, indent=1))


if __name__ == "__main__":
    main()
