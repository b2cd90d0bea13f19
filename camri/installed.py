"""What other packages bring: the entry points they name in their pyproject.toml."""

from importlib.metadata import entry_points
from typing import Any


def find_installed(name: str, table: dict[str, Any], group: str) -> bool:
    """Whether the table has that name; what an installed package has under it is loaded into the table first.

    Not before it is asked for: what is loaded imports the table's own module.
    """
    if name not in table:
        table.update({point.name: point.load() for point in entry_points(group=group) if point.name == name})
    return name in table
