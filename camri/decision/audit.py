"""Audit a trained model from its scores: the decision rule that meets a goal, what it changes, and how sure that is.

A rule is tuned on some rows and judged on others: whole groups on one side, every class on both.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from camri.decision.answer import Answer, Caution, Distribution, Point, Source
from camri.decision.calibrate import Calibration
from camri.decision.compare import Evidence, Judged, Judging, Tuning, compare
from camri.decision.curve import SLACK, Curve, Sweep, trace
from camri.decision.goals import (
    CONFIDENCE,
    AtLeast,
    Costs,
    FewestToPerson,
    Goal,
    LeastCost,
    MostRecall,
    Within,
    as_number,
    parse_goal,
)
from camri.decision.read import Rows, read, tune_and_judge
from camri.decision.rules import RULES, AnyRule, LowestCost, Shift, Threshold, Triage, is_argmax
from camri.decision.scores import REST, Array, Scores, divide
from camri.decision.stats import FEWEST_GROUPS, FEWEST_ROWS
from camri.decision.tune import PRIOR_ROWS, Chosen, Tuner, cost_of
from camri.decision.verdict import Context, conclude
from camri.decision.where import Where, make_where, strata_of, weights_of
from camri.errors import InputError
from camri.names import Names

TARGETS = (0.8, 0.9, 0.95, 0.98, 0.99, 1.0)  # recalls whose cost is shown
MOST_DRAWS, FEWEST_DRAWS, ROWS_DRAWN = 100, 20, 2_000_000  # of rows, to see what tuning does to the figures
MOST_COMPARED = 200_000  # rows that are looked at for copies; of more, a part stands for all
COPIES = 0.1  # the share of rows that are copies of others from which a caution is given


def audit(
    scores: ArrayLike,
    labels: Any,
    important: str | int | Sequence[str | int],
    *,
    classes: Names | None = None,
    split: Sequence[str] | str | None = None,
    groups: Any = None,
    kind: str | None = None,
    max_accuracy_drop: float = 0.0,
    at_least: float | Mapping[str, float] | None = None,
    confidence: float | None = CONFIDENCE,
    max_false_alarms: float | None = None,
    alarms_per_day: float | None = None,
    cost_matrix: Costs | None = None,
    clear_misses_at_most: float | None = None,
    alarm_precision: float | None = None,
    prevalence: Mapping[str, float] | None = None,
    rows_per_day: float | None = None,
    per: Any = None,
) -> Answer:
    """Find the decision rule that meets a goal for a trained model's important classes, and what it changes.

    Parameters
    ----------
    scores : array or data frame (N, C)
        Logits or probabilities of rows that the model was not trained on. A data frame's columns are found by the
        names of the classes.
    labels : array (N,)
        Names or indices; or the name of the data frame's column that has them.
    important : label or list of labels
        One or several classes, which share the rule's value.
    classes : list or mapping, optional
        The names in the order of the columns, or a mapping between names and indices, such as class_to_idx.
    split : array (N,), optional
        "val" or "test" for each row: the rule is tuned on val and judged on test. By default ten folds take turns as
        the judged one, and the rule that is advised is tuned on all rows.
    groups : array (N,), optional
        The patient, film or track of each row. A group is tuned on or judged, never both, and its rows count for as
        many independent rows as they are worth.
    kind : "logits" or "probabilities", optional
        Recognised by default.
    max_accuracy_drop : float
        Goal: the most recall at no more than this loss of accuracy (0.01 is one percentage point), by a shift.
    at_least : float or {class: recall}, optional
        Goal: a recall to guarantee on new rows, at the fewest false alarms, by a shift or a threshold.
    confidence : float or None
        Of that guarantee. None: the recall is guaranteed on average over calibration sets, which takes fewer rows and
        raises fewer false alarms; in about half of all calibration sets the recall is then a little lower.
    max_false_alarms : float, optional
        Goal: the most recall with at most this share of all rows as false alarms on new rows, with `confidence`.
    alarms_per_day : float, optional
        Goal: the most recall with at most so many alarms, right or wrong, of `rows_per_day`, with `confidence`.
    cost_matrix : array (C, C), data frame, mapping or CSV file, optional
        Goal: the least mean cost; row = true class, column = predicted class.
    clear_misses_at_most : float, optional
        Goal: three ways out with the fewest rows to a person. At most this share of the important class is cleared,
        guaranteed on new rows. `predict` then gives None for a row that is left to a person.
    alarm_precision : float, optional
        With it: at least this share of the alarms is right, by a lower bound. Without it there are no alarms.
    prevalence : {class: share}, optional
        How frequent classes are where the rule will run, if not as in these rows. Recall and its guarantee do not
        depend on it; accuracy, precision, alarms and costs are then those of that prevalence.
    rows_per_day : float, optional
        Rows that come where the rule will run, to tell alarms and misses as counts.
    per : array (N,), optional
        The place of each row, such as the hospital: recall is told, and with `at_least` guaranteed, in each of them.

    Returns
    -------
    Answer
        `rule` and `predict` apply what is advised; `evidence` has all figures; `print` shows the answer in sentences.

    See Also
    --------
    ImportantClassifier : the same for a scikit-learn model, with cross-validation.

    Examples
    --------
    >>> drawn = np.random.default_rng(0)
    >>> labels = drawn.integers(0, 3, 600)
    >>> scores = drawn.normal(size=(600, 3)) + 2 * np.eye(3)[labels] - [0, 1.5, 0]
    >>> found = audit(scores, labels, "stop", classes=["limit", "stop", "yield"])
    >>> found.verdict.kind, found.rule, round(found.change.recall.value, 2), round(found.change.accuracy.value, 2)
    ('change_the_decision', Shift(values={1: 2.4}), 0.43, 0.02)
    """
    options = {"classes": classes, "kind": kind, "groups": groups, "split": split, "per": per}
    rows = read(scores, labels, important, keeps_table=cost_matrix is not None, **options)
    where = make_where(rows.classes, rows.scores.labels, prevalence, rows_per_day)
    more = {"max_false_alarms": max_false_alarms, "alarms_per_day": alarms_per_day}
    more |= {"clear_misses_at_most": clear_misses_at_most, "alarm_precision": alarm_precision}
    goal = make_goal(rows, where, max_accuracy_drop, at_least, confidence, cost_matrix, **more)
    found = judge(rows, goal, where=where)
    for text in found.warnings():
        warnings.warn(text, stacklevel=2)
    return found


def make_goal(
    rows: Rows,
    where: Where,
    max_accuracy_drop: float = 0.0,
    at_least: float | Mapping[str, float] | None = None,
    confidence: float | None = CONFIDENCE,
    cost_matrix: Costs | None = None,
    max_false_alarms: float | None = None,
    alarms_per_day: float | None = None,
    clear_misses_at_most: float | None = None,
    alarm_precision: float | None = None,
) -> Goal:
    """The goal that is asked for, of these rows' classes."""
    budgets = (max_false_alarms, alarms_per_day)
    if clear_misses_at_most is not None or alarm_precision is not None:
        others = {"max_accuracy_drop": max_accuracy_drop or None, "at_least": at_least, "cost_matrix": cost_matrix}
        others |= dict(zip(("max_false_alarms", "alarms_per_day"), budgets, strict=True))
        return _make_triage(clear_misses_at_most, alarm_precision, confidence, others)
    sure = at_least is not None or any(one is not None for one in budgets)
    if confidence != CONFIDENCE and not sure:
        wrong = f"confidence={confidence!r} is for a recall to guarantee, or a budget of alarms"
        raise InputError(f"{wrong}; give it with at_least, or leave it out", argument="confidence")
    names, most = [rows.classes[index] for index in rows.scores.important], None
    if alarms_per_day is not None:
        if where.rows_per_day is None:
            wrong = f"alarms_per_day={alarms_per_day!r} is a share of an unknown number of rows"
            raise InputError(f"{wrong}; give rows_per_day too, or max_false_alarms as a share", "alarms_per_day")
        most = as_number(alarms_per_day, "alarms_per_day", "a number of alarms, say 50") / where.rows_per_day
    asked = (max_accuracy_drop, at_least, cost_matrix, confidence, names, max_false_alarms, most)
    return parse_goal(rows.classes, *asked)


