"""The SQLite file of a run: its tables, how it is opened, its errors, and the records read from it without arrays."""

import contextlib
import io
import json
import os
import sqlite3
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from camri.errors import ENDED_BY, InputError, last_line
from camri.files import checksum
from camri.metrics import Array, Scores, condense


def pack(arrays: Mapping[str, Array]) -> bytes:
    """The bytes of a compressed .npz file; `numpy.load(io.BytesIO(blob))` reads it anywhere.

    >>> unpack(pack({"hits": np.array([1, 2])}))["hits"].tolist()
    [1, 2]
    """
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise TypeError(f"{name} holds Python objects; only plain arrays are stored")
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def unpack(blob: bytes, names: Collection[str] | None = None) -> dict[str, Array]:
    """The arrays of a blob, all or those of some names; ValueError if its bytes are damaged."""
    try:
        with np.load(io.BytesIO(blob), allow_pickle=False) as file:
            return {name: file[name] for name in (file.files if names is None else names)}
    except (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"the stored arrays are damaged ({error})") from error


FULL_DISK = "what was stored is safe; make room and run the same command again"
APPLICATION_ID = 0x63616D72  # "camr": tells a store from any other SQLite file
VERSION = 2
UNCHECKED = 1  # the version without checksums: can be read, and gets them when it is written to

TABLES = (
    # Facts of the run as JSON: fingerprint, classes, data, training, columns, …
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # The labels of val and test, once for all outcomes: .npz bytes with labels and, where rows have them, groups.
    "CREATE TABLE labels (split TEXT PRIMARY KEY, num INTEGER NOT NULL, arrays BLOB NOT NULL)",
    # Every study that was run into this folder.
    "CREATE TABLE studies (key TEXT PRIMARY KEY, name TEXT NOT NULL, spec TEXT NOT NULL, created TEXT NOT NULL)",
    # What each column compares. Settings that train the same have the same key, which is the outcome's key.
    """CREATE TABLE plan (
        "column" INTEGER NOT NULL, method TEXT NOT NULL, key TEXT NOT NULL, title TEXT NOT NULL, setting TEXT NOT NULL,
        PRIMARY KEY ("column", setting)
    )""",
    # Blobs last: reading the other columns does not touch their pages.
    """CREATE TABLE outcomes (
        identity TEXT PRIMARY KEY, key TEXT NOT NULL, method TEXT NOT NULL, title TEXT NOT NULL, setting TEXT NOT NULL,
        seed INTEGER NOT NULL, status TEXT NOT NULL, error TEXT, attempts INTEGER NOT NULL,
        epochs_done INTEGER NOT NULL, val_accuracy REAL, test_accuracy REAL, val_recall TEXT, test_recall TEXT,
        wall_s REAL NOT NULL, device_s REAL NOT NULL, environment TEXT NOT NULL, created TEXT NOT NULL,
        important TEXT NOT NULL, arrays BLOB NOT NULL, logits BLOB, weights BLOB
    )""",
    "CREATE INDEX outcomes_by_setting ON outcomes (key, seed)",
)
# The checksum of everything that is read from the other tables, by what it is.
CHECKS = "CREATE TABLE checks (what TEXT PRIMARY KEY, crc INTEGER NOT NULL) WITHOUT ROWID"
BLOBS = ("important", "arrays", "logits", "weights")  # columns of an outcome that are read one by one


def sign(values: Iterable[Any]) -> int:
    """The checksum of values from a table; 1, 1.0 and "1" differ.

    >>> sign(["a", 1]) != sign(["a", 1.0]) != sign(["a1"])
    True
    """
    return checksum(*(value if isinstance(value, bytes) else f"{value!r};".encode() for value in values))


def sign_outcome(values: Mapping[str, Any]) -> dict[str, int]:
    """The checksums of an outcome's row: of its plain values together, and of each blob that it has."""
    identity = values["identity"]
    blobs = {f"{name}/{identity}": sign([values[name]]) for name in BLOBS if values[name] is not None}
    return {f"row/{identity}": sign(values[name] for name in ROW_COLUMNS.split(", ")), **blobs}


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors, and those of values that cannot be decoded, into sentences: the file and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        said = str(error)
        if "is full" in said:
            why = f"cannot be written: the disk is full; {FULL_DISK}"
        elif "readonly" in said or "unable to open" in said:
            why = f"cannot be opened ({said}); choose another folder or change its permissions"
        elif "locked" in said:
            why = "is being written by another program; try again when it has ended"
        elif "disk I/O" in said:
            why = f"cannot be read or written ({said}); check the disk, or copy the folder to another"
        else:
            raise damaged(path, said) from error
        raise InputError(f"{path} {why}") from error
    except InputError:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def damaged(path: Path, why: str) -> InputError:
    remedy = f"save what is left with `sqlite3 {path} .recover | sqlite3 saved.sqlite`, or move it away and run again"
    return InputError(f"{path} is damaged ({why}); {remedy}")


