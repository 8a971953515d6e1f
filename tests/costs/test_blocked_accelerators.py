"""Accelerators that wait for verification."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.blocked_accelerators import blocked_accelerators


@given(saved=st.floats(0, 1e4), blocked=st.integers(0, 1000), delay=st.floats(0.01, 100))
def test_saving_pays_exactly_below_the_break_even_size(saved: float, blocked: int, delay: float) -> None:
    result = blocked_accelerators(saved_gpu_s=saved, blocked_gpus=blocked, delay_s=delay)
    assert result.net_gpu_s == pytest.approx(result.waited_gpu_s - saved)
    assert result.pays == (result.net_gpu_s < 0)
    if not math.isclose(blocked, result.break_even_gpus, rel_tol=1e-9):
        assert result.pays == (blocked < result.break_even_gpus)


def test_nobody_waits_for_nothing() -> None:
    assert math.isinf(blocked_accelerators(saved_gpu_s=1, blocked_gpus=64, delay_s=0).break_even_gpus)
    with pytest.raises(InvalidRequestError, match="delay_s"):
        blocked_accelerators(saved_gpu_s=1, blocked_gpus=64, delay_s=-1)
