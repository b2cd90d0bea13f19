"""An audit in sentences, code and tables, for the terminal and for one self-contained page."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from camri.auditing.scores import SPLIT_SEED
from camri.auditing.verdict import Audit, ClassResult, Comparison, Point
from camri.decision import PRIOR_ROWS
from camri.report.slider import VALUE, Slider, make_slider, written
from camri.report.tables import BLANK, Cell, Table, cells, span, to_terminal, two_decimals
from camri.stats import FALL, FEWEST_GROUPS, FEWEST_ROWS, Estimate, RowEstimate
from camri.text import percent, points, quoted

CLASSES_SHOWN = 60
WORDS = {
    "recall": "share of a class’s rows that are predicted as that class; of several important classes the mean",
    "accuracy": "share of all rows that are predicted right",
    "false alarm": "a row of no important class that is predicted as one; shown as a share of all rows",
    "precision": "share of the rows predicted as a class that are of it",
    "point": "percentage point: from 70 % to 71 % is one",
    "shift": "a constant added to the important class’s score (or to the logarithm of its probability) before the "
    "largest score wins: the rule that costs the least accuracy",
    "threshold": "predict the important class where its probability is above a value: the rule with the fewest false "
    "alarms, if the probabilities are right",
    "[low, high]": "95 % interval: 95 of 100 such intervals hold the true value",
    "group": "rows that belong together, such as those of one patient or film; tuned on or judged, never both",
}


class Answer(NamedTuple):
    """The result in a sentence, what to do and what is guaranteed then, and how sure the figures are."""

    kind: str
    sentence: str
    actions: tuple[str, ...]
    evidence: tuple[str, ...]


def answer(audit: Audit) -> Answer:
    """The audit in sentences; all figures are of the one rule that is advised."""
    sentence, actions, proof = _figures(audit), [], evidence(audit)
    if audit.is_advised:
        actions.append(f"Change the decision: {how_to_use(audit)}. No retraining needed.")
    if audit.guarantee is None:
        return Answer(audit.kind, sentence, tuple(actions), proof)
    units = "rows" if audit.num_groups is None else "groups"
    recall, sure = (f"{100 * value:g} %" for value in (audit.guarantee.at_least, audit.guarantee.confidence))
    goal = f"a recall of at least {recall} of {_names(audit)} on new {units} like these, with {sure} confidence"
    if audit.refusal is not None:
        refused = f"Cannot guarantee {goal}: {audit.refusal}."
        return Answer("none", refused, (sentence, *actions), proof)
    num = ", ".join(f"{num:,}" for num in audit.guarantee.num)
    kept = "" if audit.is_changed else " The model has it without a change."
    actions.append(f"Guaranteed: {goal}, calibrated on {num} rows.{kept}")
    return Answer(audit.kind, sentence, tuple(actions), proof)


def _figures(audit: Audit) -> str:
    """The figures before and after, or that there is nothing to gain."""
    names, cost = _names(audit), audit.cost
    if audit.kind == "unknown":
        now = "; ".join(f"recall of {quoted(one.name)} now: {share(one.recall.before)}" for one in audit.own)
        return f"Cannot tell: an important class has fewer than {FEWEST_ROWS} rows to tune on or to judge; {now}."
    if audit.kind == "gain":
        recalls = ", ".join(f"{quoted(one.name)}: recall {_arrow(one.recall)}" for one in audit.own)
        dearer = "" if cost is None else f"; mean cost {cost[0]:.4g} → {cost[1]:.4g}"
        return f"{recalls}; accuracy {_arrow(audit.accuracy)}; false alarms {_arrow(audit.false_alarms)}{dearer}."
    if cost is not None:
        return f"Nothing to gain for {names}: no change of the decision surely lowers the mean cost ({_cost(cost[2])})."
    assert audit.accuracy.change is not None
    recall, accuracy = points(audit.recall.value), points(audit.accuracy.change.value)
    costs = f"recall {recall}, accuracy {accuracy} percentage points"
    if audit.recall.value <= 0:
        return (
            f"Nothing to gain for {names}: no change of the decision raised recall without losing accuracy ({costs})."
        )
    if audit.recall.low > 0:
        return f"No free gain for {names}: the best change of the decision costs accuracy ({costs})."
    return f"No sure gain for {names}: what the best change of the decision gives may be chance ({costs})."


def evidence(audit: Audit) -> tuple[str, ...]:
    """How sure the figures are, and what else there is to know about them."""
    lines = [
        f"Fewer than {FEWEST_GROUPS} groups have {quoted(name)}: do not trust the intervals."
        for name in audit.few_groups
    ]
    if audit.kind != "unknown" and (audit.is_changed or not audit.is_guaranteed):
        comparisons = {
            "recall": audit.recall,
            "accuracy": audit.accuracy.change,
            "false alarms": audit.false_alarms.change,
        }
        changes = ", ".join(f"{name} {_span(change)}" for name, change in comparisons.items() if change is not None)
        cost = "" if audit.cost is None else f" Mean cost {_cost(audit.cost[2])}."
        lines.append(f"Changes in percentage points: {changes}.{cost} Tuned on {audit.tuned_on}.")
    if audit.kind == "gain" and not audit.is_guaranteed and audit.cost is None:
        drop, far = audit.drop.cdf(0.0), audit.drop.cdf(-FALL)
        smaller = "factor" if audit.scores_are == "probabilities" else "constant"
        lines.append(
            f"Accuracy drops with a probability of {100 * drop:.0f} %, by more than half a point with "
            f"{100 * far:.0f} %. A smaller {smaller} is safer."
        )
    if audit.both and audit.has_after:
        at = 100 * next(iter(audit.both.values())).recall
        rules = "; ".join(
            f"{name} {100 * one.false_alarms:.1f} % false alarms, accuracy {100 * one.accuracy:.1f} %"
            for name, one in audit.both.items()
        )
        lines.append(f"Both free rules at a recall of {at:.1f} %, on the rows that tuned them: {rules}.")
    lines += [_class_line(one, precision, audit) for one, precision in zip(audit.own, audit.precision, strict=True)]
    lost = [one for one in audit.by_class if one.recall.change is not None and one.recall.change.high < 0]
    if lost and audit.kind != "unknown":
        names = ", ".join(f"{quoted(one.name)} {_span(one.recall.change)}" for one in lost if one.recall.change)
        lines.append(f"Classes that lost recall (points): {names}.")
    for name, one in (("Accuracy", audit.accuracy), ("False alarms, of all rows", audit.false_alarms)):
        lines.append(f"{name}: {share(one.before)}{f' → {share(one.after)}' if audit.has_after else ''}.")
    return tuple(lines)


def _class_line(one: ClassResult, precision: Comparison, audit: Audit) -> str:
    before, after = one.recall.before, one.recall.after
    recall = f"{share(before)} → {share(after)}" if audit.has_after else share(before)
    values = [one.value for one in (precision.before, *([precision.after] if audit.has_after else [])) if one.num]
    shown = " → ".join(f"{100 * value:.1f} %" for value in values) or "none (never predicted)"
    mistakes = ", ".join(f"{quoted(name)} ({count}×)" for name, count in one.mistaken_for)
    missed = f"; misclassified before as {mistakes}" if mistakes else ""
    return f"{quoted(one.name)}: recall {recall}; precision {shown}{missed}."


def number(audit: Audit) -> str:
    """The number to use in one's own code: a threshold, the factor of a probability, or what is added to a logit."""
    return written(math.exp(audit.value) if is_factor(audit) else audit.value)


