"""An audit in sentences, code and tables, for the terminal and for one self-contained page."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from camri.auditing.scores import SPLIT_SEED
from camri.auditing.verdict import Audit, ClassResult, Comparison
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


def answer(found: Audit) -> Answer:
    """The audit in sentences; all figures are of the one rule that is advised."""
    sentence, actions = _figures(found), []
    if found.is_advised:
        actions.append(f"Change the decision: {how_to_use(found)}. No retraining needed.")
    if found.guarantee is None:
        return Answer(found.kind, sentence, tuple(actions), evidence(found))
    units = "rows" if found.num_groups is None else "groups"
    recall, sure = (f"{100 * value:g} %" for value in (found.guarantee.at_least, found.guarantee.confidence))
    goal = f"a recall of at least {recall} of {_names(found)} on new {units} like these, with {sure} confidence"
    if found.refusal is not None:
        refused = f"Cannot guarantee {goal}: {found.refusal}."
        return Answer("none", refused, (sentence, *actions), evidence(found))
    num = ", ".join(f"{num:,}" for num in found.guarantee.num)
    kept = "" if found.is_changed else " The model has it without a change."
    actions.append(f"Guaranteed: {goal}, calibrated on {num} rows.{kept}")
    return Answer(found.kind, sentence, tuple(actions), evidence(found))


def _figures(found: Audit) -> str:
    """The figures before and after, or that there is nothing to gain."""
    names, cost = _names(found), found.cost
    if found.kind == "unknown":
        now = "; ".join(f"recall of {quoted(one.name)} now: {share(one.recall.before)}" for one in found.own)
        return f"Cannot tell: an important class has fewer than {FEWEST_ROWS} rows to tune on or to judge; {now}."
    if found.kind == "gain":
        recalls = ", ".join(f"{quoted(one.name)}: recall {_arrow(one.recall)}" for one in found.own)
        dearer = "" if cost is None else f"; mean cost {cost[0]:.4g} → {cost[1]:.4g}"
        return f"{recalls}; accuracy {_arrow(found.accuracy)}; false alarms {_arrow(found.false_alarms)}{dearer}."
    if cost is not None:
        return f"Nothing to gain for {names}: no change of the decision surely lowers the mean cost ({_cost(cost[2])})."
    assert found.accuracy.change is not None
    recall, accuracy = points(found.recall.value), points(found.accuracy.change.value)
    costs = f"recall {recall}, accuracy {accuracy} percentage points"
    if found.is_changed and found.recall.low > 0:
        return f"No free gain for {names}: the best change of the decision costs accuracy ({costs})."
    return f"Nothing to gain for {names}: no change of the decision raised recall without losing accuracy ({costs})."


def evidence(found: Audit) -> tuple[str, ...]:
    """How sure the figures are, and what else there is to know about them."""
    lines = [
        f"Fewer than {FEWEST_GROUPS} groups have {quoted(name)}: do not trust the intervals."
        for name in found.few_groups
    ]
    if found.kind != "unknown" and (found.is_changed or not found.is_guaranteed):
        comparisons = {
            "recall": found.recall,
            "accuracy": found.accuracy.change,
            "false alarms": found.false_alarms.change,
        }
        changes = ", ".join(f"{name} {_span(change)}" for name, change in comparisons.items() if change is not None)
        cost = "" if found.cost is None else f" Mean cost {_cost(found.cost[2])}."
        lines.append(f"Changes in percentage points: {changes}.{cost} Tuned on {found.tuned_on}.")
    if found.kind == "gain" and not found.is_guaranteed and found.cost is None:
        drop, far = found.drop.cdf(0.0), found.drop.cdf(-FALL)
        smaller = "factor" if found.scores_are == "probabilities" else "constant"
        lines.append(
            f"Accuracy drops with a probability of {100 * drop:.0f} %, by more than half a point with "
            f"{100 * far:.0f} %. A smaller {smaller} is safer."
        )
    if found.both and found.has_after:
        at = 100 * next(iter(found.both.values())).recall
        rules = "; ".join(
            f"{name} {100 * one.false_alarms:.1f} % false alarms, accuracy {100 * one.accuracy:.1f} %"
            for name, one in found.both.items()
        )
        lines.append(f"Both free rules at a recall of {at:.1f} %, on the rows that tuned them: {rules}.")
    lines += [_class_line(one, precision, found) for one, precision in zip(found.own, found.precision, strict=True)]
    lost = [one for one in found.by_class if one.recall.change is not None and one.recall.change.high < 0]
    if lost and found.kind != "unknown":
        names = ", ".join(f"{quoted(one.name)} {_span(one.recall.change)}" for one in lost if one.recall.change)
        lines.append(f"Classes that lost recall (points): {names}.")
    for name, one in (("Accuracy", found.accuracy), ("False alarms, of all rows", found.false_alarms)):
        lines.append(f"{name}: {share(one.before)}{f' → {share(one.after)}' if found.has_after else ''}.")
    return tuple(lines)


def _class_line(one: ClassResult, precision: Comparison, found: Audit) -> str:
    before, after = one.recall.before, one.recall.after
    recall = f"{share(before)} → {share(after)}" if found.has_after else share(before)
    values = [one.value for one in (precision.before, *([precision.after] if found.has_after else [])) if one.num]
    shown = " → ".join(f"{100 * value:.1f} %" for value in values) or "none (never predicted)"
    mistakes = ", ".join(f"{quoted(name)} ({count}×)" for name, count in one.mistaken_for)
    missed = f"; misclassified before as {mistakes}" if mistakes else ""
    return f"{quoted(one.name)}: recall {recall}; precision {shown}{missed}."


def number(found: Audit) -> str:
    """The number to use in one's own code: a threshold, the factor of a probability, or what is added to a logit."""
    return written(math.exp(found.value) if is_factor(found) else found.value)


