"""Help texts, and names of files and classes made safe for terminals and spreadsheets.

How far something is: a bar on a terminal, a line now and then in a log.
"""

import contextlib
import os
import re
import time
import unicodedata
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress

_FORMULA = re.compile(r"\s*[=+\-@\t\r\0]")
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def examples(*lines: str) -> str:
    """The examples below a command's help."""
    return "[bold]Examples[/bold]\n\n" + "\n\n".join(lines)


def unwrap(text: str) -> str:
    """A docstring as help: its paragraphs on one line each, for a terminal of any width; indented ones stay.

    >>> print(unwrap("One line\\nand another.\\n\\n  camri fit\\n  camri demo"))
    One line and another.
    <BLANKLINE>
      camri fit
      camri demo
    """
    parts = text.split("\n\n")
    return "\n\n".join(part if part.startswith(" ") else part.replace("\n", " ") for part in parts)


def visible(text: str) -> str:
    r"""The text with control characters, direction marks and stray bytes written out: no terminal acts on it.

    >>> print(visible("a\x1b[2J\nb\u202e"))
    a\x1b[2J\nb\u202e
    """
    text = os.fsencode(text).decode("utf-8", "backslashreplace") if _has_surrogates(text) else text
    return "".join(sign.encode("unicode_escape").decode() if _acts(sign) else sign for sign in text)


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= sign <= "\udfff" for sign in text)


def _acts(sign: str) -> bool:
    return unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") or sign in _BIDI


def file_cell(path: str) -> str:
    """A path as a CSV cell that no spreadsheet takes for a formula; "./" leads to the same file.

    >>> file_cell("=1+1.png"), file_cell("a.png")
    ('./=1+1.png', 'a.png')
    """
    shown = visible(path)
    return f"./{shown}" if _FORMULA.match(shown) else shown


def cell(text: str) -> str:
    """A text as a CSV cell that no spreadsheet takes for a formula: an apostrophe before it, as OWASP's ASVS has it.

    A number stays one: it is no formula, and programs that read the file want it.

    >>> cell("@SUM(A1)"), cell("-1"), cell("stop")
    ("'@SUM(A1)", '-1', 'stop')
    """
    shown = visible(text)
    return f"'{shown}" if _FORMULA.match(shown) and not _is_number(shown) else shown


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+(\.\d+)?", text) is not None


LOG_EVERY_S = 30.0


def log_to(console: Console) -> Callable[[str], None]:
    """A function that prints a line, but at most one in `LOG_EVERY_S` seconds, and none in the first of them."""
    told = time.monotonic()

    def log(line: str) -> None:
        nonlocal told
        if time.monotonic() - told > LOG_EVERY_S:
            told = time.monotonic()
            console.print(line, soft_wrap=True, highlight=False)

    return log


@contextlib.contextmanager
def reading_progress() -> Iterator[Callable[[int, int], None]]:
    """A function to call with (rows read, rows in all); nothing is shown until it is called."""
    console = Console(stderr=True)
    if not console.is_terminal:
        log = log_to(console)
        yield lambda done, num: log(f"reading the data: {done:,}/{num:,} rows")
        return
    with Progress(console=console, transient=True) as bars:
        bar = bars.add_task("reading the data", total=None, visible=False)
        yield lambda done, num: bars.update(bar, completed=done, total=num, visible=True)
