"""`routing`: how early answers begin when calls are routed, and how fast a decision is.

Two things are measured.

**First tokens.** One trace of agents' calls is served by a fleet in virtual time (`dsec.bench.routing_fleet`), once for
each way of choosing a backend, at three loads. The trace, with its times of arrival, is the same for all. These figures
are determined by the seeds and do not depend on the host. `ours` and the references are the times to the first token
at the middle load; the goal is a mean 30% below round-robin.

**Decisions.** A router over 64 backends is brought into the state in which it would be under load, with thousands of
prompts in its index, and asked again and again. One thread, pure Python, in seconds of its processor time: a decision
waits for nothing, so that other work on the host only makes its clock run on. The same decisions by the plain rule,
which looks at every backend, show what the keeping is worth.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dsec.bench.context import PureContext
from dsec.bench.distribution import Distribution, distribution, ratio
from dsec.bench.report import Report, make_report
from dsec.bench.routing_fleet import (
    ByEpisode,
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
from dsec.routing.backend import Backend, Limits, Pace
from dsec.routing.choice import Choice
from dsec.routing.request import Objective, RouteRequest
from dsec.routing.router import Router
from dsec.routing.state import Assignment

_FLEET = 16
_SLOTS = 32
_CACHE_BLOCKS = 4096
_LOADS_CALLS_PER_S = (50.0, 75.0, 95.0)
_MIDDLE = 1
_DURATION_S = 150.0
_WARM_UP_S = 60.0
_GOAL_SHARE = 0.7
_GOAL_DECISIONS_PER_S = 50_000
_BACKENDS = 64
_EPISODES = 1_000
_WARM_CALLS = 8_000
_SAMPLE = 2_000
_RULE_SAMPLE = 50
_ROUND_ROBIN = "round-robin"


def backends(count: int) -> list[Backend]:
    """Return replicas that serve 32 sessions in the times of the chapter's opening table.

    The speeds of processing input are assumed: 10,000 tokens a second, ten times that from the cache, as the chapter's
    50 ms are to its 500.
    """
    return [
        Backend(
            name=f"b{number}",
            group="model",
            limits=Limits(slots=_SLOTS, waiting=1_000_000, context_tokens=200_000),
            pace=(Pace(calls=16, s_per_token=0.0169), Pace(calls=32, s_per_token=0.0253)),
            prefill_tokens_per_s=10_000.0,
            cached_tokens_per_s=100_000.0,
            network_s=0.05,
        )
        for number in range(count)
    ]


def choosers(output_tokens: int) -> dict[str, Callable[[], Chooser]]:
    """Return the ways to choose by name; ours is first."""
    return {
        "routed": lambda: Routed(backends(_FLEET), output_tokens),
        _ROUND_ROBIN: RoundRobin,
        "least loaded": LeastLoaded,
        "by episode": ByEpisode,
    }


async def bench_routing(context: PureContext) -> Report:
    """Measure both."""
    first = _first_tokens(context)
    ours, *others = first[_MIDDLE]
    by_name = dict(others)
    decisions = list(_decisions(context))
    middle = statistics.fmean(ours[1].first_token_s) / statistics.fmean(by_name[_ROUND_ROBIN].first_token_s)
    context.note(
        f"mean time to the first token over round-robin's: {middle:.3g} (goal: {_GOAL_SHARE:g} or less);"
        f" decisions per second: {decisions[0]['per_s'].p50:,.0f} (goal: {_GOAL_DECISIONS_PER_S:,})"
    )
    return make_report(
        "routing",
        "ms",
        "lower",
        ours=distribution(ours[1].first_token_s, scale=1e3),
        references={name: distribution(outcome.first_token_s, scale=1e3) for name, outcome in others},
        series=[*_rows(first), *decisions],
        host=context.host,
    )


# First tokens.

Served = list[tuple[str, Outcome]]
"""What became of the traces of one load, by the way of choosing; ours is first."""


def _first_tokens(context: PureContext) -> list[Served]:
    served: list[Served] = []
    seeds = max(1, context.options.samples)
    ways = choosers(Workload(calls_per_s=1).output_tokens)
    with context.progress.counting("traces", len(_LOADS_CALLS_PER_S) * seeds * len(ways)) as advance:
        for calls_per_s in _LOADS_CALLS_PER_S:
            workload = Workload(calls_per_s=calls_per_s, duration_s=_DURATION_S)
            traces = [make_trace(workload, seed) for seed in range(1, seeds + 1)]
            served.append([(name, _serve(way, traces, workload, advance)) for name, way in ways.items()])
    return served


def _serve(
    way: Callable[[], Chooser], traces: Sequence[Sequence[Call]], workload: Workload, advance: Callable[[], None]
) -> Outcome:
    outcomes = []
    for trace in traces:
        fleet = Fleet(backends(_FLEET), _CACHE_BLOCKS, way(), workload.output_tokens)
        outcomes.append(fleet.run(trace, from_s=_WARM_UP_S, until_s=_DURATION_S))
        advance()
    return Outcome(
        first_token_s=[value for outcome in outcomes for value in outcome.first_token_s],
        completion_s=[value for outcome in outcomes for value in outcome.completion_s],
        hit_share=statistics.fmean(outcome.hit_share for outcome in outcomes),
        used_share=statistics.fmean(outcome.used_share for outcome in outcomes),
    )


def _rows(first: Sequence[Served]) -> list[dict[str, Any]]:
    rows = []
    for calls_per_s, served in zip(_LOADS_CALLS_PER_S, first, strict=True):
        outcomes = dict(served)
        base_s = statistics.fmean(outcomes[_ROUND_ROBIN].first_token_s)
        for name, outcome in served:
            mean_s = statistics.fmean(outcome.first_token_s)
            rows.append(
                {
                    "what": "time to the first token",
                    "chosen": name,
                    "calls_per_s": calls_per_s,
                    "calls": len(outcome.first_token_s),
                    "mean_ms": round(mean_s * 1e3, 1),
                    "first_token_ms": distribution(outcome.first_token_s, scale=1e3),
                    "over_round_robin": ratio(mean_s, base_s),
                    "completion_mean_s": round(statistics.fmean(outcome.completion_s), 3),
                    "cached_share": round(outcome.hit_share, 4),
                    "slots_used_share": round(outcome.used_share, 4),
                }
            )
    return rows


# Decisions.


def _decisions(context: PureContext) -> list[dict[str, Any]]:
    router, requests, now_s = loaded_router()
    rounds = max(3, 2 * context.options.samples)
    loop = _rates(lambda request: router.decide(request, now_s), requests, rounds)
    rule = _rates(lambda request: router.explain(request, now_s), requests[:_RULE_SAMPLE], rounds)
    priced = [msgspec.structs.replace(request, objective=Objective.PRICE) for request in requests[:_RULE_SAMPLE]]
    price = _rates(lambda request: router.decide(request, now_s), priced, rounds)
    whole = _rates(lambda request: _live(router, request, now_s), requests, rounds)
    held = statistics.fmean(len(request.blocks) for request in requests)
    return [
        {"what": "decision", "backends": _BACKENDS, "prompt_blocks": round(held, 1), "per_s": loop},
        {"what": "decision and what follows: assign, start, begin, finish", "backends": _BACKENDS, "per_s": whole},
        {"what": "decision by price, which looks at every backend", "backends": _BACKENDS, "per_s": price},
        {
            "what": "decision by the plain rule, every candidate explained",
            "backends": _BACKENDS,
            "per_s": rule,
            "slower_by": ratio(loop.p50, rule.p50),
        },
    ]


def loaded_router() -> tuple[Router, list[RouteRequest], float]:
    """Return a router over 64 backends in the middle of its work, calls that come next, and the present."""
    source = random.Random(1)
    router = Router(backends(_BACKENDS))
    common = _fresh(source, 12)
    episodes = [common + _fresh(source, 6) for _ in range(_EPISODES)]
    under_way: list[Assignment] = []
    requests: list[RouteRequest] = []
    now_s = 0.0
    for _ in range(_WARM_CALLS):
        now_s += source.expovariate(200.0)
        number = source.randrange(_EPISODES)
        grown = episodes[number] + _fresh(source, source.randint(1, 8))
        episodes[number] = grown if len(grown) < 200 else common + _fresh(source, 6)
        request = RouteRequest(
            model="model",
            blocks=episodes[number],
            input_tokens=256 * len(episodes[number]),
            output_tokens=355,
            project="bench",
            episode=f"e{number}",
        )
        requests.append(request)
        under_way.append(_send(router, request, now_s))
        if len(under_way) > 0.7 * _BACKENDS * _SLOTS:
            router.finish(under_way.pop(source.randrange(len(under_way))), now_s)
    return router, requests[-_SAMPLE:], now_s


def _fresh(source: random.Random, count: int) -> tuple[int, ...]:
    return tuple(source.getrandbits(64) for _ in range(count))


def _send(router: Router, request: RouteRequest, now_s: float) -> Assignment:
    choice = router.decide(request, now_s)
    assert isinstance(choice, Choice), choice
    call = router.assign(request, choice, now_s)
    router.start(call, now_s)
    return call


def _live(router: Router, request: RouteRequest, now_s: float) -> None:
    call = _send(router, request, now_s)
    router.begin(call, now_s)
    router.finish(call, now_s)


def _rates(act: Callable[[RouteRequest], object], requests: Sequence[RouteRequest], rounds: int) -> Distribution:
    """Return how often something is done in a second of this thread, each value over all requests once."""
    values = []
    for _ in range(rounds):
        begin = time.thread_time()
        for request in requests:
            act(request)
        values.append(len(requests) / (time.thread_time() - begin))
    return distribution(values)
