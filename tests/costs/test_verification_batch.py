"""Batches of samples that are verified."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.verification_batch import batch_bound, batch_schedule

samples = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=8)


def brute_force(arrivals: list[int], durations: list[int], verifiers: int) -> tuple[list[int], list[int]]:
    """Walk second by second: whoever arrived first takes a verifier that is idle. An independent way to the same."""
    waiting: list[int] = []
    running: dict[int, int] = {}
    starts, ends = [0] * len(arrivals), [0] * len(arrivals)
    now = 0
    left = set(range(len(arrivals)))
    while left or waiting or running:
        for index in [index for index, end in running.items() if end == now]:
            del running[index]
        waiting += sorted((index for index in left if arrivals[index] == now), key=lambda index: index)
        left -= set(waiting)
        while waiting and len(running) < verifiers:
            index = waiting.pop(0)
            starts[index], ends[index] = now, now + durations[index]
            running[index] = ends[index]
        now += 1
    return starts, ends


@given(samples=samples, verifiers=st.integers(1, 4))
def test_schedule_is_what_walking_through_the_seconds_gives(samples: list[tuple[int, int]], verifiers: int) -> None:
    arrivals, durations = [a for a, _ in samples], [d for _, d in samples]
    schedule = batch_schedule(arrivals_s=arrivals, durations_s=durations, verifiers=verifiers)
    assert (list(schedule.starts_s), list(schedule.ends_s)) == brute_force(arrivals, durations, verifiers)


@given(samples=samples, verifiers=st.integers(1, 4))
def test_no_schedule_ends_before_the_bound_and_more_verifiers_never_end_later(
    samples: list[tuple[int, int]], verifiers: int
) -> None:
    arrivals, durations = [a for a, _ in samples], [d for _, d in samples]
    end_s = batch_schedule(arrivals_s=arrivals, durations_s=durations, verifiers=verifiers).end_s
    bound_s = batch_bound(arrivals_s=arrivals, runs_s=durations).end_s
    assert end_s >= bound_s
    assert batch_schedule(arrivals_s=arrivals, durations_s=durations, verifiers=verifiers + 1).end_s <= end_s
    assert batch_schedule(arrivals_s=arrivals, durations_s=durations, verifiers=len(samples)).end_s == bound_s


@given(samples=samples, verifiers=st.integers(1, 4))
def test_collecting_the_batch_first_never_ends_earlier_and_works_as_long(
    samples: list[tuple[int, int]], verifiers: int
) -> None:
    arrivals, durations = [a for a, _ in samples], [d for _, d in samples]
    early = batch_schedule(arrivals_s=arrivals, durations_s=durations, verifiers=verifiers)
    late = batch_schedule(arrivals_s=arrivals, durations_s=durations, verifiers=verifiers, collect_first=True)
    assert early.busy_s == late.busy_s
    if sorted(arrivals) == arrivals:
        assert early.end_s <= late.end_s


@given(samples=samples, verifiers=st.integers(1, 3), scale=st.sampled_from([0.5, 60.0]))
def test_other_units_of_time_give_the_same_schedule(
    samples: list[tuple[int, int]], verifiers: int, scale: float
) -> None:
    arrivals, durations = [a for a, _ in samples], [d for _, d in samples]
    plain = batch_schedule(arrivals_s=arrivals, durations_s=durations, verifiers=verifiers)
    scaled = batch_schedule(
        arrivals_s=[a * scale for a in arrivals], durations_s=[d * scale for d in durations], verifiers=verifiers
    )
    assert scaled.end_s == pytest.approx(plain.end_s * scale)
    assert scaled.verifiers == plain.verifiers


def test_bound_names_the_sample_that_sets_it() -> None:
    bound = batch_bound(arrivals_s=[0, 6, 12], compiles_s=[5, 1, 4], runs_s=[5, 1, 4])
    assert (bound.end_s, bound.decisive, bound.ends_s) == (20, 2, (10, 8, 20))


@pytest.mark.parametrize(
    ("arrivals", "durations", "verifiers", "said"),
    [
        ([0.0], [1.0, 2.0], 1, "1 arrivals but 2 durations"),
        ([], [], 1, "no arrivals_s"),
        ([0.0], [-1.0], 1, "durations_s is -1"),
        ([0.0], [1.0], 0, "verifiers is 0"),
    ],
)
def test_broken_batches_are_named(arrivals: list[float], durations: list[float], verifiers: int, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        batch_schedule(arrivals_s=arrivals, durations_s=durations, verifiers=verifiers)
