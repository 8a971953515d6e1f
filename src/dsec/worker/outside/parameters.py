"""What a tool of a system outside takes: declared in the spec, shown to the model, checked before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value

MAXIMUM_TEXT = 64 * 1024
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_TYPES: dict[str, type] = {"string": str, "integer": int, "number": float, "boolean": bool}


class Parameter(Value, frozen=True, omit_defaults=True):
    """One argument of a tool.

    Attributes:
        type: ``string``, ``integer``, ``number`` or ``boolean``.
        description: for the model.
        optional: it may be left out, and is null then.
        values: of a string: those that it may have; empty: any.
        minimum, maximum: of a number.
        maximum_length: of a string, in characters.
        pattern: of a string: a regular expression that it has to match somewhere.
    """

    type: str = "string"
    description: str = ""
    optional: bool = False
    values: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    maximum_length: int = MAXIMUM_TEXT
    pattern: str = ""


Parameters = Mapping[str, Parameter]


def arguments_type(name: str, parameters: Parameters) -> type[Value]:
    """Return the type of a tool's arguments; it makes the schema for the model, and refuses what does not fit.

    Raises:
        InvalidRequestError: the parameters are not what they can be.
    """
    fields: list[Any] = []
    for parameter_name, parameter in parameters.items():
        if _NAME.fullmatch(parameter_name) is None or parameter_name.startswith("dsec_"):
            raise InvalidRequestError(
                f"{parameter_name[:80]!r} cannot be a parameter of the tool {name}",
                resolution="use lower-case letters, digits and '_', not beginning with 'dsec_'",
            )
        kind = _field_type(f"{name}.{parameter_name}", parameter)
        fields.append((parameter_name, kind | None, None) if parameter.optional else (parameter_name, kind))
    return cast("type[Value]", msgspec.defstruct(name, fields, bases=(Value,), frozen=True, kw_only=True))


def _field_type(name: str, parameter: Parameter) -> Any:
    base = _TYPES.get(parameter.type)
    if base is None:
        raise InvalidRequestError(
            f"the parameter {name} is of the type {parameter.type!r}", resolution=f"use one of {', '.join(_TYPES)}"
        )
    if parameter.values:
        if base is not str:
            raise InvalidRequestError(f"the parameter {name} has values and is no string")
        return Annotated[Literal[parameter.values], msgspec.Meta(description=parameter.description)]
    meta: dict[str, Any] = {"description": parameter.description}
    if base is str:
        meta["max_length"] = parameter.maximum_length
        if parameter.pattern:
            meta["pattern"] = _checked_pattern(name, parameter.pattern)
    elif base in (int, float):
        bounds = {"ge": parameter.minimum, "le": parameter.maximum}
        meta |= {bound: base(value) for bound, value in bounds.items() if value is not None}
    return Annotated[base, msgspec.Meta(**meta)]


def _checked_pattern(name: str, pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidRequestError(f"the pattern of {name} is no regular expression", detail=str(error)) from error
    return pattern
