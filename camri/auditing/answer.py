"""An audit in sentences, code and tables, for the terminal and for one self-contained page."""

import math
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from camri.auditing.scores import SPLIT_SEED
from camri.auditing.verdict import Audit, ClassResult, Comparison
from camri.decision import PRIOR_ROWS
from camri.report.slider import VALUE, Slider, make_slider, written
from camri.report.tables import BLANK, Cell, Table, cells, span, to_terminal, two_decimals
from camri.stats import FALL, FEWEST_GROUPS, FEWEST_ROWS, Estimate, RowEstimate
from camri.text import percent, plural, points, quoted, visible

CLASSES_SHOWN = 60
WORDS = ("recall", "accuracy", "false alarm", "precision", "point", "shift", "threshold", "[low, high]")


class Answer(NamedTuple):
    """The result in a sentence, what to do and what is guaranteed then, and how sure the figures are."""

    kind: str
    sentence: str
    actions: tuple[str, ...]
    evidence: tuple[str, ...]


def answer(audit: Audit) -> Answer:
    """The audit in sentences; all figures are of the one rule that is advised."""
    kind, sentence, actions = audit.kind, _sentence(audit), []
    if audit.is_advised:
        actions.append(f"Change the decision: {how_to_use(audit)}. No retraining needed.")
    elif audit.is_a_choice:
        actions.append(f"If that price is acceptable: {how_to_use(audit)}. No retraining needed.")
    elif audit.kind == "none" and audit.cost is None:
        actions.extend(_price(audit))
    actions.extend(_mostly_important(audit))
    if audit.guarantee is not None:
        recall, sure = (f"{100 * value:g} %" for value in (audit.guarantee.at_least, audit.guarantee.confidence))
        units = "rows" if audit.num_groups is None else "groups"
        goal = f"a recall of at least {recall} of {_names(audit)} on new {units} like these, with {sure} confidence"
        if audit.refusal is not None:
            actions.insert(0, sentence)
            kind, sentence = "none", f"Cannot guarantee {goal}: {audit.refusal}."
        else:
            num = ", ".join(f"{num:,}" for num in audit.guarantee.num_units)
            kept = "" if audit.is_changed else " The model has it without a change."
            actions.append(f"Guaranteed: {goal}, calibrated on {num} {units}.{kept}")
    return Answer(kind, sentence, tuple(actions), tuple(_evidence(audit)))


def _price(audit: Audit) -> Iterator[str]:
    """What the most accurate point with more recall costs, where no gain is sure to be free."""
    now, alarms = audit.accuracy.before.value, audit.false_alarms.before.value
    for point in audit.prices[:1]:
        yield (
            f"To find more at a price, choose it yourself: on these rows a recall of {percent(point.recall)} comes "
            f"with an accuracy of {percent(point.accuracy)} (now {percent(now)}) and {percent(point.false_alarms)} "
            f"false alarms (now {percent(alarms)}); on new rows accuracy is a little lower. More in the table below"
            + ("." if audit.guarantee is not None else "; --at-least guarantees a recall on new rows.")
        )


def _mostly_important(audit: Audit) -> Iterator[str]:
    """That the rule to use predicts the important classes for most rows, and far more often than they occur."""
    said, total = sum(one.after.num for one in audit.precision), audit.accuracy.before.num
    own = sum(one.recall.before.num for one in audit.own)
    if (audit.is_advised or audit.is_a_choice) and 2 * said > total and said >= 2 * own:
        names = " or ".join(quoted(name) for name in audit.important)
        yield (
            f"Caution: this rule predicts {names} for {percent(said / total)} of the rows, but only "
            f"{percent(own / total)} are. If so many false alarms are too many, ask for less recall, or train a better "
            "model."
        )


