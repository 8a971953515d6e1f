"""The saved state of sandboxes, of a node in this process or of a server elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from dsec.api import wire
from dsec.base.errors import CapabilityMissingError
from dsec.model.sandbox import SandboxInfo
from dsec.model.state import (
    CheckpointInfo,
    CheckpointRequest,
    FingerprintReport,
    ForkRequest,
    JobAction,
    JobEvent,
    JobInfo,
    MigrationReport,
    MigrationRequest,
    PackReport,
    PackRequest,
    RestoreRequest,
    SnapshotInfo,
    SnapshotRequest,
)
from dsec.sdk.events import events_of
from dsec.sdk.http import HttpService
from dsec.service.port import SandboxService
from dsec.service.state import HasState, StateService

_MOST_IDS = 4096
"""Children of one fork that are given ids here; a node refuses to make more anyway."""


class HttpState:
    """The `StateService` of a server. Belongs to the event loop of its `HttpService`."""

    def __init__(self, service: HttpService) -> None:
        self._service = service

    async def checkpoint(self, sandbox_id: str, request: CheckpointRequest = CheckpointRequest()) -> CheckpointInfo:
        info: CheckpointInfo = await self._service._call("checkpoint", request, sandbox_id=sandbox_id)
        return info

    async def list_checkpoints(self, sandbox_id: str) -> Sequence[CheckpointInfo]:
        infos: Sequence[CheckpointInfo] = await self._service._call("list_checkpoints", sandbox_id=sandbox_id)
        return infos

    async def remove_checkpoint(self, sandbox_id: str, checkpoint: str) -> None:
        await self._service._call("remove_checkpoint", sandbox_id=sandbox_id, checkpoint=checkpoint)

    async def fork(self, sandbox_id: str, request: ForkRequest = ForkRequest()) -> Sequence[SandboxInfo]:
        """Make children of a sandbox. Their ids are always sent, so that a cut connection is answered by asking again
        instead of making as many once more."""
        if not request.sandbox_ids and 0 < request.count <= _MOST_IDS:
            await self._service._find(sandbox_id)  # The ids name the node that makes them.
            ids = [await self._service._new_id(beside=sandbox_id) for _ in range(request.count)]
            request = msgspec.structs.replace(request, sandbox_ids=tuple(ids))
        infos: Sequence[SandboxInfo] = await self._service._call("fork", request, sandbox_id=sandbox_id)
        return infos

    async def snapshot(self, sandbox_id: str, request: SnapshotRequest = SnapshotRequest()) -> SnapshotInfo:
        info: SnapshotInfo = await self._service._call("snapshot", request, sandbox_id=sandbox_id)
        return info

    async def list_snapshots(self) -> Sequence[SnapshotInfo]:
        infos: Sequence[SnapshotInfo] = await self._service._call("list_snapshots")
        return infos

    async def restore(self, snapshot: str, request: RestoreRequest = RestoreRequest()) -> SandboxInfo:
        """Make a sandbox from a snapshot. An id is always sent, so that a cut connection is answered by asking again
        instead of leaving a sandbox that nobody knows."""
        if request.sandbox_id is None:
            request = msgspec.structs.replace(request, sandbox_id=await self._service._new_id())
        info: SandboxInfo = await self._service._call("restore", request, snapshot=snapshot)
        return info

    async def remove_snapshot(self, snapshot: str) -> None:
        await self._service._call("remove_snapshot", snapshot=snapshot)

    async def pack(self, sandbox_id: str, request: PackRequest) -> PackReport:
        report: PackReport = await self._service._call("pack", request, sandbox_id=sandbox_id)
        return report

    async def migrate(self, sandbox_id: str, request: MigrationRequest) -> MigrationReport:
        report: MigrationReport = await self._service._call("migrate", request, sandbox_id=sandbox_id)
        return report

    async def fingerprint(self, sandbox_id: str) -> FingerprintReport:
        report: FingerprintReport = await self._service._call("fingerprint", sandbox_id=sandbox_id)
        return report

    async def list_jobs(self) -> Sequence[JobInfo]:
        infos: Sequence[JobInfo] = await self._service._call("list_jobs")
        return infos

    @asynccontextmanager
    async def change_job(
        self, job: str, action: JobAction, *, keep_memory: bool = False
    ) -> AsyncIterator[AsyncIterator[JobEvent]]:
        pausing = action is JobAction.PAUSE
        query = [("keep_memory", "true")] if pausing and keep_memory else []
        async with self._service._stream("pause_job" if pausing else "resume_job", query, None, job=job) as reply:
            yield events_of(reply, wire.JobStreamEvent)


def state_of(service: SandboxService) -> StateService:
    """Return what keeps the state of a service's sandboxes.

    Raises:
        CapabilityMissingError: nothing does.
    """
    if isinstance(service, HttpService):
        return HttpState(service)
    if isinstance(service, HasState):
        return service.state
    raise CapabilityMissingError("this service keeps no state", resolution="talk to a node")
