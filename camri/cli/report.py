"""`camri report`: the page, or one table or figure, of a run. Works without torch."""

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from camri.cli.options import progress_bar, say_written
from camri.errors import InputError, closest, require
from camri.files import STDOUT, replacing

TABLES = ("1", "2")
FIGURES = {  # name -> the records that it is drawn from
    "3": "confusion",
    "5": "penalty",
    "6": "circle",
    "curve": "curves",
    "gaps": "gaps",
    "training": "training",
}


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run or results folders; several only for --table 1.")
    ],
    table: Annotated[str | None, typer.Option(help="Print one of the paper's tables: 1 or 2.")] = None,
    figure: Annotated[
        str | None, typer.Option(help="Write one of the paper's figures 3, 5 and 6, or curve, gaps or training.")
    ] = None,
    format: Annotated[str | None, typer.Option(help="Of a table: md, latex, csv; of a figure: png, svg, pdf.")] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; '-' is standard output.")] = None,
    results: Annotated[Path | None, typer.Option(help="Write the run's numbers as small files here.")] = None,
    commit: Annotated[
        str | None, typer.Option(help="With --results: the commit that trained, if the outcomes do not record it.")
    ] = None,
    screening: Annotated[Path | None, typer.Option(help="With --results: the run that chose the settings.")] = None,
) -> None:
    """Write RUN/report.html: one page with the answer, the tables and the charts. It needs no network.

    With --table or --figure, write only that: by default a table to the terminal, a figure to a file. Table 1 is the
    paper's and, below it, the honest comparison: chosen on validation data, with controls. With --results, write a
    small folder from which tables and figures can be made without the run.

    [bold]Examples[/bold]

      camri report runs/digits
      camri report runs/digits --table 1
      camri report runs/cifar10 runs/gtsrb --table 1 --out table1.tex
      camri report runs/cifar10 --figure 5 --format pdf
      camri report runs/finals --results results/cat --screening runs/screen
      camri report results/cat --table 1
    """
    asked = {"--table": table, "--figure": figure, "--results": results}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} cannot be given together; call camri report twice")
    if len(runs) > 1 and table != "1":
        raise InputError(f"{len(runs)} runs are given; only --table 1 shows several side by side")
    if results is not None and out is not None:
        raise InputError(f"--out {out} is not for results, which go to --results {results}; leave it out")
    if results is None and (commit is not None or screening is not None):
        raise InputError("--commit and --screening are noted in results; give --results FOLDER with them")
    if table is not None:
        _write_tables(runs, _known("--table", table, TABLES), format, out)
    elif figure is not None:
        _write_figure(runs[0], _known("--figure", figure, FIGURES), format, out)
    elif format is not None:
        raise InputError(f"--format {format} needs --table or --figure; the page is HTML")
    elif results is not None:
        from camri.report.results import write_results

        with _watching() as on_step:
            written = write_results(runs[0], results, commit=commit, screening=screening, on_step=on_step)
        typer.echo(str(written))
    else:
        require("camri report", "altair", "vl_convert", "jinja2", install="'camri[report]'")
        from camri.report.page import write_page
        from camri.report.results import is_results

        if is_results(runs[0]):
            raise InputError(f"{runs[0]} holds results, and the page needs the run; give --table or --figure")
        _form_of(out, {".html": "html", ".htm": "html"}, "page", "html")
        with _watching() as on_step:
            written = write_page(runs[0], out, on_step=on_step)
        say_written(str(written), written)


@contextlib.contextmanager
def _watching() -> Iterator[Callable[[str, float], None]]:
    """Yield a function to call with each step; it shows a bar on a terminal. A page of 1,000 trials takes 6 s."""
    from rich.markup import escape
    from rich.progress import BarColumn, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), TimeRemainingColumn())
    with progress_bar(*columns, description="reading the run") as update:
        yield lambda step, part: update(description=escape(step), completed=part)


def _known(option: str, name: str, choices: Collection[str]) -> str:
    if name not in choices:
        raise InputError(f"{option} {name} is unknown; {closest(name, choices)}")
    return name


def _form_of(out: Path | None, forms: Mapping[str, str], what: str, usual: str, asked: str | None = None) -> str:
    """The format to write: the one asked for, which the file's ending must not contradict, or else the ending's."""
    if asked is not None:
        if asked in forms.values() and out is not None and forms.get(out.suffix.lower(), asked) != asked:
            raise InputError(f"--format {asked} is not what --out {out} is called; leave one of them out")
        return asked
    if out is None or not out.suffix:
        return usual
    if out.suffix.lower() not in forms:
        raise InputError(f"--out {out} is not for a {what}; its name may end in {', '.join(forms)}")
    return forms[out.suffix.lower()]


def _write_tables(runs: list[Path], number: str, form: str | None, out: Path | None) -> None:
    from camri.report.results import open_source
    from camri.report.tables import paper_table, table_of_angles, table_of_honest, to_terminal, write

    with _watching() as on_step, contextlib.ExitStack() as stack:
        sources = [stack.enter_context(open_source(run, on_step)) for run in runs]
        if number == "1":
            honest = [source.records("honest") for source in sources]
            tables = [paper_table([source.records("paper") for source in sources])]
            tables += [table_of_honest(records) for records in honest if records]
        else:
            tables = [table_of_angles(sources[0].records("angles"))]
    if form is None and out is None and sys.stdout.isatty():
        from rich.console import Console

        for table in tables:
            Console().print(to_terminal(table))
        return
    form = _form_of(out, {".tex": "latex", ".csv": "csv", ".md": "md", ".txt": "md"}, "table", "md", form)
    _write("\n".join(write(table, form) for table in tables).encode(), out or Path(STDOUT))


def _write_figure(run: Path, name: str, form: str | None, out: Path | None) -> None:
    require("camri report", "altair", "vl_convert", install="'camri[report]'")
    from camri.report.charts import draw, export
    from camri.report.results import open_source

    with _watching() as on_step, open_source(run, on_step) as source:
        drawn = draw(FIGURES[name], source)
    form = _form_of(out, {".png": "png", ".svg": "svg", ".pdf": "pdf"}, "figure", "png", form)
    path = out or Path(f"{f'figure{name}' if name.isdigit() else name}.{form}")
    _write(export(drawn, form), path)
    say_written(f"{path}: {drawn.caption}", path)


def _write(data: bytes, out: Path) -> None:
    with replacing(out, "; choose another file with --out") as part:
        part.write_bytes(data)
