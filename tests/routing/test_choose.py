"""The rule of choice on the chapter's own figures, and what it says of every candidate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError, ModelUnavailableError
from dsec.costs.token_prices import TokenPrices
from dsec.routing.backend import Backend, Limits, Pace
from dsec.routing.choice import Choice, Reason, Refusal, Verdict, Why
from dsec.routing.choose import choose
from dsec.routing.policy import RoutingPolicy
from dsec.routing.request import Objective, RouteRequest
from dsec.routing.view import BackendView

Views = Callable[[float], list[BackendView]]

POLICY = RoutingPolicy()
# A prompt of 5,000 tokens takes 500 ms on a backend that does not hold it, and 50 ms on one that does.
CALL = RouteRequest(model="model", blocks=tuple(range(10)), input_tokens=5_000, output_tokens=100)


def place(name: str, *, queue_s: float, hit_tokens: int = 0, rank: int = 0, **facts: Any) -> BackendView:
    backend = Backend(
        name=name, group="model", network_s=0.05, prefill_tokens_per_s=10_000, cached_tokens_per_s=100_000
    )
    return BackendView(backend=backend, rank=rank, reported_queue_s=queue_s, hit_tokens=hit_tokens, **facts)


def taken(*views: BackendView, request: RouteRequest = CALL, home: str = "") -> Choice:
    choice = choose(request, views, POLICY, 0.0, home=home)
    assert isinstance(choice, Choice), choice
    return choice


class TestCachedOrFree:
    """Section 11.4.3: A queues 200 ms and holds the prefix, B queues 20 ms and does not."""

    def test_begins_after_300_ms_where_the_prefix_is_and_after_570_ms_where_it_is_not(self) -> None:
        choice = taken(place("A", queue_s=0.2, hit_tokens=5_000), place("B", queue_s=0.02, rank=1))
        assert choice.backend == "A"
        assert choice.reason is Reason.CACHED
        first, second = (candidate.prediction.first_token_s for candidate in choice.candidates)
        assert first == pytest.approx(0.3, abs=1e-12)
        assert second == pytest.approx(0.57, abs=1e-12)

    @pytest.mark.parametrize(("queue_s", "backend"), [(0.469, "A"), (0.471, "B")])
    def test_takes_the_cached_one_until_470_ms_of_queue_outweigh_the_hit(self, queue_s: float, backend: str) -> None:
        assert taken(place("A", queue_s=queue_s, hit_tokens=5_000), place("B", queue_s=0.02, rank=1)).backend == backend

    def test_both_are_equal_at_470_ms_of_queue(self) -> None:
        choice = taken(place("A", queue_s=0.47, hit_tokens=5_000), place("B", queue_s=0.02, rank=1))
        first, second = (candidate.prediction.first_token_s for candidate in choice.candidates)
        assert first == pytest.approx(second, abs=1e-12)

    def test_says_how_much_later_the_other_one_is(self) -> None:
        choice = taken(place("A", queue_s=0.2, hit_tokens=5_000), place("B", queue_s=0.02, rank=1))
        assert [candidate.verdict for candidate in choice.candidates] == [Verdict.TAKEN, Verdict.LATER]
        assert "counts 270 ms later than A" in choice.candidates[1].why
        assert "5000 tokens cached" in choice.candidates[0].why

    def test_a_cache_that_often_disappoints_is_worth_less(self) -> None:
        doubtful = place("A", queue_s=0.2, hit_tokens=5_000, hit_share=0.3)
        assert taken(doubtful, place("B", queue_s=0.02, rank=1)).backend == "B"


class TestPriceUnderDeadline:
    """Example 11-7: the prefix is in A's cache always, and in B's with probability h."""

    CALL = RouteRequest(model="either", input_tokens=20_000, output_tokens=200, objective=Objective.PRICE)

    @pytest.fixture
    def views(self, haiku_prices: TokenPrices, sonnet_prices: TokenPrices) -> Views:
        """A thinks 1,800 tokens and ends after 10 s; B thinks 100 and ends after 4 s on a hit, 12 s on a miss."""
        slow = Backend(
            name="A",
            group="haiku",
            prices=haiku_prices,
            success=0.8,
            thinking_tokens=1_800,
            pace=(Pace(calls=1, s_per_token=10 / 2_000),),
        )
        hit_prefill_s = 8 / 19
        quick = Backend(
            name="B",
            group="sonnet",
            prices=sonnet_prices,
            success=0.98,
            thinking_tokens=100,
            prefill_tokens_per_s=19_000 / 8,
            pace=(Pace(calls=1, s_per_token=(4 - hit_prefill_s) / 300),),
        )

        def at(hits: float) -> list[BackendView]:
            return [
                BackendView(backend=slow, rank=0, hit_tokens=19_000),
                BackendView(backend=quick, rank=1, hit_tokens=19_000 if hits else 0, hit_share=hits),
            ]

        return at

    def test_a_call_costs_what_the_chapter_says(self, views: Views) -> None:
        first, on_hit = (one.prediction for one in taken(*views(1.0), request=self.CALL).candidates)
        _, on_miss = (one.prediction for one in taken(*views(0.0), request=self.CALL).candidates)
        assert first.call_usd == pytest.approx(0.0129)
        assert first.success_usd == pytest.approx(0.016125)
        assert (on_hit.call_usd, on_miss.call_usd) == pytest.approx((0.0088, 0.0430))
        assert (first.completion_s, on_hit.completion_s, on_miss.completion_s) == pytest.approx((10, 4, 12))

    @pytest.mark.parametrize(("hits", "backend"), [(0.5, "A"), (0.7952, "A"), (0.7953, "B"), (1.0, "B")])
    def test_the_dearer_service_is_cheaper_from_a_hit_rate_of_79_5_percent(
        self, views: Views, hits: float, backend: str
    ) -> None:
        choice = taken(*views(hits), request=self.CALL)
        assert choice.backend == backend
        assert choice.reason is Reason.CHEAPEST
        assert {one.verdict for one in choice.candidates} == {Verdict.TAKEN, Verdict.DEARER}

    def test_at_a_hit_rate_of_one_half_a_success_of_the_dearer_one_costs_0_0264(self, views: Views) -> None:
        assert taken(*views(0.5), request=self.CALL).candidates[1].prediction.success_usd == pytest.approx(
            0.02643, abs=1e-5
        )

    @pytest.mark.parametrize(("hits", "is_enough"), [(0.9183, False), (0.9184, True)])
    def test_nine_in_ten_are_in_time_from_a_hit_rate_of_91_8_percent(
        self, views: Views, hits: float, is_enough: bool
    ) -> None:
        request = msgspec.structs.replace(self.CALL, complete_within_s=6.0, required_success=0.9)
        choice = choose(request, views(hits), POLICY, 0.0)
        assert isinstance(choice, Choice) is is_enough
        assert choice.candidates[0].verdict is Verdict.UNTIMELY
        if isinstance(choice, Refusal):
            assert choice.why is Why.UNTIMELY
            assert not choice.retryable
            assert isinstance(choice.error(), InvalidRequestError)
            assert "within 6 s; 90.0% are required" in choice.candidates[1].why

    def test_the_deadline_may_make_the_dearer_one_the_only_one(self, views: Views) -> None:
        request = msgspec.structs.replace(self.CALL, complete_within_s=6.0, required_success=0.4)
        assert taken(*views(0.5), request=request).backend == "B"

    def test_less_thinking_makes_the_cheaper_one_cheaper(self, views: Views) -> None:
        request = msgspec.structs.replace(self.CALL, thinking_tokens=100)
        assert taken(*views(1.0), request=request).backend == "A"

    def test_what_has_no_price_is_taken_last(self, views: Views) -> None:
        unpriced = BackendView(backend=Backend(name="C", group="free"), rank=2)
        choice = taken(*views(1.0), unpriced, request=self.CALL)
        assert choice.backend == "B"
        assert choice.candidates[2].prediction.success_usd is None

    def test_time_on_a_reserved_replica_is_paid_by_its_share(self) -> None:
        """Section 11.4.4: 9 s on the 32nd part of four B200 at 6.79 USD an hour are 1.125 B200*s."""
        replica = Backend(
            name="R",
            group="flash",
            reserved_usd_per_h=4 * 6.79,
            limits=Limits(slots=32),
            pace=(Pace(calls=32, s_per_token=9 / 355),),
        )
        request = RouteRequest(model="flash", output_tokens=355, objective=Objective.PRICE)
        choice = taken(BackendView(backend=replica, running=31), request=request)
        assert choice.candidates[0].prediction.call_usd == pytest.approx(1.125 * 6.79 / 3600)


class TestCrowding:
    def test_of_two_that_begin_at_once_the_emptier_one_is_taken(self) -> None:
        limits = Limits(slots=10)
        full = BackendView(backend=Backend(name="A", group="model", limits=limits), running=9)
        empty = BackendView(backend=Backend(name="B", group="model", limits=limits, network_s=0.2), rank=1, running=1)
        choice = taken(full, empty)
        assert choice.backend == "B"
        assert choice.first_token_s == 0.2
        assert "1000 ms later than B (1200 ms for being fuller, 200 ms sooner otherwise)" in choice.candidates[0].why

    def test_it_can_be_left_out_of_account(self) -> None:
        limits = Limits(slots=10)
        full = BackendView(backend=Backend(name="A", group="model", limits=limits), running=9)
        empty = BackendView(backend=Backend(name="B", group="model", limits=limits, network_s=0.2), rank=1, running=1)
        choice = choose(CALL, [full, empty], RoutingPolicy(crowding_s=0.0), 0.0)
        assert isinstance(choice, Choice)
        assert choice.backend == "A"


class TestStickiness:
    def test_an_episode_stays_while_no_other_backend_is_better_by_more_than_staying_is_worth(self) -> None:
        views = place("A", queue_s=0.1), place("B", queue_s=0.1 + POLICY.sticky_s * 0.9, rank=1)
        assert taken(*views).backend == "A"
        choice = taken(*views, home="B")
        assert choice.backend == "B"
        assert choice.reason is Reason.STICKY
        assert "sooner than B, where the episode is" in choice.candidates[0].why

    def test_it_gives_way_when_its_home_is_too_busy(self) -> None:
        views = place("A", queue_s=0.1), place("B", queue_s=0.1 + POLICY.sticky_s * 1.1, rank=1)
        assert taken(*views, home="B").backend == "A"

    def test_it_gives_way_when_its_home_is_closed(self) -> None:
        assert taken(place("A", queue_s=9), place("B", queue_s=0, rank=1, paused_until_s=5.0), home="B").backend == "A"


class TestLimits:
    @pytest.mark.parametrize(
        ("facts", "limits", "verdict", "opens_at_s"),
        [
            ({"running": 2, "waiting": 3, "hold_s": 4.0}, {"slots": 2, "waiting": 3}, Verdict.FULL, 2.0),
            ({}, {"context_tokens": 5_099}, Verdict.CONTEXT, None),
            ({"requests_used": 5, "requests_open_at_s": 7.0}, {"requests_per_minute": 5}, Verdict.REQUESTS, 7.0),
            ({"tokens_used": 9_000, "tokens_open_at_s": 8.0}, {"tokens_per_minute": 10_000}, Verdict.TOKENS, 8.0),
            ({"tokens_open_at_s": None}, {"tokens_per_minute": 100}, Verdict.TOKENS, None),
            ({"paused_until_s": 3.0}, {}, Verdict.PAUSED, 3.0),
            ({"suspended_until_s": 4.0}, {}, Verdict.UNHEALTHY, 4.0),
            ({"suspended_until_s": math.inf}, {}, Verdict.UNHEALTHY, None),
        ],
    )
    def test_a_limit_without_room_is_named(
        self, facts: dict[str, Any], limits: dict[str, int], verdict: Verdict, opens_at_s: float | None
    ) -> None:
        closed = BackendView(backend=Backend(name="one", group="model", limits=Limits(**limits)), **facts)
        other = place("other", queue_s=100, rank=1)
        choice = taken(closed, other)
        assert choice.backend == "other"
        assert choice.candidates[0].verdict is verdict
        assert choice.candidates[0].opens_at_s == opens_at_s
        refusal = choose(CALL, [closed], POLICY, 0.0)
        assert isinstance(refusal, Refusal)
        assert refusal.opens_at_s == opens_at_s
        assert refusal.why is (
            Why.UNAVAILABLE if verdict.passes and facts.get("tokens_open_at_s", 0) is not None else Why.TOO_LONG
        )

    def test_says_which_limit_binds_first(self) -> None:
        limits = Limits(slots=10, context_tokens=51_000, requests_per_minute=20, tokens_per_minute=100_000)
        view = BackendView(
            backend=Backend(name="one", group="model", limits=limits), running=4, requests_used=5, tokens_used=60_000
        )
        candidate = taken(view).candidates[0]
        assert (candidate.binding, candidate.binding_share) == ("tokens", pytest.approx(0.651))
        shorter = msgspec.structs.replace(CALL, input_tokens=0, output_tokens=0)
        few = msgspec.structs.replace(view, tokens_used=0)
        candidate = taken(few, request=shorter).candidates[0]
        assert (candidate.binding, candidate.binding_share) == ("concurrency", pytest.approx(0.5))

    def test_a_backend_that_was_tried_is_not_tried_again(self) -> None:
        request = msgspec.structs.replace(CALL, excluded=frozenset({"A"}))
        assert taken(place("A", queue_s=0), place("B", queue_s=9, rank=1), request=request).backend == "B"
        refusal = choose(request, [place("A", queue_s=0)], POLICY, 0.0)
        assert isinstance(refusal, Refusal)
        assert refusal.why is Why.EXCLUDED

    def test_a_refusal_that_passes_is_worth_another_try(self) -> None:
        views = [place("A", queue_s=0, paused_until_s=9.0), place("B", queue_s=0, paused_until_s=4.0, rank=1)]
        refusal = choose(CALL, views, POLICY, 1.0)
        assert isinstance(refusal, Refusal)
        assert refusal.retryable
        assert refusal.opens_at_s == 4.0
        assert isinstance(refusal.error(), ModelUnavailableError)
        assert "2 paused" in refusal.detail


backends = st.builds(
    Backend,
    name=st.just("?"),
    group=st.just("model"),
    network_s=st.floats(0, 1),
    prefill_tokens_per_s=st.none() | st.floats(100, 1e5),
    success=st.floats(0.01, 1),
    reserved_usd_per_h=st.none() | st.floats(0, 100),
    limits=st.builds(
        Limits,
        slots=st.none() | st.integers(1, 4),
        waiting=st.integers(0, 4),
        context_tokens=st.none() | st.integers(1, 10_000),
    ),
)
facts = st.fixed_dictionaries(
    {
        "running": st.integers(0, 4),
        "waiting": st.integers(0, 4),
        "hold_s": st.floats(0, 20),
        "reported_queue_s": st.floats(0, 20),
        "hit_tokens": st.integers(0, 5_000),
        "hit_share": st.floats(0, 1),
        "paused_until_s": st.floats(-5, 5),
    }
)
fleets = st.lists(st.tuples(backends, facts), min_size=1, max_size=6).map(
    lambda fleet: [
        BackendView(backend=msgspec.structs.replace(backend, name=f"b{rank}"), rank=rank, **known)
        for rank, (backend, known) in enumerate(fleet)
    ]
)
requests = st.builds(
    RouteRequest,
    model=st.just("model"),
    input_tokens=st.integers(5_000, 9_000),
    output_tokens=st.integers(0, 900),
    objective=st.sampled_from(Objective),
    complete_within_s=st.none() | st.floats(0.1, 30),
    required_success=st.floats(0, 1),
)
homes = st.sampled_from(["", "b0", "b1", "b2"])


class TestWhateverTheFleet:
    @given(request=requests, views=fleets, home=homes)
    def test_equal_inputs_give_equal_decisions(
        self, request: RouteRequest, views: list[BackendView], home: str
    ) -> None:
        again = [msgspec.structs.replace(view) for view in reversed(views)]
        first, second = choose(request, views, POLICY, 0.0, home=home), choose(request, again, POLICY, 0.0, home=home)
        assert type(first) is type(second)
        if isinstance(first, Choice):
            assert isinstance(second, Choice)
            assert first.backend == second.backend
        assert set(first.candidates) == set(second.candidates)

    @given(request=requests, views=fleets, home=homes, data=st.data())
    def test_more_queue_never_attracts(
        self, request: RouteRequest, views: list[BackendView], home: str, data: st.DataObject
    ) -> None:
        before = choose(request, views, POLICY, 0.0, home=home)
        at = data.draw(st.integers(0, len(views) - 1))
        longer = msgspec.structs.replace(
            views[at],
            waiting=views[at].waiting + data.draw(st.integers(0, 3)),
            reported_queue_s=views[at].reported_queue_s + data.draw(st.floats(0, 10)),
        )
        after = choose(request, [*views[:at], longer, *views[at + 1 :]], POLICY, 0.0, home=home)
        if isinstance(after, Choice) and after.backend == f"b{at}":
            assert isinstance(before, Choice)
            assert before.backend == f"b{at}"

    @given(request=requests, views=fleets, home=homes)
    def test_only_open_backends_are_taken_and_every_candidate_is_explained(
        self, request: RouteRequest, views: list[BackendView], home: str
    ) -> None:
        result = choose(request, views, POLICY, 0.0, home=home)
        assert [one.backend for one in result.candidates] == [view.backend.name for view in views]
        assert all(one.why for one in result.candidates)
        taken_ones = [one.backend for one in result.candidates if one.verdict is Verdict.TAKEN]
        assert taken_ones == ([result.backend] if isinstance(result, Choice) else [])
        if isinstance(result, Choice):
            view = views[int(result.backend[1:])]
            limits = view.backend.limits
            assert view.paused_until_s <= 0
            assert limits.slots is None or view.running + view.waiting < limits.slots + limits.waiting
            assert limits.context_tokens is None or request.bound_tokens <= limits.context_tokens
        else:
            assert all(one.verdict is not Verdict.LATER for one in result.candidates)