def _make_triage(
    clear_misses: float | None, precision: float | None, confidence: float | None, others: Mapping[str, Any]
) -> FewestToPerson:
    """The goal of a triage; another goal beside it is refused."""
    if clear_misses is None:
        wrong = f"alarm_precision={precision!r} is for alarms beside rows that are cleared"
        raise InputError(f"{wrong}; give clear_misses_at_most too", argument="alarm_precision")
    if given := [name for name, value in others.items() if value is not None]:
        raise InputError(f"give one goal, not clear_misses_at_most and {given[0]}", argument=given[0])
    if confidence is None:
        wrong = "a guarantee on average is for at_least, not for clear_misses_at_most"
        raise InputError(f"{wrong}; give a confidence of 0.5 or more and less than 1, say 0.95", "confidence")
    return FewestToPerson(clear_misses, precision, confidence)


def judge(rows: Rows, goal: Goal, name: str = "scores", where: Where | None = None) -> Answer:
    """Tune the rule, compare it with argmax on the same rows, and conclude."""
    if isinstance(goal, FewestToPerson):
        from camri.decision.triage import judge_triage

        return judge_triage(rows, goal, name, where)
    where = where or Where()
    work = _Work.of(rows, goal, where)
    chosen = work.tuner.choose()
    point = work.tuner.point(chosen)
    said, tuning = work.predict(chosen)
    evidence = work.compare(said, tuning)
    context = Context(
        is_changed=not is_argmax(point.rule),
        num_rows=int(min(work.here.num.min(), work.tuner.scores.num.min())),
        is_guaranteed=None if point.guarantee is None else point.guarantee.is_given,
    )
    assert not isinstance(point.rule, Triage)
    rule = point.rule if not isinstance(point.rule, LowestCost) else Shift(dict.fromkeys(work.here.important, 0.0))
    curve = work.curve(rule.name)
    answer = Answer(
        source=source_of(rows, name, len(work.here)),
        goal=goal,
        point=point,
        evidence=evidence,
        verdict=conclude(evidence, goal, context),
        tuned_on="all" if work.is_shown_where_tuned else "split" if work.fold is None else "folds",
        num_folds=0 if work.fold is None else int(work.fold.max()) + 1,
        prices=tuple(_prices(curve)),
        both=_both_rules(work, rule, curve) if not isinstance(point.rule, LowestCost) else {},
        drawn=distributions_of(work.here, rows.classes),
        where=where,
        scores=work.here,
        labels=rows.labels_as,
    )
    object.__setattr__(answer, "cautions", tuple(_cautions(answer, rows, work)))
    return answer


