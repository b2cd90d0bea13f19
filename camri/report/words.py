"""The answer in sentences: the terminal, the page, the card and the notebook say the same. It decides nothing."""

import io
import math
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from camri.decision.answer import Answer, Caution
from camri.decision.check import Check, ClassCheck
from camri.decision.compare import Arm, Change, ClassResult, Share
from camri.decision.goals import AtLeast, FewestToPerson, LeastCost, MostRecall
from camri.decision.guarantee import Guarantee
from camri.decision.rules import LowestCost, Shift, Threshold, Triage
from camri.decision.stats import FEWEST_GROUPS, FEWEST_ROWS
from camri.decision.tune import PRIOR_ROWS
from camri.decision.verdict import ERROR, Verdict
from camri.report.table import BLANK, Cell, Table, cells, span, to_terminal, two_decimals
from camri.text import percent, plural, points, quoted, visible

CLASSES_SHOWN = 60
PLACES_SHOWN = 12
RARE = 0.01  # of a class that is rarer, precision is in the first sentence
VALUE = "VALUE"  # stands for the rule's number in the code
WORDS = ("recall", "accuracy", "false alarm", "precision", "point", "shift", "threshold", "[low, high]")


class Said(NamedTuple):
    """The result in a sentence, what to do and what is guaranteed then, and how sure the figures are."""

    sentence: str
    actions: tuple[str, ...]
    evidence: tuple[str, ...]


def say(answer: Answer) -> Said:
    """The answer of an audit in sentences."""
    return Said(_sentence(answer), tuple(_actions(answer)), tuple(_evidence(answer)))


def _actions(answer: Answer) -> Iterator[str]:
    """What to do, and what is guaranteed then."""
    if answer.is_advised:
        yield f"Change the decision: {how_to_use(answer)}. No retraining needed."
    elif answer.is_a_choice:
        yield f"If that price is acceptable: {how_to_use(answer)}. No retraining needed."
    elif answer.verdict.kind != "cannot_tell" and not isinstance(answer.goal, LeastCost):
        yield from _price(answer)
    for caution in answer.cautions:
        if caution.code == "mostly_important":
            yield f"Caution: {caution_text(caution, answer)}."
    if answer.is_guaranteed:
        assert answer.guarantee is not None
        kept = "" if answer.is_changed else " The model has it without a change."
        yield f"Guaranteed: {_promise(answer)}, calibrated on {_units(answer)}.{kept}"


def _promise(answer: Answer) -> str:
    """What is asked to be guaranteed: "a recall of at least 95 % of “stop” on new rows like these, with …"."""
    made, grouped = answer.guarantee, answer.source.num_groups is not None
    assert made is not None
    units = "groups" if grouped else "rows"
    if made.budget is not None:
        what = "alarms" if made.budget_is == "alarms" else "false alarms"
        return (
            f"at most {_rate(made.budget, answer)} {what} on new {units}{_there(answer)}, with "
            f"{100 * (made.confidence or 0.0):g} % confidence"
        )
    recalls = [f"{100 * value:g} %" for value in made.at_least]
    names = [quoted(name) for name in answer.source.names]
    if len(set(recalls)) == 1:
        asked = f"{recalls[0]} of {' and '.join(names)}"
    else:
        asked = " and ".join(f"{recall} of {name}" for recall, name in zip(recalls, names, strict=True))
    each = _each_place(made)
    mean = " (a mean over groups, not over rows)" if grouped else ""
    if made.confidence is None:
        return f"a recall of at least {asked}{each} on new {units} like these{mean}, on average over calibration sets"
    sure = f"{100 * made.confidence:g}"
    return f"a recall of at least {asked}{each} on new {units} like these{mean}, with {sure} % confidence"


def _each_place(made: Guarantee | None) -> str:
    """The places in each of which it is guaranteed: " in each of 3 places"."""
    return f" in each of {len({one.name for one in made.places})} places" if made is not None and made.places else ""


def _rate(share: float, answer: Answer) -> str:
    """A share of all rows, as so many a day where that is known."""
    daily = answer.where.rows_per_day
    return rare(share) + " of all rows as" if daily is None else f"{share * daily:,.4g} a day as"


def _there(answer: Answer) -> str:
    """The prevalence that figures are told for."""
    if not answer.where.prevalence:
        return " like these"
    told = ", ".join(f"{rare(share)} {answer.source.classes[k]}" for k, share in answer.where.prevalence.items())
    return f" with {told}"


def rare(share: float) -> str:
    """A share in percent, with more digits where it is small.

    >>> rare(0.123), rare(0.0012), rare(0.00002), rare(0.0)
    ('12.3 %', '0.12 %', '0.002 %', '0.0 %')
    """
    if not share or abs(share) >= 0.01:
        return percent(share)
    return f"{np.format_float_positional(100 * share, precision=2, fractional=False, trim='-')} %"


def _units(answer: Answer) -> str:
    made = answer.guarantee
    assert made is not None
    units = "rows" if answer.source.num_groups is None else "groups"
    return f"{', '.join(f'{num:,}' for num in made.num_units)} {units}"


def refusal(answer: Answer, made: Guarantee) -> str:
    """Why it cannot be guaranteed, and what that takes."""
    if made.budget is not None:
        units = "rows" if answer.source.num_groups is None else "groups"
        if made.obstacle == "few_units":
            least, num = made.fewest[0], made.num_units[0]
            return f"it takes at least {least:,} {units} of the other classes, and there are {num:,}"
        return "even the fewest alarms that this model can raise are more"
    if lacking_places := [one for one in made.places if one.missing]:
        classes = answer.source.classes
        lacking = "; ".join(
            f"{visible(one.name)}: {one.missing:,} more of {quoted(classes[one.important])}" for one in lacking_places
        )
        return f"places have too few rows. {lacking} are needed"
    names, units = (
        [quoted(name) for name in answer.source.names],
        "rows" if answer.source.num_groups is None else "groups",
    )
    if made.obstacle == "few_units":
        few = [
            f"{missing:,} more {units} of {name} are needed (it has {num:,} of {least:,})"
            for missing, name, num, least in zip(made.missing, names, made.num_units, made.fewest, strict=True)
            if missing
        ]
        return ", ".join(few)
    if made.obstacle == "confused_classes":
        most = ", ".join(f"{hit}/{num}" for hit, num in zip(made.hits, made.num, strict=True))
        return f"even the largest shift finds only {most}, since the rest are predicted as another important class"
    counts = zip(names, made.stuck, made.num, strict=True)
    stuck = ", ".join(f"{num:,} of {total:,} rows of {name}" for name, num, total in counts if num)
    decimals = answer.source.decimals
    few_digits = "are whole numbers" if decimals == 0 else f"have {decimals} decimal{'s' * (decimals != 1)}"
    why = "are too extreme" if decimals is None else few_digits
    return (
        f"{stuck} have a probability of 0, or so near to it that no factor helps. The probabilities {why}: give "
        "logits, log-probabilities (scikit-learn: predict_log_proba) or more digits"
    )


