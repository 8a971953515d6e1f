"""Agent loops after a preemption."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.loop_recovery import loop_recovery


@given(finished=st.integers(0, 10_000), tool=st.floats(0.1, 60), read=st.floats(0, 0.1), reconnect=st.floats(0, 60))
def test_each_step_towards_durable_state_recovers_no_slower(
    finished: int, tool: float, read: float, reconnect: float
) -> None:
    def recovery_s(*, loop_survives: bool, has_log: bool) -> float:
        return loop_recovery(
            finished=finished, tool_s=tool, read_s=read, reconnect_s=reconnect,
            loop_survives=loop_survives, has_log=has_log,
        ).recovery_s  # fmt: skip

    survived = recovery_s(loop_survives=True, has_log=True)
    logged = recovery_s(loop_survives=False, has_log=True)
    assert reconnect == survived <= logged <= recovery_s(loop_survives=False, has_log=False)


def test_calls_run_twice_only_where_nothing_was_recorded() -> None:
    lost = loop_recovery(finished=5, tool_s=2, read_s=0.1, reconnect_s=1, loop_survives=False, has_log=False)
    assert (lost.executed_again, lost.repeated_work_s, lost.replayed) == (5, 10, 0)
    logged = loop_recovery(finished=5, tool_s=2, read_s=0.1, reconnect_s=1, loop_survives=False)
    assert (logged.executed_again, logged.replayed, logged.recovery_s) == (0, 5, 1.5)


def test_a_negative_time_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="read_s"):
        loop_recovery(finished=1, tool_s=1, read_s=-1, reconnect_s=1, loop_survives=True)
