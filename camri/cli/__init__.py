"""The command line: parse, call, print. Nothing heavy is imported before a command needs it."""

import atexit
import contextlib
import inspect
import io
import os
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

import camri
from camri.cli import data, fit, models, report, study
from camri.cli.options import Command, unwrap
from camri.errors import InputError, last_line
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
app.command(context_settings={"allow_extra_args": True})(models.audit)  # "--important cat dog" gets a hint
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
    """Do the main job on embedded data: camri fit on digits with a class made rare (about a minute).

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
        command.cls = Command
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
    """Run the command line as this process, and end it."""
    try:
        run()
    except SystemExit as end:
        if "ray" not in sys.modules:
            raise
        # With Ray's threads Python took 12 s to end on busy cores (load 18), after the last line of this program.
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # closed by its reader
                stream.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))


def run() -> None:
    """Run the command line: bad input is one sentence and exit code 2, an error of camri's own one and exit code 70."""
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
    except Exception as error:
        message = visible(f"{type(error).__name__}: {last_line(str(error))}".removesuffix(": "))
        typer.echo(f"camri: {message}. {_log(traceback.format_exc())}", err=True)
        sys.exit(70)


def _log(details: str) -> str:
    """Write the details of an error to a file; returns the sentence that names it."""
    details = f"camri {camri.__version__}, {' '.join(map(repr, sys.argv[1:]))}\n{details}"
    with (
        contextlib.suppress(OSError),
        tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="backslashreplace", prefix="camri-error-", suffix=".log", delete=False
        ) as file,
    ):
        file.write(details)
        return f"This is a fault of camri; please report it with {file.name}"
    return f"This is a fault of camri; please report it with:\n{details}"  # the disk is full, or read-only
