"""From the tables of a scenario file to frozen values: the units of `dsec.sim.quantities`, and distributions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from dsec.base.toml_source import KeyPath, TomlSource
from dsec.model.struct_reading import StructReader
from dsec.model.unit_names import unit_of
from dsec.sim.distributions import Distribution
from dsec.sim.quantities import UNITS

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
    reader = StructReader(
        source=source, see="docs/simulation/scenarios.md", units=UNITS, hooks={Distribution: _distribution}
    )
    return reader.read(kind, values)


def _distribution(reader: StructReader, name: str, value: object, path: KeyPath) -> object:
    """Read ``"10 s"`` (always that) or ``{ kind = "lognormal", median = "17 min", p99 = "3 h" }``."""
    unit = unit_of(name, UNITS)
    if not isinstance(value, Mapping):
        if unit is not None:
            return {"kind": "constant", "mean": reader.quantity(unit, value, path)}
        if not isinstance(value, (int, float)):
            raise reader.source.error(path, f"is {value!r}", resolution="write a number or a distribution")
        return {"kind": "constant", "mean": value}
    plain = reader.table(Distribution, value, path)
    for key in ("mean", "low", "high", "median", "p99"):
        if key in value and unit is not None:
            plain[key] = reader.quantity(unit, value[key], (*path, key))
    if "kind" not in value:
        kinds = "constant, exponential, uniform, lognormal or pareto"
        raise reader.source.error(path, "has no `kind`", resolution=kinds)
    return plain
