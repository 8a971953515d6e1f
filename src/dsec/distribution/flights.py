"""Who is fetching which chunk from whom, as far as the tracker sent them: *flights*.

They are what a tracker knows before any node announces it. A node that was just chosen counts as more loaded; one that
is fetching a chunk will have it shortly, so that others can be told to wait there; one that was sent to the origin
makes it needless to send the others. For each chunk they are trees, rooted at holders and at the origin:

::

    origin ──► a ──► b ──► d          all of them want the same chunk; only `a` loads the origin,
                │      └─► e          and each sends it to few.
                └──► c

A flight ends when its node announces the chunk, asks anew, or says nothing for `flight_s`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dsec.distribution.random_set import RandomSet

_NOBODY: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class Flight:
    """One node that was told where to get one chunk.

    Attributes:
        chunk, node: which, and who.
        parent: whom it was told to ask first; empty: the origin.
        depth: how many the chunk comes through, itself included.
        there_s: when the chunk is expected to be there.
        rooted_s: when the first of those through whom the chunk comes was told where to get it.
        until_s: it is not believed in any longer.
        layer: name of the manifest that the chunk is of.
        proposed: all whom it was told to ask.
        avoided: whom it asked in vain since it first asked for the chunk.
        preferred, fanout: how many others can be told so at a time; that many at first, and more when nobody else is
            left.
    """

    chunk: str
    node: str
    parent: str
    depth: int
    there_s: float
    rooted_s: float
    until_s: float
    layer: str
    proposed: frozenset[str] = _NOBODY
    avoided: frozenset[str] = _NOBODY
    preferred: int = 1
    fanout: int = 1


@dataclass(slots=True)
class _OfChunk:
    """The flights of one chunk."""

    by_node: dict[str, Flight] = field(default_factory=dict)
    open: RandomSet[Flight] = field(default_factory=RandomSet)
    """Those that others can be told to wait for, and that have not got followers enough."""
    spare: RandomSet[Flight] = field(default_factory=RandomSet)
    """Those that have, and can have more."""
    following: dict[str, int] = field(default_factory=dict)
    """How many were told to ask each node for it, and have not got it yet."""
    roots: dict[str, Flight] = field(default_factory=dict)
    """Those that bring it from the origin for others too."""
    strangers: int = 0


class Flights:
    """All flights of one tracker.

    Args:
        depth: how long a chain may be.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._of_chunk: dict[str, _OfChunk] = {}
        self._of_node: dict[str, dict[str, Flight]] = {}
        self._towards: dict[str, int] = {}
        self.count = 0

    def of(self, chunk: str, node: str) -> Flight | None:
        """Return a node's flight for a chunk."""
        found = self._of_chunk.get(chunk)
        return None if found is None else found.by_node.get(node)

    def towards(self, node: str) -> int:
        """Return how many were told to ask a node, and have not got what they wanted yet."""
        return self._towards.get(node, 0)

    def of_node(self, node: str) -> int:
        """Return how many a node has."""
        return len(self._of_node.get(node, ()))

    def of_layer(self, node: str, layer: str) -> list[Flight]:
        """Return those of a node for chunks of a layer."""
        return [flight for flight in self._of_node.get(node, {}).values() if flight.layer == layer]

    def origins(self, chunk: str, since_s: float = float("-inf")) -> int:
        """Return how many are fetching a chunk from the origin for others too, and began then at the earliest."""
        found = self._of_chunk.get(chunk)
        return 0 if found is None else sum(flight.rooted_s >= since_s for flight in found.roots.values())

    def strangers(self, chunk: str) -> int:
        """Return how many are fetching a chunk from the origin of whom others cannot get it."""
        found = self._of_chunk.get(chunk)
        return 0 if found is None else found.strangers

    def open_for(self, chunk: str) -> tuple[RandomSet[Flight], ...]:
        """Return the flights that others can be told to wait for, those first that have fewer followers than they can
        well have.
        """
        found = self._of_chunk.get(chunk)
        return () if found is None else (found.open, found.spare)

    def followers(self, chunk: str, node: str) -> int:
        """Return how many were told to ask a node for a chunk, and have not got it yet."""
        found = self._of_chunk.get(chunk)
        return 0 if found is None else found.following.get(node, 0)

    def waits_for(self, flight: Flight, node: str) -> bool:
        """Say whether a flight hangs on a node's, so that the two would wait for each other."""
        at: Flight | None = flight
        for _ in range(self._depth + 1):
            if at is None:
                return False
            if node in (at.node, at.parent):
                return True
            at = self.of(at.chunk, at.parent) if at.parent else None
        return True  # Longer than a chain can be: it goes round.

    def begin(self, flight: Flight) -> None:
        """Add a flight; whoever calls has ended the node's former one for the chunk."""
        found = self._of_chunk.get(flight.chunk)
        if found is None:
            found = self._of_chunk[flight.chunk] = _OfChunk()
        found.by_node[flight.node] = flight
        self._of_node.setdefault(flight.node, {})[flight.chunk] = flight
        self.count += 1
        if flight.parent:
            self._towards[flight.parent] = self._towards.get(flight.parent, 0) + 1
            found.following[flight.parent] = found.following.get(flight.parent, 0) + 1
            followed = found.by_node.get(flight.parent)
            if followed is not None:
                self._open(found, followed)
        else:
            _count_origin(found, flight, begins=True)
        self._open(found, flight)

    def _open(self, found: _OfChunk, flight: Flight) -> None:
        """Let others be told to wait for a flight, as far as there is room."""
        followers = found.following.get(flight.node, 0) if flight.depth < self._depth else flight.fanout
        for flights, is_there in (
            (found.open, followers < flight.preferred),
            (found.spare, flight.preferred <= followers < flight.fanout),
        ):
            if is_there:
                flights.add(flight)
            else:
                flights.discard(flight)

    def end(self, flight: Flight) -> None:
        """Take a flight out; what hangs on it stays, and finds out by itself."""
        found = self._of_chunk[flight.chunk]
        del found.by_node[flight.node]
        found.open.discard(flight)
        found.spare.discard(flight)
        mine = self._of_node[flight.node]
        del mine[flight.chunk]
        if not mine:
            del self._of_node[flight.node]
        self.count -= 1
        if flight.parent:
            self._leave(found, flight.parent)
        else:
            _count_origin(found, flight, begins=False)
        if not found.by_node:
            del self._of_chunk[flight.chunk]

    def _leave(self, found: _OfChunk, parent: str) -> None:
        for counts in (self._towards, found.following):
            counts[parent] -= 1
            if not counts[parent]:
                del counts[parent]
        followed = found.by_node.get(parent)
        if followed is not None:
            self._open(found, followed)

    def end_all(self, node: str) -> None:
        """End every flight of a node that is gone."""
        for flight in list(self._of_node.get(node, {}).values()):
            self.end(flight)

    def expired(self, now_s: float) -> Iterator[Flight]:
        """Return those that are not believed in any longer."""
        return iter([flight for mine in self._of_node.values() for flight in mine.values() if flight.until_s <= now_s])


def _count_origin(found: _OfChunk, flight: Flight, *, begins: bool) -> None:
    if not flight.fanout:
        found.strangers += 1 if begins else -1
    elif begins:
        found.roots[flight.node] = flight
    else:
        del found.roots[flight.node]
