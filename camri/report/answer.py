"""The answer of a run: a record for each column of important classes, and the sentences made from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from camri.methods import BASELINE
from camri.report.records import picked
from camri.report.table import (
    BLANK,
    LEAST_SEEDS,
    LEVEL,
    Cell,
    Record,
    Table,
    interval,
    is_significant,
    p_value,
    points,
    tabulate,
)
from camri.report.tables import Columns, relative_alarms
from camri.selection import OPTIMISTIC
from camri.stats import Difference
from camri.study.reader import RunReader, measure
from camri.study.verdict import ColumnVerdict, Judged, correct_for_columns
from camri.text import quoted

NOTE = "answer"  # the store's note with a fit's own answer


@dataclass(frozen=True)
class Answer:
    """What a page says first. `kind` is "gain", "none" or "unknown"; `table` replaces `details` where it is given."""

    kind: str
    sentence: str
    details: tuple[str, ...] = ()
    table: Table | None = None


@dataclass(frozen=True)
class Finding:
    """What a study found for one column, on test data, over seeds that did not choose.

    `gain` is recall over cross-entropy with a shift and `p` its p value after Holm's correction; `over_ce` and
    `accuracy` are against cross-entropy as trained. `hits` are those of cross-entropy with a shift and of the chosen
    setting, of `num`. `alarms`: the gap record of the method with the most false alarms saved, if significantly many.
    """

    important: str
    picked: str
    keeps_baseline: bool
    num_seeds: int
    gain: Difference
    p: float
    over_ce: Difference
    accuracy: Difference
    chance_of_drop: float
    hits: tuple[int, int]
    num: int
    alarms: Record | None

    @property
    def is_gain(self) -> bool:
        """Whether recall is significantly higher than that of cross-entropy with a shift."""
        return not self.keeps_baseline and is_significant(self.p, self.num_seeds) and self.gain.estimate > 0

    def show(self, found: Difference) -> str:
        return interval(found, self.num_seeds)


def findings(verdicts: Sequence[ColumnVerdict], gaps: Sequence[Record] = ()) -> list[Finding]:
    """A record for each column that has a choice on validation data; `gaps` are the records at equal recall."""
    found = []
    for one, p in zip(verdicts, correct_for_columns(verdicts), strict=True):
        best = one.best
        assert best is not None
        arms, gains = best.judgement.arms, best.judgement.gains
        own = [gap for gap in gaps if gap["column"] == one.column.number and _has_fewer_alarms(gap)]
        found.append(
            Finding(
                important=one.column.title,
                picked=picked(one, best, in_words=True),
                keeps_baseline=best.keeps_baseline,
                num_seeds=best.num_seeds,
                gain=best.gain,
                p=p,
                over_ce=gains["baseline"].recall,
                accuracy=best.accuracy,
                chance_of_drop=gains["baseline shifted"].chance_of_fall,
                hits=(int(arms["baseline shifted"].hits.sum()), int(arms["chosen"].hits.sum())),
                num=int(arms["chosen"].num.sum()),
                alarms=min(own, key=lambda gap: gap["alarms"], default=None),
            )
        )
    return found


def _has_fewer_alarms(gap: Record) -> bool:
    is_sure = is_significant(gap.get("p_alarms_holm"), gap["num_trials"])
    return is_sure and gap["alarms"] < 0


def is_sure(best: Judged | None, p: float, tolerance: float = 0.0) -> bool:
    """Whether a fit's gain is shown: significant, and accuracy not surely lower by more than the tolerance."""
    return best is not None and best.gain.low > 0 and not p >= LEVEL and best.accuracy.high >= -tolerance


def answer(reading: RunReader, verdicts: Sequence[ColumnVerdict], gaps: Sequence[Record] = ()) -> Answer:
    """Whether any method has a higher recall than cross-entropy with a shift. A fit's run has the fit's own answer."""
    if (note := reading.run.note(NOTE)) is not None:
        return Answer(note["kind"], note["sentence"], tuple(note["details"]))
    if (missing := _what_is_missing(reading, verdicts)) is not None:
        return Answer("unknown", missing)
    if any(one.best is None for one in verdicts):
        return Answer("unknown", _on_test_data(verdicts))
    return compose(findings(verdicts, gaps))


