"""Which of those who have a chunk is asked: the score, and what comes before it.

The score of a peer is ``0.6 * bandwidth + 0.4 * (1 - load)``, both from 0 to 1: its bandwidth in proportion to the
largest among those compared, and the share of its transfers that are taken (training report; the weights are settings).
By the score alone the fastest node would be asked by everybody until it is nearly full, and one that merely *says* that
it is fast would be asked most. Before it counts, therefore, in this order:

1. those who have the chunk and a free slot, unless it comes sooner through one that is only fetching it;
2. those through whom it comes soonest. A chunk is passed on while it comes, so that a chain of nodes costs little more
   than one transfer (`ChoicePolicy.relay_s` for each), and a second transfer at the same node costs a whole one;
3. those of either kind that were sent to more often than is fair;
4. those who have it, and with whom one has to queue.

Compared are a few that are drawn at random, so that not everybody compares the same ones (the power of a few choices:
Mitzenmacher, 2001), and equals are told apart by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from dsec.distribution.policy import ChoicePolicy
from dsec.placement.sampling import RandomBits

_Peer = TypeVar("_Peer")
_TIE_BITS = 16
_SOONEST = 2


class Offer(msgspec.Struct, Generic[_Peer], gc=False):
    """A peer that could give a chunk. A `msgspec.Struct`, as several are made for each chunk that somebody asks for.

    Attributes:
        peer: which.
        bandwidth_bytes_per_s: that it says it can send; 0: it does not say, and is taken for the mean of those that do.
        slots: transfers that it carries out at a time, at least 1.
        transfers: that it has, waiting ones included.
        sent_to: how often somebody was sent to it lately.
        depth: 0: it has the chunk; otherwise how many it has to come through.
        delay_s: how long it takes until whoever asks has the chunk.
    """

    peer: _Peer
    bandwidth_bytes_per_s: float
    slots: int
    transfers: int
    sent_to: float
    depth: int = 0
    delay_s: float = 0.0


def score(bandwidth: float, load: float, policy: ChoicePolicy) -> float:
    """Return how good a peer is; both arguments and the result are from 0 to 1 where the weights add up to 1."""
    return policy.bandwidth_weight * bandwidth + policy.load_weight * (1.0 - load)


def rank(
    offers: Sequence[Offer[_Peer]], policy: ChoicePolicy, bits: RandomBits, usual_sent: float = math.inf
) -> list[Offer[_Peer]]:
    """Return the offers, the best first.

    Args:
        offers: what is compared.
        policy: settings.
        bits: source of randomness.
        usual_sent: how often somebody was sent to a node lately, in the mean of all. Of two that are compared, one can
            have three times as much as the other and be 1.5 times their mean; who runs ahead of all others, and so has
            each chunk first, would be sent to by all of them.
    """
    if len(offers) == 1:
        return list(offers)
    known = [offer.bandwidth_bytes_per_s for offer in offers if offer.bandwidth_bytes_per_s]
    most, usual = (max(known), sum(known) / len(known)) if known else (1.0, 1.0)
    fair = policy.fair_share * min(usual_sent, sum(offer.sent_to for offer in offers) / max(1, len(offers)))
    soonest = min((each.delay_s for each in offers if each.depth and not is_overused(each, fair)), default=math.inf)
    keyed = [
        (
            at_class := _class_of(offer, fair, soonest),
            offer.delay_s if at_class == _SOONEST else 0.0,
            -score((offer.bandwidth_bytes_per_s or usual) / most, min(1.0, offer.transfers / offer.slots), policy),
            bits(_TIE_BITS),
            at,
        )
        for at, offer in enumerate(offers)
    ]
    keyed.sort()
    return [offers[key[-1]] for key in keyed]


def has_room(offer: Offer[_Peer], policy: ChoicePolicy = ChoicePolicy(), usual_sent: float = math.inf) -> bool:
    """Say whether a peer has the chunk and a slot for it, sends at once, and has not sent too much: it comes through
    nobody else sooner then.
    """
    has_slot = not offer.depth and offer.transfers < offer.slots
    is_soon = not offer.transfers or offer.delay_s * offer.transfers / (offer.transfers + 1) <= policy.relay_s
    return has_slot and is_soon and not is_overused(offer, policy.fair_share * usual_sent)


def is_overused(offer: Offer[_Peer], fair: float) -> bool:
    """Say whether a peer was sent to more often than is fair."""
    # The slots are what chance may do in the first moments, when the mean is hardly anything.
    return offer.sent_to > fair + offer.slots


def _class_of(offer: Offer[_Peer], fair: float, soonest: float) -> int:
    if offer.transfers >= offer.slots and not offer.depth:
        return 4
    if is_overused(offer, fair):
        return 3
    return _SOONEST if offer.depth or offer.delay_s > soonest else 1
