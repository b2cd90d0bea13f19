"""The outcomes of a run: one SQLite file, one row an outcome, written as the trial ends. Reading needs no torch.

run = open_run("runs/x")
for row in run.rows(method="camri"):
    print(row.title, row.seed, row.accuracy["test"], run.scores(row, "val", important=(3,)).recall())
"""

import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from camri.errors import InputError, closest
from camri.metrics import Array, Scores, accuracy, recall
from camri.study import schema
from camri.study.schema import (
    ROW_COLUMNS,
    SPLITS,
    ColumnFacts,
    Planned,
    Resolved,
    Row,
    RunFacts,
    check_same,
    numbers_to_json,
    pack,
    restrict_scores,
    to_row,
    unpack,
)

if TYPE_CHECKING:
    from camri.engine.outcome import Outcome
    from camri.study.spec import Study

STORE_FILE = "outcomes.sqlite"
ARRAY_FIELDS = ("confusion", "angle_mean", "angle_sd", "curves")  # an outcome's fields that are arrays by name
NAMES = ROW_COLUMNS.split(", ")
STUDIES = "SELECT key, spec FROM studies ORDER BY rowid"
PLAN = 'SELECT "column", method, key, title, setting FROM plan ORDER BY rowid'
SCORE_PARTS = ("lead", "rest_right", "rest_spread")

__all__ = ["ColumnFacts", "Planned", "Row", "Run", "RunFacts", "open_run"]


Opened = TypeVar("Opened", bound="Run")


def open_run(folder: str | Path) -> "Run":
    """The run in a folder, to read; it may be running."""
    path = Path(folder)
    path = path / STORE_FILE if path.suffix != ".sqlite" else path
    return Run(path, schema.open_to_read(path))


