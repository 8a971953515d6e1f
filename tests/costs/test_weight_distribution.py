"""Sending weights through a shared uplink."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.weight_distribution import weight_distribution

rates = st.floats(1e6, 1e12)
sizes = st.floats(1, 1e12)


@given(weight=sizes, receivers=st.integers(1, 500), sender=rates, receiver=rates)
def test_bounds_grow_with_receivers_and_shrink_with_rates(
    weight: float, receivers: int, sender: float, receiver: float
) -> None:
    base = weight_distribution(
        weight_bytes=weight, receivers=receivers, sender_bits_per_s=sender, receiver_bits_per_s=receiver
    )
    more = weight_distribution(
        weight_bytes=weight, receivers=receivers + 1, sender_bits_per_s=sender, receiver_bits_per_s=receiver
    )
    faster = weight_distribution(
        weight_bytes=weight, receivers=receivers, sender_bits_per_s=2 * sender, receiver_bits_per_s=2 * receiver
    )
    assert base.one_s <= base.all_s <= more.all_s
    assert faster.all_s == pytest.approx(base.all_s / 2)


@given(weight=sizes, receivers=st.integers(1, 50), sender=rates, receiver=rates)
def test_bound_holds_for_a_fair_share_of_both_links(
    weight: float, receivers: int, sender: float, receiver: float
) -> None:
    bound = weight_distribution(
        weight_bytes=weight, receivers=receivers, sender_bits_per_s=sender, receiver_bits_per_s=receiver
    )
    # All transfers at once, each at the smaller of its own link and its share of the uplink: that reaches the bound.
    each_bytes_per_s = min(receiver, sender / receivers) / 8
    assert weight / each_bytes_per_s == pytest.approx(bound.all_s)


def test_loading_comes_after_the_transfer() -> None:
    bound = weight_distribution(weight_bytes=100, receivers=1, sender_bits_per_s=800, receiver_bits_per_s=800, load_s=3)
    assert (bound.all_s, bound.ready_s, bound.binding) == (1, 4, "receiver")


@pytest.mark.parametrize("name", ["weight_bytes", "receivers", "sender_bits_per_s", "receiver_bits_per_s"])
def test_a_missing_size_or_rate_is_named(name: str) -> None:
    arguments = {"weight_bytes": 1.0, "sender_bits_per_s": 1.0, "receiver_bits_per_s": 1.0, "receivers": 1, name: 0}
    with pytest.raises(InvalidRequestError, match=name):
        weight_distribution(**arguments)
