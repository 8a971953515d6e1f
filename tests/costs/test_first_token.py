"""Waiting for the first token."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.first_token import Backend, compare_backends, time_to_generation_s

times = st.floats(0, 10)
backends = st.builds(Backend, queue_s=times, prefix_s=times, network_s=times)


@given(first=backends, second=backends)
def test_at_the_break_even_queue_both_begin_together(first: Backend, second: Backend) -> None:
    choice = compare_backends(first=first, second=second)
    assert choice.lead_s == pytest.approx(-compare_backends(first=second, second=first).lead_s, abs=1e-9)
    if choice.break_even_queue_s >= 0:
        even = replace(first, queue_s=choice.break_even_queue_s)
        assert time_to_generation_s(backend=even) == pytest.approx(choice.second_s, abs=1e-9)


def test_a_negative_time_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="queue_s"):
        time_to_generation_s(backend=Backend(queue_s=-1, prefix_s=0))
