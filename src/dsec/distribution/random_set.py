"""A set of which a few members can be drawn at random in constant time: a list, and where in it each member stands."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from dsec.placement.sampling import RandomBits, draw_distinct

_Member = TypeVar("_Member", bound=Hashable)


class RandomSet(Generic[_Member]):
    """Members in an order that means nothing, but is the same after the same operations."""

    __slots__ = ("_members", "_places")

    def __init__(self) -> None:
        self._members: list[_Member] = []
        self._places: dict[_Member, int] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[_Member]:
        return iter(self._members)

    def __contains__(self, member: _Member) -> bool:
        return member in self._places

    def add(self, member: _Member) -> None:
        """Put a member in; nothing happens if it is there."""
        if member not in self._places:
            self._places[member] = len(self._members)
            self._members.append(member)

    def discard(self, member: _Member) -> None:
        """Take a member out, the last one into its place; nothing happens if it is not there."""
        place = self._places.pop(member, None)
        if place is None:
            return
        last = self._members.pop()
        if place < len(self._members):
            self._members[place] = last
            self._places[last] = place

    def draw(self, count: int, bits: RandomBits) -> list[_Member]:
        """Return so many different members, or all."""
        return [self._members[at] for at in draw_distinct(count, len(self._members), bits)]