def is_factor(audit: Audit) -> bool:
    """Whether the rule multiplies probabilities."""
    return audit.shift is not None and audit.scores_are == "probabilities"


def how_to_use(audit: Audit) -> str:
    """What to do in one's own code to decide as advised."""
    if audit.shift is None:
        names = " or ".join(f"p({name})" for name in audit.important)
        return f"predict {_names(audit)} where {names} > {number(audit)}, else the best other class"
    if is_factor(audit):
        change = f"multiply the probability of {_names(audit)} by {number(audit)}"
    else:
        change = f"add {number(audit)} to the score of {_names(audit)}"
    return f"{change}, then predict the class with the largest"


def codes(audit: Audit) -> dict[str, str]:
    """Code that decides as advised, by language; VALUE stands for the number."""
    own = [audit.classes.index(name) for name in audit.important]
    names = ", ".join(f"{index}: {name}" for index, name in zip(own, audit.important, strict=True))
    is_logits = audit.scores_are == "logits"
    if audit.shift is not None:
        name, sign = ("logits", "+") if is_logits else ("p", "*")
        change = f"{name}[:, {own if len(own) > 1 else own[0]}] {sign}= {VALUE}  # {names}"
        made = f"{name} = model.{'decision_function' if is_logits else 'predict_proba'}(X)"
        return {
            "numpy": f"{change}\npredicted = {name}.argmax(axis=1)",
            "PyTorch": f"{change}\npredicted = {name}.argmax(dim=1)",
            "scikit-learn": f"{made}\n{change}\npredicted = model.classes_[{name}.argmax(axis=1)]",
        }
    softmax = {
        "numpy": "p = scipy.special.softmax(logits, axis=1)\n",
        "PyTorch": "p = logits.softmax(dim=1)\n",
        "scikit-learn": "p = scipy.special.softmax(model.decision_function(X), axis=1)\n",
    }
    start = softmax if is_logits else {"numpy": "", "PyTorch": "", "scikit-learn": "p = model.predict_proba(X)\n"}
    with_numpy = (
        f"own = np.array({own})  # {names}\n"
        "best, rest = p[:, own], np.delete(np.arange(p.shape[1]), own)\n"
        f"predicted = np.where(best.max(axis=1) > {VALUE}, own[best.argmax(axis=1)], rest[p[:, rest].argmax(axis=1)])"
    )
    with_torch = (
        f"own = torch.tensor({own})  # {names}\n"
        "(best, place), rest = p[:, own].max(dim=1), p.index_fill(1, own, -1).argmax(dim=1)\n"
        f"predicted = torch.where(best > {VALUE}, own[place], rest)"
    )
    return {
        "numpy": start["numpy"] + with_numpy,
        "PyTorch": start["PyTorch"] + with_torch,
        "scikit-learn": f"{start['scikit-learn']}{with_numpy}\npredicted = model.classes_[predicted]",
    }


