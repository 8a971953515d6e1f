"""Which failure is tried again, where and when."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.routing.retrying import Again, Failure, FailureKind, GiveUp, RetryPolicy, Where

POLICY = RetryPolicy(attempts=4, backoff_s=1.0, backoff_limit_s=3.0)


def after(
    *kinds: FailureKind, bits: int = 0, deadline_s: float | None = None, others: int = 1, **last: Any
) -> Again | GiveUp:
    failures = [Failure(kind=kind, brief="it broke") for kind in kinds[:-1]]
    failures.append(Failure(kind=kinds[-1], brief="it broke", **last))
    return POLICY.after(failures, now_s=100.0, deadline_s=deadline_s, bits=bits, others=others)


@pytest.mark.parametrize("kind", FailureKind)
def test_after_the_first_byte_nothing_is_tried_again(kind: FailureKind) -> None:
    decision = after(kind, began=True)
    assert isinstance(decision, GiveUp)
    assert "spliced" in decision.reason


@pytest.mark.parametrize("kind", [FailureKind.REFUSED, FailureKind.CANCELLED, FailureKind.EXPIRED])
def test_what_is_the_calls_own_is_not_tried_again(kind: FailureKind) -> None:
    assert isinstance(after(kind), GiveUp)


@pytest.mark.parametrize(
    "kind",
    [
        FailureKind.UNREACHABLE, FailureKind.BROKEN, FailureKind.SILENT, FailureKind.STALLED, FailureKind.WRONG_MODEL,
        FailureKind.DENIED, FailureKind.TOO_LONG,
    ],
)  # fmt: skip
def test_what_is_the_backends_own_is_tried_at_another_one_at_once(kind: FailureKind) -> None:
    decision = after(kind)
    assert isinstance(decision, Again)
    assert (decision.where, decision.delay_s) == (Where.ANOTHER, 0.0)
    assert "it broke" in decision.reason


@pytest.mark.parametrize("kind", [FailureKind.LIMITED, FailureKind.OVERLOADED])
def test_a_backend_that_is_paused_is_not_excluded(kind: FailureKind) -> None:
    decision = after(kind, retry_after_s=20.0)
    assert isinstance(decision, Again)
    assert (decision.where, decision.delay_s) == (Where.SAME, 0.0)


def test_pauses_double_up_to_their_limit_and_are_by_chance_in_part() -> None:
    broken = FailureKind.BROKEN
    least, most = after(broken, broken), after(broken, broken, bits=2**64 - 1)
    assert isinstance(least, Again)
    assert isinstance(most, Again)
    assert (least.delay_s, most.delay_s) == pytest.approx((0.5, 1.0))
    longer = after(broken, broken, broken)
    assert isinstance(longer, Again)
    assert longer.delay_s == 1.0
    patient = RetryPolicy(attempts=99, backoff_s=1.0, backoff_limit_s=3.0)
    failures = [Failure(kind=broken, brief="?")] * 50
    decision = patient.after(failures, now_s=0.0, deadline_s=None, bits=2**64 - 1)
    assert isinstance(decision, Again)
    assert decision.delay_s == pytest.approx(3.0)


def test_attempts_come_to_an_end() -> None:
    decision = after(*[FailureKind.BROKEN] * 4)
    assert isinstance(decision, GiveUp)
    assert "failed 4 times" in decision.reason


def test_nothing_is_tried_that_would_begin_after_the_deadline() -> None:
    assert isinstance(after(FailureKind.BROKEN, deadline_s=100.0), GiveUp)
    assert isinstance(after(FailureKind.BROKEN, deadline_s=100.1), Again)
    assert isinstance(after(FailureKind.BROKEN, FailureKind.BROKEN, deadline_s=100.4), GiveUp)


def test_the_only_backend_is_tried_again_after_a_pause() -> None:
    decision = after(FailureKind.BROKEN, others=0)
    assert isinstance(decision, Again)
    assert decision.where is Where.SAME
    assert decision.delay_s > 0
    assert isinstance(after(FailureKind.TOO_LONG, others=0), GiveUp)


def test_a_backend_that_forbids_it_is_not_asked_again() -> None:
    decision = after(FailureKind.LIMITED, may_retry=False)
    assert isinstance(decision, Again)
    assert decision.where is Where.ANOTHER
    assert isinstance(after(FailureKind.LIMITED, may_retry=False, others=0), GiveUp)


def test_nothing_is_hedged_unless_it_is_asked_for() -> None:
    assert RetryPolicy().hedge_after_s is None


@pytest.mark.parametrize("fields", [{"attempts": 0}, {"backoff_s": -1.0}, {"hedge_after_s": 0.0}])
def test_a_policy_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(fields))):
        RetryPolicy(**fields)


@given(
    kinds=st.lists(st.sampled_from(FailureKind), min_size=1, max_size=6),
    bits=st.integers(0, 2**64 - 1),
    deadline_s=st.none() | st.floats(90, 110),
    others=st.integers(0, 2),
)
def test_whatever_failed_attempts_are_bounded_and_in_time(
    kinds: list[FailureKind], bits: int, deadline_s: float | None, others: int
) -> None:
    decision = after(*kinds, bits=bits, deadline_s=deadline_s, others=others)
    assert decision.reason
    if isinstance(decision, Again):
        assert len(kinds) < POLICY.attempts
        assert 0 <= decision.delay_s <= POLICY.backoff_limit_s
        assert deadline_s is None or 100.0 + decision.delay_s < deadline_s
