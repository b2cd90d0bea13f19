"""`camri report`: the page, or one table or figure, of a run. Works without torch."""

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camri.cli.options import progress_bar, say_written
from camri.errors import InputError, closest, require
from camri.files import STDOUT, replacing

if TYPE_CHECKING:
    from camri.report.records import Source

TABLES = {
    "paper": "Table I as the paper counts",
    "own": "every method's own numbers, as trained and shifted",
    "trained": "as trained, vs cross-entropy",
    "recall": "accuracy at equal recall",
    "alarms": "false alarms at equal recall, shifted",
    "threshold": "the same with thresholds, the control to beat",
    "honest": "chosen on validation data, with controls",
    "settings": "every setting at equal recall",
    "training": "the last epochs",
    "angles": "Table II",
    "calibration": "calibration error",
}
BY_NUMBER = {"1": "paper", "2": "angles"}
ALL = "all"
FIGURES = {  # name -> the records that it is drawn from
    "3": "confusion",
    "5": "penalty",
    "6": "circle",
    "curve": "curves",
    "gaps": "gaps",
    "training": "training",
}
MOST_PDF = 300_000  # bytes of a figure: journals and mail take no more


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run or results folders; several only for --table 1.")
    ],
    table: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Print one table: {', '.join(TABLES)}, {ALL}; 1, 2: the paper's."),
    ] = None,
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
    split: Annotated[str | None, typer.Option(help="With --table settings: test (the default) or val.")] = None,
    recalls: Annotated[str | None, typer.Option(help="With --table settings: recalls, such as 0.9,0.95.")] = None,
    control: Annotated[str | None, typer.Option(help="With --table settings: the setting to compare with.")] = None,
) -> None:
    """Write RUN/report.html: one page with the answer, the tables and the charts. It needs no network.

    With --table or --figure, write only that: by default a table to the terminal, a figure to a file. `--table all`
    writes every table into a folder, one a file. With --results, write a small folder from which tables and figures
    can be made without the run.

    [bold]Examples[/bold]

      camri report runs/digits
      camri report runs/digits --table own
      camri report runs/digits --table all --format latex --out tables
      camri report runs/cifar10 runs/gtsrb --table 1 --out table1.tex
      camri report runs/cifar10 --figure 5 --format pdf
      camri report runs/finals --results results/cat --screening runs/screen
      camri report results/cat --table honest
    """
    asked = {"--table": table, "--figure": figure, "--results": results}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} cannot be given together; call camri report twice")
    table = BY_NUMBER.get(table, table) if table is not None else None
    if len(runs) > 1 and table != "paper":
        raise InputError(f"{len(runs)} runs are given; only --table 1 shows several side by side")
    ranking = {"split": split, "recalls": recalls, "control": control}
    if table != "settings" and (asked_for := [f"--{name}" for name, value in ranking.items() if value is not None]):
        raise InputError(f"{' and '.join(asked_for)}: only --table settings takes that")
    if results is not None and out is not None:
        raise InputError(f"--out {out} is not for results, which go to --results {results}; leave it out")
    if results is None and (commit is not None or screening is not None):
        raise InputError("--commit and --screening are noted in results; give --results FOLDER with them")
    if table is not None:
        name = _known("--table", table, [*TABLES, ALL])
        if name == ALL:
            _write_all_tables(runs[0], format or "md", out)
        else:
            _write_table(runs, name, format, out, {key: value for key, value in ranking.items() if value is not None})
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
        require("camri report", "altair", "vl_convert", "jinja2", install="'camri-loss[report]'")
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


def _write_table(runs: list[Path], name: str, form: str | None, out: Path | None, ranking: Mapping[str, str]) -> None:
    from camri.report.results import open_source
    from camri.report.tables import make_table, mark_small, paper_table, table_of_settings, to_terminal, write

    with _watching() as on_step, contextlib.ExitStack() as stack:
        sources = [stack.enter_context(open_source(run, on_step)) for run in runs]
        if name == "paper":
            table = paper_table([source.records("paper") for source in sources])
            for source in sources:
                table = mark_small(table, source)
        elif ranking:
            table = mark_small(table_of_settings(_rank(sources[0], ranking)), sources[0])
        else:
            table = make_table(name, sources[0])
    if form is None and out is None and sys.stdout.isatty():
        from rich.console import Console

        Console().print(to_terminal(table))
        return
    form = _form_of(out, {".tex": "latex", ".csv": "csv", ".md": "md", ".txt": "md"}, "table", "md", form)
    _write(write(table, form).encode(), out or Path(STDOUT))


def _rank(source: "Source", ranking: Mapping[str, str]) -> list[dict[str, Any]]:
    """Records of settings on the split, at the recalls, against the control that were asked for."""
    from camri.report.ranking import rank_settings
    from camri.report.records import FromRun

    if not isinstance(source, FromRun):
        raise InputError("--split, --recalls and --control need the run, not its results")
    text = ranking.get("recalls")
    try:
        recalls = None if text is None else [float(word) for word in text.split(",")]
    except ValueError:
        recalls = [-1.0]
    if recalls is not None and not all(0 < recall <= 1 for recall in recalls):
        raise InputError(f"--recalls {text} is not a list of recalls from 0 to 1; for example 0.9,0.95")
    return rank_settings(source.reading, ranking.get("split", "test"), recalls, ranking.get("control", "ce"))


def _write_all_tables(run: Path, form: str, out: Path | None) -> None:
    """Write every table that the run has data for, one a file; say which it has none for."""
    from camri.report.results import open_source
    from camri.report.tables import make_table, write

    if out is None or str(out) == "-" or out.suffix:
        raise InputError("--table all writes a file for each table; give it a folder: --out tables")
    out.mkdir(parents=True, exist_ok=True)
    ending, lacking = {"latex": "tex"}.get(form, form), []
    with _watching() as on_step, open_source(run, on_step) as source:
        for name in TABLES:
            try:
                text = write(make_table(name, source), form)
            except InputError as error:
                if error.argument == "format":
                    raise
                lacking.append(f"no {name}: {error}")
                continue
            _write(text.encode(), out / f"{name}.{ending}")
            typer.echo(str(out / f"{name}.{ending}"))
    for line in lacking:
        typer.echo(line, err=True)


def _write_figure(run: Path, name: str, form: str | None, out: Path | None) -> None:
    require("camri report", "altair", "vl_convert", install="'camri-loss[report]'")
    from camri.report.charts import draw, export
    from camri.report.results import open_source

    with _watching() as on_step, open_source(run, on_step) as source:
        drawn = draw(FIGURES[name], source)
    form = _form_of(out, {".png": "png", ".svg": "svg", ".pdf": "pdf"}, "figure", "png", form)
    path = out or Path(f"{f'figure{name}' if name.isdigit() else name}.{form}")
    data = export(drawn, form)
    if form == "pdf" and len(data) > MOST_PDF:
        typer.echo(f"{path} has {len(data):,} bytes, more than {MOST_PDF:,}: --format png is smaller", err=True)
    _write(data, path)
    say_written(f"{path}: {drawn.caption}", path)


def _write(data: bytes, out: Path) -> None:
    with replacing(out, "; choose another file with --out") as part:
        part.write_bytes(data)
