"""The answer of a run: a finding for each column of important classes, and the sentences made from them."""

from collections.abc import Sequence
from dataclasses import dataclass

from camri.methods import BASELINE
from camri.report.tables import BLANK, Cell, Columns, Record, Table, p_value, relative_alarms, span, tabulate
from camri.selection import OPTIMISTIC
from camri.stats import Difference
from camri.study.reader import (
    LEAST_SEEDS,
    LEVEL,
    ColumnVerdict,
    Judged,
    RunReader,
    correct_several,
    is_significant,
    picked,
)
from camri.text import plural, points, quoted

NOTE = "answer"  # the store's note with a fit's own answer


@dataclass(frozen=True)
class Answer:
    """What a page says first. `kind` is "gain", "none" or "unknown"; `details` are sentences of their own."""

    kind: str
    sentence: str
    details: tuple[str, ...] = ()
    table: Table | None = None


@dataclass(frozen=True, eq=False)
class Finding:
    """What a study found for one column: the judgement of the chosen setting, with p corrected for the columns (Holm).

    `alarms`: the gap record of the method with the fewest false alarms at equal recall, if significantly few.
    """

    important: str
    picked: str
    best: Judged
    p: float
    alarms: Record | None

    @property
    def is_gain(self) -> bool:
        """Whether recall is significantly higher than that of cross-entropy with a shift."""
        best = self.best
        return not best.keeps_baseline and is_significant(self.p, best.num_seeds) and best.gain.value > 0

    def show(self, found: Difference) -> str:
        """A difference in percentage points, with its interval from three seeds on."""
        ends = (found.low, found.high) if self.best.num_seeds >= LEAST_SEEDS else (None, None)
        return span(found.value, *ends)


def find(verdicts: Sequence[ColumnVerdict], gaps: Sequence[Record] = ()) -> list[Finding]:
    """A finding for each column, where all have a choice; `gaps` are the records at equal recall."""
    found = []
    corrected = correct_several([verdict.best.gain.p for verdict in verdicts if verdict.best is not None])
    for verdict, p in zip(verdicts, corrected, strict=True):
        assert verdict.best is not None
        own = [gap for gap in gaps if gap["column"] == verdict.column.number and gap["alarms"] < 0]
        fewer = [gap for gap in own if is_significant(gap["p_alarms_holm"], gap["num_trials"])]
        alarms = min(fewer, key=lambda gap: gap["alarms"], default=None)
        named = picked(verdict, verdict.best, in_words=True)
        found.append(Finding(verdict.column.title, named, verdict.best, p, alarms))
    return found


def answer(reading: RunReader, verdicts: Sequence[ColumnVerdict], gaps: Sequence[Record] = ()) -> Answer:
    """Whether any method has a higher recall than cross-entropy with a shift. A fit's run has the fit's own answer."""
    if (note := reading.run.note(NOTE)) is not None:
        return Answer(note["kind"], note["sentence"], tuple(note["details"]))
    if (missing := _what_is_missing(reading, verdicts)) is not None:
        return Answer("unknown", missing)
    if any(verdict.best is None for verdict in verdicts):
        return Answer("unknown", f"No verdict: the study held out no validation data. Its table is {OPTIMISTIC}.")
    return compose(find(verdicts, gaps))


