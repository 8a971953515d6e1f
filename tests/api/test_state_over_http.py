"""Saved state over HTTP is what it is in process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dsec.api import wire
from dsec.api.router import Router
from dsec.api.routes import ROUTES, deadline_of
from dsec.base.errors import SandboxMovedError, SnapshotNotFoundError
from dsec.model.sandbox import SandboxSpec
from dsec.model.state import (
    CheckpointRequest,
    ForkRequest,
    JobAction,
    JobEvent,
    JobProgress,
    JobReport,
    RestoreRequest,
)
from dsec.node.node import Node
from dsec.sdk.http import HttpService
from dsec.sdk.state import state_of

pytestmark = pytest.mark.anyio


async def test_checkpoints_are_made_listed_and_removed(service: HttpService, node: Node) -> None:
    state = state_of(service)
    box = (await service.create(SandboxSpec())).sandbox_id
    made = await state.checkpoint(box, CheckpointRequest(name="snap-001"))
    assert (made.name, made.sandbox_id) == ("snap-001", box)
    assert [info.checkpoint_id for info in await state.list_checkpoints(box)] == [made.checkpoint_id]
    assert (await service.rollback(box, snapshot="snap-001")).generation == 1
    await state.remove_checkpoint(box, made.checkpoint_id)
    assert await state.list_checkpoints(box) == []
    with pytest.raises(SnapshotNotFoundError):
        await service.rollback(box, snapshot="snap-001")


async def test_a_fork_returns_its_children(service: HttpService) -> None:
    parent = (await service.create(SandboxSpec())).sandbox_id
    children = await state_of(service).fork(parent, ForkRequest(count=3))
    assert len({child.sandbox_id for child in children}) == 3
    assert {child.parent for child in children} == {parent}


async def test_a_fork_is_asked_for_with_ids_so_that_asking_again_makes_no_more(
    service: HttpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = (await service.create(SandboxSpec())).sandbox_id
    sent: list[ForkRequest] = []
    call = service._call

    async def twice(name: str, body: ForkRequest, **path: str) -> object:
        sent.append(body)
        await call(name, body, **path)
        return await call(name, body, **path)

    with monkeypatch.context() as patch:
        patch.setattr(service, "_call", twice)
        children = await state_of(service).fork(parent, ForkRequest(count=3))
    assert [child.sandbox_id for child in children] == list(sent[0].sandbox_ids)
    assert len(await service.list()) == 4


async def test_a_job_says_how_far_it_is_and_its_name_may_hold_slashes(
    service: HttpService, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, JobAction]] = []

    @asynccontextmanager
    async def change_job(job: str, action: JobAction) -> AsyncIterator[AsyncIterator[JobEvent]]:
        async def events() -> AsyncIterator[JobEvent]:
            yield JobProgress(done=0, total=1)
            yield JobReport(job=job, action=action, changed=("sbx-a",))

        asked.append((job, action))
        yield events()

    monkeypatch.setattr(node.state, "change_job", change_job)
    async with state_of(service).change_job("team/a b%2f", JobAction.RESUME) as events:
        heard = [event async for event in events]
    assert asked == [("team/a b%2f", JobAction.RESUME)]
    assert [type(event) for event in heard] == [JobProgress, JobReport]


def test_a_moved_sandbox_says_where_it_is() -> None:
    error = SandboxMovedError("sbx-a has moved")
    error.url = "http://other:8620"
    told = wire.raise_error(wire.error_body(error))
    assert isinstance(told, SandboxMovedError)
    assert told.url == "http://other:8620"


def test_a_fork_has_time_for_its_children_and_a_restore_what_it_asks_for() -> None:
    assert deadline_of(ROUTES["fork"], ForkRequest(count=100)) == 160.0
    assert deadline_of(ROUTES["fork"], ForkRequest(count=10**9)) == 3600.0
    assert deadline_of(ROUTES["restore"], RestoreRequest(timeout_s=600.0)) == 660.0


def test_the_router_decodes_what_was_sent_once() -> None:
    methods, parameters = Router(ROUTES.values()).find("/v1/jobs/a/b%2f/pause", b"/v1/jobs/a%2Fb%252f/pause")
    assert methods["POST"].name == "pause_job"
    assert parameters == {"job": "a/b%2f"}
