"""What only a fit asks: how its arms are tuned, whether the baseline has learnt, the controls of a rival."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from camri.decision.compare import Judged, Judging, is_ahead, outcomes
from camri.decision.curve import SLACK, trace
from camri.decision.goals import AtLeast, Goal, LeastCost, MostRecall
from camri.decision.rules import DecisionRule, Shift
from camri.decision.scores import Array, Scores, pool
from camri.decision.stats import wilson
from camri.decision.tune import OperatingPoint, Present, tune
from camri.decision.verdict import SMALL_GAIN

LEAST_LEAD = 0.1  # over guessing, of what is possible
RANKS = 0.75  # area under the ROC curve from which a model that always predicts the most frequent class has learnt


@dataclass(frozen=True, eq=False)
class Held:
    """One trained model: its held-out scores by split."""

    seed: int
    scores: Mapping[str, Scores]


@dataclass(frozen=True, eq=False)
class Aim:
    """How the models of a fit are tuned on validation data: to its goal, measured by the untuned baseline.

    groups (N,): the independent units of the validation rows, for a guarantee. prior_rows: as `Tuner` has them.
    """

    goal: Goal
    baseline: Sequence[Held]
    prior_rows: int
    groups: Array | None = None

    @cached_property
    def present(self) -> Present:
        """The decision that no model may be worse than: the baseline's argmax."""
        return Present.of(pool([model.scores["val"] for model in self.baseline]))

    @property
    def is_of_one(self) -> bool:
        """Whether the goal is about a single model, so that each has a rule of its own."""
        return isinstance(self.goal, AtLeast)

    def tune(self, models: Sequence[Held], is_baseline: bool = False) -> OperatingPoint:
        """The operating point of models that share a rule; a recall is not guaranteed: that is done for one model."""
        return self.without_guarantee()._tune(models, is_baseline)

    def _tune(self, models: Sequence[Held], is_baseline: bool) -> OperatingPoint:
        """The operating point of models that share a rule.

        The baseline never finds less than its own argmax: that would make it a weaker control. Where a recall is asked
        for, rivals may not find less than the baseline's argmax; else recall itself is compared.
        """
        return tune(
            [model.scores["val"] for model in models],
            self.goal,
            groups=self.groups,
            present=self.present,
            keeps_recall=is_baseline,
            prior_rows=self.prior_rows,
        )

    def tune_arm(self, models: Sequence[Held], is_baseline: bool = False) -> list[OperatingPoint]:
        """The operating point of each model of an arm; argmax where nothing meets the goal.

        One rule for all, tuned on their rows together: with rules of their own, the model that its validation rows
        flatter most would look best. Of five cross-entropy models of CIFAR-10's cat, that winner lost 0.73 points of
        accuracy on test images; with the common shift it loses 0.21. A recall is asked of one model, so there each has
        its own.
        """
        if self.is_of_one:
            return [self._tune([model], is_baseline) for model in models]
        return [self._tune(models, is_baseline)] * len(models)

    def tune_arms(self, arms: Mapping[str, Sequence[Held]]) -> dict[str, list[OperatingPoint]]:
        """The operating points of the models of each arm, of one kind: guaranteed if that can be done for all."""
        found = {name: self.tune_arm(models, name == "baseline") for name, models in arms.items()}
        if self.without_guarantee() is self or all(point.has_met for points in found.values() for point in points):
            return found
        return self.without_guarantee().tune_arms(arms)

    def secure(self, model: Held, point: OperatingPoint, is_baseline: bool) -> OperatingPoint:
        """The operating point that a model is handed over with: guaranteed if it can be, else it says why not."""
        if self.without_guarantee() is self or point.guarantee is not None:
            return point
        sure = self._tune([model], is_baseline)
        return sure if sure.has_met else replace(point, guarantee=sure.guarantee)

    def without_guarantee(self) -> "Aim":
        """The same with the recall of the validation rows alone; itself if no recall is asked for."""
        if not isinstance(self.goal, AtLeast) or self.goal.is_seen:
            return self
        return replace(self, goal=replace(self.goal, is_seen=True))


def apply(
    title: str, models: Sequence[Held], rules: DecisionRule | Sequence[DecisionRule], split: str, goal: Goal
) -> Judged:
    """An arm: what these models do on a split, each under its rule or all under one."""
    each = [rules] * len(models) if isinstance(rules, DecisionRule) else rules
    scores = [model.scores[split] for model in models]
    said = [rule.predict(one) for rule, one in zip(each, scores, strict=True)]
    return Judged.of(title, scores, said, np.asarray(goal.matrix) if isinstance(goal, LeastCost) else None)


