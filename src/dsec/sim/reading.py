"""From the tables of a TOML file to frozen values, with the line in every complaint.

A field's name says its unit (`view_interval_s`), a file's key leaves it out and its value carries it (``view_interval
= "5 s"``). Reading
turns texts with units into numbers, refuses keys that nothing knows, and lets `msgspec` check types and bounds.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from dsec.base.toml_source import Key, KeyPath, TomlSource
from dsec.sim.distributions import Distribution
from dsec.sim.quantities import expected, parse_quantity, unit_of

_AT = re.compile(r"(?s)(.*) - at `\$?(.*)`")
_STEP = re.compile(r"\[(\d+|\.\.\.)\]|\.?([A-Za-z0-9_-]+)")
T = TypeVar("T", bound=msgspec.Struct)


def read_struct(source: TomlSource, kind: type[T], values: Mapping[str, object]) -> T:
    """Return the value that a table describes.

    Args:
        source: where it stands, for errors.
        kind: the type to make.
        values: the table, which may differ from the source's by overrides.

    Raises:
        InvalidRequestError: an unknown key, a wrong unit, a wrong type or a value out of bounds; with the line.
    """
    plain = _table(source, kind, values, ())
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        message, path = _split(str(error))
        raise source.error(
            tuple(_file_key(key) for key in path), f"is wrong: {message}", resolution="see docs/simulation/scenarios.md"
        ) from error


def file_key(field: str) -> str:
    """Return the key that a file has for a field: its name without the unit; a share keeps its name."""
    end = unit_of(field)
    return field if end == "_share" else field.removesuffix(end)


def _file_key(key: Key) -> Key:
    return file_key(key) if isinstance(key, str) else key


def _split(text: str) -> tuple[str, KeyPath]:
    match = _AT.fullmatch(text)
    if match is None:
        return text, ()
    steps = [number or name for number, name in _STEP.findall(match.group(2))]
    return match.group(1), tuple(int(step) if step.isdigit() else step for step in steps if step != "...")


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, tuple[str, Any]]:
    """Return field name and type by the key in a file. A key that would be another field's name keeps its unit."""
    hints, names = typing.get_type_hints(kind), kind.__struct_fields__
    return {name if file_key(name) in names else file_key(name): (name, hints[name]) for name in names}


def _table(source: TomlSource, kind: type[msgspec.Struct], values: object, path: KeyPath) -> dict[str, object]:
    if not isinstance(values, Mapping):
        raise source.error(path, f"is {values!r}", resolution="write a table here")
    fields = _fields(kind)
    plain: dict[str, object] = {}
    for key, value in values.items():
        if key not in fields:
            raise source.error((*path, key), "is not known", resolution=_suggestion(key, fields))
        name, hint = fields[key]
        plain[name] = _value(source, name, hint, value, (*path, key))
    return plain


def _suggestion(key: str, fields: Mapping[str, object]) -> str:
    close = get_close_matches(key, fields, n=1)
    known = ", ".join(sorted(fields))
    return f"did you mean `{close[0]}`? Known here: {known}" if close else f"known here: {known}"


def _value(source: TomlSource, name: str, hint: Any, value: object, path: KeyPath) -> object:
    hint = _bare(hint)
    if hint is Distribution:
        return _distribution(source, name, value, path)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _table(source, hint, value, path)
    if get_origin(hint) in (tuple, list) and isinstance(value, list):
        inner = get_args(hint)[0]
        return [_value(source, name, inner, item, (*path, at)) for at, item in enumerate(value)]
    return _quantity(source, name, hint, value, path)


def _bare(hint: Any) -> Any:
    """Return a type without `Annotated` and without `| None`."""
    if get_origin(hint) is Annotated:
        return _bare(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        choices = [choice for choice in get_args(hint) if choice is not type(None)]
        return _bare(choices[0]) if len(choices) == 1 else hint
    return hint


def _quantity(source: TomlSource, name: str, hint: Any, value: object, path: KeyPath) -> object:
    end = unit_of(name)
    if not end or hint not in (int, float):
        return value
    try:
        number = parse_quantity(value, end)
    except ValueError as error:
        raise source.error(path, f"is {value!r}", resolution=str(error)) from error
    return round(number) if hint is int else number


def _distribution(source: TomlSource, name: str, value: object, path: KeyPath) -> object:
    """Read ``"10 s"`` (always that) or ``{ kind = "lognormal", median = "17 min", p99 = "3 h" }``."""
    if not isinstance(value, Mapping):
        if not unit_of(name) and not isinstance(value, (int, float)):
            raise source.error(path, f"is {value!r}", resolution="write a number or a distribution")
        return {"kind": "constant", "mean": _quantity(source, name, float, value, path)}
    plain = _table(source, Distribution, value, path)
    for key in ("mean", "low", "high", "median", "p99"):
        if key in value and unit_of(name):
            plain[key] = _quantity(source, name, float, value[key], (*path, key))
    if "kind" not in value:
        raise source.error(path, "has no `kind`", resolution="constant, exponential, uniform, lognormal or pareto")
    return plain


__all__ = ["expected", "file_key", "read_struct"]
