"""Environment and model state, recovered side by side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.parallel_recovery import parallel_recovery


@given(
    environment=st.floats(0, 100), state=st.floats(0, 1e12), rate=st.floats(1e6, 1e12),
    tokens=st.integers(0, 10_000), pace=st.floats(0, 0.01), query=st.floats(0, 1),
)  # fmt: skip
def test_side_by_side_takes_the_longer_and_one_after_the_other_both(
    environment: float, state: float, rate: float, tokens: int, pace: float, query: float
) -> None:
    recovery = parallel_recovery(
        environment_s=environment, state_bytes=state, fetch_bytes_per_s=rate,
        replayed_tokens=tokens, replay_s_per_token=pace, query_s=query,
    )  # fmt: skip
    model_s = state / rate + tokens * pace
    assert recovery.parallel_s == pytest.approx(max(environment, model_s) + query)
    assert recovery.serial_s == pytest.approx(environment + model_s + query)
    assert recovery.saved_s == pytest.approx(recovery.serial_s - recovery.parallel_s, abs=1e-6)
    assert recovery.slack_s == pytest.approx(abs(environment - model_s), abs=1e-9)


def test_the_side_with_slack_may_take_that_much_longer_without_harm() -> None:
    recovery = parallel_recovery(environment_s=2.7, state_bytes=2e9, fetch_bytes_per_s=3.125e9)
    slower = parallel_recovery(
        environment_s=2.7, state_bytes=2e9 + recovery.slack_s * 3.125e9, fetch_bytes_per_s=3.125e9
    )
    assert recovery.binding == "environment"
    assert slower.parallel_s == pytest.approx(recovery.parallel_s)


def test_a_link_without_a_rate_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="fetch_bytes_per_s"):
        parallel_recovery(environment_s=1, state_bytes=1, fetch_bytes_per_s=0)