def _price(answer: Answer) -> Iterator[str]:
    """What the most accurate point with more recall costs, where no gain is sure to be free."""
    now = answer.evidence.arms[0]
    assert now.accuracy.value is not None
    assert now.false_alarms.value is not None
    for point in answer.prices[:1]:
        yield (
            f"To find more at a price, choose it yourself: on these rows a recall of {percent(point.recall)} comes "
            f"with an accuracy of {percent(point.accuracy)} (now {percent(now.accuracy.value)}) and "
            f"{percent(point.false_alarms)} false alarms (now {percent(now.false_alarms.value)}); on new rows accuracy "
            "is a little lower. More in the table below"
            + ("." if answer.guarantee is not None else "; --at-least guarantees a recall on new rows.")
        )


def _sentence(answer: Answer) -> str:
    """The figures before and after, or that there is nothing to gain."""
    kind, names, change = answer.verdict.kind, _names(answer), answer.change
    if kind == "cannot_tell":
        now = "; ".join(f"recall of {quoted(own.name)} now: {share(own.before)}" for own in answer.own)
        return f"Cannot tell: an important class has fewer than {FEWEST_ROWS} rows to tune on or to judge; {now}."
    if kind == "cannot_guarantee":
        assert answer.guarantee is not None
        return f"Cannot guarantee {_promise(answer)}: {refusal(answer, answer.guarantee)}."
    if kind in ("change_the_decision", "keep_the_decision"):
        return _figures(answer)
    if change.cost is not None:
        return (
            f"Nothing to gain for {names}: no decision rule significantly lowers the mean cost ({_cost(change.cost)})."
        )
    changes = f"recall {points(change.recall.value)}, accuracy {points(change.accuracy.value)} percentage points"
    result = "No significant gain", "the change by the best decision rule may be chance"
    if change.recall.value <= 0:
        result = "Nothing to gain", "no change of the decision raises recall on new rows without losing accuracy"
    elif kind == "at_a_price":
        result = "No free gain", "the best change of the decision costs accuracy"
    return f"{result[0]} for {names}: {result[1]} ({changes})."


def _figures(answer: Answer) -> str:
    """Recall, accuracy and false alarms before and after; with rows a day, counts."""
    before, after = answer.evidence.arms
    recalls = ", ".join(f"{quoted(own.name)}: recall {_arrow(own.before, own.after)}" for own in answer.own)
    if answer.where.rows_per_day is not None:
        made = answer.guarantee
        sure = (
            f", guaranteed at least {100 * min(made.at_least):g} %" if made and made.at_least and made.is_given else ""
        )
        return f"{recalls}{sure}. {_a_day(answer)}"
    change = answer.change
    cost = "" if change.cost is None else f"; mean cost {before.cost:.4g} → {after.cost:.4g}"
    accuracy, alarms = _arrow(before.accuracy, after.accuracy), _arrow(before.false_alarms, after.false_alarms)
    precise = ""
    shares = [one.num / max(before.accuracy.num, 1) for one in before.recalls]
    if answer.where.prevalence or min(shares) < RARE:
        told = [f"{_arrow(*pair)}" for pair in zip(before.precisions, after.precisions, strict=True)]
        precise = f"; precision {', '.join(told)}"
    there = f" ({_there(answer).strip()})" if answer.where.prevalence else ""
    return f"{recalls}; accuracy {accuracy}; false alarms {alarms}{precise}{cost}{there}."


def _a_day(answer: Answer) -> str:
    """Alarms and misses as counts a day, with the tuned rule and before."""
    daily, prevalence = answer.where.rows_per_day or 0.0, answer.where.prevalence
    total = answer.source.num_judged
    counts = []
    for arm in answer.evidence.arms:
        right = missed = 0.0
        for index, recall in zip(answer.source.important, arm.recalls, strict=True):
            share = prevalence.get(index, recall.num / total)
            right += daily * share * (recall.value or 0.0)
            missed += daily * share * (1 - (recall.value or 0.0))
        counts.append((right + daily * (arm.false_alarms.value or 0.0), right, missed))
    (old_alarms, _, old_missed), (alarms, right, missed) = counts
    shown = ", ".join(
        f"{rare(prevalence.get(index, one.num / total))} of them {name}"
        for index, name, one in zip(
            answer.source.important, answer.source.names, answer.evidence.arms[0].recalls, strict=True
        )
    )
    one_in = f", 1 in {_count(alarms / right)}" if right else ""
    return (
        f"On {daily:,.0f} rows a day, {shown}: {_count(alarms)} alarms a day (before: {_count(old_alarms)}), "
        f"{_count(right)} of them right{one_in}; {_count(missed)} missed (before: {_count(old_missed)})."
    )


