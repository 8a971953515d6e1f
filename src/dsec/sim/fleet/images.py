"""How a node gets the parts of an image that it lacks: once each, from the registry or from another node."""

from __future__ import annotations

import random
from collections.abc import Callable

from dsec.sim.calendar import Calendar
from dsec.sim.fleet.links import Link, transfer
from dsec.sim.fleet.measures import Measures
from dsec.sim.fleet.node import SimNode, Work


class Fetching:
    """All transfers of images.

    Args:
        calendar: where events go.
        origin: the registry's link.
        choice: random choice among those who could send.
        measures: is told hits and fetches.
        begin: is called when a creation has its image.
    """

    def __init__(
        self,
        calendar: Calendar,
        origin: Link,
        choice: random.Random,
        measures: Measures,
        begin: Callable[[float, Work], object],
    ) -> None:
        self._calendar, self._origin, self._choice, self._measures, self._begin = (
            calendar,
            origin,
            choice,
            measures,
            begin,
        )
        self._holders: dict[int, list[SimNode]] = {}
        self.peer_bytes = 0.0

    def fetch(self, now_s: float, work: Work) -> None:
        """Get what the node lacks of a sandbox's image, then begin."""
        sandbox = work.sandbox
        choice = sandbox.kind.images
        if choice is None or sandbox.image is None:
            self._begin(now_s, work)
            return
        cache = work.node.cache
        for key, size_bytes in choice.needs(sandbox.image):
            if cache.use(key):
                continue
            work.missing += 1
            waiting = cache.coming.get(key)
            if waiting is not None:
                waiting.append((self._begin, work))
                continue
            cache.coming[key] = [(self._begin, work)]
            end_s = self._transfer(now_s, work.node, key, size_bytes, peers=choice.peers)
            self._measures.image_fetches += 1
            self._calendar.at(end_s, self._arrived, (work.node, work.life, key, size_bytes))
        if not work.missing:
            self._measures.image_hits += 1
            self._begin(now_s, work)

    def _transfer(self, now_s: float, node: SimNode, key: int, size_bytes: float, *, peers: bool) -> float:
        holders = self._holders.get(key) if peers else None
        if not holders:
            return transfer(now_s, size_bytes, self._origin, node.down)
        one, other = self._choice.choice(holders), self._choice.choice(holders)
        sender = one if one.up.free_s <= other.up.free_s else other
        self.peer_bytes += size_bytes
        return transfer(now_s, size_bytes, sender.up, node.down)

    def _arrived(self, now_s: float, what: tuple[SimNode, int, int, float]) -> None:
        node, life, key, size_bytes = what
        if node.life != life:
            return
        for dropped in node.cache.hold(key, size_bytes):
            self._holders[dropped].remove(node)
        self._holders.setdefault(key, []).append(node)
        for begin, work in node.cache.coming.pop(key):
            work.missing -= 1
            if not work.missing:
                begin(now_s, work)

    def forget(self, node: SimNode) -> None:
        """A node is gone with all that it had."""
        for key in node.cache.clear():
            self._holders[key].remove(node)
