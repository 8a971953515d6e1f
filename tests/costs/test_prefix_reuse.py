"""Saved prefixes of interrupted generations."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.prefix_reuse import resume_group, resumption_balance


@given(saved=st.lists(st.integers(0, 100_000), min_size=1, max_size=20))
def test_each_answer_keeps_the_shortest_length_and_none_is_lost_from_the_count(saved: list[int]) -> None:
    group = resume_group(saved_tokens=saved)
    assert group.reused_tokens + group.regenerated_tokens == sum(saved)
    assert group.regenerated_tokens == sum(length - min(saved) for length in saved)
    assert 0 <= group.reused_share <= 1


def test_resuming_can_be_slower_than_starting_again() -> None:
    balance = resumption_balance(resumed_s=12.8, restarted_s=11.6, reused_tokens=96)
    assert not balance.resuming_is_faster
    assert balance.break_even_s_per_token == pytest.approx(0.0125)


def test_without_reuse_no_pace_makes_resuming_pay() -> None:
    balance = resumption_balance(resumed_s=2, restarted_s=1, reused_tokens=0)
    assert math.isinf(balance.break_even_s_per_token)


def test_an_empty_group_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="saved_tokens"):
        resume_group(saved_tokens=[])