def _sentence(audit: Audit) -> str:
    """The figures before and after, or that there is nothing to gain."""
    names, cost = _names(audit), audit.cost
    if audit.kind == "unknown":
        now = "; ".join(f"recall of {quoted(own.name)} now: {share(own.recall.before)}" for own in audit.own)
        return f"Cannot tell: an important class has fewer than {FEWEST_ROWS} rows to tune on or to judge; {now}."
    if audit.kind == "gain":
        recalls = ", ".join(f"{quoted(own.name)}: recall {_arrow(own.recall)}" for own in audit.own)
        mean_cost = "" if cost is None else f"; mean cost {cost[0]:.4g} → {cost[1]:.4g}"
        return f"{recalls}; accuracy {_arrow(audit.accuracy)}; false alarms {_arrow(audit.false_alarms)}{mean_cost}."
    if cost is not None:
        return f"Nothing to gain for {names}: no decision rule significantly lowers the mean cost ({_cost(cost[2])})."
    assert audit.accuracy.change is not None
    changes = f"recall {points(audit.recall.value)}, accuracy {points(audit.accuracy.change.value)} percentage points"
    if audit.recall.value <= 0:
        result = "Nothing to gain", "no change of the decision raises recall on new rows without losing accuracy"
    elif audit.recall.low > 0:
        result = "No free gain", "the best change of the decision costs accuracy"
    else:
        result = "No significant gain", "the change by the best decision rule may be chance"
    return f"{result[0]} for {names}: {result[1]} ({changes})."


def _evidence(audit: Audit) -> Iterator[str]:
    """How sure the figures are, and what else there is to know about them."""
    for name in audit.few_groups:
        yield f"Fewer than {FEWEST_GROUPS} groups have {quoted(name)}: do not trust the intervals."
    if audit.kind != "unknown" and (audit.is_changed or not audit.is_guaranteed):
        comparisons = {
            "recall": audit.recall,
            "accuracy": audit.accuracy.change,
            "false alarms": audit.false_alarms.change,
        }
        changes = ", ".join(f"{name} {_span(change)}" for name, change in comparisons.items() if change is not None)
        cost = "" if audit.cost is None else f" Mean cost {_cost(audit.cost[2])}."
        yield f"Changes in percentage points: {changes}.{cost} Tuned on {audit.tuned_on}."
    if audit.kind == "gain" and not audit.is_guaranteed and audit.cost is None:
        drop, far = (f"{100 * audit.drop.cdf(change):.0f} %" for change in (0.0, -FALL))
        smaller = "factor" if audit.scores_are == "probabilities" else "constant"
        yield (
            f"Probability that accuracy drops: {drop}; by more than half a point: {far} (calibrated scores count as "
            f"{PRIOR_ROWS} rows). A smaller {smaller} is safer."
        )
    if audit.both and audit.has_after:
        recall = percent(next(iter(audit.both.values())).recall)
        rules = "; ".join(
            f"{name} {percent(point.false_alarms)} false alarms, accuracy {percent(point.accuracy)}"
            for name, point in audit.both.items()
        )
        yield f"Both rules at a recall of {recall}, on the rows that tuned them: {rules}."
    for own, precision in zip(audit.own, audit.precision, strict=True):
        shares = (precision.before, precision.after) if audit.has_after else (precision.before,)
        known = [percent(share.value) if share.num else "none" for share in shares]
        shown = " → ".join(known) if set(known) != {"none"} else "none (never predicted)"
        mistakes = ", ".join(f"{quoted(name)} ({count}×)" for name, count in own.mistaken_for)
        missed = f"; misclassified before as {mistakes}" if mistakes else ""
        yield f"{quoted(own.name)}: recall {_shares(own.recall, audit)}; precision {shown}{missed}."
    changed = [(result.name, result.recall.change) for result in audit.by_class]
    lost = [f"{quoted(name)} {_span(change)}" for name, change in changed if change is not None and change.high < 0]
    if lost and audit.kind != "unknown":
        yield f"Classes that lost recall (points): {', '.join(lost)}."
    yield f"Accuracy: {_shares(audit.accuracy, audit)}."
    yield f"False alarms, of all rows: {_shares(audit.false_alarms, audit)}."


def number(audit: Audit) -> str:
    """The number to use in one's own code: a threshold, the factor of a probability, or what is added to a logit."""
    return written(audit.value if audit.factor is None else audit.factor)


def how_to_use(audit: Audit) -> str:
    """What to do in one's own code to decide as advised."""
    if audit.shift is None:
        names = " or ".join(f"p({name})" for name in audit.important)
        return f"predict {_names(audit)} where {names} > {number(audit)}, else the best other class"
    if audit.factor is not None:
        change = f"multiply the probability of {_names(audit)} by {number(audit)}"
    else:
        change = f"add {number(audit)} to the score of {_names(audit)}"
    return f"{change}, then predict the class with the largest"


