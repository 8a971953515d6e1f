"""Whatever happened before, the router decides as the plain rule does, and keeps every declared limit."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.base.errors import InvalidStateError
from dsec.routing.backend import Backend, Limits, Pace, PrefixCache
from dsec.routing.choice import Choice, Refusal
from dsec.routing.choose import choose
from dsec.routing.policy import RoutingPolicy
from dsec.routing.request import Objective, RouteRequest
from dsec.routing.retrying import Failure, FailureKind
from dsec.routing.router import Router
from dsec.routing.state import Assignment
from dsec.routing.usage import Count, Source, Usage

GROUPS = ("small", "large")
FAILURES = (
    FailureKind.BROKEN, FailureKind.LIMITED, FailureKind.OVERLOADED, FailureKind.REFUSED, FailureKind.DENIED,
    FailureKind.SILENT,
)  # fmt: skip


def fleet(source: random.Random, count: int) -> list[Backend]:
    """Backends that differ in everything that the router keeps apart, and are often equal in it."""

    def one(number: int) -> Backend:
        speed = source.choice([None, 1_000.0, 1_000.0, 8_000.0])
        return Backend(
            name=f"b{number}",
            group=source.choice(GROUPS),
            network_s=source.choice([0.0, 0.0, 0.05]),
            prefill_tokens_per_s=speed,
            cached_tokens_per_s=None if speed is None else source.choice([None, 50_000.0]),
            pace=source.choice([(), (Pace(calls=1, s_per_token=0.01), Pace(calls=4, s_per_token=0.03))]),
            reserved_usd_per_h=source.choice([None, 10.0]),
            success=source.choice([0.7, 1.0]),
            cache=source.choice(
                [
                    None,
                    PrefixCache(),
                    PrefixCache(capacity_tokens=256 * 9),
                    PrefixCache(minimum_tokens=400, lifetime_s=30),
                    PrefixCache(explicit=True),
                ]
            ),
            limits=Limits(
                slots=source.choice([None, 1, 2, 2, 3]),
                waiting=source.choice([0, 1, 4]),
                context_tokens=source.choice([None, None, 1_500]),
                requests_per_minute=source.choice([None, None, 4]),
                tokens_per_minute=source.choice([None, None, 5_000]),
            ),
        )

    return [one(number) for number in range(count)]


class History:
    """Plays calls on a router; before each decision it asks the plain rule."""

    def __init__(self, seed: int, count: int) -> None:
        self.source = random.Random(seed)
        self.backends = fleet(self.source, count)
        self.by_name = {backend.name: backend for backend in self.backends}
        served = sorted({backend.group for backend in self.backends})
        policy = RoutingPolicy(suspend_after=2, suspend_s=3.0, pause_s=2.0, hit_weight=0.5, episodes=4, index_blocks=64)
        self.router = Router(self.backends, routes={"any": served}, policy=policy)
        self.models = ("any", *served)
        self.now_s = 0.0
        self.waiting: list[Assignment] = []
        self.running: list[Assignment] = []
        self.sent: dict[str, list[tuple[float, int]]] = {backend.name: [] for backend in self.backends}
        self.homes: dict[str, str] = {}
        self.compared = 0

    def request(self) -> RouteRequest:
        source = self.source
        length = source.randrange(9)
        stem = source.randrange(4)
        blocks = tuple((stem if at < 3 else stem + 10 * source.randrange(2)) * 100 + at for at in range(length))
        return RouteRequest(
            model=source.choice(self.models),
            blocks=blocks,
            input_tokens=256 * length + source.randrange(200),
            output_tokens=source.choice([0, 50]),
            maximum_output_tokens=source.choice([0, 300]),
            cacheable_tokens=source.choice([0, 500]),
            project=source.choice(["", "one", "two"]),
            episode=source.choice(["", "e0", "e1", "e2", "e3", "e4", "e5"]),
            objective=source.choice([*[Objective.FIRST_TOKEN] * 6, *Objective]),
            complete_within_s=source.choice([None, 1.0]),
            required_success=source.choice([0.0, 0.8]),
            excluded=frozenset(source.sample(sorted(self.by_name), source.choice([0, 0, 1]))),
        )

    def decide(self) -> None:
        request = self.request()
        home = self.router._homes.get(request.episode, "") if request.episode else ""
        expected = choose(request, self.router.views(request, self.now_s), self.router.policy, self.now_s, home=home)
        found = self.router.decide(request, self.now_s)
        assert isinstance(found, Refusal) is isinstance(expected, Refusal), (found, expected)
        if isinstance(expected, Refusal):
            assert isinstance(found, Refusal)
            assert (found.why, found.opens_at_s, found.brief) == (expected.why, expected.opens_at_s, expected.brief)
            return
        assert isinstance(found, Choice)
        self.compared += 1
        for name in ("backend", "group", "reason", "queue_s", "hit_tokens", "first_token_s"):
            assert getattr(found, name) == getattr(expected, name), (name, found, expected)
        assert self.router.decide(request, self.now_s) == found
        call = self.router.assign(request, found, self.now_s)
        assert call.backend not in request.excluded
        self.waiting.append(call)

    def start(self) -> None:
        """Send calls whose backend has a slot, as the gateway does."""
        for call in list(self.waiting):
            slots = self.by_name[call.backend].limits.slots
            if slots is None or call.state.running < slots:
                self.waiting.remove(call)
                self.running.append(call)
                self.router.start(call, self.now_s)
                self.sent[call.backend].append((self.now_s, call.counted_tokens))

    def finish(self) -> None:
        if not self.running:
            return
        call = self.running.pop(self.source.randrange(len(self.running)))
        if self.source.random() < 0.3:
            failure = Failure(
                kind=self.source.choice(FAILURES), brief="?", retry_after_s=self.source.choice([None, 1.5, 20.0])
            )
            self.router.finish(call, self.now_s, failure=failure)
            return
        read = self.source.choice([0, call.hit_tokens // 2, call.hit_tokens])
        source = self.source.choice([Source.REPORTED, Source.REPORTED, Source.ESTIMATED])
        plain = Count(tokens=call.input_tokens - read)
        self.router.finish(
            call, self.now_s, usage=Usage(plain_input=plain, cache_read=Count(tokens=read, source=source))
        )

    def withdraw(self) -> None:
        if self.waiting:
            self.router.withdraw(self.waiting.pop(self.source.randrange(len(self.waiting))), self.now_s)

    def step(self) -> None:
        kind = self.source.random()
        if kind < 0.5:
            self.decide()
        elif kind < 0.75:
            self.finish()
        elif kind < 0.8:
            self.withdraw()
        elif kind < 0.82:
            self.router.restarted(self.source.choice(self.backends).name)
        elif kind < 0.85:
            backend = self.source.choice(self.backends).name
            self.router.report_queue(backend, self.source.choice([0.0, 0.0, 1.0]), self.now_s)
        else:
            self.now_s += self.source.choice([0.0, 0.4, 3.0, 25.0])
        self.start()

    def check(self) -> None:
        for one in self.router.statistics(self.now_s):
            limits = self.by_name[one.backend].limits
            assert one.running == sum(call.backend == one.backend for call in self.running)
            assert one.waiting == sum(call.backend == one.backend for call in self.waiting)
            if limits.slots is not None:
                assert one.running <= limits.slots
                assert one.waiting <= limits.waiting + limits.slots
            minute = [tokens for at_s, tokens in self.sent[one.backend] if at_s > self.now_s - 60]
            assert limits.requests_per_minute is None or len(minute) <= limits.requests_per_minute
            if limits.tokens_per_minute is not None and one.tokens_in_minute > 0:
                assert one.tokens_in_minute <= limits.tokens_per_minute
            assert one.cached_blocks <= 64


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 10))
def test_decides_as_the_rule_does_and_keeps_every_limit(seed: int, count: int) -> None:
    history = History(seed, count)
    for _ in range(80):
        history.step()
        history.check()


def test_the_histories_are_worth_something() -> None:
    history = History(7, 8)
    for _ in range(600):
        history.step()
    assert history.compared > 60
    assert any(one.hit_share < 1 for one in history.router.statistics(history.now_s))


def test_of_two_calls_that_saw_the_same_room_one_gets_it(make_backend: Any, make_request: Any) -> None:
    router = Router([make_backend(slots=1, waiting=0)])
    first, second = (router.decide(make_request(), 0.0) for _ in range(2))
    assert isinstance(first, Choice)
    assert isinstance(second, Choice)
    router.assign(make_request(), first, 0.0)
    with pytest.raises(InvalidStateError, match="decide again"):
        router.assign(make_request(), second, 0.0)
