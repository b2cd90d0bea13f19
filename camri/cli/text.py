"""Help texts, and names of files and classes made safe for terminals and spreadsheets."""

import os
import re
import unicodedata

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