def open_to_write(path: Path) -> tuple[sqlite3.Connection, bool]:
    """A connection to the store, and whether it is a new one without tables."""
    with explained(path):
        connection = sqlite3.connect(path, timeout=30.0, isolation_level=None)
        try:
            is_new = _is_empty(connection)
            if not is_new:
                _check_version(connection, path)
                problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if problem != "ok":
                    raise damaged(path, " ".join(problem.replace("*", "").split()))
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        except BaseException:
            connection.close()
            raise
    return connection, is_new


def open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that cannot write."""
    if not path.is_file():
        raise InputError(f"{path.parent} holds no run: there is no {path.name} in it")
    with explained(path):
        # In a read-only folder SQLite cannot share the file with a writer, but there is none.
        is_alone = not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists()
        source = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if is_alone else ''}"
        connection = sqlite3.connect(source, uri=True, timeout=30.0, isolation_level=None)
        try:
            if _is_empty(connection):
                raise InputError(f"{path} has no outcomes yet: its run was killed as it began; run it again")
            _check_version(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables, inside the transaction that also writes the run's facts."""
    for statement in (*TABLES, CHECKS, f"PRAGMA application_id={APPLICATION_ID}", f"PRAGMA user_version={VERSION}"):
        connection.execute(statement)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what is written inside, or roll all of it back."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _is_empty(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise InputError(f"{path} is an SQLite file, but not the outcomes of a study; choose another folder")
    version = version_of(connection)
    if version not in (UNCHECKED, VERSION):
        raise InputError(f"{path} has store version {version}, but this camri reads version {VERSION}")


