"""Quantities as people write them: parsed once, by pint, into floats in base units.

The registry is our own and small, so that `GB` never becomes a giga-barn, a typing error never finds some unit of
astronomy, and starting costs milliseconds. Only what docs/formats/planner.md lists is known.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Any

from dsec.base.errors import InvalidRequestError
from dsec.planner.dimension import BASE_UNITS, PURE, Dimension
from dsec.planner.libraries import missing_library

_PREFIXES = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
    "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4,
}  # fmt: skip
_DEFINITIONS = (
    "second = [time] = s", "minute = 60 * second = min", "hour = 3600 * second = h", "day = 86400 * second",
    "byte = [information] = B", "bit = byte / 8", "dollar = [money] = USD", "core = [cpu] = CPU",
    "accelerator = [gpu] = GPU", "token = [token]", "one = []", "percent = 0.01 * one", "thousand = 1000 * one",
    "task = one", "call = one", "request = one", "round = one", "session = one", "replica = one", "host = one",
    "environment = one",
)  # fmt: skip
_POWERS = ("second", "byte", "dollar", "core", "accelerator", "token")
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_UNIT_TEXT = re.compile(r"(?:1?\s*/\s*)?[A-Za-z]+(?:\^[1-9])?(?:\s*[*/]\s*[A-Za-z]+(?:\^[1-9])?)*")
_LONGEST_UNIT = 100
EXAMPLES = {
    "s": '"5 s"', "B": '"2 GiB"', "USD": '"0.0081 USD"', "CPU": '"48 CPU"', "GPU": '"4 GPU"', "token": '"355 token"',
    "a pure number": '0.95 or "95 %"', "1/s": '"10 /s"', "B/s": '"200 Gbit/s"', "s*B": '"18 GiB*s"',
    "s*CPU": '"3 CPU*s"', "USD/s": '"1 USD/h"', "s/token": '"25.3 ms/token"', "USD/token": '"10 USD/Mtoken"',
    "s*GPU": '"1.125 GPU*s"', "USD/s/GPU": '"6.79 USD/GPU/h"', "USD/s/CPU": '"0.000014 USD/CPU/s"',
    "USD/s/B": '"0.0000045 USD/GiB/s"', "s/B": '"4 s/GiB"',
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its dimension.

    Attributes:
        value: in base units.
        dimension: its dimension.
        unit: the unit in which it was written or shall be shown.
        step: half of the last digit that was written, in base units; what a rounded figure leaves open.
    """

    value: float
    dimension: Dimension = PURE
    unit: str = ""
    step: float = 0.0


@functools.cache
def _registry() -> Any:
    try:
        import pint
    except ModuleNotFoundError as error:
        raise missing_library(error) from error
    registry: Any = pint.UnitRegistry(None)
    for prefix, scale in _PREFIXES.items():
        registry.define(f"{prefix}- = {scale}")
    for definition in _DEFINITIONS:
        registry.define(definition)
    return registry


@functools.lru_cache(maxsize=4096)
def unit_scale(text: str) -> tuple[float, Dimension]:
    """Return base units in one of a unit, and its dimension.

    Raises:
        InvalidRequestError: it is not a unit that we know.
    """
    if not text.strip():
        return 1.0, PURE
    registry = _registry()
    from pint import DefinitionSyntaxError, UndefinedUnitError

    cleaned = text.replace("·", "*").replace("%", "percent").strip()
    if len(cleaned) > _LONGEST_UNIT or not _UNIT_TEXT.fullmatch(cleaned):
        raise InvalidRequestError(
            f"{text[:_LONGEST_UNIT]!r} is not a unit", resolution='write units such as "GiB*s" or "USD/GPU/h"'
        )
    expression = re.sub(r"\^", "**", cleaned)
    try:
        parsed = registry.parse_expression(f"1 {expression}" if expression[0] == "/" else f"1 * {expression}")
    except (UndefinedUnitError, DefinitionSyntaxError) as error:
        raise InvalidRequestError(
            f"{text!r} is not a unit",
            detail=str(error),
            resolution="see docs/formats/planner.md for the units there are",
        ) from error
    root = registry.Quantity(parsed).to_root_units()
    powers = {str(name): float(power) for name, power in root._units.items()}
    return float(root.magnitude), Dimension(tuple(powers.get(name, 0.0) for name in _POWERS))


def parse_quantity(text: str) -> Quantity:
    """Return the quantity that a text says.

    Raises:
        InvalidRequestError: it has no number, or its unit is unknown.
    """
    match = _NUMBER.match(text.strip())
    if match is None:
        raise InvalidRequestError(f"{text!r} is not a quantity", resolution='write a number and a unit, such as "5 s"')
    number, unit = match.group(), text.strip()[match.end() :].strip()
    scale, dimension = unit_scale(unit)
    value = float(number.replace("_", "")) * scale
    if not math.isfinite(value):
        raise InvalidRequestError(f"{text!r} is too large", resolution="write a number below 1e300")
    return Quantity(value, dimension, unit, _half_of_last_digit(number) * scale)


def _half_of_last_digit(number: str) -> float:
    mantissa, _, exponent = number.lower().replace("_", "").partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(0.5 * 10.0 ** (int(exponent or 0) - decimals))


def example(dimension: Dimension) -> str:
    """Return how a quantity of a dimension may be written."""
    return EXAMPLES.get(str(dimension), f"a number and a unit of {dimension}")


def in_unit(value: float, unit: str) -> float:
    """Return a value in base units in a unit."""
    return value / unit_scale(unit)[0]


_SHOWN = {
    "B": ("B", "KiB", "MiB", "GiB", "TiB"), "s*B": ("B*s", "MiB*s", "GiB*s", "TiB*s"), "B/s": ("B/s", "MiB/s", "GiB/s"),
    "s": ("ms", "s"), "s*CPU": ("CPU*s",), "s*GPU": ("GPU*s",), "a pure number": ("",),
}  # fmt: skip


def shown_unit(value: float, dimension: Dimension) -> str:
    """Return a unit in which a value reads well."""
    units = _SHOWN.get(str(dimension))
    if units is None:
        return base_text(dimension)
    fitting = [unit for unit in units if abs(value) >= unit_scale(unit)[0]]
    return fitting[-1] if fitting else units[-1 if value == 0 else 0]


def base_text(dimension: Dimension) -> str:
    """Return the unit text of a dimension in base units."""
    return "" if dimension.is_pure else str(dimension)


def show(value: float, dimension: Dimension = PURE, unit: str | None = None, *, digits: int = 6) -> str:
    """Return a quantity as people read it."""
    unit = shown_unit(value, dimension) if unit is None else unit
    number = in_unit(value, unit)
    text = f"{number:,.{digits}g}" if abs(number) < 1e9 else f"{number:.{digits}g}"
    return f"{text} {unit}".strip()


assert len(_POWERS) == len(BASE_UNITS)