def is_factor(found: Audit) -> bool:
    """Whether the rule multiplies probabilities."""
    return found.shift is not None and found.scores_are == "probabilities"


def how_to_use(found: Audit) -> str:
    """What to do in one's own code to decide as advised."""
    if found.shift is None:
        names = " or ".join(f"p({name})" for name in found.important)
        return f"predict {_names(found)} where {names} > {number(found)}, else the best other class"
    if is_factor(found):
        change = f"multiply the probability of {_names(found)} by {number(found)}"
    else:
        change = f"add {number(found)} to the score of {_names(found)}"
    return f"{change}, then predict the class with the largest"


def codes(found: Audit) -> dict[str, str]:
    """Code that decides as advised, by language; VALUE stands for the number."""
    own = [found.classes.index(name) for name in found.important]
    names = ", ".join(f"{index}: {name}" for index, name in zip(own, found.important, strict=True))
    is_logits = found.scores_are == "logits"
    if found.shift is not None:
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


def code(found: Audit) -> dict[str, str]:
    """The code with its number; nothing where no change is advised."""
    if not found.is_advised:
        return {}
    return {language: text.replace(VALUE, number(found)) for language, text in codes(found).items()}


def note(found: Audit) -> str:
    """What the figures hold for."""
    units = "rows" if found.num_groups is None else "groups"
    judged, counted = "as it is advised", ""
    if found.is_cross_fitted:
        judged, counted = "tuned on other rows, fold by fold", " They count that it was tuned on these."
    return (
        f"The figures are of the rule {judged}. Intervals are 95 %, of the advised rule on new {units} like these, "
        f"which count as independent.{counted} The chance of a drop also weighs what calibrated scores predict, "
        f"as much as {PRIOR_ROWS} rows."
    )


def share(found: RowEstimate) -> str:
    """A share in % with its interval and counts.

    >>> from camri.stats import share_of
    >>> import numpy as np
    >>> share(share_of(np.arange(10) < 8)), share(share_of(np.zeros(0, dtype=bool)))
    ('80.0 % [49.0, 94.3] (8/10)', '– (0/0)')
    """
    if not found.num:
        return f"{BLANK} (0/0)"
    groups = "" if found.num_groups is None else f" in {found.num_groups:,} group{'s' * (found.num_groups != 1)}"
    ends = f"[{100 * found.low:.1f}, {100 * found.high:.1f}]"
    return f"{100 * found.value:.1f} % {ends} ({found.hits}/{found.num}{groups})"


