"""Decisions of a fit: rules tuned to the goal on validation data, arms compared on test data, and the verdict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from camri.decision import (
    SLACK,
    AtLeast,
    BestRecall,
    DecisionRule,
    Goal,
    LeastCost,
    Shift,
    choose_shift,
    trace,
    tune,
)
from camri.fit_record import (
    SEEDS_FOR_INTERVALS,
    SEEDS_FOR_PRAISE,
    Arm,
    Change,
    ClassChange,
    Comparison,
    Counts,
    Evidence,
    Reason,
    Verdict,
    VerdictKind,
)
from camri.fit_record import Goal as GoalRecord
from camri.metrics import REST, Array, Scores, pool
from camri.selection import Floor, Rule, Validation
from camri.stats import FEWEST_ROWS, Difference, compare, design_effect, wilson

SEED = 0  # of every bootstrap: the same outcomes give the same record
ONE_ERROR = 0.683  # level of an interval of one standard error to each side
SMALL_GAIN = 0.02  # of the deciding share: less is nothing to gain
LEAST_LEAD = 0.1  # over guessing, of what is possible
RANKS = 0.75  # area under the ROC curve from which a model that always predicts the most frequent class has learnt


@dataclass(frozen=True, eq=False)
class Held:
    """One trained model: its held-out scores by split."""

    seed: int
    scores: Mapping[str, Scores]


@dataclass(frozen=True, eq=False)
class Decided:
    """A rule applied to one model's rows (N,): which are right, which are false alarms, what is predicted, the costs.

    predicted: an important class, or −1 for any other.
    """

    correct: Array
    false_alarms: Array
    predicted: Array
    cost: Array | None


def argmax_of(important: Sequence[int]) -> Shift:
    """The ordinary decision."""
    return Shift(dict.fromkeys(important, 0.0))


def apply(rule: DecisionRule, model: Held, split: str, goal: Goal) -> Decided:
    """Apply the rule to one split."""
    scores = model.scores[split]
    predicted = rule.predict(scores)
    cost = None
    if isinstance(goal, LeastCost):
        assert scores.rest is not None
        cost = np.asarray(goal.matrix)[scores.labels, np.where(predicted == REST, scores.rest, predicted)]
    return Decided(scores.is_right(predicted), scores.is_false_alarm(predicted), predicted, cost)


def floor_of(goal: Goal, baseline: Sequence[Held], prior_rows: int) -> Floor:
    """The least accuracy allowed on validation data; without a limit for goals that set none."""
    if not isinstance(goal, BestRecall):
        return Floor(-math.inf)
    rule = Rule(max_accuracy_drop=goal.max_accuracy_drop, prior_rows=prior_rows)
    return rule.floor(Validation("ce", {model.seed: model.scores["val"] for model in baseline}))


@dataclass(frozen=True)
class Tuned:
    """A rule with its rank on the rows it was tuned on: the higher is better. None: no rule meets the goal."""

    rule: DecisionRule | None
    rank: tuple[float, ...]


def tune_rule(goal: Goal, models: Sequence[Held], floor: Floor, *, negative: bool = True) -> Tuned:
    """The best rule for these models together, on validation data.

    negative: whether a shift may lower the important scores. The promise of a recall holds for one model alone; of
    several models together the recall is reached without it.
    """
    scores = [model.scores["val"] for model in models]
    important = scores[0].important
    if isinstance(goal, BestRecall):
        found = choose_shift(scores, accuracy_floor=floor.accuracy, negative=negative, prior=floor.prior)
        if found is None:
            return Tuned(None, (-math.inf, max(float(trace(one).accuracy.max()) for one in scores)))
        shift = Shift(dict(zip(important, found.shift, strict=True)))
        return Tuned(shift, (found.value, found.accuracy, -sum(map(abs, found.shift))))
    if isinstance(goal, AtLeast):
        promised = goal if len(scores) == 1 else replace(goal, confidence=None)
        point = tune(scores, promised, num_draws=0)
        point = point or tune(scores, replace(goal, confidence=None), num_draws=0)  # rows are too few
        if point is None:
            return Tuned(None, (-math.inf,))
        return Tuned(point.rule, (-point.false_alarms, point.accuracy))
    point = tune(scores, goal, num_draws=0)
    assert point is not None
    assert point.cost is not None
    plain = float(np.mean([apply(argmax_of(important), model, "val", goal).cost for model in models]))
    return Tuned(point.rule, (-point.cost,)) if point.cost < plain - SLACK else Tuned(argmax_of(important), (-plain,))


def tune_arm(goal: Goal, models: Sequence[Held], floor: Floor, is_baseline: bool) -> list[DecisionRule]:
    """The rule of each model of an arm, tuned on validation data; argmax if none meets the goal.

    One rule for all, tuned on their rows together: with rules of their own, the model that its validation rows flatter
    most would look best. Of five cross-entropy models of CIFAR-10's cat, that winner lost 0.73 points of accuracy on
    test images; with the common shift it loses 0.21. A promised recall is about one model, so there each has its own.
    The baseline is never shifted back: that would make it a weaker control.
    """
    argmax = argmax_of(models[0].scores["val"].important)
    groups = [[model] for model in models] if isinstance(goal, AtLeast) else [models]
    rules = [tune_rule(goal, group, floor, negative=not is_baseline).rule or argmax for group in groups]
    return rules if len(rules) == len(models) else rules * len(models)


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


def mean_recall(decided: Sequence[Decided], labels: Array, important: Sequence[int]) -> float:
    """Mean recall over models and important classes."""
    correct = np.array([one.correct for one in decided])
    return float(np.mean([correct[:, labels == index].mean() for index in important]))


def figures(decided: Sequence[Decided], labels: Array, important: Sequence[int], figure: str) -> tuple[Array, Array]:
    """The outcomes (S, n) of a figure or of "accuracy", and the parts (n,) they are averaged in; higher is better."""
    if figure == "accuracy":
        return np.array([one.correct for one in decided], dtype=float), np.zeros(len(labels), dtype=int)
    if figure == "recall":
        own = np.isin(labels, important)
        return np.array([one.correct[own] for one in decided], dtype=float), labels[own]
    values = [one.false_alarms if figure == "false_alarms" else one.cost for one in decided]
    return -np.array(values, dtype=float), np.zeros(len(labels), dtype=int)


def is_better(
    mine: Sequence[Decided], theirs: Sequence[Decided], labels: Array, important: Sequence[int], figure: str
) -> bool:
    """Whether one arm beats another by more than a standard error."""
    (one, parts), (two, _) = (figures(arm, labels, important, figure) for arm in (mine, theirs))
    return compare(one, two, parts=parts, seed=SEED, level=ONE_ERROR).low > 0


def median_model(goal: Goal, models: Sequence[Held], rules: Sequence[DecisionRule]) -> tuple[Held, DecisionRule]:
    """The model in the middle by the goal on validation data, with its rule; of an even number the lower one."""

    def rank(pair: tuple[Held, DecisionRule]) -> tuple[float, float, int]:
        model, rule = pair
        decided, scores = apply(rule, model, "val", goal), model.scores["val"]
        values, parts = figures([decided], scores.labels, scores.important, goal_record(goal).figure)
        value = float(np.mean([values[0, parts == part].mean() for part in np.unique(parts)]))
        return value, float(decided.correct.mean()), -model.seed

    return sorted(zip(models, rules, strict=True), key=rank)[(len(models) - 1) // 2]


def count(rule: DecisionRule, model: Held, goal: Goal, groups: Array | None = None, split: str = "test") -> Counts:
    """The counts of one model on test rows, which may come in groups (N,)."""
    decided, test = apply(rule, model, split, goal), model.scores[split]
    labels, classes = test.labels, np.array(test.important)
    effects: list[float] = []
    if groups is not None:
        whole = np.ones(len(test), dtype=bool)
        shares = [(decided.correct, labels == index) for index in classes]
        shares += [(decided.correct, whole), (decided.false_alarms, whole)]
        shares += [(decided.correct, decided.predicted == index) for index in classes]
        effects = [design_effect(values[rows], groups[rows]) if rows.any() else 1.0 for values, rows in shares]
    return Counts(
        hits=tuple(int(decided.correct[labels == index].sum()) for index in classes),
        num=tuple(test.num.tolist()),
        called=tuple(int((decided.predicted == index).sum()) for index in classes),
        num_false_alarms=int(decided.false_alarms.sum()),
        num_right=int(decided.correct.sum()),
        num_rows=len(test),
        cost=None if decided.cost is None else float(decided.cost.mean()),
        effects=tuple(effects),
    )


def gather(
    arms: Mapping[str, tuple[str, Sequence[Decided]]],
    pairs: Sequence[tuple[str, str]],
    labels: Array,
    groups: Array | None,
    important: Sequence[int],
    classes: Sequence[str],
    final: str,
) -> Evidence:
    """The evidence of arms {name: (title, decided models)}: their figures, and the comparisons of these pairs.

    final: the arm that is handed over; the recalls of the other classes are compared between it and the baseline.
    """
    num_seeds = len(arms["baseline"][1])

    def stack(name: str, field: str) -> Array:
        return np.array([getattr(one, field) for one in arms[name][1]], dtype=float)

    own, whole = np.isin(labels, important), np.ones(len(labels), dtype=bool)

    def change(arm: str, over: str, field: str, rows: Array = whole, parts: Array | None = None) -> Change:
        units = None if groups is None else groups[rows]
        mine, theirs = (stack(name, field)[:, rows] for name in (arm, over))
        return _change(compare(mine, theirs, parts=parts, groups=units, seed=SEED), num_seeds)

    has_cost = arms["baseline"][1][0].cost is not None
    comparisons = [
        Comparison(
            arm,
            over,
            recall=change(arm, over, "correct", own, labels[own]),
            accuracy=change(arm, over, "correct"),
            false_alarms=change(arm, over, "false_alarms"),
            cost=change(arm, over, "cost") if has_cost else None,
        )
        for arm, over in pairs
    ]
    others = [index for index in np.unique(labels).tolist() if index not in important] if final != "baseline" else []
    return Evidence(
        num_seeds=num_seeds,
        arms=tuple(_arm(name, title, decided, labels, important) for name, (title, decided) in arms.items()),
        comparisons=tuple(comparisons),
        classes=tuple(
            ClassChange(classes[index], change(final, "baseline", "correct", labels == index)) for index in others
        ),
    )


def _change(found: Difference, num_seeds: int) -> Change:
    if num_seeds < SEEDS_FOR_INTERVALS:
        return Change(found.value)
    return Change(found.value, found.low, found.high)


def _arm(name: str, title: str, decided: Sequence[Decided], labels: Array, important: Sequence[int]) -> Arm:
    recalls, precisions, hits, num = [], [], 0, 0
    for index in important:
        own = labels == index
        found = sum(int(one.correct[own].sum()) for one in decided)
        called = sum(int((one.predicted == index).sum()) for one in decided)
        recalls.append(found / (int(own.sum()) * len(decided)))
        precisions.append(found / called if called else None)
        hits, num = hits + found, num + int(own.sum()) * len(decided)
    costs = [one.cost.mean() for one in decided if one.cost is not None]
    return Arm(
        name,
        title,
        recall=float(np.mean(recalls)),
        accuracy=float(np.mean([one.correct.mean() for one in decided])),
        false_alarms=float(np.mean([one.false_alarms.mean() for one in decided])),
        hits=hits,
        num=num,
        precisions=tuple(precisions),
        cost=float(np.mean(costs)) if costs else None,
    )


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


def goal_record(goal: Goal) -> GoalRecord:
    """The goal as a fit's record has it."""
    if isinstance(goal, BestRecall):
        return GoalRecord("best_recall", max_accuracy_drop=goal.max_accuracy_drop)
    if isinstance(goal, AtLeast):
        return GoalRecord("at_least", recall=goal.recall, confidence=goal.confidence)
    return GoalRecord("least_cost", matrix=tuple(tuple(map(float, row)) for row in np.asarray(goal.matrix)))


