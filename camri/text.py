"""Names and quantities in the words that every terminal, page and card has for them."""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

ROWS_SHOWN = 3


class Noun(NamedTuple):
    """What one input and several of them are called."""

    one: str
    many: str


def noun_of(input_shape: Sequence[int]) -> Noun:
    """What inputs of a shape are called: (D,) are a table's rows, (H, W, C) images.

    Sentences that need no such word say "test data": this is for those that count.

    >>> noun_of((30,)).many, noun_of((32, 32, 3)).many
    ('rows', 'images')
    """
    return Noun("row", "rows") if len(input_shape) == 1 else Noun("image", "images")


def name_rows(rows: Sequence[int], num_rows: int) -> str:
    """Some of a table's rows, by the numbers of the first, and how many they are.

    >>> name_rows([4], 90), name_rows([4, 7], 90), name_rows([4, 7, 8, 9], 90)
    ('row 4', 'rows 4, 7 (2 of 90)', 'rows 4, 7, 8, … (4 of 90)')
    """
    if len(rows) == 1:
        return f"row {rows[0]}"
    more = ", …" if len(rows) > ROWS_SHOWN else ""
    return f"rows {', '.join(map(str, rows[:ROWS_SHOWN]))}{more} ({len(rows):,} of {num_rows:,})"


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names in a row; of more than `most` the first and the last, which is where tables often have their label.

    >>> listed(["a", "b", "c"], most=3), listed(["a", "b", "c", "d"], most=3)
    ('a, b, c', 'a, b, …, d')
    """
    return ", ".join([*names[: most - 1], "…", names[-1]] if len(names) > most else names)


def plural(num: int, noun: str) -> str:
    """
    >>> plural(1, "seed"), plural(1200, "seed")
    ('1 seed', '1,200 seeds')
    """
    return f"{num} {noun}" if num == 1 else f"{num:,} {noun}s"


def percent(share: float, decimals: int = 1) -> str:
    """
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
    """A duration as people say it; "?" where nobody knows it.

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


def quoted(name: str, most: int = 60) -> str:
    """A name within a sentence: in quotes, cut where it is long, and apart where it is written from right to left.

    >>> quoted("cat"), quoted("x" * 100, most=5), quoted("שלט") == "“\\u2068שלט\\u2069”"
    ('“cat”', '“xxxxx…”', True)
    """
    short = name if len(name) <= most else f"{name[:most]}…"
    is_foreign = any(unicodedata.bidirectional(sign) in ("R", "AL", "RLE", "RLO", "RLI", "LRO") for sign in short)
    return f"“\u2068{short}\u2069”" if is_foreign else f"“{short}”"
