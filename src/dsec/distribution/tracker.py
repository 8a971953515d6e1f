"""The tracker: told who has what, asked who may be asked. A state machine without I/O, clock or randomness of its own.

It remembers nothing that would have to outlive it: after a restart it knows nobody, every node that speaks to it is
asked to announce itself, and in the meantime everybody takes chunks from the origin. It keeps nobody waiting either: it
answers at once, and no chunk passes through it. So it may be wrong, old, dead or hostile, and the price is time.

*A cold start* is where it earns its keep. One store has an image, and 500 nodes ask for the same chunk at once. The
first is told to take it from the origin (a *grant*), the others to wait for it there, and for each other: a tree
(`dsec.distribution.flights`). When the first one dies, those that waited for it ask again, say so, and one of them is
granted the origin; nobody waits for longer than it waits for a peer that does not answer.

Sources: Dragonfly and Kraken distribute images so, the one with a scheduler that builds such trees, the other with
random graphs; tit for tat, as in BitTorrent, is not needed among nodes of one owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dsec.distribution.ahead import share_out
from dsec.distribution.choice import Offer, has_room, is_overused, rank
from dsec.distribution.flights import Flight, Flights
from dsec.distribution.followings import Followings
from dsec.distribution.holdings import Holdings
from dsec.distribution.members import Member, Sendings
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
from dsec.distribution.overview import PeerLayer, PeerStatus, TrackerStatistics
from dsec.distribution.places import is_turn, turns_every
from dsec.distribution.policy import TrackerPolicy
from dsec.distribution.question import Question, questions_of
from dsec.distribution.suspicion import Suspicion
from dsec.placement.sampling import RandomBits
from dsec.placement.trust import smoothed

_LOAD_LASTS_S = 0.25
"""So long is a node believed to be sending what it said that it sends."""
_FOLLOWED = 3
"""So many of those who are fetching a chunk are compared: each was itself told to ask the best of a few."""
_SCANNED = 64
"""So many are looked at when none of those that were drawn will do."""
_COMPARED_AHEAD, _OTHERS_AHEAD = 8, 2
"""So many are drawn for all chunks that are asked for ahead, and for each that none of those has."""
_FAIR_AHEAD = 1.5
"""As `ChoicePolicy.fair_share`, for chunks that are asked for ahead; coarser, as much happens until their turn."""
_REMEMBERED_PROPOSALS = 65_536
_JITTER_BITS = 16
_USUAL_TIMES = 4.0
_STOOD_BACK = 64
_PLAN_LASTS_S = 5.0
"""So long does a node know what it fetches next that asked ahead."""


class Tracker:
    """Who has what, and who is to ask whom.

    Args:
        policy: settings.
        bits: source of randomness.
    """

    def __init__(self, policy: TrackerPolicy, bits: RandomBits) -> None:
        self.policy = policy
        self._bits = bits
        self._nodes: dict[str, Member] = {}
        self._holdings = Holdings(policy)
        self._flights = Flights(policy.choice.depth)
        self._followings = Followings()
        self._suspicion = Suspicion(policy.suspicion)
        self._proposals: dict[tuple[str, str], frozenset[str]] = {}
        self._verdicts: list[Verdict] = []
        self._usual_s: float | None = None
        self._overdue_s = policy.overdue_s
        self._sent = Sendings()
        self._every = 1
        self._lookups = self._asked = self._to_peers = self._to_origin = self._to_wait = 0

    # What nodes say.

    def announce(self, announcement: Announcement, now_s: float) -> Acknowledgement:
        """Take what a node says of itself. One that was heard already changes nothing but its lease."""
        node = self._nodes.get(announcement.node)
        if node is not None and node.lease_until_s <= now_s:
            self._drop(node)
            node = None
        known = node is not None and node.life == announcement.life
        if node is not None and known and announcement.sequence <= node.sequence:
            self._renew(node, announcement, now_s)
            return self._acknowledge()
        follows = node is not None and known and announcement.sequence == node.sequence + 1
        if not announcement.full and not follows:
            # A delta to something that is not known here. Who it is not known from has no lease either.
            return self._acknowledge(resend=True)
        if node is None and len(self._nodes) >= self.policy.nodes:
            return self._acknowledge(resend=True)
        if node is None or not known:
            if node is not None:
                self._drop(node)
            node = self._nodes[announcement.node] = Member(
                name=announcement.node, address=announcement.address, life=announcement.life
            )
        elif announcement.full:
            self._holdings.forget(node.name)
        self._renew(node, announcement, now_s)
        node.sequence = announcement.sequence
        self._every = turns_every(self._news_s)
        return self._acknowledge(unlisted=self._apply(node, announcement, now_s))

    def withdraw(self, node: str) -> None:
        """Forget a node that says that it goes; what it is suspected of stays."""
        found = self._nodes.get(node)
        if found is not None:
            self._drop(found)

    def report(self, report: Report, now_s: float) -> None:
        """Take failures of peers."""
        self._heed(report.node, report.failures, now_s)

    def look_up(self, lookup: Lookup, now_s: float) -> LookupReply:
        """Say where chunks are to be had."""
        self._heed(lookup.node, lookup.failures, now_s)
        asker = self._alive(lookup.node, now_s)
        if asker is not None and lookup.ahead:
            asker.planned_s = now_s
        self._lookups += 1
        self._asked += len(lookup.chunks)
        answers = [self._answer(question, asker, now_s) for question in questions_of(lookup)]
        ahead = self._answers_ahead(lookup, now_s)
        return LookupReply(answers=tuple(answers), ahead=ahead, resend=asker is None)

    # What its shell asks.

    def take_verdicts(self) -> tuple[Verdict, ...]:
        """Return what was decided about nodes since this was last asked."""
        verdicts, self._verdicts = tuple(self._verdicts), []
        return verdicts

    def expire(self, now_s: float) -> None:
        """Forget what is too old. Called about once a second; nothing that is older is used in between."""
        for node in [node for node in self._nodes.values() if node.lease_until_s <= now_s]:
            self._drop(node)
        for flight in self._flights.expired(now_s):
            self._flights.end(flight)
        self._followings.expire(now_s)
        self._suspicion.forget(now_s)

    def statistics(self, now_s: float) -> TrackerStatistics:
        """Return what is known now."""
        return TrackerStatistics(
            nodes=len(self._nodes),
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
                uploads=self._transfers(node, now_s),
                quarantined=self._suspicion.is_quarantined(node.name, now_s),
                distrusted=self._suspicion.is_distrusted(node.name, now_s),
                layers=tuple(
                    PeerLayer(layer=layer, chunks=chunks or 0, complete=chunks is None)
                    for layer, chunks in sorted(self._holdings.of(node.name))
                ),
            )
            for _, node in sorted(self._nodes.items())
        )

    # Announcements.

    def _renew(self, node: Member, announcement: Announcement, now_s: float) -> None:
        node.address = announcement.address
        node.heard_s, node.lease_until_s = now_s, now_s + self.policy.lease_s
        node.bandwidth_bytes_per_s = min(announcement.upload_bytes_per_s, self.policy.bandwidth_most_bytes_per_s)
        node.slots, node.uploads = announcement.upload_slots, announcement.uploads

    def _acknowledge(self, *, resend: bool = False, unlisted: int = 0) -> Acknowledgement:
        return Acknowledgement(
            resend=resend,
            lease_s=self.policy.lease_s,
            news_s=self._news_s,
            unlisted=unlisted,
        )

    @property
    def _news_s(self) -> float:
        return self.policy.news_s * len(self._nodes)

    def _apply(self, node: Member, announcement: Announcement, now_s: float) -> int:
        unlisted = 0
        for change in announcement.changes:
            gained, left_out = self._holdings.apply(node.name, change)
            unlisted += left_out
            for chunk in gained:
                flight = self._flights.of(chunk, node.name)
                if flight is not None:
                    self._land(flight, now_s)
                elif not announcement.full:
                    self._lay_to_parent(node, change.layer, chunk, now_s)
            if change.complete:
                # Its chunks are there, as all of the layer is.
                for flight in self._flights.of_layer(node.name, change.layer):
                    self._land(flight, now_s)
        return unlisted

    def _lay_to_parent(self, node: Member, layer: str, chunk: str, now_s: float) -> None:
        """Count a chunk that came without being asked for where it came from, as far as can be told."""
        if (node.name, chunk) not in self._proposals:  # Otherwise it was asked for, and counted then.
            self._charge(*self._followings.gained(node.name, layer, now_s), now_s)

    def _charge(self, node: str, times: int, now_s: float) -> None:
        """Count chunks that a node probably sends unseen; fewer than none: that it was expected to, and did not."""
        member = self._nodes.get(node)
        if member is not None and times:
            member.note_sent(now_s, times)
            self._sent.note_sent(now_s, times)

    def _land(self, flight: Flight, now_s: float) -> None:
        self._usual_s = smoothed(self._usual_s, max(0.0, now_s - flight.rooted_s))
        self._overdue_s = max(self.policy.overdue_s, _USUAL_TIMES * self._usual_s)
        self._close(flight)

    def _close(self, flight: Flight) -> None:
        self._remember(flight.node, flight.chunk, flight.proposed)
        self._flights.end(flight)

    def _drop(self, node: Member) -> None:
        self._holdings.forget(node.name)
        self._flights.end_all(node.name)
        self._followings.forget(node.name)
        del self._nodes[node.name]

    def _alive(self, name: str, now_s: float) -> Member | None:
        node = self._nodes.get(name)
        return node if node is not None and node.lease_until_s > now_s else None

    # Failures.

    def _heed(self, reporter: str, failures: Iterable[Failure], now_s: float) -> None:
        for failure in failures:
            sent = failure.peer in self._proposed(failure.chunk, reporter)
            sent = sent or self._followings.may_accuse(reporter, failure.peer, now_s)
            self._verdicts += self._suspicion.accuse(reporter, failure, now_s, sent=sent, nodes=len(self._nodes))

    def _proposed(self, chunk: str, node: str) -> frozenset[str]:
        """Return whom a node was told to ask for a chunk, now or shortly before."""
        flight = self._flights.of(chunk, node)
        before = self._proposals.get((node, chunk), frozenset())
        return before if flight is None else before | flight.proposed

    def _remember(self, node: str, chunk: str, proposed: frozenset[str]) -> None:
        """Keep whom a node was told to ask, for accusations that come after the chunk did."""
        if proposed:
            self._proposals[(node, chunk)] = proposed
            while len(self._proposals) > _REMEMBERED_PROPOSALS:
                del self._proposals[next(iter(self._proposals))]

    # Lookups.

    def _answer(self, question: Question, asker: Member | None, now_s: float) -> Answer:
        is_asked_again = self._flights.of(question.chunk, question.node) is not None
        question = self._with_history(question)
        if asker is not None and self._may_follow(asker, now_s):
            at_turn = self._is_turn(question.chunk) and not is_asked_again
            self._charge(*self._followings.asked(question.node, question.layer, at_turn=at_turn), now_s)
            if self._stands_back(question, asker, now_s):
                return self._tell_to_wait(question, self.policy.stand_back_s)
        if self._flights.of_node(question.node) >= self.policy.flights_a_node:
            return self._tell_to_wait(question)
        offers = self._offers(question, now_s)
        usable = self._not_full(offers)
        ranked = rank(usable, self.policy.choice, self._bits, self._usual_sent(now_s))
        if ranked:
            # Who waits for one that is fetching is given nobody to fall back on: two could come to wait for each other,
            # and whoever has the chunk first would be fallen back on by all of them, uncounted.
            known = [offer for offer in ranked if not offer.depth][: self.policy.choice.candidates]
            ranked = ranked[:1] if ranked[0].depth else known
            return self._send_to_peers(question, asker, ranked, now_s)
        granted = self._flights.origins(question.chunk, now_s - self._overdue_s)
        most = self.policy.grants + self.policy.extra_grants
        if question.avoided:
            allowed = most
        else:
            allowed = self.policy.grants if self._flights.origins(question.chunk) < most else 0
        if asker is None:
            # A tracker that began anew knows nobody, and must not send all of them to the origin at once. They announce
            # themselves and ask again.
            granted += self._flights.strangers(question.chunk)
        if granted < allowed:
            return self._send_to_origin(question, asker, now_s)
        return self._tell_to_wait(question)

    def _answers_ahead(self, lookup: Lookup, now_s: float) -> tuple[Answer, ...]:
        """Say who has chunks that are going to be fetched soon.

        Nobody is told to wait for them at who asks, and it loads nobody yet; it counts in what is fair.
        """
        if not lookup.ahead:
            return ()
        usual_sent = self._usual_sent(now_s)

        def others(chunk: str) -> list[str]:
            question = Question(lookup.node, lookup.layer, chunk)
            drawn = self._holdings.draw(lookup.layer, chunk, _OTHERS_AHEAD, self._bits)
            return [name for name in drawn if self._has_spare(question, name, usual_sent, now_s)]

        peers = self._peers_ahead(lookup, usual_sent, now_s)
        shared, given = share_out(lookup.ahead, peers, others, self.policy.choice.candidates)
        for name, times in given.items():
            self._note_sent(self._nodes[name], now_s, times)
        candidates = {
            name: Candidate(node=name, address=self._nodes[name].address) for _, named in shared for name in named
        }
        for chunk, named in shared:
            self._remember(lookup.node, chunk, frozenset(named))
        return tuple(Answer(chunk=chunk, peers=tuple(candidates[name] for name in named)) for chunk, named in shared)

    def _peers_ahead(self, lookup: Lookup, usual_sent: float, now_s: float) -> list[tuple[str, frozenset[str]]]:
        """Return a few that have something of a layer, the best first, and of each what it has of what is wanted."""
        wanted, has, offers = frozenset(lookup.ahead), {}, []
        for name in self._holdings.draw_some(lookup.layer, _COMPARED_AHEAD, self._bits):
            node = self._alive(name, now_s)
            if name == lookup.node or node is None or not node.slots:
                continue
            chunks = self._holdings.among(name, lookup.layer, wanted)
            if self._suspicion.may_shun(lookup.node, name):
                shuns = self._suspicion.shuns
                chunks = frozenset(chunk for chunk in chunks if not shuns(lookup.node, name, chunk, now_s))
            if chunks:
                has[name] = chunks
                offers.append(self._offer(node, 0, 0.0, now_s))
        ranked = rank(self._fair_ahead(offers, usual_sent), self.policy.choice, self._bits, usual_sent)
        return [(offer.peer.name, has[offer.peer.name]) for offer in ranked]

    def _fair_ahead(self, offers: Sequence[Offer[Member]], usual_sent: float) -> list[Offer[Member]]:
        return [offer for offer in self._not_full(offers) if not is_overused(offer, _FAIR_AHEAD * usual_sent)]

    def _has_spare(self, question: Question, name: str, usual_sent: float, now_s: float) -> bool:
        """Say the same of one node, without comparing it to others."""
        node = self._usable(question, name, now_s)
        return node is not None and node.sent_to_at(now_s) <= _FAIR_AHEAD * usual_sent + node.slots

    def _with_history(self, question: Question) -> Question:
        """End the node's former flight for the chunk, and keep in mind whom it asked in vain."""
        flight = self._flights.of(question.chunk, question.node)
        if flight is None:
            return question
        self._close(flight)
        return replace(question, avoided=question.avoided | flight.avoided) if flight.avoided else question

    def _offers(self, question: Question, now_s: float) -> list[Offer[Member]]:
        """Return what a few can offer that have the chunk, or are fetching it."""
        choice = self.policy.choice
        offers = self._drawn(question, choice.sampled, now_s)
        if offers:
            return offers
        return self._drawn(question, _SCANNED, now_s)

    def _drawn(self, question: Question, count: int, now_s: float) -> list[Offer[Member]]:
        offers = self._holding(question, count, now_s)
        usual_sent = self._usual_sent(now_s)
        if any(has_room(offer, self.policy.choice, usual_sent) for offer in offers):
            return offers
        names = {offer.peer.name for offer in offers}
        return offers + self._drawn_pending(question, count, names, now_s)

    def _holding(self, question: Question, count: int, now_s: float) -> list[Offer[Member]]:
        """Return offers of those who have the chunk."""
        drawn = self._holdings.draw(question.layer, question.chunk, count, self._bits)
        found = (self._usable(question, name, now_s) for name in drawn)
        return [self._offer(node, 0, 0.0, now_s) for node in found if node is not None]

    def _not_full(self, offers: Sequence[Offer[Member]]) -> list[Offer[Member]]:
        return [offer for offer in offers if offer.transfers < offer.slots + self.policy.waiting]

    def _drawn_pending(self, question: Question, count: int, names: set[str], now_s: float) -> list[Offer[Member]]:
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

    def _below(self, question: Question, offers: Sequence[Offer[Member]], now_s: float) -> list[Offer[Member]]:
        """Return offers of those who follow nodes that were sent to too often already.

        Between two turns the tracker is told by few that they fetch a chunk, the root of the tree among them, while
        whoever keeps its place below them fetches it too. One that does not says so.
        """
        fair = self.policy.choice.fair_share * self._usual_sent(now_s)
        if self._every == 1 or not all(is_overused(offer, fair) for offer in offers):
            return []
        below = []
        for offer in offers:
            if offer.depth + 1 >= self.policy.choice.depth:
                continue
            name = self._followings.follower(offer.peer.name, question.layer, self._bits)
            node = None if name is None else self._usable(question, name, now_s)
            if node is not None and self._flights.of(question.chunk, node.name) is None:
                below.append(self._offer(node, offer.depth + 1, offer.delay_s, now_s))
        return below

    def _followed(self, question: Question, flight: Flight, names: set[str], now_s: float) -> Offer[Member] | None:
        if flight.node in names or flight.until_s <= now_s or flight.rooted_s < now_s - self._overdue_s:
            return None
        node = self._usable(question, flight.node, now_s)
        if node is None:
            return None
        is_followed = self._flights.followers(question.chunk, question.node) > 0
        if is_followed and self._flights.waits_for(flight, question.node):
            return None
        return self._offer(node, flight.depth, max(0.0, flight.there_s - now_s), now_s)

    def _usable(self, question: Question, name: str, now_s: float) -> Member | None:
        if name == question.node or name in question.avoided or name in question.busy:
            return None
        node = self._alive(name, now_s)
        if node is None or not node.slots or self._suspicion.shuns(question.node, name, question.chunk, now_s):
            return None
        return node

    def _offer(self, node: Member, depth: int, there_in_s: float, now_s: float) -> Offer[Member]:
        """Return what a node can offer that has a chunk, or to which it comes through so many, in so many seconds."""
        transfers = self._transfers(node, now_s)
        send_s = node.chunk_s(self.policy.choice) * (transfers + 1)
        return Offer(
            peer=node,
            bandwidth_bytes_per_s=float(node.bandwidth_bytes_per_s),
            slots=node.slots,
            transfers=transfers,
            sent_to=node.sent_to_at(now_s),
            depth=depth,
            delay_s=max(there_in_s, send_s) + self.policy.choice.relay_s if depth else send_s,
        )

    def _usual_sent(self, now_s: float) -> float:
        """Return how often somebody was sent to a node lately, in the mean of all; those that are gone count on."""
        return self._sent.sent_to_at(now_s) / max(1, len(self._nodes))

    def _transfers(self, node: Member, now_s: float) -> int:
        """Return how much a node has to send: what it said just now, or what it was given, whichever is more."""
        # What it was sending a while ago has come since, while nobody who was sent to it meanwhile is forgotten.
        said = node.uploads if now_s - node.heard_s < _LOAD_LASTS_S else 0
        return max(said, self._flights.towards(node.name), self._followings.followers(node.name))

    def _send_to_peers(
        self, question: Question, asker: Member | None, ranked: Sequence[Offer[Member]], now_s: float
    ) -> Answer:
        self._note_sent(ranked[0].peer, now_s)
        in_step = ranked[0].depth or self._is_turn(question.chunk)
        if in_step and asker is not None and self._may_follow(asker, now_s):
            parent, unseen = ranked[0].peer.name, self._every - 1
            self._followings.begin(question.node, question.layer, parent, unseen, now_s)
            self._charge(parent, unseen, now_s)
        self._begin(question, asker, now_s, ranked)
        return _named(question.chunk, ranked)

    def _note_sent(self, node: Member, now_s: float, times: int = 1) -> None:
        node.note_sent(now_s, times)
        self._sent.note_sent(now_s, times)
        self._to_peers += times

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
        if not self._is_turn(question.chunk) or question.chunk in asker.stood_back:
            return False
        if self._holdings.count(question.layer, question.chunk):
            return False  # Whoever asks now is late, and is followed by few.
        if asker.sent_to_at(now_s) <= self._usual_sent(now_s):
            return False
        if len(asker.stood_back) >= _STOOD_BACK:
            asker.stood_back.clear()
        asker.stood_back.add(question.chunk)
        return True

    def _may_follow(self, node: Member, now_s: float) -> bool:
        """Say whether a node may keep its place: where many are, who does not know what it fetches next."""
        return self._every > 1 and now_s >= node.planned_s + _PLAN_LASTS_S

    def _is_turn(self, chunk: str) -> bool:
        """Say whether nodes that keep places ask for a chunk all the same."""
        return is_turn(chunk, self._every)

    def _tell_to_wait(self, question: Question, wait_s: float = 0.0) -> Answer:
        self._to_wait += 1
        spread = 0.5 + self._bits(_JITTER_BITS) / (1 << _JITTER_BITS)
        return Answer(chunk=question.chunk, wait_s=(wait_s or self.policy.wait_s) * spread)


def _named(chunk: str, ranked: Sequence[Offer[Member]]) -> Answer:
    peers = (Candidate(node=each.peer.name, address=each.peer.address, pending=each.depth > 0) for each in ranked)
    return Answer(chunk=chunk, peers=tuple(peers))
