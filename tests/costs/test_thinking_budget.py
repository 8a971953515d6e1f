"""Shorter thinking against calls made again."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.thinking_budget import thinking_budget


@given(calls=st.integers(1, 1000), saved=st.floats(0.001, 1), retry=st.floats(0.001, 10), share=st.floats(0, 1))
def test_it_pays_exactly_below_the_break_even_share(calls: int, saved: float, retry: float, share: float) -> None:
    retries = round(share * calls)
    budget = thinking_budget(calls=calls, saved_usd_per_call=saved, retries=retries, retry_usd=retry)
    assert budget.net_usd == pytest.approx(calls * saved - retries * retry, abs=1e-9)
    if abs(budget.net_usd) > 1e-9:
        assert budget.pays == (retries < budget.break_even_retries)


def test_sampled_retries_cost_what_the_formula_says() -> None:
    rng = random.Random(3)
    runs = [sum(rng.random() < 0.3 for _ in range(100)) for _ in range(500)]
    mean_net = sum(100 * 0.009 - retries * 0.032 for retries in runs) / len(runs)
    budget = thinking_budget(calls=100, saved_usd_per_call=0.009, retries=30, retry_usd=0.032)
    assert mean_net == pytest.approx(budget.net_usd, abs=0.02)


def test_no_calls_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="calls is 0"):
        thinking_budget(calls=0, saved_usd_per_call=1, retries=0, retry_usd=1)
