"""`camri data`: download data sets and show their content."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camri.cli import options
from camri.errors import InputError, blame
from camri.files import replacing
from camri.text import clip, listed

if TYPE_CHECKING:
    from rich.console import Console

app = options.group("data", "Fetch the paper's data sets, and show what a data set holds.")

SKIPPED_SHOWN = 20
CLASSES_SHOWN = 60


@app.command(
    epilog=options.examples(
        "camri data get cifar10",
        "camri data get gtsrb --to ~/datasets",
        "Broken off? Run the same command again to resume.",
    )
)
def get(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="cifar10, gtsrb, awa2 (13 GB) or mnist.", show_default=False)
    ],
    to: Annotated[
        Path | None, typer.Option(help="Folder to put it into; default: $CAMRI_DATA or the user's data folder.")
    ] = None,
) -> None:
    """Download a data set from its official address and check it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from camri.data.download import OFFICIAL
    from camri.data.download import fetch_official as fetch
    from camri.files import data_folder

    bars: dict[str, Any] = {}
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    progress = Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True))
    with contextlib.ExitStack() as stack:

        def report(file: str, done: int, total: int | None) -> None:
            if not bars:  # not earlier: a refused name shows no bar
                stack.enter_context(progress)
            if file not in bars:
                bars[file] = progress.add_task(file, total=total)
            progress.update(bars[file], completed=done, total=total)

        folder, was_there = fetch(name, (to or data_folder()).expanduser(), report)
    about = f" ({OFFICIAL[name].about})" if not was_there else ""
    typer.echo(f"{name} is {'already ' if was_there else ''}in {folder}{about}")
    typer.echo(f"Show it with: camri data show {folder}")


@app.command(
    epilog=options.examples(
        "camri data show digits",
        "camri data show photos/ --sheet photos.png",
        "camri data show labels.csv --label-column diagnosis --path-column scan",
    )
)
def show(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A folder, table, .npz, archive, shards, or digits, mnist, cifar10 …"),
    ],
    sheet: Annotated[Path | None, typer.Option(help="Write a contact sheet (PNG) here.")] = None,
    size: options.Size = None,
    roi: options.Roi = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip unreadable images; count and list them.")] = False,
    verify: options.Verify = True,
    resident: options.Resident = None,
    path_column: options.PathColumn = None,
    label_column: options.LabelColumn = None,
    group_column: options.GroupColumn = None,
    split_column: options.SplitColumn = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what was recognised: rows per class and split, sizes, groups, duplicates across splits."""
    import json
    import warnings

    from rich.console import Console

    from camri.data import load
    from camri.data.describe import contact_sheet, describe
    from camri.data.listing import DataWarning

    load_options = {name: value for name, value in context.params.items() if name not in ("sheet", "as_json")}
    if sheet and sheet.suffix.lower() != ".png":
        raise InputError(f"sheet={str(sheet)!r} must end in .png", argument="sheet")
    with warnings.catch_warnings(), options.reading_progress() as progress:
        warnings.simplefilter("ignore", DataWarning)  # the summary lists them
        dataset = load(progress=progress, **load_options)
    summary = describe(dataset)
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        _print(summary, Console())
    if sheet:
        image, legend = contact_sheet(dataset)
        with blame("sheet"), replacing(sheet, "; choose another file") as part:
            image.save(part, "PNG")
        typer.echo(f"contact sheet: {sheet}", err=as_json)
        for number, name in legend.items():
            typer.echo(f"  {number}: {name}", err=as_json)


def _print(summary: dict[str, Any], console: "Console") -> None:
    from rich.markup import escape
    from rich.table import Table

    shape = " x ".join(map(str, summary["shape"]))
    rows = ", ".join(f"{count:,} {part}" for part, count in summary["rows"].items())
    kinds = f"{summary['layout']}; {summary['num_classes']:,} classes; {rows}"
    console.print(f"[bold]{escape(summary['name'])}[/bold]  {kinds}")
    axes = " (height x width x channels)" if summary["kind"] == "images" else ""
    console.print(f"{summary['kind']} of {shape}{axes}; {summary['memory']}")
    for line in _lines(summary):
        console.print(escape(line))
    table = Table("class", *summary["rows"], box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, counts in list(summary["classes"].items())[:CLASSES_SHOWN]:
        table.add_row(escape(clip(name)), *(f"{count:,}" for count in counts))
    console.print(table)
    if summary["num_classes"] > CLASSES_SHOWN:
        console.print(f"… and {summary['num_classes'] - CLASSES_SHOWN:,} more classes (--json lists all)")


def _lines(summary: dict[str, Any]) -> list[str]:
    """The lines between the heading and the table of classes."""
    lines = []
    if sizes := summary["original_sizes"]:
        (low_height, low_width), (high_height, high_width) = sizes["smallest"], sizes["largest"]
        if (low_height, low_width) != (high_height, high_width) or summary["shape"][:2] != [low_height, low_width]:
            lines.append(f"files are {low_height} x {low_width} to {high_height} x {high_width} pixels")
    if columns := summary["columns"]:
        unused = columns.pop("unused_columns", [])
        lines.append(", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in columns.items()))
        if unused:
            lines.append(f"unused columns: {listed(unused)}")
    if summary["verified"] is not None:
        lines.append(f"official content verified: {'yes' if summary['verified'] else 'no'}")
    for part, count in summary["groups"].items():
        lines.append(f"{count:,} groups in {part}; splits keep a group together")
    for step in summary["splits"]:
        lines.append(f"{step['part']}: {step['rows']:,} rows held out of train by {step['by']}, seed {step['seed']}")
    for pair in summary["duplicates"] if summary["kind"] == "features" else ():  # for images there is a note
        first, second = pair["splits"]
        lines.append(f"duplicates: {pair['count']:,} rows of {second} are also in {first}")
    if summary["copies_in_train"]:
        lines.append(f"copies: {summary['copies_in_train']:,} rows of train equal another; splits keep them together")
    lines += [f"note: {note}" for note in summary["notes"]]
    if summary["skipped"]:
        lines.append(f"skipped as unreadable: {len(summary['skipped'])}")
        lines += [f"  {entry['file']}: {entry['why']}" for entry in summary["skipped"][:SKIPPED_SHOWN]]
        if len(summary["skipped"]) > SKIPPED_SHOWN:
            lines.append(f"  … and {len(summary['skipped']) - SKIPPED_SHOWN:,} more (--json lists all)")
    return lines
