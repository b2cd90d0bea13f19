"""The record of a fit, stored as `answer.json`, and the sentences made from it.

The terminal, the card and the page show this record and compute nothing of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from camri.errors import InputError
from camri.files import replacing
from camri.stats import FEWEST_ROWS, Estimate
from camri.text import duration, percent, plural, points, quoted

ANSWER_FILE = "answer.json"
# Beside it, of the model handed over: val_labels, val_logits, test_labels, test_logits, before its rule (N, C); test
# rows missed and false_alarms, at most 24 of each, worst first; and their inputs, missed_inputs and
# false_alarms_inputs, as the data set holds them: uint8 images (K, H, W, C) or features (K, D).
EXAMPLES_FILE = "examples.npz"
SEEDS_FOR_INTERVALS = 3
SEEDS_FOR_PRAISE = 5

VerdictKind = Literal["change_the_decision", "train_with", "cannot_tell", "nothing_to_gain"]
Reason = Literal[
    "", "not_learnt", "still_improving", "no_rivals", "few_seeds", "few_rows", "not_significant", "accuracy_dropped",
    "control_as_good", "shift_as_good", "not_chosen",
]  # fmt: skip
Figure = Literal["recall", "false_alarms", "cost"]
FIGURES = {"best_recall": "recall", "at_least": "false_alarms", "least_cost": "cost"}


@dataclass(frozen=True)
class Goal:
    """What the user asked for: the fields of the goal of that name in `camri.decision`."""

    name: Literal["best_recall", "at_least", "least_cost"] = "best_recall"
    max_accuracy_drop: float = 0.0
    recall: float | None = None
    confidence: float | None = None
    matrix: tuple[tuple[float, ...], ...] | None = None

    @property
    def figure(self) -> Figure:
        """The figure that decides; of all but recall the lower is better."""
        return FIGURES[self.name]  # type: ignore[return-value]


@dataclass(frozen=True)
class Counts:
    """One model on the test data.

    hits, num, called: for each important class, its rows found, all its rows, and all rows predicted as it. A false
    alarm is a row of no important class that is predicted as one. cost: mean of a row, if costs were given. effects:
    design effects of grouped rows for recalls, accuracy, false alarms and precisions in this order; empty without
    groups.
    """

    hits: tuple[int, ...]
    num: tuple[int, ...]
    called: tuple[int, ...]
    num_false_alarms: int
    num_right: int
    num_rows: int
    cost: float | None = None
    effects: tuple[float, ...] = ()

    @property
    def num_others(self) -> int:
        """Rows of no important class."""
        return self.num_rows - sum(self.num)

    @property
    def recalls(self) -> tuple[Estimate, ...]:
        effects = self._effects(0, len(self.num))
        return tuple(Estimate.of_share(*counts) for counts in zip(self.hits, self.num, effects, strict=True))

    @property
    def accuracy(self) -> Estimate:
        return Estimate.of_share(self.num_right, self.num_rows, *self._effects(len(self.num), 1))

    @property
    def false_alarms(self) -> Estimate:
        """Their share of all rows."""
        return Estimate.of_share(self.num_false_alarms, self.num_rows, *self._effects(len(self.num) + 1, 1))

    @property
    def precisions(self) -> tuple[Estimate | None, ...]:
        """One for each important class; None if it is never predicted."""
        effects = self._effects(len(self.num) + 2, len(self.num))
        counts = zip(self.hits, self.called, effects, strict=True)
        return tuple(Estimate.of_share(*one) if one[1] else None for one in counts)

    def _effects(self, start: int, num: int) -> Sequence[float]:
        return self.effects[start : start + num] or (1.0,) * num


@dataclass(frozen=True)
class HandedOver:
    """The model in the folder `model`: the median seed of its setting on validation data, or boosted trees.

    title: method and values ("two-sided margin, m=1"). epochs: of trees their iterations. rule: `to_json` of a rule in
    `camri.decision`. before: the same network with the ordinary argmax; of another method or trees, the median seed of
    plain cross-entropy.
    """

    method: str
    title: str
    seed: int
    model: str
    epochs: int
    rule: dict[str, Any]
    before: Counts
    after: Counts

    @property
    def is_redecided(self) -> bool:
        """Whether the rule differs from the ordinary argmax."""
        return self.rule["rule"] != "shift" or any(self.rule["values"].values())


@dataclass(frozen=True)
class Change:
    """A difference with its 95 % interval over seeds and rows; no interval below three seeds."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Arm:
    """Means over the models of one arm on test data.

    name: "baseline" is plain cross-entropy with argmax, "redecided" the same models with a tuned rule, "method" the
    best rival with a tuned rule, "control" its head without a margin, "trees" boosted trees that were not chosen,
    "shifted" the baseline with the shift that gives it the method's recall on validation data, "bolder" with the
    shift that finds 2 points more on test data.
    recall: mean over the important classes. false_alarms: share of all rows. hits, num: summed over models and
    important classes.
    """

    name: str
    title: str
    recall: float
    accuracy: float
    false_alarms: float
    hits: int
    num: int
    precisions: tuple[float | None, ...]
    cost: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Arm `arm` less arm `over`."""

    arm: str
    over: str
    recall: Change
    accuracy: Change
    false_alarms: Change
    cost: Change | None = None


@dataclass(frozen=True)
class ClassChange:
    """Recall of another class with the handed-over arm, less that of the baseline."""

    name: str
    recall: Change


@dataclass(frozen=True)
class Evidence:
    """The finals: every arm with the same seeds, new ones if there is a rival. classes: all that are not important."""

    num_seeds: int
    arms: tuple[Arm, ...]
    comparisons: tuple[Comparison, ...]
    classes: tuple[ClassChange, ...]

    def arm(self, name: str) -> Arm | None:
        return next((one for one in self.arms if one.name == name), None)

    def without(self, arm: str) -> "Evidence":
        """The evidence less one arm."""
        kept = tuple(one for one in self.comparisons if one.arm != arm)
        return replace(self, arms=tuple(one for one in self.arms if one.name != arm), comparisons=kept)

    def compare(self, arm: str, over: str) -> Comparison | None:
        return next((one for one in self.comparisons if (one.arm, one.over) == (arm, over)), None)


@dataclass(frozen=True)
class Verdict:
    """One of four verdicts; `camri.fitting.judge.decide` has the rule of each.

    gain: the deciding figure's change, of `arm` over `over`. method: title of what validation data chose.
    reason: why nothing can be told. more_rows: test rows of the important classes that would settle a difference of
    `settles`.
    """

    kind: VerdictKind
    reason: Reason = ""
    method: str | None = None
    arm: str = ""
    over: str = ""
    gain: Change | None = None
    more_rows: int = 0
    settles: float = 0.0


@dataclass(frozen=True)
class Length:
    """Validation accuracy of cross-entropy at one length of training."""

    epochs: int
    accuracy: float


@dataclass(frozen=True)
class Effort:
    """What was trained.

    enough: the option that would allow what there was no time for, such as "--budget 23m". given_up: what the plan left
    out for lack of time.
    """

    lengths: tuple[Length, ...]
    still_improving: bool
    training: str
    num_settings: int
    num_trials: int
    num_failed: int
    wall_s: float
    enough: str
    given_up: tuple[str, ...] = ()


@dataclass(frozen=True)
class FitRecord:
    """All that a fit reports."""

    data: str
    noun: tuple[str, str]
    num_rows: dict[str, int]  # by split
    classes: tuple[str, ...]
    important: tuple[int, ...]
    goal: Goal
    handed: HandedOver
    verdict: Verdict
    evidence: Evidence
    effort: Effort
    cautions: tuple[str, ...]
    command: str
    finished: bool
    format: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the important classes."""
        return tuple(self.classes[index] for index in self.important)

    def write(self, folder: Path) -> None:
        """Write answer.json."""
        with replacing(folder / ANSWER_FILE, "; choose another folder") as part:
            part.write_bytes(_adapter().dump_json(self, indent=1) + b"\n")


