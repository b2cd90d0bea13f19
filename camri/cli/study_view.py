"""What `camri study` prints."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn
from rich.table import Column, Table

from camri.cli.options import progress_bar
from camri.engine import Progress, Training
from camri.files import STDOUT
from camri.methods import MARGIN_UNIT
from camri.methods import method as find_method
from camri.study.finalists import Finalist, Status
from camri.study.recipes import RECIPES
from camri.study.runner import Result
from camri.study.spec import Study
from camri.text import duration, plural, visible

NOTES_SHOWN = 5
NONE_REACHES = "– none is as accurate as ce –"


def print_recipes() -> None:
    # Names are not wrapped or cut: they are typed.
    table = Table(Column("name", no_wrap=True), "settings", "trials", "about", box=None, pad_edge=False)
    for recipe in RECIPES.values():
        study = recipe()
        columns = study.placeholders()
        settings, trials = len(study.unique_settings(columns)), len(study.trials(columns))
        table.add_row(recipe.name, f"{settings:,}", f"{trials:,}", escape(recipe.about))
    console = Console()
    console.print(table)
    console.print("Details: camri study show NAME. For your own study write a TOML file, see docs/study.md.")


def print_study(study: Study) -> None:
    console = Console()
    columns, training = study.placeholders(), study.training
    every, unique = list(study.settings(columns)), study.unique_settings(columns)
    split = f", found on {study.important_from}" if study.symbols else ""
    console.print(f"[bold]{escape(study.name)}[/bold]  {study.key}")
    rare = "".join(f", {name} thinned to {100 * part:g} % of its train rows" for name, part in study.thin)
    console.print(f"data: {escape(study.data)}, validation {study.val_fraction:g} of the train split{escape(rare)}")
    console.print(f"columns: {escape('; '.join(map(str, study.important)))}{split}")
    console.print(
        f"training: model {training.model}, {training.epochs} epochs of batch {training.batch_size}, "
        f"{training.optimizer} {training.learning_rate:g}{_unusual(training)}"
    )
    table = Table("method", "settings", "values", box=None, pad_edge=False)
    for grid in study.methods:
        num = sum(setting.method == grid.method for _, setting in every)
        axes = "; ".join(f"{knob} {_shown(grid.method, knob, values)}" for knob, values in grid.axes)
        axes += " – not all combinations" if grid.points else ""
        table.add_row(grid.method, f"{num:,}", axes)
    console.print(table)
    num_seeds = len(study.seeds)
    console.print(
        f"{len(every):,} settings, {len(unique):,} after merging those that train the same; × {num_seeds} seeds = "
        f"{len(unique) * num_seeds:,} trials"
    )


def _shown(method: str, knob: str, values: tuple[float, ...]) -> str:
    if find_method(method).knobs[knob].is_angle:
        return ", ".join(f"{value / MARGIN_UNIT:.4g}π/64" if value else "0" for value in values)
    return ", ".join(f"{value:.4g}" for value in values)


def _unusual(training: Training) -> str:
    """The training's fields that differ from the default and are not shown elsewhere."""
    shown, usual = ("model", "epochs", "batch_size", "optimizer", "learning_rate"), Training().to_json()
    values = {name: value for name, value in training.to_json().items() if name not in shown}
    return "".join(f", {escape(f'{name} {value}')}" for name, value in values.items() if value != usual.get(name))


def print_cost(study: Study, device: str) -> None:
    from camri.data.parallel import num_cores
    from camri.engine.training import pick_device
    from camri.study.runner import estimate

    cost = estimate(study, pick_device(device), num_cores())
    Console().print(
        f"cost on {cost.device}: about {duration(cost.total_s)}, {duration(cost.trial_s)} a trial, "
        f"{cost.images_per_s:,.0f} inputs/s ({cost.source})"
    )


@contextlib.contextmanager
def watching() -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows a run's progress: a bar on a terminal, a line every 30 s in a log."""
    columns = ("{task.fields[trials]}", BarColumn(), "{task.percentage:>3.0f} %", "{task.fields[rest]}")
    with progress_bar(*columns, trials="loading", rest="") as update:

        def show(progress: Progress) -> None:
            failed = f", {progress.failed} failed" if progress.failed else ""
            trials, rest = f"{progress.done:,}/{progress.total:,} trials{failed}", _rest(progress)
            update(f"{trials}, {rest}", completed=progress.part, trials=trials, rest=rest)

        yield show


def _rest(progress: Progress) -> str:
    live = {"recall": progress.recall, "accuracy": progress.accuracy}
    parts = [f"{progress.images_per_s:,.0f} inputs/s"] if progress.images_per_s else ["starting"]
    parts += [f"{duration(progress.left_s)} left"] if progress.left_s < float("inf") else []
    return ", ".join(parts + [f"{name} {value:.3f}" for name, value in live.items() if value is not None])


