"""When a failed creation is tried again.

First at once (most failures are a moment's), then on another node (the next are that node's), then it is reported.
Waits of 1, 3 and 9 s stand before the tries after the first. A creation that takes longer than 30 s has failed: the
99th percentile of loading an image with room to spare; for larger images set it higher. The sandbox id is the
idempotency key, so that a retry of a creation that did succeed finds it and makes no second one.

What must not be retried: a request that no node can serve (a caller's fault), a result of the guest's own, and an
outcome that nobody knows. Everything else that is the platform's may be.

Source: the training report (graded retries, 30 s, 1/3/9 s, id as idempotency key).
"""

from __future__ import annotations

import enum

from dsec.base.errors import DsecError, Fault, error_types
from dsec.model.value import Value


class Step(enum.Enum):
    """What to do after a failure."""

    RETRY_HERE = "retry_here"
    RETRY_ELSEWHERE = "retry_elsewhere"
    REPORT = "report"


class RetryPolicy(Value, frozen=True):
    """What can be set.

    Attributes:
        timeout_s: longest creation.
        backoff_s: waits before each further try after the first retry, which is made at once.
        tries: creations in all before the failure is reported.
    """

    timeout_s: float = 30.0
    backoff_s: tuple[float, ...] = (1.0, 3.0, 9.0)
    tries: int = 3


class NextStep(Value, frozen=True):
    """What to do next.

    Attributes:
        step: here, elsewhere, or report.
        delay_s: how long to wait before.
        reason: why.
    """

    step: Step
    delay_s: float
    reason: str


def may_be_retried(code: str) -> bool:
    """Whether an error of this code may go away by asking again with the same id. Unknown codes are the platform's."""
    kind: type[DsecError] | None = error_types().get(code)
    return kind is None or (kind.retryable and kind.fault is not Fault.GUEST)


def next_step(policy: RetryPolicy, failures: int, code: str) -> NextStep:
    """Return what to do after the `failures`-th failure of one creation (1: the first), which ended with `code`."""
    if not may_be_retried(code):
        return NextStep(step=Step.REPORT, delay_s=0.0, reason=f"{code} does not go away by asking again")
    if failures >= policy.tries:
        return NextStep(step=Step.REPORT, delay_s=0.0, reason=f"{failures} of {policy.tries} tries failed")
    if failures == 1:
        return NextStep(step=Step.RETRY_HERE, delay_s=0.0, reason="the first failure is often a moment's")
    delay_s = backoff_s(policy, failures - 1)
    return NextStep(step=Step.RETRY_ELSEWHERE, delay_s=delay_s, reason=f"{failures} failures here: another node")


def backoff_s(policy: RetryPolicy, failures: int) -> float:
    """Return the wait after the `failures`-th failure (1: the first); the last wait holds for all further ones."""
    if failures < 1 or not policy.backoff_s:
        return 0.0
    return policy.backoff_s[min(failures, len(policy.backoff_s)) - 1]
