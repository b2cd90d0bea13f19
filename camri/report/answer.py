"""The answer in one sentence with its uncertainty, as plain text: what the page and the command line say first."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from camri.methods import BASELINE
from camri.report.table import BLANK, Cell, Table, cells, interval, p_value, points, span
from camri.report.tables import picked
from camri.selection import OPTIMISTIC
from camri.study.reader import RunReader, measure
from camri.study.verdict import ColumnVerdict, Judged, correct_for_columns
from camri.text import quoted

LEVEL = 0.05


@dataclass(frozen=True)
class Answer:
    """`kind` is "gain", "none" or "unknown"; `details` has one sentence a column, `table` the same of several."""

    kind: str
    sentence: str
    details: tuple[str, ...] = ()
    table: Table | None = None


NOTE = "answer"  # the store's note with an answer of its own: what a fit told its user


def answer(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> Answer:
    """Whether any method raised recall above what a shift of cross-entropy gives, at its accuracy.

    A run that was a fit answers what the fit did: from plain cross-entropy to what was handed over.
    """
    if (told := reading.run.note(NOTE)) is not None:
        return Answer(told["kind"], told["sentence"], tuple(told["details"]))
    if not verdicts:
        return Answer(
            "unknown",
            "No answer yet: the important classes are found from cross-entropy trials, which are still to end.",
        )
    if (missing := _what_is_missing(reading, verdicts)) is not None:
        return Answer("unknown", missing)
    if any(one.best is None for one in verdicts):
        return _on_the_test_set(verdicts)
    corrected = correct_for_columns(verdicts)
    details = tuple(_detail(one, p) for one, p in zip(verdicts, corrected, strict=True))
    sure = [one for one, p in zip(verdicts, corrected, strict=True) if is_sure(one.best, p)]
    if len(verdicts) == 1:
        best = verdicts[0].best
        assert best is not None
        return Answer("gain" if sure else "none", _one_column(verdicts[0], best, bool(sure), corrected[0]), details)
    table = _table(verdicts, corrected)
    every = _figures(sure or verdicts)
    classes = "important classes" if all(len(one.column.indices) == 1 for one in verdicts) else "sets of classes"
    if sure:
        sentence = (
            f"For {len(sure)} of {len(verdicts)} {classes} the chosen setting has a higher recall than "
            f"cross-entropy shifted to the same accuracy. {every}"
        )
        return Answer("gain", sentence, details, table)
    sentence = (
        f"No improvement is shown: for none of {len(verdicts)} {classes} is the chosen setting sure to have a "
        f"higher recall than cross-entropy shifted to the same accuracy. {every}"
    )
    return Answer("none", sentence, details, table)


def _what_is_missing(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> str | None:
    """Why there is no answer; None where there may be one."""
    if not any(one.settings for one in verdicts):
        how = "has ended well; the failed ones are listed below" if reading.rows else "has ended"
        return f"No answer yet: no trial {how}."
    planned = reading.methods()
    if any(one.baseline is None for one in verdicts):
        if BASELINE in planned:
            return "No answer yet: no cross-entropy trial has ended well, and others are compared with it."
        return "No answer: this run has no cross-entropy trials to compare with."
    if all(setting.method == BASELINE for one in verdicts for setting in one.settings):
        if planned == [BASELINE]:
            return "No answer: only cross-entropy was trained, and there is nothing to compare with it."
        return "No answer yet: only cross-entropy trials have ended well, and there is nothing to compare with them."
    return None


def is_sure(best: Judged | None, p: float, tolerance: float = 0.0) -> bool:
    """Above 0 by the interval, and by the corrected test where there are seeds enough for one.

    Accuracy must not surely have fallen by more than the tolerance.
    """
    return best is not None and best.gain.low > 0 and not p >= LEVEL and best.accuracy.high >= -tolerance


def _figures(verdicts: Sequence[ColumnVerdict]) -> str:
    """The gain of each column; those that kept the baseline are named once, together."""
    kept = [quoted(one.column.title) for one in verdicts if one.best is not None and one.best.keeps_baseline]
    gains = [
        f"{quoted(one.column.title)} {interval(one.best.gain)} points"
        for one in verdicts
        if one.best is not None and not one.best.keeps_baseline
    ]
    if not gains:
        return "Nothing beat it on validation data."
    if kept:
        gains.append(f"nothing beat it on validation data for {', '.join(kept)}")
    return f"Recall: {'; '.join(gains)}."


def _one_column(one: ColumnVerdict, best: Judged, is_sure: bool, p: float) -> str:
    arms, title, gain = best.judgement.arms, one.column.title, best.gain
    before, after = (f"{arms[arm].hits.sum()}/{arms[arm].num.sum()}" for arm in ("baseline shifted", "chosen"))
    models = f", {best.num_seeds} models each" if best.num_seeds > 1 else ""
    hits = f"hits {before} → {after}{models}"
    by = f"{points(gain.estimate)} points of recall (95 %: {points(gain.low)} to {points(gain.high)}; {hits})"
    costs = f"accuracy against cross-entropy {interval(best.accuracy)} points"
    if best.keeps_baseline:
        alone = interval(best.judgement.gains["baseline"].recall)
        return (
            f"No improvement: for {quoted(title)} no setting beat shifted cross-entropy on validation data; a shift "
            f"alone gives {alone} points over cross-entropy as trained; {costs}."
        )
    if is_sure:
        setting = picked(one, best, in_words=True)
        return (
            f"{setting} finds more of {quoted(title)} than cross-entropy shifted to the same accuracy: {by}, {costs}."
        )
    doubt = ""
    if best.accuracy.high < 0:
        doubt = " Its accuracy fell."
    elif gain.low > 0:
        doubt = f" The interval lies above 0, but by the test it may be luck (p = {p_value(p)})."
    return f"No improvement is shown for {quoted(title)}: over the shifted cross-entropy {by}, {costs}.{doubt}"


def _detail(one: ColumnVerdict, p: float) -> str:
    best = one.best
    assert best is not None
    gain = best.judgement.gains["baseline shifted"]
    seeds = (
        f"{best.num_seeds} trials" if best.judgement.fresh_seeds else "one seed: this speaks about these models only"
    )
    tested = "" if np.isnan(p) else f"p {p_value(p) if p < 0.001 else f'= {p_value(p)}'} after Holm’s correction, "
    plain = interval(best.judgement.gains["baseline"].recall)
    if best.keeps_baseline:
        return (
            f"{quoted(one.column.title)}: no setting beat shifted cross-entropy on validation data, {seeds}; the shift "
            f"alone gives {plain} points of recall over cross-entropy as trained, accuracy {interval(best.accuracy)}."
        )
    return (
        f"{quoted(one.column.title)}: picked {picked(one, best, in_words=True)}; recall over shifted cross-entropy "
        f"{interval(best.gain)} points, {tested}{seeds}; over cross-entropy as trained {plain}; accuracy "
        f"{interval(best.accuracy)}; chance that accuracy is more than half a point below shifted cross-entropy’s: "
        f"{gain.chance_of_fall:.0%}."
    )


def _table(verdicts: Sequence[ColumnVerdict], corrected: Sequence[float]) -> Table:
    """The answer of several columns, a row each."""
    rows = []
    for one, p in zip(verdicts, corrected, strict=True):
        best = one.best
        assert best is not None
        gains, kept = best.judgement.gains, best.keeps_baseline
        numbers = (
            BLANK if kept else interval(best.gain),
            BLANK if kept else p_value(p),
            interval(gains["baseline"].recall),
            interval(best.accuracy),
            f"{gains['baseline shifted'].chance_of_fall:.0%}",
            str(best.num_seeds),
            "cross-entropy, shifted: nothing beat it" if kept else picked(one, best),
        )
        rows.append((Cell(one.column.title), Cell(numbers[0], is_sure(best, p)), *cells(*numbers[1:])))
    return Table(
        "Differences in points with 95 % intervals.",
        (
            "important", "recall over shifted cross-entropy", "p (Holm)", "recall over cross-entropy",
            "accuracy against cross-entropy", "chance of a fall", "trials", "picked (seeds)",
        ),
        (tuple(rows),),
        (),
        notes=("A fall: accuracy more than half a point below shifted cross-entropy’s.", _bold(verdicts, corrected)),
        words=("picked (seeds)",),
    )  # fmt: skip


def _bold(verdicts: Sequence[ColumnVerdict], corrected: Sequence[float]) -> str:
    """What bold stands for, and which gains lack it for their accuracy alone, whose end may be shown as 0.0."""
    fallen = [
        f" {quoted(one.column.title)} is not: its accuracy fell, {gap} points."
        for one, p in zip(verdicts, corrected, strict=True)
        if one.best is not None and one.best.gain.low > 0 and not p >= LEVEL and not is_sure(one.best, p)
        for gap in [span(one.best.accuracy.estimate, one.best.accuracy.low, one.best.accuracy.high, decimals=2)]
    ]
    return (
        "Bold: the interval lies above 0, p is below 0.05, and accuracy’s interval does not lie below 0."
        f"{''.join(fallen)}"
    )


def _on_the_test_set(verdicts: Sequence[ColumnVerdict]) -> Answer:
    """What can be said without validation data: the paper's way, labelled."""
    found = []
    for one in verdicts:
        shown = {name: cell for name, cell in one.paper.items() if cell is not None and name != "ce"}
        if not shown or one.baseline is None:
            found.append(f"{quoted(one.column.title)}: no setting kept cross-entropy’s accuracy")
            continue
        name, cell = max(shown.items(), key=lambda pair: pair[1].recall)
        before = float(np.mean(measure(one.baseline, one.column.indices).recall))
        gain = f"{one.find(cell.key, name).title} {points(cell.recall - before)} points of recall"
        found.append(f"{quoted(one.column.title)}: {gain}")
    sentence = (
        "No honest answer: the study held out no validation data, so what follows is "
        f"{OPTIMISTIC}, and part of it is luck. {'; '.join(found)}."
    )
    return Answer("unknown", sentence)