def code(audit: Audit) -> dict[str, str]:
    """The code with its number; nothing where no change is advised."""
    if not audit.is_advised:
        return {}
    return {language: text.replace(VALUE, number(audit)) for language, text in codes(audit).items()}


def note(audit: Audit) -> str:
    """What the figures hold for."""
    units = "rows" if audit.num_groups is None else "groups"
    judged, counted = "as it is advised", ""
    if audit.is_cross_fitted:
        judged, counted = "tuned on other rows, fold by fold", " They count that it was tuned on these."
    return (
        f"The figures are of the rule {judged}. Intervals are 95 %, of the advised rule on new {units} like these, "
        f"which count as independent.{counted} The chance of a drop also weighs what calibrated scores predict, "
        f"as much as {PRIOR_ROWS} rows."
    )


def share(audit: RowEstimate) -> str:
    """A share in % with its interval and counts.

    >>> from camri.stats import share_of
    >>> import numpy as np
    >>> share(share_of(np.arange(10) < 8)), share(share_of(np.zeros(0, dtype=bool)))
    ('80.0 % [49.0, 94.3] (8/10)', '– (0/0)')
    """
    if not audit.num:
        return f"{BLANK} (0/0)"
    groups = "" if audit.num_groups is None else f" in {audit.num_groups:,} group{'s' * (audit.num_groups != 1)}"
    ends = f"[{100 * audit.low:.1f}, {100 * audit.high:.1f}]"
    return f"{100 * audit.value:.1f} % {ends} ({audit.hits}/{audit.num}{groups})"


def _names(audit: Audit) -> str:
    return " and ".join(quoted(name) for name in audit.important)


def _arrow(one: Comparison) -> str:
    return f"{100 * one.before.value:.1f} % → {100 * one.after.value:.1f} %"


def _cost(change: Estimate) -> str:
    return f"{change.value:+.4g} [{change.low:+.4g}, {change.high:+.4g}]".replace("-", "−")


def _span(change: RowEstimate) -> str:
    return span(change.value, change.low, change.high)


def class_table(audit: Audit, most: int | None = None) -> Table:
    """Every class's recall before and after: the important ones first, then those that lose most."""
    changes = {one.name: one.recall.change for one in audit.by_class}
    order = sorted(audit.by_class, key=lambda one: (not one.important, getattr(changes[one.name], "value", 1.0)))
    header, notes = ["class", "rows", "recall", "95 %"], ["95 %: Wilson interval."]
    if audit.has_after:
        header += ["after", "change (points)"]
        notes = ["95 %: Wilson interval. The change is on the same rows, so its interval is narrower."]
    if audit.num_groups is not None:
        header.insert(2, "groups")
    if most is not None and most < len(order):
        notes.append(f"The {most} of {len(order)} classes that lose most are shown.")
    rows = [_row(one)[: len(header)] for one in order[:most]]
    records = tuple(audit.to_json()["classes"])
    return Table("Recall of every class", tuple(header), (tuple(rows),), records, tuple(notes))


def _row(one: ClassResult) -> tuple[Cell, ...]:
    before, after, change = one.recall.before, one.recall.after, one.recall.change
    groups = () if before.num_groups is None else (f"{before.num_groups:,}",)
    if change is None:
        return cells(one.name, "0", *groups, BLANK, BLANK, BLANK, BLANK)
    shares = f"{before.value:.3f}", f"{before.low:.3f}–{before.high:.3f}", f"{after.value:.3f}", _span(change)
    return tuple(Cell(text, bold=one.important) for text in (one.name, f"{before.num:,}", *groups, *shares))