class Run:
    """A run's outcomes and facts, to read. Use it as a context manager or `close` it."""

    def __init__(self, path: Path, connection: sqlite3.Connection):
        self.path = path
        self._connection = connection
        with schema.explained(path):
            self._is_checked = schema.version_of(connection) != schema.UNCHECKED
        self._labels: dict[str, dict[str, Array]] = {}

    def __enter__(self: Opened) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def _select(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with schema.explained(self.path):
            return self._connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Read values and their checksums as of one moment: a run may be writing."""
        with schema.explained(self.path), contextlib.ExitStack() as stack:
            if not self._connection.in_transaction:
                self._connection.execute("BEGIN")
                stack.callback(self._connection.execute, "COMMIT")
            yield

    def _checked(self, what: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query, after their checksum was compared."""
        with self._snapshot():
            found = self._select(query, *values)
            if self._is_checked:
                crc = self._select("SELECT crc FROM checks WHERE what = ?", what)
                if [schema.sign(value for row in found for value in row)] * bool(found) != [row[0] for row in crc]:
                    raise schema.damaged(self.path, f"the checksum of {what} differs")
        return found

    def _meta(self, name: str) -> Any:
        found = self._checked(f"meta/{name}", "SELECT value FROM meta WHERE name = ?", name)
        with schema.explained(self.path):
            return json.loads(found[0][0]) if found else None

    def note(self, name: str) -> Any:
        """The value that `Store.write_note` wrote under that name; None if there is none."""
        return self._meta(f"note.{name}")

    @property
    def fingerprint(self) -> str:
        """Of the data, splits included."""
        return self._meta("fingerprint")

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self._meta("classes"))

    @property
    def data(self) -> dict[str, Any]:
        """Name, provenance and rows of each split of the data set."""
        return self._meta("data")

    @property
    def training(self) -> dict[str, Any]:
        """The training of all trials, as plain JSON."""
        return self._meta("training")

    @property
    def asked(self) -> list[Any]:
        """The important classes as the first study named them, and the split on which they are found."""
        return self._meta("asked")

    @property
    def splits(self) -> tuple[str, ...]:
        """Those of val and test that the outcomes have."""
        return tuple(name for name in SPLITS if name in self._meta("data")["rows"])

    @property
    def studies(self) -> list[dict[str, Any]]:
        """The studies that were run into this folder, as plain JSON, the first first."""
        found = self._checked("studies", STUDIES)
        with schema.explained(self.path):
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
        """The facts that all outcomes share."""
        labels = {split: self.labels(split) for split in self.splits}
        groups = {split: found for split in self.splits if (found := self.groups(split)) is not None}
        return RunFacts(self.fingerprint, self.classes, self.data, self.training, self.asked, labels, groups)

    def columns(self) -> list[ColumnFacts]:
        """The columns of important classes; none until they are found from the cross-entropy trials."""
        classes = self.classes
        return [
            ColumnFacts(
                number, tuple(i for i, _ in pairs), tuple(classes[i] for i, _ in pairs), tuple(s for _, s in pairs)
            )
            for number, pairs in enumerate(self._meta("columns") or [])
        ]

    def plan(self, column: int | None = None) -> list[Planned]:
        """Every setting that a column (or any) compares, in the studies' order, duplicates included."""
        found = self._checked("plan", PLAN)
        with schema.explained(self.path):
            return [
                Planned(number, method, key, title, json.loads(text))
                for number, method, key, title, text in found
                if column in (None, number)
            ]

    def rows(self, method: str | None = None, status: str | None = "done", key: str | None = None) -> list[Row]:
        """Outcomes without their arrays, in the order of settings and seeds; `status=None`: failed ones too."""
        wanted = [
            (NAMES.index(n), v) for n, v in (("method", method), ("status", status), ("key", key)) if v is not None
        ]
        found = [values for values in self._outcomes() if all(values[place] == value for place, value in wanted)]
        with schema.explained(self.path):
            return [to_row(values) for values in found]

    def statuses(self) -> dict[str, str]:
        """identity -> "done" or "failed" of every outcome."""
        return {values[NAMES.index("identity")]: values[NAMES.index("status")] for values in self._outcomes()}

    def _outcomes(self) -> list[tuple[Any, ...]]:
        """The plain values of all outcomes: without an index, which may be damaged, and none may be missing."""
        with self._snapshot():
            found = self._select(f"SELECT {ROW_COLUMNS} FROM outcomes NOT INDEXED ORDER BY method, setting, seed")
            if self._is_checked:
                crcs = dict(self._select("SELECT what, crc FROM checks WHERE what >= 'row/' AND what < 'row0'"))
                if crcs != {f"row/{values[0]}": schema.sign(values) for values in found}:
                    raise schema.damaged(self.path, "the checksums of its outcomes differ")
        return found

    def arrays(self, row: Row | str, names: Collection[str] | None = None) -> dict[str, Array]:
        """Small arrays of an outcome by name, all by default: confusion.val, scores.test.lead, curves.train_loss …"""
        return self._unpack(self._blob("arrays", row), names)

    def confusion(self, row: Row | str, split: str = "test") -> Array:
        """Counts (C, C), row = true class."""
        name = f"confusion.{split}"
        return self.arrays(row, [name])[name]

    def val_hits(self, row: Row | str) -> Array | None:
        """Correctly classified validation rows of each class after each epoch: (E, C); None without such rows."""
        try:
            return self.arrays(row, ["curves.val_hits"])["curves.val_hits"]
        except KeyError:
            return None

    def scores(self, row: Row | str, split: str, important: Sequence[int] | None = None) -> Scores:
        """The condensed scores of a split; give `important` to have them for those classes alone.

        Always give it where trials are compared: cross-entropy trials from which the important classes were found
        hold the scores of all classes.
        """
        important_of, names = self.important(row), [f"scores.{split}.{part}" for part in SCORE_PARTS]
        if split not in important_of:
            raise InputError(f"{self.path}: outcome {self._name(row)} kept no scores of {split!r}")
        found = self._scores(important_of, self.arrays(row, names), split)
        return found if important is None else restrict_scores(found, important, len(self.classes))

    def important(self, row: Row | str) -> dict[str, list[int]]:
        """The classes whose scores an outcome kept, by split."""
        text = self._blob("important", row)
        with schema.explained(self.path):
            return json.loads(text)

    def _scores(self, important: dict[str, list[int]], arrays: dict[str, Array], split: str) -> Scores:
        parts = {part: arrays[f"scores.{split}.{part}"] for part in SCORE_PARTS}
        return Scores(labels=self.labels(split), important=tuple(important[split]), **parts)

    def logits(self, row: Row | str) -> dict[str, Array]:
        """float16 (N, C) by split; empty if they were not kept."""
        blob = self._blob("logits", row)
        return {} if blob is None else self._unpack(blob)

    def weights(self, row: Row | str) -> dict[str, Array] | None:
        """The trained model's state; None if it was not kept."""
        blob = self._blob("weights", row)
        return None if blob is None else self._unpack(blob)

    def outcome(self, row: Row | str) -> "Outcome":
        """The outcome as the engine made it, to the bit. Needs torch."""
        from camri.engine.outcome import Outcome
        from camri.engine.spec import Training, Trial
        from camri.methods import Setting

        if isinstance(row, str):
            row = to_row(self._values(row))
        arrays, important = self.arrays(row), self.important(row)
        fields: dict[str, Any] = {
            field: {name.split(".", 1)[1]: array for name, array in arrays.items() if name.startswith(f"{field}.")}
            for field in ARRAY_FIELDS
        }
        plain = ("status", "error", "epochs_done", "wall_s", "device_s", "environment")
        return Outcome(
            trial=Trial(Setting.from_json(row.setting), row.seed),
            training=Training.from_json(self.training),
            fingerprint=self.fingerprint,
            scores={split: self._scores(important, arrays, split) for split in important},
            logits=self.logits(row),
            weights=self.weights(row),
            **{name: getattr(row, name) for name in plain} | fields,
        )

    @staticmethod
    def _name(row: Row | str) -> str:
        return row if isinstance(row, str) else row.identity

    def _values(self, identity: str) -> tuple[Any, ...]:
        """The plain values of one outcome."""
        query = f"SELECT {ROW_COLUMNS} FROM outcomes WHERE identity = ?"
        (values,) = self._checked(f"row/{identity}", query, identity)
        return values

    def _blob(self, column: str, row: Row | str) -> Any:
        identity = self._name(row)
        query = f"SELECT {column} FROM outcomes WHERE identity = ? AND {column} IS NOT NULL"
        if found := self._checked(f"{column}/{identity}", query, identity):
            return found[0][0]
        if not self._select("SELECT 1 FROM outcomes WHERE identity = ?", identity):
            raise InputError(f"{self.path} has no outcome {identity!r}")
        return None

    def _unpack(self, blob: bytes, names: Collection[str] | None = None) -> dict[str, Array]:
        try:
            return unpack(blob, names)
        except ValueError as error:
            raise schema.damaged(self.path, str(error)) from error


