"""What a tracker knows of its swarm: the nodes, what they have, what they are fetching, and whom they follow.

It is told in two ways. *Announcements* are what nodes say: a full one replaces all that was known of its node, a delta
is applied if it follows on the one before, and one that is not understood is answered with the wish for a full one. And
what the tracker itself told a node is known before any node announces it: flights (`dsec.distribution.flights`),
followings (`dsec.distribution.followings`) and proposals.

The two meet when a node announces a chunk. If it was under way, its flight has landed, and how long that took is how
long chunks take lately. If nobody asked for it, it probably came from whom the node follows, and is counted there.

A node that is gone has nothing, fetches nothing and follows nobody. Those that were sent to it find out by themselves;
what is suspected of it is not kept here, and stays.
"""

from __future__ import annotations

from dsec.distribution.flights import Flight, Flights
from dsec.distribution.followings import Followings
from dsec.distribution.holdings import Holdings
from dsec.distribution.members import Member, Members
from dsec.distribution.messages import Acknowledgement, Announcement
from dsec.distribution.policy import TrackerPolicy
from dsec.distribution.proposals import Proposals
from dsec.placement.trust import smoothed

_LOAD_LASTS_S = 0.25
"""So long is a node believed to be sending what it said that it sends."""
_USUAL_TIMES = 4.0
"""A chunk that takes so many times as long as chunks take lately is overdue."""


class Swarm:
    """The nodes of one tracker, and everything that it knows of them but their misbehaviour.

    Attributes:
        members: who has a lease, and how often others were sent there.
        holdings: who has which chunk.
        flights: who was told where to get which chunk, and has not got it yet.
        followings: who may be asking whom for chunks unseen.
        proposals: whom nodes were told to ask for chunks that are not under way any more.
        overdue_s: a chunk that is longer under way is not waited for any more.
    """

    def __init__(self, policy: TrackerPolicy) -> None:
        self._policy = policy
        self.members = Members(policy)
        self.holdings = Holdings(policy)
        self.flights = Flights(policy.choice.depth)
        self.followings = Followings()
        self.proposals = Proposals()
        self.overdue_s = policy.overdue_s
        self._usual_s: float | None = None

    # What nodes say.

    def announce(self, announcement: Announcement, now_s: float) -> Acknowledgement:
        """Take what a node says of itself. One that was heard already changes nothing but its lease."""
        node = self.members.get(announcement.node)
        if node is not None and node.lease_until_s <= now_s:
            self._drop(node)
            node = None
        known = node is not None and node.life == announcement.life
        if node is not None and known and announcement.sequence <= node.sequence:
            self.members.renew(node, announcement, now_s)
            return self._acknowledge()
        follows = node is not None and known and announcement.sequence == node.sequence + 1
        if not announcement.full and not follows:
            # A delta to something that is not known here. Who it is not known from has no lease either.
            return self._acknowledge(resend=True)
        if node is None and len(self.members) >= self._policy.nodes:
            return self._acknowledge(resend=True)
        if node is None or not known:
            if node is not None:
                self._drop(node)
            node = self.members.add(announcement)
        elif announcement.full:
            self.holdings.forget(node.name)
        self.members.renew(node, announcement, now_s)
        node.sequence = announcement.sequence
        self.members.settle_turns()
        return self._acknowledge(unlisted=self._apply(node, announcement, now_s))

    def withdraw(self, name: str) -> None:
        """Forget a node that says that it goes."""
        node = self.members.get(name)
        if node is not None:
            self._drop(node)

    def expire(self, now_s: float) -> None:
        """Forget what is too old."""
        for node in self.members.expired(now_s):
            self._drop(node)
        for flight in self.flights.expired(now_s):
            self.flights.end(flight)
        self.followings.expire(now_s)

    # What follows from several tables.

    def transfers(self, node: Member, now_s: float) -> int:
        """Return how much a node has to send: what it said just now, or what it was given, whichever is more."""
        # What it was sending a while ago has come since, while nobody who was sent to it meanwhile is forgotten.
        said = node.uploads if now_s - node.heard_s < _LOAD_LASTS_S else 0
        return max(said, self.flights.towards(node.name), self.followings.followers(node.name))

    def was_sent(self, node: str, peer: str, chunk: str, now_s: float) -> bool:
        """Say whether a node was told to ask a peer for a chunk, now or shortly before, or may have asked it unseen; of
        that it may accuse the peer so many times only, and each call counts.
        """
        flight = self.flights.of(chunk, node)
        if peer in self.proposals.of(node, chunk) or (flight is not None and peer in flight.proposed):
            return True
        return self.followings.may_accuse(node, peer, now_s)

    def charge(self, name: str, times: int, now_s: float) -> None:
        """Count chunks that a node probably sends unseen; fewer than none: that it was expected to, and did not."""
        node = self.members.get(name)
        if node is not None and times:
            self.members.note_sent(node, now_s, times)

    def close(self, flight: Flight) -> None:
        """End a flight, and keep in mind whom its node was told to ask."""
        self.proposals.remember(flight.node, flight.chunk, flight.proposed)
        self.flights.end(flight)

    def _acknowledge(self, *, resend: bool = False, unlisted: int = 0) -> Acknowledgement:
        return Acknowledgement(
            resend=resend, lease_s=self._policy.lease_s, news_s=self.members.news_s, unlisted=unlisted
        )

    def _apply(self, node: Member, announcement: Announcement, now_s: float) -> int:
        """Take what changed at a node; return how many of its chunks there was no room for."""
        unlisted = 0
        for change in announcement.changes:
            gained, left_out = self.holdings.apply(node.name, change)
            unlisted += left_out
            for chunk in gained:
                flight = self.flights.of(chunk, node.name)
                if flight is not None:
                    self._land(flight, now_s)
                elif not announcement.full:
                    self._lay_to_parent(node, change.layer, chunk, now_s)
            if change.complete:
                # Its chunks are there, as all of the layer is.
                for flight in self.flights.of_layer(node.name, change.layer):
                    self._land(flight, now_s)
        return unlisted

    def _lay_to_parent(self, node: Member, layer: str, chunk: str, now_s: float) -> None:
        """Count a chunk that came without being asked for where it came from, as far as can be told."""
        if not self.proposals.of(node.name, chunk):  # Otherwise it was asked for, and counted then.
            self.charge(*self.followings.gained(node.name, layer, now_s), now_s)

    def _land(self, flight: Flight, now_s: float) -> None:
        """End a flight whose chunk is there."""
        self._usual_s = smoothed(self._usual_s, max(0.0, now_s - flight.rooted_s))
        self.overdue_s = max(self._policy.overdue_s, _USUAL_TIMES * self._usual_s)
        self.close(flight)

    def _drop(self, node: Member) -> None:
        """Forget a node that is gone."""
        self.holdings.forget(node.name)
        self.flights.end_all(node.name)
        self.followings.forget(node.name)
        self.members.remove(node)