def price_table(audit: Audit) -> Table | None:
    """What more recall costs; None where there is no more, or too few rows to say."""
    if not audit.prices or audit.kind == "unknown":
        return None
    now = audit.accuracy.before.value

    def number_of(point: Point) -> str:
        if is_factor(audit):
            return f"×{math.exp(point.value):.3g}"
        return f"{point.value:.3g}" if audit.shift is None else f"{point.value:+.3g}"

    rows = tuple(
        cells(
            f"{point.recall:.3f}",
            number_of(point),
            f"{point.accuracy:.3f}",
            points(point.accuracy - now),
            two_decimals(point.false_alarms),
            BLANK if point.precision is None else f"{point.precision:.3f}",
        )
        for point in audit.prices
    )
    name = "factor" if is_factor(audit) else audit.rule.name
    header = ("recall", name, "accuracy", "its change (points)", "false alarms (%)", "precision")
    note = "The most accurate point of the curve, then one for each recall; on new rows they cost a little more."
    return Table("What more recall costs", header, (rows,), tuple(map(vars, audit.prices)), (note,))


def show(audit: Audit) -> None:
    """Print the answer, the code to copy and the tables."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as Grid

    told, console = answer(audit), Console()

    def print_list(lines: Sequence[str]) -> None:
        grid = Grid.grid(padding=(0, 1))
        for line in lines:
            grid.add_row("-", escape(line))
        console.print(grid, highlight=False)

    console.print(f"[bold]{escape(told.sentence)}[/bold]", highlight=False)
    if told.actions:
        print_list(told.actions)
    for language, text in code(audit).items():
        console.print(f"\n[bold]{language}[/bold]", highlight=False)
        print(text)  # as it is: to be copied
    console.print()
    print_list(told.evidence)
    for table in (class_table(audit, CLASSES_SHOWN), price_table(audit)):
        if table is not None:
            console.print()
            console.print(to_terminal(table))


def write_page(audit: Audit, path: str | Path, source: str, command: Sequence[str] = ()) -> Path:
    """Write the page, whole or not at all; needs the report extra. `source` is what the table of scores is called."""
    from camri.report.page import put

    return put(render(audit, source, command), Path(path))


def render(audit: Audit, source: str, command: Sequence[str] = ()) -> str:
    """The page as HTML."""
    from camri.report.page import Section, fill, make_bars

    prices, told = price_table(audit), answer(audit)
    others = {one.name: one.recall.change for one in audit.by_class if not one.important}
    changes = {name: (one.value, one.low, one.high) for name, one in others.items() if one is not None}
    slider = Section("point", "Operating point", "Choose the operating point", slider=slider_of(audit))
    folded = [
        Section("evidence", "Evidence", "How sure this is", text="\n".join([*told.evidence, note(audit)])),
        Section("classes-all", "Classes", "Recall of every class", tables=(class_table(audit, CLASSES_SHOWN),)),
        Section("prices", "Prices", "What more recall costs", tables=() if prices is None else (prices,)),
    ]
    has_advice = told.kind == "gain" and told.actions
    first, *more = told.actions if has_advice else (told.sentence, *told.actions)
    return fill(
        "answer.html.j2",
        [slider],
        folded,
        brand="camri audit",
        title=f"{source}: {', '.join(quoted(name) for name in audit.important)}",
        kind=told.kind,
        lead=first,
        cautions=(),
        figures=numbers(audit),
        actions=more,
        examples=(),
        bars=make_bars(changes, "Change of recall of the other classes") if audit.has_after else None,
        words=[(word, text) for word, text in WORDS.items() if word != "group" or audit.num_groups is not None],
        facts=facts(audit, source, command),
        source="the table of scores alone",
    )


def numbers(audit: Audit) -> list[tuple[str, str, str, str]]:
    """Recall, false alarms and accuracy, before and after."""
    rows = {
        **{f"Recall of {quoted(one.name)}": one.recall for one in audit.own},
        "False alarms, of all rows": audit.false_alarms,
        "Accuracy": audit.accuracy,
    }
    figures = []
    for name, one in rows.items():
        before, after = (percent(share.value) for share in (one.before, one.after))
        change = "" if one.change is None else f"{_span(one.change)} points"
        figures.append((name, before, after, change) if audit.has_after else (name, "", before, "as it is"))
    return figures


def facts(audit: Audit, source: str, command: Sequence[str]) -> list[tuple[str, str]]:
    """How the audit was made."""
    num, made = audit.accuracy.before.num, audit.guarantee
    judged = "" if num == audit.num_rows else f", {num:,} of them judged"
    pairs = [
        ("scores", f"{source}: {audit.scores_are}"),
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
    return make_slider(audit.scores, audit.rule, audit.important, codes(audit), as_factor=is_factor(audit), note=note)
