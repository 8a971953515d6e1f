"""What a formula is called with: TOML values and references, checked against the types of its parameters."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dsec.base.errors import CallerError, InvalidRequestError
from dsec.planner.dimension import Unit
from dsec.planner.document import Table
from dsec.planner.figure import Figure
from dsec.planner.figure import given as given_figure
from dsec.planner.formula import Parameter, fields_of
from dsec.planner.quantity import Quantity
from dsec.planner.result import Record, unwrap


class Resolver(Protocol):
    """Where references lead."""

    def resolve(self, reference: str) -> Any:
        """Return the part of a result or the given value that a reference names."""

    def evaluate(self, text: str) -> tuple[Quantity, Mapping[str, Figure]]:
        """Compute an expression; return its value and the figures that it used."""


@dataclass(slots=True)
class Binder:
    """Turn what a table says into arguments, and remember which figures went in.

    Attributes:
        resolver: where references lead.
        source: of values that are written in place.
        used: the figures so far, by the dotted name of the input.
    """

    resolver: Resolver
    source: str
    used: dict[str, Figure] = field(default_factory=dict)

    def arguments(self, parameters: Mapping[str, Parameter], table: Table | None, *, label: str = "") -> dict[str, Any]:
        """Return keyword arguments for a function or a dataclass.

        Raises:
            InvalidRequestError: one is missing, unknown, or of another type or dimension.
        """
        bound: dict[str, Any] = {}
        for key, parameter in parameters.items():
            if table is None or key not in table:
                if parameter.required:
                    raise self._missing(table, key, parameter)
                continue
            bound[parameter.name] = self.value(table, key, table.raw(key), parameter.hint, parameter.unit, label + key)
        if table is not None:
            table.finish()
        return bound

    def _missing(self, table: Table | None, key: str, parameter: Parameter) -> InvalidRequestError:
        brief = f"input {key!r} is missing, expected {parameter.unit.dimension}"
        return table.error(None, brief) if table is not None else InvalidRequestError(brief)

    def value(self, table: Table, key: str | int, raw: Any, hint: Any, unit: Unit, label: str) -> Any:
        """Return one value of the type `hint`, its numbers in `unit`."""
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            choices = [choice for choice in typing.get_args(hint) if choice is not type(None)]
            hint = choices[0]
        if isinstance(raw, str) and raw.startswith("$") and not _is_text(hint):
            return self._reference(table, key, raw[1:], hint, unit, label)
        if hint in (float, int):
            return self._number(table, key, raw, hint, unit, label)
        if hint is bool or _is_text(hint):
            return _word(table, key, raw, hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self._structure(table, key, raw, hint, label)
        return self._collection(table, key, raw, hint, unit, label)

    def _number(self, table: Table, key: str | int, raw: Any, hint: type, unit: Unit, label: str) -> float | int:
        if isinstance(raw, str) and raw.startswith("="):
            quantity, inputs = self.resolver.evaluate(raw[1:].strip())
            formula, source = raw[1:].strip(), ""
        else:
            quantity, inputs = table.read(key, raw, unit.dimension), {}
            formula, source = "given", self.source
        if quantity.dimension != unit.dimension:
            raise table.wrong_dimension(key, str(raw), quantity.dimension, unit.dimension)
        figure = given_figure(label, quantity.value, quantity.dimension, unit=quantity.unit, source=source)
        self.used[label] = dataclasses.replace(
            figure, formula=formula, inputs=inputs, note=f"written at {table.place(key)}"
        )
        return _in_unit(table, key, quantity.value, hint, unit)

    def _reference(self, table: Table, key: str | int, reference: str, hint: Any, unit: Unit, label: str) -> Any:
        try:
            part = self.resolver.resolve(reference)
        except CallerError as error:
            raise table.error(key, error.brief, detail=error.detail, resolution=error.resolution) from error
        if isinstance(part, Figure):
            if hint not in (float, int):
                raise table.error(key, f"${reference} is one number, and {_type_name(hint)} is needed")
            if part.dimension != unit.dimension:
                raise table.wrong_dimension(key, f"${reference}", part.dimension, unit.dimension)
            self.used[label] = part
            return _in_unit(table, key, part.value, hint, unit)
        if isinstance(part, tuple):
            return self._listed(table, key, part, hint, unit, label)
        value = part.value if isinstance(part, Record) else part
        if isinstance(hint, type) and not isinstance(value, hint):
            raise table.error(key, f"${reference} is {type(value).__name__}, and {_type_name(hint)} is needed")
        self.used.update((f"{label}.{name}", inner) for name, inner in _shallow(part))
        return value

    def _listed(self, table: Table, key: str | int, part: tuple[Any, ...], hint: Any, unit: Unit, label: str) -> Any:
        for index, item in enumerate(part):
            if isinstance(item, Figure):
                if item.dimension != unit.dimension:
                    raise table.wrong_dimension(key, f"element {index}", item.dimension, unit.dimension)
                self.used[f"{label}.{index}"] = item
        if not _is_sequence(hint):
            raise table.error(key, f"a list was referred to, and {_type_name(hint)} is needed")
        return unwrap(part, unit)

    def _structure(self, table: Table, key: str | int, raw: Any, kind: type, label: str) -> Any:
        if not isinstance(raw, dict):
            raise table.error(
                key, f"{raw!r} is not a table", resolution=f"write {{ {', '.join(fields_of(kind))} = ... }}"
            )
        inner = Table(table.document, (*table.path, key), raw)
        bound = self.arguments(fields_of(kind), inner, label=f"{label}.")
        try:
            return kind(**bound)
        except InvalidRequestError as error:
            raise table.error(key, error.brief, detail=error.detail, resolution=error.resolution) from error

    def _collection(self, table: Table, key: str | int, raw: Any, hint: Any, unit: Unit, label: str) -> Any:
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        outer = Table(table.document, (*table.path, key), {})
        if isinstance(origin, type) and issubclass(origin, Mapping):
            if not isinstance(raw, dict):
                raise table.error(key, f"{raw!r} is not a table of named values")
            return {
                name: self.value(outer, name, item, inner[1], unit, f"{label}.{name}") for name, item in raw.items()
            }
        if not _is_sequence(hint):
            raise table.error(key, f"a value of type {_type_name(hint)} cannot be written here")
        if not isinstance(raw, list):
            raise table.error(key, f"{raw!r} is not a list", resolution="write [ ... ]")
        kinds = inner if origin is tuple and inner and inner[-1] is not Ellipsis else (inner[0],) * len(raw)
        if len(kinds) != len(raw):
            raise table.error(key, f"there are {len(raw)} elements, expected {len(kinds)}")
        return tuple(
            self.value(outer, index, item, kind, unit, f"{label}.{index}")
            for index, (item, kind) in enumerate(zip(raw, kinds, strict=True))
        )


def _in_unit(table: Table, key: str | int, value: float, hint: type, unit: Unit) -> float | int:
    scaled = value / unit.scale
    if hint is float:
        return scaled
    if abs(scaled - round(scaled)) > 1e-9:
        raise table.error(key, f"{scaled:g} is not a whole number")
    return round(scaled)


def _is_text(hint: Any) -> bool:
    return (
        hint is str
        or typing.get_origin(hint) is typing.Literal
        or (isinstance(hint, type) and issubclass(hint, enum.Enum))
    )


def _word(table: Table, key: str | int, raw: Any, hint: Any) -> Any:
    if hint is bool:
        if not isinstance(raw, bool):
            raise table.error(key, f"{raw!r} is not true or false")
        return raw
    if not isinstance(raw, str):
        raise table.error(key, f"{raw!r} is not a text")
    if hint is str:
        return raw
    is_enum = isinstance(hint, type)
    choices = [member.value for member in hint] if is_enum else list(typing.get_args(hint))
    if raw not in choices:
        raise table.error(key, f"{raw!r} is not known here", resolution=f"write one of: {', '.join(map(str, choices))}")
    return hint(raw) if is_enum else raw


def _is_sequence(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Sequence)


def _type_name(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint))


def _shallow(part: Any) -> list[tuple[str, Figure]]:
    if isinstance(part, Record):
        return [(name, inner) for name, inner in part.fields.items() if isinstance(inner, Figure)]
    return []
