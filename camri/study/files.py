"""Studies written by hand: a TOML file -> a study."""

import contextlib
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from camri import methods
from camri.engine.spec import FAST, Training
from camri.errors import InputError, closest
from camri.methods import MARGIN_UNIT
from camri.study.grid import ANGULAR
from camri.study.paper import find_schedule
from camri.study.spec import Study, study

_TABLES = ("name", "important", "important_from", "seeds", "data", "split", "training", "methods", "keep")
_SPLIT = {"val_fraction": "val_fraction", "test_fraction": "test_fraction", "seed": "split_seed", "thin": "thin"}
_KEEP = {"logits": "keep_logits", "weights": "keep_weights"}


def read_study(path: str | Path, schedule: str | Training | None = None, **changes: Any) -> Study:
    """The study of a TOML file; docs/study.md describes it. `schedule` replaces the file's own."""
    values = _read(Path(path))
    for name in values:
        if name not in _TABLES:
            raise InputError(f"{path} has {name!r}, which a study does not have; {closest(name, _TABLES)}")
    for name in ("data", "important", "methods"):
        if name not in values:
            raise InputError(f"{path} does not say {name!r}; a study needs data, important and methods")
    data = values["data"]
    options = {"source": data} if isinstance(data, str) else dict(_table(path, "data", data))
    if "source" not in options:
        raise InputError(f"{path}: [data] needs source, a data set's name or path")
    if "trials" in changes:
        changes["seeds"] = changes.pop("trials")
    training = _training(path, values.get("training", {})) if schedule is None else find_schedule(schedule)
    given = {
        "name": values.get("name", Path(path).stem),
        "data": options.pop("source"),
        "data_options": options,
        "important": values["important"],
        "methods": {name: in_radians(name, grid) for name, grid in _table(path, "methods", values["methods"]).items()},
        "training": training,
        "seeds": values.get("seeds", 10),
        **_renamed(path, "split", values, _SPLIT),
        **_renamed(path, "keep", values, _KEEP),
    }
    if "important_from" in values:
        given["important_from"] = values["important_from"]
    return study(**{**given, **changes})


def in_radians(method: str, grid: Any) -> dict[str, Any]:
    """A method's grid as people write it, margins of the angular methods in π/64, with margins in radians.

    >>> in_radians("wce", {"w": [4]}), in_radians("camri", {"m": [64]})
    ({'w': [4]}, {'m': [3.141592653589793]})
    """
    if not isinstance(grid, Mapping):
        raise InputError(f"methods {method}={grid!r} is not a table of knobs and values, for example {{s = [8, 16]}}")
    methods.method(method)
    if method not in ANGULAR or "m" not in grid:
        return dict(grid)
    margins = grid["m"] if isinstance(grid["m"], (list, tuple)) else [grid["m"]]
    for value in margins:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InputError(f"{method} m={value!r} is not a number; margins are given in π/64")
    return {**grid, "m": [value * MARGIN_UNIT for value in margins]}


def _training(path: str | Path, values: Any) -> Training:
    fields = dict(_table(path, "training", values))
    base = find_schedule(fields.pop("schedule", FAST))
    changed = {**base.to_json(), **fields}
    for name in changed.keys() - base.to_json().keys():
        raise InputError(f"{path}: training has no field {name!r}; {closest(name, ['schedule', *base.to_json()])}")
    _table(path, "training.model_options", changed["model_options"])
    return Training.from_json(changed)


def _renamed(path: str | Path, table: str, values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    found = _table(path, table, values.get(table, {}))
    for name in found:
        if name not in names:
            raise InputError(f"{path}: [{table}] has no {name!r}; {closest(name, names)}")
    return {names[name]: value for name, value in found.items()}


def _table(path: str | Path, name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{path}: {name}={value!r} is not a table; write its values below a line [{name}]")
    return value


def read_json(path: str | Path) -> Study:
    """The study whose JSON `camri study show … --json` prints and a report page shows."""
    try:
        return Study.from_json(json.loads(_text(Path(path))))
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path} does not hold a study's JSON ({type(error).__name__}: {error}); "
            "`camri study show … --json` prints one"
        ) from None


def _read(path: Path) -> dict[str, Any]:
    toml = _parser(path)
    try:
        return toml.loads(_text(path))
    except toml.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; give a recipe, or the path of a TOML or JSON file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error})") from None


def _parser(path: Path) -> Any:
    """tomllib, or tomli where Python is 3.10 and has none."""
    for name in ("tomllib", "tomli"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise InputError(f"{path} needs Python 3.11 to be read, or `pip install tomli`")