def _names(found: Audit) -> str:
    return " and ".join(quoted(name) for name in found.important)


def _arrow(one: Comparison) -> str:
    return f"{100 * one.before.value:.1f} % → {100 * one.after.value:.1f} %"


def _cost(change: Estimate) -> str:
    return f"{change.value:+.4g} [{change.low:+.4g}, {change.high:+.4g}]".replace("-", "−")


def _span(change: RowEstimate) -> str:
    return span(change.value, change.low, change.high)


def class_table(found: Audit, most: int | None = None) -> Table:
    """Every class's recall before and after: the important ones first, then those that lose most."""
    changes = {one.name: one.recall.change for one in found.by_class}
    order = sorted(found.by_class, key=lambda one: (not one.important, getattr(changes[one.name], "value", 1.0)))
    header, notes = ["class", "rows", "recall", "95 %"], ["95 %: Wilson interval."]
    if found.has_after:
        header += ["after", "change (points)"]
        notes = ["95 %: Wilson interval. The change is on the same rows, so its interval is narrower."]
    if found.num_groups is not None:
        header.insert(2, "groups")
    if most is not None and most < len(order):
        notes.append(f"The {most} of {len(order)} classes that lose most are shown.")
    rows = [_row(one)[: len(header)] for one in order[:most]]
    records = tuple(found.to_json()["classes"])
    return Table("Recall of every class", tuple(header), (tuple(rows),), records, tuple(notes))


def _row(one: ClassResult) -> tuple[Cell, ...]:
    before, after, change = one.recall.before, one.recall.after, one.recall.change
    groups = () if before.num_groups is None else (f"{before.num_groups:,}",)
    if change is None:
        return cells(one.name, "0", *groups, BLANK, BLANK, BLANK, BLANK)
    shares = f"{before.value:.3f}", f"{before.low:.3f}–{before.high:.3f}", f"{after.value:.3f}", _span(change)
    return tuple(Cell(text, bold=one.important) for text in (one.name, f"{before.num:,}", *groups, *shares))


def price_table(found: Audit) -> Table | None:
    """What more recall costs; None where there is no more, or too few rows to say."""
    if not found.prices or found.kind == "unknown":
        return None
    now, form = found.accuracy.before.value, "+.3g" if found.rule.name == "shift" else ".3g"
    rows = tuple(
        cells(
            f"{one.recall:.3f}",
            f"{one.value:{form}}",
            f"{one.accuracy:.3f}",
            points(one.accuracy - now),
            two_decimals(one.false_alarms),
            BLANK if one.precision is None else f"{one.precision:.3f}",
        )
        for one in found.prices
    )
    return Table(
        "What more recall costs",
        ("recall", found.rule.name, "accuracy", "its change (points)", "false alarms (%)", "precision"),
        (rows,),
        tuple(vars(one) for one in found.prices),
        ("The most accurate point of the curve, then one for each recall; on new rows they cost a little more.",),
    )


