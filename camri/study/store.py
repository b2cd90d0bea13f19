"""A run's SQLite file: one row per outcome, written as its trial ends. Reading it needs no torch.

run = open_run("runs/x")
for row in run.rows(method="camri"):
    print(row.title, row.seed, row.accuracy["test"], run.scores(row, "val", important=(3,)).recall())
"""

import contextlib
import io
import json
import os
import sqlite3
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from camri.decision.counts import accuracy, recall
from camri.decision.scores import Array, Scores, condense
from camri.errors import ENDED_BY, InputError, closest, last_line
from camri.files import checksum, replacing

if TYPE_CHECKING:
    from typing_extensions import Self

    from camri.engine.outcome import Outcome
    from camri.study.spec import Resolved, Study

STORE_FILE = "outcomes.sqlite"
SPLITS = ("val", "test")
FULL_DISK = "what was stored is safe; make room and run the same command again"
APPLICATION_ID = 0x63616D72  # "camr": tells a store from any other SQLite file
VERSION = 2
UNCHECKED = 1  # the version without checksums, which can be read only

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
# Checksums of everything that is read from the other tables, such as "meta/classes" or "row/IDENTITY".
CHECKS = "CREATE TABLE checks (what TEXT PRIMARY KEY, crc INTEGER NOT NULL) WITHOUT ROWID"

ROW_COLUMNS = (
    "identity, key, method, title, setting, seed, status, error, attempts, epochs_done, val_accuracy, test_accuracy, "
    "val_recall, test_recall, wall_s, device_s, environment, created"
)
NAMES = ROW_COLUMNS.split(", ")
BLOBS = ("important", "arrays", "logits", "weights")  # the other columns, each read when it is asked for
STUDIES = "SELECT key, spec FROM studies ORDER BY rowid"
PLAN = 'SELECT "column", method, key, title, setting FROM plan ORDER BY rowid'
ARRAY_FIELDS = ("confusion", "angle_mean", "angle_sd", "curves")  # an outcome's fields that are arrays by name
SCORE_PARTS = ("lead", "rest_right", "rest_spread")
PLAIN = ("status", "error", "epochs_done", "wall_s", "device_s")  # an outcome's fields that are stored as they are


@dataclass(frozen=True)
class Row:
    """An outcome without its arrays. `setting` is {"method", "important", "knobs"}, in its simplest form.

    Settings that train the same model have the same `key`; it connects rows with the plan.
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
    recall: dict[str, tuple[float, ...]]  # by split, then by class; nan for a class without images
    wall_s: float
    device_s: float
    environment: dict[str, Any]
    created: str

    @property
    def is_lost(self) -> bool:
        """Whether it failed because its process died in every attempt; it may succeed elsewhere or later."""
        return ENDED_BY in self.environment

    @property
    def complaint(self) -> str:
        """A failed trial's setting, seed and last line of its error."""
        return f"{self.title} seed {self.seed}: {last_line(self.error)}"


@dataclass(frozen=True)
class Planned:
    """A setting that a column compares, as the study gives it; its outcomes are the rows with the same key."""

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
    def resolved(self) -> "Resolved":
        """(class index, strength) pairs."""
        return tuple(zip(self.indices, self.strengths, strict=True))


@dataclass(frozen=True, eq=False)
class RunFacts:
    """What all outcomes of a run share. Only runs with the same data and training can be merged."""

    fingerprint: str
    classes: tuple[str, ...]
    data: dict[str, Any]  # name, provenance, rows of each split
    training: dict[str, Any]
    asked: list[Any]  # the columns as the study names them, and the split on which "worst" etc. are found
    labels: dict[str, Array]  # of val and test
    groups: dict[str, Array] = field(default_factory=dict)  # of the splits that have groups


def to_row(values: Sequence[Any]) -> Row:
    """The Row of an outcome's values in the order of `NAMES`."""
    named = dict(zip(NAMES, values, strict=True))
    accuracies = {split: named.pop(f"{split}_accuracy") for split in SPLITS}
    recalls = {split: json.loads(named.pop(f"{split}_recall") or "null") for split in SPLITS}
    return Row(
        **{**named, "setting": json.loads(named["setting"]), "environment": json.loads(named["environment"])},
        accuracy={split: value for split, value in accuracies.items() if value is not None},
        recall={
            split: tuple(float("nan") if value is None else value for value in values)
            for split, values in recalls.items()
            if values is not None
        },
    )


