"""Traces of the router: what calls teach it, and how backends are left alone and trusted again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dsec.base.errors import InvalidRequestError, InvalidStateError, NotFoundError
from dsec.routing.backend import Backend, Pace, PrefixCache
from dsec.routing.choice import Choice, Reason, Refusal, Verdict, Why
from dsec.routing.policy import RoutingPolicy
from dsec.routing.request import RouteRequest
from dsec.routing.retrying import Failure, FailureKind
from dsec.routing.router import Router
from dsec.routing.state import Assignment
from dsec.routing.usage import Count, Usage

Make = Callable[..., Any]


def send(router: Router, request: RouteRequest, now_s: float = 0.0) -> Assignment:
    choice = router.decide(request, now_s)
    assert isinstance(choice, Choice), choice
    call = router.assign(request, choice, now_s)
    router.start(call, now_s)
    return call


def used(call: Assignment, read: int) -> Usage:
    return Usage(plain_input=Count(tokens=call.input_tokens - read), cache_read=Count(tokens=read))


def fail(router: Router, request: RouteRequest, kind: FailureKind, now_s: float, **facts: Any) -> None:
    router.finish(send(router, request, now_s), now_s, failure=Failure(kind=kind, brief="?", **facts))


class TestPrefixes:
    @pytest.fixture
    def router(self, make_backend: Make) -> Router:
        return Router([make_backend(name, slots=4, prefill_tokens_per_s=100.0) for name in ("one", "two")])

    def test_calls_that_share_a_prefix_go_together(self, router: Router, make_request: Make) -> None:
        send(router, make_request(length=10, shared=5, own=1))
        send(router, make_request(length=20, shared=0, own=2))
        choice = router.decide(make_request(length=10, shared=5, own=3), 1.0)
        assert isinstance(choice, Choice)
        assert (choice.backend, choice.reason, choice.hit_tokens) == ("one", Reason.CACHED, 500)

    def test_even_before_the_first_of_them_has_ended(self, router: Router, make_request: Make) -> None:
        first, second = make_request(own=1, shared=5), make_request(own=2, shared=5)
        choices = []
        for request in (first, second):
            choice = router.decide(request, 0.0)
            assert isinstance(choice, Choice)
            router.assign(request, choice, 0.0)
            choices.append(choice.backend)
        assert choices == ["one", "one"]

    def test_a_report_of_nothing_found_takes_the_prefix_away(self, router: Router, make_request: Make) -> None:
        router.finish(send(router, make_request(own=1, shared=5)), 1.0)
        call = send(router, make_request(own=2, shared=5), 1.0)
        assert call.hit_tokens == 500
        router.finish(call, 2.0, usage=used(call, 0))
        again = router.views(make_request(own=1, shared=5), 2.0)[0]
        assert again.hit_tokens == 500, "the second call has brought the shared part back, and nothing more"
        assert again.hit_share < 1

    def test_reports_that_agree_keep_the_trust(self, router: Router, make_request: Make) -> None:
        for turn in range(3):
            call = send(router, make_request(), float(turn))
            router.finish(call, turn + 0.5, usage=used(call, call.hit_tokens))
        assert router.statistics(5.0)[0].hit_share == 1.0

    def test_a_restarted_backend_has_an_empty_cache(self, router: Router, make_request: Make) -> None:
        router.finish(send(router, make_request()), 1.0)
        router.restarted("one")
        assert router.views(make_request(), 1.0)[0].hit_tokens == 0

    def test_a_short_lived_cache_is_not_believed_for_long(self, make_backend: Make, make_request: Make) -> None:
        router = Router([make_backend(cache=PrefixCache(lifetime_s=300.0))])
        router.finish(send(router, make_request()), 1.0)
        assert router.views(make_request(), 299.0)[0].hit_tokens > 0
        assert router.views(make_request(), 301.0)[0].hit_tokens == 0

    def test_where_calls_must_ask_for_it_only_those_that_do_find_anything(
        self, make_backend: Make, make_request: Make
    ) -> None:
        router = Router([make_backend(cache=PrefixCache(explicit=True))])
        asking, not_asking = make_request(cacheable_tokens=1_000), make_request()
        send(router, not_asking)
        assert router.views(asking, 1.0)[0].hit_tokens == 0
        send(router, asking, 1.0)
        assert router.views(asking, 2.0)[0].hit_tokens > 0
        assert router.views(not_asking, 2.0)[0].hit_tokens == 0

    def test_groups_share_no_prefixes(self, make_backend: Make, make_request: Make) -> None:
        router = Router([make_backend("one"), make_backend("two", group="other")], routes={"any": ("model", "other")})
        send(router, make_request(model="model"))
        assert [view.hit_tokens > 0 for view in router.views(make_request(model="any"), 0.0)] == [True, False]


class TestEpisodes:
    def test_an_episode_stays_until_its_home_is_much_later(self, make_backend: Make, make_request: Make) -> None:
        router = Router([make_backend(name, cache=None) for name in ("one", "two")], policy=RoutingPolicy(sticky_s=0.3))
        router.report_queue("one", 0.1, 0.0)
        assert send(router, make_request(episode="e")).backend == "two"
        router.report_queue("one", 0.0, 1.0)
        router.report_queue("two", 0.29, 1.0)
        assert router.decide(make_request(), 1.0).backend == "one"  # type: ignore[union-attr]
        choice = router.decide(make_request(episode="e"), 1.0)
        assert isinstance(choice, Choice)
        assert (choice.backend, choice.reason) == ("two", Reason.STICKY)
        router.report_queue("two", 9.0, 1.0)
        assert send(router, make_request(episode="e"), 1.0).backend == "one"
        router.report_queue("two", 0.0, 2.0)
        router.report_queue("one", 0.2, 2.0)
        assert send(router, make_request(episode="e"), 2.0).backend == "one", "it has moved"

    def test_remembered_episodes_are_bounded(self, make_backend: Make, make_request: Make) -> None:
        router = Router([make_backend()], policy=RoutingPolicy(episodes=10))
        for number in range(50):
            send(router, make_request(episode=f"e{number}"))
        assert len(router._homes) == 10


class TestQueues:
    def test_the_wait_follows_the_time_that_calls_take(self, make_backend: Make, make_request: Make) -> None:
        router = Router([make_backend(slots=2, pace=(Pace(calls=1, s_per_token=0.1),))])
        request = make_request(output_tokens=50)
        calls = [send(router, request) for _ in range(2)]
        choice = router.decide(request, 0.0)
        assert isinstance(choice, Choice)
        assert choice.queue_s == pytest.approx(5.0 / 2)
        router.assign(request, choice, 0.0)
        assert router.statistics(0.0)[0].queue_s == pytest.approx(2 * 5.0 / 2)
        router.finish(calls[0], 10.0)
        assert router.statistics(10.0)[0].hold_s == pytest.approx(5.0 + 0.05 * (10.0 - 5.0))

    def test_no_project_fills_the_queue_alone(self, make_backend: Make, make_request: Make) -> None:
        router = Router([make_backend(slots=1, waiting=8)])
        send(router, make_request(project="loud"))
        placed = 0
        while isinstance(choice := router.decide(make_request(project="loud"), 0.0), Choice):
            router.assign(make_request(project="loud"), choice, 0.0)
            placed += 1
        assert placed == 4
        assert choice.why is Why.UNAVAILABLE
        assert isinstance(router.decide(make_request(project="quiet"), 0.0), Choice)
        explained = router.explain(make_request(project="loud"), 0.0)
        assert isinstance(explained, Refusal)
        assert "4 calls wait there already, 4 of them of this project" in explained.candidates[0].why

    def test_a_call_that_is_withdrawn_leaves_no_trace(self, make_backend: Make, make_request: Make) -> None:
        router = Router([make_backend(slots=1, requests_per_minute=1, tokens_per_minute=5_000)])
        before = router.statistics(0.0)[0]
        request = make_request(project="p")
        choice = router.decide(request, 0.0)
        assert isinstance(choice, Choice)
        call = router.assign(request, choice, 0.0)
        assert isinstance(router.decide(request, 0.0), Refusal)
        router.withdraw(call, 0.0)
        after = router.statistics(0.0)[0]
        assert (after.waiting, after.requests_in_minute, after.tokens_in_minute) == (0, 0, 0)
        assert before.waiting == 0
        assert isinstance(router.decide(request, 0.0), Choice)

    def test_tokens_that_were_not_used_are_given_back(self, make_backend: Make, make_request: Make) -> None:
        router = Router([make_backend(tokens_per_minute=5_000)])
        call = send(router, make_request(maximum_output_tokens=3_000))
        assert isinstance(router.decide(make_request(maximum_output_tokens=3_000), 1.0), Refusal)
        router.finish(call, 2.0, usage=Usage(plain_input=Count(tokens=1_000), visible=Count(tokens=10)))
        assert router.statistics(2.0)[0].tokens_in_minute == 1_010
        assert isinstance(router.decide(make_request(maximum_output_tokens=2_900), 2.0), Choice)


class TestHealth:
    POLICY = RoutingPolicy(suspend_after=3, suspend_s=5.0, suspend_limit_s=15.0, pause_s=1.0, pause_limit_s=60.0)

    @pytest.fixture
    def router(self, make_backend: Make) -> Router:
        return Router([make_backend()], policy=self.POLICY)

    def closed_s(self, router: Router, now_s: float) -> float | None:
        return router.statistics(now_s)[0].closed_until_s

    def test_a_backend_that_fails_again_and_again_is_left_out_and_then_tried_by_one_call(
        self, router: Router, make_request: Make
    ) -> None:
        for turn in range(3):
            assert self.closed_s(router, float(turn)) is None
            fail(router, make_request(), FailureKind.BROKEN, float(turn))
        refusal = router.decide(make_request(), 3.0)
        assert isinstance(refusal, Refusal)
        assert (refusal.why, refusal.opens_at_s) == (Why.UNAVAILABLE, 7.0)
        trial = send(router, make_request(), 7.0)
        assert isinstance(router.decide(make_request(), 7.0), Refusal), "only one call tries it"
        router.finish(trial, 8.0, failure=Failure(kind=FailureKind.SILENT, brief="?"))
        assert self.closed_s(router, 8.0) == 8.0 + 10.0
        router.finish(send(router, make_request(), 18.0), 19.0)
        send(router, make_request(), 19.0)
        send(router, make_request(), 19.0)

    def test_calls_that_fail_together_count_once(self, router: Router, make_request: Make) -> None:
        calls = [send(router, make_request()) for _ in range(50)]
        for call in calls:
            router.finish(call, 1.0, failure=Failure(kind=FailureKind.BROKEN, brief="?"))
        assert self.closed_s(router, 1.0) == 6.0

    def test_a_trial_that_is_taken_back_lets_another_one_try(self, router: Router, make_request: Make) -> None:
        for _ in range(3):
            fail(router, make_request(), FailureKind.BROKEN, 0.0)
        choice = router.decide(make_request(), 6.0)
        assert isinstance(choice, Choice)
        router.withdraw(router.assign(make_request(), choice, 6.0), 6.0)
        assert isinstance(router.decide(make_request(), 6.0), Choice)

    @pytest.mark.parametrize(
        "kind", [FailureKind.REFUSED, FailureKind.TOO_LONG, FailureKind.CANCELLED, FailureKind.EXPIRED]
    )
    def test_what_is_not_its_own_fault_is_not_held_against_it(
        self, router: Router, make_request: Make, kind: FailureKind
    ) -> None:
        for _ in range(10):
            fail(router, make_request(), kind, 0.0)
        assert self.closed_s(router, 0.0) is None

    def test_a_key_that_is_not_accepted_closes_it_at_once(self, router: Router, make_request: Make) -> None:
        fail(router, make_request(), FailureKind.DENIED, 0.0)
        assert self.closed_s(router, 0.0) == 5.0

    def test_it_is_left_alone_for_as_long_as_it_asks(self, router: Router, make_request: Make) -> None:
        fail(router, make_request(), FailureKind.LIMITED, 0.0, retry_after_s=12.0)
        refusal = router.decide(make_request(), 1.0)
        assert isinstance(refusal, Refusal)
        assert refusal.opens_at_s == 12.0
        assert isinstance(router.decide(make_request(), 12.0), Choice)

    def test_but_not_for_ever(self, router: Router, make_request: Make) -> None:
        fail(router, make_request(), FailureKind.OVERLOADED, 0.0, retry_after_s=1e9)
        assert self.closed_s(router, 0.0) == 60.0

    def test_without_a_time_pauses_double_until_something_succeeds(self, router: Router, make_request: Make) -> None:
        lengths = []
        now_s = 0.0
        for _ in range(3):
            fail(router, make_request(), FailureKind.LIMITED, now_s)
            until_s = self.closed_s(router, now_s)
            assert until_s is not None
            lengths.append(until_s - now_s)
            now_s = until_s
        router.finish(send(router, make_request(), now_s), now_s)
        fail(router, make_request(), FailureKind.LIMITED, now_s)
        assert lengths == [1.0, 2.0, 4.0]
        assert self.closed_s(router, now_s) == now_s + 1.0


class TestWords:
    def test_an_unknown_model_is_told_what_there_is(self, make_backend: Make) -> None:
        router = Router([make_backend(group="claude-sonnet-5"), make_backend("two", group="flash")])
        refusal = router.decide(RouteRequest(model="claude-sonet-5"), 0.0)
        assert isinstance(refusal, Refusal)
        assert refusal.why is Why.UNKNOWN_MODEL
        assert refusal.alternatives == ("claude-sonnet-5", "flash")
        assert isinstance(refusal.error(), NotFoundError)
        assert "claude-sonnet-5, flash" in refusal.error().resolution

    def test_an_explanation_is_the_decision_with_every_candidate(self, make_backend: Make, make_request: Make) -> None:
        router = Router([make_backend("one", network_s=0.2), make_backend("two")])
        short, whole = router.decide(make_request(), 0.0), router.explain(make_request(), 0.0)
        assert isinstance(short, Choice)
        assert isinstance(whole, Choice)
        assert (short.backend, whole.backend) == ("two", "two")
        assert [one.verdict for one in whole.candidates] == [Verdict.LATER, Verdict.TAKEN]
        assert whole.why == "two: shortest; begins in 0 ms after 0 ms of queue"

    def test_calls_are_told_of_in_order(self, make_backend: Make, make_request: Make) -> None:
        router = Router([make_backend()])
        call = send(router, make_request())
        with pytest.raises(InvalidStateError, match="is sent"):
            router.withdraw(call, 0.0)
        router.begin(call, 0.5)
        router.finish(call, 1.0)
        with pytest.raises(InvalidStateError, match="is ended"):
            router.finish(call, 1.0)
        assert router.statistics(1.0)[0].prediction_error_s == 0.5

    def test_a_fleet_that_cannot_be_is_refused(self, make_backend: Make) -> None:
        with pytest.raises(InvalidRequestError, match="named twice: one"):
            Router([make_backend(), make_backend()])
        with pytest.raises(InvalidRequestError, match="route 'any' leads to 'nowhere'"):
            Router([make_backend()], routes={"any": ("nowhere",)})
        with pytest.raises(InvalidRequestError, match="queue_s"):
            Router([make_backend()]).report_queue("one", float("nan"), 0.0)
        with pytest.raises(NotFoundError, match="'two'"):
            Router([make_backend()]).restarted("two")

    @pytest.mark.parametrize(
        ("fields", "name"),
        [
            ({"slots": 0}, "slots"),
            ({"context_tokens": -1}, "context_tokens"),
            ({"network_s": -0.1}, "network_s"),
            ({"network_s": float("inf")}, "network_s"),
            ({"prefill_tokens_per_s": 0.0}, "prefill_tokens_per_s"),
            ({"prefill_tokens_per_s": 100.0, "cached_tokens_per_s": 50.0}, "cached_tokens_per_s"),
            ({"success": 0.0}, "success"),
            ({"pace": (Pace(calls=2, s_per_token=1.0), Pace(calls=2, s_per_token=2.0))}, "pace"),
            ({"name": ""}, "not named"),
        ],
    )
    def test_a_declaration_that_cannot_be_is_refused(self, make_backend: Make, fields: Any, name: str) -> None:
        with pytest.raises(InvalidRequestError, match=name):
            make_backend(**fields)

    def test_times_of_tokens_are_interpolated_between_what_is_declared(self) -> None:
        pace = (Pace(calls=16, s_per_token=0.0169), Pace(calls=32, s_per_token=0.0253))
        backend = Backend(name="one", group="flash", pace=pace)
        assert [backend.s_per_token(calls) for calls in (1, 16, 24, 32, 99)] == pytest.approx(
            [0.0169, 0.0169, 0.0211, 0.0253, 0.0253]
        )
