"""Columns of lists: a list of numbers a row -> a matrix, and which rows do not fit."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from camri.data import columns
from camri.errors import InputError
from camri.words import ROWS_SHOWN


def to_matrix(column: Any, wanted: int | None = None) -> tuple[np.ndarray, dict[int, int | None]]:
    """(numbers (N, D), rows that do not fit) of a column of lists, D being the length that most of them have.

    Where any has the `wanted` length, D is that. A row that does not fit stands with the length of its list, None where
    it has none; its numbers are NaN.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = column.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(rows), -1).to_numpy(zero_copy_only=False)
    # Empty lists are how some tools write missing ones: however many there are, they are not the length that is meant.
    common, counts = np.unique(lengths[lengths > 0], return_counts=True)
    width = int(common[counts == counts.max()][-1]) if len(common) else 0  # of two as common, the longer
    if wanted is not None and wanted in common:
        width = wanted
    fits = lengths == width
    if fits.all():
        return columns.to_numpy(rows.flatten()).reshape(len(rows), width), {}
    values = np.full((len(rows), width), np.nan)
    values[fits] = columns.to_numpy(rows.filter(pa.array(fits)).flatten()).reshape(fits.sum(), width)
    return values, {row: None if lengths[row] < 0 else int(lengths[row]) for row in np.flatnonzero(~fits).tolist()}


def refuse_unlike(unlike: Mapping[int, int | None], num_rows: int, width: int, where: str) -> None:
    """Nothing; rows whose lists are missing or of another length are refused by their numbers."""
    if not unlike:
        return
    if not width:
        raise InputError(f"{where}: no row has any values; fill the column in or drop it")
    first = [
        f"row {row} ({'missing' if length is None else f'{length:,} values'})"
        for row, length in list(unlike.items())[:ROWS_SHOWN]
    ]
    more = f", … {len(unlike):,} of {num_rows:,} rows in all" if len(unlike) > ROWS_SHOWN else ""
    raise InputError(
        f"{where}: rows without the {width:,} values that most rows have: {', '.join(first)}{more}; fill them in or "
        "remove the rows"
    )
