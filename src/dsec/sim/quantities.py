"""Quantities as scenario files write them: a number and a unit in one text."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dsec.base.units import GIB, KIB, MIB, TIB

_NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:e[0-9]+)?)\s*(\S*)\s*")
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"B": 1.0, "KiB": float(KIB), "MiB": float(MIB), "GiB": float(GIB), "TiB": float(TIB),
          "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}  # fmt: skip
_BITS = {"kbit": 125.0, "Mbit": 1.25e5, "Gbit": 1.25e8}

UNITS: Mapping[str, Mapping[str, float]] = {
    "_bytes_per_s": {f"{unit}/s": factor for unit, factor in {**_SIZES, **_BITS}.items()},
    "_per_s": {f"/{unit}": 1.0 / seconds for unit, seconds in _TIMES.items()},
    "_bytes": _SIZES,
    "_share": {"%": 0.01, "": 1.0},
    "_s": _TIMES,
}
"""The units that a name with this end takes, longest end first, as factors to the base unit."""


def unit_of(name: str) -> str:
    """Return the end of a field's name that says its unit; empty for a plain number."""
    return next((end for end in UNITS if name.endswith(end)), "")


def parse_quantity(value: object, end: str) -> float:
    """Return a quantity in its base unit.

    Raises:
        ValueError: it has no unit, or one of another kind; the text says what was expected.
    """
    units = UNITS[end]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and "" in units:
        return float(value)
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    unit = match.group(2) if match else ""
    if match is None or unit not in units:
        raise ValueError(expected(end))
    return float(match.group(1).replace("_", "")) * units[unit]


def expected(end: str) -> str:
    """Say how a quantity is written."""
    example = {"_s": '"10 s"', "_bytes": '"2 GiB"', "_per_s": '"5000 /s"', "_bytes_per_s": '"25 Gbit/s"'}
    names = ", ".join(unit for unit in UNITS[end] if unit)
    return f"expected a number and a unit, such as {example.get(end, chr(34) + '85 %' + chr(34))}; units: {names}"