@cache
def _adapter() -> TypeAdapter[FitRecord]:
    return TypeAdapter(FitRecord)


def read_record(folder: Path) -> FitRecord | None:
    """The record in a fit's folder; None if there is none."""
    path = folder / ANSWER_FILE
    try:
        return _adapter().validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise InputError(
            f"{path} cannot be read ({str(error).splitlines()[0]}); fit again into another folder"
        ) from None


# Sentences.


def compose(record: FitRecord) -> list[str]:
    """The answer, most important line first: the model, the verdict, the evidence, what to know about it."""
    lines = [headline(record), verdict(record), *evidence_lines(record)]
    lines += [lost_recall(record)] if _losers(record) else []
    lines.append(handed(record))
    lines += (
        [f"Left out to stay within the budget: {'; '.join(record.effort.given_up)}."] if record.effort.given_up else []
    )
    lines.append(tried(record))
    lines += [f"Caution: {caution}." for caution in record.cautions]
    if not record.finished:
        lines.append("Stopped before all seeds had ended: the same command resumes and makes the intervals narrower.")
    return lines


def headline(record: FitRecord) -> str:
    """The model that is handed over, beside plain cross-entropy."""
    before, after = record.handed.before, record.handed.after

    def old(figure: str) -> str:  # a baseline that has learnt nothing is none
        return "" if record.verdict.reason == "not_learnt" else f" (before: {figure})"

    found = " and ".join(
        f"{hits:,} of {num:,} {quoted(name)}{old(f'{hits_before:,}')}"
        for name, hits, num, hits_before in zip(record.names, after.hits, after.num, before.hits, strict=True)
    )
    text = (
        f"Finds {found}, with {plural(after.num_false_alarms, 'false alarm')} among {after.num_others:,} others"
        f"{old(f'{before.num_false_alarms:,}')}; accuracy {percent(after.accuracy.value)}"
        f"{old(percent(before.accuracy.value))}."
    )
    if after.cost is not None and before.cost is not None:
        text = f"{text[:-1]}; mean cost {after.cost:.4g}{old(f'{before.cost:.4g}')}."
    return f"{still_improving(record)}. {text}" if record.effort.still_improving else text


