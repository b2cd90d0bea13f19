"""Frozen records to and from plain JSON: dataclasses of numbers, texts, tuples, mappings and other records."""

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from camri.errors import InputError

T = TypeVar("T")
# Types that have a form of their own: how to write and how to read them.
_OWN: dict[Any, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {}


def with_form(kind: Any, write: Callable[[Any], Any], read: Callable[[Any], Any]) -> None:
    """Register how records hold a type that is no record, such as a rule or a goal."""
    _OWN[kind] = write, read


def to_json(value: Any) -> Any:
    """A record as plain JSON; fields with metadata {"json": False} are left out, nan is null, and ±inf a text.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Point:
    ...     x: float
    ...     names: tuple[str, ...] = ()
    >>> to_json(Point(1.0, ("a",)))
    {'x': 1.0, 'names': ['a']}
    """
    for kind, (write, _) in _OWN.items():
        if isinstance(value, kind):
            return write(value)
    if is_dataclass(value):
        kept = [one.name for one in fields(value) if one.metadata.get("json", True)]
        return {name: to_json(getattr(value, name)) for name in kept}
    if isinstance(value, Mapping):
        return {str(key): to_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [to_json(one) for one in value]
    if isinstance(value, np.generic):
        return to_json(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def from_json(kind: type[T], stored: Any, where: str = "") -> T:
    """Read the record of this type that `to_json` wrote; a wrong shape is refused by name.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Point:
    ...     x: float
    ...     names: tuple[str, ...] = ()
    >>> from_json(Point, {"x": 1, "names": ["a"]})
    Point(x=1.0, names=('a',))
    >>> from_json(Point, {"x": "much"})
    Traceback (most recent call last):
    camri.errors.InputError: x is 'much', not a number
    """
    return _read(kind, stored, where)


def _read(kind: Any, stored: Any, where: str) -> Any:
    if kind in _OWN:
        return _own(kind, stored, where)
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _read_union(parts, stored, where)
    if origin is Literal:
        return _checked(stored in parts, stored, stored, where, f"one of {', '.join(map(repr, parts))}")
    if origin is tuple:
        return _read_tuple(parts, stored, where)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        _checked(isinstance(stored, dict), stored, stored, where, "a mapping")
        return {_read_key(parts[0], key, where): _read(parts[1], one, f"{where}.{key}") for key, one in stored.items()}
    if is_dataclass(kind):
        return _read_record(kind, stored, where)
    if kind is float:
        return math.nan if stored is None else _number(stored, where)
    if kind is int:
        return _checked(
            isinstance(stored, int) and not isinstance(stored, bool), stored, stored, where, "a whole number"
        )
    if kind in (str, bool):
        return _checked(isinstance(stored, kind), stored, stored, where, "a text" if kind is str else "true or false")
    return stored


def _read_key(kind: Any, key: Any, where: str) -> Any:
    """A key of a mapping, which JSON has as text."""
    is_index = kind is int and isinstance(key, str) and key.isdecimal()
    return _read(kind, int(key) if is_index else key, where)


def _number(stored: Any, where: str) -> float:
    is_number = isinstance(stored, (int, float)) and not isinstance(stored, bool)
    try:
        value = float(stored) if is_number or stored in ("inf", "-inf") else None
    except OverflowError:
        value = None
    return _checked(value is not None, stored, value, where, "a number")


def _own(kind: Any, stored: Any, where: str) -> Any:
    try:
        return _OWN[kind][1](stored)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{where or 'the record'} cannot be read: {error}") from None


def _read_union(parts: tuple[Any, ...], stored: Any, where: str) -> Any:
    if stored is None and type(None) in parts:
        return None
    others = [part for part in parts if part is not type(None)]
    for part in others[:-1]:
        try:
            return _read(part, stored, where)
        except InputError:
            continue
    return _read(others[-1], stored, where)


def _read_tuple(parts: tuple[Any, ...], stored: Any, where: str) -> tuple[Any, ...]:
    _checked(isinstance(stored, list), stored, stored, where, "a list")
    if len(parts) == 2 and parts[1] is Ellipsis:
        return tuple(_read(parts[0], one, f"{where}[{place}]") for place, one in enumerate(stored))
    _checked(len(stored) == len(parts), stored, stored, where, f"a list of {len(parts)}")
    return tuple(_read(part, one, where) for part, one in zip(parts, stored, strict=True))


def _read_record(kind: Any, stored: Any, where: str) -> Any:
    _checked(isinstance(stored, dict), stored, stored, where, "a record")
    hints, known = get_type_hints(kind), {one.name for one in fields(kind) if one.metadata.get("json", True)}
    if strange := [name for name in stored if name not in known]:
        raise InputError(
            f"{where or 'the record'} has {strange[0]!r}, which is not known; it may be of a newer version"
        )
    values = {name: _read(hints[name], one, f"{where}.{name}".lstrip(".")) for name, one in stored.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise InputError(f"{where or 'the record'} cannot be read: {error}") from None


def _checked(is_right: bool, stored: Any, value: Any, where: str, what: str) -> Any:
    if not is_right:
        raise InputError(f"{where or 'the record'} is {stored!r:.60}, not {what}")
    return value
