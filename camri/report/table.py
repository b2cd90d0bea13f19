"""Tables as records: a caption, a header, rows of cells; and how a terminal shows them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from camri.text import points

if TYPE_CHECKING:
    from rich.table import Table as RichTable

BLANK = "–"


@dataclass(frozen=True)
class Cell:
    """A text, in bold or not."""

    text: str
    bold: bool = False


Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """A caption, notes, a header, and groups of rows; `records` are its numbers, one per line of CSV.

    `spans` stand above the header: (text, number of columns) from the second column on. `titles` stand above the
    groups, one each, or there are none. `words` are headers of columns whose lines a page may break. `name`: of its
    label in LaTeX, where the caption is followed by `brief`, and notes are comments.
    """

    caption: str
    header: tuple[str, ...]
    groups: tuple[tuple[Row, ...], ...]
    records: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()
    spans: tuple[tuple[str, int], ...] = ()
    titles: tuple[str, ...] = ()
    words: tuple[str, ...] = ("setting",)
    name: str = ""
    brief: str = ""

    def titled(self) -> list[tuple[str, tuple[Row, ...]]]:
        """Groups with their titles, "" where they have none."""
        return list(zip(self.titles or ("",) * len(self.groups), self.groups, strict=True))

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group]


def cells(*texts: str) -> Row:
    return tuple(Cell(text) for text in texts)


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
