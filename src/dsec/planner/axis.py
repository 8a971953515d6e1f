"""Counts that may be one number, a list or a range; the axes along which combinations are made."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dsec.planner.document import Table

_RANGE = re.compile(r"\s*(\d+)\s*\.\.\s*(\d+)\s*(?:step\s+(\d+)\s*)?")
LARGEST = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The whole numbers that a count may have.

    Attributes:
        name: as it stands in the file, such as ``service.fast.replicas``.
        values: rising; a range is never unrolled.
        place: ``file:line``.
    """

    name: str
    values: range | tuple[int, ...]
    place: str

    @property
    def is_open(self) -> bool:
        """Whether there is something to choose."""
        return len(self.values) > 1


def read_axis(table: Table, key: str, default: int | None = None) -> Axis:
    """Return what a key says: ``10``, ``[10, 12]``, ``"1..40"`` or ``"8..64 step 8"``.

    Raises:
        InvalidRequestError: it is something else, is empty, or holds a number below 1.
    """
    raw = table.raw(key) if default is not None else table.required(key, 'a whole number, or a range such as "1..40"')
    values = _values(table, key, default if raw is None else raw)
    if not values or values[0] < 1 or values[-1] > LARGEST:
        raise table.error(key, f"{raw!r} holds no number from 1 to {LARGEST}", resolution='write 10 or "1..40"')
    return Axis(name=table.label(key), values=values, place=table.place(key))


def _values(table: Table, key: str, raw: object) -> range | tuple[int, ...]:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return (raw,)
    if isinstance(raw, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in raw):
        return tuple(sorted(set(raw)))
    match = _RANGE.fullmatch(raw) if isinstance(raw, str) else None
    if match is None:
        raise table.error(key, f"{raw!r} is not a count", resolution='write 10, [10, 12], "1..40" or "8..64 step 8"')
    first, last, step = int(match.group(1)), int(match.group(2)), int(match.group(3) or 1)
    if step < 1:
        raise table.error(key, "the step is zero", resolution='write "8..64 step 8"')
    return range(first, last + 1, step)
