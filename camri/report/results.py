"""The records of a run, or of a results folder: a run's numbers as small plain files, without its store.

    verdict.json   facts of the run, its answer, and the records of the tables at the top of its page
    angles.json    the records of Table II
    curves.json    the recall–accuracy curves
    figures.json   the records of Fig. 3, 5 and 6 and of training, where the run has them
    study.json     the study, to run it again; study-2.json … where several were run into the folder
    outcomes.csv   a row for each outcome and split

The same store gives the same bytes. A number that is not one is null; no file has a path of the machine.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from camri.errors import InputError, blame
from camri.files import cannot_write, replacing
from camri.report.answer import answer
from camri.report.records import FromRun, Source, plain
from camri.study.export import tidy
from camri.study.reader import OnStep, RunReader
from camri.study.store import STORE_FILE
from camri.text import csv_text

VERSION = 2
VERDICT = "verdict.json"
IN_VERDICT = ("paper", "honest", "own", "gaps")
IN_FIGURES = ("confusion", "penalty", "training", "circle")
FROM_RUN_ONLY = ("settings", "calibration")
MOST_BYTES = 2_000_000


@dataclass(frozen=True, eq=False)
class Results:
    """The records of a results folder. `verdict` is its verdict.json."""

    folder: Path
    verdict: dict[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def small(self) -> str:
        return str(self.verdict.get("small", ""))

    def records(self, part: str) -> Any:
        if part in FROM_RUN_ONLY:
            raise InputError(f"{self.folder} holds results, which have no {part}; give the run")
        if part in IN_VERDICT:
            return self.verdict.get(part, [])  # "own" is younger than some results
        if part in IN_FIGURES:
            found = _read(self.folder / "figures.json").get(part)
        else:
            found = _read(self.folder / f"{part}.json")
        if not found:
            raise InputError(f"{self.folder} has no {part}: the run had no data for it")
        return found


@contextlib.contextmanager
def open_source(folder: str | Path, on_step: OnStep | None = None) -> Iterator[Source]:
    """The records of a run's folder or of a results folder."""
    if is_results(Path(folder)):
        yield open_results(folder)
    else:
        with RunReader(folder, on_step) as reading:
            yield FromRun(reading)


def is_results(folder: Path) -> bool:
    """Whether the folder holds results, and not a run."""
    return (folder / VERDICT).is_file() and not (folder / STORE_FILE).exists()


def open_results(folder: str | Path) -> Results:
    """The results in a folder."""
    verdict = _read(Path(folder) / VERDICT)
    version = verdict.get("version") if isinstance(verdict, dict) else None
    if version != VERSION:
        raise InputError(f"{folder}/{VERDICT} is of version {version}, and this camri reads {VERSION}; write it again")
    return Results(Path(folder), verdict)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; camri report RUN --results {path.parent} writes it") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); write it again from its run") from None


def write_results(
    run: str | Path,
    out: str | Path,
    *,
    commit: str | None = None,
    screening: str | Path | None = None,
    on_step: OnStep | None = None,
) -> Path:
    """Write a run's results and return their folder. Earlier results are replaced, other files left alone.

    `commit` is that of the code that trained, where the outcomes do not name it. `screening` is the run that the
    settings were chosen from: the number of its settings and trials is noted.
    """
    folder = Path(out)
    with RunReader(run, on_step) as reading:
        files = _files(reading, commit, screening)
    taken = [name for name in files if (folder / name).exists() and not is_results(folder)]
    if taken or (folder / STORE_FILE).exists() or (folder.exists() and not folder.is_dir()):
        raise InputError(
            f"{folder} holds {taken[0] if taken else 'files'} that are not results; choose another with --results"
        )
    remedy = "; choose another with --results"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error, remedy) from None
    # Files take their places in reverse order, so the verdict, which makes the rest valid, does last.
    with contextlib.ExitStack() as stack:
        parts = {name: stack.enter_context(replacing(folder / name, remedy)) for name in files}
        for name, part in parts.items():
            part.write_bytes(files[name])
        for old in folder.glob("study-*.json"):
            old.unlink()
    return folder


def _files(reading: RunReader, commit: str | None, screening: str | Path | None) -> dict[str, bytes]:
    source = FromRun(reading)

    def found(part: str) -> Any:
        try:
            return source.records(part)
        except InputError:  # a run of Fig. 6 has no cross-entropy, other runs no features
            return []

    said = answer(reading, source.verdicts, found("gaps"))
    verdict = {
        **_facts(reading, commit),
        "screening": None if screening is None else _screening(reading, screening),
        "answer": {name: getattr(said, name) for name in ("kind", "sentence", "details")},
        **{part: found(part) for part in IN_VERDICT},
    }
    reading.begin("collecting curves and figures")
    studies = {f"study{'' if place == 0 else f'-{place + 1}'}.json": one for place, one in enumerate(_studies(reading))}
    files = {
        VERDICT: _json(verdict, indent=1),
        "angles.json": _json(found("angles"), indent=1),
        "curves.json": _json(found("curves")),
        "figures.json": _json({part: found(part) for part in IN_FIGURES}),
        **{name: _json(one, indent=1) for name, one in studies.items()},
        "outcomes.csv": _outcomes(reading),
    }
    for name, data in files.items():
        if len(data) > MOST_BYTES:
            raise InputError(
                f"{name} would have {len(data):,} bytes, and results are to be small ({MOST_BYTES:,}); run fewer "
                "settings or seeds into one folder"
            )
    return files


