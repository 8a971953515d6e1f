"""The simulated fleet serves calls in the times of the formulas, and routing is worth what is promised on it."""

from __future__ import annotations

import statistics

import pytest

from dsec.bench.routing import backends, loaded_router
from dsec.bench.routing_fleet import (
    Call,
    Chooser,
    Fleet,
    LeastLoaded,
    Outcome,
    RoundRobin,
    Routed,
    Workload,
    make_trace,
)
from dsec.costs.first_token import Backend as Way
from dsec.costs.first_token import time_to_generation_s
from dsec.costs.model_service import call_time_s
from dsec.routing.choice import Choice

OUTPUT_TOKENS = 355


def serve(trace: list[Call], chooser: Chooser, *, count: int = 1, from_s: float = 0.0, until_s: float = 1e9) -> Outcome:
    return Fleet(backends(count), 4096, chooser, OUTPUT_TOKENS).run(trace, from_s=from_s, until_s=until_s)


def test_a_lone_call_takes_what_the_formulas_say() -> None:
    prompt = tuple(range(100))
    outcome = serve([Call(0.0, "a", prompt, ()), Call(100.0, "b", prompt, ())], RoundRobin())
    miss_s, hit_s = 25_600 / 10_000, 25_600 / 100_000
    first = [time_to_generation_s(backend=Way(queue_s=0, prefix_s=one, network_s=0.05)) for one in (miss_s, hit_s)]
    assert outcome.first_token_s == pytest.approx(first)
    generation_s = call_time_s(output_tokens=OUTPUT_TOKENS, pace_s_per_token=0.0169)
    assert outcome.completion_s == pytest.approx([one + generation_s for one in first])
    assert outcome.hit_share == 0.5


def test_calls_side_by_side_get_their_tokens_later() -> None:
    calls = [Call(0.0, f"e{at}", (at,), ()) for at in range(32)]
    outcome = serve(calls, RoundRobin())
    assert max(outcome.completion_s) == pytest.approx(0.05 + 0.0256 + OUTPUT_TOKENS * 0.0253, rel=1e-3)


def test_who_finds_no_slot_waits_for_the_first_that_falls_free() -> None:
    calls = [Call(0.0, f"e{at}", (at,), ()) for at in range(32)] + [Call(1.0, "late", (99,), ())]
    outcome = serve(calls, RoundRobin())
    freed_s = min(outcome.completion_s[:32]) - 0.05
    assert outcome.first_token_s[32] == pytest.approx(freed_s - 1.0 + 0.0256 + 0.05)


def test_equal_seeds_give_equal_traces_and_outcomes() -> None:
    workload = Workload(calls_per_s=5, duration_s=40)
    assert make_trace(workload, 1) == make_trace(workload, 1) != make_trace(workload, 2)
    trace = make_trace(workload, 1)
    first, second = (serve(trace, Routed(backends(4), OUTPUT_TOKENS), count=4) for _ in range(2))
    assert first == second


@pytest.mark.slow
def test_first_tokens_come_30_percent_sooner_than_in_turn() -> None:
    trace = make_trace(Workload(calls_per_s=25, duration_s=100), 3)
    ways: dict[str, Chooser] = {
        "routed": Routed(backends(8), OUTPUT_TOKENS),
        "in turn": RoundRobin(),
        "least loaded": LeastLoaded(),
    }
    mean_s = {
        name: statistics.fmean(serve(trace, chooser, count=8, from_s=50.0, until_s=100.0).first_token_s)
        for name, chooser in ways.items()
    }
    assert mean_s["routed"] <= 0.7 * mean_s["in turn"]
    assert mean_s["routed"] <= 0.7 * mean_s["least loaded"]


@pytest.mark.slow
def test_the_router_that_is_measured_is_in_the_middle_of_its_work() -> None:
    router, requests, now_s = loaded_router()
    known = router.statistics(now_s)
    assert len(known) == 64
    assert all(one.running > 10 for one in known)
    assert sum(one.cached_blocks for one in known) > 40_000
    cached = [choice for request in requests[:200] if isinstance(choice := router.decide(request, now_s), Choice)]
    assert sum(choice.hit_tokens > 0 for choice in cached) > 150