def source_of(rows: Rows, name: str, num_judged: int) -> Source:
    """What was judged."""
    return Source(
        name=name,
        classes=rows.classes,
        important=rows.scores.important,
        num_rows=len(rows.scores),
        num_judged=num_judged,
        num_groups=None if rows.groups is None else len(rows.group_names),
        scores_are=rows.kind,
        unit=rows.unit,
        first_column=rows.first_column,
        decimals=rows.decimals,
    )


def keep_apart(rows: Rows) -> tuple[Any, Any, Array | None]:
    """The rows that tune, those that judge, and the folds of these where they take turns; None where they do not."""
    kept, _ = tune_and_judge(rows)
    return (*kept, None) if isinstance(kept, tuple) else _in_turn(kept)


def distributions_of(scores: Scores, classes: Sequence[str]) -> dict[str, Distribution]:
    """How the probability of the best important class is distributed: "" for all rows, and each important class."""
    best = scores.probabilities().max(axis=1)
    own = {classes[index]: best[scores.labels == index] for index in scores.important}
    return {name: Distribution.of(values) for name, values in {"": best, **own}.items() if len(values)}


@dataclass(frozen=True, eq=False)
class _Work:
    """The rows that tune, those that judge, and the folds (N,) where they take turns; None where they do not."""

    tuner: Tuner
    here: Scores
    table: Array | None
    groups: Array | None
    fold: Array | None
    goal: Goal
    classes: tuple[str, ...]
    is_split: bool
    strata: tuple[Array, Array] | None

    @staticmethod
    def of(rows: Rows, goal: Goal, where: Where) -> "_Work":
        tuning, judged, fold = keep_apart(rows)
        _refuse_empty(rows, tuning, judged, fold)
        is_split = fold is None

        def part(of: Array | None, chosen: Array | slice) -> Any:
            return None if of is None else of[chosen]

        whole = tuning if isinstance(tuning, slice) else np.sort(tuning)
        scores = rows.scores if isinstance(whole, slice) else rows.scores.take(whole)
        important = [where.prevalence.get(index) for index in scores.important]
        tuner = Tuner(
            scores,
            goal,
            groups=part(rows.groups, whole),
            weights=weights_of(scores.labels, where),
            table=part(rows.table, whole),
            as_factor=rows.kind == "probabilities",
            sites=None if rows.sites is None else (part(rows.sites, whole), rows.site_names),
            prevalence=None if None in important else sum(one for one in important if one is not None),
        )
        here = rows.scores.take(judged) if is_split else tuner.scores
        strata = strata_of(here.labels, where)
        return _Work(
            tuner,
            here,
            part(rows.table, judged),
            part(rows.groups, judged),
            fold,
            goal,
            rows.classes,
            is_split,
            strata,
        )

    @property
    def is_shown_where_tuned(self) -> bool:
        """Whether the figures are of the rows that tuned the rule: a guarantee needs all of them."""
        return isinstance(self.goal, (AtLeast, Within)) and not self.is_split

    def curve(self, rule: str) -> Curve:
        """The curve of a rule on the judged rows."""
        if not self.is_split:
            sweep = self.tuner.sweep(rule)
            return sweep.curve() if self.tuner.weights is None else sweep.curve(sweep.counts(self.tuner.weights))
        curve = trace(self.here, rule)
        if self.strata is None:
            return curve
        parts, shares = self.strata
        weights = (shares * len(parts) / np.maximum(np.bincount(parts, minlength=len(shares)), 1))[parts]
        return curve.sweep.curve(curve.sweep.counts(weights))

    def predict(self, chosen: Chosen) -> tuple[Array, Tuning | None]:
        """Predictions of the judged rows (N,), each by a rule that it did not tune, and what tuning does to them."""
        final = _predict(chosen.rule, self.here, self.table)
        if self.is_shown_where_tuned:
            return final, None
        drop = self.goal.max_accuracy_drop if isinstance(self.goal, MostRecall) else 0.0
        if self.fold is None:
            expected = None
            if isinstance(self.goal, MostRecall):
                gain = Calibration.of(self.tuner.scores).gain(self.here)
                expected = float(np.where(final != self.here.predict(), gain, 0.0).mean())
            return final, Tuning(final, {}, expected, PRIOR_ROWS, drop)
        said, gains = self.tuner.cross_fit(self.fold)
        expected = float(gains.mean()) if isinstance(self.goal, MostRecall) else None
        weight = PRIOR_ROWS if self.tuner.prior_rows else 0
        return said, Tuning(final, redraw(self.tuner, self.classes, final), expected, weight, drop)

    def compare(self, said: Array, tuning: Tuning | None) -> Evidence:
        """The evidence of argmax and the tuned rule."""
        matrix = np.asarray(self.goal.matrix) if isinstance(self.goal, LeastCost) else None
        arms = {
            "argmax": Judged.of("as it is", [self.here], [self.here.predict()], matrix),
            "tuned": Judged.of("tuned", [self.here], [said], matrix),
        }
        tunings = None if tuning is None else {"tuned": tuning}
        judging = Judging([self.here], self.classes, self.groups, tuning=tunings, strata=self.strata)
        return compare(arms, [("tuned", "argmax")], judging, final="tuned")


