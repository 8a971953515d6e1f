"""Instances that are taken away soon."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.short_lived_instance import useful_yield

lives = st.floats(0.1, 1e5)


@given(available=lives, preparation=st.floats(0, 1e5), rate=st.floats(0.1, 1e4))
def test_yield_is_rate_times_window_and_scales_with_it(available: float, preparation: float, rate: float) -> None:
    one = useful_yield(available_s=available, preparation_s=preparation, rate_tokens_per_s=rate)
    two = useful_yield(available_s=available, preparation_s=preparation, rate_tokens_per_s=2 * rate)
    assert 0 <= one.working_share <= 1
    assert two.yielded_tokens == pytest.approx(2 * one.yielded_tokens)


@given(short=lives, long=lives, preparation=st.floats(0, 100))
def test_a_longer_life_works_for_a_larger_share(short: float, long: float, preparation: float) -> None:
    short, long = sorted((short, long))
    share = useful_yield(available_s=short, preparation_s=preparation).working_share
    assert share <= useful_yield(available_s=long, preparation_s=preparation).working_share + 1e-9


def test_shorter_preparation_helps_the_shortest_life_most() -> None:
    def gain(available_s: float) -> float:
        slow = useful_yield(available_s=available_s, preparation_s=8, rate_tokens_per_s=100).yielded_tokens
        return useful_yield(available_s=available_s, preparation_s=4, rate_tokens_per_s=100).yielded_tokens / slow

    assert gain(10) > gain(20) > gain(40) > 1


def test_a_life_of_no_length_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="available_s"):
        useful_yield(available_s=0, preparation_s=8)
