"""Numbers as tables and sentences show them: means with their spread, differences with their intervals, p.

A small table value, and the ways to write it: Markdown, LaTeX, CSV, a terminal. HTML is the page's template.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from camri.errors import InputError, closest
from camri.stats import Difference

if TYPE_CHECKING:
    from rich.table import Table as RichTable

ENDS = ("", "_low", "_high")  # of a difference in a record
Record = Mapping[str, Any]  # what JSON can hold


def spread(record: Record, name: str) -> str:
    """Mean ± sd as the paper prints it; one trial has no sd.

    >>> spread({"recall_mean": 0.75, "recall_sd": 0.0707, "num_trials": 2}, "recall")
    '0.750 ± 0.071'
    """
    mean = f"{record[f'{name}_mean']:.3f}"
    return mean if record["num_trials"] == 1 else f"{mean} ± {record[f'{name}_sd']:.3f}"


def points(value: float, decimals: int = 1) -> str:
    """A difference in points of a hundred, with its sign.

    >>> points(0.0312), points(-0.004), points(0.0), points(-0.00004, decimals=2)
    ('+3.1', '−0.4', '0.0', '0.00')
    """
    text = f"{100 * value:+.{decimals}f}"
    return text[1:] if not text.strip("+-0.") else text.replace("-", "−")


def percent(share: float) -> str:
    """A small share, such as that of false alarms, in a hundred with two decimals.

    >>> in_a_hundred(0.0124), in_a_hundred(0.0)
    ('1.24', '0.00')
    """
    return f"{100 * share:.2f}"


def interval(found: Difference) -> str:
    """A difference in points with its 95 % interval."""
    return span(found.estimate, found.low, found.high)


def span(estimate: float, low: float, high: float, decimals: int = 1) -> str:
    """
    >>> span(0.012, -0.004, 0.028)
    '+1.2 [−0.4, +2.8]'
    """
    shown, lower, upper = (points(value, decimals) for value in (estimate, low, high))
    return f"{shown} [{lower}, {upper}]"


def p_value(p: float | None) -> str:
    """
    >>> p_value(0.0004), p_value(0.21), p_value(float("nan")), p_value(None)
    ('< 0.001', '0.21', '–', '–')
    """
    return BLANK if p is None or np.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.2g}"


def ends_of(name: str, found: Difference | None) -> dict[str, float | None]:
    """A difference as a record has it; `interval_of` shows it."""
    values = (None,) * 3 if found is None else (found.estimate, found.low, found.high)
    return {f"{name}{end}": value for end, value in zip(ENDS, values, strict=True)}


def interval_of(record: Record, name: str, decimals: int = 1) -> str:
    """A record's difference in points with its 95 % interval."""
    estimate, low, high = (record[f"{name}{end}"] for end in ENDS)
    return BLANK if estimate is None else span(estimate, low, high, decimals)


BLANK = "–"
FORMATS = ("md", "latex", "csv")


@dataclass(frozen=True)
class Cell:
    """A text, in bold or not."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """A caption, notes, a header, and groups of rows; `records` are its numbers, one mapping a line of CSV.

    `spans` stand above the header: (text, number of columns) from the second column on; none where it is empty.
    `titles` stand above the groups, one each, or there are none. `words` are columns, by their header, that hold words
    and not numbers: a page may break their lines.
    """

    caption: str
    header: tuple[str, ...]
    groups: tuple[tuple[tuple[Cell, ...], ...], ...]
    records: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()
    spans: tuple[tuple[str, int], ...] = ()
    titles: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def titled(self) -> list[tuple[str, tuple[tuple[Cell, ...], ...]]]:
        """Groups with their titles, "" where they have none."""
        return list(zip(self.titles or ("",) * len(self.groups), self.groups, strict=True))

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        return [row for group in self.groups for row in group]


def cells(*texts: str) -> tuple[Cell, ...]:
    return tuple(Cell(text) for text in texts)


def table_by_column(
    records: Sequence[Mapping[str, Any]],
    caption: str,
    header: tuple[str, ...],
    row: Callable[[Mapping[str, Any]], tuple[Cell, ...]],
    note: str,
) -> Table:
    """A table with a row for each record, the records of a column of important classes in one group.

    The second of its columns is the setting's, in words.
    """
    columns = {one["column"]: one["important"] for one in records}
    return Table(
        caption=caption,
        header=header,
        groups=tuple(tuple(row(one) for one in records if one["column"] == number) for number in columns),
        titles=tuple(f"important: {title}" for title in columns.values()),
        words=(header[1],),
        records=tuple(records),
        notes=(note,),
    )


def write(table: Table, form: str) -> str:
    """The table as text in one of the formats."""
    if form not in FORMATS:
        raise InputError(f"format={form!r} is not for a table; {closest(form, FORMATS)}", argument="format")
    return {"md": to_markdown, "latex": to_latex, "csv": to_csv}[form](table)


def to_markdown(table: Table) -> str:
    """A pipe table under its caption.

    >>> print(to_markdown(Table("T", ("a|b", "x"), ((cells("c", "1"),),), ())))
    **T**
    <BLANKLINE>
    | a\\|b | x |
    |---|---|
    | c | 1 |
    <BLANKLINE>
    """
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
    """A booktabs table, groups of rows apart by a rule.

    >>> print(to_latex(Table("T", ("a_b", "x"), ((cells("c", "1±2"),),), ())))
    \\begin{table}
    \\caption{T}
    \\begin{tabular}{lr}
    \\toprule
    a\\_b & x \\\\
    \\midrule
    c & 1$\\pm$2 \\\\
    \\bottomrule
    \\end{tabular}
    \\end{table}
    <BLANKLINE>
    """
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
    """The numbers behind the table in full precision, one line a record; empty where there is none.

    >>> records = ({"method": "ce", "recall": 0.5}, {"method": "wce", "recall": None})
    >>> print(to_csv(Table("T", ("a",), (), records)), end="")
    method,recall
    ce,0.5
    wce,
    """
    file = io.StringIO()
    names = list(dict.fromkeys(name for record in table.records for name in record))
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table.records)
    return file.getvalue()


def to_terminal(table: Table) -> "RichTable":
    """The table for rich's console."""
    from rich.table import Table as RichTable
    from rich.text import Text

    caption = Text("\n".join(table.notes), style="dim") if table.notes else None
    shown = RichTable(title=Text(table.caption), caption=caption, caption_justify="left")
    for place, text in enumerate(table.header):
        # A number that does not fit goes on in the next line: cut, it would be another number.
        shown.add_column(Text(text), justify="left" if place == 0 else "right", overflow="fold")
    for title, group in table.titled():
        if title:
            shown.add_row(Text(title, style="italic"))
        for place, row in enumerate(group):
            texts: Sequence[Text] = [Text(cell.text, style="bold" if cell.bold else "") for cell in row]
            shown.add_row(*texts, end_section=place == len(group) - 1)
    return shown
