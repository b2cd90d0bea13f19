"""Tables made of records, and their text in Markdown, LaTeX and CSV and for the terminal; templates make their HTML."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from camri.errors import InputError, closest
from camri.methods import BASELINE, in_order, title_of
from camri.report.latex import to_latex
from camri.report.records import ENDS, Record, Source, group_by
from camri.report.table import BLANK as BLANK
from camri.report.table import Cell as Cell
from camri.report.table import Row, Table, span
from camri.report.table import cells as cells
from camri.report.table import to_terminal as to_terminal
from camri.report.table import two_decimals as two_decimals
from camri.selection import OPTIMISTIC
from camri.study.reader import LEAST_SEEDS, correct_several, is_significant
from camri.text import csv_text, markdown, points

if TYPE_CHECKING:
    pass

FORMATS = ("md", "latex", "csv")
ANGLES_OF = {"train": "training data", "test": "test data"}
ROLES = {"camri": "(proposal)", "ce": "(baseline)"}
NOT_BETTER = "none: not better on validation"
SPREAD = "Mean ± sd over seeds"
BRACKETS = "brackets: 95 % intervals"
CI = "95 % confidence intervals over seeds and test data (from three seeds on)"
CHOSEN = "Each method at its best setting on validation data"
CROSS_FITTED = f"{CHOSEN}, for each seed by the other half of the seeds (in brackets: number of seeds)."
SAME_SEEDS = f"{CHOSEN} of the same seeds: optimistic where a method has several settings."


def spread(record: Record, name: str) -> str:
    """Mean ± sd as the paper prints it; one trial has no sd.

    >>> spread({"recall_mean": 0.75, "recall_sd": 0.0707, "num_trials": 2}, "recall")
    '0.750 ± 0.071'
    """
    mean = f"{record[f'{name}_mean']:.3f}"
    return mean if record["num_trials"] == 1 else f"{mean} ± {record[f'{name}_sd']:.3f}"


def interval_of(record: Record, name: str, decimals: int = 1) -> str:
    """A record's difference in percentage points; its 95 % interval needs at least three trials.

    >>> found = {"gain": 0.0005, "gain_low": -0.0028, "gain_high": 0.00004}
    >>> interval_of({**found, "num_trials": 3}, "gain", decimals=2), interval_of({**found, "num_trials": 2}, "gain")
    ('+0.05 [−0.28, 0.00]', '+0.1')
    """
    if record[name] is None:
        return BLANK
    if record["num_trials"] < LEAST_SEEDS:
        return points(record[name], decimals)
    return span(record[name], record[f"{name}_low"], record[f"{name}_high"], decimals)


def p_value(p: float | None, num_seeds: int = LEAST_SEEDS) -> str:
    """
    >>> p_value(0.0004), p_value(0.21), p_value(float("nan")), p_value(None), p_value(0.02, num_seeds=2)
    ('< 0.001', '0.21', '–', '–', '–')
    """
    return BLANK if p is None or np.isnan(p) or num_seeds < LEAST_SEEDS else "< 0.001" if p < 0.001 else f"{p:.2g}"


Columns = Mapping[str, Callable[[Any], str | Cell]]  # header -> what it shows of a record
METHOD: Columns = {"method": lambda row: title_of(row["method"]), "setting": lambda row: row["setting"]}
SEEDS: Columns = {"seeds": lambda row: str(row["num_trials"])}
IMAGES: Columns = {"n": lambda row: f"{row['num_images']:,}"}


def counts(records: Sequence[Record]) -> Columns:
    """Test inputs of the important classes (n), and seeds: two counts. Older results lack the first."""
    return {**IMAGES, **SEEDS} if all(row.get("num_images") for row in records) else SEEDS


def tabulate(
    records: Iterable[Any], caption: str, columns: Columns, *notes: str, name: str = "", brief: str = ""
) -> Table:
    """A table with a row for each record, in groups by their `column` of important classes if they have one.

    >>> table = tabulate([{"recall": 0.5}], "T", {"recall": lambda row: f"{row['recall']:.2f}"})
    >>> table.header, table.rows
    (('recall',), [(Cell(text='0.50', bold=False),)])
    """
    groups: dict[Any, list[Row]] = {}
    records, titles = tuple(records), {}
    for record in records:
        shown = (make(record) for make in columns.values())
        column = record["column"] if isinstance(record, Mapping) and "column" in record else None
        groups.setdefault(column, []).append(tuple(c if isinstance(c, Cell) else Cell(c) for c in shown))
        if column is not None:
            titles[column] = f"important: {record['important']}"
    rows = tuple(map(tuple, groups.values()))
    return Table(caption, tuple(columns), rows, records, notes, titles=tuple(titles.values()), name=name, brief=brief)


def how_chosen(records: Sequence[Record]) -> str:
    """How the settings of gap records were chosen; those of older results by the seeds that are shown."""
    if any(row.get("held_out") is False for row in records):
        return "Methods with one setting; others are left out, as no validation data were held out to choose by."
    if all(row.get("num_settings") == 1 for row in records):
        return "One setting of each method."
    return CROSS_FITTED if all("num_settings" in row for row in records) else SAME_SEEDS


def significant(record: Record, name: str, p: str, sign: int = 1, decimals: int = 2) -> Cell:
    """A difference in percentage points; bold where its corrected p is significant and it has the sign."""
    is_bold = is_significant(record[p], record["num_trials"]) and sign * record[name] > 0
    return Cell(interval_of(record, name, decimals), bold=is_bold)


def gap_of(record: Record, name: str) -> str:
    """A difference of accuracies, which are smaller than those of recalls: with two decimals."""
    return interval_of(record, name, decimals=2)


def paper_table(runs: Sequence[Sequence[Record]]) -> Table:
    """Table I of some runs' records: recall above, accuracy below; blank where no setting kept the accuracy."""
    columns = {(run, row["column"]): row for run, records in enumerate(runs) for row in records}
    if not columns:
        raise InputError("Table I needs important classes, and they are not known yet: train cross-entropy first")
    found = {(run, row["column"], row["method"]): row for run, records in enumerate(runs) for row in records}

    def line(first: str, method: str, show: Callable[[Record], Cell]) -> tuple[Cell, ...]:
        own = (found.get((*place, method), {}) for place in columns)
        return (Cell(first), *(show(row) if row.get("setting") is not None else Cell(BLANK) for row in own))

    methods = in_order({method for *_, method in found})
    return Table(
        caption=f"Table I, as the paper prints it ({OPTIMISTIC}).",
        header=("method", *(row["important"] for row in columns.values())),
        groups=tuple(
            (
                line(title_of(method), method, lambda row: Cell(spread(row, "recall"), row["bold"])),
                line(ROLES.get(method, ""), method, lambda row: Cell(spread(row, "accuracy"))),
            )
            for method in methods
        ),
        records=tuple(row for method in methods for place in columns if (row := found.get((*place, method)))),
        notes=(
            "Recall of the important class above, accuracy below: mean ± sd over trials on test data. For each method, "
            "of its settings whose mean accuracy is not below cross-entropy’s, the one with the highest mean recall; "
            f"{BLANK} where there is none. Bold: the highest recall of a column.",
        ),
        spans=tuple(
            (name, len(list(group))) for name, group in itertools.groupby(row["data"] for row in columns.values())
        ),
        name="paper",
        brief="Recall above, accuracy below, mean ± sd over trials.",
    )


