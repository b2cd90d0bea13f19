"""`camri compare` and `camri check`: is the new model better, and does the decision still hold?"""

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from camri.cli.audit import check_outputs, recalls_of
from camri.cli.options import reading_progress
from camri.errors import InputError

CANNOT_TELL = 3  # 0: as asked; 1: not; 2: bad input


class Wanted(str, Enum):
    """What a comparison must show to exit with 0."""

    better = "better"
    not_worse = "not-worse"


LabelColumn = Annotated[str | None, typer.Option(help="Column with the labels, names or numbers from 0.")]
GroupColumn = Annotated[
    str | None,
    typer.Option(
        "--group", "--group-column", help="Column that says which rows belong together: patient, film, track."
    ),
]
IsLogits = Annotated[
    bool | None, typer.Option("--logits/--probabilities", help="What the scores are; recognised by default.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def compare(
    old: Annotated[
        Path, typer.Argument(metavar="OLD", help="Labels and scores of the present model: CSV, parquet, npz.")
    ],
    new: Annotated[list[Path], typer.Argument(metavar="NEW", help="Those of the new model, or of several.")],
    important: Annotated[list[str], typer.Option(help="A class that must not be missed. Repeat it for several.")],
    at_least: Annotated[
        list[str] | None,
        typer.Option(metavar="RECALL", help="Compare the false alarms at this recall: 0.95, 95%, or CLASS=0.95."),
    ] = None,
    max_accuracy_drop: Annotated[float, typer.Option(help="Accuracy that may be lost: 0.01 for one point.")] = 0.0,
    cost_matrix: Annotated[
        Path | None, typer.Option(help="Compare the mean cost; a CSV file, row = true class, column = predicted.")
    ] = None,
    margin: Annotated[float | None, typer.Option(help="A difference that does not matter; default 0.01.")] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="Column that names each row, to join the files by.")
    ] = None,
    label_column: LabelColumn = None,
    split_column: Annotated[str | None, typer.Option(help="Column with val (to tune) and test (to judge).")] = None,
    group_column: GroupColumn = None,
    is_logits: IsLogits = None,
    fail_unless: Annotated[
        Wanted | None,
        typer.Option(
            metavar="LEVEL", help="Exit with 1 unless it is shown: better, or not-worse by more than the margin."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a page with all figures (.html) here.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the answer (.json) here, to keep or commit.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find out whether a new model is better than the present one, on the same rows. No training.

    Each model decides by its own best rule, tuned on nine tenths of the rows and judged on the rest, in turn. Rows are
    joined by --id, else by their order, with the labels checked. By default the recall at the present accuracy decides;
    with --at-least the false alarms at that recall; with --cost-matrix the mean cost. Of several new models each is
    compared with the present one, with the chance of error held together.

    Exit codes: 0 as asked, 1 not, 2 bad input.

    [bold]Examples[/bold]

      camri compare old.csv new.csv --important melanoma --at-least 0.95
      camri compare old.csv new.csv --important stop --id image --group patient
      camri compare old.csv a.csv b.csv --important stop --out compare.html
      camri compare old.csv new.csv --important stop --fail-unless not-worse
    """
    check_outputs(out, save)

    from camri.decision.read import read_file
    from camri.decision.versus import compare_rows, is_not_worse, make_compared_goal
    from camri.report.words import show

    names = [path.name for path in (old, *new)]
    names = names if len(set(names)) == len(names) else [str(path) for path in (old, *new)]
    if len(set(names)) < len(names):
        raise InputError(f"{names} has a file twice; give each once", argument="new")
    options: dict[str, Any] = {
        "label_column": label_column,
        "split_column": split_column,
        "group_column": group_column,
        "kind": _kind(is_logits),
        "keeps_table": cost_matrix is not None,
        **({} if id_column is None else {"id_column": id_column}),
    }
    with reading_progress() as on_progress:
        models = {
            name: read_file(path, important, on_progress=on_progress, **options)
            for name, path in zip(names, (old, *new), strict=True)
        }
    goal = make_compared_goal(models[names[0]], max_accuracy_drop, recalls_of(at_least), None, cost_matrix)
    found = compare_rows(models, goal, margin)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        show(found)
    if save is not None:
        typer.echo(str(found.save(save)), err=as_json)
    if out is not None:
        from camri.report.decision_page import write_answer

        words = ["camri", "compare", *sys.argv[2:]] if sys.argv[1:2] == ["compare"] else []
        typer.echo(str(write_answer(found, out, names[0], words)), err=as_json)
    is_right = is_not_worse(found) if fail_unless is Wanted.not_worse else found.verdict.kind == "better"
    if fail_unless is not None and not is_right:
        raise typer.Exit(1)


def check(
    decision: Annotated[Path, typer.Argument(metavar="DECISION", help="What `camri audit --save` wrote.")],
    scores: Annotated[Path, typer.Argument(metavar="SCORES", help="Labels and scores of new rows: CSV, parquet, npz.")],
    since: Annotated[
        Path | None,
        typer.Option(help="Keep the counts of all looks in this file: looking every day raises no false alarm."),
    ] = None,
    margin: Annotated[
        float, typer.Option(help="Recall surely not lower than was promised by more than this holds.")
    ] = 0.05,
    label_column: LabelColumn = None,
    group_column: GroupColumn = None,
    to_label: Annotated[
        Path | None,
        typer.Option(
            help="The rows have no labels: write which to label first to this file (.csv), nearest the cut-off."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a saved decision on new rows: is what was promised still found? No training.

    It applies the rule of the decision and tests the recall of each important class: against what was guaranteed, else
    against the lower end of what was expected. Alarms, precision and moved scores are reported and decide nothing. With
    --since the chance of ever calling a decision broken that holds is 5 % over all looks together.

    Exit codes: 0 holds, 1 broken, 2 bad input, 3 cannot tell yet.

    [bold]Examples[/bold]

      camri check decision.json march.csv
      camri check decision.json today.csv --since state.json
      camri check decision.json unlabelled.csv --to-label first.csv
    """
    from camri.decision.answer import load_answer
    from camri.decision.check import check_rows
    from camri.decision.read import read_file
    from camri.report.words import check_text

    known = load_answer(decision)
    names = list(known.source.names)
    columns = {"label_column": label_column, "group_column": group_column}
    if to_label is not None:
        _list_rows(known, scores, to_label, as_json)
    with reading_progress() as on_progress:
        keeps_table = known.goal.name == "least_cost"
        kind = known.source.scores_are
        rows = read_file(scores, names, kind=kind, keeps_table=keeps_table, on_progress=on_progress, **columns)
    found = check_rows(known, rows, scores.name, since, margin)
    typer.echo(json.dumps(found.to_json(), indent=2) if as_json else check_text(found))
    if found.verdict.kind != "holds":
        raise typer.Exit(1 if found.verdict.kind == "broken" else CANNOT_TELL)


def _list_rows(known: Any, scores: Path, to_label: Path, as_json: bool) -> None:
    """Write which rows without labels to label first, and end with 3."""
    from camri.decision.check import check_unlabelled
    from camri.decision.read import read_scores
    from camri.files import replacing
    from camri.report.words import check_text
    from camri.text import csv_text

    found = check_unlabelled(known, read_scores(scores, known.source.classes), scores.name)
    with replacing(to_label, "; choose another file with --to-label") as part:
        part.write_text(csv_text(["row"], [{"row": row} for row in found.label_first]), encoding="utf-8")
    typer.echo(json.dumps(found.to_json(), indent=2) if as_json else check_text(found))
    typer.echo(str(to_label), err=as_json)
    raise typer.Exit(CANNOT_TELL)


def _kind(is_logits: bool | None) -> str | None:
    return None if is_logits is None else "logits" if is_logits else "probabilities"
