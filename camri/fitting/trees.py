"""Boosted trees as an arm of a fit on a table: grown by scikit-learn, handed over like any other model."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from camri.data import DataSet
from camri.engine import Outcome, Training, Trial
from camri.fitting.budget import Budget
from camri.methods import setting
from camri.metrics import Array

TITLE = "boosted trees"
MOST_COLUMNS, MOST_CELLS = 100, 5_000_000  # embeddings have more columns than trees are good at
FIRST, CHUNK, MOST_ITERATIONS = 5, 25, 300
SHARE = 0.15  # of the time left


def can_grow(data: DataSet) -> bool:
    """Whether the data are a table of a size that trees are good at."""
    inputs = data.splits["train"].inputs
    is_table = not data.is_image and "backbone" not in data.provenance
    return is_table and inputs.shape[1] <= MOST_COLUMNS and math.prod(inputs.shape) <= MOST_CELLS


def grow(data: DataSet, budget: Budget) -> Outcome | None:
    """HistGradientBoostingClassifier with the number of iterations at which validation log-loss was lowest.

    It grows by 25 iterations until the loss rises or a share of the time is spent; None if there is no time for 25. No
    seed is involved: on the same rows it is the same model.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import log_loss

    (x, y), (x_val, y_val) = (_arrays(data, part) for part in ("train", "val"))
    is_known = np.isin(y_val, np.unique(y))
    began_s = budget.passed_s()
    until_s = began_s + SHARE * (budget.end_s() - began_s)
    model = HistGradientBoostingClassifier(max_iter=0, early_stopping=False, warm_start=True, random_state=0)
    best, kept = math.inf, 0
    while model.max_iter < MOST_ITERATIONS and (not kept or budget.passed_s() < until_s):
        model.max_iter = CHUNK * (model.max_iter // CHUNK + 1) if model.max_iter else FIRST
        model.fit(x, y)
        if model.max_iter == FIRST:
            if budget.passed_s() + (CHUNK / FIRST - 1) * (budget.passed_s() - began_s) > 2 * until_s - began_s:
                return None
            continue
        loss = float(log_loss(y_val[is_known], model.predict_proba(x_val[is_known]), labels=model.classes_))
        if loss >= best:
            break
        best, kept = loss, model.max_iter
    options, weights = to_weights(model, kept, data.num_classes)
    return trees_of(Training(model="trees", model_options=tuple(sorted(options.items())), epochs=kept), data, weights)


def trees_of(training: Training, data: DataSet, weights: Mapping[str, Array]) -> Outcome:
    """Grown trees as the outcome of a trial; epochs are iterations."""
    return Outcome(Trial(setting("ce"), 0), training, data.fingerprint, "done", weights=dict(weights))


def _arrays(data: DataSet, part: str) -> tuple[Array, Array]:
    split = data.splits[part]
    return split.inputs.numpy().reshape(len(split), -1), split.labels.numpy()


def to_weights(model: Any, num_iterations: int, num_classes: int) -> tuple[dict[str, int], dict[str, Array]]:
    """A fitted HistGradientBoostingClassifier without categories, as options and weights of `camri.models.Trees`.

    Scores of rows in float32 are the same to rounding: thresholds are rounded down to float32, which moves no such row.
    Missing values, of which a data set has none, are not followed. A class without train rows gets a score of −100.
    """
    per_iteration = model._predictors[:num_iterations]
    num_scores = len(model.classes_) if len(model.classes_) > 2 else 1
    columns: dict[str, list[Array]] = {name: [] for name in ("feature", "threshold", "left", "right", "value")}
    roots, start, depth = [], 0, 0
    empty = np.zeros(1, dtype=per_iteration[0][0].nodes.dtype)
    empty["is_leaf"] = True
    for trees in per_iteration:
        by_class = dict(zip(model.classes_ if num_scores > 1 else model.classes_[1:], trees, strict=True))
        for index in range(num_classes):
            nodes = by_class[index].nodes if index in by_class else empty
            own, is_leaf = start + np.arange(len(nodes)), nodes["is_leaf"].astype(bool)
            columns["feature"].append(np.where(is_leaf, 0, nodes["feature_idx"]))
            columns["threshold"].append(_down(np.where(is_leaf, 0.0, nodes["num_threshold"])))
            columns["left"].append(np.where(is_leaf, own, start + nodes["left"]))
            columns["right"].append(np.where(is_leaf, own, start + nodes["right"]))
            columns["value"].append(np.where(is_leaf, nodes["value"], 0.0))
            roots.append(start)
            start, depth = start + len(nodes), max(depth, int(nodes["depth"].max()))
    base = np.full(num_classes, -100.0)
    base[model.classes_] = 0.0
    base[model.classes_[-num_scores:]] = np.ravel(model._baseline_prediction)
    weights = {f"trunk.{name}": np.concatenate(parts) for name, parts in columns.items()}
    weights |= {"trunk.roots": np.array(roots), "trunk.base": base}
    weights |= {"head.weight": np.eye(num_classes), "head.bias": np.zeros(num_classes)}
    options = {"num_features": num_classes, "num_trees": len(roots), "num_nodes": start, "depth": depth}
    return options, {name: array.astype(np.float32) for name, array in weights.items()}


def _down(values: Array) -> Array:
    """The largest float32 that is no larger."""
    near = values.astype(np.float32)
    return np.where(near > values, np.nextafter(near, np.float32(-np.inf)), near)
