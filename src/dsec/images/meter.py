"""Say how far transfers came, in lines for people: often enough to see that something happens, and no more."""

from __future__ import annotations

from dsec.base.units import format_size
from dsec.images.command import Progress

_STEPS = 10


class Meter:
    """Counts bytes of several transfers, and says each tenth of them.

    Args:
        what: is done to them: ``downloading``.
        total_bytes: of all.
        say: takes lines.
    """

    def __init__(self, what: str, total_bytes: int, say: Progress) -> None:
        self._what = what
        self._total_bytes = max(1, total_bytes)
        self._say = say
        self._step = 0
        self.bytes = 0

    def add(self, count: int) -> None:
        """Count bytes; fewer than none take some back."""
        self.bytes += count
        step = self.bytes * _STEPS // self._total_bytes
        if step > self._step:
            self._step = step
            self._say(f"{self._what}: {format_size(self.bytes)} of {format_size(self._total_bytes)}")
