"""`camri audit`: what a model trained elsewhere could gain from a shift. Works without torch."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from camri.errors import InputError

if TYPE_CHECKING:
    from camri.auditing import Audit


def audit(
    scores: Annotated[
        Path,
        typer.Argument(metavar="SCORES", help="A table of labels and scores, one column a class: CSV, parquet, npz."),
    ],
    important: Annotated[list[str], typer.Option(help="A class that must not be missed; may be given several times.")],
    label_column: Annotated[str | None, typer.Option(help="Column with the labels, names or numbers from 0.")] = None,
    split_column: Annotated[
        str | None, typer.Option(help="Column with val and test: tune on one, judge on the other.")
    ] = None,
    group_column: Annotated[
        str | None,
        typer.Option("--group", "--group-column", help="Column with what rows belong together: patient, film, track."),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--scores-are", help="logits or probabilities; found out unless told.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--keep-accuracy", help="Accuracy that may be given up: 0.01 for a point.")
    ] = 0.0,
    at_least: Annotated[
        float | None, typer.Option(help="A recall to promise of new rows: the shift for it and what it costs.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="How sure the promise is to be.")] = 0.95,
    out: Annotated[Path | None, typer.Option(help="Write a page with the curve and the tables (.html) here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """What the important classes' recall is, what a shift of their scores would add, and how sure that is.

    Nothing is trained: the scores of any model on rows it was not trained on are enough. The shift is tuned on part of
    the rows and judged on the others. Without --split-column (or a column called split) the parts take turns. With
    --group (or a column called group) rows of one patient, film or track stay together, and intervals count them for
    what they are worth. With --at-least it says which shift promises such a recall of new rows, or how many rows that
    takes.

    [bold]Examples[/bold]

      camri audit scores.csv --important stop
      camri audit scores.csv --important stop --important yield --out audit.html
      camri audit scores.csv --important melanoma --group patient
      camri audit scores.npz --important melanoma --keep-accuracy 0.005
      camri audit scores.csv --important melanoma --at-least 0.95
    """
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {out} must end in .html")
    if out is not None:
        try:
            from camri.auditing.page import write_page
        except ImportError as error:
            raise InputError(
                f"the page needs {error.name}, which is not installed: pip install 'camri[report]', or leave --out away"
            ) from None

    from camri.auditing import audit as judge
    from camri.auditing import read_scores

    table = read_scores(scores, label_column, split_column, group_column)
    found = judge(
        table.scores,
        table.labels,
        important,
        classes=table.classes,
        split=table.split,
        groups=table.groups,
        kind=kind,
        tolerance=tolerance,
        at_least=at_least,
        confidence=confidence,
    )
    page = None
    if out is not None:
        words = ["camri", "audit", *sys.argv[2:]] if sys.argv[1:2] == ["audit"] else []
        page = write_page(found, out, scores.name, words)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        _print(found)
    if page is not None:
        typer.echo(str(page), err=as_json)


def _print(found: "Audit") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from camri.auditing.answer import CLASSES_SHOWN, answer, class_table, price_table
    from camri.report.table import to_terminal

    told = answer(found)
    console = Console()
    console.print(f"[bold]{escape(told.sentence)}[/bold]", highlight=False)
    lines = Table.grid(padding=(0, 1))
    for line in told.details:
        lines.add_row("-", escape(line))
    console.print(lines, highlight=False)
    for table in (class_table(found, CLASSES_SHOWN), price_table(found)):
        if table is not None:
            console.print()
            console.print(to_terminal(table))
