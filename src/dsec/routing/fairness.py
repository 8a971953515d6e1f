"""Whose turn it is among the calls that wait for a slot: shares of work, by the weights of their projects.

Start-time fair queueing (Goyal, Vin and Cheng, 1996), without clocks. Each project has a *virtual time*: the work it
was served, over its weight. The next call is the oldest of the project with the least virtual time. A project that had
nothing waiting begins at the virtual time of whoever was served last, so that nobody saves up turns by staying away.

For two projects that both wait all the time, the work they were served over their weights never differs by more than
one call of each. Work is whatever the caller counts, usually tokens: a project with long calls gets fewer of them. It
is an estimate when the turn is given; `charge` corrects it when the call has ended.

A call that gives up has cost nothing, since virtual time moves only when a turn is given.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from dsec.base.errors import InvalidRequestError

_LEAST_WORK = 1.0
"""A turn counts at least so much, or calls that ask for nothing would have all turns."""

_SPARE = 64
"""How many places or times that mean nothing any more are kept before they are swept out."""


class Waiter(Protocol):
    """Who waits. It can be a key of a dictionary, and is one by identity."""

    @property
    def project(self) -> str:
        """Whose it is."""

    @property
    def work(self) -> float:
        """How much it asks for; less than 1 counts as 1."""


W = TypeVar("W", bound=Waiter)


class FairQueue(Generic[W]):
    """Those who wait for one backend.

    Args:
        weights: of projects; one that is not named has weight 1.

    Raises:
        InvalidRequestError: a weight is not above 0.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = dict(weights or {})
        for project, weight in self._weights.items():
            if not 0 < weight < float("inf"):
                raise InvalidRequestError(
                    f"project {project!r} has weight {weight}", resolution="give a finite weight above 0"
                )
        self._waiting: dict[str, dict[W, None]] = {}
        self._times: dict[str, float] = {}
        self._places: list[tuple[float, int, str]] = []
        self._now = 0.0
        self._count = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def waiting(self, project: str) -> int:
        """Return how many of a project wait."""
        return len(self._waiting.get(project, ()))

    def offer(self, waiter: W) -> None:
        """Put somebody at the end of their project's line."""
        project = waiter.project
        line = self._waiting.get(project)
        if line is None:
            line = self._waiting[project] = {}
            self._times[project] = max(self._times.get(project, 0.0), self._now)
            self._place(project)
        if waiter not in line:
            line[waiter] = None
            self._size += 1

    def take(self) -> W | None:
        """Take out who is next; None when nobody waits."""
        project = self._next()
        if project is None:
            return None
        line = self._waiting[project]
        waiter = next(iter(line))
        self._now = self._times[project]
        self._times[project] += max(waiter.work, _LEAST_WORK) / self._weights.get(project, 1.0)
        self._remove(waiter)
        if line:
            self._place(project)
        return waiter

    def withdraw(self, waiter: W) -> None:
        """Take out somebody who gave up; nothing happens if they do not wait."""
        if waiter in self._waiting.get(waiter.project, ()):
            self._remove(waiter)

    def charge(self, project: str, work: float) -> None:
        """Count more work of a project than was thought, or less (below 0)."""
        if project not in self._times:
            if work <= 0:
                return
            self._times[project] = self._now
        least = self._now if project in self._waiting else 0.0
        self._times[project] = max(self._times[project] + work / self._weights.get(project, 1.0), least)
        if project in self._waiting:
            self._place(project)
        self._sweep()

    def _next(self) -> str | None:
        while self._places:
            time, _, project = self._places[0]
            if project in self._waiting and self._times[project] == time:
                heapq.heappop(self._places)
                return project
            heapq.heappop(self._places)
        return None

    def _place(self, project: str) -> None:
        self._count += 1
        heapq.heappush(self._places, (self._times[project], self._count, project))

    def _remove(self, waiter: W) -> None:
        line = self._waiting[waiter.project]
        del line[waiter]
        self._size -= 1
        if not line:
            del self._waiting[waiter.project]
        self._sweep()

    def _sweep(self) -> None:
        """Forget what means nothing any more: places that moved, and times that lie behind."""
        if len(self._places) > _SPARE + 2 * len(self._waiting):
            self._places = []
            for project in self._waiting:
                self._place(project)
        if len(self._times) > _SPARE + 2 * len(self._waiting):
            self._times = {
                project: time for project, time in self._times.items() if project in self._waiting or time > self._now
            }
