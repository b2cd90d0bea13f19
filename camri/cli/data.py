"""`camri data`: fetch data sets and see what was recognised."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camri.cli.options import GroupColumn, LabelColumn, PathColumn, Roi, Size, SplitColumn, Verify
from camri.cli.text import examples
from camri.errors import InputError
from camri.files import cannot_write
from camri.text import listed

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="data",
    help="Fetch the paper's data sets, and see what a data set holds.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

SKIPPED_SHOWN = 20
CLASSES_SHOWN = 60


@app.command(
    epilog=examples(
        "camri data get cifar10",
        "camri data get gtsrb --to ~/datasets",
        "Broken off? The same command goes on where it stopped.",
    )
)
def get(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="cifar10, gtsrb, awa2 (13 GB) or mnist.", show_default=False)
    ],
    to: Annotated[
        Path | None, typer.Option(help="Folder to put it into; without it $CAMRI_DATA or the user's data folder.")
    ] = None,
) -> None:
    """Fetch a data set from its official address; it is there when all of it has arrived and was checked."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from camri.data.cache import data_folder
    from camri.data.download import OFFICIAL
    from camri.data.download import fetch_official as fetch

    bars: dict[str, Any] = {}
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=console)
    with contextlib.ExitStack() as stack:

        def report(file: str, done: int, total: int | None) -> None:
            if not bars:  # not before there is something to show: a name that is refused has no bar
                stack.enter_context(progress)
            if file not in bars:
                bars[file] = progress.add_task(file, total=total)
            progress.update(bars[file], completed=done, total=total)

        folder, was_there = fetch(name, (to or data_folder()).expanduser(), report)
    about = f" ({OFFICIAL[name].about})" if not was_there else ""
    typer.echo(f"{name} is {'already ' if was_there else ''}in {folder}{about}")
    typer.echo(f"See it with: camri data show {folder}")


@app.command(
    epilog=examples(
        "camri data show digits",
        "camri data show photos/ --sheet photos.png",
        "camri data show labels.csv --label-column diagnosis --path-column scan",
    )
)
def show(
    source: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A folder, table, .npz, archive, or digits, mnist, cifar10, gtsrb, awa2."),
    ],
    sheet: Annotated[Path | None, typer.Option(help="Write a contact sheet (PNG) here.")] = None,
    size: Size = None,
    roi: Roi = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out unreadable images, count and list them.")
    ] = False,
    verify: Verify = True,
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    group_column: GroupColumn = None,
    split_column: SplitColumn = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """What was recognised: counts per class and split, sizes, groups, duplicates across splits."""
    import json
    import warnings

    from rich.console import Console

    from camri.cli.text import reading_progress
    from camri.data import load
    from camri.data.describe import contact_sheet, describe
    from camri.data.listing import DataWarning

    if sheet and sheet.suffix.lower() != ".png":
        raise InputError(f"--sheet {sheet} must end in .png")
    with warnings.catch_warnings(), reading_progress() as progress:
        warnings.simplefilter("ignore", DataWarning)  # the summary has them
        dataset = load(
            source,
            size=size,
            roi=roi,
            skip_bad=skip_bad,
            verify=verify,
            path_column=path_column,
            label_column=label_column,
            group_column=group_column,
            split_column=split_column,
            progress=progress,
        )
    told = describe(dataset)
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    else:
        _print(told, Console())
    if sheet:
        try:
            contact_sheet(dataset).save(sheet)
        except OSError as error:
            raise cannot_write(sheet, error, "; choose another file", argument="sheet") from None
        typer.echo(f"contact sheet: {sheet}", err=as_json)


def _print(told: dict[str, Any], console: "Console") -> None:
    from rich.markup import escape
    from rich.table import Table

    shape = " x ".join(map(str, told["shape"]))
    rows = ", ".join(f"{count:,} {part}" for part, count in told["rows"].items())
    console.print(f"[bold]{escape(told['name'])}[/bold]  {told['layout']}; {told['num_classes']:,} classes; {rows}")
    console.print(f"{told['kind']} of {shape}{' (height x width x channels)' if told['kind'] == 'images' else ''}")
    for line in _remarks(told):
        console.print(escape(line))
    table = Table("class", *told["rows"], box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, counts in list(told["classes"].items())[:CLASSES_SHOWN]:
        table.add_row(escape(name), *(f"{count:,}" for count in counts))
    console.print(table)
    if told["num_classes"] > CLASSES_SHOWN:
        console.print(f"… and {told['num_classes'] - CLASSES_SHOWN:,} more classes (--json lists all)")


def _remarks(told: dict[str, Any]) -> list[str]:
    """What else is to be told, a line each."""
    lines = []
    if sizes := told["original_sizes"]:
        (low_height, low_width), (high_height, high_width) = sizes["smallest"], sizes["largest"]
        if (low_height, low_width) != (high_height, high_width) or told["shape"][:2] != [low_height, low_width]:
            lines.append(f"files are {low_height} x {low_width} to {high_height} x {high_width} pixels")
    if columns := told["columns"]:
        unused = columns.pop("unused_columns", [])
        lines.append(", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in columns.items()))
        if unused:
            lines.append(f"columns that are not used: {listed(unused)}")
    if told["verified"] is not None:
        lines.append(f"official content verified: {'yes' if told['verified'] else 'no'}")
    for part, count in told["groups"].items():
        lines.append(f"{count:,} groups in {part}; splits keep a group together")
    for step in told["splits"]:
        lines.append(f"{step['part']}: {step['rows']:,} rows held out of train by {step['by']}, seed {step['seed']}")
    for found in told["duplicates"] if told["kind"] == "features" else ():  # of images the notes tell
        one, other = found["splits"]
        lines.append(f"duplicates: {found['count']:,} rows of {other} are also in {one} (exactly)")
    if told["copies_in_train"]:
        lines.append(
            f"copies: {told['copies_in_train']:,} rows of train are the same as another; splits keep them together"
        )
    lines += [f"note: {note}" for note in told["notes"]]
    if told["skipped"]:
        lines.append(f"left out as unreadable: {len(told['skipped'])}")
        lines += [f"  {entry['file']}: {entry['why']}" for entry in told["skipped"][:SKIPPED_SHOWN]]
        if len(told["skipped"]) > SKIPPED_SHOWN:
            lines.append(f"  … and {len(told['skipped']) - SKIPPED_SHOWN:,} more (--json lists all)")
    return lines
