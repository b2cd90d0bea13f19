"""`camri report`: the page, or one table or figure, of a run. Works without torch."""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camri.errors import InputError, closest

if TYPE_CHECKING:
    from camri.report.table import Table
    from camri.report.theme import Figure

TABLES = (1, 2)
FIGURES = (2, 3, 5, 6)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several only for --table 1.")],
    table: int | None = typer.Option(None, help="Print one of the paper's tables: 1 or 2."),
    figure: int | None = typer.Option(None, help="Write one of the paper's figures: 2, 3, 5 or 6."),
    form: str | None = typer.Option(None, "--format", help="md, latex or csv of a table; png, svg or pdf of a figure."),
    out: Annotated[Path | None, typer.Option(help="The file to write; '-' is standard output.")] = None,
) -> None:
    """Write RUN/report.html: one page with the answer, the tables and the charts. It needs no network.

    With --table or --figure that one is written instead: tables to the terminal, figures to a file, unless --out says
    otherwise. Table 1 is the paper's and, below it, the honest one: chosen on validation images, with its controls.

    [bold]Examples[/bold]

      camri report runs/digits
      camri report runs/digits --table 1
      camri report runs/cifar10 runs/gtsrb runs/awa2 --table 1 --format latex --out table1.tex
      camri report runs/cifar10 --figure 5 --format pdf
    """
    if table is not None and figure is not None:
        raise InputError("--table and --figure cannot be given together; call camri report twice")
    if len(runs) > 1 and table != 1:
        raise InputError(f"{len(runs)} runs are given; only --table 1 stands several side by side")
    if table is not None:
        _write_tables(_tables(runs, _known("--table", table, TABLES)), form, out)
    elif figure is not None:
        drawn = _figure(runs[0], _known("--figure", figure, FIGURES))
        _write_figure(drawn, figure, form or (out.suffix[1:] if out and out.suffix else "png"), out)
    else:
        if form is not None:
            raise InputError(f"--format {form} needs --table or --figure; the page is HTML")
        _extra("altair", "vl_convert", "jinja2")
        from camri.report.page import write_page

        typer.echo(str(write_page(runs[0], out)))


def _known(option: str, number: int, choices: tuple[int, ...]) -> int:
    if number not in choices:
        raise InputError(f"{option} {number} is unknown; {closest(number, choices)}")
    return number


def _extra(*names: str) -> None:
    """Nothing; a missing part of the report extra is told with its remedy."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            raise InputError(
                f"camri report needs {name}, which is not installed: pip install 'camri[report]'"
            ) from None


def _tables(runs: list[Path], number: int) -> "list[Table]":
    import contextlib

    from camri.report.angles import table_two
    from camri.report.reading import Reading
    from camri.report.tables import honest_table, table_one
    from camri.report.verdict import judge_columns

    with contextlib.ExitStack() as stack:
        read = [stack.enter_context(Reading(run)) for run in runs]
        judged = [(reading, judge_columns(reading)) for reading in read]
        if number == 2:
            return [table_two(*judged[0])]
        return [table_one(judged), *(table for pair in judged if (table := honest_table(*pair)) is not None)]


def _write_tables(tables: "list[Table]", form: str | None, out: Path | None) -> None:
    from camri.report.table import to_terminal, write

    if form is None and out is None and sys.stdout.isatty():
        from rich.console import Console

        for one in tables:
            Console().print(to_terminal(one))
        return
    form = form or {".tex": "latex", ".csv": "csv"}.get(out.suffix if out else "", "md")
    _write("\n".join(write(one, form) for one in tables).encode(), out)


def _figure(run: Path, number: int) -> "Figure":
    _extra("altair", "vl_convert")
    from camri.report import circle, contours, figures
    from camri.report.reading import Reading
    from camri.report.verdict import judge_columns

    if number == 2:
        return contours.contours()
    with Reading(run) as reading:
        if number == 6:
            return circle.circle(reading)
        verdicts = judge_columns(reading)
        found: Any = figures.confusion(reading, verdicts) if number == 3 else figures.penalty(reading, verdicts)
    if found is None:
        raise InputError(f"{run}: Fig. 5 needs WCE or CAMRI trials of at least two penalties, and there are none")
    return found


def _write_figure(drawn: "Figure", number: int, form: str, out: Path | None) -> None:
    from camri.report.theme import export

    path = out or Path(f"figure{number}.{form}")
    _write(export(drawn, form), path)
    if str(path) != "-":
        typer.echo(f"{path}: {drawn.caption}")


def _write(data: bytes, out: Path | None) -> None:
    if out is None or str(out) == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        out.write_bytes(data)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}); choose another file with --out") from None