def codes(audit: Audit) -> dict[str, str]:
    """Code that decides as advised, by language; VALUE stands for the number.

    Without scikit-learn's where a decision_function of two classes does not tell how the two columns were made.
    """
    own = [audit.classes.index(name) for name in audit.important]
    names = ", ".join(f"{index}: {name}" for index, name in zip(own, audit.important, strict=True))
    is_logits = audit.scores_are == "logits"
    scores, sign = ("logits", "+") if is_logits else ("p", "*")
    if audit.shift is not None:
        change = f"{scores}[:, {own if len(own) > 1 else own[0]}] {sign}= {VALUE}  # {names}"
        with_numpy = f"{change}\npredicted = {scores}.argmax(axis=1)"
        with_torch = f"{change}\npredicted = {scores}.argmax(dim=1)"
    else:
        softmax = (
            ("p = scipy.special.softmax(logits.astype(float), axis=1)\n", "p = logits.float().softmax(dim=1)\n")
            if is_logits
            else ("", "")
        )
        with_numpy = (
            f"{softmax[0]}own = np.array({own})  # {names}\n"
            "best, rest = p[:, own], np.delete(np.arange(p.shape[1]), own)\n"
            f"predicted = np.where(best.max(axis=1) > {VALUE}, "
            "own[best.argmax(axis=1)], rest[p[:, rest].argmax(axis=1)])"
        )
        with_torch = (
            f"{softmax[1]}own = torch.tensor({own})  # {names}\n"
            "(best, place), rest = p[:, own].max(dim=1), p.index_fill(1, own, -1).argmax(dim=1)\n"
            f"predicted = torch.where(best > {VALUE}, own[place], rest)"
        )
    unit = "p = percentages / 100\n" if audit.unit == 100 else ""  # predict_proba has none
    found = {"numpy": unit + with_numpy, "PyTorch": unit + with_torch}
    if (made := _made_with_sklearn(audit)) is not None:
        found["scikit-learn"] = f"{made}\n{with_numpy}\npredicted = model.classes_[predicted]"
    return found


def _made_with_sklearn(audit: Audit) -> str | None:
    """Code that makes the audited columns with scikit-learn; None where one cannot tell how they were made."""
    if audit.scores_are != "logits":
        return "p = model.predict_proba(X)"
    if len(audit.classes) > 2:
        return "logits = model.decision_function(X)"
    if audit.first_column is None:
        return None
    first = "-d" if audit.first_column else "np.zeros_like(d)"
    return f"d = model.decision_function(X)\nlogits = np.column_stack([{first}, d])"


def note(audit: Audit) -> str:
    """What the figures and intervals are about."""
    units = "rows" if audit.num_groups is None else "groups"
    judged, tuned = "The figures are for the advised rule.", ""
    if audit.is_cross_fitted:
        judged = "Every row is judged by a rule that was tuned on other rows, fold by fold."
        tuned = " They allow for its tuning on these rows."
    return (
        f"{judged} Intervals (95 %) are for the advised rule on new {units} like these, if {units} are independent."
        f"{tuned} In the probability of a drop, calibrated scores count as {PRIOR_ROWS} rows."
    )


def share(estimate: RowEstimate) -> str:
    """A share in % with its interval and counts.

    >>> from camri.stats import share_of
    >>> import numpy as np
    >>> share(share_of(np.arange(10) < 8)), share(share_of(np.zeros(0, dtype=bool)))
    ('80.0 % [49.0, 94.3] (8/10)', '– (0/0)')
    """
    if not estimate.num:
        return f"{BLANK} (0/0)"
    groups = "" if estimate.num_groups is None else f" in {plural(estimate.num_groups, 'group')}"
    ends = f"[{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"
    return f"{percent(estimate.value)} {ends} ({estimate.hits}/{estimate.num}{groups})"


def _shares(comparison: Comparison, audit: Audit) -> str:
    """The share before and, if there is a change to show, after."""
    shares = (comparison.before, comparison.after) if audit.has_after else (comparison.before,)
    return " → ".join(map(share, shares))


def _kind(audit: Audit) -> str:
    return "percentages" if audit.unit == 100 else audit.scores_are


def _names(audit: Audit) -> str:
    return " and ".join(quoted(name) for name in audit.important)


def _arrow(comparison: Comparison) -> str:
    return f"{percent(comparison.before.value)} → {percent(comparison.after.value)}"


def _cost(change: Estimate) -> str:
    return f"{change.value:+.4g} [{change.low:+.4g}, {change.high:+.4g}]".replace("-", "−")


