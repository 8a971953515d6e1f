"""Field names that end in a unit, and the keys and values that files write for them.

A field's name says its unit last (`stall_timeout_s`), so that code needs no comment to be right. A file's key leaves
it out and the value carries it (``stall_timeout = "60s"``), so that no reader has to know which unit was meant. Each
kind of file has its own units; what they share is here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError

_NUMBER = re.compile(r"\s*([0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9][0-9_]*(?:\.[0-9]+)?(?:e[0-9]+)?)\s*(\S*)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitName:
    """The end of a field's name, and how a file writes such a value.

    Attributes:
        end: of the name, such as ``_bytes``.
        parse: turns a text into the unit that the name says.
        how: a remedy for a value that is none, with an example.
        plain: a number without a unit will do, too.
        kept: the file's key keeps the end.

    Errors:
        `parse` raises InvalidRequestError for a text that is no such quantity.
    """

    end: str
    parse: Callable[[str], float]
    how: str
    plain: bool = False
    kept: bool = False

    def read(self, value: object) -> float:
        """Return the quantity that a file's value says, in the unit of the name.

        Raises:
            InvalidRequestError: it has no unit, or one of another kind.
        """
        if self.plain and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if not isinstance(value, str):
            raise InvalidRequestError(f"{value!r} has no unit", resolution=self.how)
        return self.parse(value)


Units = tuple[UnitName, ...]


def unit_of(field: str, units: Units) -> UnitName | None:
    """Return the unit with the longest end that a field's name has; None for a plain number."""
    fitting = [unit for unit in units if field.endswith(unit.end)]
    return max(fitting, key=lambda unit: len(unit.end), default=None)


def file_key(field: str, units: Units) -> str:
    """Return the key that a file has for a field: its name without the unit."""
    unit = unit_of(field, units)
    return field if unit is None or unit.kept else field.removesuffix(unit.end)


def parse_by(factors: Mapping[str, float]) -> Callable[[str], float]:
    """Return a parser of a number and one of these units, such as ``5_000 /s``.

    Args:
        factors: to the unit of the name, by the unit as it is written; an empty one lets a text have none.
    """

    def parse(text: str) -> float:
        match = _NUMBER.fullmatch(text)
        if match is None or match.group(2) not in factors:
            known = ", ".join(unit for unit in factors if unit)
            raise InvalidRequestError(
                f"{text!r} is not a number and a unit", resolution=f"write a number and one of: {known}"
            )
        return float(match.group(1).replace(",", "").replace("_", "")) * factors[match.group(2)]

    return parse
