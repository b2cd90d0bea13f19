"""Tables of scores as pieces of rows, so that memory does not grow with the number of classes.

A source gives the names of its columns, then tasks for some threads. Each task yields the scores of some rows, with
their labels, split and groups where these are in the same table.
"""

import contextlib
import csv
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from camri import tables
from camri.decision.columns import Column, Frame, Picked, no_number
from camri.decision.labels import Coded, Place, join
from camri.decision.scores import CELLS_AT_ONCE, Array
from camri.errors import InputError
from camri.tables import arrow_csv, is_float, is_missing, pa, pq
from camri.text import listed

SCORES = ("scores", "logits", "probabilities", "probs", "predictions")
ROLES = ("label", "split", "group")
FEWEST_ROWS = 1024  # at once
BYTES_AT_ONCE = 2**22  # of a CSV
BYTES_LEFT_MAPPED = 2**24


class Piece(NamedTuple):
    """Some rows: scores (n, C), Arrow's dictionary arrays by role, rows without a score for each class, progress."""

    values: Array
    roles: Mapping[str, Any]
    unlike: Mapping[int, int | None]
    done: float


Task = Callable[[], Iterator[Piece]]


class Source(Protocol):
    """Where scores come from. done of its pieces sums to `size`, which is the number of rows if that is known."""

    place: Place
    size: float

    def tasks(self, picked: Picked) -> Iterator[Task]: ...


class Unreadable(Exception):
    """A piece of a file that cannot be read; `explain` makes the sentence, which needs the rows before it."""

    def __init__(self, explain: Callable[[int], InputError]):
        super().__init__()
        self.explain = explain


class ReadWhole(Exception):
    """A CSV whose lines may not be rows: it cannot be read in pieces."""