def _span(change: RowEstimate) -> str:
    return span(change.value, change.low, change.high)


def class_table(audit: Audit, most: int | None = None) -> Table:
    """Every class's recall before and after: the important ones first, then those that lose most."""
    order = sorted(audit.by_class, key=lambda one: (not one.important, getattr(one.recall.change, "value", 1.0)))
    header, notes = ["class", "rows", "recall", "95 %"], ["95 %: Wilson interval."]
    if audit.has_after:
        header += ["after", "change (points)"]
        notes = ["95 %: Wilson interval. The change is on the same rows, so its interval is narrower."]
    if audit.num_groups is not None:
        header.insert(2, "groups")
    if most is not None and most < len(order):
        notes.append(f"The {most} of {len(order)} classes that lose most are shown.")
    rows = tuple(_row(result)[: len(header)] for result in order[:most])
    records = tuple(audit.to_json()["classes"])
    return Table("Recall of every class", tuple(header), (rows,), records, tuple(notes))


def _row(result: ClassResult) -> tuple[Cell, ...]:
    before, after, change = result.recall.before, result.recall.after, result.recall.change
    groups = () if before.num_groups is None else (f"{before.num_groups:,}",)
    if change is None:
        return cells(result.name, "0", *groups, BLANK, BLANK, BLANK, BLANK)
    shares = f"{before.value:.3f}", f"{before.low:.3f}–{before.high:.3f}", f"{after.value:.3f}", _span(change)
    return tuple(Cell(text, bold=result.important) for text in (result.name, f"{before.num:,}", *groups, *shares))


def price_table(audit: Audit) -> Table | None:
    """What more recall costs; None where there is no more, or too few rows to say."""
    if not audit.prices or audit.kind == "unknown":
        return None
    now, sign = audit.accuracy.before.value, "" if audit.shift is None else "+"
    rows = tuple(
        cells(
            f"{point.recall:.3f}",
            f"{point.value:{sign}.3g}" if audit.factor is None else f"×{math.exp(point.value):.3g}",
            f"{point.accuracy:.3f}",
            points(point.accuracy - now),
            two_decimals(point.false_alarms),
            BLANK if point.precision is None else f"{point.precision:.3f}",
        )
        for point in audit.prices
    )
    name = audit.rule.name if audit.factor is None else "factor"
    header = ("recall", name, "accuracy", "its change (points)", "false alarms (%)", "precision")
    note = "The most accurate point of the curve, then one for each recall; on new rows they cost a little more."
    return Table("What more recall costs", header, (rows,), tuple(map(vars, audit.prices)), (note,))


def what_was_read(audit: Audit, source: str) -> str:
    """The table as it was understood: rows, classes, kind of scores, and rows of the important classes."""
    num = audit.accuracy.before.num
    rows = f"{audit.num_rows:,} rows"
    rows += f" of {audit.num_models} models" if audit.num_models > 1 else ""
    rows += f" in {audit.num_groups:,} groups" if audit.num_groups is not None else ""
    rows += f" ({num:,} to judge)" if num != audit.num_rows else ""
    important = ", ".join(f"{one.name} ({one.recall.before.num:,} rows)" for one in audit.own)
    return f"{source}: {rows}, {len(audit.classes):,} classes, {_kind(audit)}; important: {important}"


def show(audit: Audit, source: str | None = None) -> None:
    """Print what was read from the source, the answer, the code to copy and the tables."""
    from rich.console import Console

    said, console = answer(audit), Console()

    def print_line(line: str, style: str = "", indent: str = "") -> None:
        if console.is_terminal:  # in a file or pipe a line stays whole
            line = wrapped(line, console.width, indent)
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    if source is not None:
        print_line(visible(what_was_read(audit, source)))
    print_line(said.sentence, "bold")
    for action in said.actions:
        print_line(f"- {action}", indent="  ")
    for language, text in codes(audit).items() if audit.is_advised or audit.is_a_choice else ():
        console.print()
        print_line(language, "bold")
        print(text.replace(VALUE, number(audit)))  # as it is: to be copied
    console.print()
    for line in said.evidence:
        print_line(f"- {line}", indent="  ")
    for table in (class_table(audit, CLASSES_SHOWN), price_table(audit)):
        if table is not None:
            console.print()
            console.print(to_terminal(table))


