"""Whom to name for chunks that are going to be fetched soon: a few peers for all of them together.

Comparing six peers for each chunk by itself took most of a tracker's time. A few that have something of the layer are
drawn once for a whole question instead, and each chunk is given to whichever of those that have it was given least so
far, the better ones first. So a node takes what comes next from several peers at once, and each question draws others.

Nobody is told to wait for such chunks, and they load nobody yet; but they count in what is fair. What is fair is taken
more coarsely here, as much happens until their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from dsec.distribution.choice import Offer, is_overused, rank
from dsec.distribution.members import Member
from dsec.distribution.messages import Answer, Candidate, Lookup
from dsec.distribution.offers import Offers
from dsec.distribution.policy import TrackerPolicy
from dsec.distribution.question import Question
from dsec.distribution.suspicion import Suspicion
from dsec.distribution.swarm import Swarm
from dsec.placement.sampling import RandomBits

_Peer = TypeVar("_Peer")
_COMPARED, _OTHERS = 8, 2
"""So many are drawn for all chunks of a question, and for each that none of those has."""
_FAIR = 1.5
"""As `ChoicePolicy.fair_share`."""


class ChoiceAhead:
    """Chooses for whole questions.

    Args:
        policy: settings.
        swarm: the nodes.
        suspicion: what is suspected of them.
        offers: what they can offer.
        bits: source of randomness.
    """

    def __init__(
        self, policy: TrackerPolicy, swarm: Swarm, suspicion: Suspicion, offers: Offers, bits: RandomBits
    ) -> None:
        self._policy = policy
        self._swarm = swarm
        self._members = swarm.members
        self._suspicion = suspicion
        self._offers = offers
        self._bits = bits

    def answer(self, lookup: Lookup, now_s: float) -> tuple[Answer, ...]:
        """Say who has chunks that are going to be fetched soon, and count that who asks was sent there."""
        if not lookup.ahead:
            return ()
        usual_sent = self._members.usual_sent(now_s)

        def others(chunk: str) -> list[str]:
            question = Question(lookup.node, lookup.layer, chunk)
            drawn = self._swarm.holdings.draw(lookup.layer, chunk, _OTHERS, self._bits)
            return [name for name in drawn if self._has_spare(question, name, usual_sent, now_s)]

        peers = self._peers(lookup, usual_sent, now_s)
        shared, given = share_out(lookup.ahead, peers, others, self._policy.choice.candidates)
        for name, times in given.items():
            self._members.note_sent(self._members[name], now_s, times)
        candidates = {
            name: Candidate(node=name, address=self._members[name].address) for _, named in shared for name in named
        }
        for chunk, named in shared:
            self._swarm.proposals.remember(lookup.node, chunk, frozenset(named))
        return tuple(Answer(chunk=chunk, peers=tuple(candidates[name] for name in named)) for chunk, named in shared)

    def _peers(self, lookup: Lookup, usual_sent: float, now_s: float) -> list[tuple[str, frozenset[str]]]:
        """Return a few that have something of a layer, the best first, and of each what it has of what is wanted."""
        wanted, has, offers = frozenset(lookup.ahead), {}, []
        for name in self._swarm.holdings.draw_some(lookup.layer, _COMPARED, self._bits):
            node = self._members.alive(name, now_s)
            if name == lookup.node or node is None or not node.slots:
                continue
            chunks = self._swarm.holdings.among(name, lookup.layer, wanted)
            if self._suspicion.may_shun(lookup.node, name):
                shuns = self._suspicion.shuns
                chunks = frozenset(chunk for chunk in chunks if not shuns(lookup.node, name, chunk, now_s))
            if chunks:
                has[name] = chunks
                offers.append(self._offers.of(node, now_s))
        ranked = rank(self._fair(offers, usual_sent), self._policy.choice, self._bits, usual_sent)
        return [(offer.peer.name, has[offer.peer.name]) for offer in ranked]

    def _fair(self, offers: Sequence[Offer[Member]], usual_sent: float) -> list[Offer[Member]]:
        return [offer for offer in self._offers.not_full(offers) if not is_overused(offer, _FAIR * usual_sent)]

    def _has_spare(self, question: Question, name: str, usual_sent: float, now_s: float) -> bool:
        """Say whether it is fair to send somebody to one node, without comparing it to others."""
        node = self._offers.usable(question, name, now_s)
        return node is not None and node.sent_to_at(now_s) <= _FAIR * usual_sent + node.slots


def share_out(
    wanted: Iterable[str],
    peers: Sequence[tuple[_Peer, frozenset[str]]],
    others: Callable[[str], Sequence[_Peer]],
    most: int,
) -> tuple[list[tuple[str, list[_Peer]]], dict[_Peer, int]]:
    """Return for each chunk whom to ask, one after the other, and how many chunks each of them is asked for first.

    Args:
        wanted: names of chunks; one that nobody has is left out.
        peers: the best first; and what of the chunks each has.
        others: returns peers that have a chunk, where none of those has it.
        most: how many are named for a chunk.
    """
    having: dict[str, list[_Peer]] = {}
    for peer, chunks in peers:
        for chunk in chunks:
            having.setdefault(chunk, []).append(peer)
    given: dict[_Peer, int] = {}
    shared = []
    for chunk in wanted:
        found = having.get(chunk) or others(chunk)
        if not found:
            continue
        counts = [given.get(peer, 0) for peer in found]
        first = counts.index(min(counts))
        chosen = found[first]
        given[chosen] = counts[first] + 1
        named = [chosen]
        for peer in found:
            if len(named) >= most:
                break
            if peer is not chosen:
                named.append(peer)
        shared.append((chunk, named))
    return shared, given
