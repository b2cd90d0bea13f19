"""The verdict: one value of a fixed vocabulary with its reason, by one table of rules for audits, fits and studies."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from camri.decision.compare import Change, Comparison, Evidence
from camri.decision.goals import Goal, MostRecall
from camri.decision.stats import FEWEST_ROWS

SEEDS_FOR_PRAISE = 5
SMALL_GAIN = 0.02  # of the deciding share: less is nothing to gain
ERROR = 0.05  # two-sided, of a comparison of models; one-sided, of a check

VerdictKind = Literal[
    "change_the_decision",  # the tuned rule is better
    "keep_the_decision",  # the present one meets the goal
    "train_with",  # another method is better
    "at_a_price",  # the tuned rule finds more, and loses accuracy
    "nothing_to_gain",
    "cannot_tell",
    "cannot_guarantee",
    "clear_and_alarm",  # a triage whose cleared rows are guaranteed
    "better",  # another model is; also "worse", "no_difference", "cannot_tell"
    "worse",
    "no_difference",
    "holds",  # what was promised, on new rows; also "broken", "cannot_tell"
    "broken",
]
Reason = Literal[
    "", "not_learnt", "still_improving", "no_rivals", "few_seeds", "few_rows", "not_significant", "accuracy_dropped",
    "control_as_good", "shift_as_good", "not_chosen", "not_guaranteed", "costs_more", "recall_dropped", "below_floor",
    "no_labels",
]  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """One value of the vocabulary.

    gain: the deciding figure's change, of `arm` over `over`; figure: which it is. method: title of what validation data
    chose. more_rows: rows of the important classes that would settle a difference of `settles`.
    """

    kind: VerdictKind
    reason: Reason = ""
    method: str | None = None
    arm: str = ""
    over: str = ""
    figure: str = ""
    gain: Change | None = None
    more_rows: int = 0
    settles: float = 0.0


@dataclass(frozen=True)
class Context:
    """What a verdict must know beside the evidence.

    trains: whether methods were trained, over seeds; an audit trains none. method: title of the chosen one; None if the
    baseline was chosen. is_changed: whether the tuned rule differs from argmax. num_rows: the fewest rows of an
    important class to tune on or to judge. is_guaranteed: None if no guarantee was asked for.
    """

    trains: bool = False
    method: str | None = None
    is_changed: bool = True
    num_rows: int = FEWEST_ROWS
    learnt: bool = True
    still_improving: bool = False
    has_rivals: bool = True
    is_guaranteed: bool | None = None


@dataclass(frozen=True)
class Gain:
    """What one arm gains over another by the figure that decides; change: turned so that higher is better."""

    arm: str
    over: str
    figure: str
    change: Change
    shown: Change
    reason: Reason

    @property
    def is_proven(self) -> bool:
        """Whether it is better in every sense that the goal has."""
        return not self.reason

    @property
    def is_small(self) -> bool:
        """Whether the interval excludes a gain that matters."""
        high = self.change.high
        return self.reason == "not_significant" and self.figure != "cost" and high is not None and high < SMALL_GAIN


@dataclass(frozen=True)
class Facts:
    """All that the table of verdicts asks: the context, and the gains of the method and of the tuned rule."""

    context: Context
    num_seeds: int
    method: Gain | None
    rule: Gain | None
    not_chosen: Comparison | None

    @property
    def is_idle(self) -> bool:
        """Whether nothing was chosen, or what was chosen gains too little to matter."""
        if self.method is not None:
            return self.method.is_small
        return self.rule is None or self.rule.is_small


Rule = tuple[VerdictKind, Reason, Callable[[Facts], bool]]
# The first rule that applies gives the verdict. A reason "" is replaced by the gain's own.
TABLE: tuple[Rule, ...] = (
    ("cannot_guarantee", "not_guaranteed", lambda f: f.context.is_guaranteed is False),
    ("keep_the_decision", "", lambda f: f.context.is_guaranteed is True and not f.context.is_changed),
    ("change_the_decision", "", lambda f: f.context.is_guaranteed is True),
    ("cannot_tell", "not_learnt", lambda f: not f.context.learnt),
    ("cannot_tell", "few_seeds", lambda f: f.context.trains and f.num_seeds < SEEDS_FOR_PRAISE),
    ("cannot_tell", "few_rows", lambda f: f.context.num_rows < FEWEST_ROWS),
    # A method was chosen on validation data.
    ("train_with", "", lambda f: f.method is not None and f.method.is_proven),
    ("change_the_decision", "", lambda f: f.method is not None and f.method.is_small and _is_proven(f.rule)),
    # The tuned rule was chosen.
    ("change_the_decision", "", lambda f: f.method is None and _is_proven(f.rule)),
    ("at_a_price", "", lambda f: not f.context.trains and f.rule is not None and f.rule.reason == "accuracy_dropped"),
    # Nothing was, or it gains too little to matter.
    ("cannot_tell", "still_improving", lambda f: f.is_idle and f.context.still_improving),
    ("cannot_tell", "no_rivals", lambda f: f.is_idle and f.context.trains and not f.context.has_rivals),
    ("cannot_tell", "not_chosen", lambda f: f.is_idle and f.not_chosen is not None),
    ("nothing_to_gain", "", lambda f: f.is_idle or not f.context.trains),
    ("cannot_tell", "", lambda f: True),
)


def _is_proven(gain: Gain | None) -> bool:
    return gain is not None and gain.is_proven


def conclude(evidence: Evidence, goal: Goal, context: Context | None = None) -> Verdict:
    """The verdict on the evidence: the first row of `TABLE` that applies.

    In an audit the arms are "argmax" and "tuned". In a fit they are "baseline" (argmax), "redecided" (its tuned rule),
    "method", and the controls "control", "shifted" and "bolder".
    """
    known = context or Context()
    facts = gather_facts(evidence, goal, known)
    kind, reason, _ = next(rule for rule in TABLE if rule[2](facts))
    gain = _gain_of(kind, reason, facts)
    verdict = Verdict(kind, reason, known.method)
    if reason == "few_rows":
        return replace(verdict, method=None, more_rows=FEWEST_ROWS - known.num_rows)
    if reason == "not_chosen" and facts.not_chosen is not None:
        found = facts.not_chosen
        return Verdict(kind, reason, None, found.arm, found.over, "recall", found.recall)
    if gain is None:
        return replace(verdict, method=None)
    if not reason and kind in ("cannot_tell", "at_a_price", "nothing_to_gain"):
        reason = gain.reason if kind != "nothing_to_gain" or not known.trains else ""
    verdict = replace(verdict, reason=reason, arm=gain.arm, over=gain.over, figure=gain.figure, gain=gain.shown)
    return _with_rows(verdict, gain, evidence) if verdict.reason == "not_significant" and known.trains else verdict


def _gain_of(kind: VerdictKind, reason: Reason, facts: Facts) -> Gain | None:
    """The gain that a verdict is about."""
    if reason in ("not_learnt", "few_seeds", "few_rows", "not_chosen"):
        return None
    if kind == "change_the_decision" or facts.method is None:
        return facts.rule
    return facts.method


def gather_facts(evidence: Evidence, goal: Goal, context: Context) -> Facts:
    """Weigh the evidence: what the method and the tuned rule gain, and what was not chosen."""
    if not context.trains:
        return Facts(context, 1, None, weigh(evidence, goal, "tuned", "argmax", context), None)
    method = None if context.method is None else weigh(evidence, goal, "method", "redecided", context)
    asked = context.is_changed or method is not None
    rule = weigh(evidence, goal, "redecided", "baseline", context) if asked else None
    return Facts(context, evidence.num_seeds, method, rule, _not_chosen(evidence, goal))


def weigh(evidence: Evidence, goal: Goal, arm: str, over: str, context: Context) -> Gain | None:
    """What an arm gains over another, and why that is not proven; None if they were not compared."""
    found = evidence.compare(arm, over)
    if found is None or (not context.is_changed and not context.trains):
        return None
    figure = goal.figure
    if context.trains and figure == "false_alarms" and over == "baseline" and found.recall.value > 0:
        figure = "recall"  # the baseline missed the recall that was asked for
    shown: Change = getattr(found, figure)
    change = shown if figure == "recall" else -shown
    gain = Gain(arm, over, figure, change, shown, "")
    return replace(gain, reason=_why_not(gain, evidence, goal, context))


def _why_not(gain: Gain, evidence: Evidence, goal: Goal, context: Context) -> Reason:
    """Why a gain is not proven; "" if it is."""
    if gain.change.low is None or gain.change.low <= 0:
        return "not_significant"
    if isinstance(goal, MostRecall) and _loses_accuracy(gain, evidence, goal, context):
        return "accuracy_dropped"
    if gain.arm != "method":
        return ""
    control = evidence.compare("method", "control")
    if control is not None:
        ahead = getattr(control, gain.figure).value
        if (ahead if gain.figure == "recall" else -ahead) <= 0:
            return "control_as_good"
    same = evidence.compare("method", "shifted")
    return "shift_as_good" if same is not None and (same.accuracy.low or 0.0) <= 0 else ""


def _loses_accuracy(gain: Gain, evidence: Evidence, goal: MostRecall, context: Context) -> bool:
    """Whether accuracy surely drops by more than allowed; of a rule that was tuned here, whether that is probable."""
    total = evidence.compare(gain.arm, "baseline" if context.trains else "argmax")
    assert total is not None
    if (total.accuracy.high or 0.0) < -goal.max_accuracy_drop:
        return True
    return total.chance_of_fall is not None and total.chance_of_fall >= 0.5


def _not_chosen(evidence: Evidence, goal: Goal) -> Comparison | None:
    """The first of those that validation data did not choose that may find 2 points more at the accuracy allowed."""
    for arm, over in (("bolder", "baseline"), ("method", "redecided")):
        found = evidence.compare(arm, over)
        if found is None or not isinstance(goal, MostRecall) or found.recall.high is None:
            continue
        total = evidence.compare(arm, "baseline") or found
        is_dearer = (total.accuracy.high or 0.0) < -goal.max_accuracy_drop
        if found.recall.value > 0 and found.recall.high >= SMALL_GAIN and not is_dearer:
            return found
    return None


def _with_rows(verdict: Verdict, gain: Gain, evidence: Evidence) -> Verdict:
    """The verdict with the number of rows that would settle the difference."""
    if gain.figure != "recall" or gain.change.high is None or gain.change.low is None:
        return verdict
    half = (gain.change.high - gain.change.low) / 2
    settles = 0.1 if half > 0.1 else 0.05
    num = sum(one.num for one in evidence.arms[0].recalls) // evidence.num_seeds
    more = math.ceil(num * ((half / settles) ** 2 - 1) / 10) * 10
    return replace(verdict, more_rows=more, settles=settles) if more > 0 else verdict


# ---- another model instead of the present one


@dataclass(frozen=True)
class Rival:
    """What the table asks of a new model: what it changes, and whether that is sure.

    change: turned so that higher is better. p: after Holm where there are several new models. margin: a difference up
    to this does not matter. num_rows: the fewest rows of an important class. lost: what it surely loses beside.
    """

    change: Change
    p: float
    margin: float
    num_rows: int
    lost: Reason = ""

    @property
    def is_sure(self) -> bool:
        """Whether the models differ."""
        return self.p < ERROR and (self.change.low or 0.0) * (self.change.high or 0.0) > 0

    @property
    def is_within_margin(self) -> bool:
        """Whether the interval excludes a difference that matters."""
        low, high = self.change.low, self.change.high
        return low is not None and high is not None and low >= -self.margin and high <= self.margin


VERSUS: tuple[tuple[VerdictKind, Reason, Callable[[Rival], bool]], ...] = (
    ("cannot_tell", "few_rows", lambda f: f.num_rows < FEWEST_ROWS),
    ("worse", "", lambda f: f.is_sure and f.change.value < 0),
    ("cannot_tell", "accuracy_dropped", lambda f: f.lost == "accuracy_dropped"),
    ("cannot_tell", "recall_dropped", lambda f: f.lost == "recall_dropped"),
    ("better", "", lambda f: f.is_sure),
    ("no_difference", "", lambda f: f.is_within_margin),
    ("cannot_tell", "not_significant", lambda f: True),
)


def conclude_rival(found: Comparison, goal: Goal, figure: str, margin: float, num: int, p: float) -> Verdict:
    """The verdict on a new model: the first row of `VERSUS` that applies. num: rows of the rarest important class."""
    shown: Change = getattr(found, figure)
    lost: Reason = ""
    if figure != "recall" and figure != "cost" and (found.recall.high or 0.0) < 0:
        lost = "recall_dropped"
    elif isinstance(goal, MostRecall) and (found.accuracy.high or 0.0) < -goal.max_accuracy_drop:
        lost = "accuracy_dropped"
    facts = Rival(shown if figure == "recall" else -shown, p, margin, num, lost)
    kind, reason, _ = next(rule for rule in VERSUS if rule[2](facts))
    verdict = Verdict(kind, reason, None, found.arm, found.over, figure, replace(shown, p=p))
    if reason == "few_rows":
        return replace(verdict, more_rows=FEWEST_ROWS - num)
    if reason != "not_significant":
        return verdict
    half = ((shown.high or 0.0) - (shown.low or 0.0)) / 2
    settles = max(abs(shown.value), margin - abs(shown.value))  # then it is another figure, or inside the margin
    if not settles or not half:
        return verdict
    more = max(10, math.ceil(num * ((half / settles) ** 2 - 1) / 10) * 10)
    return replace(verdict, more_rows=more, settles=settles)


# ---- a promise, on new rows


@dataclass(frozen=True)
class Standing:
    """What the table asks of a check. is_broken: whether the recall is surely below what was promised, or expected.

    is_near: whether it is surely not more than a margin below that.
    """

    is_broken: bool
    is_near: bool


CHECK: tuple[tuple[VerdictKind, Reason, Callable[[Standing], bool]], ...] = (
    ("broken", "below_floor", lambda f: f.is_broken),
    ("holds", "", lambda f: f.is_near),
    ("cannot_tell", "few_rows", lambda f: True),
)


def conclude_check(standing: Standing, more_rows: int) -> Verdict:
    """The verdict of a check: the first row of `CHECK` that applies."""
    kind, reason, _ = next(rule for rule in CHECK if rule[2](standing))
    return Verdict(kind, reason, figure="recall", more_rows=more_rows if kind == "cannot_tell" else 0)
