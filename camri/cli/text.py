"""Help texts, and progress: a bar on a terminal, a line now and then in a log."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress


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


LOG_EVERY_S = 30.0


def log_to(console: Console) -> Callable[[str], None]:
    """A function that prints a line at most every `LOG_EVERY_S` seconds, the first one after as long."""
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
