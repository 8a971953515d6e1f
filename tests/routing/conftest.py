"""Backends and calls for the tests of routing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dsec.costs.token_prices import TokenPrices
from dsec.routing.backend import Backend, Limits
from dsec.routing.request import RouteRequest

MakeBackend = Callable[..., Backend]
MakeRequest = Callable[..., RouteRequest]


@pytest.fixture
def make_backend() -> MakeBackend:
    """Backends of one group; limits are given by name."""

    def make(name: str = "one", **fields: Any) -> Backend:
        limits = {key: fields.pop(key) for key in Limits.__struct_fields__ if key in fields}
        fields.setdefault("group", "model")
        return Backend(name=name, limits=Limits(**limits), **fields)

    return make


@pytest.fixture
def make_request() -> MakeRequest:
    """Calls whose prompt is `length` blocks of 100 tokens; what `shared` says is equal among calls."""

    def make(*, length: int = 10, shared: int | None = None, own: int = 0, **fields: Any) -> RouteRequest:
        common = length if shared is None else shared
        blocks = (*range(1, common + 1), *(own * 1_000_000 + at for at in range(common + 1, length + 1)))
        fields.setdefault("input_tokens", 100 * length)
        fields.setdefault("model", "model")
        return RouteRequest(blocks=blocks, **fields)

    return make


@pytest.fixture
def haiku_prices() -> TokenPrices:
    """Example 11-7, service A."""
    return TokenPrices(input_usd_per_mtoken=1, output_usd_per_mtoken=5, cache_read_usd_per_mtoken=0.1)


@pytest.fixture
def sonnet_prices() -> TokenPrices:
    """Example 11-7, service B, and example 11-6."""
    return TokenPrices(
        input_usd_per_mtoken=2,
        output_usd_per_mtoken=10,
        cache_read_usd_per_mtoken=0.2,
        cache_write_usd_per_mtoken=2.5,
    )
