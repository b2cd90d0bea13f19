"""Names of a package that are imported when they are first asked for: importing the package imports no torch."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def on_first_use(package: str, **names: Sequence[str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`, from the public names of each of its modules.

    >>> find, list_names = on_first_use("camri", errors=["InputError", "closest"])
    >>> find("InputError").__name__, list_names()
    ('InputError', ['InputError', 'closest'])
    """
    home = {name: module for module, own in names.items() for name in own}

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home[name]}"), name)

    return find, lambda: sorted(home)
