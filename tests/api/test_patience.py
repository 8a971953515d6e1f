"""Deadlines of requests that wait for commands do not count the time in which the sandbox is paused."""

from __future__ import annotations

import anyio
import pytest

from dsec.api import application, patience
from dsec.api.patience import Patience
from dsec.api.server import TcpAddress, serve
from dsec.base.errors import DeadlineExceededError, SandboxNotFoundError
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec
from dsec.sdk import http
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
BOX = "sbx-box"
SLEEP = CommandRequest(argv=("sleep", "600"), timeout_s=600)
SOON_S = 0.02
TOKEN = "a-token-for-tests"


class Box:
    """A sandbox that was paused so long, in total, each time it is asked."""

    def __init__(self, *paused_s: float) -> None:
        self.answers = list(paused_s)
        self.ended = anyio.Event()

    async def paused_s(self) -> float:
        if not self.answers:
            raise SandboxNotFoundError("it is gone")
        return self.answers.pop(0)


@pytest.mark.parametrize("answers", [(0.0,), (), (1e9, 0.0), (1e9, 1e9)])
async def test_the_end_comes_when_no_more_was_paused_or_nobody_can_be_asked(
    answers: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_LEAST_S", 0.0)
    box = Box(*answers)
    waiting = Patience(SOON_S, box.paused_s, box.ended.set)
    with anyio.fail_after(60):
        await box.ended.wait()
    assert box.answers == []
    waiting.close()


async def test_what_is_closed_does_not_end() -> None:
    box = Box(0.0)
    waiting = Patience(0.0, box.paused_s, box.ended.set)
    for _ in range(2):
        waiting.close()
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    assert not box.ended.is_set()


async def test_a_run_over_http_outlasts_a_pause_and_not_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (application, http):
        monkeypatch.setattr(module, "deadline_of", lambda route, body: SOON_S if route.name == "run" else 60.0)
    monkeypatch.setattr(http, "ANSWER_SLACK_S", 0.0)
    host = MemoryHost()
    async with (
        host.node() as node,
        serve(node, tcp=TcpAddress(token=TOKEN)) as serving,
    ):
        service = HttpService(Endpoint(url=serving.url, token=TOKEN))
        await node.create(SandboxSpec(), sandbox_id=BOX)
        with anyio.fail_after(60):
            with pytest.raises(DeadlineExceededError):
                await node_run_through_server(service)
        await node.pause(BOX)
        host.clock.advance(1000.0)
        await node.resume(BOX)
        with anyio.move_on_after(4 * SOON_S) as scope:
            await service.run(BOX, SLEEP)
        assert scope.cancelled_caught
        await service.aclose()


async def node_run_through_server(service: HttpService) -> None:
    """The client's own deadline is the longer one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http, "ANSWER_SLACK_S", 60.0)
        await service.run(BOX, SLEEP)
