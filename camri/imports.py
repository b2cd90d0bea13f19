"""Names of a package that are imported when they are first asked for: importing the package imports no torch.

What other packages bring: the entry points they name in their pyproject.toml.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
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


def find_installed(name: str, table: dict[str, Any], group: str) -> bool:
    """Whether the table has that name; what an installed package has under it is loaded into the table first.

    Not before it is asked for: what is loaded imports the table's own module.
    """
    if name not in table:
        table.update({point.name: point.load() for point in entry_points(group=group) if point.name == name})
    return name in table