def _what_is_missing(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> str | None:
    """Why there is no answer; None where there may be one."""
    planned = reading.methods()
    if not verdicts:
        return "No answer yet: the important classes are found from cross-entropy trials, and none has finished."
    if not any(verdict.settings for verdict in verdicts):
        return f"No answer yet: no trial has {'succeeded' if reading.rows else 'finished'}."
    if BASELINE not in planned:
        return "No answer: this run has no cross-entropy trials to compare with."
    if any(verdict.baseline is None for verdict in verdicts):
        return "No answer yet: no cross-entropy trial has succeeded, and every method is compared with it."
    if all(setting.method == BASELINE for verdict in verdicts for setting in verdict.settings):
        yet = "" if planned == [BASELINE] else " yet"
        return f"No answer{yet}: only cross-entropy was trained; there is nothing to compare with it."
    return None


def compose(found: Sequence[Finding]) -> Answer:
    """The sentences and the table of the findings."""
    gains = [finding for finding in found if finding.is_gain]
    has_seeds = any(finding.best.num_seeds >= LEAST_SEEDS for finding in found)
    kind = "gain" if gains else "none" if has_seeds else "unknown"
    few = "" if has_seeds else f"Cannot tell yet: significance needs at least {LEAST_SEEDS} seeds. "
    if len(found) == 1:
        return Answer(kind, few + _sentence(found[0], has_seeds) + _alarms(found), table=_table(found))
    is_joint = any(len(finding.best.judgement.important) > 1 for finding in found)
    classes = f"{len(found)} {'sets of classes' if is_joint else 'classes'}"
    lead = few or f"No significant gain for any of the {classes} (p > {LEVEL} after Holm). "
    if gains:
        lead = f"Significant gain for {len(gains)} of {classes} (p < {LEVEL} after Holm). "
    return Answer(kind, lead + _gains(gains or found) + _alarms(found), table=_table(found))


def _sentence(finding: Finding, has_seeds: bool) -> str:
    """The result of the only column."""
    best, important, gain = finding.best, quoted(finding.important), finding.best.gain
    costs = f"accuracy vs cross-entropy {finding.show(best.accuracy)} points"
    if best.keeps_baseline:
        return (
            f"No gain for {important}: no setting beat cross-entropy with a shift on validation data. Δ recall of the "
            f"shift alone vs cross-entropy: {finding.show(best.judgement.gains['baseline'].recall)} points; {costs}."
        )
    before, after = (best.judgement.arms[name] for name in ("baseline shifted", "chosen"))
    hits = " → ".join(f"{arm.hits.sum()}/{arm.num.sum()}" for arm in (before, after))
    ends = f"95 % CI {points(gain.low)} to {points(gain.high)}; " if has_seeds else ""
    trained = f"{ends}hits {hits}, {plural(best.num_seeds, 'seed')}"
    by = f"{points(gain.value)} points over cross-entropy with a shift ({trained})"
    if finding.is_gain:
        lower = " Accuracy is significantly lower than cross-entropy’s." if best.accuracy.high < 0 else ""
        return f"{finding.picked} raises recall of {important}: {by}; {costs}.{lower}"
    none = f"No significant gain (p = {p_value(finding.p)}): " if has_seeds else ""
    return f"{none}{finding.picked} changes recall of {important} by {by}; {costs}."


def _gains(found: Sequence[Finding]) -> str:
    """The gain of each column; those that kept cross-entropy are named together."""
    kept = [quoted(one.important) for one in found if one.best.keeps_baseline]
    gains = [f"{quoted(one.important)} {one.show(one.best.gain)}" for one in found if not one.best.keeps_baseline]
    parts = [f"Points of recall over cross-entropy with a shift: {'; '.join(gains)}."] if gains else []
    parts += [f"No setting beat cross-entropy with a shift on validation data for {', '.join(kept)}."] if kept else []
    return " ".join(parts)


def _alarms(found: Sequence[Finding]) -> str:
    """The columns that have significantly fewer false alarms at equal recall."""
    columns = [(quoted(finding.important), finding.alarms) for finding in found if finding.alarms is not None]
    fewer = "; ".join(f"{name} {relative_alarms(gap)} with {gap['setting']}" for name, gap in columns)
    return f" Significantly fewer false alarms than cross-entropy at equal recall: {fewer}." if fewer else ""


def _table(found: Sequence[Finding]) -> Table:
    """The findings, a row each."""

    def drop(finding: Finding) -> str:
        return f"{finding.best.judgement.gains['baseline shifted'].chance_of_fall:.0%}"

    columns: Columns = {
        "important": lambda finding: finding.important,
        "Δ recall vs CE + shift": lambda finding: Cell(
            BLANK if finding.best.keeps_baseline else finding.show(finding.best.gain), finding.is_gain
        ),
        "p (Holm)": lambda finding: (
            BLANK if finding.best.keeps_baseline else p_value(finding.p, finding.best.num_seeds)
        ),
        "Δ recall vs CE": lambda finding: finding.show(finding.best.judgement.gains["baseline"].recall),
        "Δ accuracy vs CE": lambda finding: finding.show(finding.best.accuracy),
        "probability of a drop": lambda finding: drop(finding) if finding.best.num_seeds >= LEAST_SEEDS else BLANK,
        "false alarms": lambda finding: BLANK if finding.alarms is None else relative_alarms(finding.alarms),
        "seeds": lambda finding: str(finding.best.num_seeds),
        "setting": lambda finding: "CE + shift: no setting beat it" if finding.best.keeps_baseline else finding.picked,
    }
    return tabulate(
        found,
        "Differences on test data in percentage points, with 95 % confidence intervals.",
        columns,
        "CE: cross-entropy. p: Holm’s correction over these rows; the table of every method corrects over all of its "
        "rows, so its p is larger. Bold: p < 0.05. A drop: accuracy over 0.5 points below CE + shift. False alarms: "
        "change relative to CE at equal recall, of the method with the fewest, where significant.",
    )
