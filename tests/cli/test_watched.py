"""A node that nobody needs notices it, and no sooner."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest

from dsec.base.clock import ManualClock
from dsec.cli import watched
from dsec.cli.watched import Watched, has_sandboxes
from dsec.service.port import SandboxService

pytestmark = pytest.mark.anyio


class _Service:
    """As much of a service as counts here: what it lists."""

    def __init__(self) -> None:
        self.listed: list[str] = []

    async def list(self) -> Any:
        return self.listed

    async def images(self) -> list[str]:
        return []


async def _steps_until_idle(
    service: _Service, monkeypatch: pytest.MonkeyPatch, limit_s: float, *, at: dict[int, Any] | None = None
) -> int:
    """Let each sleep of the watch move the clock; run `at[n]` in the n-th sleep; return how many sleeps it took."""
    clock = ManualClock()
    watch = Watched(cast(SandboxService, service), clock, has_sandboxes)
    steps = 0

    async def sleep(seconds: float) -> None:
        nonlocal steps
        steps += 1
        clock.advance(seconds)
        action = (at or {}).get(steps)
        if action:
            await action(watch)
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(watched.anyio, "sleep", sleep)
    await watch.wait_idle(limit_s)
    return steps


async def test_idle_after_the_limit_without_requests_and_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await _steps_until_idle(_Service(), monkeypatch, 40.0) == 4


async def test_a_request_starts_the_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(watch: Watched[SandboxService]) -> None:
        await watch.service.images()

    assert await _steps_until_idle(_Service(), monkeypatch, 40.0, at={3: use}) == 7


async def test_a_sandbox_keeps_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    service = _Service()
    service.listed = ["sbx-1"]

    async def end(_: Watched[SandboxService]) -> None:
        service.listed = []

    assert await _steps_until_idle(service, monkeypatch, 40.0, at={10: end}) == 13
