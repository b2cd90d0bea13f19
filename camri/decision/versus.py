"""Compare trained models on the same rows: each under its own best rule for a goal, tuned on other rows.

The present model is the first. Intervals allow for the tuning of both rules: rows are drawn again, the same for all
models, and every rule is tuned on them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from camri.decision.answer import Answer, AtRecall, Candidate
from camri.decision.audit import distributions_of, keep_apart, make_goal, source_of
from camri.decision.compare import Change, Evidence, Judged, Judging, Tuning
from camri.decision.compare import compare as lay_beside
from camri.decision.curve import Curve
from camri.decision.goals import CONFIDENCE, AtLeast, Costs, Goal, LeastCost, as_number
from camri.decision.joining import find_places, join
from camri.decision.read import Rows, read
from camri.decision.rules import LowestCost
from camri.decision.scores import REST, Array, Scores
from camri.decision.stats import Z, holm
from camri.decision.tune import Chosen, Present, Tuner, cost_of
from camri.decision.verdict import Verdict, conclude_rival
from camri.decision.where import Where
from camri.errors import InputError
from camri.names import Names

MARGIN = 0.01  # of the deciding share: less does not matter
MOST_DRAWS, FEWEST_DRAWS, ROWS_DRAWN = 100, 20, 2_000_000
RECALLS = np.round(np.linspace(0.5, 1.0, 51), 2)  # of the curves that are shown
SEED = 0


def compare(
    old: ArrayLike,
    new: ArrayLike | Mapping[str, ArrayLike],
    labels: Any,
    important: str | int | Sequence[str | int],
    *,
    classes: Names | None = None,
    split: Sequence[str] | str | None = None,
    groups: Any = None,
    ids: Mapping[str, Any] | None = None,
    kind: str | None = None,
    max_accuracy_drop: float = 0.0,
    at_least: float | Mapping[str, float] | None = None,
    confidence: float | None = None,
    cost_matrix: Costs | None = None,
    margin: float | None = None,
) -> Answer:
    """Find out whether a new model is better than the present one on the same rows, each under its own best rule.

    Parameters
    ----------
    old : array or data frame (N, C)
        Logits or probabilities of the present model, of rows that no model was trained on.
    new : array or data frame (N, C), or {name: array}
        Those of the new model, or of several.
    labels, important, classes, split, groups, kind, max_accuracy_drop, cost_matrix
        As in `audit`; every model may have another kind of scores.
    ids : {name: array (N,)}, optional
        The name of each row in the scores of "old" and of each new model ("new" if there is one), where the order of
        the rows differs. Labels and groups have the order of `old`.
    at_least : float or {class: recall}, optional
        Compare the false alarms at this recall. It is reached, not guaranteed, unless a `confidence` is given.
    margin : float, optional
        A difference that does not matter, of the figure that decides; 0.01, one percentage point, by default.

    Returns
    -------
    Answer
        `verdict.kind` is "better", "worse", "no_difference" or "cannot_tell", with how many rows would settle it.
        `candidates` has the verdict on each of several new models; `predict` applies the rule of the better one.

    See Also
    --------
    audit : the best rule of one model.

    Examples
    --------
    >>> drawn = np.random.default_rng(0)
    >>> labels = drawn.integers(0, 2, 2000)
    >>> old = drawn.normal(size=(2000, 2)) + 1.5 * np.eye(2)[labels]
    >>> new = drawn.normal(size=(2000, 2)) + 2.5 * np.eye(2)[labels]
    >>> found = compare(old, new, labels, 1, at_least=0.95)
    >>> found.verdict.kind, round(found.verdict.gain.value, 2), found.candidates[1].point.rule
    ('better', -0.15, Threshold(values={1: 0.576}))
    """
    several: dict[str, Any] = {"old": old, **(new if isinstance(new, Mapping) else {"new": new})}
    if len(several) < 2 or "old" in (new if isinstance(new, Mapping) else ()):
        raise InputError("give at least one new model, of another name than 'old'", argument="new")
    options = {"classes": classes, "kind": kind, "split": split, "groups": groups}
    keeps_table = cost_matrix is not None
    models = {
        name: read(scores, _in_order(labels, name, ids), important, keeps_table=keeps_table, **options)
        for name, scores in several.items()
    }
    if ids is not None:
        models = {name: replace(rows, ids=_ids_of(ids, name, len(rows.scores))) for name, rows in models.items()}
    goal = make_compared_goal(models["old"], max_accuracy_drop, at_least, confidence, cost_matrix)
    return compare_rows(models, goal, margin)


def make_compared_goal(
    rows: Rows,
    max_accuracy_drop: float = 0.0,
    at_least: float | Mapping[str, float] | None = None,
    confidence: float | None = None,
    cost_matrix: Costs | None = None,
) -> Goal:
    """The goal that models are compared by; a recall is reached, unless a confidence asks to guarantee it."""
    goal = make_goal(rows, Where(), max_accuracy_drop, at_least, CONFIDENCE, cost_matrix)
    if not isinstance(goal, AtLeast):
        return goal
    return replace(goal, confidence=confidence, is_seen=confidence is None)


def compare_rows(
    models: Mapping[str, Rows], goal: Goal, margin: float | None = None, titles: Mapping[str, str] | None = None
) -> Answer:
    """Compare models of the same rows; the first is the present one. Rows are joined by their ids, if they have any.

    titles: what the models are called, where that is not their name.
    """
    shown = {name: (titles or {}).get(name, name) for name in models}
    rows = join(models, shown)
    first, *others = rows
    small = _check_margin(margin, goal)
    tuning, judged, fold = keep_apart(rows[first])
    present = Present.of(rows[first].scores.take(np.arange(len(rows[first].scores))[tuning]))
    sides = {name: _Side.of(one, goal, tuning, judged, fold, present) for name, one in rows.items()}
    drawn = _redraw(sides, len(rows[first].classes), goal) if fold is not None else None
    arms, judging = _set_up(sides, rows[first], judged, goal, shown, drawn)
    pairs = [(name, first) for name in others]
    evidence = lay_beside(arms, pairs, judging, others[0])
    missed = isinstance(goal, AtLeast) and len({side.chosen.has_met for side in sides.values()}) > 1
    figure = "recall" if missed else goal.figure  # one model cannot reach what was asked for
    verdicts = dict(zip(others, _conclude(evidence, goal, figure, small), strict=True))
    best = max(others, key=lambda name: _rank(verdicts[name]))
    if best != evidence.final:
        evidence = lay_beside(arms, pairs, judging, best)
    points = {name: side.tuner.point(side.chosen) for name, side in sides.items()}
    return Answer(
        source=source_of(rows[first], shown[first], len(sides[first].here)),
        goal=goal,
        point=points[best],
        evidence=evidence,
        verdict=verdicts[best],
        tuned_on="split" if fold is None else "folds",
        num_folds=0 if fold is None else int(fold.max()) + 1,
        candidates=tuple(
            Candidate(name, shown[name], points[name], verdicts.get(name), _curve(name, sides, drawn)) for name in rows
        ),
        margin=small,
        drawn=distributions_of(sides[best].here, rows[first].classes),
        scores=sides[best].here,
        labels=rows[first].labels_as,
    )


def _check_margin(margin: float | None, goal: Goal) -> float:
    if margin is None:
        return 0.0 if isinstance(goal, LeastCost) else MARGIN
    value = as_number(margin, "margin", "0 to 1, 0.01 for one percentage point")
    if value < 0 or (value >= 1 and not isinstance(goal, LeastCost)):
        raise InputError(f"margin={margin!r} is not allowed; give 0 to 1, 0.01 for one percentage point", "margin")
    return value


def is_not_worse(answer: Answer) -> bool:
    """Whether the new model is surely not worse by more than the margin."""
    gain, margin = answer.verdict.gain, answer.margin or 0.0
    if answer.verdict.kind in ("better", "no_difference"):
        return True
    if gain is None or gain.low is None or gain.high is None or answer.verdict.reason not in ("", "not_significant"):
        return False
    return gain.low >= -margin if answer.verdict.figure == "recall" else gain.high <= margin


def _rank(verdict: Verdict) -> tuple[int, float]:
    """Order of the new models: a better one first, then by the figure that decides."""
    order = ("worse", "cannot_tell", "no_difference", "better")
    assert verdict.gain is not None
    return order.index(verdict.kind), verdict.gain.value if verdict.figure == "recall" else -verdict.gain.value


def _conclude(evidence: Evidence, goal: Goal, figure: str, margin: float) -> list[Verdict]:
    """The verdict on each new model; p-values of several are corrected by Holm."""
    found, num = evidence.comparisons, min(one.num for one in evidence.arms[0].recalls)
    p_values = holm([1.0 if (p := getattr(one, figure).p) is None else p for one in found]).tolist()
    return [conclude_rival(one, goal, figure, margin, num, p) for one, p in zip(found, p_values, strict=True)]


@dataclass(frozen=True, eq=False)
class _Side:
    """One model: its tuner, the judged rows, its rule on all tuning rows, and what it says of the judged rows (N,).

    said: by rules that these rows did not tune. final: by the rule that all rows tuned.
    """

    tuner: Tuner
    here: Scores
    chosen: Chosen
    said: Array
    final: Array
    is_folded: bool

    @staticmethod
    def of(rows: Rows, goal: Goal, tuning: Any, judged: Any, fold: Array | None, present: Present) -> "_Side":
        every = np.arange(len(rows.scores))
        whole = np.sort(every[tuning])
        tuner = Tuner(
            rows.scores.take(whole),
            goal,
            groups=None if rows.groups is None else rows.groups[whole],
            table=None if rows.table is None else rows.table[whole],
            present=present,
            keeps_recall=False,
            as_factor=rows.kind == "probabilities",
        )
        chosen = tuner.choose()
        if fold is not None:
            said, final = tuner.cross_fit(fold)[0], _said(tuner, chosen)
            return _Side(tuner, tuner.scores, chosen, said, final, True)
        here = rows.scores.take(every[judged])
        if isinstance(chosen.rule, LowestCost):
            assert rows.table is not None
            said = chosen.rule.predict(rows.table[every[judged]])
            said = np.where(said == here.rest, REST, said)
        else:
            said = chosen.rule.predict(here)
        return _Side(tuner, here, chosen, said, said, False)


def _said(tuner: Tuner, chosen: Chosen) -> Array:
    """Predictions (N,) of a chosen rule for the tuner's rows; a state of a curve needs no new sums."""
    if chosen.state is None:
        return tuner.predict(chosen.rule)
    sweep = chosen.curve.sweep
    winners = np.array(sweep.scores.important)[np.broadcast_to(sweep.winner, len(sweep.scores))]
    return np.where(sweep.place <= chosen.curve.states[chosen.state], winners, REST)


