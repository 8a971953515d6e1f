"""Prices of calls by the token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.token_prices import TokenPrices, call_cost

PRICES = TokenPrices(
    input_usd_per_mtoken=2, output_usd_per_mtoken=10, cache_write_usd_per_mtoken=2.5, cache_read_usd_per_mtoken=0.2
)
tokens = st.integers(0, 1_000_000)


@given(ordinary=tokens, written=tokens, read=tokens, thinking=tokens, visible=tokens)
def test_a_call_is_the_sum_of_what_it_is_charged_for(
    ordinary: int, written: int, read: int, thinking: int, visible: int
) -> None:
    cost = call_cost(
        prices=PRICES, input_tokens=ordinary, cache_write_tokens=written, cache_read_tokens=read,
        thinking_tokens=thinking, visible_tokens=visible, storage_usd=0.5, tool_usd=0.25,
    )  # fmt: skip
    by_hand = (ordinary * 2 + written * 2.5 + read * 0.2 + (thinking + visible) * 10) / 1e6
    assert cost.total_usd == pytest.approx(by_hand + 0.75)
    assert cost.extra_usd == 0.75


@given(total=tokens, cached=st.floats(0, 1))
def test_moving_input_into_the_cache_never_costs_more_to_read(total: int, cached: float) -> None:
    plain = call_cost(prices=PRICES, input_tokens=total).total_usd
    mixed = call_cost(prices=PRICES, input_tokens=total * (1 - cached), cache_read_tokens=total * cached).total_usd
    assert mixed <= plain * (1 + 1e-12)


def test_thinking_is_charged_as_output() -> None:
    thought = call_cost(prices=PRICES, thinking_tokens=300).total_usd
    assert thought == call_cost(prices=PRICES, visible_tokens=300).total_usd


def test_a_service_without_a_price_is_refused_only_where_the_price_is_needed() -> None:
    prices = TokenPrices(input_usd_per_mtoken=2, output_usd_per_mtoken=10)
    assert call_cost(prices=prices, input_tokens=1_000_000).total_usd == 2
    with pytest.raises(InvalidRequestError, match="no price for cache reads") as caught:
        call_cost(prices=prices, cache_read_tokens=1)
    assert "USD/Mtoken" in caught.value.resolution
    with pytest.raises(InvalidRequestError, match="no price for output"):
        call_cost(prices=TokenPrices(input_usd_per_mtoken=1), thinking_tokens=1)


def test_negative_tokens_and_prices_are_named() -> None:
    with pytest.raises(InvalidRequestError, match="cache_write_tokens is -1"):
        call_cost(prices=PRICES, cache_write_tokens=-1)
    with pytest.raises(InvalidRequestError, match="price of ordinary input is -2"):
        call_cost(prices=TokenPrices(input_usd_per_mtoken=-2), input_tokens=1)
