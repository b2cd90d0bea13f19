"""Read studies from recipe names, TOML and JSON files, and the options of `camri study`."""

import dataclasses
import functools
import importlib
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from camri import methods
from camri.backbones import decoding, find, is_backbone, read_weights
from camri.engine.spec import FAST, Training
from camri.errors import InputError, closest
from camri.files import refuse_special
from camri.study.recipes import RECIPES, RULES, Recipe, find_schedule
from camri.study.spec import MOST_SEEDS, Column, Grid, Study, study

_TABLES = ("name", "columns", "strengths", "important_from", "seeds", "data", "split", "training", "methods", "keep")
_SPLIT = {"val_fraction": "val_fraction", "test_fraction": "test_fraction", "seed": "split_seed", "thin": "thin"}
_KEEP = {"logits": "keep_logits", "weights": "keep_weights"}


def find_study(name: str, **given: Any) -> Study:
    """The study of a recipe, a TOML file, or a JSON file as `Study.to_json` writes it.

    `given` (columns, num_seeds, schedule, rule) changes a recipe or what the TOML file says; a JSON file takes none.

    >>> find_study("paper.cifar10.cat", num_seeds=3).seeds
    (0, 1, 2)
    """
    if name in RECIPES:
        return RECIPES[name](**given)
    if Path(name).suffix == ".json":
        if given:
            listed = ", ".join(f"{key}={value!r}" for key, value in given.items())
            raise InputError(f"{name} holds a whole study, so {listed} cannot be given beside it; change the file")
        return read_json(name)
    if Path(name).suffix == ".toml" or os.path.isfile(name):
        return Recipe(name, functools.partial(read_study, name))(**given)
    raise InputError(f"study {name!r} is neither a recipe nor a TOML or JSON file; {closest(name, RECIPES, shown=20)}")


def read_study(
    path: str | Path,
    *,
    columns: Any = None,
    num_seeds: int | None = None,
    schedule: str | Training | None = None,
    rule: str | None = None,
) -> Study:
    """The study of a TOML file, described in docs/study.md; the arguments replace what the file says."""
    values = _read(Path(path))
    if "important" in values:
        example = 'columns = ["cat", "cat+dog"] and strengths = { dog = 0.5 }'
        raise InputError(f"{path}: write 'columns' instead of 'important', for example {example}")
    for name in values:
        if name not in _TABLES:
            raise InputError(f"{path} has {name!r}, which a study does not have; {closest(name, _TABLES)}")
    for name in ("data", "columns", "methods"):
        if name not in values:
            raise InputError(f"{path} has no {name!r}; a study needs data, columns and methods")
    data = values["data"]
    options = {"source": data} if isinstance(data, str) else dict(_table(path, "data", data))
    if "source" not in options:
        raise InputError(f"{path}: [data] needs source, a data set's name or path")
    if columns is None:
        columns = parse_columns(values["columns"], _table(path, "strengths", values.get("strengths", {})))
    training = _training(path, values.get("training", {})) if schedule is None else find_schedule(schedule)
    if is_backbone(training.model):
        model_options, options = decoding(dict(training.model_options), options)  # decode images as the backbone needs
        training = training.with_(model_options=tuple(sorted(model_options.items())))
    return study(
        name=values.get("name", Path(path).stem),
        data=options.pop("source"),
        data_options=options,
        important=columns,
        methods={name: in_radians(name, grid) for name, grid in _table(path, "methods", values["methods"]).items()},
        training=training,
        seeds=num_seeds or values.get("seeds", 10),
        **_by_rule(rule, values.get("important_from", "val"), _renamed(path, "split", values, _SPLIT)),
        **_renamed(path, "keep", values, _KEEP),
    )


def _by_rule(rule: str | None, important_from: str, split: dict[str, Any]) -> dict[str, Any]:
    """The fields of the split, and where symbols such as "worst" are found, changed to the rule if one is given."""
    fields = {"important_from": important_from, **split}
    if rule is None:
        return fields
    if rule not in RULES:
        raise InputError(f"rule={rule!r} is unknown; {closest(rule, RULES)}", argument="rule")
    if rule == "paper":
        return {**fields, "val_fraction": 0.0, "important_from": "test"}
    return {**fields, "val_fraction": split.get("val_fraction") or 0.1, "important_from": "val"}


