"""How far data are read: a bar on a terminal, a line now and then in a log."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress

LOG_EVERY_S = 30.0


@contextlib.contextmanager
def reading() -> Iterator[Callable[[int, int], None]]:
    """What hears (rows read, rows in all); nothing is shown of data that are there at once."""
    console = Console(stderr=True)
    if not console.is_terminal:
        told = time.monotonic()

        def log(done: int, num: int) -> None:
            nonlocal told
            if time.monotonic() - told > LOG_EVERY_S:
                told = time.monotonic()
                console.print(f"reading the data: {done:,}/{num:,} rows", soft_wrap=True, highlight=False)

        yield log
        return
    with Progress(console=console, transient=True) as bars:
        bar = bars.add_task("reading the data", total=None, visible=False)
        yield lambda done, num: bars.update(bar, completed=done, total=num, visible=True)
