"""Quantities as scenario files write them: a number and a unit in one text."""

from __future__ import annotations

from collections.abc import Mapping

from dsec.base.units import GIB, KIB, MIB, TIB
from dsec.model.unit_names import UnitName, Units, parse_by

_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"B": 1.0, "KiB": float(KIB), "MiB": float(MIB), "GiB": float(GIB), "TiB": float(TIB),
          "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}  # fmt: skip
_BITS = {"kbit": 125.0, "Mbit": 1.25e5, "Gbit": 1.25e8}


def _unit(end: str, example: str, factors: Mapping[str, float], *, plain: bool = False) -> UnitName:
    """Return a unit; one that a plain number will do for needs none in its value, so that its key says it."""
    names = ", ".join(unit for unit in factors if unit)
    how = f'expected a number and a unit, such as "{example}"; units: {names}'
    return UnitName(end=end, parse=parse_by(factors), how=how, plain=plain, kept=plain)


UNITS: Units = (
    _unit("_bytes_per_s", "25 Gbit/s", {f"{unit}/s": factor for unit, factor in {**_SIZES, **_BITS}.items()}),
    _unit("_per_s", "5000 /s", {f"/{unit}": 1.0 / seconds for unit, seconds in _TIMES.items()}),
    _unit("_bytes", "2 GiB", _SIZES),
    _unit("_share", "85 %", {"%": 0.01, "": 1.0}, plain=True),
    _unit("_s", "10 s", _TIMES),
)
"""The units that a name with this end takes."""