def in_radians(method: str, grid: Any) -> dict[str, Any]:
    """A method's grid with texts such as "4pi/64" turned into numbers; refuses angles above π.

    >>> in_radians("wce", {"w": [4]}), in_radians("camri", {"m": ["pi/2"]})
    ({'w': [4]}, {'m': [1.5707963267948966]})
    """
    if not isinstance(grid, Mapping):
        raise InputError(f"methods {method}={grid!r} is not a table of knobs and values, for example {{s = [8, 16]}}")
    knobs, parsed = methods.method(method).knobs, {}
    for knob, values in grid.items():
        several = values if isinstance(values, (list, tuple)) else [values]
        parsed[knob] = [parse_angle(value) if isinstance(value, str) else value for value in several]
        for value in parsed[knob]:
            is_angle = knob in knobs and knobs[knob].is_angle
            if is_angle and isinstance(value, (int, float)) and math.pi < value < math.inf:
                raise InputError(f'{method} {knob}={value:g} is above π; margins are radians: write "{value:g}pi/64"')
    return parsed


def parse_angle(text: str) -> float:
    """Radians of "4pi/64", "π/16", "0.5pi" or "0.2".

    >>> parse_angle("4pi/64") == 4 * math.pi / 64, parse_angle("π/2"), parse_angle("0.2")
    (True, 1.5707963267948966, 0.2)
    """
    factor, pi, divisor = re.fullmatch(r"(.*?)(pi|π)?(?:/([\d.]+))?", text.strip()).groups()  # type: ignore[union-attr]
    try:
        number = float(factor) if factor or not pi else 1.0
        return number * (math.pi if pi else 1.0) / float(divisor or 1)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{text!r} is not a number; give 8, 0.2, or an angle such as 4pi/64") from None


def _training(path: str | Path, values: Any) -> Training:
    fields = dict(_table(path, "training", values))
    weights, from_scratch = fields.pop("weights", None), fields.pop("from_scratch", False)
    base = find_schedule(fields.pop("schedule", FAST))
    changed = {**base.to_json(), **fields}
    known = ["schedule", "weights", "from_scratch", *(field.name for field in dataclasses.fields(Training))]
    for name in fields.keys() - set(known):
        raise InputError(f"{path}: training has no field {name!r}; {closest(name, known)}")
    _table(path, "training.model_options", changed["model_options"])
    if is_backbone(changed["model"]):
        size = changed["model_options"].pop("size", None)
        options = find(changed["model"], weights=weights, from_scratch=from_scratch, size=size)
        changed["model_options"] = {**options, **changed["model_options"]}
    elif weights is not None:
        changed["model_options"] |= read_weights(weights)
    return Training.from_json(changed)


