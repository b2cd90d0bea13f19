"""A run opened to read: columns, settings with their outcomes, scores. Needs no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from camri.errors import InputError
from camri.methods import BASELINE, Setting, in_order
from camri.metrics import Array, Scores
from camri.selection import Candidate, Measured, Rule, Trial, Validation
from camri.study import run_folder
from camri.study.store import ColumnFacts, Row, by_key, open_run
from camri.text import Noun, noun_of, quoted

VERSIONS = ("camri", "python", "torch", "numpy", "cuda")
HARDWARE = ("gpu", "processor", "cores", "system", "device")
OnStep = Callable[[str, float], None]  # called with what is being computed and which share of the work is done


@dataclass(frozen=True)
class SettingResults:
    """A setting that a column compares, and its outcomes that ended well."""

    key: str
    method: str
    title: str
    knobs: dict[str, Any]
    rows: tuple[Row, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(row.seed for row in self.rows)

    @property
    def setting(self) -> Setting:
        return Setting.from_json(self.rows[0].setting)

    def value(self, knob: str) -> float:
        """A knob's value; of one for each important class the largest."""
        found = self.knobs[knob]
        return float(max(found)) if isinstance(found, (list, tuple)) else float(found)


@dataclass(frozen=True)
class TrialCounts:
    """Trials of the run by state. `total` is None while it is not known; `is_running`: a process trains it now."""

    done: int
    failed: int
    total: int | None
    is_running: bool

    @property
    def is_finished(self) -> bool:
        return not self.is_running and self.total is not None and self.done + self.failed >= self.total


