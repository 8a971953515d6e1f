"""Host id slots: which sandbox has which 65,536 host user and group ids."""

from __future__ import annotations

import heapq

from dsec.base.errors import NodeUnavailableError

SLOT_SIZE = 65_536


class HostIdSlots:
    """Hand out the lowest free slot. A slot is freed only when nothing of its user exists any more."""

    def __init__(self, first_host_id: int, *, count: int) -> None:
        self._first = first_host_id
        self._count = count
        self._free: list[int] = []
        self._next = 0
        self._taken: set[int] = set()

    @property
    def taken(self) -> frozenset[int]:
        return frozenset(self._taken)

    def __len__(self) -> int:
        """How many are taken."""
        return len(self._taken)

    def take(self) -> int:
        """Return the lowest free slot. Raises `NodeUnavailableError` when there is none."""
        while self._free and self._free[0] in self._taken:
            heapq.heappop(self._free)
        while self._next in self._taken:
            self._next += 1
        slot = min(self._next, self._free[0]) if self._free else self._next
        if slot >= self._count:
            raise NodeUnavailableError(
                f"all {self._count} ranges of host ids are taken", resolution="stop sandboxes or use another node"
            )
        self._taken.add(slot)
        return slot

    def claim(self, slot: int) -> None:
        """Mark a slot as taken: an adopted sandbox has it."""
        self._taken.add(slot)

    def release(self, slot: int) -> None:
        """Free a slot. Idempotent."""
        if slot in self._taken:
            self._taken.discard(slot)
            heapq.heappush(self._free, slot)

    def first_host_id(self, slot: int) -> int:
        return self._first + slot * SLOT_SIZE
