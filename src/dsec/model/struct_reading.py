"""From the tables of a file to frozen values, with the line in every complaint.

Reading turns texts with units into numbers (see `dsec.model.unit_names`), refuses keys that nothing knows, so that a
misspelt limit is never no limit, and lets `msgspec` check types and bounds. What a kind of file writes in a way of its
own is read by a hook for the type.
"""

from __future__ import annotations

import enum
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.base.toml_source import KeyPath, TomlSource
from dsec.model.unit_names import UnitName, Units, file_key, unit_of

_AT = re.compile(r"(?s)(.*) - at `\$?(.*)`")
_STEP = re.compile(r"\[(\d+|\.\.\.)\]|\.?([A-Za-z0-9_-]+)")
T = TypeVar("T", bound=msgspec.Struct)
Hook = Callable[["StructReader", str, object, KeyPath], object]
"""Reads the value of a field: takes the reader, the field's name, the value and where it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructReader:
    """Reads the tables of one file.

    Attributes:
        source: the file, for errors.
        see: where its format is written about.
        units: that its fields' names end in.
        hooks: readers of types that the file writes in a way of their own.
    """

    source: TomlSource
    see: str
    units: Units = ()
    hooks: Mapping[type, Hook] = field(default_factory=dict)

    def read(self, kind: type[T], values: object, path: KeyPath = ()) -> T:
        """Return the value that a table describes.

        Args:
            kind: the type to make.
            values: the table, which may differ from the file's by overrides.
            path: where it stands in the file.

        Raises:
            InvalidRequestError: an unknown key, a wrong unit, a wrong type or a value out of bounds; with the line.
        """
        made: T = self._made(kind, self.table(kind, values, path), path)
        return made

    def table(self, kind: type[msgspec.Struct], values: object, path: KeyPath) -> dict[str, object]:
        """Return a table by names of fields, for `msgspec` to check.

        Raises:
            InvalidRequestError: it is no table, or has an unknown key or a wrong unit.
        """
        if not isinstance(values, Mapping):
            raise self.source.error(path, f"is {values!r}", resolution="write a table here")
        fields = _fields(kind, self.units)
        plain: dict[str, object] = {}
        for key, value in values.items():
            if key not in fields:
                raise self.source.error((*path, key), "is not known", resolution=_suggestion(key, fields))
            name, hint = fields[key]
            plain[name] = self._value(name, hint, value, (*path, key))
        return plain

    def quantity(self, unit: UnitName, value: object, path: KeyPath) -> float:
        """Return a number in a unit.

        Raises:
            InvalidRequestError: it has no unit, or one of another kind.
        """
        try:
            return unit.read(value)
        except InvalidRequestError as error:
            raise self.source.error(path, f"is {value!r}", resolution=unit.how) from error

    def choice(self, kind: type[enum.Enum], value: object, path: KeyPath) -> object:
        """Return the value of one of an enumeration's members.

        Raises:
            InvalidRequestError: it is of none; those there are are named.
        """
        known = [one.value for one in kind]
        if value not in known:
            raise self.source.error(path, f"is {value!r}", resolution=f"write one of: {', '.join(map(str, known))}")
        return value

    def _value(self, name: str, hint: Any, value: object, path: KeyPath) -> object:
        hint = _bare(hint)
        if hook := self.hooks.get(hint):
            return hook(self, name, value, path)
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            return self.table(hint, value, path)
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return self.choice(hint, value, path)
        if get_origin(hint) in (tuple, list) and isinstance(value, list):
            inner = get_args(hint)[0]
            return [self._value(name, inner, item, (*path, at)) for at, item in enumerate(value)]
        if get_origin(hint) is dict and isinstance(value, Mapping):
            return {key: self._member(get_args(hint)[1], item, (*path, key)) for key, item in value.items()}
        unit = unit_of(name, self.units) if hint in (int, float) else None
        if unit is None:
            return value
        number = self.quantity(unit, value, path)
        return round(number) if hint is int else number

    def _member(self, hint: Any, value: object, path: KeyPath) -> object:
        """Make a member of a table here, since errors of `msgspec` do not say which member they are about."""
        return self._made(hint, self._value("", hint, value, path), path)

    def _made(self, kind: Any, plain: object, path: KeyPath) -> Any:
        try:
            return msgspec.convert(plain, kind)
        except msgspec.ValidationError as error:
            message, inside = self._split(str(error))
            raise self.source.error((*path, *inside), f"is wrong: {message}", resolution=f"see {self.see}") from error
        except InvalidRequestError as error:  # Of a value that checks itself and does not know where it stands.
            raise InvalidRequestError(
                f"{self.source.place(path)}: {error.brief}", detail=error.detail, resolution=error.resolution
            ) from error

    def _split(self, text: str) -> tuple[str, KeyPath]:
        """Return what `msgspec` complains about, and where in the file."""
        match = _AT.fullmatch(text)
        if match is None:
            return text, ()
        steps: Sequence[str] = [number or file_key(name, self.units) for number, name in _STEP.findall(match.group(2))]
        return match.group(1), tuple(int(step) if step.isdigit() else step for step in steps if step != "...")


@cache
def _fields(kind: type[msgspec.Struct], units: Units) -> dict[str, tuple[str, Any]]:
    """Return field name and type by the key in a file. A key that would be another field's name keeps its unit."""
    hints, names = typing.get_type_hints(kind, include_extras=True), kind.__struct_fields__
    keys = {name: file_key(name, units) for name in names}
    return {name if key in names else key: (name, hints[name]) for name, key in keys.items()}


def _suggestion(key: str, fields: Mapping[str, object]) -> str:
    close = get_close_matches(key, fields, n=1)
    known = ", ".join(sorted(fields))
    return f"did you mean `{close[0]}`? Known here: {known}" if close else f"known here: {known}"


def _bare(hint: Any) -> Any:
    """Return a type without `Annotated` and without `| None`."""
    if get_origin(hint) is Annotated:
        return _bare(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        choices = [choice for choice in get_args(hint) if choice is not type(None)]
        return _bare(choices[0]) if len(choices) == 1 else hint
    return hint