class RunReader:
    """A run, opened to read. Use it as a context manager.

    with RunReader("runs/x") as reading:
        print(reading.columns, reading.progress())
    """

    def __init__(self, folder: str | Path, on_step: OnStep | None = None):
        self.folder = Path(folder)
        self.run = open_run(self.folder)
        self.classes = self.run.classes
        self.columns: list[ColumnFacts] = self.run.columns()
        self._scores: dict[tuple[str, str, tuple[int, ...]], Scores] = {}
        self._on_step, self._num_steps = on_step, 0

    def __enter__(self) -> "RunReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.run.close()

    def begin(self, step: str) -> None:
        """Report a step to `on_step`: every column is judged, then its curves are compared, then all is drawn."""
        if self._on_step is not None:
            self._on_step(step, min(1.0, self._num_steps / (2 * len(self.columns) + 1)))
        self._num_steps += 1

    @property
    def name(self) -> str:
        """The data set's name."""
        return str(self.run.data["name"])

    @property
    def noun(self) -> Noun:
        """What the data's inputs are called; "images" if an older run does not record their shape."""
        return noun_of(self.run.data.get("input_shape", ()))

    @property
    def rule(self) -> Rule:
        """How settings are chosen: as the run noted, or else no accuracy may be given up."""
        return Rule(**(self.run.note("rule") or {}))

    @property
    def has_validation(self) -> bool:
        """Whether settings can be chosen without looking at the test images."""
        return "val" in self.run.splits

    @cached_property
    def rows(self) -> list[Row]:
        """All outcomes, failed ones too."""
        return self.run.rows(status=None)

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.status != "done"]

    def settings(self, column: ColumnFacts, method: str | None = None) -> list[SettingResults]:
        """Settings that a column compares and that have outcomes, in the study's order; each once a method."""
        done, found = by_key(self.rows), {}
        for one in self.run.plan(column.number):
            if one.key in done and method in (None, one.method):
                rows = tuple(sorted(done[one.key], key=lambda row: row.seed))
                found[one.method, one.key] = SettingResults(one.key, one.method, one.title, one.setting["knobs"], rows)
        return list(found.values())

    def methods(self) -> list[str]:
        """The methods of the plan, in the order of Table I."""
        return in_order({setting.method for setting in self.run.plan()})

    def scores(self, row: Row, split: str, column: ColumnFacts) -> Scores:
        """The condensed scores of the column's important classes."""
        name = (row.identity, split, column.indices)
        if name not in self._scores:
            self._scores[name] = self.run.scores(row, split, important=column.indices)
        return self._scores[name]

    def validation(self, setting: SettingResults, column: ColumnFacts) -> Validation:
        """What a choice may see of a setting."""
        return Validation(setting.key, {row.seed: self.scores(row, "val", column) for row in setting.rows})

    def candidate(self, setting: SettingResults, column: ColumnFacts) -> Candidate:
        """A setting with its trials' validation and test scores."""
        return Candidate(
            setting.key,
            [
                Trial(row.seed, self.scores(row, "val", column), self.scores(row, "test", column))
                for row in setting.rows
            ],
        )

    def confusion(self, setting: SettingResults) -> Array:
        """Shares of each true class's test images (a row each), mean over trials: (C, C); nan where it has none."""
        counts = np.mean([self.run.confusion(row, "test") for row in setting.rows], axis=0)
        with np.errstate(invalid="ignore"):
            return counts / counts.sum(axis=1, keepdims=True)

    @cached_property
    def angles_of(self) -> str:
        """The split whose angles are shown: train, or test where outcomes lack those of the training images.

        paper: does not say which images its Table II is about / here: the training images / why: its angles are a fifth
        of those of test images.
        """
        done = [row for row in self.rows if row.status == "done"]
        return "train" if done and all("angle_sd.train" in self.run.arrays(row) for row in done) else "test"

    def angles(self, setting: SettingResults) -> tuple[Array, Array]:
        """Mean and sd of the angles of each class, averaged over trials, in radians: (C,), (C,)."""
        split = self.angles_of
        arrays = [self.run.arrays(row) for row in setting.rows]
        if not all(f"angle_sd.{split}" in one for one in arrays):
            raise InputError(f"{setting.title} has no angles: an ensemble has several weight vectors for a class")
        return tuple(np.mean([one[f"{name}.{split}"] for one in arrays], axis=0) for name in ("angle_mean", "angle_sd"))

    def cautions(self) -> list[str]:
        """Problems of the data, a sentence each: copies in two splits, images left out, doubtful names."""
        origin = self.run.data.get("provenance", {})
        notes = [*origin.get("notes", []), *([origin["skipped_note"]] if "skipped_note" in origin else [])]
        rare = [
            f"{quoted(name)} was made rare for this study: {100 * part:g} % of its train rows were kept"
            for name, part in origin.get("thinned", {}).get("parts", {}).items()
        ]
        return [*notes, *rare, *([self.mute_validation] if self.mute_validation else [])]

    @cached_property
    def mute_validation(self) -> str | None:
        """A caution if cross-entropy finds every validation image of an important class: they rank no setting."""
        rows = [row for row in self.rows if row.method == BASELINE and row.status == "done"]
        if not rows or not self.has_validation:
            return None
        labels = self.run.labels("val")
        found = [
            f"{quoted(self.classes[index])} ({np.sum(labels == index)})"
            for index in dict.fromkeys(index for column in self.columns for index in column.indices)
            if all(row.recall["val"][index] == 1 for row in rows)
        ]
        if not found:
            return None
        return (
            f"cross-entropy finds every validation {self.noun.one} of {' and of '.join(found)} in every trial, so they "
            "cannot say how far to shift or which setting finds more; hold out more of them"
        )

    def environment(self) -> dict[str, list[str]]:
        """Versions and hardware by name, each with its different values: a run may resume on another machine."""
        names = dict.fromkeys(name for row in self.rows for name in row.environment)
        every = {name: dict.fromkeys(str(row.environment.get(name) or "") for row in self.rows) for name in names}
        return {name: [value for value in values if value] for name, values in every.items() if any(values)}

    def progress(self) -> TrialCounts:
        """How far the run has come."""
        plan = {setting.key for setting in self.run.plan()}
        seeds = {tuple(study["seeds"]) for study in self.run.studies}
        total = len(plan) * len(next(iter(seeds))) if plan and len(seeds) == 1 else None
        total = self.run.note("num_trials") or total  # a fit trains its seeds in several studies
        folder = self.folder if self.folder.is_dir() else self.folder.parent
        return TrialCounts(
            len(self.rows) - len(self.failed), len(self.failed), total, run_folder.holder(folder) is not None
        )


def list_environment(found: Mapping[str, Sequence[str]], names: Sequence[str]) -> str:
    """Some of a run's versions and hardware, by name, on one line.

    >>> list_environment({"torch": ["2.11", "2.13"], "gpu": ["H200"]}, ("gpu", "torch", "cuda"))
    'gpu H200, torch 2.11 / 2.13'
    """
    return ", ".join(f"{name} {' / '.join(found[name])}" for name in names if name in found) or "not recorded"


def measure(setting: SettingResults, important: Sequence[int]) -> Measured:
    """Recall (the important classes' mean) and accuracy on the test images, one number a trial."""
    recalls = tuple(float(np.mean([row.recall["test"][index] for index in important])) for row in setting.rows)
    return Measured(setting.key, recalls, tuple(row.accuracy["test"] for row in setting.rows))