def rows_of(models: Sequence[Held], split: str, classes: Sequence[str] = (), groups: Array | None = None) -> Judging:
    """The rows that arms are judged on, over seeds."""
    return Judging([model.scores[split] for model in models], classes, groups, over_seeds=True)


def rules_of(points: Sequence[OperatingPoint]) -> list[DecisionRule]:
    """The rules of operating points; a fit tunes shifts and thresholds alone."""
    return [point.rule for point in points if isinstance(point.rule, DecisionRule)]


def is_chosen(aim: Aim, mine: Sequence[Held], theirs: Sequence[Held], is_baseline: bool = True) -> bool:
    """Whether validation data prefer models to others, both with tuned decisions, by more than a standard error.

    For the most recall they must also be more accurate than the others shifted to the same recall.
    is_baseline: whether the others are the baseline.
    """
    goal, rows, found = aim.goal, rows_of(theirs, "val"), aim.tune(mine)
    if not found.has_met:
        return False
    one = apply("", mine, rules_of([found])[0], "val", goal)
    two = apply("", theirs, rules_of([aim.tune(theirs, is_baseline)])[0], "val", goal)
    if not is_ahead(one, two, rows, goal.figure):
        return False
    if not isinstance(goal, MostRecall):
        return True
    same = shift_to(mean_of(one, rows, "recall"), theirs)
    return is_ahead(one, apply("", theirs, same, "val", goal), rows, "accuracy")


def mean_of(arm: Judged, rows: Judging, figure: str) -> float:
    """The mean of an arm's outcomes: of recall over the important classes."""
    values, parts = outcomes(arm, rows, figure)
    return float(np.mean([values[:, parts == part].mean() for part in np.unique(parts)]))


def shift_to(recall: float, models: Sequence[Held], split: str = "val") -> Shift:
    """The shift with which models reach this mean recall on a split at the highest accuracy.

    On validation rows it is the control of every rival: near the top of its curve a model gains much recall for little
    accuracy, so recalls at nearly equal accuracies say little. Of 35 fits with made data, three said "train with" where
    cross-entropy shifted to the same recall was as accurate. On test rows it makes a :func:`bolder` rule.
    """
    curve = trace(pool([model.scores[split] for model in models]))
    state = int(np.where(curve.mean_recall >= recall - SLACK, curve.accuracy, -np.inf).argmax())
    return Shift(dict.fromkeys(models[0].scores[split].important, float(curve.value[state])))


def bolder(models: Sequence[Held]) -> Shift:
    """The shift that finds 2 points more than argmax on test rows, at the highest accuracy there.

    Chosen in hindsight, so nothing is claimed for it: "nothing to gain" is said only if even this shift surely costs
    accuracy. The largest shift that keeps the accuracy of validation rows was too weak a test: a fit with made data
    said "nothing to gain" where a shift gained 12 points.
    """
    recall = pool([model.scores["test"] for model in models]).recall().mean()
    return shift_to(min(float(recall) + SMALL_GAIN, 1.0), models, "test")


def find_median(goal: Goal, models: Sequence[Held], rules: Sequence[DecisionRule]) -> int:
    """The place of the model in the middle by the goal on validation data; of an even number the lower one."""

    def rank(place: int) -> tuple[float, float, int]:
        model = models[place]
        arm, rows = apply("", [model], rules[place], "val", goal), rows_of([model], "val")
        return mean_of(arm, rows, goal.figure), float(arm.right.mean()), -model.seed

    return sorted(range(len(models)), key=rank)[(len(models) - 1) // 2]


def has_learnt(confusion: Array, model: Held) -> bool:
    """Whether cross-entropy is better than guessing, on validation data.

    Its accuracy is surely above the share of the most frequent class and leads it by a tenth of what is possible; or
    that class is more than half of the data, and the accuracy is surely above its share, or no lower and the important
    scores rank rows well.
    """
    total, right = int(confusion.sum()), int(np.trace(confusion))
    share = float(confusion.sum(axis=1).max()) / total
    low, high = wilson(right, total)
    if share <= 0.5:
        return low > share and right / total >= share + LEAST_LEAD * (1 - share)
    return low > share or (high >= share and _ranking(model.scores["val"]) >= RANKS)


def _ranking(scores: Scores) -> float:
    """Area under the ROC curve of the important classes' best lead."""
    lead = scores.lead.astype(np.float64).max(axis=1)
    own = np.isin(scores.labels, scores.important)
    order = np.argsort(lead, kind="stable")
    ranks = np.empty(len(lead))
    ranks[order] = np.arange(1, len(lead) + 1)
    num, rest = int(own.sum()), int((~own).sum())
    return float((ranks[own].sum() - num * (num + 1) / 2) / max(num * rest, 1))