def _count(number: float) -> str:
    """A number of rows a day.

    >>> _count(412.3), _count(0.42), _count(7.0)
    ('412', '0.42', '7')
    """
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _evidence(answer: Answer) -> Iterator[str]:
    """How sure the figures are, and what else there is to know about them."""
    for caution in answer.cautions:
        if caution.code != "mostly_important":
            yield f"Caution: {caution_text(caution, answer)}."
    change, kind = answer.change, answer.verdict.kind
    before, after = answer.evidence.arms
    has_after = has_change(answer)
    if kind not in ("cannot_tell", "cannot_guarantee") and (answer.is_changed or not answer.is_guaranteed):
        changes = {"recall": change.recall, "accuracy": change.accuracy, "false alarms": change.false_alarms}
        shown = ", ".join(f"{name} {_span(one)}" for name, one in changes.items())
        cost = "" if change.cost is None else f" Mean cost {_cost(change.cost)}."
        yield f"Changes in percentage points: {shown}.{cost} Tuned on {tuned_on(answer)}."
    if answer.is_advised and isinstance(answer.goal, MostRecall) and change.chance_of_drop is not None:
        chances = (change.chance_of_drop, change.chance_of_fall or 0.0)
        drop, far = (f"{100 * chance:.0f} %" for chance in chances)
        beyond = "half a point" if not answer.goal.max_accuracy_drop else "half a point beyond the drop that is allowed"
        smaller = "factor" if answer.source.scores_are == "probabilities" else "constant"
        yield (
            f"Probability that accuracy drops: {drop}; by more than {beyond}: {far} (calibrated scores count as "
            f"{PRIOR_ROWS} rows). A smaller {smaller} is safer."
        )
    if answer.both and has_after:
        recall = percent(next(iter(answer.both.values())).recall)
        rules = "; ".join(
            f"{name} {percent(point.false_alarms)} false alarms, accuracy {percent(point.accuracy)}"
            for name, point in answer.both.items()
        )
        yield f"Both rules at a recall of {recall}, on the rows that tuned them: {rules}."
    yield from _by_class(answer, has_after)
    yield from _by_place(answer)
    yield f"Accuracy: {_shares(before.accuracy, after.accuracy, has_after)}."
    yield f"False alarms, of all rows: {_shares(before.false_alarms, after.false_alarms, has_after)}."


def _by_class(answer: Answer, has_after: bool) -> Iterator[str]:
    before, after = answer.evidence.arms
    for own, *precisions in zip(answer.own, before.precisions, after.precisions, strict=True):
        kept = precisions if has_after else precisions[:1]
        known = [percent(one.value) if one.value is not None else "none" for one in kept]
        shown = " → ".join(known) if set(known) != {"none"} else "none (never predicted)"
        mistakes = ", ".join(f"{quoted(name)} ({count}×)" for name, count in own.mistaken_for)
        missed = f"; misclassified before as {mistakes}" if mistakes else ""
        yield f"{quoted(own.name)}: recall {_shares(own.before, own.after, has_after)}; precision {shown}{missed}."
    lost = [f"{quoted(one.name)} {_span(one.change)}" for one in answer.evidence.lost if one.change is not None]
    if lost and answer.verdict.kind != "cannot_tell":
        yield f"Classes that lost recall (points): {', '.join(lost)}."


def _by_place(answer: Answer) -> Iterator[str]:
    """The recall in every place, the lowest first, and what is missing there."""
    made = answer.guarantee
    if made is None or not made.places:
        return
    worst = made.places[0]
    shown = [
        f"{visible(one.name)} {one.hits}/{one.num}" + (f" ({one.missing:,} more needed)" if one.missing else "")
        for one in made.places[:PLACES_SHOWN]
    ]
    more = f" and {len(made.places) - PLACES_SHOWN:,} more" if len(made.places) > PLACES_SHOWN else ""
    yield f"By place, the lowest recall first ({percent(worst.hits / worst.num)}): {', '.join(shown)}{more}."


def has_change(answer: Answer) -> bool:
    """Whether there are figures after a change of the decision to show, or of another model."""
    if answer.candidates:
        return True
    return answer.is_changed and answer.verdict.kind not in ("cannot_tell", "cannot_guarantee")


def caution_text(caution: Caution, answer: Answer) -> str:
    """The sentence of a caution, without its end."""
    known: dict[str, Any] = dict(caution.values)
    name = quoted(str(known.get("name", "")))
    if caution.code == "empty_class":
        more = f" (so with {known['more']:,} more)" if known["more"] else ""
        return (
            f"{name} is predicted for {known['num']:,} of {known['total']:,} rows, and no row has that label{more}; if "
            "its column does not hold the scores of a class, drop it"
        )
    if caution.code == "cheaper_mistake":
        return (
            f"in the cost matrix, to predict {quoted(known['other'])} for {name} costs {known['cost']:g}, less than to "
            f"be right ({known['right']:g}); check the sign"
        )
    if caution.code == "copies":
        return (
            f"{known['num']:,} of {known['total']:,} rows are exact copies of others, so intervals and guarantees look "
            "surer than they are; drop the copies, or say which rows belong together with --group (groups=)"
        )
    if caution.code == "few_groups":
        return f"fewer than {FEWEST_GROUPS} groups have {name}: do not trust the intervals"
    if caution.code == "mostly_important":
        names = " or ".join(quoted(one) for one in answer.source.names)
        return (
            f"this rule predicts {names} for {percent(known['share'])} of the rows, but only {percent(known['own'])} "
            "are. If so many false alarms are too many, ask for less recall, or train a better model"
        )
    return f"{caution.code} {known}"


def number(answer: Answer) -> str:
    """The number to use in one's own code: a threshold, the factor of a probability, or what is added to a logit."""
    if isinstance(answer.point.rule, LowestCost):
        return written(answer.point.rule.probabilities.slope)
    value = next(iter(answer.point.rule.values.values()))
    if isinstance(answer.point.rule, Threshold):  # it may lie between neighbouring numbers
        return written(value) if float(written(value)) == value else repr(value)
    return written(value if answer.factor is None else answer.factor)


def written(number: float) -> str:
    """A rule's number as code has it.

    >>> written(2.413), written(math.exp(math.log(8.021))), written(0.0)
    ('2.413', '8.021', '0')
    """
    return f"{number:.12g}"


def how_to_use(answer: Answer) -> str:
    """What to do in one's own code to decide as advised."""
    rule, names = answer.point.rule, _names(answer)
    if isinstance(rule, LowestCost):
        return "calibrate the scores and predict the class with the least expected cost, as in the code below"
    if isinstance(rule, Threshold):
        each = " or ".join(f"p({name})" for name in answer.source.names)
        return f"predict {names} where {each} > {number(answer)}, else the best other class"
    if answer.factor is not None:
        change = f"multiply the probability of {names} by {number(answer)}"
    else:
        change = f"add {number(answer)} to the score of {names}"
    return f"{change}, then predict the class with the largest"


