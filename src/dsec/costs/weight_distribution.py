"""How long it takes to send the same weights to many receivers through one shared uplink.

A receiver cannot take its copy faster than its own link; the sender cannot send all copies faster than its own:

    T_one >= W / B_receiver,      T_all >= max(W / B_receiver, n W / B_sender).

These are lower bounds: no protocol overhead, no loading into accelerator memory, no relaying between receivers. A
receiver that splits the model over several cards still receives one whole copy. Source: the chapter, example 11-4.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.costs.checks import check_count, check_not_negative, check_positive

_BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightDistribution:
    """Lower bounds for sending one model to several receivers.

    Attributes:
        weight_bytes: one copy.
        sent_bytes: all copies, which pass the sender's uplink.
        receiver_link_s: one copy through one receiver's link.
        sender_link_s: all copies through the sender's uplink.
        one_s: until one receiver has its copy at the earliest.
        all_s: until the last receiver has its copy.
        ready_s: until the last receiver has loaded its copy too.
        binding: which link sets `all_s`: "sender" or "receiver".
        receivers_before_sender_binds: as many receivers as the uplink serves without being the narrower link.
    """

    weight_bytes: float
    sent_bytes: float
    receiver_link_s: float
    sender_link_s: float
    one_s: float
    all_s: float
    ready_s: float
    binding: str
    receivers_before_sender_binds: int


def weight_distribution(
    *,
    weight_bytes: float,
    receivers: int,
    sender_bits_per_s: float,
    receiver_bits_per_s: float,
    load_s: float = 0.0,
) -> WeightDistribution:
    """Return the lower bounds for sending `weight_bytes` to each of `receivers`.

    Args:
        weight_bytes: size of one whole copy.
        receivers: how many instances each get one.
        sender_bits_per_s: rate of the sender's uplink, shared by all transfers.
        receiver_bits_per_s: rate of each receiver's link.
        load_s: what a receiver does with the copy before it can work (load it, check its version).

    Raises:
        InvalidRequestError: a size or rate is not above 0, or there is no receiver.

    Formula:
        T_one ≥ W / B_receiver,   T_all ≥ max(W / B_receiver, n · W / B_sender)

    Source:
        the chapter, example 11-4
    """
    check_positive("weight_bytes", weight_bytes, "bytes")
    check_count("receivers", receivers)
    check_not_negative("load_s", load_s, "s")
    sender_bytes_per_s = check_positive("sender_bits_per_s", sender_bits_per_s, "bit/s") / _BITS_PER_BYTE
    receiver_bytes_per_s = check_positive("receiver_bits_per_s", receiver_bits_per_s, "bit/s") / _BITS_PER_BYTE
    receiver_s = weight_bytes / receiver_bytes_per_s
    sender_s = receivers * weight_bytes / sender_bytes_per_s
    all_s = max(receiver_s, sender_s)
    return WeightDistribution(
        weight_bytes=weight_bytes,
        sent_bytes=receivers * weight_bytes,
        receiver_link_s=receiver_s,
        sender_link_s=sender_s,
        one_s=max(receiver_s, weight_bytes / sender_bytes_per_s),
        all_s=all_s,
        ready_s=all_s + load_s,
        binding="sender" if sender_s > receiver_s else "receiver",
        receivers_before_sender_binds=int(sender_bytes_per_s / receiver_bytes_per_s),
    )
