"""Outcomes as a tidy table: one row for each outcome and split."""

import csv
from pathlib import Path
from typing import Any

from camri.errors import InputError
from camri.files import replacing
from camri.study.store import Row, Run, open_run


def export(folder: str | Path, csv_path: Path | None = None, parquet_path: Path | None = None) -> int:
    """The number of rows written; a file is there whole or not at all."""
    with open_run(folder) as run:
        names, table = tidy(run)
    for path, write in ((csv_path, _write_csv), (parquet_path, _write_parquet)):
        if path is None:
            continue
        with replacing(path, "; choose another file") as part:
            write(part, names, table)
    return len(table)


def tidy(run: Run) -> tuple[list[str], list[dict[str, Any]]]:
    """Column names, and rows of plain values; what a row does not have is None.

    A knob has a column; where several classes are important its values stand in the order of `important`, with a
    semicolon between them. `recall:cat` is the recall of cat. A failed outcome has one row, without a split.
    """
    classes = run.classes
    rows = [one for row in run.rows(status=None) for one in _tidy(row, classes)]
    knobs = list(dict.fromkeys(name for row in rows for name in row["knobs"]))
    recalls = [f"recall:{name}" for name in classes]
    before, after = ["method", "setting", "important"], ["seed", "split", "status", "accuracy"]
    last = ["error", "attempts", "epochs_done", "wall_s", "device_s", "created", "identity", "key"]
    names = [*before, *knobs, *after, *recalls, *last]
    return names, [{name: found.get(name) for name in names} for found in ({**row["knobs"], **row} for row in rows)]


def _tidy(row: Row, classes: tuple[str, ...]) -> list[dict[str, Any]]:
    shared = {
        "method": row.method,
        "setting": row.title,
        "important": ";".join(classes[index] for index in row.setting["important"]),
        "knobs": {name: _plain(value) for name, value in row.setting["knobs"].items()},
        "seed": row.seed,
        "status": row.status,
        "error": row.error,
        "attempts": row.attempts,
        "epochs_done": row.epochs_done,
        "wall_s": round(row.wall_s, 3),
        "device_s": round(row.device_s, 3),
        "created": row.created,
        "identity": row.identity,
        "key": row.key,
    }
    if not row.accuracy:
        return [shared]
    return [
        {
            **shared,
            "split": split,
            "accuracy": accuracy,
            **{f"recall:{name}": _number(value) for name, value in zip(classes, row.recall[split], strict=True)},
        }
        for split, accuracy in row.accuracy.items()
    ]


def _plain(value: float | list[float]) -> float | str | None:
    if not isinstance(value, list):
        return value
    return value[0] if len(value) == 1 else ";".join(map(repr, value)) or None


def _number(value: float) -> float | None:
    return None if value != value else value


def _write_csv(path: Path, names: list[str], table: list[dict[str, Any]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(table)


def _write_parquet(path: Path, names: list[str], table: list[dict[str, Any]]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError("a parquet file needs pyarrow: `pip install pyarrow`, or use --csv") from None
    columns = {name: [row[name] for row in table] for name in names}
    for values in columns.values():
        if any(isinstance(value, str) for value in values):  # several classes at once: all of the column as text
            values[:] = [value if value is None or isinstance(value, str) else repr(value) for value in values]
    parquet.write_table(pyarrow.table(columns), path, compression="zstd")