def _renamed(path: str | Path, table: str, values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A table's fields, renamed to the study's."""
    fields = _table(path, table, values.get(table, {}))
    for name in fields:
        if name not in names:
            raise InputError(f"{path}: [{table}] has no {name!r}; {closest(name, names)}")
    return {names[name]: value for name, value in fields.items()}


def _table(path: str | Path, name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{path}: {name}={value!r} is not a table; write its values below a line [{name}]")
    return value


def read_json(path: str | Path) -> Study:
    """The study of a JSON file, as `camri study show … --json` prints it."""
    try:
        return Study.from_json(json.loads(_text(Path(path))))
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"({type(error).__name__}: {error}); `camri study show … --json` prints one"
        raise InputError(f"{path} does not hold a study's JSON {why}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise InputError(f"{path} needs Python 3.11 to be read, or `pip install tomli`") from None
    try:
        return toml.loads(_text(path))
    except toml.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from None


def _text(path: Path) -> str:
    refuse_special(path, "give a TOML or JSON file")
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; give a recipe, or the path of a TOML or JSON file") from None
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a name that no file can have
        raise InputError(f"{path} cannot be read ({error})") from None


def override(study: Study, chosen: str | None = None, grid: Sequence[str] = ()) -> Study:
    """The study with other methods ("ce,camri") and other values of some knobs ("m=4pi/64,0.4", "wce.w=4").

    A method that the study does not have gets its whole grid.
    """
    grids = {own.method: own for own in study.methods}
    if chosen is not None:
        names = [name.strip() for name in chosen.split(",") if name.strip()]
        grids = {name: grids.get(name) or Grid.of(name) for name in names}
    replaced = parse_grid(grid)
    known = {knob for name in grids for knob in methods.method(name).knobs}
    for method, knob in replaced:
        if method is not None and method not in grids:
            hint = closest(method, grids)
            raise InputError(f"grid={method}.{knob}: {method!r} is not in the study; {hint}", argument="grid")
        if knob not in (known if method is None else methods.method(method).knobs):
            choices = closest(knob, sorted(known)) if known else "none of its methods has any"
            raise InputError(f"grid={knob}: no method of the study has that knob; {choices}", argument="grid")
    return study.with_(methods=[_override(own, replaced) for own in grids.values()])


def _override(grid: Grid, replaced: Mapping[tuple[str | None, str], list[float]]) -> Grid:
    knobs = methods.method(grid.method).knobs
    own = {knob: values for (name, knob), values in replaced.items() if knob in knobs and name in (None, grid.method)}
    if not own:
        return grid
    if grid.points:
        message = f"grid={', '.join(own)}: {grid.method} has points of its own in each column; leave it out"
        raise InputError(message, argument="grid")
    return Grid.of(grid.method, {**dict(grid.axes), **in_radians(grid.method, own)})


def parse_grid(words: Sequence[str]) -> dict[tuple[str | None, str], list[float]]:
    """Values of knobs by (method, knob); the method is None if the knob is for all methods.

    >>> parse_grid(["m=0.2,0.4", "wce.w=4"])
    {(None, 'm'): [0.2, 0.4], ('wce', 'w'): [4.0]}
    """
    grid: dict[tuple[str | None, str], list[float]] = {}
    for word in words:
        place, _, text = word.partition("=")
        method, _, knob = place.rpartition(".")
        if (method or None, knob) in grid:
            raise InputError(f"grid={place} is given twice; give its values at once, like {place}=4,8", argument="grid")
        try:
            grid[method or None, knob] = [parse_angle(value) for value in text.split(",")]
        except InputError:
            message = f"grid={word!r} is not knob=value,value; for example m=4pi/64,8pi/64 or wce.w=4"
            raise InputError(message, argument="grid") from None
    return grid


def parse_columns(columns: Any, strengths: Mapping[str, Any]) -> list[Column]:
    """The columns of a study: each a class, or classes that are important jointly: "cat+dog" or ["cat", "dog"].

    `strengths` apply to joint columns; a class alone in its column has strength 1.

    >>> parse_columns(["cat", "cat+dog"], {"dog": 0.5})[1]
    Column(classes=('cat', 'dog'), strengths=(1.0, 0.5))
    """
    parsed, joint = [], set()
    for column in columns if isinstance(columns, list) else [columns]:
        if isinstance(column, Mapping):
            new = f"{'+'.join(map(str, column))!r}, and strengths = {{ dog = 0.5 }}"
            raise InputError(f"columns={dict(column)}: write a joint column as {new}", argument="important")
        names = [name.strip() for name in column.split("+")] if isinstance(column, str) else column
        names = names if isinstance(names, list) else [names]
        joint |= set(map(str, names)) if len(names) > 1 else set()
        own = [strengths.get(str(name), 1.0) if len(names) > 1 else 1.0 for name in names]
        parsed.append(Column(tuple(names), tuple(float(s) if type(s) in (int, float) else s for s in own)))
    for name in strengths:
        if name not in joint:
            message = f"strengths={name!r} is not a class of a joint column; write one as 'cat+dog'"
            raise InputError(message, argument="strengths")
    return parsed


def parse_seeds(text: str) -> list[int]:
    """The seeds of "0-4" or "0,3,7".

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    try:
        for word in text.split(","):
            first, _, last = word.partition("-")
            if not 0 <= int(last or first) - int(first) < MOST_SEEDS:
                raise ValueError("a range that ends before it begins, or is too long")
            seeds += range(int(first), int(last or first) + 1)
    except ValueError:
        raise InputError(f"seeds={text!r} is not a list of seeds; for example 0-4 or 0,3,7", argument="seeds") from None
    return seeds


def parse_duration(text: str, argument: str = "max_wall") -> float:
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
        raise InputError(f"{argument}={text!r} is not a duration; for example 90s, 25m or 1.5h", argument)
    return seconds
