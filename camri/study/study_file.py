"""Studies written by hand: a TOML file -> a study.

A study narrowed by what people type: --methods ce,camri --grid m=4,8 --important cat+dog:0.5.
"""

import contextlib
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from camri import methods
from camri.engine.spec import FAST, Training
from camri.errors import InputError, closest
from camri.methods import MARGIN_UNIT
from camri.study.paper import find_schedule
from camri.study.spec import ANGULAR, Grid, Study, study

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


def override(study: Study, chosen: str | None = None, grid: Sequence[str] = ()) -> Study:
    """The study with some of its methods ("ce,camri") and the values of some knobs replaced ("m=4,8", "wce.w=4").

    Margins of the angular methods are in π/64. A method that the study does not have comes with its whole grid.
    """
    grids = {one.method: one for one in study.methods}
    if chosen is not None:
        names = [name.strip() for name in chosen.split(",") if name.strip()]
        grids = {name: grids.get(name) or Grid.of(name) for name in names}
    narrowed = parse_grid(grid)
    known = {knob for name in grids for knob in methods.method(name).knobs}
    for method, knob in narrowed:
        if method is not None and method not in grids:
            raise InputError(f"--grid {method}.{knob}: {method!r} is not in the study; {closest(method, grids)}")
        if knob not in (known if method is None else methods.method(method).knobs):
            choices = closest(knob, sorted(known)) if known else "none of its methods has any"
            raise InputError(f"--grid {knob}: no method of the study has that knob; {choices}")
    return study.with_(methods=[_override(one, narrowed) for one in grids.values()])


def _override(grid: Grid, narrowed: Mapping[tuple[str | None, str], list[float]]) -> Grid:
    knobs = methods.method(grid.method).knobs
    given = {
        knob: values for (method, knob), values in narrowed.items() if knob in knobs and method in (None, grid.method)
    }
    if not given:
        return grid
    if grid.points:
        raise InputError(
            f"--grid {', '.join(given)}: {grid.method} has points of its own in each column of this study; leave it out"
        )
    return Grid.of(grid.method, {**dict(grid.axes), **in_radians(grid.method, given)})


def parse_grid(words: Sequence[str]) -> dict[tuple[str | None, str], list[float]]:
    """(method or None, knob) -> values.

    >>> parse_grid(["m=4,8", "wce.w=4"])
    {(None, 'm'): [4.0, 8.0], ('wce', 'w'): [4.0]}
    """
    found: dict[tuple[str | None, str], list[float]] = {}
    for word in words:
        place, _, text = word.partition("=")
        method, _, knob = place.rpartition(".")
        if (method or None, knob) in found:
            raise InputError(f"--grid {place} is given twice; give its values at once, like {place}=4,8")
        try:
            found[method or None, knob] = [float(value) for value in text.split(",")]
        except ValueError:
            raise InputError(f"--grid {word!r} is not knob=value,value; for example m=4,8 or wce.w=4") from None
    return found


def parse_column(text: str) -> Any:
    """A column of important classes as typed: "cat", "cat+dog", "cat+dog:0.5"; digits alone are a name first.

    >>> parse_column("cat"), parse_column("cat+dog:0.5")
    ('cat', {'cat': 1.0, 'dog': 0.5})
    """
    if "+" not in text and ":" not in text:
        return text
    column: dict[str, float] = {}
    for word in text.split("+"):
        name, _, strength = word.partition(":")
        if name.strip() in column:
            raise InputError(f"--important {text!r} names {name.strip()!r} twice; give each class once")
        try:
            column[name.strip()] = float(strength) if strength else 1.0
        except ValueError:
            raise InputError(f"--important {word!r}: the strength {strength!r} is not a number") from None
    return column


def parse_seeds(text: str) -> list[int]:
    """Seeds as typed: "0-4" or "0,3,7".

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    try:
        for word in text.split(","):
            first, _, last = word.partition("-")
            if int(last or first) < int(first):
                raise ValueError("a range that ends before it begins")
            seeds += range(int(first), int(last or first) + 1)
    except ValueError:
        raise InputError(f"--seeds {text!r} is not a list of seeds; for example 0-4 or 0,3,7") from None
    return seeds


def parse_duration(text: str, option: str = "--max-wall") -> float:
    """Seconds of "90", "90s", "25m", "1.5h".

    >>> parse_duration("25m")
    1500.0
    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InputError(f"{option} {text!r} is not a duration; for example 90s, 25m or 1.5h")
    return seconds
