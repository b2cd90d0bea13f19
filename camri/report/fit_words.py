"""The sentences of a fit, made from its `Answer`: the terminal, the card and the page say the same."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from camri.decision.answer import ANSWER_FILE, Answer, Made, load_answer
from camri.decision.compare import Arm, Change, ClassResult, Share
from camri.decision.goals import AtLeast, Goal, MostRecall
from camri.decision.guarantee import Guarantee
from camri.decision.rules import Shift, is_argmax
from camri.decision.stats import FEWEST_GROUPS, FEWEST_ROWS
from camri.decision.verdict import SEEDS_FOR_PRAISE, Verdict
from camri.errors import InputError
from camri.text import duration, percent, plural, points, quoted

GOOD = ("train_with", "change_the_decision")


def read_fit(folder: Path) -> Answer | None:
    """The answer in a fit's folder; None if there is none."""
    path = folder / ANSWER_FILE
    if not path.exists():
        return None
    try:
        answer = load_answer(path)
    except InputError as error:
        raise InputError(f"{error}; fit again into another folder") from None
    return answer if answer.made is not None else None


def made(answer: Answer) -> Made:
    """How the fit came to its answer."""
    assert answer.made is not None
    return answer.made


def compose(answer: Answer) -> list[str]:
    """The answer, most important line first: the model, the verdict, the evidence, what to know about it."""
    given_up = made(answer).effort.given_up
    lines = [headline(answer), verdict(answer), *guarantee_lines(answer), *evidence_lines(answer)]
    lines += [lost_recall(answer)] if _losers(answer) else []
    lines.append(handed(answer))
    lines += [f"Left out to stay within the budget: {'; '.join(given_up)}."] if given_up else []
    lines.append(tried(answer))
    lines += [f"Caution: {text}." for text in cautions(answer)]
    if not made(answer).finished:
        lines.append("Stopped before all seeds had ended: the same command resumes and makes the intervals narrower.")
    return lines


def headline(answer: Answer) -> str:
    """The model that is handed over, beside plain cross-entropy."""
    before, after = made(answer).handed.before, made(answer).handed.after

    def old(figure: str) -> str:  # a baseline that has learnt nothing is none
        return "" if answer.verdict.reason == "not_learnt" else f" (before: {figure})"

    found = " and ".join(
        f"{new.hits:,} of {new.num:,} {quoted(name)}{old(f'{one.hits:,}')}"
        for name, new, one in zip(answer.source.names, after.recalls, before.recalls, strict=True)
    )
    text = (
        f"Finds {found}, with {plural(after.false_alarms.hits, 'false alarm')} among {num_others(after):,} others"
        f"{old(f'{before.false_alarms.hits:,}')}; accuracy {percent(value_of(after.accuracy))}"
        f"{old(percent(value_of(before.accuracy)))}."
    )
    if after.cost is not None and before.cost is not None:
        text = f"{text[:-1]}; mean cost {after.cost:.4g}{old(f'{before.cost:.4g}')}."
    return f"{still_improving(answer)}. {text}" if made(answer).effort.still_improving else text


def num_others(arm: Arm) -> int:
    """Rows of no important class."""
    return arm.accuracy.num - sum(one.num for one in arm.recalls)


def value_of(share: Share) -> float:
    """The value of a share of at least one row."""
    assert share.value is not None
    return share.value


def still_improving(answer: Answer) -> str:
    """What is said of a baseline that a longer training would improve."""
    end = "the time was up" if "budget" in made(answer).effort.enough else "the trials were used up"
    return f"Still improving when {end}"


def verdict(answer: Answer) -> str:
    """The verdict in a sentence or two."""
    one, seeds = answer.verdict, plural(answer.evidence.num_seeds, "seed")
    gained = "" if one.gain is None else amount(one.figure, one.gain)
    if one.kind == "train_with":
        return f"Train with {one.method}: {gained} over cross-entropy with a tuned decision ({seeds})."
    if one.kind == "change_the_decision":
        adds = "" if one.method is None else f" {one.method[0].upper()}{one.method[1:]} adds less than 2 points."
        return f"Change the decision; no retraining needed: {gained} over argmax ({seeds}).{adds}"
    if one.kind == "nothing_to_gain" and one.gain is not None:
        given = f"on test data {_subject(one)} gives {gained} {_over(one)} ({seeds})"
        return f"Nothing to gain: {given}; 2 points are excluded."
    if one.kind == "nothing_to_gain":
        return (
            "Nothing to gain: no method and no decision rule was better than plain cross-entropy "
            f"{_condition(answer.goal)}."
        )
    return f"Cannot tell yet: {_reason(answer)}.{_remedy(answer)}"


def _condition(goal: Goal) -> str:
    if isinstance(goal, MostRecall):
        drop = f" by more than {100 * goal.max_accuracy_drop:g} points" if goal.max_accuracy_drop else ""
        return f"without losing accuracy{drop}"
    return f"at a recall of {asked(goal)}" if isinstance(goal, AtLeast) else "by these costs"