def table_of_honest(records: Sequence[Record]) -> Table:
    """Every method, chosen on validation data and judged on test data, with its controls."""

    def is_kept(row: Record) -> bool:
        """Whether no setting of the method was better than shifted cross-entropy: then the method has no numbers."""
        return row.get("method", BASELINE) != BASELINE and row["setting"] == BASELINE

    def unless_kept(show: Callable[[Record], str]) -> Callable[[Record], str]:
        return lambda row: BLANK if is_kept(row) else show(row)

    columns: Columns = {
        "method": lambda row: row["row"],
        "setting (seeds)": lambda row: NOT_BETTER if is_kept(row) else row["setting"],
        "recall": unless_kept(lambda row: spread(row, "recall")),
        "accuracy": unless_kept(lambda row: spread(row, "accuracy")),
        "Δ recall vs CE + shift": lambda row: significant(row, "gain_over_shifted_ce", "p_holm", decimals=1),
        "p (Holm)": lambda row: p_value(row["p_holm"], row["num_trials"]),
        "Δ accuracy vs CE": lambda row: interval_of(row, "accuracy_change"),
        "n": lambda row: f"{row['num'] // row['num_trials']:,}",
        **SEEDS,
    }
    uneven = len({row["num_trials"] for row in records}) > 1
    table = tabulate(
        records,
        "Honest comparison: chosen on validation data by other seeds, judged on test data.",
        columns,
        "CE: cross-entropy. In every row except “control: cross-entropy”, each model’s important scores are shifted by "
        f"what its own validation scores allow at cross-entropy’s accuracy. “{NOT_BETTER}”: no setting of the method "
        "beat shifted cross-entropy there, so that stays; the method’s own numbers are in the table “own”. Brackets: "
        "the number of seeds that picked the setting. Mean ± sd over seeds; n: test inputs of the important class, the "
        f"same for every seed. Δ: percentage points, with {CI}, over the seeds that both sides have; p: Holm’s "
        "correction over all rows. Bold: p < 0.05."
        + (" Rows with different seeds are not to be compared by their means." if uneven else ""),
        name="honest",
        brief=f"{SPREAD}; {BRACKETS}; bold: p < 0.05.",
    )
    return replace(table, words=("setting (seeds)",))


