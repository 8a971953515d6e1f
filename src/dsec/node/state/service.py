"""The `StateService` of a node: one thin method for each operation, whose work is in the module beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

import anyio

from dsec.base.errors import CapabilityMissingError
from dsec.model.sandbox import SandboxInfo, SandboxState
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
from dsec.node import arrival
from dsec.node.core import Core
from dsec.node.fleet import spreading
from dsec.node.lifetimes import Lifetimes
from dsec.node.sandbox import Sandbox
from dsec.node.state import checkpoints, fingerprints, forks, hooks, migration_source, packing, restoring
from dsec.node.state.base_room import BaseRoom
from dsec.node.state.jobs import Jobs
from dsec.node.state.snapshots import Snapshots


class State:
    """Save, branch, move and compare the sandboxes of a node. Implements `dsec.service.state.StateService`.

    Args:
        core: the node's inner state.
        lifetimes: its timer.
        room: the quotas of sandboxes of which snapshots are made.
        ready: returns a sandbox once it runs, resuming it when it is paused.
    """

    def __init__(
        self, core: Core, lifetimes: Lifetimes, room: BaseRoom, ready: Callable[[str], Awaitable[Sandbox]]
    ) -> None:
        self._core = core
        self._lifetimes = lifetimes
        self._ready = ready
        self._jobs = Jobs(core, lifetimes)
        self._snapshots = Snapshots(core, room)
        self._packs = anyio.CapacityLimiter(packing.PACKS_AT_ONCE)

    async def checkpoint(self, sandbox_id: str, request: CheckpointRequest = CheckpointRequest()) -> CheckpointInfo:
        sandbox = await self._standing(sandbox_id, runs=request.hooks)
        with self._core.activity(sandbox):
            return await checkpoints.checkpoint(self._core, sandbox, request)

    async def list_checkpoints(self, sandbox_id: str) -> Sequence[CheckpointInfo]:
        return checkpoints.list_all(self._core, self._core.registry.find(sandbox_id))

    async def remove_checkpoint(self, sandbox_id: str, checkpoint: str) -> None:
        await checkpoints.remove(self._core, await arrival.find(self._core, sandbox_id), checkpoint)

    async def fork(self, sandbox_id: str, request: ForkRequest = ForkRequest()) -> Sequence[SandboxInfo]:
        sandbox = await self._standing(sandbox_id, runs=request.checkpoint is None)
        with self._core.activity(sandbox):
            children = await forks.fork(self._core, self._lifetimes, sandbox, request)
        return await spreading.spread(self._core, self.migrate, children) if request.spread else children

    async def snapshot(self, sandbox_id: str, request: SnapshotRequest = SnapshotRequest()) -> SnapshotInfo:
        sandbox = await self._standing(sandbox_id, runs=request.checkpoint is None)
        with self._core.activity(sandbox):
            return await self._snapshots.take(sandbox, request)

    async def list_snapshots(self) -> Sequence[SnapshotInfo]:
        self._core.check_open()
        return await self._snapshots.list_all()

    async def restore(self, snapshot: str, request: RestoreRequest = RestoreRequest()) -> SandboxInfo:
        self._core.check_open()
        return await restoring.restore(self._core, self._lifetimes, snapshot, request)

    async def remove_snapshot(self, snapshot: str) -> None:
        self._core.check_open()
        await self._snapshots.remove(snapshot)

    async def pack(self, sandbox_id: str, request: PackRequest) -> PackReport:
        sandbox = await self._standing(sandbox_id, runs=False)
        with self._core.activity(sandbox):
            return await packing.pack(self._core, sandbox, request, self._packs)

    async def migrate(self, sandbox_id: str, request: MigrationRequest) -> MigrationReport:
        sandbox = await self._standing(sandbox_id, runs=True)
        with self._core.activity(sandbox):
            return await migration_source.migrate(self._core, sandbox, request)

    async def fingerprint(self, sandbox_id: str) -> FingerprintReport:
        sandbox = await self._ready(sandbox_id)
        with self._core.activity(sandbox):
            return await fingerprints.report(self._core, sandbox)

    async def list_jobs(self) -> Sequence[JobInfo]:
        self._core.check_open()
        return await self._jobs.infos()

    def change_job(
        self, job: str, action: JobAction, *, keep_memory: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[JobEvent]]:
        return self._jobs.change(job, action, keep_memory=keep_memory)

    async def _standing(self, sandbox_id: str, *, runs: bool) -> Sandbox:
        """Return a sandbox whose files can be saved: a paused one stays so, unless a hook is to run in it."""
        sandbox = await arrival.find(self._core, sandbox_id)
        if sandbox.state is SandboxState.PAUSED and not (runs and hooks.has_export(sandbox)):
            return sandbox
        return await self._ready(sandbox_id)


def _missing(what: str) -> CapabilityMissingError:
    return CapabilityMissingError(f"this node has no {what} yet")
