"""Clocks. Two readings are needed and never mixed.

*Wall* time says when something happened and is what lifetimes are stored in; it can jump when somebody sets
the host's clock. *Boot* time (CLOCK_BOOTTIME) only moves forward, survives our own restarts, and stops at a
reboot: expiry is decided on it, so that a wall clock set an hour ahead expires nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Tell the time. Implementations are the host's clock and a hand-moved one for tests and simulation."""

    def wall_s(self) -> float:
        """Seconds since the epoch; may jump either way."""

    def boot_s(self) -> float:
        """Seconds since boot; never goes back, the same for every process of the host."""


class SystemClock:
    """The host's clocks."""

    def wall_s(self) -> float:
        return time.time()

    def boot_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class ManualClock:
    """A clock that moves only when told to."""

    wall: float = 1_700_000_000.0
    boot: float = 1_000.0

    def wall_s(self) -> float:
        return self.wall

    def boot_s(self) -> float:
        return self.boot

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on both clocks."""
        self.wall += seconds
        self.boot += seconds