def asked(goal: AtLeast) -> str:
    """The recall that is asked for, of each important class where they differ.

    >>> asked(AtLeast(0.9)), asked(AtLeast((0.9, 0.995)))
    ('90 %', '90 % and 99.5 %')
    """
    each = goal.recall if isinstance(goal.recall, tuple) else (goal.recall,)
    return " and ".join(f"{100 * one:g} %" for one in each)


def _subject(one: Verdict) -> str:
    return one.method or "the changed decision"


def _over(one: Verdict) -> str:
    return "over cross-entropy with a tuned decision" if one.over == "redecided" else "over argmax"


REASONS: dict[str, Callable[[Answer, str], str]] = {
    "not_learnt": lambda *_: "cross-entropy is no better than guessing, so nothing can be compared with it",
    "still_improving": lambda *_: "cross-entropy was still improving, so its rivals were not compared with it",
    "no_rivals": lambda *_: "there was no time to train a rival of cross-entropy",
    "few_seeds": lambda answer, _: (
        f"{plural(answer.evidence.num_seeds, 'seed')} trained, {SEEDS_FOR_PRAISE} are needed"
    ),
    "few_rows": lambda answer, _: (
        f"fewer than {FEWEST_ROWS} validation or test {answer.source.noun[1]} of an important class"
    ),
    "accuracy_dropped": lambda answer, _: f"{_subject(answer.verdict)} costs more accuracy on test data than allowed",
    "shift_as_good": lambda _, gives: f"{gives}, but cross-entropy shifted to the same recall may be as accurate",
    "control_as_good": lambda _, gives: f"{gives}, but its head without a margin does as well",
    "not_significant": lambda _, gives: f"{gives}, which may be chance",
}


def _reason(answer: Answer) -> str:
    """Why nothing can be told."""
    one = answer.verdict
    gained = "" if one.gain is None else amount(one.figure, one.gain)
    if one.reason == "not_chosen" and one.arm == "bolder":
        more = "a larger shift than validation data chose may find 2 points more on test data"
        return f"{more} {_condition(answer.goal)}"
    if one.reason == "not_chosen":
        arm = answer.evidence.arm(one.arm)
        named = one.arm if arm is None else arm.title
        return f"on test data {named} gives {gained} {_over(one)}, but it was not the best on validation data"
    return REASONS[one.reason](answer, f"{_subject(one)} gives {gained} {_over(one)}")


def _remedy(answer: Answer) -> str:
    one, many = answer.verdict, answer.source.noun[1]
    if one.reason in ("not_learnt", "still_improving", "no_rivals", "few_seeds"):
        option = made(answer).effort.enough
        return f" The same command with {option} resumes." if "budget" in option else f" Give {option} and a new --out."
    if one.reason == "few_rows":
        return f" Label more {many} of it."
    if one.reason == "not_chosen":
        return f" Add validation {many}, or allow a drop: --max-accuracy-drop 0.005."
    if one.more_rows:
        names = " and ".join(map(quoted, answer.source.names))
        return (
            f" About {one.more_rows:,} more test {many} of {names} would settle a difference of "
            f"{100 * one.settles:g} points."
        )
    return ""


def guarantee_lines(answer: Answer) -> list[str]:
    """Whether the model's recall is guaranteed, where a confidence was asked for; if not, what is missing."""
    found, goal = answer.guarantee, answer.goal
    if found is None or not isinstance(goal, AtLeast):
        return []
    named, many = " and ".join(map(quoted, answer.source.names)), answer.source.noun[1]
    if found.is_given:
        sure = "on average" if found.confidence is None else f"with {100 * found.confidence:g} % confidence"
        finds = f"this model finds at least {asked(goal)} of new {many} of {named}"
        return [f"Guaranteed by validation data, {sure}: {finds}."]
    reached = f"a recall of {asked(goal)} was reached on validation data, no more"
    return [f"Not guaranteed: {reached}; {_missing(answer, found)}."]


def _missing(answer: Answer, found: Guarantee) -> str:
    """What a guarantee lacks."""
    unit = answer.source.noun[1] if answer.source.num_groups is None else "groups"
    lacks = [
        f"{num:,} more validation {unit} of {quoted(name)}"
        for name, num in zip(answer.source.names, found.missing, strict=True)
        if num
    ]
    return (
        f"a guarantee needs at least {' and '.join(lacks)}" if lacks else "no rule surely finds that many of new ones"
    )


def amount(figure: str, change: Change) -> str:
    """A change of a figure: "recall +5.2 points (95 % CI +2.1 to +8.4)"."""
    if figure == "cost":
        ends = "" if change.low is None else f" (95 % CI {change.low:+.4g} to {change.high:+.4g})"
        return f"mean cost {change.value:+.4g}{ends}".replace("-", "−")
    return f"false alarms {show(change, 2)}" if figure == "false_alarms" else f"recall {show(change)}"


