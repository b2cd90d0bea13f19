"""Where the numbers of tables and figures come from: an open run, or the results folder that was written of one."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from camri.errors import InputError
from camri.report.angles import angle_records
from camri.report.gaps import gap_records
from camri.report.reading import Reading
from camri.report.tables import honest_records, paper_records
from camri.report.verdict import ColumnVerdict, judge_columns
from camri.study.store import FILE_NAME

VERSION = 2
VERDICT = "verdict.json"
IN_VERDICT = ("paper", "honest", "gaps")
FIGURES = ("confusion", "penalty", "training", "circle")  # in figures.json
Maker = Callable[[Reading, Sequence[ColumnVerdict]], Any]


class Source(Protocol):
    """Where records come from: an open run, or a results folder."""

    def records(self, part: str) -> Any:
        """paper, honest, gaps, angles, curves or one of FIGURES; InputError where there are none."""


@dataclass(frozen=True, eq=False)
class FromRun:
    """The records of an open run."""

    reading: Reading

    @cached_property
    def verdicts(self) -> list[ColumnVerdict]:
        return judge_columns(self.reading)

    def records(self, part: str) -> Any:
        return plain(self._find(part)(self.reading, self.verdicts))

    @staticmethod
    def _find(part: str) -> Maker:
        tables: dict[str, Maker] = {
            "paper": paper_records,
            "honest": honest_records,
            "gaps": gap_records,
            "angles": angle_records,
        }
        if part in tables:
            return tables[part]
        from camri.report import circle, curve, epochs, figures  # these need altair

        drawn: dict[str, Maker] = {
            "curves": curve.trace_curves,
            "confusion": figures.count_confusion,
            "penalty": lambda reading, verdicts: figures.measure_penalty(verdicts),
            "training": epochs.follow_training,
            "circle": lambda reading, verdicts: circle.find_circle(reading),
        }
        return drawn[part]


@dataclass(frozen=True, eq=False)
class Results:
    """The records of a results folder. `verdict` is its verdict.json."""

    folder: Path
    verdict: dict[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name

    def records(self, part: str) -> Any:
        if part in IN_VERDICT:
            return self.verdict[part]
        found = _read(self.folder / ("figures.json" if part in FIGURES else f"{part}.json"))
        if part in FIGURES:
            found = found.get(part)
        if not found:
            raise InputError(f"{self.folder} has no {part}: the run had nothing to draw it of")
        return found


def is_results(folder: Path) -> bool:
    """Whether the folder holds results, and not a run."""
    return (folder / VERDICT).is_file() and not (folder / FILE_NAME).exists()


def open_results(folder: str | Path) -> Results:
    """The results in a folder."""
    verdict = _read(Path(folder) / VERDICT)
    if not isinstance(verdict, dict) or verdict.get("version") != VERSION:
        told = verdict.get("version") if isinstance(verdict, dict) else None
        raise InputError(f"{folder}/{VERDICT} is of version {told}, and this camri reads {VERSION}; write it again")
    return Results(Path(folder), verdict)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; camri report RUN --results {path.parent} writes it") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); write it again from its run") from None


def plain(value: Any) -> Any:
    """The value as JSON holds it: lists, plain numbers, null for what is not one."""
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
