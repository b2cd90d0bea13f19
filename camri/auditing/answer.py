"""An audit in words and tables: what the terminal and the page show."""

import math

from camri.auditing.result import FEWEST_GROUPS, Audit, Change, ClassResult, Promise, Rate
from camri.auditing.verdict import FEWEST_ROWS
from camri.decision import PRIOR_ROWS
from camri.report.answer import Answer
from camri.report.table import BLANK, Cell, Table, cells, percent, points, span
from camri.stats import FALL
from camri.text import quoted

CLASSES_SHOWN = 60


def answer(found: Audit) -> Answer:
    """The audit in one sentence, with its details. Where a recall is asked for, whether it can be promised is first."""
    if found.promise is None:
        return Answer(found.kind, _sentence(found), (*_warnings(found), *_details(found)))
    sentence, *use = _promised(found, found.promise)
    kind = "none" if found.promise.guarantee.shift is None else "gain"
    return Answer(kind, sentence, (*use, *_warnings(found), _sentence(found), *_details(found, "that shift")))


def note(found: Audit) -> str:
    """What the figures hold for."""
    chance = f" The chance of a fall also counts what calibrated scores lead to expect, for {PRIOR_ROWS} rows."
    chance = chance if found.kind == "gain" else ""
    if found.num_groups is None:
        return (
            "The shift is tuned on rows other than those it is judged on. Rows count as independent: frames of one "
            "film, or copies, are fewer than they look (then say which belong together, with --group). Intervals hold "
            f"for rows like these.{chance}"
        )
    return (
        "The shift is tuned on groups other than those it is judged on. Rows of one group count for as many as they "
        "are worth, by how alike they turned out; groups count as independent. Intervals hold for groups like these."
        + chance
    )


def _warnings(found: Audit) -> list[str]:
    return [
        f"Only {_groups(one.before)} with {quoted(one.name)} to judge: with fewer than {FEWEST_GROUPS} no interval is "
        "to be trusted, wide as it may be."
        for one in found.few_groups
    ]


def _sentence(found: Audit) -> str:
    names = " and ".join(quoted(name) for name in found.important)
    gains = f"recall {change(found.recall)} points, accuracy {change(found.accuracy)} points"
    if found.kind == "unknown":
        now = "; ".join(f"{quoted(one.name)} {rate(one.before)}" for one in found.by_class if one.important)
        return (
            f"Too few rows to say anything about a shift: an important class has fewer than {FEWEST_ROWS} to tune on "
            f"or to judge. Recall as it is: {now}."
        )
    shift = f"{found.shift:+.3g}"
    if found.kind == "gain":
        falls, far = found.accuracy.chance_of_fall(), found.accuracy.chance_of_fall(FALL)
        return (
            f"A shift of {shift} finds more of {names}: {gains}; the chance that accuracy falls is {falls:.0%}, by "
            f"more than half a point {far:.0%}."
        )
    if found.shift == 0 or (found.recall.gained == found.recall.lost == 0):
        return (
            f"No shift is shown to be free: on rows that it was not tuned on, none raised the recall of {names} and "
            f"kept the accuracy ({gains})."
        )
    if found.recall.low > 0:
        return f"No shift is free: the best, {shift}, finds more of {names} but costs accuracy: {gains}."
    return f"No free gain is shown for {names}: with the best shift, {shift}, {gains}."