def show(change: Change, decimals: int = 1) -> str:
    """
    >>> show(Change(0.012, -0.004, 0.028)), show(Change(0.012))
    ('+1.2 points (95 % CI −0.4 to +2.8)', '+1.2 points')
    """
    ends = ""
    if change.low is not None and change.high is not None:
        ends = f" (95 % CI {points(change.low, decimals)} to {points(change.high, decimals)})"
    return f"{points(change.value, decimals)} points{ends}"


def evidence_lines(answer: Answer) -> list[str]:
    """A line for each arm: what to expect from a new training."""
    rows = evidence_table(answer)
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [f"Mean of {plural(answer.evidence.num_seeds, 'seed')} on test data:", *(f"  {line}" for line in lines)]


def evidence_table(answer: Answer) -> list[list[str]]:
    """The header and a row of cells for each arm."""
    has_cost = answer.goal.figure == "cost"
    header = ["", "recall", "accuracy", "false alarms", *(["cost"] if has_cost else [])]
    return [header, *(_evidence_row(arm, has_cost) for arm in answer.evidence.arms)]


def _evidence_row(arm: Arm, has_cost: bool) -> list[str]:
    shares = [percent(arm.recall), percent(value_of(arm.accuracy)), percent(value_of(arm.false_alarms), 2)]
    return [arm.title, *shares, *([f"{arm.cost:.4g}"] if has_cost else [])]


def lost_recall(answer: Answer, most: int = 3) -> str:
    """The classes that lost recall: those whose interval lies below 0, worst first."""
    losers = _losers(answer)[:most]
    if not losers:
        return "No other class significantly lost recall."
    shown = [f"{quoted(one.name)} {show(one.change)}" for one in losers if one.change is not None]
    return f"Classes that lost recall: {'; '.join(shown)}."


def _losers(answer: Answer) -> list[ClassResult]:
    return [one for one in answer.evidence.lost if not one.important]


def handed(answer: Answer) -> str:
    """What the model is."""
    one = made(answer).handed
    if one.method == "trees":
        return f"Model: {one.title}, {rule_text(answer)}; {plural(one.epochs, 'iteration')} of HistGradientBoosting."
    training = made(answer).effort.training
    how = "" if training == "plain" else f" ({training})"
    return (
        f"Model: {one.title}, {rule_text(answer)}; {plural(one.epochs, 'epoch')} of {one.model}{how}, the median of "
        f"{plural(answer.evidence.num_seeds, 'seed')} on validation data."
    )


def rule_text(answer: Answer) -> str:
    """The decision rule in words."""
    rule = answer.rule
    if is_argmax(rule):
        return "ordinary argmax"
    named = [(quoted(answer.source.classes[index]), value) for index, value in rule.values.items()]
    if isinstance(rule, Shift):
        return "shift " + ", ".join(f"{value:+.3g}".replace("-", "−") + f" on {name}" for name, value in named)
    return "predicts " + ", ".join(f"{name} above a probability of {value:.3g}" for name, value in named)


def tried(answer: Answer) -> str:
    """What was trained, and how long it took."""
    effort = made(answer).effort
    failed = f" ({effort.num_failed} failed)" if effort.num_failed else ""
    return (
        f"Trained {plural(effort.num_trials, 'model')}{failed} in {duration(effort.wall_s)}: "
        f"{plural(len(effort.lengths), 'length')} of training, {plural(effort.num_settings, 'setting')}."
    )


def cautions(answer: Answer) -> list[str]:
    """The cautions in sentences, without their full stops."""
    return [CAUTIONS[one.code](one.values, answer.source.noun) for one in answer.cautions]


def _all_found(values: Mapping[str, Any], noun: Sequence[str]) -> str:
    solved = " and of ".join(
        f"{quoted(name)} ({num})" for name, num in zip(values["names"], values["num"], strict=True)
    )
    return (
        f"cross-entropy finds every validation {noun[0]} of {solved} in every trial, so they cannot say how far to "
        "shift or which setting finds more; hold out more of them"
    )


def _loose_accuracy(values: Mapping[str, Any], noun: Sequence[str]) -> str:
    lower = "a point or two" if values["width"] < 0.2 else "many points"
    return (
        f"accuracy was held on {values['num']:,} validation {noun[1]}, which measure it to ± "
        f"{50 * values['width']:.0f} points only; on new {noun[1]} it may be {lower} lower"
    )


def _few_rows(values: Mapping[str, Any], noun: Sequence[str]) -> str:
    return (
        f"{quoted(values['name'])} has {values['num_val']} validation and {values['num_test']} test {noun[1]}; with "
        f"fewer than {FEWEST_ROWS} of either, no choice and no interval is reliable"
    )


def _few_groups(values: Mapping[str, Any], noun: Sequence[str]) -> str:
    return (
        f"the {values['num']:,} test {noun[1]} of {quoted(values['name'])} come from {values['num_groups']} groups; "
        f"fewer than {FEWEST_GROUPS} cannot show how groups differ"
    )


CAUTIONS: dict[str, Callable[[Mapping[str, Any], Sequence[str]], str]] = {
    "all_found": _all_found,
    "loose_accuracy": _loose_accuracy,
    "few_rows": _few_rows,
    "few_groups_to_judge": _few_groups,
}
