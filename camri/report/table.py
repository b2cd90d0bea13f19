"""A table as a value, how it shows numbers, and its text: Markdown, LaTeX, CSV or a terminal. HTML is the page's."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from camri.errors import InputError, closest
from camri.study.verdict import LEAST_SEEDS
from camri.text import csv_text, points

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Record = Mapping[str, Any]  # what JSON can hold
BLANK = "–"
FORMATS = ("md", "latex", "csv")


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


@dataclass(frozen=True)
class Table:
    """A caption, notes, a header, and groups of rows; `records` are its numbers, one mapping a line of CSV.

    `spans` stand above the header: (text, number of columns) from the second column on.
    `titles` stand above the groups, one each, or there are none. `words` are columns, by their header, that hold words
    and not numbers: a page may break their lines.
    """

    caption: str
    header: tuple[str, ...]
    groups: tuple[tuple[Row, ...], ...]
    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()
    spans: tuple[tuple[str, int], ...] = ()
    titles: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def titled(self) -> list[tuple[str, tuple[Row, ...]]]:
        """Groups with their titles, "" where they have none."""
        return list(zip(self.titles or ("",) * len(self.groups), self.groups, strict=True))

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group]


def cells(*texts: str) -> Row:
    return tuple(Cell(text) for text in texts)


def tabulate(
    records: Iterable[Any],
    caption: str,
    columns: Mapping[str, Callable[[Any], str | Cell]],
    *notes: str,
    words: Sequence[str] = (),
) -> Table:
    """A table with a row for each record; `columns`: header -> what it shows of a record.

    Records with a `column` of important classes stand in groups, one for each column.

    >>> table = tabulate([{"recall": 0.5}], "T", {"recall": lambda one: f"{one['recall']:.2f}"})
    >>> table.header, table.rows
    (('recall',), [(Cell(text='0.50', bold=False),)])
    """
    groups: dict[Any, list[Row]] = {}
    records, titles = tuple(records), {}
    for one in records:
        shown = (make(one) for make in columns.values())
        column = one["column"] if isinstance(one, Mapping) and "column" in one else None
        groups.setdefault(column, []).append(tuple(c if isinstance(c, Cell) else Cell(c) for c in shown))
        if column is not None:
            titles[column] = f"important: {one['important']}"
    return Table(
        caption,
        tuple(columns),
        tuple(map(tuple, groups.values())),
        records,
        notes,
        titles=tuple(titles.values()),
        words=tuple(words),
    )


def write(table: Table, form: str) -> str:
    """The table as text in one of the formats."""
    if form not in FORMATS:
        raise InputError(f"format={form!r} is not for a table; {closest(form, FORMATS)}", argument="format")
    return {"md": to_markdown, "latex": to_latex, "csv": to_csv}[form](table)


def to_markdown(table: Table) -> str:
    """A pipe table under its caption."""
    lines = [f"**{_markdown(table.caption)}**", ""]
    if table.spans:
        above = [table.header[0]] + [text for text, width in table.spans for text in [text] + [""] * (width - 1)]
        lines += [_pipes(_markdown(text) for text in above), _pipes(["---"] * len(table.header), tight=True)]
        lines.append(_pipes(_markdown(text) for text in ("", *table.header[1:])))
    else:
        lines += [_pipes(map(_markdown, table.header)), _pipes(["---"] * len(table.header), tight=True)]
    for title, group in table.titled():
        if title:
            lines.append(_pipes([f"*{_markdown(title)}*", *[""] * (len(table.header) - 1)]))
        for row in group:
            lines.append(_pipes(f"**{_markdown(cell.text)}**" if cell.bold else _markdown(cell.text) for cell in row))
    for note in table.notes:
        lines += ["", _markdown(note)]
    return "\n".join(lines) + "\n"


def _pipes(texts: Any, tight: bool = False) -> str:
    return f"|{'|'.join(texts)}|" if tight else f"| {' | '.join(texts)} |"


def _markdown(text: str) -> str:
    """Text that Markdown shows as it stands: no markup, no HTML, no second column."""
    escaped = " ".join(text.split())
    for sign in "\\`*_[]<>|":
        escaped = escaped.replace(sign, f"\\{sign}" if sign not in "<>" else {"<": "&lt;", ">": "&gt;"}[sign])
    return escaped


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "±": r"$\pm$", "−": "$-$", "–": "--", "π": r"$\pi$",
    "<": r"\textless{}", ">": r"\textgreater{}", "\u202f": r"\,",
}  # fmt: skip


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


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
    """The numbers behind the table in full precision, one line a record; blank where there is none.

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
