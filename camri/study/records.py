"""What is read from a store without its arrays: rows, the plan, the columns, the facts that all outcomes share."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from camri.errors import InputError, last_line
from camri.metrics import Array

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
    def complaint(self) -> str:
        """Of a failed trial: which it was, and what it said at last."""
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
    """What all outcomes of a run share; two runs can be united where it agrees."""

    fingerprint: str
    classes: tuple[str, ...]
    data: dict[str, Any]  # name, provenance, rows of each split
    training: dict[str, Any]
    asked: list[Any]  # the important classes as the study names them, and the split they are found on
    labels: dict[str, Array]  # of val and test
    groups: dict[str, Array] = field(default_factory=dict)  # of those of them whose rows have groups


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


def check_same(stored: RunFacts, asked: RunFacts, path: Path) -> None:
    """Refuse a run of other data or training by what differs."""
    if stored.fingerprint != asked.fingerprint:
        raise InputError(
            f"{path} holds outcomes of other data ({stored.data['name']}, {stored.fingerprint[:12]}, and not "
            f"{asked.data['name']}, {asked.fingerprint[:12]}); choose another folder"
        )
    if stored.training != asked.training:
        differ = [f"{name}={stored.training.get(name)!r}" for name in stored.training
                  if stored.training.get(name) != asked.training.get(name)]  # fmt: skip
        raise InputError(f"{path} holds outcomes of another training ({', '.join(differ)}); choose another folder")


def name_asked(asked: Sequence[Any]) -> str:
    """Important classes as a study asks for them, in the words of --important.

    >>> name_asked([[[["cat", 1.0]], [["cat", 1.0], ["dog", 0.5]]], "val"])
    'cat, cat+dog:0.5 from val'
    """
    columns, split = asked
    named = (
        "+".join(str(name) if strength == 1 else f"{name}:{strength:g}" for name, strength in column)
        for column in columns
    )
    return f"{', '.join(named)} from {split}"


def numbers_to_json(values: Array) -> str:
    """JSON of numbers, null for nan.

    >>> numbers_to_json(np.array([0.5, np.nan])), numbers_from_json("[0.5, null]")
    ('[0.5, null]', (0.5, nan))
    """
    return json.dumps([None if np.isnan(value) else float(value) for value in values])


def numbers_from_json(text: str) -> tuple[float, ...]:
    return tuple(float("nan") if value is None else value for value in json.loads(text))