def codes(answer: Answer) -> dict[str, str]:
    """Code that decides by the tuned rule, by language; VALUE stands for the number.

    Without scikit-learn's where a decision_function of two classes does not tell how the two columns were made.
    """
    with_numpy, with_torch = _code_of(answer)
    unit, name = "", "logits" if answer.source.scores_are == "logits" else "p"
    given = name
    if answer.source.unit == 100:  # predict_proba has none
        unit, given = " / 100", "percentages"
    # In double precision, as the rule was tuned: half and single round rows across a cut-off. It is a copy, too.
    exactly = f"{name} = {given}.astype(float){unit}\n", f"{name} = {given}.double(){unit}\n"
    found = {"numpy": exactly[0] + with_numpy, "PyTorch": exactly[1] + with_torch}
    if (made := _made_with_sklearn(answer)) is not None:
        found["scikit-learn"] = f"{made}\n{with_numpy}\npredicted = model.classes_[predicted]"
    return found


def _code_of(answer: Answer) -> tuple[str, str]:
    source, rule = answer.source, answer.point.rule
    own = list(source.important)
    names = ", ".join(f"{index}: {name}" for index, name in zip(own, source.names, strict=True))
    is_logits = source.scores_are == "logits"
    scores, sign = ("logits", "+") if is_logits else ("p", "*")
    if isinstance(rule, LowestCost):
        known = "logits" if is_logits else "np.log(np.maximum(p, 1e-300))"
        lines = [
            f"costs = np.array({[list(row) for row in rule.matrix]})  # row = true class",
            f"bias = np.array({[float(f'{one:.6g}') for one in rule.probabilities.bias]})",
            f"q = scipy.special.softmax({VALUE} * {known} + bias, axis=1)  # calibrated",
            "predicted = (q @ costs).argmin(axis=1)",
        ]
        text = "\n".join(lines)
        with_torch = text.replace("])", "], dtype=torch.double)").replace("np.array", "torch.tensor")
        return text, with_torch.replace(
            f"scipy.special.softmax({VALUE} * {known} + bias, axis=1)",
            f"({VALUE} * {'logits' if is_logits else 'p.clamp(min=1e-300).log()'} + bias).softmax(dim=1)",
        ).replace("argmin(axis=1)", "argmin(dim=1)")
    if isinstance(rule, Shift):
        change = f"{scores}[:, {own if len(own) > 1 else own[0]}] {sign}= {VALUE}  # {names}"
        return f"{change}\npredicted = {scores}.argmax(axis=1)", f"{change}\npredicted = {scores}.argmax(dim=1)"
    softmax = ("p = scipy.special.softmax(logits, axis=1)\n", "p = logits.softmax(dim=1)\n") if is_logits else ("", "")
    with_numpy = (
        f"{softmax[0]}own = np.array({own})  # {names}\n"
        "best, rest = p[:, own], np.delete(np.arange(p.shape[1]), own)\n"
        f"predicted = np.where(best.max(axis=1) > {VALUE}, own[best.argmax(axis=1)], rest[p[:, rest].argmax(axis=1)])"
    )
    with_torch = (
        f"{softmax[1]}own = torch.tensor({own})  # {names}\n"
        "(best, place), rest = p[:, own].max(dim=1), p.index_fill(1, own, -1).argmax(dim=1)\n"
        f"predicted = torch.where(best > {VALUE}, own[place], rest)"
    )
    return with_numpy, with_torch


def _made_with_sklearn(answer: Answer) -> str | None:
    """Code that makes the judged columns with scikit-learn; None where one cannot tell how they were made."""
    if answer.source.scores_are != "logits":
        return "p = model.predict_proba(X).astype(float)"
    if len(answer.source.classes) > 2:
        return "logits = model.decision_function(X).astype(float)"
    if answer.source.first_column is None:
        return None
    first = "-d" if answer.source.first_column else "np.zeros_like(d)"
    return f"d = model.decision_function(X).astype(float)\nlogits = np.column_stack([{first}, d])"


def tuned_on(answer: Answer) -> str:
    """How tuning and judging were kept apart."""
    units = "rows" if answer.source.num_groups is None else "groups"
    if answer.tuned_on == "split":
        return "the val rows, judged on the test rows"
    if answer.tuned_on == "all":
        return "the rows that the figures are of"
    folds = f"{answer.num_folds}-fold cross-validation"
    return f"the {units} of all folds but one, judged on that one ({folds})"


def note(answer: Answer) -> str:
    """What the figures and intervals are about."""
    units = "rows" if answer.source.num_groups is None else "groups"
    judged, tuned = "The figures are for the advised rule.", ""
    if answer.tuned_on == "folds":
        judged = "Every row is judged by a rule that was tuned on other rows, fold by fold."
        tuned = " They allow for its tuning on these rows."
    return (
        f"{judged} Intervals (95 %) are for the advised rule on new {units} like these, if {units} are independent."
        f"{tuned} In the probability of a drop, calibrated scores count as {PRIOR_ROWS} rows."
    )


def share(one: Share) -> str:
    """A share in % with its interval and counts.

    >>> share(Share(0.8, 8, 10, 0.49, 0.943)), share(Share(None, 0, 0))
    ('80.0 % [49.0, 94.3] (8/10)', '– (0/0)')
    """
    if one.value is None:
        return f"{BLANK} (0/0)"
    groups = "" if one.num_groups is None else f" in {plural(one.num_groups, 'group')}"
    ends = "" if one.low is None or one.high is None else f" [{100 * one.low:.1f}, {100 * one.high:.1f}]"
    return f"{percent(one.value)}{ends} ({one.hits}/{one.num}{groups})"


def _shares(before: Share, after: Share, has_after: bool) -> str:
    """The share before and, if there is a change to show, after."""
    return " → ".join(map(share, (before, after) if has_after else (before,)))


def kind_of(answer: Answer) -> str:
    """What the scores are."""
    return "percentages" if answer.source.unit == 100 else answer.source.scores_are


def _names(answer: Answer) -> str:
    return " and ".join(quoted(name) for name in answer.source.names)


def _arrow(before: Share, after: Share) -> str:
    return " → ".join(BLANK if one.value is None else percent(one.value) for one in (before, after))


def _cost(change: Change) -> str:
    return f"{change.value:+.4g} [{change.low:+.4g}, {change.high:+.4g}]".replace("-", "−")


