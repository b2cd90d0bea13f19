"""What `camri fit` prints: what was understood, the progress, the answer."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import typer
from rich.box import HEAVY_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column, Table

from camri.cli.text import log_to
from camri.fitting import Fitted, Progress, Unfinished, fit
from camri.fitting.request import Request
from camri.report.table import BLANK, percent, points, span
from camri.text import duration

COLUMNS = ("step", "recall", "hits/n", "accuracy", "false alarms", "recall added", "accuracy added")
NARROW_BELOW = 100
NARROW = {"false alarms": 6, "recall added": 8, "accuracy added": 8}  # of 80 columns 14 are left for "cross-entropy,"
PLAIN_WIDTH = 175  # of a table in a file, where nothing says how wide it may be


def show(*arguments: Any, **options: Any) -> None:
    """Nothing; does a fit and prints it. Exit code 130 where it was stopped before there was anything to hand back."""
    try:
        with _watching() as on_progress:
            fitted = fit(*arguments, on_start=print_request, on_progress=on_progress, **options)
    except Unfinished as end:
        typer.echo(f"camri: {end}", err=True)
        raise typer.Exit(130) from None
    print_fitted(fitted)


def print_request(request: Request) -> None:
    """What was understood, before anything is trained."""
    console, data = _console(), request.data
    rows = ", ".join(f"{len(split):,} {name}" for name, split in data.splits.items())
    kind = "x".join(map(str, data.input_shape)) + (" images" if data.is_image else " features")
    names = ", ".join(
        str(name) + ("" if strength == 1 else f" at {strength:g}")
        for name, strength in zip(request.important.classes, request.important.strengths, strict=True)
    )
    if names == "worst":
        names = "the class that cross-entropy recognises worst on validation data"
    limit = f"{request.num_trials:,} models" if request.num_trials else duration(request.budget_s or 0.0)
    given_up = f"; accuracy may fall by {100 * request.tolerance:g} points" if request.tolerance else ""
    for name, text in (
        ("data", f"{data.name}: {kind}, {data.num_classes} classes; {rows}"),
        ("important", names),
        ("model", f"{request.plain.model} on {request.device}"),
        ("budget", f"{limit}{given_up}"),
        ("folder", str(request.out)),
    ):
        console.print(f"{name + ':':<11}{escape(text)}", soft_wrap=True, highlight=False)


def print_fitted(fitted: Fitted) -> None:
    """The steps as a table, the answer below it, and where things are."""
    console = _console()
    widest = NARROW if console.width < NARROW_BELOW else {}
    table = Table(
        # A number that is cut would be another one.
        *(Column(name, overflow="fold", max_width=widest.get(name)) for name in COLUMNS),
        title=escape(f"{', '.join(fitted.important)}: {fitted.num_seeds} models of new seeds each, test data"),
        title_justify="left",
        box=HEAVY_HEAD if console.is_terminal else None,
        pad_edge=console.is_terminal,
    )
    for step in fitted.steps:
        one, is_last = step.figures, step.name == "together"
        gains = [
            BLANK
            if gain is None
            else span(gain.estimate, gain.low, gain.high)
            if fitted.has_intervals
            else points(gain.estimate)
            for gain in (step.recall_gain, step.accuracy_gain)
        ]
        alarms = percent(one.false_alarms)
        cells = [step.title, f"{one.recall:.3f}", f"{one.hits}/{one.num}", f"{one.accuracy:.3f}", alarms, *gains]
        table.add_row(*map(escape, cells), style="bold" if is_last else None)
    console.print(table)
    ends = "[..]: 95 %" if fitted.has_intervals else f"of {fitted.num_seeds} models there is no interval to tell"
    console.print(f"Points of a hundred over the row above, the last row over the first; {ends}.", markup=False)
    console.print("False alarms: data of no important class that are taken for one, in a hundred of all.")
    console.print()
    for line in fitted.answer.splitlines():
        console.print(line, markup=False, highlight=False, soft_wrap=not console.is_terminal)
    page = f"not written, altair or jinja2 is missing: pip install 'camri[report]', then camri report {fitted.out}"
    if fitted.page_path is not None:
        page = str(fitted.page_path)
    console.print(f"\nmodel: {fitted.model_path}\npage:  {page}", markup=False, highlight=False, soft_wrap=True)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


@contextlib.contextmanager
def _watching() -> Iterator[Callable[[Progress], None]]:
    """A function to call with the progress: it shows a bar on a terminal, a line now and then in a log."""
    console = Console(stderr=True)
    if not console.is_terminal:
        log = log_to(console)
        yield lambda progress: log(f"{progress.step}: {_rest(progress)}")
        return
    columns = (TextColumn("{task.description:28s}"), BarColumn(), TextColumn("{task.fields[rest]}"))
    with Bars(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("starting", total=1.0, rest="")

        def tell(progress: Progress) -> None:
            bars.update(bar, description=progress.step, completed=progress.part, rest=_rest(progress))

        yield tell


def _rest(progress: Progress) -> str:
    left = "" if progress.left_s is None else f", about {duration(progress.left_s)} left"
    return f"{progress.done:,}/{progress.total:,} {progress.unit}{left}"
