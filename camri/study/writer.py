"""Writing a run's outcomes: done by the one process that holds the run's lock, each as its trial ends."""

import contextlib
import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from camri.engine.outcome import Outcome
from camri.metrics import accuracy, recall
from camri.study import schema
from camri.study.arrays import pack
from camri.study.grid import Resolved
from camri.study.records import SPLITS, RunFacts, check_same, numbers_to_json
from camri.study.spec import Study
from camri.study.store import ARRAY_FIELDS, FILE_NAME, SCORE_PARTS, Run


class Store(Run):
    """A run's outcomes, to write: opened by the one process that holds the run's lock."""

    @staticmethod
    def open(folder: Path, facts: RunFacts) -> "Store":
        """The store in the folder, made if there is none; refused where it belongs to other data or training."""
        path = folder / FILE_NAME
        connection, is_new = schema.open_to_write(path)
        store = Store(path, connection)
        if is_new:
            store._begin(facts)
        else:
            check_same(store.facts(), facts, path)
        return store

    def close(self) -> None:
        """Nothing; the store is one plain file again, if no reader is looking."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA journal_mode=DELETE")
        super().close()

    def _begin(self, facts: RunFacts) -> None:
        meta = {
            "fingerprint": facts.fingerprint,
            "classes": facts.classes,
            "data": facts.data,
            "training": facts.training,
            "asked": facts.asked,
        }
        with schema.explained(self.path), schema.transaction(self._connection):
            schema.create_tables(self._connection)
            self._connection.executemany(
                "INSERT INTO meta VALUES (?, ?)", [(name, json.dumps(value)) for name, value in meta.items()]
            )
            for split, labels in facts.labels.items():
                blob = pack({"labels": labels, **({"groups": facts.groups[split]} if split in facts.groups else {})})
                self._connection.execute("INSERT INTO labels VALUES (?, ?, ?)", (split, len(labels), blob))

    def add_study(self, study: Study, columns: Sequence[Resolved] | None) -> None:
        """Nothing; the study is noted and, where its important classes are known, so are they and its plan."""
        spec = json.dumps(study.to_json())
        with schema.explained(self.path), schema.transaction(self._connection):
            self._connection.execute(
                "INSERT OR IGNORE INTO studies VALUES (?, ?, ?, ?)", (study.key, study.name, spec, _now())
            )
            if columns is None:
                return
            self._connection.execute(
                "INSERT OR IGNORE INTO meta VALUES ('columns', ?)", (json.dumps([list(map(list, c)) for c in columns]),)
            )
            self._connection.executemany(
                "INSERT OR IGNORE INTO plan VALUES (?, ?, ?, ?, ?)",
                [
                    (number, one.method, one.key, str(one), json.dumps(one.to_json()))
                    for number, one in study.settings(columns)
                ],
            )

    def write_note(self, name: str, value: Any) -> None:
        """Nothing; a plain JSON value stands under the name, in place of what stood there."""
        with schema.explained(self.path), schema.transaction(self._connection):
            self._connection.execute(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"note.{name}", json.dumps(value, allow_nan=False))
            )

    def add(self, identity: str, outcome: Outcome) -> None:
        """Nothing; the outcome is on the disk. A retried trial's new outcome takes the place of the old one."""
        setting = outcome.trial.setting
        for split, scores in outcome.scores.items():
            assert np.array_equal(scores.labels, self.labels(split)), "an outcome of other images"
        arrays = {f"{name}.{part}": a for name in ARRAY_FIELDS for part, a in getattr(outcome, name).items()}
        for split, scores in outcome.scores.items():
            for part in SCORE_PARTS:
                arrays[f"scores.{split}.{part}"] = getattr(scores, part)
        values = {
            "identity": identity,
            "key": setting.key,
            "method": setting.method,
            "title": str(setting),
            "setting": json.dumps(setting.to_json()),
            "seed": outcome.trial.seed,
            "status": outcome.status,
            "error": outcome.error,
            "epochs_done": outcome.epochs_done,
            "wall_s": outcome.wall_s,
            "device_s": outcome.device_s,
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
        """Nothing; an outcome of another store is in this one too, as it stands there."""
        names = [name for _, name, *_ in self._select("PRAGMA table_info(outcomes)")]
        (values,) = source._select(f"SELECT {', '.join(names)} FROM outcomes WHERE identity = ?", identity)
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


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
