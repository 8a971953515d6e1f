"""Phases of an iteration of training."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.rl_iteration import generation_s, rl_iteration

times = st.floats(0.1, 1e3)


@given(generate=times, verify=times, update=times, publish=times, speedup=st.floats(1, 1e4))
def test_faster_generation_shortens_an_iteration_down_to_the_rest(
    generate: float, verify: float, update: float, publish: float, speedup: float
) -> None:
    before = rl_iteration(generate_s=generate, verify_s=verify, update_s=update, publish_s=publish)
    after = rl_iteration(
        generate_s=generate, verify_s=verify, update_s=update, publish_s=publish, generate_speedup=speedup
    )
    assert before.rest_s <= after.total_s <= before.total_s
    assert before.total_s / after.total_s <= before.speedup_limit * (1 + 1e-9)


@given(generate=times, verify=times, hidden_share=st.floats(0, 1))
def test_hiding_verification_saves_what_fits_behind_generation(
    generate: float, verify: float, hidden_share: float
) -> None:
    hidden = hidden_share * verify
    plain = rl_iteration(generate_s=generate, verify_s=verify, update_s=1, publish_s=1)
    beside = rl_iteration(generate_s=generate, verify_s=verify, update_s=1, publish_s=1, hidden_verify_s=hidden)
    assert plain.total_s - beside.total_s == pytest.approx(min(hidden, generate), abs=1e-9)


def test_generation_takes_work_over_rate() -> None:
    assert generation_s(useful_tokens=4_000_000, rate_tokens_per_s=100_000) == 40
    with pytest.raises(InvalidRequestError, match="rate_tokens_per_s"):
        generation_s(useful_tokens=1, rate_tokens_per_s=0)


def test_more_verification_cannot_be_hidden_than_there_is() -> None:
    with pytest.raises(InvalidRequestError, match="hidden_verify_s"):
        rl_iteration(generate_s=1, verify_s=1, update_s=1, publish_s=1, hidden_verify_s=2)


@pytest.mark.parametrize("phase", ["generate_s", "verify_s", "update_s", "publish_s"])
def test_a_negative_phase_is_named(phase: str) -> None:
    phases = {"generate_s": 1.0, "verify_s": 1.0, "update_s": 1.0, "publish_s": 1.0, phase: -1.0}
    with pytest.raises(InvalidRequestError, match=phase):
        rl_iteration(**phases)
