"""How far something is: a bar on a terminal, a line now and then in a log."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress

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
def reading() -> Iterator[Callable[[int, int], None]]:
    """A function to call with (rows read, rows in all); nothing is shown until it is called."""
    console = Console(stderr=True)
    if not console.is_terminal:
        log = log_to(console)
        yield lambda done, num: log(f"reading the data: {done:,}/{num:,} rows")
        return
    with Progress(console=console, transient=True) as bars:
        bar = bars.add_task("reading the data", total=None, visible=False)
        yield lambda done, num: bars.update(bar, completed=done, total=num, visible=True)
