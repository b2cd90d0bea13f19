"""What `camri fit` prints: the request, the progress, the result."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn

from camri.cli.options import progress_bar
from camri.data import Split, hold_out, load, make_test, thin_out
from camri.data.dataset import assemble
from camri.decision.goals import AtLeast, MostRecall
from camri.fitting import Fitted, Progress, Unfinished
from camri.fitting.handover import can_draw
from camri.fitting.job import run_fit
from camri.fitting.request import Request, make_request, model_name
from camri.report.fit_words import asked, compose
from camri.text import clip, duration, percent, plural

MOST_CAUTIONS = 2  # on a terminal; the card has all
BAR = 30


def show(began: float, *arguments: Any, **options: Any) -> None:
    """Fit and print; exit with 130 if it was stopped before there was a model."""
    try:
        with _watching() as on_progress:
            request = make_request(*arguments, **options, on_progress=on_progress)
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
            f"{clip(data.classes[index])} ({', '.join(f'{int(counts[part][index]):,} {part}' for part in parts)})"
            + ("" if strength == 1 else f" at strength {strength:g}")
            for index, strength in column
        )
    limit = plural(request.num_trials, "model") if request.num_trials else duration(request.budget_s or 0.0)
    goal, aim = request.goal, "; least cost"
    if isinstance(goal, MostRecall):
        drop = goal.max_accuracy_drop
        aim = f"; accuracy may drop by {100 * drop:g} points" if drop else ""
    elif isinstance(goal, AtLeast):
        aim = f"; fewest false alarms at a recall of {asked(goal)}"
    _print(
        f"{data.name}: {kind}, {data.num_classes} classes; {splits}",
        f"Important: {important}",
        f"Model: {model_name(request.plain, data)} on {request.device}. Budget: {limit}{aim}. Folder: {request.out}",
        "",
    )


def print_fitted(fitted: Fitted) -> None:
    """Print the result: the model, the verdict, the evidence, and where the files are."""
    lines = compose(fitted.answer)
    cautions = [line for line in lines if line.startswith("Caution: ")]
    for line in cautions[MOST_CAUTIONS:]:
        lines.remove(line)
    page = str(fitted.page_path)
    if fitted.page_path is None:
        install = "" if can_draw() else "pip install 'camri[report]', then "
        page = f"not written yet: {install}camri report {fitted.out}"
    _print(*lines, f"Model   {fitted.model_path}", f"Report  {page}")
    _print(f"Try it  camri predict {fitted.model_path} FILES")


def _print(*lines: str) -> None:
    console = Console()
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=not console.is_terminal)


@contextlib.contextmanager
def _watching() -> Iterator[Callable[[Progress], None]]:
    """A function to call with the progress: a bar on a terminal, a line now and then in a log."""
    columns = (BarColumn(BAR), TextColumn("{task.description}"), TextColumn("{task.fields[rest]}"))
    with progress_bar(*columns, description="starting", rest="") as update:

        def report(progress: Progress) -> None:
            rest = "" if progress.left_s is None else f"{duration(progress.left_s)} left"
            update(
                f"{progress.stage}, {percent(progress.part, 0)} of the budget", description=progress.stage,
                completed=progress.part, rest=rest,
            )  # fmt: skip

        yield report


# Counted, not timed: the same figures on every machine of one kind; about a minute on two cores.
DEMO_TRIALS = 24
DEMO_EPOCHS = 48
DEMO_CLASS, DEMO_PART = "8", 0.15  # the only class that was tried; docs/fit.md lists the tries
DEMO_TEST, DEMO_VAL = 0.5, 0.25  # of all rows, and of the rest: 87 and 22 of the class
DEMO_SPLIT = 5  # the seed of the split: its gain is near the mean of the six that were tried
NEXT = """
Next
  camri fit your_data/ --important CLASS --budget 10m    your own data: images or a table
  camri audit scores.csv --important CLASS               a model you have: no training
  {predict:<52}   the model of this demo at work"""


def run_demo(out: Path) -> None:
    """Fit digits with a class that is rare in training, and print the result and what to try next."""
    digits = load("digits")
    train, test = digits.splits["train"], digits.splits["test"]
    rows = Split(torch.cat([train.inputs[:], test.inputs[:]]), torch.cat([train.labels, test.labels]))
    whole = assemble("digits", digits.classes, {"train": rows}, {})
    data = hold_out(make_test(whole, fraction=DEMO_TEST, seed=DEMO_SPLIT), "val", DEMO_VAL, DEMO_SPLIT)
    data = thin_out(data, {DEMO_CLASS: DEMO_PART})
    _print(f"Demo: digits, of whose “{DEMO_CLASS}” only {percent(DEMO_PART, 0)} are left to train on.")
    show(time.monotonic(), data, DEMO_CLASS, out, num_trials=DEMO_TRIALS, epochs=DEMO_EPOCHS, device="cpu")
    _print(NEXT.format(predict=f"camri predict {out / 'model'} photo.png"))
