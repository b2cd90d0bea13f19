"""The SQLite file of a run: its tables, its version, and what is said when it cannot be read or written."""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from camri.errors import InputError

APPLICATION_ID = 0x63616D72  # "camr": tells a store from any other SQLite file
VERSION = 1
# From a version to the next: MIGRATIONS[1] turns a store of version 1 into one of version 2.
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {}

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


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """SQLite's errors as sentences that name the file and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        said = str(error)
        if "is full" in said:
            raise InputError(
                f"{path} cannot be written: the disk is full; what was stored is safe; make room and run the same "
                "command again"
            ) from error
        if "readonly" in said or "unable to open" in said:
            raise InputError(
                f"{path} cannot be opened ({said}); choose another folder or change its permissions"
            ) from error
        if "locked" in said:
            raise InputError(f"{path} is being written by another program; try again when it has ended") from error
        if isinstance(error, sqlite3.DatabaseError) and ("malformed" in said or "not a database" in said):
            raise damaged(path, said) from error
        raise


def damaged(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} is damaged ({why}); save what is left with `sqlite3 {path} .recover | sqlite3 saved.sqlite`, or move "
        "it away and run the study again"
    )


def open_to_write(path: Path) -> tuple[sqlite3.Connection, bool]:
    """A connection to the store, brought to this version, and whether it is a new one without tables."""
    with explained(path):
        connection = sqlite3.connect(path, timeout=30.0, isolation_level=None)
        try:
            is_new = _is_empty(connection)
            if not is_new:
                _check_version(connection, path)
                _check_pages(connection, path)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            _migrate(connection)
        except BaseException:
            connection.close()
            raise
    return connection, is_new


def open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that cannot write; a store of an older version is brought up to date in memory."""
    if not path.is_file():
        raise InputError(f"{path.parent} holds no run: there is no {path.name} in it")
    with explained(path):
        # Where nothing can be written SQLite cannot share the file with a writer, and there is none.
        is_alone = not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists()
        source = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if is_alone else ''}"
        connection = sqlite3.connect(source, uri=True, timeout=30.0, isolation_level=None)
        try:
            if _is_empty(connection):
                raise InputError(f"{path} has no outcomes yet: its run was broken off as it began; run it again")
            if _check_version(connection, path) < VERSION:
                copy = sqlite3.connect(":memory:", isolation_level=None)
                connection.backup(copy)
                connection.close()
                connection = copy
                _migrate(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def create_tables(connection: sqlite3.Connection) -> None:
    """Nothing; to be called inside the transaction that also writes the run's facts."""
    for statement in TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={VERSION}")


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing of what is written inside."""
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


def _check_version(connection: sqlite3.Connection, path: Path) -> int:
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise InputError(f"{path} is an SQLite file, but not the outcomes of a study; choose another folder")
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise InputError(
            f"{path} was written by a newer camri (store version {version}, this one knows {VERSION}); update camri"
        )
    return version


def _check_pages(connection: sqlite3.Connection, path: Path) -> None:
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise damaged(path, " ".join(found.replace("*", "").split()))


def _migrate(connection: sqlite3.Connection) -> None:
    """Nothing; one transaction a version, so a step that fails leaves the version before it."""
    if _is_empty(connection):
        return
    while (version := connection.execute("PRAGMA user_version").fetchone()[0]) < VERSION:
        with transaction(connection):
            MIGRATIONS[version](connection)
            connection.execute(f"PRAGMA user_version={version + 1}")