def table_of_own(records: Sequence[Record]) -> Table:
    """Each method's own numbers: as trained, and under its own rule."""
    columns: Columns = {
        "method": lambda row: title_of(row["method"]),
        "setting (seeds)": lambda row: row["setting"],
        "recall as trained": lambda row: spread(row, "recall"),
        "recall shifted": lambda row: spread(row, "recall_shifted"),
        "accuracy as trained": lambda row: spread(row, "accuracy"),
        "accuracy shifted": lambda row: spread(row, "accuracy_shifted"),
        "CE + shift, same seeds": lambda row: spread(row, "recall_of_ce_shifted"),
        "Δ recall": lambda row: interval_of(row, "gain_over_shifted_ce"),
        **IMAGES,
        **SEEDS,
    }
    table = tabulate(
        records,
        "Every method’s own models: as trained, and shifted by their own validation scores.",
        columns,
        "Test data. Each method at its best setting on validation data of the other half of the seeds (in brackets: "
        "number of seeds), whether or not it is better than cross-entropy (CE). A model’s shift is what its own "
        "validation scores allow at cross-entropy’s accuracy. CE + shift: recall of cross-entropy under the same rule, "
        f"over the same seeds. Δ recall: the method’s shifted recall less that, in percentage points, with {CI}, not "
        f"corrected for several rows. {SPREAD}; n: test inputs of the important class, the same for every seed.",
        name="own",
        brief=f"{SPREAD}; CE: cross-entropy; {BRACKETS}.",
    )
    return replace(table, words=("setting (seeds)",))


def table_of_trained(records: Sequence[Record]) -> Table:
    """The models as trained against cross-entropy."""
    columns: Columns = {
        **METHOD,
        "recall": lambda row: spread(row, "recall"),
        "Δ recall vs CE": lambda row: interval_of(row, "recall_change"),
        "accuracy": lambda row: spread(row, "accuracy"),
        "Δ accuracy vs CE": lambda row: gap_of(row, "accuracy_change"),
        **counts(records),
    }
    return tabulate(
        records,
        "As trained, vs cross-entropy (CE): no model is shifted.",
        columns,
        f"Test data. {how_chosen(records)} {SPREAD}. Δ: percentage points, with {CI}.",
        name="trained",
        brief=f"{SPREAD}; Δ: percentage points; {BRACKETS}.",
    )


def table_of_gaps(records: Sequence[Record]) -> Table:
    """Accuracy at equal recall against cross-entropy."""
    columns: Columns = {
        **METHOD,
        "Δ accuracy vs CE": lambda row: significant(row, "mean", "p_holm"),
        "p (Holm)": lambda row: p_value(row["p_holm"], row["num_trials"]),
        "at the ends of the recall range": lambda row: ", ".join(
            f"{points(row[gap], decimals=2)} at {row[recall]:.3f}"
            for gap, recall in (("first", "recall_from"), ("last", "recall_to"))
        ),
        "Δ accuracy vs L2-softmax": lambda row: gap_of(row, "over_l2softmax"),
        **counts(records),
    }
    return tabulate(
        records,
        "Accuracy at equal recall, vs cross-entropy (CE).",
        columns,
        "Test data. Every model, cross-entropy too, is shifted to the same recalls; Δ is the mean over the recall "
        f"range. {how_chosen(records)} The range starts at cross-entropy’s own recall and ends where half of what a "
        "shift can still find is found. L2-softmax: the cosine head at the same scale, without a margin. Δ: percentage "
        f"points, with {CI}; p: Holm’s correction over all rows of the study. Bold: higher accuracy, p < 0.05.",
        name="recall",
        brief=f"Percentage points, mean over nine recalls; {BRACKETS}; bold: p < 0.05.",
    )


