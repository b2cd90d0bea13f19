"""Tables made of records, and their text in Markdown, LaTeX and CSV and for the terminal; templates make their HTML."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from camri.errors import InputError, closest
from camri.methods import in_order, title_of
from camri.report.records import Record, about, group_by
from camri.selection import OPTIMISTIC
from camri.study.reader import LEAST_SEEDS, ColumnVerdict, is_significant
from camri.text import csv_text, markdown, points

if TYPE_CHECKING:
    from rich.table import Table as RichTable

BLANK = "–"
FORMATS = ("md", "latex", "csv")
ARMS = {"baseline": "cross-entropy", "baseline shifted": "cross-entropy + shift", "chosen": "chosen + shift"}
ANGLES_OF = {"train": "training data", "test": "test data"}
ROLES = {"camri": "(proposal)", "ce": "(baseline)"}
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


def two_decimals(share: float) -> str:
    """A small share, such as that of false alarms, in percent with two decimals.

    >>> two_decimals(0.0124), two_decimals(0.0)
    ('1.24', '0.00')
    """
    return f"{100 * share:.2f}"


def span(estimate: float, low: float | None, high: float | None, decimals: int = 1) -> str:
    """A difference in percentage points with its interval, if it has one.

    >>> span(0.012, -0.004, 0.028), span(0.012, None, None)
    ('+1.2 [−0.4, +2.8]', '+1.2')
    """
    shown = points(estimate, decimals)
    return shown if low is None or high is None else f"{shown} [{points(low, decimals)}, {points(high, decimals)}]"


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


@dataclass(frozen=True)
class Cell:
    """A text, in bold or not."""

    text: str
    bold: bool = False


Row = tuple[Cell, ...]
Columns = Mapping[str, Callable[[Any], str | Cell]]  # header -> what it shows of a record
METHOD: Columns = {"method": lambda row: title_of(row["method"]), "setting": lambda row: row["setting"]}
TRIALS: Columns = {"trials": lambda row: str(row["num_trials"])}


@dataclass(frozen=True)
class Table:
    """A caption, notes, a header, and groups of rows; `records` are its numbers, one per line of CSV.

    `spans` stand above the header: (text, number of columns) from the second column on. `titles` stand above the
    groups, one each, or there are none. `words` are headers of columns whose lines a page may break.
    """

    caption: str
    header: tuple[str, ...]
    groups: tuple[tuple[Row, ...], ...]
    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()
    spans: tuple[tuple[str, int], ...] = ()
    titles: tuple[str, ...] = ()
    words: tuple[str, ...] = ("setting",)

    def titled(self) -> list[tuple[str, tuple[Row, ...]]]:
        """Groups with their titles, "" where they have none."""
        return list(zip(self.titles or ("",) * len(self.groups), self.groups, strict=True))

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group]


def cells(*texts: str) -> Row:
    return tuple(Cell(text) for text in texts)


def tabulate(records: Iterable[Any], caption: str, columns: Columns, *notes: str) -> Table:
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
    return Table(caption, tuple(columns), rows, records, notes, titles=tuple(titles.values()))


def how_chosen(records: Sequence[Record]) -> str:
    """How the settings of gap records were chosen; those of older results by the seeds that are shown."""
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
    )


def table_of_honest(records: Sequence[Record]) -> Table:
    """Every method, chosen on validation data and judged on test data, with its controls."""
    columns: Columns = {
        "method": lambda row: row["row"],
        "setting (seeds)": lambda row: row["setting"],
        "recall": lambda row: spread(row, "recall"),
        "hits / n": lambda row: f"{row['hits']}/{row['num']}",
        "accuracy": lambda row: spread(row, "accuracy"),
        "Δ recall vs CE + shift": lambda row: significant(row, "gain_over_shifted_ce", "p_holm", decimals=1),
        "p (Holm)": lambda row: p_value(row["p_holm"], row["num_trials"]),
        "Δ accuracy vs CE": lambda row: interval_of(row, "accuracy_change"),
        **TRIALS,
    }
    table = tabulate(
        records,
        "Honest comparison: chosen on validation data by other seeds, judged on test data.",
        columns,
        "CE: cross-entropy. In every row except “control: cross-entropy”, each model’s important scores are shifted by "
        "what its own validation scores allow at cross-entropy’s accuracy. A setting of “ce” means that no setting of "
        "the method beat cross-entropy on validation data. In brackets: the number of seeds that picked the setting. "
        f"Mean ± sd over trials. Δ: percentage points, with {CI}; p: Holm’s correction over all rows. Bold: p < 0.05.",
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
        **TRIALS,
    }
    return tabulate(
        records,
        "As trained, vs cross-entropy (CE): no model is shifted.",
        columns,
        f"Test data. {how_chosen(records)} Mean ± sd over trials. Δ: percentage points, with {CI}.",
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
        **TRIALS,
    }
    return tabulate(
        records,
        "Accuracy at equal recall, vs cross-entropy (CE).",
        columns,
        "Test data. Every model, cross-entropy too, is shifted to the same recalls; Δ is the mean over the recall "
        f"range. {how_chosen(records)} The range starts at cross-entropy’s own recall and ends where half of what a "
        "shift can still find is found. L2-softmax: the cosine head at the same scale, without a margin. Δ: percentage "
        f"points, with {CI}; p: Holm’s correction over all rows of the study. Bold: higher accuracy, p < 0.05.",
    )


def table_of_alarms(records: Sequence[Record]) -> Table | None:
    """False alarms at equal recall against cross-entropy; None where they were not counted."""
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
        "CE: threshold vs shift": lambda row: gap_of(row, "alarms_of_ce_threshold"),
        "Δ vs CE, both with thresholds": lambda row: gap_of(row, "alarms_threshold"),
        **TRIALS,
    }
    if not all("alarms_threshold" in row for row in counted):  # results that were written before the threshold
        columns = {name: show for name, show in columns.items() if "threshold" not in name}
    return tabulate(
        counted,
        "False alarms at equal recall, vs cross-entropy (CE).",
        columns,
        "Test data. A false alarm is an input of no important class that is predicted as one; rates are % of all "
        f"inputs. Recall range as in the table above. {how_chosen(counted)} With fewer false alarms and equal "
        "accuracy, the other classes are confused more often. Models are shifted to a recall; with a threshold, the "
        "class is predicted where its probability passes a value: that costs nothing and is the control to beat. "
        f"Δ: percentage points, with {CI}; p: Holm’s correction over all rows of the study. Bold: fewer false alarms, "
        "p < 0.05.",
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
        {**METHOD, **columns_of("recall"), **columns_of("accuracy"), **TRIALS},
        f"Validation data, models as trained, mean over the last {num} epochs and over trials. sd over epochs: of one "
        "model, in percentage points; it is the error of taking the model at the last epoch. Δ vs cross-entropy (CE): "
        "percentage points, with 95 % confidence intervals over seeds (from three seeds on).",
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
    )


def calibration_table(verdicts: Sequence[ColumnVerdict]) -> Table | None:
    """Expected calibration error of the chosen models and their controls on test data; None without a choice."""
    records = [
        {**about(verdict), "model": title, "ece": arm.calibration.ece, "accuracy": float(arm.accuracy.mean())}
        for verdict in verdicts
        if verdict.best is not None
        for name, title in ARMS.items()
        for arm in [verdict.best.judgement.arms[name]]
    ]
    columns: Columns = {
        "models": lambda row: row["model"],
        "ECE": lambda row: f"{row['ece']:.4f}",
        "accuracy": lambda row: f"{row['accuracy']:.3f}",
    }
    note = (
        "Expected calibration error over 15 bins and all trials. A shift, a margin and a scale change it: calibrate "
        "before you use probabilities."
    )
    return tabulate(records, "Calibration on test data.", columns, note) if records else None


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


_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "±": r"$\pm$", "−": "$-$", "–": "--", "π": r"$\pi$",
    "<": r"\textless{}", ">": r"\textgreater{}", "\u202f": r"\,",
})  # fmt: skip


def _latex(text: str) -> str:
    return " ".join(text.split()).translate(_LATEX)


def to_latex(table: Table) -> str:
    """A booktabs table, with a rule between groups of rows."""
    lines = [r"\begin{table}", rf"\caption{{{_latex(' '.join([table.caption, *table.notes]))}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}", r"\toprule"]
    if table.spans:
        lines.append(
            " & ".join(["", *(rf"\multicolumn{{{w}}}{{c}}{{{_latex(text)}}}" for text, w in table.spans)]) + r" \\"
        )
    lines.append(" & ".join(map(_latex, table.header)) + r" \\")
    for title, group in table.titled():
        lines.append(r"\midrule")
        if title:
            lines.append(rf"\multicolumn{{{len(table.header)}}}{{l}}{{\textit{{{_latex(title)}}}}} \\")
        for row in group:
            shown = (rf"\textbf{{{_latex(cell.text)}}}" if cell.bold else _latex(cell.text) for cell in row)
            lines.append(" & ".join(shown) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


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


def to_terminal(table: Table) -> "RichTable":
    """The table for rich's console."""
    from rich.table import Table as RichTable
    from rich.text import Text

    caption = Text("\n".join(table.notes), style="dim") if table.notes else None
    shown = RichTable(title=Text(table.caption), caption=caption, caption_justify="left")
    for place, text in enumerate(table.header):
        # A number that does not fit is folded to the next line: cut, it would be another number.
        shown.add_column(Text(text), justify="left" if place == 0 else "right", overflow="fold")
    for title, group in table.titled():
        if title:
            shown.add_row(Text(title, style="italic"))
        for place, row in enumerate(group):
            texts: Sequence[Text] = [Text(cell.text, style="bold" if cell.bold else "") for cell in row]
            shown.add_row(*texts, end_section=place == len(group) - 1)
    return shown
