"""The answer of a run: a record for each column of important classes, and the sentences made from them."""

from collections.abc import Sequence
from dataclasses import dataclass

from camri.decision.answer import Answer as Made
from camri.decision.answer import answer_from_json
from camri.methods import BASELINE
from camri.report import fit_words
from camri.report.records import Record, Records, ends_of
from camri.report.tables import BLANK, Cell, Columns, Table, interval_of, p_value, relative_alarms, tabulate
from camri.selection import OPTIMISTIC
from camri.study.reader import LEAST_SEEDS, LEVEL, ColumnVerdict, RunReader, correct_several, is_significant, picked
from camri.text import plural, points, quoted

NOTE = "answer"  # the store's note with a fit's own answer


@dataclass(frozen=True)
class Answer:
    """What a page says first. `kind` is "gain", "none" or "unknown"; `details` are sentences of their own."""

    kind: str
    sentence: str
    details: tuple[str, ...] = ()
    table: Table | None = None


def find(verdicts: Sequence[ColumnVerdict], gaps: Sequence[Record] = ()) -> Records:
    """A record for each column, where all have a choice: the chosen setting, judged; p corrected over columns (Holm).

    gaps: the records at equal recall. `gain` and `p` are None where cross-entropy with a shift was chosen. `fewer`: the
    gap record of the method with the fewest false alarms at equal recall, if significantly few.
    """
    found = []
    corrected = correct_several([verdict.best.gain.p for verdict in verdicts if verdict.best is not None])
    for verdict, p in zip(verdicts, corrected, strict=True):
        best = verdict.best
        assert best is not None
        own = [gap for gap in gaps if gap["column"] == verdict.column.number and gap["alarms"] < 0]
        fewer = [gap for gap in own if is_significant(gap["p_alarms_holm"], gap["num_trials"])]
        record = {
            "important": verdict.column.title,
            "num_important": len(best.judgement.important),
            "setting": picked(verdict, best, in_words=True),
            "num_trials": best.num_seeds,
            "hits": [best.judgement.arms[name].hits.sum() for name in ("baseline shifted", "chosen")],
            "num": best.judgement.arms["chosen"].num.sum(),
            "p": None if best.keeps_baseline else p,
            **ends_of("gain", None if best.keeps_baseline else best.gain),
            **ends_of("gain_over_ce", best.judgement.gains["baseline"].recall),
            **ends_of("accuracy", best.accuracy),
            "drop": best.judgement.gains["baseline shifted"].chance_of_fall,
            "fewer": min(fewer, key=lambda gap: gap["alarms"], default=None),
        }
        found.append({**record, "is_gain": is_significant(record["p"], best.num_seeds) and best.gain.value > 0})
    return found


def answer(reading: RunReader, verdicts: Sequence[ColumnVerdict], gaps: Sequence[Record] = ()) -> Answer:
    """Whether any method has a higher recall than cross-entropy with a shift. A fit's run has the fit's own answer."""
    if (note := reading.run.note(NOTE)) is not None:
        return of_fit(answer_from_json(note, "the answer of the fit"))
    if (missing := _what_is_missing(reading, verdicts)) is not None:
        return Answer("unknown", missing)
    if any(verdict.best is None for verdict in verdicts):
        return Answer("unknown", f"No verdict: the study held out no validation data. Its table is {OPTIMISTIC}.")
    return compose(find(verdicts, gaps))


def of_fit(made: Made) -> Answer:
    """What a page says first of a fit."""
    sentence, *details = fit_words.compose(made)
    return Answer("gain" if made.verdict.kind in fit_words.GOOD else "none", sentence, tuple(details))


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


def compose(found: Sequence[Record]) -> Answer:
    """The sentences and the table of the records of `find`."""
    gains = [record for record in found if record["is_gain"]]
    has_seeds = any(record["num_trials"] >= LEAST_SEEDS for record in found)
    kind = "gain" if gains else "none" if has_seeds else "unknown"
    few = "" if has_seeds else f"Cannot tell yet: significance needs at least {LEAST_SEEDS} seeds. "
    if len(found) == 1:
        return Answer(kind, few + _sentence(found[0], has_seeds) + _alarms(found), table=_table(found))
    is_joint = any(record["num_important"] > 1 for record in found)
    classes = f"{len(found)} {'sets of classes' if is_joint else 'classes'}"
    lead = few or f"No significant gain for any of the {classes} (p > {LEVEL} after Holm). "
    if gains:
        lead = f"Significant gain for {len(gains)} of {classes} (p < {LEVEL} after Holm). "
    return Answer(kind, lead + _gains(gains or found) + _alarms(found), table=_table(found))


