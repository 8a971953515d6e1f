"""Limits of services by use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.rate_limits import rate_limits


@given(rate=st.floats(0.01, 100), tokens=st.integers(1, 100_000), time=st.floats(0.1, 60))
def test_growing_by_the_factor_reaches_the_first_limit(rate: float, tokens: int, time: float) -> None:
    def limits(requests_per_s: float) -> tuple[float, bool]:
        result = rate_limits(
            requests_per_s=requests_per_s, tokens_per_request=tokens, request_s=time,
            request_limit_per_minutes=4_000, token_limit_tokens_per_minutes=10e6, concurrency_limit=500,
        )  # fmt: skip
        return result.growth, result.is_within

    growth, is_within = limits(rate)
    assert is_within == (growth >= 1)
    assert limits(rate * growth)[0] == pytest.approx(1)


def test_longer_requests_reach_the_limit_of_tokens_first() -> None:
    def binding(tokens: int) -> str:
        return rate_limits(
            requests_per_s=30, tokens_per_request=tokens, request_s=1,
            request_limit_per_minutes=4_000, token_limit_tokens_per_minutes=10e6,
        ).binding  # fmt: skip

    assert binding(1_000) == "requests"
    assert binding(10_000) == "tokens"


def test_a_service_that_limits_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no limit"):
        rate_limits(requests_per_s=1, tokens_per_request=1, request_s=1)