class Store(Run):
    """A run's outcomes, to write: opened by the one process that holds the run's lock."""

    @staticmethod
    def open(folder: Path, facts: RunFacts) -> "Store":
        """The store in the folder, made if there is none; refused if it is of other data or another training."""
        path = folder / STORE_FILE
        connection, is_new = schema.open_to_write(path)
        store = Store(path, connection)
        if is_new:
            store._begin(facts)
        else:
            store._upgrade()
            check_same(store.facts(), facts, path)
        return store

    def _upgrade(self) -> None:
        """Give the outcomes of an older store their checksums."""
        if self._is_checked:
            return
        with schema.explained(self.path), schema.transaction(self._connection):
            self._connection.execute(schema.CHECKS)
            for kind, table, name, value in (
                ("meta", "meta", "name", "value"),
                ("labels", "labels", "split", "arrays"),
            ):
                for key, content in self._select(f"SELECT {name}, {value} FROM {table}"):
                    self._sign({f"{kind}/{key}": schema.sign([content])})
            self._sign_plan()
            names = [*NAMES, *schema.BLOBS]
            for values in self._select(f"SELECT {', '.join(names)} FROM outcomes"):
                self._sign(schema.sign_outcome(dict(zip(names, values, strict=True))))
            self._connection.execute(f"PRAGMA user_version={schema.VERSION}")
        self._is_checked = True

    def _sign(self, crcs: Mapping[str, int]) -> None:
        self._connection.executemany("INSERT OR REPLACE INTO checks VALUES (?, ?)", list(crcs.items()))

    def _sign_plan(self) -> None:
        for what, query in (("studies", STUDIES), ("plan", PLAN)):
            if found := self._select(query):
                self._sign({what: schema.sign(value for row in found for value in row)})

    def _write_meta(self, name: str, text: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, text))
        self._sign({f"meta/{name}": schema.sign([text])})

    def close(self) -> None:
        """Close the store; it is one plain file again, unless a reader has it open."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA journal_mode=DELETE")
        super().close()

    def _begin(self, facts: RunFacts) -> None:
        meta = {name: getattr(facts, name) for name in ("fingerprint", "classes", "data", "training", "asked")}
        with schema.explained(self.path), schema.transaction(self._connection):
            schema.create_tables(self._connection)
            for name, value in meta.items():
                self._write_meta(name, json.dumps(value))
            for split, labels in facts.labels.items():
                blob = pack({"labels": labels, **({"groups": facts.groups[split]} if split in facts.groups else {})})
                self._connection.execute("INSERT INTO labels VALUES (?, ?, ?)", (split, len(labels), blob))
                self._sign({f"labels/{split}": schema.sign([blob])})

    def add_study(self, study: "Study", columns: Sequence[Resolved] | None) -> None:
        """Store the study and, if its important classes are known, its columns and plan."""
        spec = json.dumps(study.to_json())
        with schema.explained(self.path), schema.transaction(self._connection):
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
                        (number, one.method, one.key, str(one), json.dumps(one.to_json()))
                        for number, one in study.settings(columns)
                    ],
                )
            self._sign_plan()

    def forget_columns(self) -> None:
        """Remove the columns and the plan, to be decided again; the outcomes stay."""
        with schema.explained(self.path), schema.transaction(self._connection):
            self._connection.execute("DELETE FROM plan")
            self._connection.execute("DELETE FROM meta WHERE name = 'columns'")
            self._connection.execute("DELETE FROM checks WHERE what IN ('plan', 'meta/columns')")

    def write_note(self, name: str, value: Any) -> None:
        """Store a plain JSON value under the name, in place of an earlier one."""
        text = json.dumps(value, allow_nan=False)
        with schema.explained(self.path), schema.transaction(self._connection):
            self._write_meta(f"note.{name}", text)

    def add(self, identity: str, outcome: "Outcome") -> None:
        """Write the outcome to disk; that of a retried trial replaces the old one."""
        setting = outcome.trial.setting
        for split, scores in outcome.scores.items():
            assert np.array_equal(scores.labels, self.labels(split)), "an outcome of other images"
        arrays = {f"{name}.{part}": a for name in ARRAY_FIELDS for part, a in getattr(outcome, name).items()}
        for split, scores in outcome.scores.items():
            for part in SCORE_PARTS:
                arrays[f"scores.{split}.{part}"] = getattr(scores, part)
        plain = ("status", "error", "epochs_done", "wall_s", "device_s")
        values = {name: getattr(outcome, name) for name in plain} | {
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
            values[f"{split}_accuracy"] = None if counts is None else accuracy(counts)
            values[f"{split}_recall"] = None if counts is None else numbers_to_json(recall(counts))
        self._insert(values)

    def copy(self, identity: str, source: Run) -> None:
        """Copy an outcome of another store unchanged."""
        names = [*NAMES, *schema.BLOBS]
        values = [*source._values(identity), *(source._blob(name, identity) for name in schema.BLOBS)]
        self._insert(dict(zip(names, values, strict=True)))

    def _insert(self, values: dict[str, Any]) -> None:
        with schema.explained(self.path), schema.transaction(self._connection):
            before = self._connection.execute(
                "SELECT attempts FROM outcomes WHERE identity = ?", (values["identity"],)
            ).fetchone()
            values = {**values, "attempts": values.get("attempts", 1) + (before[0] if before else 0)}
            marks = ", ".join("?" for _ in values)
            self._connection.execute(
                f"INSERT OR REPLACE INTO outcomes ({', '.join(values)}) VALUES ({marks})", tuple(values.values())
            )
            stale = [(f"{name}/{values['identity']}",) for name in schema.BLOBS]  # it may have had other blobs
            self._connection.executemany("DELETE FROM checks WHERE what = ?", stale)
            self._sign(schema.sign_outcome(values))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