def still_improving(record: FitRecord) -> str:
    """What is said of a baseline that a longer training would improve."""
    end = "the time was up" if "budget" in record.effort.enough else "the trials were used up"
    return f"Still improving when {end}"


def verdict(record: FitRecord) -> str:
    """The verdict in a sentence or two."""
    one, seeds = record.verdict, plural(record.evidence.num_seeds, "seed")
    gained = "" if one.gain is None else amount(record, one.gain)
    if one.kind == "train_with":
        return f"Train with {one.method}: {gained} over cross-entropy with a tuned decision ({seeds})."
    if one.kind == "change_the_decision":
        adds = "" if one.method is None else f" {one.method[0].upper()}{one.method[1:]} adds less than 2 points."
        return f"Change the decision; no retraining needed: {gained} over argmax ({seeds}).{adds}"
    if one.kind == "nothing_to_gain" and one.gain is not None:
        title, over = one.method or "the changed decision", _over(one)
        return f"Nothing to gain: on test data {title} gives {gained} {over} ({seeds}); 2 points are excluded."
    if one.kind == "nothing_to_gain":
        return (
            "Nothing to gain: no method and no decision rule was better than plain cross-entropy "
            f"{_condition(record.goal)}."
        )
    return f"Cannot tell yet: {_reason(record)}.{_remedy(record)}"


def _condition(goal: Goal) -> str:
    if goal.name == "best_recall":
        drop = f" by more than {100 * goal.max_accuracy_drop:g} points" if goal.max_accuracy_drop else ""
        return f"without losing accuracy{drop}"
    if goal.name == "at_least":
        return f"at a recall of {percent(goal.recall or 0.0, 0)}"
    return "by these costs"


def _reason(record: FitRecord) -> str:
    one, num_seeds = record.verdict, record.evidence.num_seeds
    gained = "" if one.gain is None else amount(record, one.gain)
    title = one.method or "the changed decision"
    over = _over(one)
    match one.reason:
        case "not_learnt":
            return "cross-entropy is no better than guessing, so nothing can be compared with it"
        case "still_improving":
            return "cross-entropy was still improving, so its rivals were not compared with it"
        case "no_rivals":
            return "there was no time to train a rival of cross-entropy"
        case "few_seeds":
            return f"{plural(num_seeds, 'seed')} trained, {SEEDS_FOR_PRAISE} are needed"
        case "few_rows":
            return f"fewer than {FEWEST_ROWS} validation or test {record.noun[1]} of an important class"
        case "accuracy_dropped":
            return f"{title} costs more accuracy on test data than allowed"
        case "not_chosen" if one.arm == "bolder":
            more = "a larger shift than validation data chose may find 2 points more on test data"
            return f"{more} {_condition(record.goal)}"
        case "not_chosen":
            arm = record.evidence.arm(one.arm)
            named = one.arm if arm is None else arm.title
            return f"on test data {named} gives {gained} {over}, but it was not the best on validation data"
        case "shift_as_good":
            return f"{title} gives {gained} {over}, but cross-entropy shifted to the same recall may be as accurate"
        case "control_as_good":
            return f"{title} gives {gained} {over}, but its head without a margin does as well"
        case _:
            return f"{title} gives {gained} {over}, which may be chance"


def _over(one: Verdict) -> str:
    return "over cross-entropy with a tuned decision" if one.over == "redecided" else "over argmax"


