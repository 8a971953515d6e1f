"""Limits per minute, as counters without a clock.

A service that takes R requests a minute may count by the calendar's minute, by a bucket that refills, or by any 60 s.
Who never exceeds R in any 60 s keeps all three. So a window sums what was used in the last 60 s, in cells of one
second: a cell counts until all of it is older than 60 s, which makes the sum too high by at most one cell and never
too low. A window needs 61 cells, however many calls there are.

A call that waits for a slot is sent at a time that nobody knows yet. It is *reserved*: it counts from its admission on
and, when it is sent, from then for 60 s. So what was admitted may be sent whenever a slot falls free, all at once even,
and the limit holds.

A time before one that was seen counts as that one: a clock set back opens nothing early.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW_S = 60


class MinuteWindow:
    """What was used in the last minute of one limit.

    Args:
        limit: the most in any 60 s; None: counted, never refused.
    """

    __slots__ = ("_cells", "_now_cell", "_used", "limit", "reserved")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.reserved = 0
        self._cells: deque[list[int]] = deque()
        self._used = 0
        self._now_cell = 0

    def used(self, now_s: float) -> int:
        """Return what counts now, reserved or sent."""
        self._advance(now_s)
        return self._used + self.reserved

    def admits(self, amount: int, now_s: float) -> bool:
        """Say whether so much more keeps the limit."""
        return self.limit is None or self.used(now_s) + amount <= self.limit

    def opens_at_s(self, amount: int, now_s: float) -> float | None:
        """Return when so much more keeps the limit if nothing else comes.

        What is reserved counts as if it were sent now. None: never, it is more than the limit.
        """
        if self.limit is None or self.used(now_s) + amount <= self.limit:
            return now_s
        if amount > self.limit:
            return None
        excess = self._used + self.reserved + amount - self.limit
        for cell, used in self._cells:
            excess -= used
            if excess <= 0:
                return float(cell + WINDOW_S + 1)
        return float(self._now_cell + WINDOW_S + 1)

    def reserve(self, amount: int) -> None:
        """Count what will be sent."""
        self.reserved += amount

    def cancel(self, amount: int) -> None:
        """Do not count what was reserved and will not be sent."""
        self.reserved -= amount

    def send(self, amount: int, now_s: float) -> int:
        """Count what was reserved as sent now; return its cell, for `correct`."""
        self._advance(now_s)
        self.reserved -= amount
        if self._cells and self._cells[-1][0] == self._now_cell:
            self._cells[-1][1] += amount
        else:
            self._cells.append([self._now_cell, amount])
        self._used += amount
        return self._now_cell

    def correct(self, cell: int, change: int) -> None:
        """Count more or less in a cell that still counts; one that is gone stays gone."""
        for found in reversed(self._cells):
            if found[0] == cell:
                change = max(change, -found[1])
                found[1] += change
                self._used += change
                return
            if found[0] < cell:
                return

    def _advance(self, now_s: float) -> None:
        cell = math.floor(now_s)
        if cell <= self._now_cell:
            return
        self._now_cell = cell
        oldest = cell - WINDOW_S
        while self._cells and self._cells[0][0] < oldest:
            self._used -= self._cells.popleft()[1]