class Arrays:
    """The scores of an array (N, C), or of the columns of a data frame."""

    def __init__(self, values: Array | Frame, num_rows: int, place: Place | None = None):
        self.values, self.place, self.size = values, place or Place(), float(num_rows)
        self.held = 0  # bytes of a mapped file

    def tasks(self, picked: Picked) -> Iterator[Task]:
        """Slices of rows."""
        at_once = max(FEWEST_ROWS, CELLS_AT_ONCE // max(1, len(picked.columns)))
        columns = None
        if isinstance(self.values, Frame):
            columns = [self.values.arrays[name]() for name in picked.columns]
        for first in range(0, int(self.size), at_once):
            yield partial(self._slice, columns, slice(first, min(first + at_once, int(self.size))))

    def _slice(self, columns: Sequence[Array] | None, rows: slice) -> Iterator[Piece]:
        if columns is not None:
            values = _stack([column[rows] for column in columns])
        else:
            values = np.asarray(self.values)[rows]
            if isinstance(self.values, np.memmap) and isinstance(self.values.base, mmap.mmap):
                values = values.copy()
                self.held += values.nbytes
                if self.held > BYTES_LEFT_MAPPED and hasattr(mmap, "MADV_DONTNEED"):
                    self.held = 0
                    with contextlib.suppress(OSError, ValueError):
                        self.values.base.madvise(mmap.MADV_DONTNEED)  # the file's pages stay in the system's cache
        yield Piece(values, {}, {}, float(rows.stop - rows.start))


def _stack(columns: Sequence[Array]) -> Array:
    """Columns as (n, C), each of them contiguous."""
    block = np.empty((len(columns), len(columns[0])), dtype=np.result_type(*columns))
    for place, column in enumerate(columns):
        block[place] = column
    return block.T


class Tables:
    """The scores of a table in files: their columns and roles, from the first rows (`head`)."""

    place: Place
    size: float
    head: Any

    def __init__(self, where: str, chosen: dict[str, str | None]):
        self.where = where
        table, columns = self.head, listed(self.head.column_names)
        label = tables.role(table, "label", chosen["label"], where)
        if label is None:
            raise InputError(f"{where} has no label column among {columns}; name it", argument="label_column")
        split = tables.role(table, "split", chosen["split"], where, tables.is_text_type)
        # A column of other numbers called track is a class's.
        group = tables.role(
            table, "group", chosen["group"], where, lambda kind: tables.is_text_type(kind) or pa.types.is_integer(kind)
        )
        site = None if chosen["site"] is None else tables.role(table, "site", chosen["site"], where)
        name = chosen.get("id")
        name = None if name is None else tables.role(table, "id", name, where)
        found = {"label": label, "split": split, "group": group, "site": site, "id": name}
        self.roles = {role: name for role, name in found.items() if name is not None}
        rest = [name for name in table.column_names if name not in found.values() and not self._is_index(name)]
        lists = [name for name in rest if tables.is_list_type(table.schema.field(name).type) and name.lower() in SCORES]
        self.matrix: str | None = lists[0] if lists else None
        self.width = 0
        self.names: Sequence[str] | None = None
        if self.matrix is not None:
            self._measure(self.matrix, label)
        self.columns = tuple(map(self._column, rest))

    def tasks(self, picked: Picked) -> Iterator[Task]:
        """Pieces of the files."""
        raise NotImplementedError

    def labels(self) -> Coded:
        """The labels of all rows."""
        chunks = []
        try:
            for task in self.tasks(Picked((), ())):
                chunks += [piece.roles["label"] for piece in task()]
        except Unreadable as problem:
            raise problem.explain(sum(map(len, chunks))) from None
        return join(chunks)

    def _is_index(self, name: str) -> bool:
        """Whether a column is the index that pandas writes: whole numbers without a name."""
        is_unnamed = name.lower() in ("", "unnamed: 0", "__index_level_0__")
        return is_unnamed and pa.types.is_integer(self.head.column(name).type)

    def _column(self, name: str) -> Column:
        kind = self.head.schema.field(name).type
        short = "whole" if pa.types.is_integer(kind) else "number" if pa.types.is_floating(kind) else str(kind)
        short = "text" if tables.is_text_type(kind) else short
        return Column(name, short, self.head.column(name).to_pylist)

    def _measure(self, name: str, label: str) -> None:
        """Find the width of a column of lists, and the names of its classes."""
        column, where = self.head.column(name), f"{self.where}, column {name!r}"
        if not tables.is_number_type(column.type.value_type):
            raise InputError(f"{where} holds lists of {column.type.value_type}; scores are lists of numbers")
        self.width = tables.to_matrix(column)[0].shape[1]
        self.names = tables.class_label_names(self.head, label)
        if not self.width:
            tables.refuse_unlike({0: None}, self.head.num_rows, 0, where)
        if self.names is not None and len(self.names) != self.width:
            wrong = f"{self.where} names {len(self.names)} classes and has scores of {self.width}"
            raise InputError(f"{wrong}; give one name for each")

    def _piece(self, table: Any, picked: Picked, done: float) -> Piece:
        """The scores and roles of some rows."""
        roles = {role: self._encoded(table.column(name), name) for role, name in self.roles.items()}
        if not picked.columns:
            return Piece(np.zeros((table.num_rows, 0)), roles, {}, done)
        if self.matrix is None:
            return Piece(_stack([_numbers(table.column(name)) for name in picked.columns]), roles, {}, done)
        values, unlike = tables.to_matrix(table.column(self.matrix), self.width)
        if values.shape[1] != self.width:
            values, unlike = np.full((len(values), self.width), np.nan), dict.fromkeys(range(len(values)))
        return Piece(values, roles, unlike, done)

    def _encoded(self, column: Any, name: str) -> Any:
        kind = self.head.schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        found = column.combine_chunks()
        if found.type != pa.dictionary(pa.int32(), kind):
            found = found.cast(found.type.value_type) if pa.types.is_dictionary(found.type) else found
            found = found.cast(kind).dictionary_encode()
        found.validate(full=True)
        return found

    @property
    def used(self) -> list[str]:
        """The columns with a role."""
        return list(dict.fromkeys(self.roles.values()))


def _numbers(column: Any) -> Array:
    if not tables.is_number_type(column.type):
        column = column.cast(pa.float64())
    found: Array = tables.numbers_of(column)
    return found


class TextTable(Tables):
    """A CSV or TSV, read in pieces of whole lines."""

    def __init__(self, file: Path, chosen: dict[str, str | None], whole: bool = False):
        self.file, self.whole = file, whole
        self.place = Place((str(file),), is_text=True)
        self.named = set(chosen.values())
        tables.refuse_special(file)
        self.size = float(file.stat().st_size)
        if whole:
            self.head = tables.read_table(file, self.named)
        else:
            self.names_of_columns, self.start, self.sign = _read_header(file)
            self.first = next(self._spans(), (self.start, self.start))
            try:
                self.head = self._load(self.first)
            except Unreadable as problem:
                raise problem.explain(0) from None
        if twice := tables.named_twice(self.head.column_names):
            raise InputError(f"{file} has two columns called {twice!r}; rename one")
        if not self.head.num_rows:
            raise InputError(f"{file} has no rows")
        super().__init__(str(file), chosen)

    def tasks(self, picked: Picked) -> Iterator[Task]:
        """Pieces of some megabytes; the first one is there already."""
        if self.whole:
            yield lambda: iter([self._piece(self.head, picked, self.size)])
            return
        for span in self._spans():
            yield partial(self._rows, span, picked)

    def _rows(self, span: tuple[int, int], picked: Picked) -> Iterator[Piece]:
        table = self.head if span == self.first else self._load(span, picked)
        if table.num_rows:  # a piece may be blank lines
            yield self._piece(table, picked, float(span[1] - span[0]))

    def _spans(self) -> Iterator[tuple[int, int]]:
        """(first byte, last byte + 1) of pieces of whole lines."""
        with self.file.open("rb", buffering=0) as stream:
            end, first = os.fstat(stream.fileno()).st_size, self.start
            while first < end:
                stop = first + BYTES_AT_ONCE
                while stop < end:
                    stream.seek(stop)
                    found = (part := stream.read(2**16)).find(b"\n")
                    stop += found + 1 if found >= 0 else len(part)
                    if found >= 0:
                        break
                yield first, min(stop, end)
                first = stop

    def _load(self, span: tuple[int, int], picked: Picked | None = None, kind: Any = None) -> Any:
        with self.file.open("rb", buffering=0) as stream:
            stream.seek(span[0])
            data = stream.read(span[1] - span[0])
        if not _is_plain(data, self.sign):
            raise ReadWhole
        types = {name: pa.string() for name in self.names_of_columns if tables.stays_text(name, self.named)}
        wanted: list[str] = []
        if picked is not None:
            wanted = list(dict.fromkeys([*picked.columns, *self.used]))
            types |= {name: kind or pa.float64() for name in picked.columns}
        try:
            return arrow_csv.read_csv(
                pa.BufferReader(data),
                read_options=arrow_csv.ReadOptions(
                    column_names=self.names_of_columns, block_size=len(data) + 1, use_threads=False
                ),
                parse_options=arrow_csv.ParseOptions(delimiter=self.sign, newlines_in_values=True),
                convert_options=arrow_csv.ConvertOptions(column_types=types, include_columns=wanted),
            )
        except (pa.ArrowException, ValueError) as error:
            raise Unreadable(partial(self._explain, span, picked, str(error))) from None

    def _explain(self, span: tuple[int, int], picked: Picked | None, reason: str, start: int) -> InputError:
        """Why a piece cannot be read, which begins with this row."""
        if picked is not None:
            with contextlib.suppress(Unreadable):
                texts = self._load(span, picked, pa.string())
                for name in picked.columns:
                    for row, cell in enumerate(texts.column(name).to_pylist()):
                        if not is_missing(cell) and not is_float(cell):
                            return no_number(name, cell, start + row, self.place)
        try:
            tables.read_table(self.file, self.named)
        except InputError as error:
            return error
        return InputError(f"{self.file} cannot be read as a table: {reason.partition(chr(10))[0]}; save it again")


def _read_header(file: Path) -> tuple[list[str], int, str]:
    """The names of a CSV's columns, the byte at which its rows begin, and what separates values."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            first = stream.readline()
            sign = tables.delimiter_of(first, file)
            stream.seek(0)
            reader = csv.reader(stream, delimiter=sign)
            names, num_lines = [name.strip() for name in next(reader, [])], reader.line_num
            stream.seek(0)
            num_bytes = sum(len(stream.readline().encode()) for _ in range(num_lines))
    except (UnicodeDecodeError, csv.Error):
        tables.read_table(file)  # has the sentences for these
        raise
    with file.open("rb") as raw:
        return names, num_bytes + (3 if raw.read(3) == b"\xef\xbb\xbf" else 0), sign


def _is_plain(data: bytes, sign: str) -> bool:
    """Whether each line is a row: its quotes open at the start of a value, and are closed.

    >>> _is_plain(b'1,"a"\\n2,"b ""c"" d"\\n', ","), _is_plain(b'1,"a\\nb"\\n', ","), _is_plain(b'1,5" x "\\n', ",")
    (True, False, False)
    """
    if b'"' not in data:
        return True
    signs = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(signs == ord('"'))
    line = np.searchsorted(np.flatnonzero(signs == ord("\n")), quotes)
    if (np.bincount(line) % 2).any():
        return False
    opening = quotes[::2]
    before = np.where(opening > 0, signs[opening - 1], ord("\n"))
    return bool(np.isin(before, [ord(sign), ord("\n"), ord('"')]).all())


class ParquetTable(Tables):
    """A parquet file, or a folder of parts."""

    def __init__(self, path: Path, chosen: dict[str, str | None]):
        parts = [path]
        if path.is_dir():
            parts = sorted(file for file in path.glob("*.parquet") if not file.name.startswith((".", "_")))
            if not parts:
                raise InputError(f"{path} is a folder without parquet files; give a table of scores or such a folder")
        self.opened: list[tuple[Path, Any]] = []
        for file in parts:
            tables.refuse_special(file)
            with self._reading(file), pq.ParquetFile(file) as opened:
                self.opened.append((file, opened.metadata))
        self.opened = [one for one in self.opened if one[1].num_rows]
        if not self.opened:
            raise InputError(f"{path} has no rows")
        starts = np.cumsum([0, *(metadata.num_rows for _, metadata in self.opened)]).tolist()
        self.place = Place(tuple(str(file) for file, _ in self.opened), tuple(starts[:-1]))
        self.size = float(starts[-1])
        with self._reading(self.opened[0][0]), pq.ParquetFile(self.opened[0][0]) as opened:
            if twice := tables.named_twice(opened.schema_arrow.names):
                raise InputError(f"{self.opened[0][0]} has two columns called {twice!r}; rename one")
            rows = next(opened.iter_batches(batch_size=FEWEST_ROWS, use_threads=False))
            self.head = pa.Table.from_batches([rows], schema=opened.schema_arrow)
            self.head.validate(full=True)  # a damaged file may hold text that is not UTF-8
        super().__init__(str(path), chosen)

    @contextlib.contextmanager
    def _reading(self, file: Path) -> Iterator[None]:
        try:
            yield
        except InputError:  # a ValueError too
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(f"{file} cannot be read as a table: {reason}; save it again") from None

    def tasks(self, picked: Picked) -> Iterator[Task]:
        """The row groups of all files."""
        for file, metadata in self.opened:
            for group in range(metadata.num_row_groups):
                if metadata.row_group(group).num_rows:
                    yield partial(self._rows, file, metadata, group, picked)

    def _rows(self, file: Path, metadata: Any, group: int, picked: Picked) -> Iterator[Piece]:
        scores = [self.matrix] if self.matrix is not None and picked.columns else picked.columns
        wanted = list(dict.fromkeys([*scores, *self.used]))
        at_once = max(FEWEST_ROWS, CELLS_AT_ONCE // max(1, self.width or len(picked.columns)))
        texts = [name for name in self.used if tables.is_text_type(self.head.schema.field(name).type)]
        with self._reading(file), pq.ParquetFile(file, metadata=metadata, read_dictionary=texts) as opened:
            if lacking := [name for name in wanted if name not in opened.schema_arrow.names]:
                first = self.opened[0][0].name
                raise InputError(f"{file} has no column {lacking[0]!r}, which {first} has; parts of a table must agree")
            for batch in opened.iter_batches(at_once, row_groups=[group], columns=wanted, use_threads=False):
                yield self._piece(pa.Table.from_batches([batch]), picked, float(batch.num_rows))