def show(found: Audit) -> None:
    """Print the answer, the code to copy and the tables."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as Grid

    told, console = answer(found), Console()

    def print_list(lines: Sequence[str]) -> None:
        grid = Grid.grid(padding=(0, 1))
        for line in lines:
            grid.add_row("-", escape(line))
        console.print(grid, highlight=False)

    console.print(f"[bold]{escape(told.sentence)}[/bold]", highlight=False)
    print_list(told.actions)
    for language, text in code(found).items():
        console.print(f"\n[bold]{language}[/bold]", highlight=False)
        print(text)  # as it is: to be copied
    console.print()
    print_list(told.evidence)
    for table in (class_table(found, CLASSES_SHOWN), price_table(found)):
        if table is not None:
            console.print()
            console.print(to_terminal(table))


def write_page(found: Audit, path: str | Path, source: str, command: Sequence[str] = ()) -> Path:
    """Write the page, whole or not at all; needs the report extra. `source` is what the table of scores is called."""
    from camri.report.page import put

    return put(render(found, source, command), Path(path))


def render(found: Audit, source: str, command: Sequence[str] = ()) -> str:
    """The page as HTML."""
    from camri.report.page import Section, fill, make_bars

    prices, told = price_table(found), answer(found)
    others = {one.name: one.recall.change for one in found.by_class if not one.important}
    changes = {name: (one.value, one.low, one.high) for name, one in others.items() if one is not None}
    slider = Section("point", "Operating point", "Choose the operating point", slider=slider_of(found))
    folded = [
        Section("evidence", "Evidence", "How sure this is", text="\n".join([*told.evidence, note(found)])),
        Section("classes-all", "Classes", "Recall of every class", tables=(class_table(found, CLASSES_SHOWN),)),
        Section("prices", "Prices", "What more recall costs", tables=() if prices is None else (prices,)),
    ]
    has_advice = told.kind == "gain" and told.actions
    first, *more = told.actions if has_advice else (told.sentence, *told.actions)
    return fill(
        "answer.html.j2",
        [slider],
        folded,
        brand="camri audit",
        title=f"{source}: {', '.join(quoted(name) for name in found.important)}",
        kind=told.kind,
        lead=first,
        cautions=(),
        figures=numbers(found),
        actions=more,
        examples=(),
        bars=make_bars(changes, "Change of recall of the other classes") if found.has_after else None,
        words=[(word, text) for word, text in WORDS.items() if word != "group" or found.num_groups is not None],
        facts=facts(found, source, command),
        source="the table of scores alone",
    )


def numbers(found: Audit) -> list[tuple[str, str, str, str]]:
    """Recall, false alarms and accuracy, before and after."""
    rows = {
        **{f"Recall of {quoted(one.name)}": one.recall for one in found.own},
        "False alarms, of all rows": found.false_alarms,
        "Accuracy": found.accuracy,
    }
    figures = []
    for name, one in rows.items():
        before, after = (percent(share.value) for share in (one.before, one.after))
        change = "" if one.change is None else f"{_span(one.change)} points"
        figures.append((name, before, after, change) if found.has_after else (name, "", before, "as it is"))
    return figures


def facts(found: Audit, source: str, command: Sequence[str]) -> list[tuple[str, str]]:
    """How the audit was made."""
    num, made = found.accuracy.before.num, found.guarantee
    judged = "" if num == found.num_rows else f", {num:,} of them judged"
    pairs = [
        ("scores", f"{source}: {found.scores_are}"),
        ("rows", f"{found.num_rows:,}{judged}"),
        ("groups", "none: rows count as independent" if found.num_groups is None else f"{found.num_groups:,}"),
        ("classes", f"{len(found.classes):,}"),
        ("important classes", ", ".join(found.important)),
        ("tuned on", f"{found.tuned_on}; folds drawn with seed {SPLIT_SEED}"),
        ("models", f"{found.num_models}: rows of one input are a group" if found.num_models > 1 else "1"),
        ("maximal drop of accuracy", f"{found.max_accuracy_drop:g}"),
    ]
    if made is not None:
        pairs.append(("recall to guarantee", f"{made.at_least:g}, {100 * made.confidence:g} % confidence"))
    return [*pairs, ("command", shlex.join(command))] if command else pairs


def slider_of(found: Audit) -> Slider:
    """The operating points that the advised rule reaches on the judged rows."""
    note = "Counted on the rows of the answer."
    if found.is_cross_fitted:
        note = (
            "Counted on the rows that tuned the rule: the advised point looks a little better here than in the answer, "
            "where every row is judged by a rule that was tuned on other rows."
        )
    return make_slider(found.scores, found.rule, found.important, codes(found), as_factor=is_factor(found), note=note)
