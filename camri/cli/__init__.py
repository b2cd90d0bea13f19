"""The command line: parse, call, print. Nothing heavy is imported before a command needs it."""

import inspect
import io
import signal
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

import camri
from camri.cli import audit, data, fit, models, report, study
from camri.cli.options import Once, naming_options, unwrap
from camri.errors import InputError
from camri.text import visible

app = typer.Typer(
    name="camri",
    help="Raise the recall of the classes that must not be missed, without giving up accuracy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(fit.fit)
app.add_typer(data.app)
app.add_typer(study.app)
app.command()(models.predict)
app.command()(models.export)
app.command(context_settings={"allow_extra_args": True})(audit.audit)  # "--important cat dog" gets a hint
app.command()(report.report)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"camri {camri.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


@app.command()
def demo(out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("runs/demo")) -> None:
    """Do the main job on embedded data: camri fit on digits, its weakest class made important (about a minute).

    [bold]Examples[/bold]

      camri demo
    """
    from camri.cli.fit_view import run_demo

    run_demo(out)


def _finish(group: typer.Typer) -> None:
    """Finish every command: its help is wrapped by the terminal, errors name options, no option is taken twice."""
    for command in group.registered_commands:
        assert command.callback is not None
        command.help = unwrap(inspect.cleandoc(command.callback.__doc__ or ""))
        command.callback = naming_options(command.callback)
        command.cls = Once
    for one in group.registered_groups:
        if one.typer_instance is not None:
            _finish(one.typer_instance)


_finish(app)


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    if issubclass(category, UserWarning):
        typer.echo(f"warning: {visible(str(message))}", err=True)  # where in the code is nothing to the user
    else:
        _show_with_place(message, category, *place, **more)


_show_with_place = warnings.showwarning


def main() -> None:
    """Run the command line; bad input ends with one sentence on stderr and exit code 2."""
    warnings.showwarning = _show_warning
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # temporary files go, as after Ctrl-C
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # in Latin-1 an arrow would be the end of it
    try:
        app()
    except InputError as error:
        typer.echo(f"camri: {visible(str(error))}", err=True)
        sys.exit(2)