def wrapped(line: str, width: int, indent: str = "") -> str:
    """The line in lines of this width; a number and its %, and the ends of an interval, stay together.

    >>> wrapped("false alarms 5.4 % [4.2, 6.9]", 23)
    'false alarms 5.4 %\\n[4.2, 6.9]'
    """
    whole = re.sub(r" (?=%)|(?<=,) (?=[^][]*\])", "\u00a0", line)
    lines = textwrap.wrap(whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\u00a0", " ")


def write_page(audit: Audit, path: str | Path, source: str, command: Sequence[str] = ()) -> Path:
    """Write the page, whole or not at all; needs the report extra. `source` is what the table of scores is called."""
    from camri.report.page import put

    return put(render(audit, source, command), Path(path))


def render(audit: Audit, source: str, command: Sequence[str] = ()) -> str:
    """The page as HTML."""
    from camri.report.page import Section, fill, make_bars

    prices, said = price_table(audit), answer(audit)
    others = {result.name: result.recall.change for result in audit.by_class if not result.important}
    changes = {name: (change.value, change.low, change.high) for name, change in others.items() if change is not None}
    figures = {
        **{f"Recall of {quoted(own.name)}": own.recall for own in audit.own},
        "False alarms, of all rows": audit.false_alarms,
        "Accuracy": audit.accuracy,
    }
    has_advice = said.kind == "gain" and said.actions
    first, *more = said.actions if has_advice else (said.sentence, *said.actions)
    return fill(
        "answer.html.j2",
        [Section("point", "Choose the operating point", slider=slider_of(audit))],
        [
            Section("evidence", "How sure this is", text="\n".join([*said.evidence, note(audit)])),
            Section("classes-all", "Recall of every class", tables=(class_table(audit, CLASSES_SHOWN),)),
            Section("prices", "What more recall costs", tables=() if prices is None else (prices,)),
        ],
        brand="camri audit",
        title=f"{source}: {', '.join(quoted(name) for name in audit.important)}",
        kind=said.kind,
        lead=first,
        cautions=(),
        figures=[_before_and_after(name, comparison, audit) for name, comparison in figures.items()],
        actions=more,
        bars=make_bars(changes, "Change of recall of the other classes") if audit.has_after else None,
        words=WORDS if audit.num_groups is None else (*WORDS, "group"),
        many="rows",
        facts=facts(audit, source, command),
        source="the table of scores alone",
    )


def _before_and_after(name: str, comparison: Comparison, audit: Audit) -> tuple[str, str, str, str]:
    """A large number of the page: what it is, before, after, and its change."""
    before, after = percent(comparison.before.value), percent(comparison.after.value)
    if not audit.has_after:
        return name, "", before, "as it is"
    return name, before, after, "" if comparison.change is None else f"{_span(comparison.change)} points"


def facts(audit: Audit, source: str, command: Sequence[str]) -> list[tuple[str, str]]:
    """How the audit was made."""
    num, made = audit.accuracy.before.num, audit.guarantee
    judged = "" if num == audit.num_rows else f", {num:,} of them judged"
    pairs = [
        ("scores", f"{source}: {_kind(audit)}"),
        ("rows", f"{audit.num_rows:,}{judged}"),
        ("groups", "none: rows count as independent" if audit.num_groups is None else f"{audit.num_groups:,}"),
        ("classes", f"{len(audit.classes):,}"),
        ("important classes", ", ".join(audit.important)),
        ("tuned on", f"{audit.tuned_on}; folds drawn with seed {SPLIT_SEED}"),
        ("models", f"{audit.num_models}: rows of one input are a group" if audit.num_models > 1 else "1"),
        ("maximal drop of accuracy", f"{audit.max_accuracy_drop:g}"),
    ]
    if made is not None:
        pairs.append(("recall to guarantee", f"{made.at_least:g}, {100 * made.confidence:g} % confidence"))
    return [*pairs, ("command", shlex.join(command))] if command else pairs


def slider_of(audit: Audit) -> Slider:
    """The operating points that the advised rule reaches on the judged rows."""
    note = "Counted on the rows of the answer."
    if audit.is_cross_fitted:
        note = (
            "Counted on the rows that tuned the rule: the advised point looks a little better here than in the answer, "
            "where every row is judged by a rule that was tuned on other rows."
        )
    return make_slider(
        audit.scores, audit.rule, audit.important, codes(audit), as_factor=audit.factor is not None, note=note
    )
