"""What is tried again: at once, elsewhere, then reported; and what never is."""

from __future__ import annotations

import pytest

from dsec.base.errors import error_types
from dsec.pools.retries import RetryPolicy, Step, backoff_s, may_be_retried, next_step


def test_a_failure_is_retried_at_once_then_elsewhere_and_then_reported() -> None:
    steps = [next_step(RetryPolicy(), failures, "runtime_failed") for failures in (1, 2, 3)]
    assert [step.step for step in steps] == [Step.RETRY_HERE, Step.RETRY_ELSEWHERE, Step.REPORT]
    assert [step.delay_s for step in steps] == [0.0, 1.0, 0.0]
    assert RetryPolicy().timeout_s == 30.0


def test_waits_are_one_three_and_nine_seconds_and_stay_there() -> None:
    assert [backoff_s(RetryPolicy(), failures) for failures in range(6)] == [0.0, 1.0, 3.0, 9.0, 9.0, 9.0]


@pytest.mark.parametrize("code", ["invalid_request", "image_not_found", "capability_missing", "sandbox_out_of_memory",
                                  "unknown_outcome", "state_corrupted", "already_exists"])  # fmt: skip
def test_what_asking_again_does_not_mend_is_reported_at_once(code: str) -> None:
    assert next_step(RetryPolicy(), 1, code).step is Step.REPORT


def test_every_registered_error_has_an_answer() -> None:
    for code, kind in error_types().items():
        if may_be_retried(code):
            assert kind.retryable
    assert may_be_retried("host_disk_full")
    assert may_be_retried("node_unavailable")
    assert may_be_retried("a_code_of_a_newer_version")
