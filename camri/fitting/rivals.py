"""Rivals of cross-entropy: simple settings in a race on validation data; of tables, boosted trees."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camri.data import DataSet
from camri.decision.scores import Array
from camri.engine import Outcome, Training, Trial
from camri.fitting.budget import Budget
from camri.fitting.judge import Aim
from camri.fitting.request import Request
from camri.fitting.trainer import CE, Point, TrainingRun, setting_of
from camri.methods import METHODS, Method, setting
from camri.study.spec import Resolved

TREES = "boosted trees"
PROMISING = "two_sided_logits"  # reproduce/two-sided: the fewest false alarms at equal recall
MOST_COLUMNS, MOST_CELLS = 100, 5_000_000  # embeddings have more columns than trees are good at
FIRST, CHUNK, MOST_ITERATIONS = 5, 25, 300
TREES_SHARE = 0.15  # of the time left
MOST_RIVALS = 40
FEW_RIVALS = 8  # four methods at two strengths
LEAST_RIVALS = 2
RACE_SHARE = 0.4  # of the trials that are left; the finals get the rest


def list_rivals(most: int = MOST_RIVALS) -> list[Point]:
    """The settings to try, most promising first.

    First the methods with two settings in the table, one of each before the second of any: the two-sided margin, then
    those that need no control; then the other methods that have one; then all other values that the table allows a
    search.

    >>> list_rivals(3)
    [('two_sided_logits', (1.0, 0.5, 2.0)), ('wce', (2.0,)), ('logit_adjusted', (1.0, 0.0))]
    """
    searched = [(name, entry) for name, entry in METHODS.items() if entry.first]
    searched.sort(key=lambda pair: (len(pair[1].first) < 2, pair[0] != PROMISING, pair[1].control is not None))
    rounds = itertools.zip_longest(*([_point(*pair, values) for values in pair[1].first] for pair in searched))
    two = [point for points in rounds for point in points if point is not None]
    two.sort(key=lambda point: len(METHODS[point[0]].first) < 2)
    rest = itertools.zip_longest(*(list(_grid(*pair)) for pair in searched))
    points = [*two, *(point for points in rest for point in points if point is not None)]
    return list(dict.fromkeys(points))[:most]


def _point(name: str, entry: Method, values: Mapping[str, float]) -> Point:
    return name, tuple(values.get(knob, one.neutral or 0.0) for knob, one in entry.knobs.items())


def _grid(name: str, entry: Method) -> Iterator[Point]:
    for values in itertools.product(*(knob.search or (knob.neutral,) for knob in entry.knobs.values())):
        yield name, tuple(float(value) for value in values if value is not None)


def num_rivals(num_left: int) -> int:
    """Rivals in a race that takes its share of the trials that are left; it trains about twice as many.

    >>> num_rivals(40), num_rivals(9)
    (8, 2)
    """
    return max(LEAST_RIVALS, min(MOST_RIVALS, int(RACE_SHARE * num_left / 2)))


@dataclass(frozen=True)
class Race:
    """A race under one training. Every round trains the rivals with one more seed and keeps the better half.

    Stored trials are not trained again, so an interrupted race resumes. `until_s`: no round ends after it.
    """

    run: TrainingRun
    column: Resolved
    seeds: Sequence[int]
    request: Request
    until_s: float = math.inf

    def winner(self, rivals: Sequence[Point]) -> Point | None:
        """Run the race; None if the time was up before the first round had ended."""
        kept, num_rounds = list(rivals), 0
        while len(kept) > 1 or not num_rounds:
            if not self.run.train(kept, [self.seeds[num_rounds]], self.until_s):
                break  # the round is incomplete: its seed counts for nobody
            num_rounds += 1
            kept = self._rank(kept, num_rounds)[: max(1, len(kept) // 2)]
        return kept[0] if num_rounds else None

    def _rank(self, points: Sequence[Point], num_rounds: int) -> list[Point]:
        """Best first by the goal on validation data; of equals the one that was listed first."""
        important = [index for index, _ in self.column]
        seeds = self.seeds[:num_rounds]
        baseline = self.run.models(CE, important, seeds)

        def rank(point: Point) -> tuple[float, ...]:
            models = self.run.models(setting_of(point, self.column), important, seeds)
            shared = {one.seed for one in models} & {one.seed for one in baseline}
            if not shared:
                return (-math.inf, -math.inf)
            aim = Aim(self.request.goal, [one for one in baseline if one.seed in shared], self.request.prior_rows)
            return aim.tune([one for one in models if one.seed in shared]).rank

        return sorted(points, key=rank, reverse=True)


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
    until_s = began_s + TREES_SHARE * (budget.end_s() - began_s)
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
