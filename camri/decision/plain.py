"""CSV and TSV without pyarrow: slower, and with the same rules for the names of columns."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from camri.decision.scores import Array
from camri.errors import InputError, closest
from camri.tables import ROLES
from camri.text import listed


def read_plain(file: Path, chosen: dict[str, str | None]) -> tuple[dict[str, Array], dict[str, list[str]]]:
    """The columns of numbers, and those of labels, split, group and site by role."""
    try:
        with open(file, newline="", encoding="utf-8-sig") as stream:
            header, *lines = list(csv.reader(stream, delimiter="\t" if file.suffix.lower() == ".tsv" else ",")) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} cannot be read ({error})") from None
    lines = [line for line in lines if line]
    if not lines:
        raise InputError(f"{file} has no rows")
    for number, line in enumerate(lines):
        if len(line) != len(header):
            wrong = f"{file}, line {number + 2}: {len(line)} values for {len(header)} columns"
            raise InputError(f"{wrong}; give each row as many values as the first line has names", row=number)
    columns = {name: [line[place] for line in lines] for place, name in enumerate(header)}
    roles = {role: _role(role, name, columns, file) for role, name in chosen.items()}
    if roles["label"] is None:
        raise InputError(f"{file} has no label column among {listed(header)}; name it", argument="label_column")
    found = {role: columns[name] for role, name in roles.items() if name is not None}
    rest = [name for name in header if name not in roles.values()]
    return {name: numbers for name in rest if (numbers := _numbers(columns[name])) is not None}, found


def _role(role: str, name: str | None, columns: dict[str, Any], file: Path) -> str | None:
    if name is not None and name not in columns:
        raise InputError(f"{file} has no column {name!r}; {closest(name, columns)}", argument=f"{role}_column")
    by_lower = {one.lower(): one for one in columns}
    usual = (by_lower[one] for one in ROLES.get(role, ()) if one in by_lower)
    return name if name is not None else next(usual, None)


def _numbers(texts: list[str]) -> Array | None:
    """The numbers of a column; None for a column of text."""
    try:
        return np.array(texts, dtype=np.float64)
    except ValueError:
        return None
