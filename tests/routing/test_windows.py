"""Limits per minute hold in every 60 s, whatever the clock does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsec.routing.windows import MinuteWindow


def test_a_limit_is_full_until_what_used_it_is_a_minute_old() -> None:
    window = MinuteWindow(2)
    window.reserve(2)
    assert not window.admits(1, 10.0)
    window.send(1, 10.2)
    window.send(1, 30.9)
    assert window.opens_at_s(1, 31.0) == 71.0
    assert not window.admits(1, 70.9)
    assert window.admits(1, 71.0)
    assert window.used(71.0) == 1


def test_what_waits_to_be_sent_counts_already() -> None:
    window = MinuteWindow(3)
    window.reserve(3)
    assert not window.admits(1, 1000.0)
    window.cancel(1)
    assert window.admits(1, 1000.0)


def test_more_than_the_limit_never_fits() -> None:
    assert MinuteWindow(5).opens_at_s(6, 0.0) is None


def test_without_a_limit_everything_is_counted_and_nothing_refused() -> None:
    window = MinuteWindow(None)
    window.reserve(10**9)
    assert window.admits(10**9, 0.0)
    assert window.used(0.0) == 10**9


def test_a_correction_changes_only_what_still_counts() -> None:
    window = MinuteWindow(100)
    window.reserve(50)
    cell = window.send(50, 5.0)
    window.correct(cell, -20)
    assert window.used(5.0) == 30
    window.correct(cell, -1000)
    assert window.used(5.0) == 0
    window.correct(cell, 10)
    assert window.used(100.0) == 0
    window.correct(cell, 10)
    assert window.used(100.0) == 0


def test_a_clock_that_is_set_back_opens_nothing() -> None:
    window = MinuteWindow(1)
    window.reserve(1)
    window.send(1, 1000.0)
    assert not window.admits(1, 0.0)
    assert not window.admits(1, 1059.0)


@given(
    limit=st.integers(1, 6),
    steps=st.lists(st.tuples(st.floats(0, 40), st.sampled_from(["ask", "send", "cancel"]), st.integers(1, 3))),
)
def test_no_60_seconds_hold_more_than_the_limit(limit: int, steps: list[tuple[float, str, int]]) -> None:
    window, now_s = MinuteWindow(limit), 0.0
    reserved: list[int] = []
    sent: list[tuple[float, int]] = []
    for pause_s, what, amount in steps:
        now_s += pause_s
        if what == "ask" and window.admits(amount, now_s):
            window.reserve(amount)
            reserved.append(amount)
        elif what == "ask":
            opens_s = window.opens_at_s(amount, now_s)
            assert (opens_s is None) is (amount > limit)
            assert opens_s is None or opens_s > now_s
        elif reserved and what == "send":
            amount = reserved.pop(0)
            window.send(amount, now_s)
            sent.append((now_s, amount))
        elif reserved:
            window.cancel(reserved.pop())
        assert sum(used for at_s, used in sent if now_s - 60 < at_s <= now_s) <= limit
        assert len(window._cells) <= 61
