"""Options that several commands have, and errors that name the option that was typed for what Python calls it."""

import functools
import inspect
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, get_origin

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo

from camri.errors import InputError

# How data are read; camri.data.load has the same names.
Size = Annotated[int | None, typer.Option(help="Resize images to this side in pixels.")]
Roi = Annotated[bool, typer.Option("--roi", help="Crop GTSRB's images to the sign.")]
Verify = Annotated[bool, typer.Option("--verify/--no-verify", help="Check official files against their checksums.")]
PathColumn = Annotated[str | None, typer.Option(help="Column with the image paths of a table.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column with the labels of a table.")]
GroupColumn = Annotated[str | None, typer.Option(help="Column whose equal rows belong together.")]
SplitColumn = Annotated[str | None, typer.Option(help="Column with train, val or test.")]

_VALUE = r"(\[[^\]]*\]|\([^)]*\)|'[^']*'|\"[^\"]*\"|[^\s;,)]+)"


class Once(TyperCommand):
    """A command that refuses an option given twice; of two values the first would be dropped without a word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        order = self.make_parser(ctx).parse_args(list(args))[2]
        for option in order:
            if order.count(option) > 1 and not getattr(option, "multiple", False):
                raise InputError(f"{option.opts[0]} is given {order.count(option)} times; give it once")
        return super().parse_args(ctx, args)


def naming_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, with its InputErrors in the words of the command line.

    A parameter of a command has the name that the argument has in Python: that is how an error is told to be of it.
    """
    defaults = {name: parameter.default for name, parameter in inspect.signature(command).parameters.items()}
    options = _options(command)
    known = {name for names in options.values() for name in names}

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        try:
            return command(**given)
        except InputError as error:
            typed = {
                name: (names[0], _words(given[name]))
                for name, names in options.items()
                if given.get(name) not in (defaults[name], None, [])
            }
            raise InputError(name_options(str(error), typed, known)) from error

    return run


def _options(command: Callable[..., Any]) -> dict[str, list[str]]:
    """Parameter -> the names of its option: one, or two of a switch with a way to turn it off. Arguments have none."""
    found = {}
    # not get_type_hints: before Python 3.11 it hides what is Annotated in an Optional, where the default is None
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        hint = parameter.annotation
        told = getattr(hint, "__metadata__", ()) if get_origin(hint) is Annotated else ()
        for one in told:
            if isinstance(one, OptionInfo):
                names = map(str, (one.default, *(one.param_decls or ())))  # typer takes the first name for a default
                named = [word for word in names if word.startswith("--")]
                found[name] = named[0].split("/") if named else [f"--{name.replace('_', '-')}"]
    return found


def _words(value: Any) -> list[str]:
    """The values as they were typed; a flag has none."""
    several = value if isinstance(value, list) else [] if isinstance(value, bool) else [value]
    return [f"{one:g}" if isinstance(one, float) else str(one) for one in several]


def name_options(message: str, typed: Mapping[str, tuple[str, list[str]]], known: Collection[str] | None = None) -> str:
    """The message with the options that were typed for what Python calls them: parameter -> (option, its values).

    `known` are all options of the command. Ways to read data that are not among them are set in a study's file.

    >>> name_options("num_trials=12 is not allowed; give 16", {"num_trials": ("--trials", ["12"])})
    '--trials 12 is not allowed; give 16'
    >>> name_options("a.csv has no column 'x'; choices: y", {"label_column": ("--label-column", ["x"])})
    "a.csv has no column 'x' (--label-column); choices: y"
    >>> name_options("runs/a holds other files", {"out": ("--out", ["runs/a"])})
    '--out runs/a holds other files'
    >>> name_options("name it with label_column= (--label-column)", {})
    'name it with --label-column'
    >>> name_options("name it with label_column= (--label-column)", {}, {"--out"})
    "name it with label_column under [data] of the study's file"
    """
    message = re.sub(rf"(\w+)=(?:{_VALUE})? \((--[^)]+)\)", lambda found: _told_twice(found, typed, known), message)
    for name, (option, values) in typed.items():

        def as_typed(found: re.Match[str], option: str = option, values: list[str] = values) -> str:
            return _typed(option, values, found[1].strip("'\""))

        message = re.sub(rf"(?<![\w./-])(?:training |study )?{name}={_VALUE}", as_typed, message)
    for name, (option, values) in typed.items():
        for value in values:
            if not re.search(rf"{option}\b", message):
                message = _mark(message, name, option, value)
    return message


def _told_twice(found: re.Match[str], typed: Mapping[str, tuple[str, list[str]]], known: Collection[str] | None) -> str:
    """What to type, where an error names both the Python argument and the option: `kind='logits' (--scores-are …)`."""
    name, value, option = found.groups()
    if known is not None and option.split()[0] not in known:
        return f"{name}{f'={value}' if value else ''} under [data] of the study's file"
    return found[0].removesuffix(f" ({option})") if typed.get(name, ("",))[0] == option else option


def _typed(option: str, values: list[str], told: str) -> str:
    """The option with the value that the error told of, or with all its values if none of them is that."""
    meant = [one for one in values if one == told] or [one for one in values if told in one][:1] or values
    return " ".join(f"{option} {shlex.quote(one)}" for one in meant) or option


def _mark(message: str, name: str, option: str, value: str) -> str:
    """The message with the option beside the value, where it begins with it, has it as `name value`, quoted or k=v.

    Not behind "did you mean" or "choices": a value that stands there was not typed.
    """
    hint = re.search(r"\b(did you mean|choices:)", message)
    bare = re.escape(value)
    typed = f"{option} {shlex.quote(value)}"
    parts = sorted({value, *value.split(",")}, key=len, reverse=True)
    quoted = "|".join(re.escape(part) + r"(?![\w.])" if "=" in part else re.escape(repr(part)) for part in parts)
    for told, instead in (
        (rf"^{bare}(?=[\s:/])", typed),
        (rf"\b{name} {re.escape(repr(value))}", typed),
        (rf"\b{name} (?=\S*{bare}\s)", f"{option} "),
        (quoted, None),
    ):
        if found := re.compile(told).search(message, 0, hint.start() if hint else len(message)):
            return message[: found.start()] + (instead or f"{found[0]} ({option})") + message[found.end() :]
    return message
