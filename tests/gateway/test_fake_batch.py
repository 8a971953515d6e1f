"""How far the tokens of calls side by side are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.costs.model_service import call_time_s
from dsec.gateway.fake.batch import Batch
from dsec.routing.backend import Backend, Pace

BACKEND = Backend(name="b", group="m", pace=(Pace(calls=1, s_per_token=0.01), Pace(calls=3, s_per_token=0.03)))


@given(st.integers(1, 6), st.integers(0, 5000))
def test_in_an_unchanged_batch_a_call_takes_what_the_formula_says(calls: int, tokens: int) -> None:
    batch = Batch(BACKEND)
    for _ in range(calls):
        batch.enter(100.0)
    start = batch.tokens(100.0)
    expected = call_time_s(output_tokens=tokens, pace_s_per_token=BACKEND.s_per_token(calls))
    assert batch.wait_s(start + tokens, 100.0) == pytest.approx(expected)
    assert batch.tokens(100.0 + expected) == pytest.approx(start + tokens)


def test_calls_that_come_slow_the_others_down_and_calls_that_go_let_them_speed_up() -> None:
    batch = Batch(BACKEND)
    batch.enter(0.0)
    assert batch.tokens(1.0) == pytest.approx(100)
    batch.enter(1.0)
    batch.enter(1.0)
    assert batch.tokens(2.5) == pytest.approx(150)
    batch.leave(2.5)
    assert batch.wait_s(200, 2.5) == pytest.approx(1.0)
    batch.leave(2.5)
    assert batch.wait_s(200, 2.5) == pytest.approx(0.5)


def test_a_clock_that_goes_back_takes_no_tokens_back() -> None:
    batch = Batch(BACKEND)
    batch.enter(5.0)
    far = batch.tokens(6.0)
    assert batch.tokens(5.5) == far


def test_without_a_pace_nothing_takes_time() -> None:
    batch = Batch(Backend(name="b", group="m"))
    batch.enter(0.0)
    assert batch.wait_s(1e9, 0.0) == 0.0
