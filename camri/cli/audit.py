"""`camri audit`: what a trained model would gain from another decision rule. Works without torch."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from camri.errors import InputError, require


def audit(
    context: typer.Context,
    scores: Annotated[
        Path,
        typer.Argument(metavar="SCORES", help="A table of labels and scores, one column a class: CSV, parquet, npz."),
    ],
    important: Annotated[list[str], typer.Option(help="A class that must not be missed. Repeat it for several.")],
    label_column: Annotated[str | None, typer.Option(help="Column with the labels, names or numbers from 0.")] = None,
    split_column: Annotated[
        str | None, typer.Option(help="Column with val and test: tune on one, judge on the other.")
    ] = None,
    group_column: Annotated[
        str | None,
        typer.Option("--group", "--group-column", help="Column with what rows belong together: patient, film, track."),
    ] = None,
    is_logits: Annotated[
        bool | None, typer.Option("--logits/--probabilities", help="What the scores are; recognised by default.")
    ] = None,
    max_accuracy_drop: Annotated[float, typer.Option(help="Accuracy that may be lost: 0.01 for one point.")] = 0.0,
    at_least: Annotated[
        float | None, typer.Option(help="Recall to guarantee on new rows instead, with the fewest false alarms.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="The confidence of that guarantee.")] = 0.95,
    cost_matrix: Annotated[
        Path | None,
        typer.Option(help="CSV file with the cost of each mistake instead: row = true class, column = predicted."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a page with the curve and the tables (.html) here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Find the decision rule that raises the recall of the important classes, and what it costs. No training.

    It takes the scores of any model on rows it was not trained on. The rule is tuned on part of the rows and judged on
    the others: ten folds in turn, or val and test if there is a split column. With --group, rows of one patient, film
    or track stay together, and intervals allow for how alike they are. By default it finds the most recall at the same
    accuracy; with --at-least the rule that guarantees a recall on new rows with the fewest false alarms, or how many
    rows that takes; with --cost-matrix the rule with the least cost.

    [bold]Examples[/bold]

      camri audit scores.csv --important stop
      camri audit scores.csv --important stop --important yield --out audit.html
      camri audit scores.csv --important melanoma --group patient
      camri audit scores.npz --important melanoma --max-accuracy-drop 0.005
      camri audit scores.csv --important melanoma --at-least 0.95
      camri audit scores.csv --important melanoma --cost-matrix costs.csv
    """
    if context.args:
        several = " ".join(f"--important {shlex.quote(name)}" for name in (*important, *context.args))
        raise InputError(f"{context.args[0]!r} is one word too many; to name several classes write {several}")
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {out} must end in .html")
    if out is not None:
        require("the page", "altair", "vl_convert", "jinja2", install="'camri[report]', or omit --out")

    from camri.auditing.answer import show, write_page
    from camri.auditing.scores import read_scores
    from camri.auditing.verdict import audit as judge

    table = read_scores(scores, label_column, split_column, group_column)
    found = judge(
        table.scores,
        table.labels,
        important,
        classes=table.classes,
        split=table.split,
        groups=table.groups,
        kind=None if is_logits is None else "logits" if is_logits else "probabilities",
        max_accuracy_drop=max_accuracy_drop,
        at_least=at_least,
        confidence=confidence,
        cost_matrix=cost_matrix,
    )
    page = None
    if out is not None:
        words = ["camri", "audit", *sys.argv[2:]] if sys.argv[1:2] == ["audit"] else []
        page = write_page(found, out, scores.name, words)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        show(found)
    if page is not None:
        typer.echo(str(page), err=as_json)
