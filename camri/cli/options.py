"""Shared by several commands: options, errors that name options, help texts, progress bars."""

import contextlib
import copy
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, ProgressColumn
from typer.core import TyperCommand

from camri.errors import InputError
from camri.files import STDOUT


def group(name: str, about: str, **options: Any) -> typer.Typer:
    """A command with subcommands."""
    settings = {"help_option_names": ["-h", "--help"]}
    return typer.Typer(
        name=name, help=about, no_args_is_help=True, rich_markup_mode="rich", context_settings=settings, **options
    )


def say_written(text: str, *files: object) -> None:
    """Print what was written where: to stderr if a file is "-", so that standard output holds nothing else."""
    typer.echo(text, err=STDOUT in map(str, files))


def examples(*lines: str) -> str:
    """The section of examples at the end of a command's help."""
    return "[bold]Examples[/bold]\n\n" + "\n\n".join(lines)


def unwrap(text: str) -> str:
    """A docstring as help text: joins the lines of each paragraph, which the terminal wraps; indented ones stay.

    >>> print(unwrap("One line\\nand another.\\n\\n  camri fit\\n  camri demo"))
    One line and another.
    <BLANKLINE>
      camri fit
      camri demo
    """
    parts = text.split("\n\n")
    return "\n\n".join(part if part.startswith(" ") else part.replace("\n", " ") for part in parts)


def class_numbers(texts: Iterable[str] | None, argument: str, example: str) -> dict[str, float]:
    """{class: number} of texts CLASS=NUMBER; the class name may contain "=".

    >>> class_numbers(["dog=0.5", "no=entry=2"], "strengths", "dog=0.5")
    {'dog': 0.5, 'no=entry': 2.0}
    """
    values = {}
    for text in texts or ():
        name, _, number = text.rpartition("=")
        try:
            values[name] = float(number)
        except ValueError:
            raise InputError(f"{argument}={text!r} is not CLASS=NUMBER; for example {example}", argument) from None
    return values


LOG_EVERY_S = 30.0


@contextlib.contextmanager
def progress_bar(*columns: str | ProgressColumn, quiet: bool = False, **first: Any) -> Iterator[Callable[..., None]]:
    """Yield a function that updates a bar on a terminal; in a log it prints `line` every 30 s instead."""
    console, printed = Console(stderr=True), time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bars:
        bar = bars.add_task(**{"description": "", "total": 1.0, **first})

        def update(line: str | None = None, **fields: Any) -> None:
            nonlocal printed
            bars.update(bar, **fields)
            if line is not None and not console.is_terminal and time.monotonic() - printed > LOG_EVERY_S:
                printed = time.monotonic()
                console.print(line, soft_wrap=True, highlight=False)

        yield update


@contextlib.contextmanager
def reading_progress() -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with (rows read, rows in all); the bar appears with the first call."""
    columns = Progress.get_default_columns()
    with progress_bar(*columns, description="reading the data", total=None, visible=False) as update:
        yield lambda done, num: update(
            f"reading the data: {done:,}/{num:,} rows", completed=done, total=num, visible=True
        )


# How data are read; the names are those of camri.data.load.
Size = Annotated[int | None, typer.Option(help="Resize images to this side in pixels.")]
Roi = Annotated[bool, typer.Option("--roi", help="Crop GTSRB's images to the sign.")]
Verify = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Check official files against their checksums (default).")
]
Resident = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="Memory for images, e.g. 2GiB; the rest is read from disk. Default: half of what is free."
    ),
]
PathColumn = Annotated[str | None, typer.Option(help="Column with the image paths of a table.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column with the labels of a table.")]
GroupColumn = Annotated[
    str | None, typer.Option(help="Column that says which rows belong together, such as the patient.")
]
SplitColumn = Annotated[str | None, typer.Option(help="Column with train, val or test.")]


class Command(TyperCommand):
    """A command that refuses an option given twice, and whose errors name the option instead of the argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        order = self.make_parser(ctx).parse_args(list(args))[2]
        for option in order:
            if order.count(option) > 1 and not getattr(option, "multiple", False):
                raise InputError(f"{option.opts[0]} is given {order.count(option)} times; give it once")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            options = [parameter for parameter in self.params if parameter.param_type_name == "option"]
            for parameter in options:
                if parameter.name == error.argument:
                    option = (*parameter.opts, *parameter.secondary_opts)[-1 if parameter.secondary_opts else 0]
                    message = name_others(str(error), {str(one.name): one.opts[0] for one in options})
                    told = name_option(message, error.argument, option)
                    raise InputError(told, error.argument, error.row, error.where) from error
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help. Both names of a switch share a column, and it has no type: names stay whole at 80 columns."""
        shown = copy.copy(self)
        shown.params = [_shown(parameter) for parameter in self.get_params(ctx)]
        shown.get_params = lambda ctx: shown.params  # type: ignore[method-assign]
        TyperCommand.format_help(shown, ctx, formatter)


def _shown(parameter: Any) -> Any:
    """A copy for the help: "--on/--off" is one name, a switch has no type, and several values that of one."""
    one = copy.copy(parameter)
    if one.param_type_name != "option":
        return one
    if one.is_flag:
        one.metavar = ""
        if one.secondary_opts:
            names = one.opts[0], one.secondary_opts[0]
            if one.default is not None:  # typer would say True
                one.help, one.show_default = rf"{one.help} \[default: {names[not one.default].lstrip('-')}]", False
            one.opts, one.secondary_opts = ["/".join(names)], []
    elif one.multiple and one.metavar is None:
        one.metavar = "<str>"
    return one


def name_others(message: str, options: dict[str, str]) -> str:
    """Replace arguments named in a sentence by their options; single words such as `out` may be English, and stay.

    >>> name_others("give one goal, not at_least and out", {"at_least": "--at-least", "out": "--out"})
    'give one goal, not --at-least and out'
    """
    for argument, option in options.items():
        if "_" in argument:
            message = re.sub(rf"(?<![\w./'-]){argument}(?![\w./'=-])", option, message)
    return message


def name_option(message: str, argument: str, option: str) -> str:
    """Replace the argument by the option; a message that does not name it gets the option in front.

    >>> name_option("num_trials=12 is not allowed; give 16", "num_trials", "--trials")
    '--trials 12 is not allowed; give 16'
    >>> name_option("a.csv has no column 'x'; choices: y", "label_column", "--label-column")
    "--label-column: a.csv has no column 'x'; choices: y"
    """
    named = re.sub(rf"(?<![\w./-]){argument}=(?:True|False)?", f"{option} ", message).replace("  ", " ")
    return named if named != message or option in message else f"{option}: {message}"
