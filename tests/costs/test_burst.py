"""Work that arrives together, and tools that are started together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.burst import burst, queue_run, servers_for_burst
from dsec.costs.tool_starts import gap_for_peak_s, gap_of_makespan_s, tool_starts

counts = st.integers(1, 60)
durations = st.floats(0.01, 100)
pieces_of_work = st.lists(st.tuples(st.floats(0, 50), st.floats(0, 20)), min_size=1, max_size=30)


def walked(arrivals_s: list[float], services_s: list[float], servers: int) -> list[float]:
    """Return starts by looking at every server for each piece: an independent way to `queue_run`."""
    busy_until_s = [0.0] * servers
    starts_s = []
    for arrival_s, service_s in zip(arrivals_s, services_s, strict=True):
        server = min(range(servers), key=lambda index: busy_until_s[index])
        starts_s.append(max(arrival_s, busy_until_s[server]))
        busy_until_s[server] = starts_s[-1] + service_s
    return starts_s


@given(work=pieces_of_work, servers=st.integers(1, 5))
def test_a_run_is_what_looking_at_every_server_gives(work: list[tuple[float, float]], servers: int) -> None:
    arrivals_s, services_s = sorted(arrival for arrival, _ in work), [service for _, service in work]
    seen = queue_run(arrivals_s=arrivals_s, services_s=services_s, servers=servers)
    assert list(seen.starts_s) == walked(arrivals_s, services_s, servers)
    assert seen.most_running <= servers
    assert min(seen.waits_s) >= 0


@given(work=pieces_of_work, servers=st.integers(1, 5))
def test_more_servers_never_make_anything_wait_longer(work: list[tuple[float, float]], servers: int) -> None:
    arrivals_s, services_s = sorted(arrival for arrival, _ in work), [service for _, service in work]
    few = queue_run(arrivals_s=arrivals_s, services_s=services_s, servers=servers)
    many = queue_run(arrivals_s=arrivals_s, services_s=services_s, servers=servers + 1)
    assert all(after <= before + 1e-9 for after, before in zip(many.starts_s, few.starts_s, strict=True))


@given(pieces=counts, servers=counts, service_s=durations)
def test_the_closed_form_is_what_playing_the_queue_gives(pieces: int, servers: int, service_s: float) -> None:
    seen = burst(pieces=pieces, servers=servers, service_s=service_s)
    run = queue_run(arrivals_s=[0.0] * pieces, services_s=[service_s] * pieces, servers=servers)
    assert seen.mean_wait_s == pytest.approx(run.mean_wait_s)
    assert seen.longest_wait_s == pytest.approx(run.longest_wait_s)
    assert seen.makespan_s == pytest.approx(run.makespan_s)
    assert seen.at_once == sum(wait_s == 0 for wait_s in run.waits_s)
    assert seen.at_once + seen.waiting == pieces


@given(pieces=counts, servers=counts, service_s=durations)
def test_a_larger_burst_waits_no_less_and_more_servers_no_longer(pieces: int, servers: int, service_s: float) -> None:
    seen = burst(pieces=pieces, servers=servers, service_s=service_s)
    larger = burst(pieces=pieces + 1, servers=servers, service_s=service_s)
    wider = burst(pieces=pieces, servers=servers + 1, service_s=service_s)
    assert larger.mean_wait_s >= seen.mean_wait_s - 1e-9
    assert wider.mean_wait_s <= seen.mean_wait_s + 1e-9
    assert wider.makespan_s <= seen.makespan_s


@given(pieces=counts, service_s=durations, within=st.floats(1, 20))
def test_the_least_number_of_servers_suffices_and_one_less_does_not(
    pieces: int, service_s: float, within: float
) -> None:
    servers = servers_for_burst(pieces=pieces, service_s=service_s, within_s=within * service_s)
    limit_s = within * service_s * (1 + 1e-6)
    assert burst(pieces=pieces, servers=servers, service_s=service_s).makespan_s <= limit_s
    if servers > 1:
        assert burst(pieces=pieces, servers=servers - 1, service_s=service_s).makespan_s > within * service_s * 0.999999


def test_no_number_of_servers_ends_a_burst_before_its_first_piece() -> None:
    with pytest.raises(InvalidRequestError, match="less than the 2 s of one piece"):
        servers_for_burst(pieces=3, service_s=2, within_s=1)


@pytest.mark.parametrize(
    ("arrivals_s", "services_s", "named"),
    [([], [], "no arrivals_s"), ([0, 1], [1], "2 arrivals_s and 1 services_s"), ([1, 0], [1, 1], r"arrivals_s\[1\]")],
)
def test_lists_that_do_not_fit_are_named(arrivals_s: list[float], services_s: list[float], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        queue_run(arrivals_s=arrivals_s, services_s=services_s, servers=1)


@given(tools=st.integers(1, 12), tool_s=st.integers(1, 30), gap_s=st.integers(0, 40))
def test_tools_at_once_are_what_counting_moments_gives(tools: int, tool_s: int, gap_s: int) -> None:
    seen = tool_starts(tools=tools, tool_s=tool_s, memory_gib=0.5, gap_s=gap_s)
    starts_s = [number * gap_s for number in range(tools)]
    moments_s = [moment + 0.5 for moment in range(starts_s[-1] + tool_s)]
    running = [sum(start <= moment < start + tool_s for start in starts_s) for moment in moments_s]
    assert seen.at_once == max(running)
    assert seen.peak_memory_gib == 0.5 * max(running)
    assert seen.memory_gib_s == pytest.approx(0.5 * sum(running))
    assert seen.makespan_s == len(moments_s)


@given(tools=st.integers(1, 20), tool_s=durations, memory_gib=st.floats(0.1, 10), room=st.floats(1, 20))
def test_the_least_gap_keeps_the_peak_within_its_limit(
    tools: int, tool_s: float, memory_gib: float, room: float
) -> None:
    limit_gib = room * memory_gib
    gap_s = gap_for_peak_s(tools=tools, tool_s=tool_s, memory_gib=memory_gib, limit_gib=limit_gib)
    peak_gib = tool_starts(tools=tools, tool_s=tool_s, memory_gib=memory_gib, gap_s=gap_s).peak_memory_gib
    assert peak_gib <= limit_gib * (1 + 1e-8)
    if gap_s > 0:
        closer = tool_starts(tools=tools, tool_s=tool_s, memory_gib=memory_gib, gap_s=gap_s * 0.99)
        assert closer.peak_memory_gib > peak_gib


@given(tools=st.integers(2, 20), tool_s=durations, gap_s=st.floats(0, 50))
def test_a_gap_is_found_again_from_its_makespan(tools: int, tool_s: float, gap_s: float) -> None:
    makespan_s = tool_starts(tools=tools, tool_s=tool_s, memory_gib=1, gap_s=gap_s).makespan_s
    assert gap_of_makespan_s(tools=tools, tool_s=tool_s, makespan_s=makespan_s) == pytest.approx(gap_s, abs=1e-9)


def test_a_tool_that_exceeds_the_limit_alone_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="limit_gib - memory_gib"):
        gap_for_peak_s(tools=4, tool_s=1, memory_gib=2, limit_gib=1)