def version_of(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


SPLITS = ("val", "test")
Resolved = tuple[tuple[int, float], ...]  # a column's class indices with their strengths


@dataclass(frozen=True)
class Row:
    """An outcome without its arrays. `setting` is {"method", "important", "knobs"}, in its simplest form.

    `key` is the same for all settings of the plan that train the same: match plan and rows by it.
    """

    identity: str
    key: str
    method: str
    title: str
    setting: dict[str, Any]
    seed: int
    status: str  # "done" or "failed"
    error: str | None
    attempts: int
    epochs_done: int
    accuracy: dict[str, float]  # by split
    recall: dict[str, tuple[float, ...]]  # by split, of every class; nan for one without images
    wall_s: float
    device_s: float
    environment: dict[str, Any]
    created: str

    @property
    def is_lost(self) -> bool:
        """Whether it failed because its process died each time; it may succeed elsewhere or later."""
        return ENDED_BY in self.environment

    @property
    def complaint(self) -> str:
        """Of a failed trial: its setting, seed and the last line of its error."""
        return f"{self.title} seed {self.seed}: {last_line(self.error)}"


@dataclass(frozen=True)
class Planned:
    """A setting that a column compares, as the study has it; its outcomes are the rows with the same key."""

    column: int
    method: str
    key: str
    title: str
    setting: dict[str, Any]


@dataclass(frozen=True)
class ColumnFacts:
    """The important classes of one column: their indices, names and strengths."""

    number: int
    indices: tuple[int, ...]
    names: tuple[str, ...]
    strengths: tuple[float, ...]

    @property
    def title(self) -> str:
        return " + ".join(self.names)

    @property
    def resolved(self) -> Resolved:
        """As studies and grids take it."""
        return tuple(zip(self.indices, self.strengths, strict=True))


@dataclass(frozen=True, eq=False)
class RunFacts:
    """What all outcomes of a run share; runs can be merged if it agrees."""

    fingerprint: str
    classes: tuple[str, ...]
    data: dict[str, Any]  # name, provenance, rows of each split
    training: dict[str, Any]
    asked: list[Any]  # the important classes as the study names them, and the split they are found on
    labels: dict[str, Array]  # of val and test
    groups: dict[str, Array] = field(default_factory=dict)  # of the splits whose rows have groups


ROW_COLUMNS = (
    "identity, key, method, title, setting, seed, status, error, attempts, epochs_done, val_accuracy, test_accuracy, "
    "val_recall, test_recall, wall_s, device_s, environment, created"
)


def to_row(values: Sequence[Any]) -> Row:
    """The row of the values of `ROW_COLUMNS`."""
    found = dict(zip(ROW_COLUMNS.split(", "), values, strict=True))
    accuracies = {split: found.pop(f"{split}_accuracy") for split in SPLITS}
    recalls = {split: found.pop(f"{split}_recall") for split in SPLITS}
    return Row(
        **{**found, "setting": json.loads(found["setting"]), "environment": json.loads(found["environment"])},
        accuracy={split: value for split, value in accuracies.items() if value is not None},
        recall={split: numbers_from_json(text) for split, text in recalls.items() if text is not None},
    )


def refuse_lost(rows: Iterable[Row], where: Path, undecided: str) -> None:
    """Raise InputError if some of the trials that a decision rests on were lost."""
    if lost := [row for row in rows if row.is_lost]:
        num = "1 trial was" if len(lost) == 1 else f"{len(lost):,} trials were"
        raise InputError(
            f"{where}: {num} lost, so {undecided} cannot be decided; {lost[0].complaint}; run the same command again "
            "to train what is missing"
        )


def check_same(stored: RunFacts, asked: RunFacts, path: Path) -> None:
    """Raise InputError for a run of other data or another training, naming what differs."""
    if stored.fingerprint != asked.fingerprint:
        theirs, ours = (f"{one.data['name']}, {one.fingerprint[:12]}" for one in (stored, asked))
        raise InputError(f"{path} holds outcomes of other data ({theirs}, and not {ours}); choose another folder")
    if stored.training != asked.training:
        differ = [f"{name}={value!r}" for name, value in stored.training.items() if asked.training.get(name) != value]
        raise InputError(f"{path} holds outcomes of another training ({', '.join(differ)}); choose another folder")


def name_asked(asked: Sequence[Any]) -> str:
    """A study's columns as the command line writes them.

    >>> name_asked([[[["cat", 1.0]], [["cat", 1.0], ["dog", 0.5]]], "val"])
    'cat, cat+dog (dog=0.5) from val'
    """
    columns, split = asked
    return f"{', '.join(map(_name_column, columns))} from {split}"


def _name_column(column: Sequence[Sequence[Any]]) -> str:
    weak = [f"{name}={strength:g}" for name, strength in column if strength != 1]
    return "+".join(str(name) for name, _ in column) + (f" ({', '.join(weak)})" if weak else "")


def numbers_to_json(values: Array) -> str:
    """JSON of numbers, null for nan.

    >>> numbers_to_json(np.array([0.5, np.nan])), numbers_from_json("[0.5, null]")
    ('[0.5, null]', (0.5, nan))
    """
    return json.dumps([None if np.isnan(value) else float(value) for value in values])


def numbers_from_json(text: str) -> tuple[float, ...]:
    return tuple(float("nan") if value is None else value for value in json.loads(text))


def all_but_first(num_classes: int) -> tuple[int, ...]:
    """All classes but class 0: their leads over class 0 say what full logits say, up to a constant.

    Outcomes keep these while it is not known which classes will be important. The order of classes is exact (see
    `metrics.condense`); a lead between two other classes is rounded twice.
    """
    return tuple(range(1, num_classes))


def restrict_scores(scores: Scores, important: Sequence[int], num_classes: int) -> Scores:
    """The scores of some classes, from those of more or of all.

    >>> wide = condense(np.array([[2.0, 1.0, 0.5]]), labels=[0], important=(1, 2))
    >>> restrict_scores(wide, (0,), num_classes=3).lead.tolist()
    [[1.0]]
    """
    wanted = tuple(sorted(important))
    if wanted == scores.important:
        return scores
    if set(wanted) <= set(scores.important) or scores.important != all_but_first(num_classes):
        return scores.only(wanted)
    first = np.zeros((len(scores), 1))
    return condense(np.concatenate([first, scores.shifted()], axis=1), scores.labels, wanted)