def _in_turn(fold: Array) -> tuple[Any, Any, Array]:
    """The rows that tune and judge in turn, which are the same, and their folds; without the rows of train."""
    if (fold >= 0).all():
        return slice(None), slice(None), fold
    kept = np.flatnonzero(fold >= 0)
    return kept, kept, fold[kept]


def _predict(rule: AnyRule, scores: Scores, table: Array | None) -> Array:
    """Predictions (N,): an important class, −1 for the best other class, or any class by costs."""
    if not isinstance(rule, LowestCost):
        return rule.predict(scores)
    assert table is not None
    said = rule.predict(table)
    return np.where(said == scores.rest, REST, said)


def redraw(tuner: Tuner, classes: Sequence[str], final: Array) -> dict[str | int, Array]:
    """Bootstrap how optimistic changes are on the rows that tuned the rule: errors (B,) by figure and by class index.

    Rows or groups are drawn, the rule is tuned on them, and its changes there are compared with those on all rows
    (Efron's optimism). Intervals that ignore the tuning held the true change of false alarms in .76 to .95 of made
    tables (docs/audit.md). Of a class's recall the spread alone is counted.
    """
    scores = tuner.scores
    num = max(FEWEST_DRAWS, min(MOST_DRAWS, ROWS_DRAWN // len(scores)))
    if isinstance(tuner.goal, LeastCost):
        return _redraw_costs(tuner, num, final)
    (sweep,) = tuner.sweeps.values()
    whole = sweep.curve()
    errors, states = [], []
    for drawn in tuner.redraw(num):
        there, at = drawn.curve, drawn.state
        if not there.num.all():
            continue  # no row of an important class was drawn
        here_at = None if at is None else whole.find(drawn.rule)  # type: ignore[arg-type]
        errors.append(_changes(there, at) - _changes(whole, here_at))
        states.append(here_at)
    recall, accuracy, alarms = np.transpose(errors)
    moved = _class_changes(sweep, states, len(classes))
    by_class: dict[str | int, Array] = {index: column - column.mean() for index, column in enumerate(moved.T)}
    return {"recall": recall, "accuracy": accuracy, "false_alarms": alarms, **by_class}


def _changes(curve: Curve, state: int | None) -> Array:
    """Change of recall, accuracy and false alarms from argmax to a state: (3,)."""
    if state is None:
        return np.zeros(3)
    before = curve.before
    return np.array(
        [
            curve.mean_recall[state] - before.mean_recall[0],
            curve.accuracy[state] - before.accuracy[0],
            (curve.alarms[state] - before.alarms[0]) / curve.total,
        ]
    )


def _class_changes(sweep: Sweep, states: Sequence[int | None], num_classes: int) -> Array:
    """Change of every class's recall from argmax to each of these states: (B, C)."""
    scores = sweep.scores
    delta = sweep.scores.is_right(np.broadcast_to(np.array(scores.important)[sweep.winner], len(scores))).astype(float)
    delta -= scores.rest_right
    known = np.unique([state for state in states if state is not None]).astype(int)
    bins = np.searchsorted(known, sweep.place, side="left")
    sums = np.bincount(bins * num_classes + scores.labels, delta, minlength=(len(known) + 1) * num_classes)
    right = np.cumsum(sums.reshape(-1, num_classes)[: len(known)], axis=0)
    now = np.bincount(scores.labels, np.where(sweep.is_plain, delta, 0.0), minlength=num_classes)
    changes = np.nan_to_num(divide(right - now, np.bincount(scores.labels, minlength=num_classes)))
    places = {state: place for place, state in enumerate(known.tolist())}
    none = np.zeros(num_classes)
    return np.array([none if state is None else changes[places[state]] for state in states])


def _redraw_costs(tuner: Tuner, num: int, final: Array) -> dict[str | int, Array]:
    """The same for the mean cost, row by row; "final cost" (N,) is each row's cost with the final rule."""
    assert isinstance(tuner.goal, LeastCost)
    scores, drawn = tuner.scores, np.random.default_rng(0)
    costs, knows = cost_of(scores, np.asarray(tuner.goal.matrix)), tuner.know()
    now = scores.predict()
    kept: dict[AnyRule | str, Array] = {}
    before, found = costs(now), []
    for _ in range(num):
        times = drawn.poisson(1.0, int(tuner.units.max()) + 1)[tuner.units].astype(np.float64)
        rule = tuner.choose(times=times, knows=knows).rule
        key = rule.name if isinstance(rule, LowestCost) else ""
        said = kept[key] if key in kept else tuner.predict(rule)
        if key:
            kept[key] = said
        shares = (times / times.sum(), np.full(len(times), 1 / len(times)))
        change = costs(said) - before
        right = scores.is_right(said) - scores.is_right(now).astype(float)
        alarm = scores.is_false_alarm(said) - scores.is_false_alarm(now).astype(float)
        own = [scores.labels == index for index in scores.important]
        recall = [
            float(np.mean([divide(right[one] @ share[one], share[one].sum()) for one in own])) for share in shares
        ]
        figures = [(one @ shares[0]) - (one @ shares[1]) for one in (right, alarm, change)]
        found.append((recall[0] - recall[1], *figures))
    recall, accuracy, alarms, cost = np.nan_to_num(np.transpose(found))
    return {
        "recall": recall, "accuracy": accuracy, "false_alarms": alarms, "cost": cost, "final cost": costs(final),
    }  # fmt: skip


def _prices(curve: Curve) -> Iterator[Point]:
    """Points of the curve with more recall than now: the most accurate one, then one for each target."""
    first = int(np.searchsorted(curve.mean_recall, curve.before.mean_recall[0] + SLACK))
    if first == len(curve.states):
        return
    last = first - 1
    for state in (first + int(curve.accuracy[first:].argmax()), *map(int, curve.reach(np.array(TARGETS)))):
        # Important classes that are confused with each other stay so: their mean recall ends below 1.
        if last < state < len(curve.states):
            last = state
            yield _point(curve, state)


def _both_rules(work: _Work, rule: Shift | Threshold, curve: Curve) -> dict[str, Point]:
    """Each rule at the recall of the tuned one on these rows, that one first; empty where they do the same."""
    state = curve.find(rule)
    (other,) = set(RULES) - {rule.name}
    another = work.curve(other)
    there = int(another.reach(min(1.0, float(curve.mean_recall[state]))))
    if there == len(another.states) or (
        len(curve.correct) == len(another.correct) and np.array_equal(curve.correct, another.correct)
    ):
        return {}
    return {rule.name: _point(curve, state), other: _point(another, there)}


def _point(curve: Curve, state: int) -> Point:
    precision = curve.precision[state]
    return Point(
        float(curve.value[state]),
        float(curve.mean_recall[state]),
        float(curve.accuracy[state]),
        float(curve.alarms[state] / curve.total),
        None if np.isnan(precision).any() else float(precision.mean()),
    )


def _cautions(answer: Answer, rows: Rows, work: _Work) -> Iterator[Caution]:
    """What is odd about the rows, the costs or the rule."""
    scores, classes = rows.scores, rows.classes
    assert scores.rest is not None
    said = scores.predict()
    counts = np.bincount(np.where(said == REST, scores.rest, said), minlength=len(classes))
    counts[np.bincount(scores.labels, minlength=len(classes)) > 0] = 0
    if len(empty := np.flatnonzero(counts)):
        first = int(empty[0])
        values = {"name": classes[first], "num": int(counts[first]), "total": len(scores), "more": len(empty) - 1}
        yield Caution("empty_class", values)
    if isinstance(answer.goal, LeastCost):
        costs = np.asarray(answer.goal.matrix)
        for true, other in np.argwhere(costs < np.diag(costs)[:, None])[:1].tolist():
            prices = {"cost": float(costs[true, other]), "right": float(costs[true, true] + 0.0)}
            yield Caution("cheaper_mistake", {"name": classes[true], "other": classes[other], **prices})
    if (num := _num_copies(rows)) > COPIES * len(scores):
        yield Caution("copies", {"num": num, "total": len(scores)})
    final = answer.evidence.arm("tuned")
    assert final is not None
    called, own = sum(one.num for one in final.precisions), sum(one.num for one in final.recalls)
    if (answer.is_advised or answer.is_a_choice) and 2 * called > len(work.here) and called >= 2 * own:
        yield Caution("mostly_important", {"share": called / len(work.here), "own": own / len(work.here)})
    for one in answer.own:
        if one.before.num_groups is not None and one.before.num_groups < FEWEST_GROUPS:
            yield Caution("few_groups", {"name": one.name, "num": one.before.num_groups})


def _num_copies(rows: Rows) -> int:
    """Rows that are exact copies of others, of scores that are not rounded and have no groups."""
    scores = rows.scores
    if rows.groups is not None or rows.decimals is not None or len(scores) < 2 * FEWEST_ROWS:
        return 0
    lead, part = scores.lead[:, 0], np.arange(len(scores))
    if len(lead) > MOST_COMPARED:  # copies are alike in their lead, so those of a band of leads are all in it
        some = np.sort(lead[:: len(lead) // 10_000])
        first, num = len(some) // 2, len(some) * MOST_COMPARED // (2 * len(lead))
        part = np.flatnonzero((lead >= some[first]) & (lead <= some[first + num]))
    near = np.sort(lead[part])
    if float((near[1:] == near[:-1]).mean()) < COPIES:
        return 0
    table = np.column_stack([scores.lead[part], scores.rest_spread[part], scores.labels[part]])
    if np.array_equal(table, table.round(3)):  # rounded logits are alike by chance
        return 0
    _, times = np.unique(table, axis=0, return_counts=True)
    return round(int(times[times > 1].sum()) * len(lead) / len(part))


def _refuse_empty(rows: Rows, tuning: Any, judged: Any, fold: Array | None) -> None:
    """Refuse important classes without rows to tune on or to judge, and rows of important classes alone."""
    labels, important = rows.scores.labels, rows.scores.important
    if np.isin(labels[judged], important).all():
        raise InputError(
            f"all {len(labels[judged]):,} rows to judge are of important classes, so that no false alarm can be seen; "
            "give rows of the other classes too"
        )
    for index in important:
        own = labels == index
        parts = [("judge", own[judged]), ("tune on", own[tuning])]
        if fold is not None:
            inside = own[judged]
            parts += [("tune on", inside[fold != number]) for number in range(int(fold.max()) + 1)]
        for purpose, found in parts:
            if not found.any():
                where = "" if rows.groups is None else f", in {len(np.unique(rows.groups[own]))} groups,"
                raise InputError(
                    f"important={rows.classes[index]!r} has {own.sum()} rows in all{where} and none to {purpose}; "
                    f"give at least {FEWEST_ROWS}{' in several groups' if where else ''}",
                    argument="important",
                )