def _remedy(record: FitRecord) -> str:
    one = record.verdict
    if one.reason in ("not_learnt", "still_improving", "no_rivals", "few_seeds"):
        option = record.effort.enough
        return f" The same command with {option} resumes." if "budget" in option else f" Give {option} and a new --out."
    if one.reason == "few_rows":
        return f" Label more {record.noun[1]} of it."
    if one.reason == "not_chosen":
        return f" Add validation {record.noun[1]}, or allow a drop: --max-accuracy-drop 0.005."
    if one.more_rows:
        names = " and ".join(map(quoted, record.names))
        return (
            f" About {one.more_rows:,} more test {record.noun[1]} of {names} would settle a difference of "
            f"{100 * one.settles:g} points."
        )
    return ""


def amount(record: FitRecord, change: Change) -> str:
    """A change of the figure of the goal: "recall +5.2 points (95 % CI +2.1 to +8.4)"."""
    found = record.evidence.compare(record.verdict.arm, record.verdict.over)
    is_recall = found is not None and change == found.recall  # what was asked for is reached by it
    if record.goal.figure == "cost":
        ends = "" if change.low is None else f" (95 % CI {change.low:+.4g} to {change.high:+.4g})"
        return f"mean cost {change.value:+.4g}{ends}".replace("-", "−")
    if record.goal.figure == "false_alarms" and not is_recall:
        return f"false alarms {show(change, 2)}"
    return f"recall {show(change)}"


def show(change: Change, decimals: int = 1) -> str:
    """
    >>> show(Change(0.012, -0.004, 0.028)), show(Change(0.012))
    ('+1.2 points (95 % CI −0.4 to +2.8)', '+1.2 points')
    """
    ends = ""
    if change.low is not None and change.high is not None:
        ends = f" (95 % CI {points(change.low, decimals)} to {points(change.high, decimals)})"
    return f"{points(change.value, decimals)} points{ends}"


def evidence_lines(record: FitRecord) -> list[str]:
    """A line for each arm: what to expect from a new training."""
    rows = evidence_table(record)
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [f"Mean of {plural(record.evidence.num_seeds, 'seed')} on test data:", *(f"  {line}" for line in lines)]


def evidence_table(record: FitRecord) -> list[list[str]]:
    """The header and a row of cells for each arm."""
    has_cost = record.goal.figure == "cost"
    header = ["", "recall", "accuracy", "false alarms", *(["cost"] if has_cost else [])]
    rows = [
        [
            arm.title,
            percent(arm.recall),
            percent(arm.accuracy),
            percent(arm.false_alarms, 2),
            *([f"{arm.cost:.4g}"] if has_cost else []),
        ]
        for arm in record.evidence.arms
    ]
    return [header, *rows]


def lost_recall(record: FitRecord, most: int = 3) -> str:
    """The classes that lost recall: those whose interval lies below 0, worst first."""
    if not _losers(record):
        return "No other class significantly lost recall."
    worst = sorted(_losers(record), key=lambda one: one.recall.value)[:most]
    return f"Classes that lost recall: {'; '.join(f'{quoted(one.name)} {show(one.recall)}' for one in worst)}."


def _losers(record: FitRecord) -> list[ClassChange]:
    return [one for one in record.evidence.classes if one.recall.high is not None and one.recall.high < 0]


def handed(record: FitRecord) -> str:
    """What the model is."""
    one = record.handed
    if one.method == "trees":
        return f"Model: {one.title}, {rule_text(record)}; {plural(one.epochs, 'iteration')} of HistGradientBoosting."
    training = record.effort.training
    how = "" if training == "plain" else f" ({training})"
    return (
        f"Model: {one.title}, {rule_text(record)}; {plural(one.epochs, 'epoch')} of {one.model}{how}, the median of "
        f"{plural(record.evidence.num_seeds, 'seed')} on validation data."
    )


def rule_text(record: FitRecord) -> str:
    """The decision rule in words."""
    one = record.handed
    if not one.is_redecided:
        return "ordinary argmax"
    named = [(quoted(record.classes[int(index)]), value) for index, value in one.rule["values"].items()]
    if one.rule["rule"] == "shift":
        return "shift " + ", ".join(f"{value:+.3g}".replace("-", "−") + f" on {name}" for name, value in named)
    return "predicts " + ", ".join(f"{name} above a probability of {value:.3g}" for name, value in named)


def tried(record: FitRecord) -> str:
    """What was trained, and how long it took."""
    effort = record.effort
    failed = f" ({effort.num_failed} failed)" if effort.num_failed else ""
    return (
        f"Trained {plural(effort.num_trials, 'model')}{failed} in {duration(effort.wall_s)}: "
        f"{plural(len(effort.lengths), 'length')} of training, {plural(effort.num_settings, 'setting')}."
    )
