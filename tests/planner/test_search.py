"""Searching finds what listing finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.planner import space
from dsec.planner.outer import make_outer, outer_keys
from dsec.planner.search import corners, front
from dsec.planner.space import everything, size_of
from dsec.planner.table import evaluate
from dsec.planner.workload import Workload
from dsec.planner.workload_plan import decide

_RESERVED = ('billing = "used"', 'billing = "reserved"')
_RANDOM = ('pattern = "uniform"', 'pattern = "poisson"')
_HOSTS = ('cpu_price = "0.000014 USD/CPU/s"\nmemory_price = "0.0000045 USD/GiB/s"', 'price = "40 USD/h"')


@settings(max_examples=40)
@given(
    pattern=st.sampled_from(["uniform", "poisson"]),
    goal=st.floats(0.1, 0.95),
    rate=st.floats(1, 40),
    hosts=st.sampled_from(['"1..6"', '"2..9 step 3"', "[1, 2, 5, 7]"]),
    replicas=st.sampled_from(['"1..60"', '"5..50 step 7"', "[3, 20, 21, 60]"]),
)
def test_a_search_finds_the_cheapest_that_listing_all_finds(
    make_workload: Callable[..., Workload], pattern: str, goal: float, rate: float, hosts: str, replicas: str
) -> None:
    workload = make_workload(
        _RESERVED,
        _HOSTS,
        ('pattern = "uniform"', f'pattern = "{pattern}"'),
        ('share_in_time = "95 %"', f"share_in_time = {goal!r}"),
        ('rate = "10 /s"', f'rate = "{rate!r} /s"'),
        ("count = 1", f"count = {hosts}"),
        ("replicas = 12", f"replicas = {replicas}"),
        ("sessions = 16", "sessions = [8, 16]"),
    )
    keys = outer_keys(workload)
    outer = make_outer(workload, keys)
    listed = evaluate(workload, outer, everything(workload, keys))
    searched = corners(workload, outer, keys)
    assert searched.feasible.any() == listed.feasible.any()
    if listed.feasible.any():
        assert searched.usd[searched.feasible].min() == pytest.approx(listed.usd[listed.feasible].min())


def test_billions_of_combinations_are_answered(make_workload: Callable[..., Workload]) -> None:
    workload = make_workload(
        _RESERVED, _HOSTS, _RANDOM, ('share_in_time = "95 %"', 'share_in_time = "94 %"'),
        ("count = 1", 'count = "1..10000"'), ("replicas = 12", 'replicas = "1..1000000"'),
    )  # fmt: skip
    decision = decide(workload, brief=True)
    assert decision.size.combinations == 10_000_000_000
    assert decision.chosen is not None
    best = decision.chosen.best
    assert best.feasible
    smaller = make_workload(
        _RESERVED, _HOSTS, _RANDOM, ('share_in_time = "95 %"', 'share_in_time = "94 %"'),
        ("count = 1", f"count = {best.hosts}"), ("replicas = 12", f"replicas = {best.units - 1}"),
    )  # fmt: skip
    assert not decide(smaller, brief=True).combinations[0].feasible


def test_ranges_that_are_too_wide_say_which_to_narrow(make_workload: Callable[..., Workload]) -> None:
    workload = make_workload(("sessions = 16", 'sessions = "1..1000000"'), ("replicas = 12", 'replicas = "1..1000"'))
    with pytest.raises(
        InvalidRequestError, match=r"service.fast.sessions: the ranges make 1,000,000,000 combinations"
    ) as caught:
        size_of(workload)
    assert caught.value.brief.startswith("w.toml:")
    assert f"about {space.MOST_ROWS:,} values" in caught.value.resolution


def test_nothing_on_the_front_is_dearer_and_slower_than_anything_feasible(
    make_workload: Callable[..., Workload],
) -> None:
    workload = make_workload(
        _RESERVED, _HOSTS, _RANDOM, ('share_in_time = "95 %"', "share_in_time = 0.5"),
        ("count = 1", 'count = "1..4"'), ("replicas = 12", 'replicas = "8..20"'),
    )  # fmt: skip
    keys = outer_keys(workload)
    table = evaluate(workload, make_outer(workload, keys), everything(workload, keys))
    on_front = front(table)
    assert on_front
    for index in on_front:
        better = (table.usd <= table.usd[index]) & (table.completion_s < table.completion_s[index] * (1 - 1e-9))
        assert not (better & table.feasible).any()


@settings(max_examples=30)
@given(
    pattern=st.sampled_from(['pattern = "poisson"', 'pattern = "burst"\nburst = 15', 'pattern = "burst"\nburst = 60']),
    rate=st.sampled_from(["1 /s", "3 /s", "10 /s", "20 /s"]),
    rounds=st.sampled_from([1, 3, 8]),
    memory_price=st.sampled_from(["0.0000045 USD/GiB/s", "0.0005 USD/GiB/s"]),
    billing=st.sampled_from(["used", "reserved"]),
    host=st.sampled_from(["", 'price = "1 USD/h"\n']),
)
def test_a_search_is_exact_where_more_hosts_save_memory_that_is_paid_by_use(
    make_workload: Callable[..., Workload], pattern: str, rate: str, rounds: int, memory_price: str, billing: str,
    host: str,
) -> None:  # fmt: skip
    workload = make_workload(
        ('billing = "used"', f'billing = "{billing}"'),
        ('pattern = "uniform"', pattern),
        ('share_in_time = "95 %"', 'share_in_time = "50 %"'),
        ('rate = "10 /s"', f'rate = "{rate}"'),
        ("rounds = 3", f"rounds = {rounds}"),
        ('deadline = "24 s"', 'deadline = "120 s"'),
        ("0.0000045 USD/GiB/s", memory_price),
        ("cpu_price", f"{host}cpu_price"),
        ("count = 1", 'count = "1..15"'),
        ("replicas = 12", 'replicas = "1..40 step 3"'),
        ('kind = "rebuilt"\nprepare = "2 s"', 'kind = "kept"\nprepare = "2 s"'),
    )
    keys = outer_keys(workload)
    outer = make_outer(workload, keys)
    listed = evaluate(workload, outer, everything(workload, keys))
    searched = corners(workload, outer, keys)
    assert searched.feasible.any() == listed.feasible.any()
    if listed.feasible.any():
        cheapest = listed.usd[listed.feasible].min()
        assert searched.usd[searched.feasible].min() == pytest.approx(cheapest, rel=1e-8)