def _span(change: Change) -> str:
    return span(change.value, change.low, change.high)


def class_table(answer: Answer, most: int | None = None) -> Table:
    """Every class's recall before and after: the important ones first, then those that lose most."""
    order = sorted(answer.evidence.classes, key=lambda one: (not one.important, getattr(one.change, "value", 1.0)))
    header, notes = ["class", "rows", "recall", "95 %"], ["95 %: Wilson interval."]
    if has_change(answer):
        header += ["after", "change (points)"]
        notes = ["95 %: Wilson interval. The change is on the same rows, so its interval is narrower."]
    if answer.source.num_groups is not None:
        header.insert(2, "groups")
    if most is not None and most < len(order):
        notes.append(f"The {most} of {len(order)} classes that lose most are shown.")
    rows = tuple(_class_row(result)[: len(header)] for result in order[:most])
    records = tuple(answer.to_json()["evidence"]["classes"])
    return Table("Recall of every class", tuple(header), (rows,), records, tuple(notes))


def _class_row(result: ClassResult) -> tuple[Cell, ...]:
    before, after, change = result.before, result.after, result.change
    groups = () if before.num_groups is None else (f"{before.num_groups:,}",)
    if change is None or before.value is None or after.value is None or before.low is None or before.high is None:
        return cells(result.name, f"{before.num:,}", *groups, BLANK, BLANK, BLANK, BLANK)
    shares = f"{before.value:.3f}", f"{before.low:.3f}–{before.high:.3f}", f"{after.value:.3f}", _span(change)
    return tuple(Cell(text, bold=result.important) for text in (result.name, f"{before.num:,}", *groups, *shares))


def price_table(answer: Answer) -> Table | None:
    """What more recall costs; None where there is no more, or too few rows to say."""
    if not answer.prices or answer.verdict.kind == "cannot_tell":
        return None
    now = answer.evidence.arms[0].accuracy.value or 0.0
    is_factor = isinstance(answer.point.rule, (Shift, LowestCost)) and answer.source.scores_are == "probabilities"
    sign = "" if isinstance(answer.point.rule, Threshold) else "+"
    rows = tuple(
        cells(
            f"{point.recall:.3f}",
            f"×{math.exp(point.value):.3g}" if is_factor else f"{point.value:{sign}.3g}",
            f"{point.accuracy:.3f}",
            points(point.accuracy - now),
            two_decimals(point.false_alarms),
            BLANK if point.precision is None else f"{point.precision:.3f}",
        )
        for point in answer.prices
    )
    name = "factor" if is_factor else "threshold" if isinstance(answer.point.rule, Threshold) else "shift"
    header = ("recall", name, "accuracy", "its change (points)", "false alarms (%)", "precision")
    note = "The most accurate point of the curve, then one for each recall; on new rows they cost a little more."
    return Table("What more recall costs", header, (rows,), tuple(map(vars, answer.prices)), (note,))


def what_was_read(answer: Answer) -> str:
    """The table as it was understood: rows, classes, kind of scores, and rows of the important classes."""
    source = answer.source
    rows = f"{source.num_rows:,} rows"
    rows += f" in {source.num_groups:,} groups" if source.num_groups is not None else ""
    rows += f" ({source.num_judged:,} to judge)" if source.num_judged != source.num_rows else ""
    important = ", ".join(f"{one.name} ({one.before.num:,} rows)" for one in answer.own)
    return f"{source.name}: {rows}, {len(source.classes):,} classes, {kind_of(answer)}; important: {important}"


def facts(answer: Answer, command: Sequence[str]) -> list[tuple[str, str]]:
    """How the answer was made."""
    source, made, goal = answer.source, answer.guarantee, answer.goal
    judged = "" if source.num_judged == source.num_rows else f", {source.num_judged:,} of them judged"
    drop = goal.max_accuracy_drop if isinstance(goal, MostRecall) else 0.0
    pairs = [
        ("scores", f"{source.name}: {kind_of(answer)}"),
        ("rows", f"{source.num_rows:,}{judged}"),
        ("groups", "none: rows count as independent" if source.num_groups is None else f"{source.num_groups:,}"),
        ("classes", f"{len(source.classes):,}"),
        ("important classes", ", ".join(source.names)),
        ("tuned on", f"{tuned_on(answer)}; folds drawn with seed 0"),
        ("maximal drop of accuracy", f"{drop:g}"),
    ]
    if made is not None and isinstance(goal, AtLeast):
        recalls = ", ".join(f"{value:g}" for value in dict.fromkeys(made.at_least))
        sure = "on average" if made.confidence is None else f"{100 * made.confidence:g} % confidence"
        pairs.append(("recall to guarantee", f"{recalls}, {sure}"))
    return [*pairs, ("command", shlex.join(command))] if command else pairs


def show(answer: Answer, console: Any = None, with_source: bool = True) -> None:
    """Print what was read, the answer, the code to copy and the tables."""
    from rich.console import Console

    console = console or Console()
    if answer.candidates:
        _show_lines([visible(what_was_read(answer)) if with_source else "", *compared_text(answer)], console)
        return
    if isinstance(answer.goal, FewestToPerson):
        _show_lines([visible(what_was_read(answer)) if with_source else "", *triage_text(answer)], console)
        if answer.workload is not None:
            console.print(f"\nnumpy\n{triage_code(answer)}", markup=False, highlight=False, soft_wrap=True)
        if (table := triage_table(answer)) is not None:
            console.print()
            console.print(to_terminal(table))
        return
    said = say(answer)

    def print_line(line: str, style: str = "", indent: str = "") -> None:
        if console.is_terminal:  # in a file or pipe a line stays whole
            line = wrapped(line, console.width, indent)
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    if with_source:
        print_line(visible(what_was_read(answer)))
    print_line(said.sentence, "bold")
    for action in said.actions:
        print_line(f"- {action}", indent="  ")
    for language, text in codes(answer).items() if answer.is_advised or answer.is_a_choice else ():
        console.print()
        print_line(language, "bold")
        # As it is: to be copied.
        console.print(text.replace(VALUE, number(answer)), markup=False, highlight=False, soft_wrap=True)
    console.print()
    for line in said.evidence:
        print_line(f"- {line}", indent="  ")
    for table in (class_table(answer, CLASSES_SHOWN), price_table(answer)):
        if table is not None:
            console.print()
            console.print(to_terminal(table))


