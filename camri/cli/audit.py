"""`camri audit`: which decision meets the goal, for a table of a model's scores."""

import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from camri.cli.options import reading_progress
from camri.errors import InputError, require
from camri.files import cannot_write, refuse_unwritable

Scores = Annotated[
    Path,
    typer.Argument(
        metavar="SCORES",
        help="Labels and scores, one column a class: CSV, TSV, parquet (or a folder of parts), npz, npy.",
    ),
]


def audit(
    context: typer.Context,
    scores: Scores,
    important: Annotated[list[str], typer.Option(help="A class that must not be missed. Repeat it for several.")],
    at_least: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RECALL", help="Goal: this recall, guaranteed on new rows, with the fewest false alarms: 0.95, 95%."
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="The confidence of a guarantee.")] = 0.95,
    on_average: Annotated[
        bool, typer.Option("--on-average", help="Guarantee the recall on average: fewer rows, fewer false alarms.")
    ] = False,
    max_false_alarms: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Goal: the most recall with so few false alarms, of all rows.")
    ] = None,
    alarms_per_day: Annotated[
        float | None, typer.Option(help="Goal: the most recall with so few alarms of --rows-per-day.")
    ] = None,
    max_accuracy_drop: Annotated[float, typer.Option(help="Accuracy that may be lost: 0.01 for one point.")] = 0.0,
    cost_matrix: Annotated[
        Path | None,
        typer.Option(help="Goal: the least mean cost; a CSV file, row = true class, column = predicted."),
    ] = None,
    clear_misses_at_most: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE", help="Goal: clear rows that miss at most this share of the class, guaranteed: 0.01."
        ),
    ] = None,
    alarm_precision: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="With it: raise alarms of which at least this share is right: 0.9."),
    ] = None,
    prevalence: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS=SHARE", help="How frequent a class is where the rule will run: fraud=0.001."),
    ] = None,
    rows_per_day: Annotated[float | None, typer.Option(help="Tell alarms and misses as counts a day.")] = None,
    per: Annotated[
        str | None, typer.Option("--per", metavar="COLUMN", help="Column with the place: a recall in each hospital.")
    ] = None,
    label_column: Annotated[str | None, typer.Option(help="Column with the labels, names or numbers from 0.")] = None,
    labels: Annotated[Path | None, typer.Option(help="File with the labels, for scores in an .npy.")] = None,
    split_column: Annotated[str | None, typer.Option(help="Column with val (to tune) and test (to judge).")] = None,
    group_column: Annotated[
        str | None,
        typer.Option(
            "--group", "--group-column", help="Column that says which rows belong together: patient, film, track."
        ),
    ] = None,
    is_logits: Annotated[
        bool | None, typer.Option("--logits/--probabilities", help="What the scores are; recognised by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a page with the curve and the tables (.html) here.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the answer (.json) here, to keep or commit.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    fail_unless_guaranteed: Annotated[
        bool, typer.Option("--fail-unless-guaranteed", help="Exit with 1 if what was asked is not guaranteed.")
    ] = False,
) -> None:
    """Find the decision rule that raises the recall of the important classes, and what it costs. No training.

    It takes the scores of any model on rows it was not trained on. The advised rule is tuned on all rows; its figures
    come from rules tuned on nine tenths of them and judged on the rest, in turn. With a split column, val tunes and
    test judges. With --group, rows of one patient, film or track stay together. By default it finds the most recall at
    the same accuracy; with --at-least the rule that guarantees a recall on new rows with the fewest false alarms, or
    how many rows that takes; with --cost-matrix the rule with the least cost; with --clear-misses-at-most which rows
    may skip the person.

    [bold]Examples[/bold]

      camri audit scores.csv --important stop
      camri audit scores.csv --important stop --important yield --out audit.html
      camri audit scores.csv --important melanoma --group patient
      camri audit scores.csv --important stop --at-least 0.95 --save found.json
      camri audit scores.csv --important a --at-least 0.95 --rows-per-day 20000
      camri audit scores.csv --important melanoma --cost-matrix costs.csv
      camri audit scores.csv --important stop --clear-misses-at-most 0.01
    """
    if context.args:
        several = " ".join(f"--important {shlex.quote(name)}" for name in (*important, *context.args))
        raise InputError(f"{context.args[0]!r} is one word too many; to name several classes write {several}")
    check_outputs(out, save)
    promises = (at_least, clear_misses_at_most, max_false_alarms, alarms_per_day)
    if fail_unless_guaranteed and all(one is None for one in promises):
        wrong = "--fail-unless-guaranteed needs something to guarantee; give --at-least"
        raise InputError(wrong, "fail_unless_guaranteed")

    from camri.decision import judge, make_goal
    from camri.decision.read import read_file
    from camri.decision.where import make_where
    from camri.report.words import show

    kind = None if is_logits is None else "logits" if is_logits else "probabilities"
    columns = {
        "label_column": label_column, "split_column": split_column, "group_column": group_column, "per_column": per,
    }  # fmt: skip
    with reading_progress() as on_progress:
        rows = read_file(
            scores, important, labels=labels, kind=kind, keeps_table=cost_matrix is not None, on_progress=on_progress,
            **columns,
        )  # fmt: skip
    where = make_where(
        rows.classes, rows.scores.labels, pairs_of(prevalence, "prevalence", "fraud=0.001"), rows_per_day
    )
    sure = None if on_average else confidence
    more: Any = {
        "max_false_alarms": max_false_alarms, "alarms_per_day": alarms_per_day,
        "clear_misses_at_most": clear_misses_at_most, "alarm_precision": alarm_precision,
    }  # fmt: skip
    recalls: Any = recalls_of(at_least)
    goal = make_goal(rows, where, max_accuracy_drop, recalls, sure, cost_matrix, **more)
    result = judge(rows, goal, scores.name, where)
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
    else:
        show(result)
    if save is not None:
        typer.echo(str(result.save(save)), err=as_json)
    if out is not None:
        from camri.report.decision_page import write_answer

        words = ["camri", "audit", *sys.argv[2:]] if sys.argv[1:2] == ["audit"] else []
        typer.echo(str(write_answer(result, out, scores.name, words)), err=as_json)
    if fail_unless_guaranteed and not result.is_guaranteed:
        raise typer.Exit(1)


