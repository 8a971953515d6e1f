"""A tracker's time: it deals with one message after the other, each of which costs as much as it was measured to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from dsec.sim.calendar import Calendar

Deal = Callable[[float, Any], float]
"""Deals with a message at a time; returns how many seconds it thought about it, beyond what every message takes."""


class Mailbox:
    """Messages that wait for one tracker.

    Args:
        calendar: where events go.
        travel_s: how long a message is on its way.
        message_s: what each costs.
    """

    def __init__(self, calendar: Calendar, travel_s: float, message_s: float) -> None:
        self._calendar = calendar
        self._travel_s = travel_s
        self._message_s = message_s
        self._waiting: deque[tuple[Deal, Any]] = deque()
        self.busy_s = 0.0

    def send(self, now_s: float, deal: Deal, argument: object) -> None:
        """Send a message."""
        self._calendar.at(now_s + self._travel_s, self._arrive, (deal, argument))

    def answered_s(self, now_s: float, thought_s: float) -> float:
        """Return when the answer to a message is there that is dealt with from now on."""
        return now_s + self._message_s + thought_s + self._travel_s

    def _arrive(self, now_s: float, message: tuple[Deal, Any]) -> None:
        self._waiting.append(message)
        if len(self._waiting) == 1:
            self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        deal, argument = self._waiting[0]
        took_s = self._message_s + deal(now_s, argument)
        self.busy_s += took_s
        self._calendar.at(now_s + took_s, self._end)

    def _end(self, now_s: float, _: None) -> None:
        self._waiting.popleft()
        if self._waiting:
            self._begin(now_s)
