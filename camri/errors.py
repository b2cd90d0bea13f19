"""The exception for input that the user can correct, and hints for its messages."""

import contextlib
import difflib
import importlib.util
import re
import shlex
from collections.abc import Iterable, Iterator

MOST_SIGNS = 2000  # of a message
NODE_DIED = (
    "the cluster's node on this machine has died; what had ended is stored: if you started the node, start it again "
    "(`ray stop`, then `ray start`); run the same command"
)
ENDED_BY = "ended_by"  # in the environment of a lost trial: what ended its process in each attempt


class InputError(ValueError):
    """Bad input, explained in one sentence that names the value and the choices.

    `argument` is the Python argument at fault, if any; the command line shows its option instead. It prints the
    message without a traceback and exits with 2. Of a message with a very long value the middle is left out. `row` is
    the row at fault, counted from 0, and `where` the file that it is in; the message names them too.
    """

    def __init__(self, message: str, argument: str | None = None, row: int | None = None, where: str | None = None):
        if len(message) > MOST_SIGNS:
            message = f"{message[: MOST_SIGNS // 2]} … {message[-MOST_SIGNS // 3 :]}"
        super().__init__(message)
        self.argument = argument
        self.row = row
        self.where = where

    def __reduce__(self) -> tuple[type["InputError"], tuple[str, str | None, int | None, str | None]]:
        return type(self), (str(self), self.argument, self.row, self.where)  # errors cross process boundaries


@contextlib.contextmanager
def blame(argument: str) -> Iterator[None]:
    """Add the argument at fault to InputErrors without one."""
    try:
        yield
    except InputError as error:
        error.argument = error.argument or argument
        raise


def require(what: str, *packages: str, install: str) -> None:
    """Raise InputError with the install command if a package that `what` needs is missing.

    >>> require("a page", "json", "no_such_package", install="'camri-loss[report]'")
    Traceback (most recent call last):
    camri.errors.InputError: a page needs no_such_package, which is not installed: pip install 'camri-loss[report]'
    """
    for name in packages:
        with contextlib.suppress(ImportError):
            if importlib.util.find_spec(name) is not None:
                continue
        raise InputError(f"{what} needs {name}, which is not installed: pip install {install}")


# The extra of the distribution that installs a package.
EXTRAS = {
    "train": ("torch", "pydantic", "PIL", "pyarrow", "safetensors"),
    "report": ("altair", "vl_convert", "jinja2", "markupsafe"),
    "onnx": ("onnx", "onnxruntime", "onnxscript", "skl2onnx"),
    "cluster": ("ray",),
}


@contextlib.contextmanager
def needing(what: str) -> Iterator[None]:
    """Say which extra has a package that `what` needs and that is not installed.

    >>> with needing("camri.CamriLoss"):
    ...     raise ModuleNotFoundError("No module named 'torch'", name="torch")
    Traceback (most recent call last):
    ImportError: camri.CamriLoss needs torch, which is not installed: pip install 'camri-loss[train]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = next((name for name, packages in EXTRAS.items() if package in packages), None)
        if extra is None:
            raise
        wrong = f"{what} needs {package}, which is not installed: pip install 'camri-loss[{extra}]'"
        raise ImportError(wrong, name=package) from None


def last_line(error: str | None) -> str:
    """The last line of a stored error: in a traceback, the error itself.

    >>> last_line("Traceback (most recent call last):\\n  File …\\nRuntimeError: out of memory")
    'RuntimeError: out of memory'
    """
    return (error or "").strip().rpartition("\n")[2].strip()


def closest(name: object, choices: Iterable[object], shown: int = 12) -> str:
    """A hint for a name that is not among the choices: the closest ones, then all.

    >>> closest("cta", ["cat", "dog"])
    "did you mean 'cat'? choices: cat, dog"
    >>> closest("zebra", ["cat", "dog"])
    'choices: cat, dog'
    >>> closest("zebra", ["cat", "cow, or ox"])
    "choices: cat, 'cow, or ox'"
    """
    names = [str(choice) for choice in choices]
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    more = f" … ({len(names)} in all)" if len(names) > shown else ""
    listed = [repr(name) if "," in name else name for name in names[:shown]]
    return f"{hint}choices: {', '.join(listed)}{more}"


def one_by_one(word: object, classes: Iterable[str]) -> str:
    """How to give several classes, if the word seems to name several at once; otherwise "".

    >>> one_by_one("cat+no entry", ["cat", "dog", "no entry"])
    "several are given one by one: --important cat --important 'no entry' (in Python: ['cat', 'no entry'])"
    >>> one_by_one("zebra+cow", ["cat", "dog"]), one_by_one("cat", ["cat", "dog"])
    ('', '')
    """
    names = [name.strip() for name in re.split("[+,;]", str(word))]
    if len(names) < 2 or not {name.partition(":")[0] for name in names} & set(classes):
        return ""
    flags = " ".join(f"--important {shlex.quote(name)}" for name in names)
    return f"several are given one by one: {flags} (in Python: {names})"
