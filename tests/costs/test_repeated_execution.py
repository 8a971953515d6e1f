"""Results delivered twice and work run twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.repeated_execution import repeated_execution


@given(work=st.floats(0, 100), executions=st.integers(1, 10), deliveries=st.integers(1, 10))
def test_deliveries_cost_nothing_and_executions_cost_each_time(work: float, executions: int, deliveries: int) -> None:
    done = repeated_execution(work_cpu_s=work, executions=executions, deliveries=deliveries)
    assert done.work_cpu_s == pytest.approx(sum(work for _ in range(executions)))
    assert done.results == done.effects == 1
    blind = repeated_execution(
        work_cpu_s=work, executions=executions, deliveries=deliveries, deduplicates=False, idempotent=False
    )
    assert (blind.results, blind.effects) == (executions * deliveries, executions)


def test_what_was_never_run_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="executions is 0"):
        repeated_execution(work_cpu_s=1, executions=0)