def table_of_alarms(records: Sequence[Record]) -> Table | None:
    """False alarms at equal recall against cross-entropy, under shifts; None where they were not counted."""
    counted = [row for row in records if row.get("alarms") is not None]
    if not counted:
        return None
    columns: Columns = {
        **METHOD,
        "CE’s false alarms (%)": lambda row: two_decimals(row["alarms_of_ce"]),
        "Δ vs CE": lambda row: significant(row, "alarms", "p_alarms_holm", sign=-1),
        "relative": relative_alarms,
        "p (Holm)": lambda row: p_value(row["p_alarms_holm"], row["num_trials"]),
        "Δ vs L2-softmax": lambda row: gap_of(row, "alarms_over_l2softmax"),
        **counts(counted),
    }
    return tabulate(
        counted,
        "False alarms at equal recall, vs cross-entropy (CE), all models shifted.",
        columns,
        "Test data. A false alarm is an input of no important class that is predicted as one; rates are % of all "
        f"inputs. Recall range as in the table of accuracy at equal recall. {how_chosen(counted)} With fewer false "
        "alarms and equal accuracy, the other classes are confused more often. The control to beat is the threshold, "
        f"in the next table. Δ: percentage points, with {CI}; p: Holm’s correction over all rows of the study. Bold: "
        "fewer false alarms, p < 0.05.",
        name="alarms",
        brief=f"% of all inputs; {BRACKETS}; bold: p < 0.05.",
    )


def table_of_thresholds(records: Sequence[Record]) -> Table | None:
    """False alarms and accuracy at equal recall, both sides with a threshold; None where they were not counted."""
    counted = [row for row in records if row.get("alarms_threshold") is not None and "p_alarms_threshold" in row]
    if not counted:
        return None
    p_values = [row["p_alarms_threshold"] for row in counted]
    corrected = correct_several([math.nan if p is None else p for p in p_values])
    counted = [{**row, "p_threshold_holm": p} for row, p in zip(counted, corrected, strict=True)]

    def of_ce(row: Record) -> float:
        return row["alarms_of_ce"] + row["alarms_of_ce_threshold"]

    def relative(row: Record) -> Cell:
        if not of_ce(row):
            return Cell(BLANK)
        ends = [row.get(f"relative_threshold{end}", row[f"alarms_threshold{end}"] / of_ce(row)) for end in ENDS]
        shown = [points(end, decimals=0) for end in ends]
        text = f"{shown[0]} %" if row["num_trials"] < LEAST_SEEDS else f"{shown[0]} % [{shown[1]}, {shown[2]}]"
        return Cell(text, bold=is_significant(row["p_threshold_holm"], row["num_trials"]) and ends[0] < 0)

    columns: Columns = {
        **METHOD,
        "CE’s false alarms (%)": lambda row: two_decimals(of_ce(row)),
        "Δ false alarms": relative,
        "p (Holm)": lambda row: p_value(row["p_threshold_holm"], row["num_trials"]),
        "Δ accuracy": lambda row: gap_of(row, "accuracy_threshold"),
        "threshold vs shift (CE)": lambda row: gap_of(row, "alarms_of_ce_threshold"),
        **counts(counted),
    }
    known = all("relative_threshold_low" in row for row in counted)
    return tabulate(
        counted,
        "False alarms and accuracy at equal recall, vs cross-entropy (CE), all models with a threshold.",
        columns,
        "Test data. The class is predicted where its probability passes a value that gives the recall: that needs no "
        "training, and is the control to beat. Recall range as in the table of accuracy at equal recall. "
        f"{how_chosen(counted)} Δ false alarms: relative to CE’s, which are % of all inputs; the interval "
        f"{'contains the chance in' if known else 'takes as known'} CE’s own mean. Δ accuracy: percentage points. "
        f"Threshold vs shift: what the threshold alone changes in CE’s false alarms, in percentage points. {CI}; p: "
        "Holm’s correction over all rows. Bold: fewer false alarms, p < 0.05.",
        name="threshold",
        brief=f"{BRACKETS.capitalize()}; bold: p < 0.05.",
    )


def relative_alarms(row: Record) -> str:
    """The change of false alarms relative to cross-entropy's.

    >>> relative_alarms({"alarms": -0.0078, "alarms_of_ce": 0.0709})
    '−11 %'
    """
    return f"{points(row['alarms'] / row['alarms_of_ce'], decimals=0)} %" if row["alarms_of_ce"] else BLANK


