"""From a TOML file to a `GatewayConfig`, with file and line in every complaint.

A field's name ends in its unit (`stall_timeout_s`); the file's key leaves it out and the value carries it
(``stall_timeout = "60s"``). Keys that nothing knows are refused, so that a misspelt limit is never no limit.
"""

from __future__ import annotations

import enum
import re
import types
import typing
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.base.toml_source import KeyPath, TomlSource
from dsec.base.units import parse_duration, parse_size
from dsec.gateway.config import GatewayConfig
from dsec.gateway.config_rules import check_config

_AT = re.compile(r"(?s)(.*) - at `\$?(.*)`")
_STEP = re.compile(r"\[(\d+|\.\.\.)\]|\.?([A-Za-z0-9_-]+)")
_NUMBER = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*(\S.*?)?\s*")


def read_config(file: Path) -> GatewayConfig:
    """Read a configuration file.

    Raises:
        InvalidRequestError: it cannot be read, or something in it is wrong; the brief names file and line.
    """
    try:
        text = file.read_text(encoding="utf8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"{file} cannot be read: {error}", resolution="give the path of a gateway's configuration"
        ) from error
    return parse_config(str(file), text)


def parse_config(name: str, text: str) -> GatewayConfig:
    """Return the configuration that a text describes; `name` is what errors call it.

    Raises:
        InvalidRequestError: something in it is wrong; the brief names the line.
    """
    source = TomlSource.parse(name, text)
    plain = _table(source, GatewayConfig, source.values, ())
    try:
        config = msgspec.convert(plain, GatewayConfig)
    except msgspec.ValidationError as error:
        message, path = _split(str(error))
        raise source.error(path, f"is wrong: {message}", resolution="see docs/gateway.md") from error
    check_config(source, config)
    return config


def _split(text: str) -> tuple[str, KeyPath]:
    match = _AT.fullmatch(text)
    if match is None:
        return text, ()
    steps = [number or _file_key(name) for number, name in _STEP.findall(match.group(2))]
    return match.group(1), tuple(int(step) if step.isdigit() else step for step in steps if step != "...")


# -- units ---------------------------------------------------------------------------------------------------------


def _in(unit: str) -> Callable[[str], float]:
    """Return a reader of texts such as ``2 USD/Mtoken``."""

    def read(text: str) -> float:
        match = _NUMBER.fullmatch(text)
        if match is None or match.group(2) != unit:
            raise InvalidRequestError(
                f"{text!r} is not in {unit}", resolution=f'write a number and the unit: "2 {unit}"'
            )
        return float(match.group(1).replace(",", "").replace("_", ""))

    return read


_UNITS: tuple[tuple[str, Callable[[str], float], str], ...] = (
    ("_usd_per_mtoken", _in("USD/Mtoken"), '"2 USD/Mtoken"'),
    ("_usd_per_h", _in("USD/h"), '"6.79 USD/h"'),
    ("_tokens_per_s", _in("token/s"), '"8000 token/s"'),
    ("_bytes", parse_size, '"32 MiB"'),
    ("_s", parse_duration, '"90s", "250ms" or "10m"'),
)


def _unit(field: str) -> tuple[str, Callable[[str], float], str] | None:
    """Return end, reader and example of a field whose value carries a unit."""
    if field == "usd":
        return "", _in("USD"), '"50 USD"'
    return next((unit for unit in _UNITS if field.endswith(unit[0])), None)


def _file_key(field: str) -> str:
    unit = _unit(field)
    return field if unit is None else field.removesuffix(unit[0]) or field


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, tuple[str, Any]]:
    """Return field name and type by the key in a file."""
    hints = typing.get_type_hints(kind)
    return {_file_key(name): (name, hints[name]) for name in kind.__struct_fields__}


# -- values --------------------------------------------------------------------------------------------------------


def _table(source: TomlSource, kind: type[msgspec.Struct], values: object, path: KeyPath) -> dict[str, object]:
    if not isinstance(values, Mapping):
        raise source.error(path, f"is {values!r}", resolution="write a table here")
    fields = _fields(kind)
    plain: dict[str, object] = {}
    for key, value in values.items():
        if key not in fields:
            raise source.error((*path, key), "is not known", resolution=_suggestion(key, fields))
        name, hint = fields[key]
        plain[name] = _value(source, name, _bare(hint), value, (*path, key))
    return plain


def _suggestion(key: str, fields: Mapping[str, object]) -> str:
    close = get_close_matches(key, fields, n=1)
    known = ", ".join(sorted(fields))
    return f"did you mean `{close[0]}`? Known here: {known}" if close else f"known here: {known}"


def _bare(hint: Any) -> Any:
    """Return a type without ``| None``."""
    if get_origin(hint) in (Union, types.UnionType):
        choices = [choice for choice in get_args(hint) if choice is not type(None)]
        return choices[0] if len(choices) == 1 else hint
    return hint


def _value(source: TomlSource, name: str, hint: Any, value: object, path: KeyPath) -> object:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _table(source, hint, value, path)
    if get_origin(hint) is tuple and isinstance(value, list):
        inner = _bare(get_args(hint)[0])
        return [_value(source, name, inner, item, (*path, at)) for at, item in enumerate(value)]
    if get_origin(hint) is dict and isinstance(value, Mapping):
        inner = _bare(get_args(hint)[1])
        # Each is made here, since errors of `msgspec` do not say which of a table's members they are about.
        return {key: _made(source, inner, item, (*path, key)) for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _choice(source, hint, value, path)
    return _quantity(source, name, hint, value, path)


def _made(source: TomlSource, kind: Any, value: object, path: KeyPath) -> object:
    try:
        return msgspec.convert(_value(source, "", kind, value, path), kind)
    except msgspec.ValidationError as error:
        message, rest = _split(str(error))
        raise source.error((*path, *rest), f"is wrong: {message}", resolution="see docs/gateway.md") from error


def _choice(source: TomlSource, kind: type[enum.Enum], value: object, path: KeyPath) -> object:
    known = [one.value for one in kind]
    if value not in known:
        raise source.error(path, f"is {value!r}", resolution=f"write one of: {', '.join(map(str, known))}")
    return value


def _quantity(source: TomlSource, name: str, hint: Any, value: object, path: KeyPath) -> object:
    unit = _unit(name) if hint in (int, float) else None
    if unit is None:
        return value
    if not isinstance(value, str):
        raise source.error(path, f"is {value!r}, which has no unit", resolution=f"write it as {unit[2]}")
    try:
        number = unit[1](value)
    except InvalidRequestError as error:
        raise source.error(path, f"is wrong: {error.brief}", resolution=f"write it as {unit[2]}") from error
    return round(number) if hint is int else number
