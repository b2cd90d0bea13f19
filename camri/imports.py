"""Lazy imports: a package's names are imported on first use, so that importing the package imports no torch.

Also entry points, by which other packages add methods and models.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any


def on_first_use(package: str, **names: Sequence[str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a package's `__getattr__` and `__dir__` from the public names of each of its modules.

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


def find_installed(name: str, table: dict[str, Any], group: str) -> bool:
    """Whether the table has this name, after loading it from an installed package's entry point if necessary.

    Entry points are loaded on demand, since they import the module of the table.
    """
    if name not in table:
        table.update({point.name: point.load() for point in entry_points(group=group) if point.name == name})
    return name in table