def _sentence(record: Record, has_seeds: bool) -> str:
    """The result of the only column."""
    important, accuracy = (
        quoted(record["important"]),
        f"accuracy vs cross-entropy {interval_of(record, 'accuracy')} points",
    )
    if record["gain"] is None:
        return (
            f"No gain for {important}: no setting beat cross-entropy with a shift on validation data. Δ recall of the "
            f"shift alone vs cross-entropy: {interval_of(record, 'gain_over_ce')} points; {accuracy}."
        )
    hits = " → ".join(f"{hits}/{record['num']}" for hits in record["hits"])
    ends = f"95 % CI {points(record['gain_low'])} to {points(record['gain_high'])}; " if has_seeds else ""
    trained = f"{ends}hits {hits}, {plural(record['num_trials'], 'seed')}"
    by = f"{points(record['gain'])} points over cross-entropy with a shift ({trained})"
    if record["is_gain"]:
        lower = " Accuracy is significantly lower than cross-entropy’s." if record["accuracy_high"] < 0 else ""
        return f"{record['setting']} raises recall of {important}: {by}; {accuracy}.{lower}"
    none = f"No significant gain (p = {p_value(record['p'])}): " if has_seeds else ""
    return f"{none}{record['setting']} changes recall of {important} by {by}; {accuracy}."


def _gains(found: Sequence[Record]) -> str:
    """The gain of each column; those that kept cross-entropy are named together."""
    kept = [quoted(record["important"]) for record in found if record["gain"] is None]
    gains = [
        f"{quoted(record['important'])} {interval_of(record, 'gain')}" for record in found if record["gain"] is not None
    ]
    parts = [f"Points of recall over cross-entropy with a shift: {'; '.join(gains)}."] if gains else []
    parts += [f"No setting beat cross-entropy with a shift on validation data for {', '.join(kept)}."] if kept else []
    return " ".join(parts)


def _alarms(found: Sequence[Record]) -> str:
    """The columns that have significantly fewer false alarms at equal recall."""
    columns = [(quoted(record["important"]), record["fewer"]) for record in found if record["fewer"] is not None]
    fewer = "; ".join(f"{name} {relative_alarms(gap)} with {gap['setting']}" for name, gap in columns)
    return f" Significantly fewer false alarms than cross-entropy at equal recall: {fewer}." if fewer else ""


def _table(found: Sequence[Record]) -> Table:
    """A row for each column."""
    columns: Columns = {
        "important": lambda row: row["important"],
        "Δ recall vs CE + shift": lambda row: Cell(interval_of(row, "gain"), row["is_gain"]),
        "p (Holm)": lambda row: p_value(row["p"], row["num_trials"]),
        "Δ recall vs CE": lambda row: interval_of(row, "gain_over_ce"),
        "Δ accuracy vs CE": lambda row: interval_of(row, "accuracy"),
        "probability of a drop": lambda row: f"{row['drop']:.0%}" if row["num_trials"] >= LEAST_SEEDS else BLANK,
        "false alarms": lambda row: BLANK if row["fewer"] is None else relative_alarms(row["fewer"]),
        "seeds": lambda row: str(row["num_trials"]),
        "setting": lambda row: "CE + shift: no setting beat it" if row["gain"] is None else row["setting"],
    }
    return tabulate(
        found,
        "Differences on test data in percentage points, with 95 % confidence intervals.",
        columns,
        "CE: cross-entropy. p: Holm’s correction over these rows; the table of every method corrects over all of its "
        "rows, so its p is larger. Bold: p < 0.05. A drop: accuracy over 0.5 points below CE + shift. False alarms: "
        "change relative to CE at equal recall, of the method with the fewest, where significant.",
    )