def decide(
    evidence: Evidence,
    goal: GoalRecord,
    *,
    method: str | None,
    is_redecided: bool,
    learnt: bool = True,
    still_improving: bool = False,
    has_rivals: bool = True,
    num_rows: int = FEWEST_ROWS,
) -> Verdict:
    """The verdict, by the first of these rules that applies.

    | verdict | rule |
    |---|---|
    | cannot tell | cross-entropy is no better than guessing; or fewer than five seeds; or fewer than 20 validation or
      test rows of an important class |
    | train with METHOD | validation data chose the method, and on test data it beats the baseline with a tuned
      decision: 95 % interval on the right side of 0; accuracy not significantly lower than allowed; its control gains
      less; the baseline shifted to its recall is significantly less accurate |
    | change the decision | validation data chose the baseline with a rule other than argmax, and on test data that
      beats argmax in the same sense |
    | change the decision | validation data chose the method, test data exclude a gain of 2 points over the baseline
      with a tuned decision, and that one beats argmax |
    | nothing to gain | validation data chose neither, or test data exclude a gain of 2 points; a shift that finds 2
      points more on test data ("bolder") surely costs more accuracy than allowed; the best rival finds no more there,
      or 2 points are excluded; cross-entropy had stopped improving, and rivals were trained |
    | cannot tell | everything else |

    method: the title of the chosen method, None if cross-entropy was chosen. still_improving: a longer training of
    cross-entropy might be better. has_rivals: whether any was trained. num_rows: the fewest validation or test rows of
    an important class.
    """
    unknown: Reason = "still_improving" if still_improving else "" if has_rivals else "no_rivals"
    nothing = Verdict("cannot_tell", unknown) if unknown else Verdict("nothing_to_gain")
    if not learnt:
        return Verdict("cannot_tell", "not_learnt")
    if evidence.num_seeds < SEEDS_FOR_PRAISE:
        return Verdict("cannot_tell", "few_seeds")
    if num_rows < FEWEST_ROWS:
        return Verdict("cannot_tell", "few_rows", more_rows=FEWEST_ROWS - num_rows)
    arm, over = ("method", "redecided") if method is not None else ("redecided", "baseline")
    if not unknown:
        nothing = _not_chosen(evidence, goal) or nothing
    if method is None and not is_redecided:
        return nothing
    found, total = evidence.compare(arm, over), evidence.compare(arm, "baseline")
    assert found is not None
    assert total is not None
    figure = goal.figure
    if figure == "false_alarms" and over == "baseline" and found.recall.value > 0:
        figure = "recall"  # the baseline missed the recall that was asked for
    gain = getattr(found, figure)
    sign = 1.0 if figure == "recall" else -1.0
    low, high = sorted(sign * end for end in (gain.low, gain.high))
    reason: Reason = ""
    if low <= 0:
        reason = "not_significant"
    elif goal.name == "best_recall" and (total.accuracy.high or 0.0) < -goal.max_accuracy_drop:
        reason = "accuracy_dropped"
    elif method is not None and (control := evidence.compare("method", "control")) is not None:
        reason = "control_as_good" if sign * getattr(control, figure).value <= 0 else ""
    if not reason and method is not None and (same := evidence.compare("method", "shifted")) is not None:
        reason = "" if (same.accuracy.low or 0.0) > 0 else "shift_as_good"
    kind: VerdictKind = "cannot_tell"
    if not reason:
        kind = "train_with" if method is not None else "change_the_decision"
    elif reason == "not_significant" and figure != "cost" and high < SMALL_GAIN:
        if method is not None:  # the rule alone may be what helps
            alone = decide(
                evidence, goal, method=None, is_redecided=True, still_improving=still_improving, has_rivals=has_rivals
            )
            if alone.kind == "change_the_decision":
                return replace(alone, method=method)
        return nothing if nothing.arm else replace(nothing, method=method, arm=arm, over=over, gain=gain)
    verdict = Verdict(kind, reason, method, arm, over, gain)
    if reason != "not_significant" or figure != "recall":
        return verdict
    half = (high - low) / 2
    settles = 0.1 if half > 0.1 else 0.05
    num = evidence.arms[0].num // evidence.num_seeds
    more = math.ceil(num * ((half / settles) ** 2 - 1) / 10) * 10
    return replace(verdict, more_rows=more, settles=settles) if more > 0 else verdict


def _not_chosen(evidence: Evidence, goal: GoalRecord) -> Verdict | None:
    """That what validation data did not choose may find 2 points more at the accuracy allowed; None if it does not."""
    for arm, over in (("bolder", "baseline"), ("method", "redecided")):
        found = evidence.compare(arm, over)
        if found is None or goal.name != "best_recall" or found.recall.high is None:
            continue
        total = evidence.compare(arm, "baseline") or found
        is_dearer = (total.accuracy.high or 0.0) < -goal.max_accuracy_drop
        if found.recall.value > 0 and found.recall.high >= SMALL_GAIN and not is_dearer:
            return Verdict("cannot_tell", "not_chosen", arm=arm, over=over, gain=found.recall)
    return None