def by_key(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The outcomes with status "done", grouped by the key of their setting."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.status == "done":
            found.setdefault(row.key, []).append(row)
    return found


def refuse_lost(rows: Iterable[Row], where: Path, undecided: str) -> None:
    """Raise InputError if any of these trials was lost, since what is `undecided` depends on them."""
    if lost := [row for row in rows if row.is_lost]:
        num = "1 trial was" if len(lost) == 1 else f"{len(lost):,} trials were"
        raise InputError(
            f"{where}: {num} lost, so {undecided} cannot be decided; {lost[0].complaint}; run the same command again "
            "to train what is missing"
        )


def check_same(stored: RunFacts, asked: RunFacts, path: Path) -> None:
    """Raise InputError if the data or the training differs, and say how."""
    if stored.fingerprint != asked.fingerprint:
        theirs, ours = (f"{facts.data['name']}, {facts.fingerprint[:12]}" for facts in (stored, asked))
        raise InputError(f"{path} holds outcomes of other data ({theirs}, and not {ours}); choose another folder")
    if stored.training != asked.training:
        differ = [f"{name}={value!r}" for name, value in stored.training.items() if asked.training.get(name) != value]
        raise InputError(f"{path} holds outcomes of another training ({', '.join(differ)}); choose another folder")


def pack(arrays: Mapping[str, Array]) -> bytes:
    """The bytes of a compressed .npz file.

    >>> np.load(io.BytesIO(pack({"hits": np.array([1, 2])})))["hits"].tolist()
    [1, 2]
    """
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise TypeError(f"{name} holds Python objects; only plain arrays are stored")
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def sign(values: Iterable[Any]) -> int:
    """The checksum of values from a table; 1, 1.0 and "1" have different ones.

    >>> sign(["a", 1]) != sign(["a", 1.0]) != sign(["a1"])
    True
    """
    return checksum(*(value if isinstance(value, bytes) else f"{value!r};".encode() for value in values))


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of decoding into InputErrors that name the file and what to do."""
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


def connect(path: Path, to_write: bool = False) -> sqlite3.Connection:
    """Open the store, by default to read it."""
    source = str(path)
    if not os.path.isfile(path):
        raise InputError(f"{path.parent} holds no run: there is no {path.name} in it")
    if not to_write:
        # In a read-only folder SQLite cannot coordinate with a writer, but there is none.
        is_alone = not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists()
        source = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if is_alone else ''}"
    with explained(path):
        if not to_write and os.access(path.parent, os.W_OK) and path.with_name(path.name + "-journal").exists():
            _is_begun(path)  # only a writer may undo what another could not end, on a full disk for example
        connection = sqlite3.connect(source, uri=not to_write, timeout=30.0, isolation_level=None)
        try:
            _check_version(connection, path)
            if to_write:
                problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if problem != "ok":
                    raise damaged(path, " ".join(problem.replace("*", "").split()))
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")
        except BaseException:
            connection.close()
            raise
    return connection


def remove(path: Path) -> None:
    """Remove the store. Its log goes first: it must not be taken for that of another store of this name."""
    for ending in ("-wal", "-shm", "-journal", ""):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _is_begun(path: Path) -> bool:
    """Whether there is a store with tables: a program that is killed as it creates an SQLite file leaves it empty."""
    if not path.exists():
        return False
    with explained(path), contextlib.closing(sqlite3.connect(path)) as connection:
        return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise InputError(f"{path} has no outcomes yet: its run was killed as it began; run it again")
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise InputError(f"{path} is an SQLite file, but not the outcomes of a study; choose another folder")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (UNCHECKED, VERSION):
        raise InputError(f"{path} has store version {version}, but this camri reads version {VERSION}")


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what is written inside; after an error roll all of it back."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def all_but_first(num_classes: int) -> tuple[int, ...]:
    """All classes but class 0. Their leads over class 0 contain the full logits, up to a constant per image.

    Outcomes keep these scores while the important classes are not known. The order of classes is exact (see
    `metrics.condense`); a lead between two other classes is rounded twice.
    """
    return tuple(range(1, num_classes))


def kept_classes(columns: "Sequence[Resolved]", num_classes: int) -> tuple[int, ...]:
    """The classes whose scores outcomes keep: the important classes of all columns."""
    union = sorted({index for column in columns for index, _ in column})
    return tuple(union) if len(union) < num_classes else all_but_first(num_classes)


def restrict_scores(scores: Scores, important: Sequence[int], num_classes: int) -> Scores:
    """The scores of some classes, from the scores of more classes or of all.

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


def open_run(folder: str | Path) -> "Run":
    """Open the run in a folder to read it, also while it is running."""
    path = Path(folder)
    path = path if path.suffix == ".sqlite" else path / STORE_FILE
    return Run(path, connect(path))


class Run:
    """Outcomes and facts of a run, read-only. Use it as a context manager, or `close` it."""

    def __init__(self, path: Path, connection: sqlite3.Connection):
        self.path = path
        self._connection = connection
        with explained(path):
            self._is_checked = connection.execute("PRAGMA user_version").fetchone()[0] != UNCHECKED
        self._labels: dict[str, dict[str, Array]] = {}

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def _select(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with explained(self.path):
            return self._connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Read values and their checksums in one transaction: another process may be writing."""
        with explained(self.path), contextlib.ExitStack() as stack:
            if not self._connection.in_transaction:
                self._connection.execute("BEGIN")
                stack.callback(self._connection.execute, "COMMIT")
            yield

    def _checked(self, what: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query, compared with their stored checksum."""
        with self._snapshot():
            found = self._select(query, *values)
            if self._is_checked:
                crc = self._select("SELECT crc FROM checks WHERE what = ?", what)
                if [sign(value for row in found for value in row)] * bool(found) != [row[0] for row in crc]:
                    raise damaged(self.path, f"the checksum of {what} differs")
        return found

    def _meta(self, name: str) -> Any:
        found = self._checked(f"meta/{name}", "SELECT value FROM meta WHERE name = ?", name)
        with explained(self.path):
            return json.loads(found[0][0]) if found else None

    def note(self, name: str) -> Any:
        """The value that `Store.write_note` stored under this name, or None."""
        return self._meta(f"note.{name}")

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the data and its splits."""
        return self._meta("fingerprint")

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self._meta("classes"))

    @property
    def data(self) -> dict[str, Any]:
        """The data set's name, provenance and number of rows in each split."""
        return self._meta("data")

    @property
    def training(self) -> dict[str, Any]:
        """The training of all trials, as plain JSON."""
        return self._meta("training")

    @property
    def asked(self) -> list[Any]:
        """The columns as the first study named them, and the split on which "worst" etc. are found."""
        return self._meta("asked")

    @property
    def splits(self) -> tuple[str, ...]:
        """Those of val and test that the run has."""
        return tuple(name for name in SPLITS if name in self._meta("data")["rows"])

    @property
    def studies(self) -> list[dict[str, Any]]:
        """The studies that were run into this folder, as plain JSON, oldest first."""
        found = self._checked("studies", STUDIES)
        with explained(self.path):
            return [{**json.loads(spec)} for _, spec in found]

    def labels(self, split: str) -> Array:
        """The true classes of the images of a split: int64 (N,)."""
        if split not in self._labels:
            found = self._checked(f"labels/{split}", "SELECT arrays FROM labels WHERE split = ?", split)
            if not found:
                raise InputError(f"{self.path} has no split {split!r}; {closest(split, self.splits)}")
            self._labels[split] = self._unpack(found[0][0])
        return self._labels[split]["labels"]

    def groups(self, split: str) -> Array | None:
        """The groups of a split's rows: int64 (N,); None if they have none."""
        self.labels(split)
        return self._labels[split].get("groups")

    def facts(self) -> RunFacts:
        """Everything that all outcomes share."""
        labels = {split: self.labels(split) for split in self.splits}
        groups = {split: found for split in self.splits if (found := self.groups(split)) is not None}
        return RunFacts(self.fingerprint, self.classes, self.data, self.training, self.asked, labels, groups)

    def columns(self) -> list[ColumnFacts]:
        """The columns of important classes; empty until "worst" etc. are found from the cross-entropy trials."""
        classes = self.classes
        return [
            ColumnFacts(
                number, tuple(i for i, _ in pairs), tuple(classes[i] for i, _ in pairs), tuple(s for _, s in pairs)
            )
            for number, pairs in enumerate(self._meta("columns") or [])
        ]

    def plan(self, column: int | None = None) -> list[Planned]:
        """Every setting that one column (by default any) compares, in the studies' order, duplicates included."""
        found = self._checked("plan", PLAN)
        with explained(self.path):
            return [
                Planned(number, method, key, title, json.loads(text))
                for number, method, key, title, text in found
                if column in (None, number)
            ]

    def rows(self, method: str | None = None, status: str | None = "done", key: str | None = None) -> list[Row]:
        """Outcomes without their arrays, ordered by setting and seed; `status=None` includes failed ones."""
        with explained(self.path):
            rows = [to_row(values) for values in self._outcomes()]
        wanted = {"method": method, "status": status, "key": key}
        return [row for row in rows if all(value in (None, getattr(row, name)) for name, value in wanted.items())]

    def statuses(self) -> dict[str, str]:
        """The status of every outcome, "done" or "failed", by its identity."""
        return {row.identity: row.status for row in self.rows(status=None)}

    def _outcomes(self) -> list[tuple[Any, ...]]:
        """All outcomes without their blobs. They are read without the index, which may be damaged."""
        with self._snapshot():
            found = self._select(f"SELECT {ROW_COLUMNS} FROM outcomes NOT INDEXED ORDER BY method, setting, seed")
            if self._is_checked:
                crcs = dict(self._select("SELECT what, crc FROM checks WHERE what >= 'row/' AND what < 'row0'"))
                if crcs != {f"row/{values[0]}": sign(values) for values in found}:
                    raise damaged(self.path, "the checksums of its outcomes differ")
        return found

    def arrays(self, row: Row | str, names: Collection[str] | None = None) -> dict[str, Array]:
        """An outcome's arrays by name, all by default: confusion.val, scores.test.lead, curves.train_loss …"""
        return self._unpack(self._blob("arrays", row), names)

    def confusion(self, row: Row | str, split: str = "test") -> Array:
        """Counts (C, C), row = true class."""
        name = f"confusion.{split}"
        return self.arrays(row, [name])[name]

    def val_hits(self, row: Row | str) -> Array | None:
        """Correctly classified validation rows of each class after each epoch: (E, C); None if not recorded."""
        try:
            return self.arrays(row, ["curves.val_hits"])["curves.val_hits"]
        except KeyError:
            return None

    def scores(self, row: Row | str, split: str, important: Sequence[int] | None = None) -> Scores:
        """The condensed scores of a split, of the classes in `important` alone if it is given.

        Give it whenever trials are compared: the cross-entropy trials by which "worst" was found have scores of all
        classes.
        """
        important_of, names = self.important(row), [f"scores.{split}.{part}" for part in SCORE_PARTS]
        if split not in important_of:
            raise InputError(f"{self.path}: outcome {self._name(row)} kept no scores of {split!r}")
        parts = {name.rpartition(".")[2]: array for name, array in self.arrays(row, names).items()}
        scores = Scores(labels=self.labels(split), important=tuple(important_of[split]), **parts)
        return scores if important is None else restrict_scores(scores, important, len(self.classes))

    def important(self, row: Row | str) -> dict[str, list[int]]:
        """The classes whose scores the outcome has, by split."""
        text = self._blob("important", row)
        with explained(self.path):
            return json.loads(text)

    def logits(self, row: Row | str) -> dict[str, Array]:
        """float16 (N, C) by split; empty if they were not kept."""
        blob = self._blob("logits", row)
        return {} if blob is None else self._unpack(blob)

    def weights(self, row: Row | str) -> dict[str, Array] | None:
        """The trained model's state; None if it was not kept."""
        blob = self._blob("weights", row)
        return None if blob is None else self._unpack(blob)

    @staticmethod
    def _name(row: Row | str) -> str:
        return row if isinstance(row, str) else row.identity

    def _blob(self, column: str, row: Row | str) -> Any:
        identity = self._name(row)
        query = f"SELECT {column} FROM outcomes WHERE identity = ? AND {column} IS NOT NULL"
        if found := self._checked(f"{column}/{identity}", query, identity):
            return found[0][0]
        if not self._select("SELECT 1 FROM outcomes WHERE identity = ?", identity):
            raise InputError(f"{self.path} has no outcome {identity!r}")
        return None

    def _unpack(self, blob: bytes, names: Collection[str] | None = None) -> dict[str, Array]:
        """The arrays of a blob, by default all."""
        try:
            with np.load(io.BytesIO(blob), allow_pickle=False) as file:
                return {name: file[name] for name in (file.files if names is None else names)}
        except (ValueError, zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, OSError) as error:
            raise damaged(self.path, f"the stored arrays are damaged ({error})") from error


class Store(Run):
    """A run opened to write, by the one process that holds the run's lock."""

    @staticmethod
    def open(folder: Path, facts: RunFacts) -> "Store":
        """Open the folder's store, or create it; refuse one of other data or another training."""
        path = folder / STORE_FILE
        if not _is_begun(path):
            Store._create(path, facts)
        store = Store(path, connect(path, to_write=True))
        if not store._is_checked:
            store._connection.close()
            raise InputError(f"{path} has store version {UNCHECKED}; `camri study merge` copies it into a new folder")
        check_same(store.facts(), facts, path)
        return store

    @staticmethod
    def _create(path: Path, facts: RunFacts) -> None:
        """Write a store without outcomes; it gets its name when it is complete."""
        with replacing(path, "; choose another folder") as part, explained(path):
            with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode=MEMORY")  # a file of it would be left by a kill
                Store(part, connection)._begin(facts)
            remove(path)

    def _sign(self, crcs: Mapping[str, int]) -> None:
        self._connection.executemany("INSERT OR REPLACE INTO checks VALUES (?, ?)", list(crcs.items()))

    def _write_meta(self, name: str, text: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, text))
        self._sign({f"meta/{name}": sign([text])})

    def close(self) -> None:
        """Close the store. Unless a reader has it open, it is a single file again."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA journal_mode=DELETE")
        super().close()

    def _begin(self, facts: RunFacts) -> None:
        meta = {name: getattr(facts, name) for name in ("fingerprint", "classes", "data", "training", "asked")}
        with explained(self.path), transaction(self._connection):
            marks = (f"PRAGMA application_id={APPLICATION_ID}", f"PRAGMA user_version={VERSION}")
            for statement in (*TABLES, CHECKS, *marks):
                self._connection.execute(statement)
            for name, value in meta.items():
                self._write_meta(name, json.dumps(value))
            for split, labels in facts.labels.items():
                blob = pack({"labels": labels, **({"groups": facts.groups[split]} if split in facts.groups else {})})
                self._connection.execute("INSERT INTO labels VALUES (?, ?, ?)", (split, len(labels), blob))
                self._sign({f"labels/{split}": sign([blob])})

    def add_study(self, study: "Study", columns: "Sequence[Resolved] | None") -> None:
        """Store the study, and its columns and plan if its important classes are known."""
        spec = json.dumps(study.to_json())
        with explained(self.path), transaction(self._connection):
            self._checked("studies", STUDIES)
            self._checked("plan", PLAN)
            self._connection.execute(
                "INSERT OR IGNORE INTO studies VALUES (?, ?, ?, ?)", (study.key, study.name, spec, _now())
            )
            if columns is not None:
                if self._meta("columns") is None:
                    self._write_meta("columns", json.dumps([list(map(list, c)) for c in columns]))
                self._connection.executemany(
                    "INSERT OR IGNORE INTO plan VALUES (?, ?, ?, ?, ?)",
                    [
                        (number, setting.method, setting.key, str(setting), json.dumps(setting.to_json()))
                        for number, setting in study.settings(columns)
                    ],
                )
            for what, query in (("studies", STUDIES), ("plan", PLAN)):
                if rows := self._select(query):
                    self._sign({what: sign(value for row in rows for value in row)})

    def forget_columns(self) -> None:
        """Remove the columns and the plan so that they are decided again; keep the outcomes."""
        with explained(self.path), transaction(self._connection):
            self._connection.execute("DELETE FROM plan")
            self._connection.execute("DELETE FROM meta WHERE name = 'columns'")
            self._connection.execute("DELETE FROM checks WHERE what IN ('plan', 'meta/columns')")

    def write_note(self, name: str, value: Any) -> None:
        """Store a JSON value under this name, replacing an earlier one."""
        text = json.dumps(value, allow_nan=False)
        with explained(self.path), transaction(self._connection):
            self._write_meta(f"note.{name}", text)

    def add(self, identity: str, outcome: "Outcome") -> None:
        """Write the outcome to disk. The outcome of a retried trial replaces the old one."""
        setting = outcome.trial.setting
        for split, scores in outcome.scores.items():
            assert np.array_equal(scores.labels, self.labels(split)), "an outcome of other images"
        arrays = {f"{name}.{part}": a for name in ARRAY_FIELDS for part, a in getattr(outcome, name).items()}
        for split, scores in outcome.scores.items():
            for part in SCORE_PARTS:
                arrays[f"scores.{split}.{part}"] = getattr(scores, part)
        values = {name: getattr(outcome, name) for name in PLAIN} | {
            "identity": identity,
            "key": setting.key,
            "method": setting.method,
            "title": str(setting),
            "setting": json.dumps(setting.to_json()),
            "seed": outcome.trial.seed,
            "environment": json.dumps(outcome.environment),
            "created": _now(),
            "important": json.dumps({split: list(scores.important) for split, scores in outcome.scores.items()}),
            "arrays": pack(arrays),
            "logits": pack(outcome.logits) if outcome.logits else None,
            "weights": pack(outcome.weights) if outcome.weights is not None else None,
        }
        for split in SPLITS:
            counts = outcome.confusion.get(split)
            recalls = [] if counts is None else [None if np.isnan(value) else float(value) for value in recall(counts)]
            values[f"{split}_accuracy"] = None if counts is None else accuracy(counts)
            values[f"{split}_recall"] = None if counts is None else json.dumps(recalls)
        self._insert(values)

    def copy(self, identity: str, source: Run) -> None:
        """Copy an outcome of another run unchanged."""
        query = f"SELECT {ROW_COLUMNS} FROM outcomes WHERE identity = ?"
        (values,) = source._checked(f"row/{identity}", query, identity)
        blobs = {name: source._blob(name, identity) for name in BLOBS}
        self._insert(dict(zip(NAMES, values, strict=True)) | blobs)

    def _insert(self, values: dict[str, Any]) -> None:
        """Write the row with its checksums; add the attempts of a row that it replaces."""
        identity = values["identity"]
        with explained(self.path), transaction(self._connection):
            before = self._select("SELECT attempts FROM outcomes WHERE identity = ?", identity)
            values = {**values, "attempts": values.get("attempts", 1) + (before[0][0] if before else 0)}
            marks = ", ".join("?" for _ in values)
            self._connection.execute(
                f"INSERT OR REPLACE INTO outcomes ({', '.join(values)}) VALUES ({marks})", tuple(values.values())
            )
            stale = [(f"{name}/{identity}",) for name in BLOBS]  # the replaced row may have had other blobs
            self._connection.executemany("DELETE FROM checks WHERE what = ?", stale)
            blobs = {f"{name}/{identity}": sign([values[name]]) for name in BLOBS if values[name] is not None}
            self._sign({f"row/{identity}": sign(values[name] for name in NAMES), **blobs})


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
