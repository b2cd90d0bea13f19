"""A study narrowed by what people type: --methods ce,camri --grid m=4,8 --important cat+dog:0.5."""

from collections.abc import Mapping, Sequence
from typing import Any

from camri import methods
from camri.errors import InputError, closest
from camri.study.files import in_radians
from camri.study.grid import Grid
from camri.study.spec import Study


def narrow(study: Study, chosen: str | None = None, grid: Sequence[str] = ()) -> Study:
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
    return study.with_(methods=[_narrow(one, narrowed) for one in grids.values()])


def _narrow(grid: Grid, narrowed: Mapping[tuple[str | None, str], list[float]]) -> Grid:
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