def _promised(found: Audit, promise: Promise) -> list[str]:
    """Whether the recall can be promised, and how to use the shift that it takes."""
    made, units = promise.guarantee, "rows" if found.num_groups is None else "groups"
    names = " and ".join(quoted(name) for name in found.important)
    asked = (
        f"a recall of {made.at_least:g} or more of {names} on new {units} like these, {100 * made.confidence:g} % sure"
    )
    if made.shift is not None:
        recall = ", ".join(f"{one.hits}/{one.num}" for one in promise.recall)
        reached = f"recall {recall}, accuracy {rate(promise.accuracy)}"
        precision = "" if promise.precision is None else f", precision {promise.precision:.3f}"
        given = f"{precision}, false alarms {alarms(promise.false_alarms)}"
        if not made.shift:
            return [f"Promised: {asked}, as the model is, without a shift: {reached}{given}."]
        cost = points(promise.accuracy.value - found.accuracy_before.value)
        return [
            f"Promised: {asked}, with a shift of {made.shift:+.3g}: {reached}, {cost} points{given}.",
            how_to_use(found, made.shift),
        ]
    few = [
        f"{quoted(name)} has {num:,}"
        for name, num in zip(found.important, made.num_units, strict=True)
        if num < made.fewest
    ]
    if few:
        return [
            f"Cannot be promised: {asked}. That takes {made.fewest:,} {units} of a class at least; {', '.join(few)}."
        ]
    most = ", ".join(f"{hits}/{num}" for hits, num in zip(made.hits, made.num, strict=True))
    return [
        f"Cannot be promised: {asked}. Even the largest shift finds only {most}: the rest are taken for another "
        "important class."
    ]


def _details(found: Audit, shift: str = "the shift") -> list[str]:
    own = [one for one in found.by_class if one.important]
    if found.kind == "unknown":
        return [
            *(f"{quoted(one.name)}{_missed(one, ': missed')}." for one in own if one.mistaken_for),
            f"Accuracy as it is: {rate(found.accuracy_before)}.",
            f"False alarms as it is: {alarms(found.alarms.before)}; precision {_precisions(found, after=False)}.",
        ]
    lines = [
        f"{quoted(one.name)}: recall {rate(one.before)} as it is, {rate(one.after)} with {shift}"
        f"{_missed(one, '; missed')}."
        for one in own
    ]
    lines.append(f"Accuracy: {rate(found.accuracy_before)} as it is, {rate(found.accuracy_after)} with {shift}.")
    more = found.alarms.change
    lines.append(
        f"False alarms: {alarms(found.alarms.before)} as it is, {alarms(found.alarms.after)} with {shift}, "
        f"{span(more.estimate, more.low, more.high, decimals=2)}; precision {_precisions(found)}."
    )
    if found.shift and found.recall.low > 0:
        what = "it" if found.promise is None else f"the shift of {found.shift:+.3g} instead"
        lines.append(f"{how_to_use(found, found.shift, what)} A smaller shift is safer.")
    lines.append(f"Tuned on {found.tuned_on}.")
    return lines


def how_to_use(found: Audit, shift: float, what: str = "it") -> str:
    """What to do with a shift in one's own code. Figures are rounded up: a smaller shift may break a promise."""
    names = " and ".join(quoted(name) for name in found.important)
    if found.scores_are == "probabilities":
        odds = _round_up(math.exp(shift))
        return f"To use {what}: multiply the probability of {names} by {odds}, then take the largest."
    return f"To use {what}: add {_round_up(shift)} to the score of {names}, then take the largest."


def _round_up(value: float) -> str:
    """Four digits, never less than the value, which is above 0.

    >>> _round_up(2.29341), _round_up(0.0012), _round_up(1234567.0)
    ('2.294', '0.0012', '1.235e+06')
    """
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    steps = round(value / unit)
    return f"{(steps if steps * unit >= value else steps + 1) * unit:.4g}"


def _missed(one: ClassResult, how: str) -> str:
    if not one.mistaken_for:
        return ""
    told = ", ".join(f"{quoted(name)} {count}" for name, count in one.mistaken_for)
    return f"{how}, it is called {told}"


def rate(found: Rate) -> str:
    """A share with its interval and counts.

    >>> rate(Rate(8, 10)), rate(Rate(8, 10, num_groups=4, effect=2.0))
    ('0.800 [0.490, 0.943] (8/10)', '0.800 [0.376, 0.964] (8/10 in 4 groups)')
    """
    if not found.num:
        return f"{BLANK} (0/0)"
    low, high = found.interval
    groups = "" if found.num_groups is None else f" in {_groups(found)}"
    return f"{found.value:.3f} [{low:.3f}, {high:.3f}] ({found.hits}/{found.num}{groups})"