def _facts(reading: RunReader, commit: str | None) -> dict[str, Any]:
    run, progress = reading.run, reading.progress()
    done = [row for row in reading.rows if row.status == "done"]
    environment = reading.environment()
    return {
        "version": VERSION,
        "data": reading.name,
        "altered": _altered(run.data.get("provenance", {})),
        **({"small": reading.small} if reading.small else {}),
        "fingerprint": run.fingerprint,
        "images": run.data["rows"],
        "num_classes": len(reading.classes),
        "columns": [
            {"important": one.title, "indices": list(one.indices), "strengths": list(one.strengths)}
            for one in reading.columns
        ],
        "training": run.training,
        "seeds": sorted({row.seed for row in done}),
        "trials": {"done": progress.done, "failed": progress.failed, "planned": progress.total},
        "device_s": round(sum(row.device_s for row in reading.rows), 1),
        "created": [end(row.created for row in reading.rows)[:10] for end in (min, max)] if reading.rows else [],
        "commit": commit or " / ".join(environment.get("commit", [])) or None,
        "environment": environment,
    }


def _altered(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What was changed in the data: classes thinned in training, images of another size or cropped."""
    thinned, options = provenance.get("thinned", {}).get("parts"), provenance.get("options", {})
    changes = {"thinned": thinned, "size": options.get("size"), "roi": options.get("roi")}
    return {name: value for name, value in changes.items() if value}


def _screening(reading: RunReader, folder: str | Path) -> dict[str, Any]:
    """The screening's trials, and how many settings each method had in each column."""
    with blame("screening"), RunReader(folder) as screened:
        if screened.run.fingerprint != reading.run.fingerprint:
            raise InputError(
                f"{folder} is a screening on other data ({screened.name}); give the one of this run's data"
            )
        counts = {}
        for column in screened.columns:
            methods = [one.method for one in screened.settings(column)]
            counts[column.title] = {method: methods.count(method) for method in dict.fromkeys(methods)}
        facts = _facts(screened, None)
    kept = ("seeds", "trials", "device_s", "training", "environment")
    return {**{name: facts[name] for name in kept}, "num_settings": counts}


def _studies(reading: RunReader) -> list[dict[str, Any]]:
    """The studies of the run; those that differ in their seeds alone as one, and none that is a part of another."""
    found: dict[str, dict[str, Any]] = {}
    for study in reading.run.studies:
        name = json.dumps({key: value for key, value in study.items() if key not in ("name", "seeds")}, sort_keys=True)
        one = found.setdefault(name, {**study, "seeds": []})
        one["seeds"] = sorted({*one["seeds"], *study["seeds"]})
    studies = list(found.values())
    return [one for one in studies if not any(other is not one and _is_part(one, other) for other in studies)]


def _is_part(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the other study trains all that this one does."""
    lists = ("important", "methods", "seeds")
    same = all(one[key] == other.get(key) for key in one if key not in ("name", *lists))
    return same and all(value in other[key] for key in lists for value in one[key])


def _outcomes(reading: RunReader) -> bytes:
    """The tidy table with six decimals; where it is too large, with the recalls of the important classes only."""
    names, rows = tidy(reading.run)
    rows = [{name: _rounded(row[name]) for name in names} for row in rows]
    data = csv_text(names, rows).encode()
    if len(data) <= MOST_BYTES:
        return data
    important = {f"recall:{name}" for column in reading.columns for name in column.names}
    return csv_text([name for name in names if not name.startswith("recall:") or name in important], rows).encode()


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else without_places(value) if isinstance(value, str) else value


def without_places(text: str) -> str:
    """A text with absolute paths cut to their last part.

    >>> without_places("cannot read /home/me/data/cat.png: 3/4 of it is missing")
    'cannot read cat.png: 3/4 of it is missing'
    """
    return re.sub(r"(?<![\w./:])(?:[A-Za-z]:)?(?:[/\\][\w.@+~-]+)+[/\\]([\w.@+~-]+)", r"\1", text)


def _json(value: Any, indent: int | None = None) -> bytes:
    text = json.dumps(
        plain(value), ensure_ascii=False, allow_nan=False, indent=indent, separators=None if indent else (",", ":")
    )
    return (text + "\n").encode()
