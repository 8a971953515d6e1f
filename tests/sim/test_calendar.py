"""The calendar runs events in order of time, and those of one time as they were scheduled."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.sim.calendar import Calendar, without_garbage_collection

times = st.floats(min_value=0, max_value=1e4, allow_nan=False)


@given(st.lists(times, max_size=60), st.sampled_from([0.01, 1.0, 64.0, 1e5]))
def test_events_run_in_order_whatever_the_width_of_buckets(moments: list[float], rate: float) -> None:
    calendar, ran = Calendar(rate), []
    for number, moment in enumerate(moments):
        calendar.at(moment, lambda now_s, what: ran.append((now_s, what)), number)
    calendar.run()
    assert ran == sorted((moment, number) for number, moment in enumerate(moments))
    assert calendar.events == len(moments)


@given(st.lists(st.tuples(times, times), max_size=30), st.sampled_from([0.01, 64.0, 1e5]))
def test_events_scheduled_by_events_run_in_order(pairs: list[tuple[float, float]], rate: float) -> None:
    calendar, ran = Calendar(rate), []

    def follow(now_s: float, delay_s: float | None) -> None:
        ran.append(now_s)
        if delay_s is not None:
            calendar.at(now_s + delay_s, follow)

    for first_s, delay_s in pairs:
        calendar.at(first_s, follow, delay_s)
    calendar.run()
    assert ran == sorted(ran)
    assert len(ran) == 2 * len(pairs)


@given(st.lists(times, max_size=40), st.lists(times, max_size=5))
def test_a_run_may_be_cut_anywhere(moments: list[float], cuts: list[float]) -> None:
    calendar, ran = Calendar(1.0), []
    for moment in moments:
        calendar.at(moment, lambda now_s, _: ran.append(now_s))
    for cut in sorted(cuts):
        calendar.run(cut)
        assert ran == sorted(moment for moment in moments if moment <= cut)
        assert calendar.now_s == cut
    calendar.run()
    assert ran == sorted(moments)


def test_an_event_in_the_past_is_refused_by_its_own_handler() -> None:
    calendar = Calendar()
    calendar.at(5.0, lambda now_s, _: calendar.at(4.0, lambda now_s, _: None))
    with pytest.raises(InvalidRequestError, match=r"at 4\.0 s.*5\.0 s already"):
        calendar.run()


def test_an_event_in_the_past_is_refused_between_runs() -> None:
    calendar = Calendar()
    calendar.run(10.0)
    calendar.at(3.0, lambda now_s, _: None)
    with pytest.raises(InvalidRequestError, match="already"):
        calendar.run()


def test_stop_ends_the_run_and_the_rest_stays() -> None:
    calendar, ran = Calendar(), []
    calendar.at(1.0, lambda now_s, _: calendar.stop())
    calendar.at(1.0, lambda now_s, _: ran.append(now_s))
    calendar.run()
    assert ran == []
    calendar.run()
    assert ran == [1.0]


def test_a_rate_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no rate"):
        Calendar(0.0)


def test_the_garbage_collector_is_as_before_after_a_run() -> None:
    assert gc.isenabled()
    with without_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