def alarms(found: Rate) -> str:
    """False alarms in a hundred of all rows, with their interval and counts.

    >>> alarms(Rate(8, 1000)), alarms(Rate(8, 1000, num_groups=100, effect=2.0))
    ('0.80 [0.41, 1.57] in a hundred (8/1000)', '0.80 [0.31, 2.04] in a hundred (8/1000 in 100 groups)')
    """
    low, high = found.interval
    groups = "" if found.num_groups is None else f" in {_groups(found)}"
    share, ends = percent(found.value), f"[{percent(low)}, {percent(high)}]"
    return f"{share} {ends} in a hundred ({found.hits}/{found.num}{groups})"


def _precisions(found: Audit, after: bool = True) -> str:
    """Of each important class as it is, and with the shift."""

    def told(one: Rate) -> str:
        return f"{one.value:.3f} ({one.hits}/{one.num})" if one.num else "none (never predicted)"

    return ", ".join(
        f"of {quoted(name)} " + " → ".join(map(told, pair if after else pair[:1]))
        for name, pair in zip(found.important, found.alarms.precision, strict=True)
    )


def _groups(found: Rate) -> str:
    return "1 group" if found.num_groups == 1 else f"{found.num_groups:,} groups"


def change(found: Change) -> str:
    """A change in points with its 95 % interval."""
    return span(found.estimate, found.low, found.high)


def class_table(found: Audit, most: int | None = None) -> Table:
    """Every class's recall as it is and with the shift: the important ones first, then those that lose most."""
    order = sorted(found.by_class, key=lambda one: (not one.important, one.change.estimate if one.change else 1.0))
    header = ["class", "rows", "recall", "95 %"]
    notes = ["95 %: Wilson’s interval."]
    if found.kind != "unknown":  # nothing is said about a shift of too few rows
        header += ["shifted", "change (points)"]
        notes = ["95 %: Wilson’s interval. The change is on the same rows, so its interval is narrower."]
    if found.num_groups is not None:
        header.insert(2, "groups")
        notes.append("Rows in groups count for as many as they are worth.")
    rows = [_row(one)[: len(header)] for one in order[:most]]
    if found.promise is not None and found.kind != "unknown":
        notes.append(f"Shifted by {found.shift:+.3g}, not by what the promise takes.")
    if len(rows) < len(order):
        notes.append(f"The {most} of {len(order)} classes that lose most are shown.")
    return Table(
        caption="Recall of every class",
        header=tuple(header),
        groups=(tuple(rows),),
        records=tuple(found.to_json()["classes"]),
        notes=tuple(notes),
    )


def _row(one: ClassResult) -> tuple[Cell, ...]:
    groups = () if one.before.num_groups is None else (f"{one.before.num_groups:,}",)
    if one.change is None:
        return cells(one.name, "0", *groups, BLANK, BLANK, BLANK, BLANK)
    low, high = one.before.interval
    texts = (
        one.name,
        f"{one.before.num:,}",
        *groups,
        f"{one.before.value:.3f}",
        f"{low:.3f}–{high:.3f}",
        f"{one.after.value:.3f}",
        change(one.change),
    )
    return tuple(Cell(text, bold=one.important) for text in texts)


def price_table(found: Audit) -> Table | None:
    """What more recall costs; None where there is no more, or too few rows to say."""
    if not found.prices or found.kind == "unknown":
        return None
    now = found.accuracy_before.value
    return Table(
        caption="What more recall costs",
        header=("recall", "shift", "accuracy", "its change (points)", "false alarms", "precision"),
        groups=(
            tuple(
                cells(
                    f"{one.recall:.3f}",
                    f"{one.shift:+.3g}",
                    f"{one.accuracy:.3f}",
                    points(one.accuracy - now),
                    percent(one.false_alarms),
                    BLANK if one.precision is None else f"{one.precision:.3f}",
                )
                for one in found.prices
            ),
        ),
        records=tuple(vars(one) for one in found.prices),
        notes=(
            "Points of the curve, that of the highest accuracy first, picked on the rows they are shown for: on new "
            "rows they cost a little more. False alarms: in a hundred of all rows.",
        ),
    )
