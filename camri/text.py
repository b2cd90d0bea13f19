"""Format names and quantities for terminals, pages, cards and CSV files."""

import csv
import io
import math
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

ROWS_SHOWN = 3
_FORMULA = re.compile(r"\s*[=+\-@\t\r\0]")
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def is_printable(name: str) -> bool:
    """Whether a terminal can show the name. Zero-width joiners are allowed: Persian and emoji need them.

    >>> is_printable("stop"), is_printable("\u0645\u06cc\u200c\u0631\u0648\u062f"), is_printable("a\x1b[31m")
    (True, True, False)
    """
    return name.replace("\u200c", "").replace("\u200d", "").isprintable()


class Noun(NamedTuple):
    """The word for an input, in singular and plural."""

    one: str
    many: str


def noun_of(input_shape: Sequence[int]) -> Noun:
    """The word for inputs of a shape: row for (D,), image for (H, W, C).

    For sentences that count inputs; others say "test data".

    >>> noun_of((30,)).many, noun_of((32, 32, 3)).many
    ('rows', 'images')
    """
    return Noun("row", "rows") if len(input_shape) == 1 else Noun("image", "images")


def name_rows(rows: Sequence[int], num_rows: int) -> str:
    """Numbers of the first of these rows, and how many there are.

    >>> name_rows([4], 90), name_rows([4, 7], 90), name_rows([4, 7, 8, 9], 90)
    ('row 4', 'rows 4, 7 (2 of 90)', 'rows 4, 7, 8, … (4 of 90)')
    """
    if len(rows) == 1:
        return f"row {rows[0]}"
    more = ", …" if len(rows) > ROWS_SHOWN else ""
    return f"rows {', '.join(map(str, rows[:ROWS_SHOWN]))}{more} ({len(rows):,} of {num_rows:,})"


def listed(names: Sequence[str], most: int = 12) -> str:
    """Join names with commas; of more than `most`, show the first and the last, often a table's label column.

    >>> listed(["a", "b", "c"], most=3), listed(["a", "b", "c", "d"], most=3)
    ('a, b, c', 'a, b, …, d')
    """
    return ", ".join([*names[: most - 1], "…", names[-1]] if len(names) > most else names)


def plural(num: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "seed"), plural(1200, "seed")
    ('1 seed', '1,200 seeds')
    """
    return f"{num} {noun}" if num == 1 else f"{num:,} {noun}s"


def percent(share: float, decimals: int = 1) -> str:
    """A share in percent.

    >>> percent(0.9312), percent(0.0045, decimals=2)
    ('93.1 %', '0.45 %')
    """
    return f"{100 * share:.{decimals}f} %"


def points(difference: float, decimals: int = 1) -> str:
    """A difference in percentage points, with its sign.

    >>> points(0.0312), points(-0.004), points(0.0), points(-0.00004, decimals=2)
    ('+3.1', '−0.4', '0.0', '0.00')
    """
    text = f"{100 * difference:+.{decimals}f}"
    return text[1:] if not text.strip("+-0.") else text.replace("-", "−")


def duration(seconds: float) -> str:
    """A duration in the largest fitting units; "?" if unknown.

    >>> duration(0.4), duration(58.2), duration(75), duration(7300), duration(400_000)
    ('0.4 s', '58 s', '1 min 15 s', '2 h 02 min', '4.6 days')
    """
    if not seconds < float("inf"):
        return "?"
    if round(seconds, 1) < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours < 72 else f"{seconds / 86400:.1f} days"


def round_up(seconds: float) -> str:
    """A duration as --budget takes it, rounded up to minutes, from three hours on to hours.

    >>> round_up(30), round_up(61), round_up(10_799), round_up(10_801)
    ('1m', '2m', '180m', '4h')
    """
    return f"{math.ceil(seconds / 60)}m" if seconds <= 10_800 else f"{math.ceil(seconds / 3600)}h"


def clip(name: str, most: int = 60) -> str:
    """A name, shortened if it is long.

    >>> clip("cat"), clip("x" * 100, most=5)
    ('cat', 'xxxxx…')
    """
    return name if len(name) <= most else f"{name[:most]}…"


_MARKDOWN = str.maketrans({**{sign: f"\\{sign}" for sign in "\\`*_[]|"}, "<": "&lt;", ">": "&gt;"})


def markdown(text: str) -> str:
    """Text that Markdown shows as it stands: no markup, no HTML, no second column of a table.

    >>> print(markdown("![a|b](http://c)"))
    !\\[a\\|b\\](http://c)
    """
    return " ".join(text.split()).translate(_MARKDOWN)


def quoted(name: str, most: int = 60) -> str:
    """A name for use in a sentence: in quotes, shortened if long, isolated if written from right to left.

    >>> quoted("cat"), quoted("x" * 100, most=5), quoted("שלט") == "“\\u2068שלט\\u2069”"
    ('“cat”', '“xxxxx…”', True)
    """
    short = clip(name, most)
    is_foreign = any(unicodedata.bidirectional(sign) in ("R", "AL", "RLE", "RLO", "RLI", "LRO") for sign in short)
    return f"“\u2068{short}\u2069”" if is_foreign else f"“{short}”"


def visible(text: str) -> str:
    r"""Escape control characters, direction marks and undecodable bytes, so that no terminal acts on them.

    >>> print(visible("a\x1b[2J\nb\u202e"))
    a\x1b[2J\nb\u202e
    """
    if any("\ud800" <= sign <= "\udfff" for sign in text):  # bytes of a file's name that are not UTF-8
        text = os.fsencode(text).decode("utf-8", "backslashreplace")
    acts = {sign for sign in text if unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") or sign in _BIDI}
    return "".join(sign.encode("unicode_escape").decode() if sign in acts else sign for sign in text)


def csv_path(path: str) -> str:
    """A path as a CSV cell that no spreadsheet takes for a formula: "./" before it leads to the same file.

    >>> csv_path("=1+1.png"), csv_path("a.png")
    ('./=1+1.png', 'a.png')
    """
    shown = visible(path)
    return f"./{shown}" if _FORMULA.match(shown) else shown


def csv_cell(text: str) -> str:
    """A text as a CSV cell that no spreadsheet takes for a formula: an apostrophe before it, as OWASP's ASVS advises.

    Numbers stay as they are, for programs that read the file.

    >>> csv_cell("@SUM(A1)"), csv_cell("-1"), csv_cell("stop")
    ("'@SUM(A1)", '-1', 'stop')
    """
    shown = visible(text)
    is_number = re.fullmatch(r"[+-]?\d+(\.\d+)?", shown)
    return f"'{shown}" if _FORMULA.match(shown) and not is_number else shown


def csv_text(names: Sequence[str], records: Iterable[Mapping[str, Any]]) -> str:
    """Write the named fields as CSV; texts and headers go through `csv_cell`.

    >>> csv_text(["class", "recall"], [{"class": "=1+1", "recall": 0.5}, {"class": "stop", "recall": None}])
    "class,recall\\n'=1+1,0.5\\nstop,\\n"
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for row in (names, *([record.get(name) for name in names] for record in records)):
        writer.writerow([csv_cell(value) if isinstance(value, str) else value for value in row])
    return file.getvalue()