def check_outputs(out: Path | None, save: Path | None) -> None:
    """Refuse a page or a file that could not be written, before anything is computed."""
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {out} must end in .html")
    if out is not None:
        require("the page", "altair", "vl_convert", "jinja2", install="'camri-loss[report]', or omit --out")
    for option, file in (("--out", out), ("--save", save)):
        if file is not None:
            _refuse_unwritable(file, option)


def recalls_of(texts: list[str] | None) -> Any:
    """One recall for all important classes, or CLASS=RECALL for each."""
    if not texts:
        return None
    if len(texts) == 1 and "=" not in texts[0]:
        return texts[0]
    return pairs_of(texts, "at_least", "stop=0.99")


def pairs_of(texts: list[str] | None, argument: str, example: str) -> dict[str, Any]:
    """{class: text} of texts CLASS=TEXT; the class name may contain "="."""
    pairs = [text.rpartition("=") for text in texts or ()]
    if wrong := [text for text, (name, _, _) in zip(texts or (), pairs, strict=True) if not name]:
        raise InputError(f"{argument}={wrong[0]!r} is not CLASS=NUMBER; for example {example}", argument)
    return {name: value for name, _, value in pairs}


def _refuse_unwritable(file: Path, option: str) -> None:
    """Refuse a file that could not be written, before anything is computed."""
    try:
        refuse_unwritable(file)
        if not file.exists():
            tempfile.TemporaryFile(dir=file.parent).close()
    except OSError as error:
        raise cannot_write(file, error, f"; choose another file with {option}") from None
