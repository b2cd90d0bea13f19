"""What `camri fit` prints: the request, the progress, the result."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from rich.box import HEAVY_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column, Table

from camri.cli.options import log_to
from camri.fitting import Fitted, Progress, Unfinished
from camri.fitting.answer import compose, steps_table
from camri.fitting.job import run_fit
from camri.fitting.request import Request, make_request
from camri.text import duration, plural

NARROW_BELOW = 100
NARROW = {"false alarms": 6, "recall gained": 8, "accuracy gained": 8}  # widths that leave room for words in 80 columns
PLAIN_WIDTH = 175  # of a table in a file, which has no width of its own


def show(began: float, *arguments: Any, **options: Any) -> None:
    """Fit and print; exit with 130 if it was stopped before there was a model."""
    try:
        with _watching() as on_progress:
            request = make_request(
                *arguments, **options, on_read=lambda done, num: on_progress(Progress("reading data", done, num))
            )
            print_request(request)
            fitted = run_fit(request, began, on_progress)
    except Unfinished as end:
        typer.echo(f"camri: {end}", err=True)
        raise typer.Exit(130) from None
    print_fitted(fitted)


def print_request(request: Request) -> None:
    """Print what was understood, before anything is trained."""
    data, parts = request.data, ("train", "val", "test")
    splits = ", ".join(f"{len(data.splits[part]):,} {part}" for part in parts)
    kind = "x".join(map(str, data.input_shape)) + (" images" if data.is_image else " features")
    important = "the class with the lowest validation recall"
    if (column := request.resolved()) is not None:
        counts = {part: data.class_counts(part) for part in parts}
        important = "; ".join(
            f"{data.classes[index]} ({', '.join(f'{int(counts[part][index]):,} {part}' for part in parts)})"
            + ("" if strength == 1 else f" at strength {strength:g}")
            for index, strength in column
        )
    limit = plural(request.num_trials, "model") if request.num_trials else duration(request.budget_s or 0.0)
    drop = f"; accuracy may drop by {100 * request.max_accuracy_drop:g} points" if request.max_accuracy_drop else ""
    _print(
        f"{data.name}: {kind}, {data.num_classes} classes; {splits}",
        f"Important: {important}",
        f"Model: {request.plain.model} on {request.device}. Budget: {limit}{drop}. Folder: {request.out}",
        "",
    )


def print_fitted(fitted: Fitted) -> None:
    """Print the result: the model, the verdict, the table of steps, the rest, and where the files are."""
    console, steps = _console(), steps_table(fitted)
    widest = NARROW if console.width < NARROW_BELOW else {}
    table = Table(
        *(Column(name, overflow="fold", max_width=widest.get(name)) for name in steps["header"]),  # cut no number
        box=HEAVY_HEAD if console.is_terminal else None,
        pad_edge=console.is_terminal,
    )
    for cells in steps["rows"]:
        table.add_row(*map(escape, cells), style="bold" if cells is steps["rows"][-1] else None)
    headline, verdict, *details = compose(fitted)
    _print(headline, verdict, "")
    console.print(table, highlight=False)
    page = str(fitted.page_path)
    if fitted.page_path is None:
        page = f"not written: pip install 'camri[report]', then camri report {fitted.out}"
    files = (f"Model   {fitted.model_path}", f"Report  {page}", f"Try it  camri predict {fitted.model_path} FILES")
    _print(steps["note"], "", *details, "", *files)


def _print(*lines: str) -> None:
    console = _console()
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


@contextlib.contextmanager
def _watching() -> Iterator[Callable[[Progress], None]]:
    """A function to call with the progress: a bar on a terminal, a line now and then in a log."""
    console = Console(stderr=True)
    if not console.is_terminal:
        log = log_to(console)
        yield lambda progress: log(f"{progress.stage} {_rest(progress)}")
        return
    columns = (BarColumn(), TextColumn("{task.description}"), TextColumn("{task.fields[rest]}"))
    with Bars(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("starting", total=None, rest="")
        yield lambda progress: bars.update(
            bar,
            description=progress.stage,
            completed=progress.done,
            total=progress.total or None,
            rest=_rest(progress),
        )


def _rest(progress: Progress) -> str:
    count = f"{progress.done:,}/{progress.total:,}" if progress.total else ""
    return count + ("" if progress.left_s is None else f"   {duration(progress.left_s)} left")


# Counted, not timed: the same figures on every machine of one kind; about a minute on two cores.
DEMO_TRIALS = 72
DEMO_EPOCHS = 12


def run_demo(out: Path) -> None:
    """Fit digits with its weakest class as the important one, and print the result."""
    show(time.monotonic(), "digits", None, out, num_trials=DEMO_TRIALS, epochs=DEMO_EPOCHS, device="cpu")