def table_of_epochs(records: Sequence[Record]) -> Table | None:
    """Recall and accuracy near the end of training; None where there were too few epochs."""
    late = [row for row in records if row["late_epochs"]]
    if not late:
        return None
    show = {"recall": interval_of, "accuracy": gap_of}

    def columns_of(name: str) -> Columns:
        return {
            name: lambda row: f"{row[f'{name}_late']:.3f}",
            f"sd of {name} over epochs": lambda row: f"{100 * row[f'{name}_wander']:.1f}",
            f"Δ {name} vs CE": lambda row: show[name](row, f"{name}_gain"),
        }

    num = late[0]["late_epochs"]
    return tabulate(
        [{name: value for name, value in row.items() if name not in show} for row in late],
        f"Near the end of training: the last {num} of {late[0]['epochs']} epochs.",
        {**METHOD, **columns_of("recall"), **columns_of("accuracy"), **SEEDS},
        f"Validation data, models as trained, mean over the last {num} epochs and over trials. sd over epochs: of one "
        "model, in percentage points; it is the error of taking the model at the last epoch. Δ vs cross-entropy (CE): "
        "percentage points, with 95 % confidence intervals over seeds (from three seeds on).",
        name="training",
        brief=f"Validation data, means over epochs and seeds; {BRACKETS}.",
    )


def table_of_angles(records: Sequence[Record]) -> Table:
    """Table II: the important class, the minimum and median of the others; the smallest in bold."""
    smallest = {
        place: min((row["sd_rad"] for row in own if row["sd_rad"] is not None), default=None)
        for place, own in group_by(records, "column", "method").items()
    }

    def shown(row: Record) -> Cell:
        sd = row["sd_rad"]
        return Cell(BLANK) if sd is None else Cell(f"{sd:.4f}", bold=sd == smallest[row["column"], row["method"]])

    columns = [group_by(own, "line") for own in group_by(records, "column").values()]
    groups = [tuple((Cell(line), *map(shown, row)) for line, row in lines.items()) for lines in columns]
    return Table(
        caption="Table II. Standard deviation of the angle (radians) between features and their class’s weight vector.",
        header=("class", *dict.fromkeys(row["method"] for row in records)),
        groups=tuple(groups),
        records=tuple(records),
        notes=(
            f"Mean over trials, {ANGLES_OF[records[0]['images']]}. Bold: the smallest of a method’s three. CAMRI and "
            "ArcFace at their Table I settings (by validation where that cell is blank), L2-softmax at CAMRI’s scale; "
            f"{BLANK} where it was not trained, or the classes have no data.",
        ),
        name="angles",
        brief=f"Mean over trials, {ANGLES_OF[records[0]['images']]}; bold: a method’s smallest.",
    )


def table_of_calibration(records: Sequence[Record]) -> Table | None:
    """Expected calibration error of the chosen models and their controls on test data; None without a choice."""
    columns: Columns = {
        "models": lambda row: row["model"],
        "ECE": lambda row: f"{row['ece']:.4f}",
        "accuracy": lambda row: f"{row['accuracy']:.3f}",
        **SEEDS,
    }
    note = (
        "Expected calibration error over 15 bins and all trials. A shift, a margin and a scale change it: calibrate "
        "before you use probabilities."
    )
    made = {"name": "calibration", "brief": "Expected calibration error (ECE) over 15 bins and all trials."}
    return tabulate(records, "Calibration on test data.", columns, note, **made) if records else None


def table_of_settings(records: Sequence[Record]) -> Table:
    """Every setting by false alarms at equal recall against cross-entropy, under both free rules."""
    firsts: dict[str, Record] = {}
    rivals = [record for record in records if firsts.setdefault(record["column"], record) is not record]

    def row(record: Record) -> Row:
        named = f"{record['column']}: {record['setting']}" if len(firsts) > 1 else record["setting"]
        shown = [named, str(record["num_seeds"])]
        for rule in ("threshold", "shift"):
            found = {**record[rule], "num_trials": record["num_seeds"]}
            shown += [_relative(found), interval_of(found, "accuracy", decimals=2)]
        return cells(*shown)

    of_ce = (
        f"“{column}”: {two_decimals(record['threshold']['alarms_of_ce'])} % of all inputs with a threshold, "
        f"{two_decimals(record['shift']['alarms_of_ce'])} % with a shift, mean over recalls from "
        f"{record['recalls'][0]:.3f} to {record['recalls'][-1]:.3f}"
        for column, record in firsts.items()
    )
    split = "Test" if all(record.get("split") == "test" for record in records) else "Validation"
    rules = [f"Δ {name}, {rule}" for rule in ("threshold", "shift") for name in ("false alarms", "accuracy")]
    return Table(
        "Against cross-entropy at equal recall, both under the same rule.",
        ("setting", "seeds", *rules),
        (tuple(map(row, rivals)),),
        tuple(_flat(record) for record in records),
        notes=(
            f"{split} data. Cross-entropy’s false alarms, {'; '.join(of_ce)}. Δ false alarms: relative. Δ accuracy: "
            "percentage points. 95 % confidence intervals over seeds and images, not corrected for the number of "
            "settings.",
        ),
        name="settings",
        brief=f"{split} data; {BRACKETS}, not corrected.",
    )


