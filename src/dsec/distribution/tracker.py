"""The tracker: told who has what, asked who may be asked. A state machine without I/O, clock or randomness of its own.

It remembers nothing that would have to outlive it: after a restart it knows nobody, every node that speaks to it is
asked to announce itself, and in the meantime everybody takes chunks from the origin. It keeps nobody waiting either: it
answers at once, and no chunk passes through it. So it may be wrong, old, dead or hostile, and the price is time.

*A cold start* is where it earns its keep. One store has an image, and 500 nodes ask for the same chunk at once. The
first is told to take it from the origin (a *grant*), the others to wait for it there, and for each other: a tree
(`dsec.distribution.flights`). When the first one dies, those that waited for it ask again, say so, and one of them is
granted the origin; nobody waits for longer than it waits for a peer that does not answer.

What it knows of the nodes is its *swarm* (`dsec.distribution.swarm`), apart from what it suspects them of
(`dsec.distribution.suspicion`). What those can offer to who asks, `dsec.distribution.offers` finds out, and for what is
fetched later `dsec.distribution.ahead`. Here is what is answered: a few peers, the origin, or to wait.

Sources: Dragonfly and Kraken distribute images so, the one with a scheduler that builds such trees, the other with
random graphs; tit for tat, as in BitTorrent, is not needed among nodes of one owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dsec.distribution.ahead import ChoiceAhead
from dsec.distribution.choice import Offer
from dsec.distribution.flights import Flight
from dsec.distribution.members import Member
from dsec.distribution.messages import (
    Acknowledgement,
    Announcement,
    Answer,
    Candidate,
    Failure,
    Lookup,
    LookupReply,
    Report,
    Verdict,
)
from dsec.distribution.offers import Offers
from dsec.distribution.overview import PeerLayer, PeerStatus, TrackerStatistics
from dsec.distribution.policy import TrackerPolicy
from dsec.distribution.question import Question, questions_of
from dsec.distribution.suspicion import Suspicion
from dsec.distribution.swarm import Swarm
from dsec.placement.sampling import RandomBits

_JITTER_BITS = 16
_STOOD_BACK = 64
"""So many chunks are remembered for which a node stood back."""


class Tracker:
    """Who has what, and who is to ask whom.

    Args:
        policy: settings.
        bits: source of randomness.
    """

    def __init__(self, policy: TrackerPolicy, bits: RandomBits) -> None:
        self.policy = policy
        self._bits = bits
        self._swarm = Swarm(policy)
        self._members = self._swarm.members
        self._holdings = self._swarm.holdings
        self._flights = self._swarm.flights
        self._followings = self._swarm.followings
        self._suspicion = Suspicion(policy.suspicion)
        self._offers = Offers(policy, self._swarm, self._suspicion, bits)
        self._ahead = ChoiceAhead(policy, self._swarm, self._suspicion, self._offers, bits)
        self._verdicts: list[Verdict] = []
        self._lookups = self._asked = self._to_peers = self._to_origin = self._to_wait = 0

    # What nodes say.

    def announce(self, announcement: Announcement, now_s: float) -> Acknowledgement:
        """Take what a node says of itself. One that was heard already changes nothing but its lease."""
        return self._swarm.announce(announcement, now_s)

    def withdraw(self, node: str) -> None:
        """Forget a node that says that it goes; what it is suspected of stays."""
        self._swarm.withdraw(node)

    def report(self, report: Report, now_s: float) -> None:
        """Take failures of peers."""
        self._heed(report.node, report.failures, now_s)

    def look_up(self, lookup: Lookup, now_s: float) -> LookupReply:
        """Say where chunks are to be had."""
        self._heed(lookup.node, lookup.failures, now_s)
        asker = self._members.alive(lookup.node, now_s)
        if asker is not None and lookup.ahead:
            asker.planned_s = now_s
        self._lookups += 1
        self._asked += len(lookup.chunks)
        answers = [self._answer(question, asker, now_s) for question in questions_of(lookup)]
        ahead = self._ahead.answer(lookup, now_s)
        self._to_peers += len(ahead)
        return LookupReply(answers=tuple(answers), ahead=ahead, resend=asker is None)

    # What its shell asks.

    def take_verdicts(self) -> tuple[Verdict, ...]:
        """Return what was decided about nodes since this was last asked."""
        verdicts, self._verdicts = tuple(self._verdicts), []
        return verdicts

    def expire(self, now_s: float) -> None:
        """Forget what is too old. Called about once a second; nothing that is older is used in between."""
        self._swarm.expire(now_s)
        self._suspicion.forget(now_s)

    def statistics(self, now_s: float) -> TrackerStatistics:
        """Return what is known now."""
        return TrackerStatistics(
            nodes=len(self._members),
            layers=self._holdings.layers,
            chunks=self._holdings.chunks,
            entries=self._holdings.entries,
            flights=self._flights.count,
            lookups=self._lookups,
            chunks_asked=self._asked,
            sent_to_peers=self._to_peers,
            sent_to_origin=self._to_origin,
            told_to_wait=self._to_wait,
            quarantined=self._suspicion.quarantined(now_s),
        )

    def peers(self, now_s: float) -> tuple[PeerStatus, ...]:
        """Return what is known of each node, by its name."""
        return tuple(
            PeerStatus(
                node=node.name,
                address=node.address,
                lease_s=max(0.0, node.lease_until_s - now_s),
                upload_bytes_per_s=node.bandwidth_bytes_per_s,
                upload_slots=node.slots,
                uploads=self._swarm.transfers(node, now_s),
                quarantined=self._suspicion.is_quarantined(node.name, now_s),
                distrusted=self._suspicion.is_distrusted(node.name, now_s),
                layers=tuple(
                    PeerLayer(layer=layer, chunks=chunks or 0, complete=chunks is None)
                    for layer, chunks in sorted(self._holdings.of(node.name))
                ),
            )
            for node in sorted(self._members, key=lambda node: node.name)
        )

    # Failures.

    def _heed(self, reporter: str, failures: Iterable[Failure], now_s: float) -> None:
        for failure in failures:
            sent = self._swarm.was_sent(reporter, failure.peer, failure.chunk, now_s)
            self._verdicts += self._suspicion.accuse(reporter, failure, now_s, sent=sent, nodes=len(self._members))

    # Lookups.

    def _answer(self, question: Question, asker: Member | None, now_s: float) -> Answer:
        is_asked_again = self._flights.of(question.chunk, question.node) is not None
        question = self._with_history(question)
        if asker is not None and self._members.may_follow(asker, now_s):
            at_turn = self._members.is_turn(question.chunk) and not is_asked_again
            self._swarm.charge(*self._followings.asked(question.node, question.layer, at_turn=at_turn), now_s)
            if self._stands_back(question, asker, now_s):
                return self._tell_to_wait(question, self.policy.stand_back_s)
        if self._flights.of_node(question.node) >= self.policy.flights_a_node:
            return self._tell_to_wait(question)
        best = self._offers.best(question, now_s)
        if best:
            return self._send_to_peers(question, asker, best, now_s)
        if self._may_ask_origin(question, asker, now_s):
            return self._send_to_origin(question, asker, now_s)
        return self._tell_to_wait(question)

    def _may_ask_origin(self, question: Question, asker: Member | None, now_s: float) -> bool:
        """Say whether a chunk is granted to one more: a first few, and some more if those are late or do not help."""
        granted = self._flights.origins(question.chunk, now_s - self._swarm.overdue_s)
        most = self.policy.grants + self.policy.extra_grants
        if question.avoided:
            allowed = most
        else:
            allowed = self.policy.grants if self._flights.origins(question.chunk) < most else 0
        if asker is None:
            # A tracker that began anew knows nobody, and must not send all of them to the origin at once. They announce
            # themselves and ask again.
            granted += self._flights.strangers(question.chunk)
        return granted < allowed

    def _with_history(self, question: Question) -> Question:
        """End the node's former flight for the chunk, and keep in mind whom it asked in vain."""
        flight = self._flights.of(question.chunk, question.node)
        if flight is None:
            return question
        self._swarm.close(flight)
        return replace(question, avoided=question.avoided | flight.avoided) if flight.avoided else question

    def _send_to_peers(
        self, question: Question, asker: Member | None, ranked: Sequence[Offer[Member]], now_s: float
    ) -> Answer:
        self._members.note_sent(ranked[0].peer, now_s)
        self._to_peers += 1
        in_step = ranked[0].depth or self._members.is_turn(question.chunk)
        if in_step and asker is not None and self._members.may_follow(asker, now_s):
            parent, unseen = ranked[0].peer.name, self._members.every - 1
            self._followings.begin(question.node, question.layer, parent, unseen, now_s)
            self._swarm.charge(parent, unseen, now_s)
        self._begin(question, asker, now_s, ranked)
        return _named(question.chunk, ranked)

    def _send_to_origin(self, question: Question, asker: Member | None, now_s: float) -> Answer:
        self._begin(question, asker, now_s, ())
        self._to_origin += 1
        return Answer(chunk=question.chunk, origin=True)

    def _begin(self, question: Question, asker: Member | None, now_s: float, ranked: Sequence[Offer[Member]]) -> None:
        preferred, fanout = self._fanout(asker)
        pending = ranked and ranked[0].depth
        parent = self._flights.of(question.chunk, ranked[0].peer.name) if pending else None
        self._flights.begin(
            Flight(
                chunk=question.chunk,
                node=question.node,
                parent=ranked[0].peer.name if ranked else "",
                depth=ranked[0].depth + 1 if ranked else 1,
                there_s=now_s + self._delay_s(asker, ranked),
                rooted_s=now_s if parent is None else parent.rooted_s,
                until_s=now_s + self.policy.flight_s,
                layer=question.layer,
                proposed=frozenset(offer.peer.name for offer in ranked),
                avoided=question.avoided,
                preferred=preferred,
                fanout=fanout,
            )
        )

    def _fanout(self, asker: Member | None) -> tuple[int, int]:
        """Return how many are to follow a node, and may: a second one where it costs no more than a longer way."""
        if asker is None or not asker.slots:
            return 0, 0
        choice = self.policy.choice
        return (1 if asker.chunk_s(choice) > choice.relay_s else choice.fanout), choice.fanout

    def _delay_s(self, asker: Member | None, ranked: Sequence[Offer[Member]]) -> float:
        """Return how long it takes until a chunk is at whoever asked."""
        own_s = asker.chunk_s(self.policy.choice) if asker is not None else 0.0
        return max(ranked[0].delay_s, own_s) if ranked else own_s

    def _stands_back(self, question: Question, asker: Member, now_s: float) -> bool:
        """Say whether a node is to let others go before it at a turn, once.

        Who asks first comes to stand near the root of the tree, and is followed. Those are the same nodes at the next
        turn, as they have each chunk first.
        """
        if not self._members.is_turn(question.chunk) or question.chunk in asker.stood_back:
            return False
        if self._holdings.count(question.layer, question.chunk):
            return False  # Whoever asks now is late, and is followed by few.
        if asker.sent_to_at(now_s) <= self._members.usual_sent(now_s):
            return False
        if len(asker.stood_back) >= _STOOD_BACK:
            asker.stood_back.clear()
        asker.stood_back.add(question.chunk)
        return True

    def _tell_to_wait(self, question: Question, wait_s: float = 0.0) -> Answer:
        self._to_wait += 1
        spread = 0.5 + self._bits(_JITTER_BITS) / (1 << _JITTER_BITS)
        return Answer(chunk=question.chunk, wait_s=(wait_s or self.policy.wait_s) * spread)


def _named(chunk: str, ranked: Sequence[Offer[Member]]) -> Answer:
    peers = (Candidate(node=each.peer.name, address=each.peer.address, pending=each.depth > 0) for each in ranked)
    return Answer(chunk=chunk, peers=tuple(peers))
