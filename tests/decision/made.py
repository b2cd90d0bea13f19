"""Made tables of scores, and decisions row by row in plain Python to check the core against."""

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from camri.decision import Shift, Threshold


def softmax(logits):
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def rows(num=300, num_classes=4, seed=0, spread=1.5, held_back=()):
    """Logits of a model that holds some classes back, and labels."""
    drawn = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(num_classes), drawn.integers(0, num_classes, num - num_classes)])
    logits = drawn.normal(size=(num, num_classes)) + spread * np.eye(num_classes)[labels]
    return logits - 1.2 * np.isin(np.arange(num_classes), held_back), labels


def table(seed):
    """A table of any size and kind: logits, labels and the important classes."""
    drawn = np.random.default_rng(seed)
    num_classes, num = int(drawn.integers(2, 7)), int(drawn.choice([120, 200, 400, 900]))
    important = sorted(drawn.choice(num_classes, int(drawn.integers(1, max(2, num_classes - 1))), False).tolist())
    labels = drawn.choice(num_classes, num, p=drawn.dirichlet(np.full(num_classes, 8.0)))
    labels[: 20 * num_classes] = np.arange(20 * num_classes) % num_classes
    logits = drawn.normal(size=(num, num_classes)) + drawn.uniform(0.5, 3) * np.eye(num_classes)[labels]
    return logits - drawn.uniform(0, 2) * np.isin(np.arange(num_classes), important), labels, important


def costs_of(important, num_classes, seed=0):
    """Costs (C, C) that are higher where an important class is missed."""
    drawn = np.random.default_rng(seed)
    matrix = drawn.uniform(0.5, 2, (num_classes, num_classes)) * (1 - np.eye(num_classes))
    matrix[important] *= 4
    return matrix


def predict(rule, table, kind="logits"):
    """Predictions of a rule, row by row in plain Python, as its docstring says."""
    predicted = []
    for row in table.tolist():
        p = softmax(np.array([row]))[0].tolist() if kind == "logits" else row
        if isinstance(rule, Shift):
            moved = [value + rule.values.get(index, 0.0) for index, value in enumerate(row)]
            if kind != "logits":
                moved = [value * np.exp(rule.values.get(index, 0.0)) for index, value in enumerate(row)]
            predicted.append(moved.index(max(moved)))
            continue
        assert isinstance(rule, Threshold)
        passing = {
            k: np.inf if p[k] == 1 else (p[k] / (1 - p[k])) * (1 - t) / max(t, 1e-300)
            for k, t in rule.values.items()
            if p[k] > t
        }
        others = [index for index in range(len(row)) if index not in rule.values]
        predicted.append(max(passing, key=passing.get) if passing else max(others, key=row.__getitem__))
    return np.array(predicted)


def figures(predicted, labels, important):
    """Recall of each important class, accuracy and false alarms."""
    own = np.isin(labels, important)
    recall = [np.mean(predicted[labels == index] == index) for index in important]
    return recall, np.mean(predicted == labels), np.mean(~own & np.isin(predicted, important))


class Given(ClassifierMixin, BaseEstimator):
    """A fitted classifier for scikit-learn whose rows are scores already."""

    def __init__(self, classes, kind="logits"):
        self.classes, self.kind = classes, kind
        self.classes_ = np.asarray(classes)
        name = "decision_function" if kind == "logits" else "predict_proba"
        setattr(self, name, self._score)

    def _score(self, scores):
        scores = np.asarray(scores)
        is_one = len(self.classes_) == 2 and hasattr(self, "decision_function")
        return scores[:, 1] - scores[:, 0] if is_one else scores

    def fit(self, X, y=None):
        return self

    def __sklearn_is_fitted__(self):
        return True
