"""Prefixes that are cached."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.prefix_cache import break_even_uses, hit_shares, prefix_cache
from dsec.costs.token_prices import TokenPrices, call_cost

prices = st.floats(0, 100)


@given(
    prefix=st.integers(1, 100_000), new=st.integers(0, 10_000), uses=st.integers(1, 30),
    ordinary=st.floats(0.1, 100), write=prices, read=prices,
)  # fmt: skip
def test_uses_one_by_one_add_up_to_the_same(
    prefix: int, new: int, uses: int, ordinary: float, write: float, read: float
) -> None:
    book = TokenPrices(input_usd_per_mtoken=ordinary, cache_write_usd_per_mtoken=write, cache_read_usd_per_mtoken=read)
    calls = [call_cost(prices=book, input_tokens=new, cache_write_tokens=prefix)]
    calls += [call_cost(prices=book, input_tokens=new, cache_read_tokens=prefix) for _ in range(uses - 1)]
    plain = call_cost(prices=book, input_tokens=new + prefix).total_usd * uses
    cache = prefix_cache(
        prefix_tokens=prefix, new_tokens=new, uses=uses, input_usd_per_mtoken=ordinary,
        cache_write_usd_per_mtoken=write, cache_read_usd_per_mtoken=read,
    )  # fmt: skip
    assert cache.cached_usd == pytest.approx(sum(call.total_usd for call in calls))
    assert cache.uncached_usd == pytest.approx(plain)


@given(ordinary=st.integers(1, 50), write=st.integers(1, 200), read=st.integers(0, 60))
def test_first_cheaper_use_is_the_one_that_counting_finds(ordinary: int, write: int, read: int) -> None:
    cache = prefix_cache(
        prefix_tokens=1000, new_tokens=0, uses=1, input_usd_per_mtoken=ordinary,
        cache_write_usd_per_mtoken=write, cache_read_usd_per_mtoken=read,
    )  # fmt: skip
    counted = next((n for n in range(1, 500) if n * ordinary > write + (n - 1) * read), 0)
    if read < ordinary:
        assert cache.cheaper_from_use == counted
    else:
        assert cache.cheaper_from_use == 0
        assert math.isinf(cache.break_even_uses)


def test_longer_lived_entries_pay_with_more_uses() -> None:
    even = break_even_uses(input_usd_per_mtoken=2, cache_write_usd_per_mtoken=2.5, cache_read_usd_per_mtoken=0.2)
    dearer = break_even_uses(input_usd_per_mtoken=2, cache_write_usd_per_mtoken=4, cache_read_usd_per_mtoken=0.2)
    assert 1 < even < 2 < dearer


@given(requests=st.lists(st.tuples(st.integers(1, 9_000), st.booleans()), min_size=1, max_size=20))
def test_shares_count_requests_and_tokens(requests: list[tuple[int, bool]]) -> None:
    shares = hit_shares(prefix_tokens=[n for n, _ in requests], hit=[int(hit) for _, hit in requests])
    assert shares.request_share == pytest.approx(sum(hit for _, hit in requests) / len(requests))
    assert shares.token_share == pytest.approx(sum(n for n, hit in requests if hit) / sum(n for n, _ in requests))


@pytest.mark.parametrize(("lengths", "hit"), [([1.0], [1, 0]), ([1.0], [2])])
def test_hits_are_zeros_and_ones_for_every_prefix(lengths: list[float], hit: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="hit is"):
        hit_shares(prefix_tokens=lengths, hit=hit)