def _show_lines(lines: Sequence[str], console: Any) -> None:
    """Print the source, the verdict in bold, and the rest."""
    for place, line in enumerate(lines):
        if line:
            text = wrapped(line, console.width, "  " if line.startswith("-") else "") if console.is_terminal else line
            console.print(text, style="bold" if place == 1 else "", markup=False, highlight=False, soft_wrap=True)


def wrapped(line: str, width: int, indent: str = "") -> str:
    """The line in lines of this width; a number and its %, and the ends of an interval, stay together.

    >>> wrapped("false alarms 5.4 % [4.2, 6.9]", 23)
    'false alarms 5.4 %\\n[4.2, 6.9]'
    """
    whole = re.sub(r" (?=%)|(?<=,) (?=[^][]*\])", "\u00a0", line)
    lines = textwrap.wrap(whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\u00a0", " ")


def text_of(answer: Answer) -> str:
    """The answer as the terminal prints it."""
    from rich.console import Console

    file = io.StringIO()
    show(answer, Console(file=file, width=120))
    return file.getvalue().rstrip()


def line_of(answer: Answer) -> str:
    """The answer in one line: "Answer(stop: recall 0.47 → 0.96 guaranteed ≥ 0.95, threshold 0.0118)"."""
    rule = answer.rule
    if answer.candidates:
        return f"Answer({_title(answer, answer.verdict.arm)}: {answer.verdict.kind.replace('_', ' ')})"
    if answer.workload is not None:
        ways = {"clear": answer.workload.cleared, "alarm": answer.workload.alarms, "person": answer.workload.person}
        return f"Answer({', '.join(f'{way} {_plain(one)}' for way, one in ways.items())})"
    changes = ", ".join(
        f"{own.name}: recall {_plain(own.before)}" + (f" → {_plain(own.after)}" if answer.is_advised else "")
        for own in answer.own
    )
    made, sure = answer.guarantee, ""
    if made is not None and made.is_given:
        sure = f" guaranteed ≥ {min(made.at_least):g}" if made.at_least else f" within {made.budget:.2g}"
    how = "no change" if not answer.is_advised else f"{rule.name.replace('_', ' ')} {number(answer)}"
    return f"Answer({changes}{sure}, {how}; {answer.verdict.kind.replace('_', ' ')})"


def _plain(one: Share) -> str:
    return BLANK if one.value is None else f"{one.value:.2f}"


# ---- three ways out


def triage_text(answer: Answer) -> Iterator[str]:
    """A triage: the shares of the three ways out, the rule, and what each is like."""
    yield triage_sentence(answer)
    work = answer.workload
    if work is None:
        return
    name = quoted(answer.source.names[0])
    rule = answer.point.rule
    assert isinstance(rule, Triage)
    (low,), (high,) = rule.values.values(), rule.alarms.values()
    alarm = f"raise an alarm where it is above {written(high)}" if high < 1 else "raise no alarm"
    yield f"- Clear rows where p({name}) is at most {written(low)}; {alarm}; leave the others to a person."
    assert isinstance(answer.goal, FewestToPerson)
    sure = f"{100 * answer.goal.confidence:g} % confidence"
    units = "rows" if answer.source.num_groups is None else "groups (means over groups, not over rows)"
    yield f"- Guaranteed on new {units} like these, each with {sure}; calibrated on {_units(answer)} of {name}."
    yield from (f"- {line}" for line in _by_place(answer))
    yield f"- Of {name}, cleared: {share(work.missed)}. Of the alarms, right: {share(work.precision)}."
    yield f"- Cleared: {share(work.cleared)}. Alarms: {share(work.alarms)}. To a person: {share(work.person)}."
    if (daily := answer.where.rows_per_day) is not None:
        cleared, alarms, person = (
            _count(daily * (one.value or 0.0)) for one in (work.cleared, work.alarms, work.person)
        )
        yield f"- On {daily:,.0f} rows a day: {cleared} cleared, {alarms} alarms, {person} to a person."
    yield "- The shares of rows and of right alarms depend on how frequent the class is; what is missed does not."


def triage_sentence(answer: Answer) -> str:
    """The three ways out: "Clears 71.2 % of rows (at most 1 % of melanoma missed, guaranteed), raises …"."""
    goal, work, name = answer.goal, answer.workload, quoted(answer.source.names[0])
    assert isinstance(goal, FewestToPerson)
    missed = f"at most {100 * goal.clear_misses:g} % of {name} missed{_each_place(answer.guarantee)}"
    if work is None:
        assert answer.guarantee is not None
        return f"Cannot clear any row with {missed}, guaranteed: {refusal(answer, answer.guarantee)}."
    cleared, alarms, person = (percent(one.value or 0.0) for one in (work.cleared, work.alarms, work.person))
    raised = "raises no alarm"
    if goal.alarm_precision is not None:
        right = f"at least {100 * goal.alarm_precision:g} % right"
        raised = f"raises an alarm for {alarms} ({right})"
        if work.lowest_precision is None:
            raised = f"raises no alarm ({right} cannot be shown; it takes at least {work.missing:,} right alarms)"
    return f"Clears {cleared} of rows ({missed}, guaranteed), {raised}, leaves {person} to a person."


def triage_table(answer: Answer) -> Table | None:
    """What is left to a person at other promises."""
    if not answer.trade_offs:
        return None
    precisions = list(dict.fromkeys(one.alarm_precision for one in answer.trade_offs))
    rows = []
    for misses in dict.fromkeys(one.clear_misses for one in answer.trade_offs):
        found = [one for one in answer.trade_offs if one.clear_misses == misses]
        shown = [BLANK if one.person is None else percent(one.person) for one in found]
        cleared = BLANK if found[0].cleared is None else percent(found[0].cleared)
        rows.append(cells(f"{100 * misses:g} %", cleared, *shown))
    header = ("missed at most", "cleared", *(f"≥ {100 * one:g} % right" for one in precisions))
    note = "Of all rows, by how many alarms are right at least. Every promise alone; –: too few rows, or too mixed."
    return Table("What is left to a person", header, (tuple(rows),), tuple(map(vars, answer.trade_offs)), (note,))


def triage_code(answer: Answer) -> str:
    """Code with numpy that sorts rows as advised."""
    rule = answer.point.rule
    assert isinstance(rule, Triage)
    ((index, low),) = rule.values.items()
    softmax = "p = scipy.special.softmax(logits, axis=1)\n" if answer.source.scores_are == "logits" else ""
    unit = "p = percentages / 100\n" if answer.source.unit == 100 else ""
    high = written(rule.alarms[index])
    names = "['clear', 'person', 'alarm']"
    own = f"own = p[:, {index}]  # {answer.source.names[0]}"
    return f"{unit}{softmax}{own}\nways = np.array({names})[(own > {written(low)}) + 1 * (own > {high})]"


# ---- another model instead of the present one


def compared_text(answer: Answer) -> Iterator[str]:
    """A comparison of models: the verdict on the best new model, then on the others, then every figure."""
    yield compared_sentence(answer, answer.verdict)
    for one in answer.candidates[1:]:
        if one.verdict is not None and one.verdict.arm != answer.verdict.arm:
            yield f"- {compared_sentence(answer, one.verdict)}"
    if len(answer.candidates) > 2:
        yield f"- Chances of error of the {len(answer.candidates) - 1} new models are held together (Holm)."
    yield from (f"- {line}" for line in compared_evidence(answer))


def compared_sentence(answer: Answer, verdict: Verdict) -> str:
    """The verdict on one new model: "new.csv is better: at 95 % recall, false alarms 39.4 % → 31.2 % (…)."."""
    name, old = (_title(answer, arm) for arm in (verdict.arm, verdict.over))
    change, rows = verdict.gain, _rows_of(answer)
    assert change is not None
    if verdict.reason == "few_rows":
        return (
            f"Cannot tell whether {name} is better: {rows} are too few. Give at least {verdict.more_rows:,} more of "
            "each important class."
        )
    before, after = (answer.evidence.arm(arm) for arm in (verdict.over, verdict.arm))
    assert before is not None
    assert after is not None
    shown = f"{_figure_of(answer, verdict, before, after)} ({_by_how_much(verdict)}; {rows})"
    if verdict.kind in ("better", "worse"):
        return f"{name} is {verdict.kind}: {shown}."
    if verdict.kind == "no_difference":
        return f"{name} is as good as {old}: no difference larger than {_margin(answer)}: {shown}."
    if verdict.reason in ("accuracy_dropped", "recall_dropped"):
        lost = verdict.reason.partition("_")[0]
        found = answer.evidence.compare(verdict.arm, verdict.over)
        assert found is not None
        return (
            f"Cannot tell whether {name} is better: {shown}, but {lost} drops ({_span(getattr(found, lost))} points)."
        )
    more = ""
    if verdict.more_rows:
        more = f" About {verdict.more_rows:,} more rows of {_names(answer)}, the others in proportion, would settle it."
    return f"Cannot tell whether {name} is better: {shown}.{more}"


def compared_evidence(answer: Answer) -> Iterator[str]:
    """Every figure of each new model beside the present one's, with the paired change; and how it was tuned."""
    first = answer.evidence.arms[0]
    for arm in answer.evidence.arms[1:]:
        found = answer.evidence.compare(arm.name, first.name)
        assert found is not None
        name = _title(answer, arm.name)
        for own, one, two in zip(answer.source.names, first.recalls, arm.recalls, strict=True):
            yield f"{name}: recall of {quoted(own)} {share(one)} → {share(two)}."
        precisions = ", ".join(_arrow(one, two) for one, two in zip(first.precisions, arm.precisions, strict=True))
        cost = "" if found.cost is None else f"; mean cost {_cost(found.cost)}"
        yield (
            f"{name}: changes in percentage points: recall {_span(found.recall)}, accuracy {_span(found.accuracy)}, "
            f"false alarms {_span(found.false_alarms)}{cost}; precision {precisions}."
        )
    lost = [f"{quoted(one.name)} {_span(one.change)}" for one in answer.evidence.lost if one.change is not None]
    if lost:
        yield f"Classes that lost recall (points): {', '.join(lost)}."
    for candidate in answer.candidates:
        rule = candidate.point.rule
        if not isinstance(rule, LowestCost):
            value = written(next(iter(rule.values.values())))
            yield f"{candidate.title} under its own best rule: {rule.name} {value}, tuned on all rows."
    yield f"Each model is tuned on {tuned_on(answer)}. Intervals (95 %) allow for the tuning of both rules."


def curve_table(answer: Answer) -> Table | None:
    """False alarms of every model at each recall, and the difference of the best new one."""
    known = [one for one in answer.candidates if one.curve]
    if not known:
        return None
    best = next(one for one in known if one.name == answer.verdict.arm)
    rows = tuple(
        cells(
            percent(point.recall, 0),
            *(percent(one.curve[place].false_alarms) for one in known),
            BLANK if point.change is None else _span(point.change),
        )
        for place, point in enumerate(best.curve)
        if place % 5 == 0 or place == len(best.curve) - 1
    )
    header = ("recall", *(one.title for one in known), f"{best.title}: change (points)")
    note = "Of all rows, on the rows that tuned the rules; the band is of each recall alone."
    return Table("False alarms at each recall", header, (rows,), tuple(map(vars, best.curve)), (note,))


def _title(answer: Answer, name: str) -> str:
    return next(one.title for one in answer.candidates if one.name == name)


def _rows_of(answer: Answer) -> str:
    """How many rows of the important classes were judged: "212 rows of “melanoma”"."""
    counts = zip(answer.source.names, answer.evidence.arms[0].recalls, strict=True)
    return ", ".join(f"{one.num:,} rows of {quoted(name)}" for name, one in counts)


def _figure_of(answer: Answer, verdict: Verdict, before: Arm, after: Arm) -> str:
    """The figure that decides, before and after: "at 95 % recall, false alarms 39.4 % → 31.2 %"."""
    if verdict.figure == "cost":
        return f"mean cost {before.cost:.4g} → {after.cost:.4g}"
    if verdict.figure == "false_alarms":
        goal = answer.goal
        levels = goal.recall if isinstance(goal, AtLeast) else ()
        asked = " and ".join(f"{100 * one:g} %" for one in (levels if isinstance(levels, tuple) else (levels,)))
        return f"at {asked} recall, false alarms {_arrow(before.false_alarms, after.false_alarms)}"
    names = answer.source.names
    recalls = [
        f"{'recall' if len(names) == 1 else f'recall of {quoted(name)}'} {_arrow(one, two)}"
        for name, one, two in zip(names, before.recalls, after.recalls, strict=True)
    ]
    level = "with no loss of accuracy, " if isinstance(answer.goal, MostRecall) else ""
    if isinstance(answer.goal, MostRecall) and answer.goal.max_accuracy_drop:
        level = f"with accuracy at most {100 * answer.goal.max_accuracy_drop:g} points lower, "
    return level + ", ".join(recalls)


def _by_how_much(verdict: Verdict) -> str:
    change = verdict.gain
    assert change is not None
    if verdict.figure == "cost":
        return f"change {_cost(change)}"
    ends = (
        "" if change.low is None or change.high is None else f", 95 % CI {points(change.low)} to {points(change.high)}"
    )
    return f"{points(change.value)} points{ends}"


def _margin(answer: Answer) -> str:
    margin = answer.margin or 0.0
    if answer.verdict.figure == "cost":
        return f"{margin:g}"
    return "1 point" if margin == 0.01 else f"{100 * margin:g} points"


# ---- a decision on new rows


def check_text(found: Check) -> str:
    """The check in lines: the verdict first, then each class, precision, and what has moved."""
    return "\n".join([check_sentence(found), *(f"- {line}" for line in _check_evidence(found))])


def check_sentence(found: Check) -> str:
    """The verdict: "Holds: 96.1 % of 130 rows of “melanoma” found; 95 % was guaranteed. Alarms 4.1 % of rows, …"."""
    own, kind = found.classes, found.verdict.kind
    alarms = _alarms_now(found)
    if found.verdict.reason == "no_labels":
        names = " and ".join(quoted(one.name) for one in own)
        return (
            f"Cannot tell without labels: label {found.verdict.more_rows:,} rows of {names}, drawn at random. {alarms} "
            f"Nearest to the cut-off, and most often wrong: {_first_rows(found)}."
        )
    shown = "; ".join(_found(one, found.looks) for one in own)
    asked = "; ".join(dict.fromkeys(_asked(one) for one in own))
    begins = {"holds": "Holds", "broken": "Broken", "cannot_tell": "Cannot tell yet"}[kind]
    more = ""
    if kind == "cannot_tell":
        names = " and ".join(quoted(one.name) for one in own)
        more = f" Label {found.verdict.more_rows:,} more rows of {names}."
    if kind == "broken":
        worst = min(own, key=lambda one: one.p)
        sure = f"{_p(worst.p)}"
        if found.looks is not None:
            sure = f"over {plural(found.looks, 'look')}, error at most 5 % over all"
        asked = f"{asked} ({sure})"
    return f"{begins}: {shown}; {asked}.{more} {alarms}"


def _found(one: ClassCheck, looks: int | None) -> str:
    if not one.num:
        return f"no row of {quoted(one.name)}"
    if looks is None and one.recall.value is not None:
        return f"{percent(one.recall.value)} of {one.recall.num:,} rows of {quoted(one.name)} found"
    found = f"{percent(1 - one.missed / one.num)} of {one.num:,} rows of {quoted(one.name)} found"
    return f"{found} in {plural(looks or 1, 'look')}"


def _asked(one: ClassCheck) -> str:
    is_lower = one.num and 1 - one.missed / one.num < one.floor and one.p > ERROR
    chance = f", which chance explains ({_p(one.p)})" if is_lower else ""
    if one.is_guaranteed:
        return f"{100 * one.floor:g} % was guaranteed{chance}"
    return f"{percent(one.expected or 0.0)} was expected, at least {percent(one.floor)}{chance}"


def _alarms_now(found: Check) -> str:
    now, then = found.alarms.value or 0.0, found.alarms_then.value or 0.0
    change = found.alarms_change
    if (change.low or 0.0) <= 0 <= (change.high or 0.0):
        return f"Alarms {percent(now)} of rows, as expected ({percent(then)})."
    return f"Alarms {percent(now)} of rows, {'more' if now > then else 'fewer'} than expected ({percent(then)})."


def _check_evidence(found: Check) -> Iterator[str]:
    if found.is_repeated:
        yield "These rows were counted before; they are not counted again."
    for one in found.classes:
        if one.recall.value is not None:
            expected = BLANK if one.expected is None else percent(one.expected)
            yield f"{quoted(one.name)}: recall {share(one.recall)}, when decided {expected}."
            if one.evidence is not None:
                limit = len(found.classes) / ERROR
                yield f"{quoted(one.name)}: evidence against it {one.evidence:.3g}; {limit:g} is broken."
    if found.precision is not None and found.precision_change is not None:
        yield (
            f"Alarms that are right: {share(found.precision)}, when decided {share(found.precision_then)}; "
            f"{_span(found.precision_change)} points. Precision depends on how frequent the class is."
        )
    for drift in found.drift:
        rows = f"rows of {quoted(drift.name)}" if drift.name else "all rows"
        if drift.p < 0.01:
            moved = "higher" if drift.is_higher else "lower"
            yield f"Scores of {rows} are {moved} than they were (distance {drift.distance:.2f}, {_p(drift.p)})."
        else:
            yield f"Scores of {rows}: no sign that they have moved (distance {drift.distance:.2f}, {_p(drift.p)})."
    if found.num_groups is not None:
        yield f"Rows count in {found.num_groups:,} groups; the test is of the mean over groups."
    if found.label_first and found.verdict.reason == "no_labels":
        yield (
            "Labels of rows near the cut-off find mistakes, and do not show the recall: for a check label rows that "
            "are drawn at random."
        )


def _first_rows(found: Check) -> str:
    shown = ", ".join(str(row) for row in found.label_first[:5])
    return f"rows {shown}{', …' if len(found.label_first) > 5 else ''}"


def _p(value: float) -> str:
    """A p-value with two digits.

    >>> _p(0.0312), _p(0.00001)
    ('p = 0.031', 'p < 0.001')
    """
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"