def _relative(record: Record) -> str:
    """A setting's false alarms relative to cross-entropy's, with their interval if it was computed."""
    whole = record["alarms_of_ce"]
    if not whole:
        return BLANK
    ends = [max(record[f"alarms{end}"] / whole, -1.0) for end in ENDS if f"alarms{end}" in record]
    shown = [points(end, decimals=0) for end in ends]
    return (
        f"{shown[0]} %"
        if record["num_trials"] < LEAST_SEEDS or len(ends) < 3
        else f"{shown[0]} % [{shown[1]}, {shown[2]}]"
    )


def _flat(record: Record) -> Record:
    """A setting's record as one line of CSV: what stands under a rule gets its name."""
    plain = {name: value for name, value in record.items() if not isinstance(value, (Mapping, list))}
    rules = ("threshold", "shift")
    return plain | {f"{rule}_{name}": value for rule in rules for name, value in record[rule].items()}


TABLES: Mapping[str, tuple[str, Callable[[Any], Table | None]]] = {  # name -> part of a run's records, table
    "paper": ("paper", lambda records: paper_table([records])),
    "own": ("own", table_of_own),
    "trained": ("gaps", table_of_trained),
    "recall": ("gaps", table_of_gaps),
    "alarms": ("gaps", table_of_alarms),
    "threshold": ("gaps", table_of_thresholds),
    "honest": ("honest", table_of_honest),
    "settings": ("settings", table_of_settings),
    "training": ("training", table_of_epochs),
    "angles": ("angles", table_of_angles),
    "calibration": ("calibration", table_of_calibration),
}


def make_table(name: str, source: Source) -> Table:
    """The table with this name of a run or of a results folder; InputError where there is nothing to show."""
    part, make = TABLES[name]
    records = source.records(part)
    table = make(records) if records else None
    if table is None or not table.rows:
        raise InputError(f"the table {name!r} is empty: the run had no data for it", argument="table")
    return mark_small(table, source)


def mark_small(table: Table, source: Source) -> Table:
    """The table with a word in its caption and a note first, if it is of a small run."""
    if not source.small:
        return table
    return replace(table, caption=f"Small run: {table.caption}", notes=(source.small, *table.notes))


def write(table: Table, form: str) -> str:
    """The table as text in one of the formats."""
    if form not in FORMATS:
        raise InputError(f"format={form!r} is not for a table; {closest(form, FORMATS)}", argument="format")
    return {"md": to_markdown, "latex": to_latex, "csv": to_csv}[form](table)


def to_markdown(table: Table) -> str:
    """A pipe table under its caption."""

    def line(texts: Iterable[str]) -> str:
        return f"| {' | '.join(texts)} |"

    header = [table.header]
    if table.spans:
        above = [text for name, width in table.spans for text in (name, *[""] * (width - 1))]
        header = [(table.header[0], *above), ("", *table.header[1:])]
    first, *more = [line(map(markdown, texts)) for texts in header]
    lines = [f"**{markdown(table.caption)}**", "", first, f"|{'---|' * len(table.header)}", *more]
    for title, group in table.titled():
        if title:
            lines.append(line([f"*{markdown(title)}*", *[""] * (len(table.header) - 1)]))
        for row in group:
            lines.append(line(f"**{markdown(cell.text)}**" if cell.bold else markdown(cell.text) for cell in row))
    for note in table.notes:
        lines += ["", markdown(note)]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """The numbers behind the table in full precision, one line per record; blank where there is none.

    A text that a spreadsheet would take for a formula has an apostrophe before it.

    >>> records = ({"method": "ce", "recall": 0.5}, {"method": "wce", "recall": None})
    >>> print(to_csv(Table("T", ("a",), (), records)), end="")
    method,recall
    ce,0.5
    wce,
    """
    return csv_text(list(dict.fromkeys(name for record in table.records for name in record)), table.records)