def print_result(result: Result, out: Path) -> None:
    console = Console()
    console.print(f"{escape(str(out))}: {result.done:,} done, {result.new:,} of them now", soft_wrap=True)
    if result.first_error is not None:
        console.print(f"first failure: {escape(visible(result.first_error))}", soft_wrap=True, highlight=False)
    if not result.finished:
        console.print(f"stopped, {result.pending:,} trials to go: the same command resumes")
    if result.failed:
        console.print(f"{plural(result.failed, 'trial')} failed; --retry-failed trains them again", soft_wrap=True)


def print_status(status: Status, folder: Path) -> None:
    console = Console()
    running = f", {status.progress.running} running" if status.progress else ""
    console.print(
        f"[bold]{escape(', '.join(status.names))}[/bold] in {escape(str(folder))}: {status.done:,} of {status.total:,} "
        f"done, {status.failed:,} failed, {status.pending:,} pending{running}"
    )
    if status.pid is not None:
        console.print(f"running now: process {status.pid}")
    if status.pending and status.left_s is not None and status.left_s < float("inf"):
        of_device = "" if status.progress else " of the device that ran it"
        console.print(f"time left: about {duration(status.left_s)}{of_device}")
    if status.retried:
        console.print(f"tried more than once: {status.retried}")
    for line in status.errors[:NOTES_SHOWN]:
        console.print(f"failed: {escape(visible(line))}", soft_wrap=True, highlight=False)
    if len(status.errors) > NOTES_SHOWN:
        console.print(f"… and {len(status.errors) - NOTES_SHOWN:,} more; camri report lists them all")
    if not status.columns:
        console.print("important classes: found when the cross-entropy trials have ended")
    if status.best:
        what = "validation" if status.split == "val" else "test data, so optimistic:"
        so_far = " so far" if status.pending else ""
        console.print(
            f"best{so_far}, {what} recall at no less than cross-entropy's accuracy, each after its best shift:"
        )
        rows = []
        for best in status.best:
            cells = [str(best.setting), str(best.num_seeds), f"{best.recall:.4f}", f"{best.accuracy:.4f}"]
            shown = cells if best.reaches_floor else [NONE_REACHES, "", "", ""]
            rows.append((best.column.title, [best.method, *shown]))
        _print_by_column(console, ["method", "best setting", "seeds", "recall", "accuracy"], rows)


def _print_by_column(console: Console, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Print rows (important classes, cells) as a table, with several columns of the study a table for each.

    The tables have the same widths if the terminal is wide enough.
    """
    widths = [max(map(len, texts)) for texts in zip(heads, *(cells for _, cells in rows), strict=True)]
    is_wide = sum(widths) + 2 * len(widths) <= console.width
    titles = list(dict.fromkeys(title for title, _ in rows))
    for title in titles:
        if len(titles) > 1:
            console.print(f"\n[bold]{escape(title)}[/bold]", highlight=False)
        table = Table(box=None, pad_edge=False)
        for head, width in zip(heads, widths, strict=True):
            table.add_column(head, min_width=width if is_wide else None)
        for column, cells in rows:
            if column == title:
                table.add_row(*map(escape, cells))
        console.print(table)


def print_finalists(finalists: Sequence[Finalist], finals: Study, out: Path, screening: Status) -> None:
    console = Console(stderr=str(out) == STDOUT)
    if screening.pending or screening.failed:
        console.print(
            f"[bold]The screening is incomplete[/bold]: {screening.pending:,} trials pending, {screening.failed:,} "
            "failed; settings without an outcome were left out"
        )
    many = len({finalist.column.number for finalist in finalists}) > 1
    rows = []
    for finalist in finalists:
        recall = f"{finalist.recall:.4f}" if finalist.reaches_floor else NONE_REACHES
        same = finalist.setting.canonical().method
        title = f"{finalist.setting}" + (f" (trains as {same})" if same != finalist.method else "")
        edges = ", ".join(edge.knob for edge in finalist.edges)
        counts = [str(finalist.num_seeds), str(finalist.num_settings)]
        cells = [finalist.method, title, recall, f"{finalist.accuracy:.4f}", *counts, edges]
        rows.append((finalist.column.title, cells))
    console.print("validation recall at no less than cross-entropy's accuracy, each after its best shift:")
    heads = ["method", "finalist", "recall", "accuracy", "seeds", "chosen from", "edge"]
    _print_by_column(console, heads, rows)
    for finalist in finalists:
        for edge in finalist.edges:
            value, beyond = (_shown(finalist.method, edge.knob, (number,)) for number in (edge.value, edge.beyond))
            where = f" for {escape(finalist.column.title)}" if many else ""
            console.print(
                f"the best of {finalist.method}{where} is at the edge of its grid, {edge.knob} {value}: screen "
                f"{finalist.method}.{edge.knob}={beyond} too before the finals",
                soft_wrap=True,
            )
    trials = len(finals.trials(finals.placeholders()))
    seeds = ", ".join(map(str, finals.seeds))
    console.print(
        f"{escape(str(out))}: {trials:,} trials, {finals.training.epochs} epochs, seeds {seeds}", soft_wrap=True
    )
    console.print(f"camri study run {escape(str(out))} --out …", soft_wrap=True)
