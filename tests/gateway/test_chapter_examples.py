"""The chapter's examples 11-5, 11-6 and 11-7, out of usage that backends reported through a gateway."""

from __future__ import annotations

from typing import Any

import pytest

from dsec.costs.routing import Route, hit_rate_for_cost, hit_rate_for_deadline
from dsec.costs.thinking_budget import thinking_budget

pytestmark = pytest.mark.anyio


def reporting(shapes: Any, *usages: dict[str, Any]) -> Any:
    """Answer with one usage after the other, and with the last one from then on."""
    left = list(usages)

    async def act(backend: Any, request: Any, asked: Any) -> Any:
        usage = left.pop(0) if len(left) > 1 else left[0]
        return await shapes.answering(shapes.chat_answer(usage=usage))(backend, request, asked)

    return act


def used(total: int, *, read: int = 0, written: int = 0, thinking: int = 0, visible: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": total,
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
        "completion_tokens": thinking + visible,
        "completion_tokens_details": {"reasoning_tokens": thinking},
    }


async def costs(gateway: Any, calls: int, input_tokens: int) -> list[Any]:
    for _ in range(calls):
        assert (await gateway.chat("word" * input_tokens)).status_code == 200
    return [attempt.ended.cost for attempt in gateway.attempts()]


async def test_a_tenth_of_the_thinking_costs_28_percent_less(open_gateway: Any, backends: Any, shapes: Any) -> None:
    backends[0].act = reporting(
        shapes, used(10_000, thinking=1000, visible=200), used(10_000, thinking=100, visible=200)
    )
    gateway = await open_gateway(only_first=True, first='price_list = "claude-sonnet-5"')
    long, short = await costs(gateway, 2, 10_000)
    assert (long.total, short.total) == (pytest.approx(0.032), pytest.approx(0.023))
    assert 1 - short.total / long.total == pytest.approx(0.28, abs=0.005)
    assert not long.estimated
    assert gateway.attempts()[0].began.prices == "chapter of 2026-11-30"
    kept = thinking_budget(calls=100, saved_usd_per_call=long.total - short.total, retries=30, retry_usd=long.total)
    assert kept.net_usd == pytest.approx(-0.06)


async def test_ten_rounds_with_a_cached_prefix_cost_0_0744(open_gateway: Any, backends: Any, shapes: Any) -> None:
    backends[0].act = reporting(shapes, used(10_000, written=8000), used(10_000, read=8000))
    gateway = await open_gateway(only_first=True, first='price_list = "claude-sonnet-5"')
    paid = await costs(gateway, 10, 10_000)
    inputs = [cost.input + cost.cache_write + cost.cache_read for cost in paid]
    assert sum(inputs) == pytest.approx(0.0744)
    assert inputs[0] == pytest.approx(0.024)
    assert inputs[1:] == pytest.approx([0.0056] * 9)


async def test_the_dearer_service_is_cheaper_from_a_hit_rate_on_and_in_time_from_another(
    open_gateway: Any, backends: Any, shapes: Any
) -> None:
    backends[0].act = reporting(shapes, used(20_000, read=19_000, thinking=1800, visible=200))
    backends[1].act = reporting(
        shapes, used(20_000, read=19_000, thinking=100, visible=200), used(20_000, thinking=100, visible=200)
    )
    gateway = await open_gateway(
        first='price_list = "claude-haiku-4-5"\ngroup = "a"\nmodel = "m"',
        second='price_list = "claude-sonnet-5"\ngroup = "b"\nmodel = "m"',
        model='groups = ["a", "b"]',
        extra="[models.a]\n[models.b]",
    )
    for model, calls in (("a", 1), ("b", 2)):
        for _ in range(calls):
            answer = await gateway.chat("word" * 20_000, model=model)
            assert answer.status_code == 200
    cheap, hit, miss = (attempt.ended.cost.total for attempt in gateway.attempts())
    assert (cheap, hit, miss) == (pytest.approx(0.0129), pytest.approx(0.0088), pytest.approx(0.043))
    route = Route(
        hit_cost_usd=hit, miss_cost_usd=miss, hit_success=0.98, miss_success=0.98, hit_time_s=4.0, miss_time_s=12.0
    )
    assert hit_rate_for_cost(route=route, target_usd=cheap / 0.8) == pytest.approx(0.795, abs=5e-4)
    assert hit_rate_for_deadline(route=route, deadline_s=6.0, target_share=0.9) == pytest.approx(0.918, abs=5e-4)