def _what_is_missing(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> str | None:
    """Why there is no answer; None where there may be one."""
    if not verdicts:
        return "No answer yet: the important classes are found from cross-entropy trials, and none has finished."
    if not any(one.settings for one in verdicts):
        how = "has succeeded; the failed ones are listed below" if reading.rows else "has finished"
        return f"No answer yet: no trial {how}."
    planned = reading.methods()
    if any(one.baseline is None for one in verdicts):
        if BASELINE in planned:
            return "No answer yet: no cross-entropy trial has succeeded, and every method is compared with it."
        return "No answer: this run has no cross-entropy trials to compare with."
    if all(setting.method == BASELINE for one in verdicts for setting in one.settings):
        if planned == [BASELINE]:
            return "No answer: only cross-entropy was trained; there is nothing to compare with it."
        return "No answer yet: only cross-entropy trials have succeeded; there is nothing to compare with them."
    return None


def compose(found: Sequence[Finding]) -> Answer:
    """The sentences of the findings."""
    gains = [one for one in found if one.is_gain]
    has_seeds = any(one.num_seeds >= LEAST_SEEDS for one in found)
    kind = "gain" if gains else "none" if has_seeds else "unknown"
    few = "" if has_seeds else f"Cannot tell yet: significance needs at least {LEAST_SEEDS} seeds. "
    details = tuple(_detail(one) for one in found)
    if len(found) == 1:
        return Answer(kind, few + _sentence(found[0], has_seeds) + _alarms(found), details)
    classes = f"{len(found)} {'sets of classes' if any(' + ' in one.important for one in found) else 'classes'}"
    lead = few or f"No significant gain for any of the {classes} (p > {LEVEL} after Holm). "
    if gains:
        lead = f"Significant gain for {len(gains)} of {classes} (p < {LEVEL} after Holm). "
    return Answer(kind, lead + _gains(gains or found) + _alarms(found), details, _table(found))


def _sentence(one: Finding, has_seeds: bool) -> str:
    """The result of the only column."""
    costs = f"accuracy vs cross-entropy {one.show(one.accuracy)} points"
    if one.keeps_baseline:
        return (
            f"No gain for {quoted(one.important)}: no setting beat cross-entropy with a shift on validation data. The "
            f"shift alone gives {one.show(one.over_ce)} points of recall over cross-entropy as trained; {costs}."
        )
    ends = f"95 % CI {points(one.gain.low)} to {points(one.gain.high)}; " if has_seeds else ""
    hits = f"hits {one.hits[0]}/{one.num} → {one.hits[1]}/{one.num}, {_seeds(one.num_seeds)}"
    gain = f"{points(one.gain.estimate)} points over cross-entropy with a shift ({ends}{hits})"
    if one.is_gain:
        lower = " Accuracy is significantly lower than cross-entropy’s." if one.accuracy.high < 0 else ""
        return f"{one.picked} raises recall of {quoted(one.important)}: {gain}; {costs}.{lower}"
    none = f"No significant gain for {quoted(one.important)} (p = {p_value(one.p)}): " if has_seeds else ""
    return f"{none}{one.picked} changes recall{'' if none else f' of {quoted(one.important)}'} by {gain}; {costs}."


def _gains(found: Sequence[Finding]) -> str:
    """The gain of each column; those that kept cross-entropy are named together."""
    kept = [quoted(one.important) for one in found if one.keeps_baseline]
    gains = [f"{quoted(one.important)} {one.show(one.gain)}" for one in found if not one.keeps_baseline]
    told = f"Points of recall over cross-entropy with a shift: {'; '.join(gains)}." if gains else ""
    return f"{told} No setting beat it on validation data for {', '.join(kept)}.".strip() if kept else told


def _alarms(found: Sequence[Finding]) -> str:
    """The columns that have significantly fewer false alarms at equal recall."""
    fewer = [
        f"{quoted(one.important)} {relative_alarms(one.alarms)} with {one.alarms['setting']}"
        for one in found
        if one.alarms is not None
    ]
    return f" Significantly fewer false alarms than cross-entropy at equal recall: {'; '.join(fewer)}." if fewer else ""


def _seeds(num: int) -> str:
    return "1 seed" if num == 1 else f"{num} seeds"


def _detail(one: Finding) -> str:
    """One column's numbers in a sentence."""
    accuracy = f"Δ accuracy vs CE {one.show(one.accuracy)}"
    if one.keeps_baseline:
        return (
            f"{quoted(one.important)}: no setting beat CE + shift on validation data; Δ recall, CE + shift vs CE "
            f"{one.show(one.over_ce)} percentage points; {accuracy}; {_seeds(one.num_seeds)}."
        )
    tested = ""
    if one.num_seeds >= LEAST_SEEDS:
        p = p_value(one.p) if one.p < 0.001 else f"= {p_value(one.p)}"
        tested = f" (p {p} after Holm; probability of losing over 0.5 points of accuracy: {one.chance_of_drop:.0%})"
    return (
        f"{quoted(one.important)}: {one.picked}; Δ recall vs CE + shift {one.show(one.gain)} percentage points"
        f"{tested}; vs CE {one.show(one.over_ce)}; {accuracy}; {_seeds(one.num_seeds)}."
    )


def _table(found: Sequence[Finding]) -> Table:
    """The findings of several columns, a row each."""
    columns: Columns = {
        "important": lambda one: one.important,
        "Δ recall vs CE + shift": lambda one: Cell(BLANK if one.keeps_baseline else one.show(one.gain), one.is_gain),
        "p (Holm)": lambda one: BLANK if one.keeps_baseline else p_value(one.p, one.num_seeds),
        "Δ recall vs CE": lambda one: one.show(one.over_ce),
        "Δ accuracy vs CE": lambda one: one.show(one.accuracy),
        "probability of a drop": lambda one: f"{one.chance_of_drop:.0%}",
        "false alarms": lambda one: BLANK if one.alarms is None else relative_alarms(one.alarms),
        "seeds": lambda one: str(one.num_seeds),
        "setting": lambda one: "CE + shift: no setting beat it" if one.keeps_baseline else one.picked,
    }
    return tabulate(
        found,
        "Differences on test data in percentage points, with 95 % confidence intervals.",
        columns,
        "CE: cross-entropy. Bold: p < 0.05. A drop: accuracy over 0.5 points below CE + shift. False alarms: change "
        "relative to CE at equal recall, of the method with the fewest, where significant.",
        words=("setting",),
    )


def _on_test_data(verdicts: Sequence[ColumnVerdict]) -> str:
    """The paper's choice, where the study held out no validation data."""
    found = []
    for one in verdicts:
        shown = {name: cell for name, cell in one.paper.items() if cell is not None and name != BASELINE}
        if not shown or one.baseline is None:
            found.append(f"{quoted(one.column.title)}: no setting kept cross-entropy’s accuracy")
            continue
        name, cell = max(shown.items(), key=lambda pair: pair[1].recall)
        before = float(np.mean(measure(one.baseline, one.column.indices).recall))
        gain = f"{one.find(cell.key, name).title} {points(cell.recall - before)} points of recall"
        found.append(f"{quoted(one.column.title)}: {gain}")
    return f"No verdict: the study held out no validation data ({OPTIMISTIC}). {'; '.join(found)}."