@dataclass(frozen=True, eq=False)
class _Drawn:
    """How far the differences from the first model are on draws of the rows from those on the rows, by new model.

    errors: by figure and by class index (B,). bands: standard deviation of the false alarms at each of RECALLS.
    """

    errors: Mapping[str, Mapping[str | int, Array]]
    bands: Mapping[str, Array]


def _set_up(
    sides: Mapping[str, _Side], rows: Rows, judged: Any, goal: Goal, titles: Mapping[str, str], drawn: _Drawn | None
) -> tuple[dict[str, Judged], Judging]:
    """The arms, and the rows that they are judged on with what the tuning of both rules does to their differences."""
    matrix = np.asarray(goal.matrix) if isinstance(goal, LeastCost) else None

    def arm(name: str, said: Array) -> Judged:
        return Judged.of(titles[name], [sides[name].here], [said], matrix)

    first = next(iter(sides))
    tuning = {} if drawn is None else {name: Tuning(None, errors) for name, errors in drawn.errors.items()}
    groups = None if rows.groups is None else rows.groups[judged]
    judging = Judging([sides[first].here], rows.classes, groups, tuning=tuning)
    return {name: arm(name, side.said) for name, side in sides.items()}, judging


def _redraw(sides: Mapping[str, _Side], num_classes: int, goal: Goal) -> _Drawn:
    """Bootstrap of the differences from the first model: every rule is tuned again on each draw, the same for all."""
    matrix = np.asarray(goal.matrix) if isinstance(goal, LeastCost) else None
    first, *others = sides
    tuners = {name: side.tuner for name, side in sides.items()}
    units = tuners[first].units
    figures = {name: _Figures.of(tuner, num_classes, matrix) for name, tuner in tuners.items()}
    whole = {name: figures[name](side.final, np.ones(len(units))) for name, side in sides.items()}
    knows = {name: tuner.know() for name, tuner in tuners.items()}
    drawn = np.random.default_rng(SEED)
    found: dict[str, list[Array]] = {name: [] for name in others}
    curves: dict[str, list[Array]] = {name: [] for name in others}
    for _ in range(max(FEWEST_DRAWS, min(MOST_DRAWS, ROWS_DRAWN // len(units)))):
        times = drawn.poisson(1.0, int(units.max()) + 1)[units].astype(np.float64)
        chosen = {name: tuner.choose(times=times, knows=knows[name]) for name, tuner in tuners.items()}
        there = {name: figures[name](_said(tuners[name], one), times) for name, one in chosen.items()}
        alarms = {name: _alarms_at(one.curve) for name, one in chosen.items()}
        for name in others:
            found[name].append((there[name] - there[first]) - (whole[name] - whole[first]))
            curves[name].append(alarms[name] - alarms[first])
    errors: dict[str, dict[str | int, Array]] = {}
    for name in others:
        # The mean is left out: both rules are as optimistic on their draws, and the change is cross-fitted.
        spread = np.nan_to_num(np.transpose(found[name]))
        recall, accuracy, false_alarms, cost, *by_class = spread - spread.mean(axis=1, keepdims=True)
        errors[name] = {"recall": recall, "accuracy": accuracy, "false_alarms": false_alarms, "cost": cost}
        errors[name] |= dict(enumerate(by_class))
    return _Drawn(errors, {name: np.nanstd(curves[name], axis=0, ddof=1) for name in others})


def _alarms_at(curve: Curve) -> Array:
    """False alarms at each of RECALLS, as a share of all rows."""
    if not curve.num.all():
        return np.full(len(RECALLS), np.nan)
    states = curve.reach(RECALLS).clip(max=len(curve.states) - 1)
    return np.asarray(curve.alarms[states] / curve.total)


def _curve(name: str, sides: Mapping[str, _Side], drawn: _Drawn | None) -> tuple[AtRecall, ...]:
    """The curve of a model's rule, with its difference from the first model; none where rules were not drawn again."""
    if drawn is None:
        return ()
    first = next(iter(sides))
    own, theirs = (_alarms_at(sides[one].chosen.curve) for one in (name, first))
    changes: list[Change | None] = [None] * len(RECALLS)
    if name != first:
        apart, half = own - theirs, Z * drawn.bands[name]
        changes = [
            Change(value, value - side, value + side) for value, side in zip(apart.tolist(), half.tolist(), strict=True)
        ]
    known = zip(RECALLS.tolist(), own.tolist(), changes, strict=True)
    return tuple(AtRecall(recall, alarms, change) for recall, alarms, change in known)


@dataclass(frozen=True, eq=False)
class _Figures:
    """Figures of predictions (N,) with rows that count `times` (N,): recall, accuracy, false alarms, cost, recalls."""

    scores: Scores
    num_classes: int
    costs: Any

    @staticmethod
    def of(tuner: Tuner, num_classes: int, matrix: Array | None) -> "_Figures":
        return _Figures(tuner.scores, num_classes, None if matrix is None else cost_of(tuner.scores, matrix))

    def __call__(self, said: Array, times: Array) -> Array:
        scores = self.scores
        right = np.bincount(scores.labels, scores.is_right(said) * times, minlength=self.num_classes)
        num, total = np.bincount(scores.labels, times, minlength=self.num_classes), times.sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            recalls = right / num
        alarms = (scores.is_false_alarm(said) @ times) / total
        cost = 0.0 if self.costs is None else (self.costs(said) @ times) / total
        return np.array([recalls[list(scores.important)].mean(), right.sum() / total, alarms, cost, *recalls])


def _in_order(labels: Any, name: str, ids: Mapping[str, Any] | None) -> Any:
    """The labels, which have the order of the old model's rows, in the order of this model's."""
    if ids is None or name == "old" or isinstance(labels, str):
        return labels
    values = np.asarray(labels)
    own = _ids_of(ids, name, len(values))
    return values[find_places(own, _ids_of(ids, "old", len(values)), name, "old")]


def _ids_of(ids: Mapping[str, Any], name: str, num: int) -> Array:
    if name not in ids or len(ids[name]) != num:
        raise InputError(f"ids have none for {name!r}, or not {num:,}; give {{model: an id for each row}}", "ids")
    return np.asarray(ids[name])
