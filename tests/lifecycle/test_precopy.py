"""When a running sandbox is paused for the last difference."""

from __future__ import annotations

import pytest

from dsec.base.errors import InvalidRequestError
from dsec.lifecycle.precopy import Next, Round, decide, expected_last_s


def _round(copied_bytes: int, duration_s: float) -> Round:
    return Round(copied_bytes=copied_bytes, duration_s=duration_s)


def test_a_small_sandbox_is_paused_after_its_first_round() -> None:
    assert decide([_round(1000, 0.05)], maximum_rounds=5, downtime_s=0.2).next is Next.PAUSE


def test_a_large_sandbox_is_copied_until_the_last_difference_is_short() -> None:
    rounds = [_round(1 << 30, 10.0)]
    assert decide(rounds, maximum_rounds=5, downtime_s=0.2).next is Next.COPY
    rounds.append(_round(100 << 20, 1.0))
    assert expected_last_s(rounds) == pytest.approx(0.1)
    assert decide(rounds, maximum_rounds=5, downtime_s=0.2).next is Next.PAUSE


def test_rounds_are_bounded() -> None:
    rounds = [_round(1 << 30, 10.0), _round(900 << 20, 9.0)]
    decision = decide(rounds, maximum_rounds=2, downtime_s=0.2)
    assert decision.next is Next.PAUSE
    assert "2 rounds" in decision.reason


def test_a_sandbox_that_writes_as_fast_as_it_is_copied_is_not_copied_for_ever() -> None:
    rounds = [_round(1 << 30, 10.0), _round(1 << 29, 5.0), _round(1 << 29, 5.0)]
    decision = decide(rounds, maximum_rounds=100, downtime_s=0.2)
    assert decision.next is Next.PAUSE
    assert "as fast as" in decision.reason


def test_a_quiet_sandbox_has_an_empty_last_difference() -> None:
    rounds = [_round(1 << 30, 10.0), _round(0, 0.004)]
    assert decide(rounds, maximum_rounds=5, downtime_s=0.2).next is Next.PAUSE


def test_nothing_copied_decides_nothing() -> None:
    with pytest.raises(InvalidRequestError):
        decide([], maximum_rounds=5, downtime_s=0.2)
