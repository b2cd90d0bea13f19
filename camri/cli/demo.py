"""`camri demo`: progress while it trains, then a table."""

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from camri import demo
from camri.engine import Progress as Report


def show(num_seeds: int) -> None:
    console = Console()
    columns = (
        TextColumn("{task.description:32s}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        whole = bars.add_task("starting", total=3 * num_seeds)
        finished: dict[str, float] = {}

        def tell(title: str, report: Report) -> None:
            finished[title] = report.part * num_seeds
            bars.update(whole, description=title, completed=sum(finished.values()))

        found = demo.run(num_seeds, tell)
        bars.update(whole, description="done", completed=3 * num_seeds)
    name = found.data.classes[found.important]
    table = Table(title=f"Digits, important class “{name}”: {num_seeds} models of each method, test images")
    table.add_column("method")
    table.add_column(f"recall of “{name}”", justify="right")
    table.add_column("hits", justify="right")
    table.add_column("accuracy", justify="right")
    for row in found.rows:
        table.add_row(row.title, spread(row.recall), f"{row.hits}/{row.num}", spread(row.accuracy))
    console.print(table)
    console.print("Mean ± sd over models. The important class and the shift were chosen on validation images.")


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation.

    >>> spread([0.9, 1.0])
    '0.950 ± 0.071'
    """
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"
