"""The command line: parse, call, print. Nothing heavy is imported before a command needs it."""

import atexit
import contextlib
import ctypes
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
from camri.cli import audit, data, decide, fit, models, report, study
from camri.cli.options import Command, group, unwrap
from camri.errors import NODE_DIED, InputError, last_line, needing
from camri.text import clip, visible

app = group(
    "camri",
    "Raise the recall of the classes you cannot afford to miss, and see what it costs.",
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command()(fit.fit)
app.add_typer(data.app)
app.add_typer(study.app)
app.command()(models.predict)
app.command()(models.export)
app.command(context_settings={"allow_extra_args": True})(audit.audit)  # "--important cat dog" gets a hint
app.command()(decide.compare)
app.command()(decide.check)
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
    """Try camri fit on embedded data: digits with a class made rare (about a minute).

    [bold]Examples[/bold]

      camri demo
    """
    from camri.cli.fit_view import run_demo

    run_demo(out)


def _finish(group: typer.Typer) -> None:
    """Give every command unwrapped help and the checks of `Command`."""
    for command in group.registered_commands:
        assert command.callback is not None
        command.help = unwrap(inspect.cleandoc(command.callback.__doc__ or ""))
        command.cls = Command
    for subgroup in group.registered_groups:
        if subgroup.typer_instance is not None:
            _finish(subgroup.typer_instance)


_finish(app)


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    if issubclass(category, UserWarning):
        typer.echo(f"warning: {visible(str(message))}", err=True)  # without the place in the code
    else:
        _show_with_place(message, category, *place, **more)


_show_with_place = warnings.showwarning


def main() -> None:
    """Run the command line as this process, and end it."""
    if "ray" in (word.removeprefix("--on=") for word in sys.argv[1:]) and hasattr(os, "fork"):
        _keep_the_last_word()
    try:
        run()
    except SystemExit as end:
        if "ray" not in sys.modules:
            raise
        # End at once: with Ray's threads Python took 12 s to exit on busy cores (load 18).
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # the reader has closed it
                stream.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))


def _keep_the_last_word() -> None:
    """Continue in a child: Ray ends a process whose node has died, without a word to whom it concerns.

    The parent passes signals on, and ends with the child's exit code or says what happened.
    """
    said, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(said)
        with contextlib.suppress(AttributeError, OSError):  # on Linux: stop when the parent is killed
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)
        atexit.register(os.write, tell, b".")
        return
    os.close(tell)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: os.kill(child, number))
    is_regular = bool(os.read(said, 1))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 1 and not is_regular:
        typer.echo(f"camri: {NODE_DIED}", err=True)
        code = 2
    os._exit(code if code >= 0 else 128 - code)


def run() -> None:
    """Run the command line. Bad input prints a sentence and exits with 2, an internal error with 70."""
    warnings.showwarning = _show_warning
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # removes temporary files, as Ctrl-C
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a Latin-1 terminal has no arrow, for example
    try:
        with needing(f"camri {' '.join(sys.argv[1:2])}".strip()):
            app()
    except InputError as error:
        typer.echo(f"camri: {visible(str(error))}", err=True)
        sys.exit(2)
    except Exception as error:
        if refusal := _refused(error):
            typer.echo(f"camri: {visible(refusal)}", err=True)
            sys.exit(2)
        message = visible(f"{type(error).__name__}: {last_line(str(error))}".removesuffix(": "))
        typer.echo(f"camri: {message}. {_log(traceback.format_exc())}", err=True)
        sys.exit(70)


def _refused(error: Exception) -> str | None:
    """What is missing or what the system refused, in a sentence; None for other errors."""
    if isinstance(error, ImportError) and "camri-loss[" in str(error):
        return str(error)
    if isinstance(error, MemoryError) or "allocate memory" in str(error):  # torch raises a RuntimeError
        return "out of memory; give fewer or smaller inputs, or more memory"
    if isinstance(error, OSError) and error.strerror:
        return f"{clip(str(error.filename), 300)}: {error.strerror}" if error.filename else error.strerror
    return None


def _log(details: str) -> str:
    """Write the details of an internal error to a file; return a sentence that names the file."""
    details = f"camri {camri.__version__}, {' '.join(map(repr, sys.argv[1:]))}\n{details}"
    with (
        contextlib.suppress(OSError),
        tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="backslashreplace", prefix="camri-error-", suffix=".log", delete=False
        ) as file,
    ):
        file.write(details)
        return f"This is a fault of camri; please report it with {file.name}"
    return f"This is a fault of camri; please report it with:\n{details}"  # no file could be written
