"""What can be offered to who asks for a chunk: by a few who have it, and by those who are fetching it.

A few are drawn of those who have the chunk. If one of them has room, nobody else is looked at. Otherwise a few are
drawn of those who are fetching it: who follows one of them has the chunk sooner than who queues, and spares the
holders. When those were all sent to too often, whoever keeps a place below them will do as well. Only if nobody at all
is found that way are many looked at.

Left out is everybody who may not be asked: the asker itself, whom it asked in vain, who sends nothing, who is suspected
(`dsec.distribution.suspicion`), and who waits for the asker's own flight, since the two would wait for each other. The
rest is ranked (`dsec.distribution.choice`).
"""

from __future__ import annotations

from collections.abc import Sequence

from dsec.distribution.choice import Offer, has_room, is_overused, rank
from dsec.distribution.flights import Flight
from dsec.distribution.members import Member
from dsec.distribution.policy import TrackerPolicy
from dsec.distribution.question import Question
from dsec.distribution.suspicion import Suspicion
from dsec.distribution.swarm import Swarm
from dsec.placement.sampling import RandomBits

_FOLLOWED = 3
"""So many of those who are fetching a chunk are compared: each was itself told to ask the best of a few."""
_SCANNED = 64
"""So many are looked at when none of those that were drawn will do."""


class Offers:
    """What the nodes of a swarm can offer.

    Args:
        policy: settings.
        swarm: the nodes.
        suspicion: what is suspected of them.
        bits: source of randomness.
    """

    def __init__(self, policy: TrackerPolicy, swarm: Swarm, suspicion: Suspicion, bits: RandomBits) -> None:
        self._policy = policy
        self._swarm = swarm
        self._members = swarm.members
        self._flights = swarm.flights
        self._suspicion = suspicion
        self._bits = bits

    def best(self, question: Question, now_s: float) -> list[Offer[Member]]:
        """Return the offers that who asks is told of, the best first; empty: it has to go elsewhere, or to wait."""
        usable = self.not_full(self._some(question, now_s))
        ranked = rank(usable, self._policy.choice, self._bits, self._members.usual_sent(now_s))
        if ranked and ranked[0].depth:
            # Who waits for one that is fetching is given nobody to fall back on: two could come to wait for each other,
            # and whoever has the chunk first would be fallen back on by all of them, uncounted.
            return ranked[:1]
        return [offer for offer in ranked if not offer.depth][: self._policy.choice.candidates]

    def usable(self, question: Question, name: str, now_s: float) -> Member | None:
        """Return a node if who asks may be sent there."""
        if name == question.node or name in question.avoided or name in question.busy:
            return None
        node = self._members.alive(name, now_s)
        if node is None or not node.slots or self._suspicion.shuns(question.node, name, question.chunk, now_s):
            return None
        return node

    def of(self, node: Member, now_s: float, depth: int = 0, there_in_s: float = 0.0) -> Offer[Member]:
        """Return what a node can offer that has a chunk, or to which it comes through so many, in so many seconds."""
        transfers = self._swarm.transfers(node, now_s)
        send_s = node.chunk_s(self._policy.choice) * (transfers + 1)
        return Offer(
            peer=node,
            bandwidth_bytes_per_s=float(node.bandwidth_bytes_per_s),
            slots=node.slots,
            transfers=transfers,
            sent_to=node.sent_to_at(now_s),
            depth=depth,
            delay_s=max(there_in_s, send_s) + self._policy.choice.relay_s if depth else send_s,
        )

    def not_full(self, offers: Sequence[Offer[Member]]) -> list[Offer[Member]]:
        """Return the offers of those with whom one may queue."""
        return [offer for offer in offers if offer.transfers < offer.slots + self._policy.waiting]

    def _some(self, question: Question, now_s: float) -> list[Offer[Member]]:
        """Return what a few can offer that have the chunk, or are fetching it."""
        offers = self._drawn(question, self._policy.choice.sampled, now_s)
        if offers:
            return offers
        return self._drawn(question, _SCANNED, now_s)

    def _drawn(self, question: Question, count: int, now_s: float) -> list[Offer[Member]]:
        offers = self._holding(question, count, now_s)
        usual_sent = self._members.usual_sent(now_s)
        if any(has_room(offer, self._policy.choice, usual_sent) for offer in offers):
            return offers
        names = {offer.peer.name for offer in offers}
        return offers + self._fetching(question, count, names, now_s)

    def _holding(self, question: Question, count: int, now_s: float) -> list[Offer[Member]]:
        """Return offers of those who have the chunk."""
        drawn = self._swarm.holdings.draw(question.layer, question.chunk, count, self._bits)
        found = (self.usable(question, name, now_s) for name in drawn)
        return [self.of(node, now_s) for node in found if node is not None]

    def _fetching(self, question: Question, count: int, names: set[str], now_s: float) -> list[Offer[Member]]:
        """Return offers of those who are fetching the chunk. Who is followed itself must not follow its followers."""
        for flights in self._flights.open_for(question.chunk):
            drawn = (
                flights.draw(min(count, _FOLLOWED), self._bits) if count < _SCANNED else flights.draw(count, self._bits)
            )
            offers = [
                offer for flight in drawn if (offer := self._followed(question, flight, names, now_s)) is not None
            ]
            if offers:
                return offers + self._below(question, offers, now_s)
        return []

    def _followed(self, question: Question, flight: Flight, names: set[str], now_s: float) -> Offer[Member] | None:
        """Return the offer of one who is fetching the chunk; none: it may not be waited for."""
        if flight.node in names or flight.until_s <= now_s or flight.rooted_s < now_s - self._swarm.overdue_s:
            return None
        node = self.usable(question, flight.node, now_s)
        if node is None:
            return None
        is_followed = self._flights.followers(question.chunk, question.node) > 0
        if is_followed and self._flights.waits_for(flight, question.node):
            return None
        return self.of(node, now_s, flight.depth, max(0.0, flight.there_s - now_s))

    def _below(self, question: Question, offers: Sequence[Offer[Member]], now_s: float) -> list[Offer[Member]]:
        """Return offers of those who follow nodes that were sent to too often already.

        Between two turns the tracker is told by few that they fetch a chunk, the root of the tree among them, while
        whoever keeps its place below them fetches it too. One that does not says so.
        """
        fair = self._policy.choice.fair_share * self._members.usual_sent(now_s)
        if self._members.every == 1 or not all(is_overused(offer, fair) for offer in offers):
            return []
        below = []
        for offer in offers:
            if offer.depth + 1 >= self._policy.choice.depth:
                continue
            name = self._swarm.followings.follower(offer.peer.name, question.layer, self._bits)
            node = None if name is None else self.usable(question, name, now_s)
            if node is not None and self._flights.of(question.chunk, node.name) is None:
                below.append(self.of(node, now_s, offer.depth + 1, offer.delay_s))
        return below
