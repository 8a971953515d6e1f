"""The contract by which the state of sandboxes is saved, branched, moved and compared, beside
`dsec.service.port.SandboxService`.

A node implements it on a host (`dsec.node.state`), `dsec.sdk.state.HttpState` against a server. Every operation is
atomic: after an error, a cancellation or a `kill -9` of the node, the sandbox is as before or as asked, and nothing of
the attempt is left once the node has started again. All of them first resume a paused sandbox where they need it
running. Operations that change a sandbox's state wait for one another; none waits for commands: those run on.

Names: where a checkpoint is asked for, its id or its name within the sandbox may be given. One that does not exist, was
removed, or belongs to another sandbox raises `SnapshotNotFoundError`, which says which of these it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

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


class StateService(Protocol):
    """Save, branch, move and compare the state of sandboxes."""

    # -- checkpoints: local, cheap -------------------------------------------------------------------------------

    async def checkpoint(self, sandbox_id: str, request: CheckpointRequest = CheckpointRequest()) -> CheckpointInfo:
        """Save the present state; commands run on after a short freeze. A name that exists raises
        `AlreadyExistsError`; too many checkpoints raise `LimitExceededError`."""

    async def list_checkpoints(self, sandbox_id: str) -> Sequence[CheckpointInfo]:
        """Return the checkpoints of a sandbox, the oldest first; `parent` makes a tree of them."""

    async def remove_checkpoint(self, sandbox_id: str, checkpoint: str) -> None:
        """Forget a checkpoint; those that began from it stay, and begin from its parent now. Idempotent by id."""

    async def fork(self, sandbox_id: str, request: ForkRequest = ForkRequest()) -> Sequence[SandboxInfo]:
        """Make children of a sandbox, ready, in the order of their numbers: all or none."""

    # -- snapshots: durable --------------------------------------------------------------------------------------

    async def snapshot(self, sandbox_id: str, request: SnapshotRequest = SnapshotRequest()) -> SnapshotInfo:
        """Make a state durable in the node's store and return once it is. Only what is not there yet travels.

        Raises:
            CapabilityMissingError: no store is set (``DSEC_STORE``).
            StoreUnavailableError: it does not answer, or lost what it had acknowledged.
        """

    async def list_snapshots(self) -> Sequence[SnapshotInfo]:
        """Return what the store holds, the oldest first."""

    async def restore(self, snapshot: str, request: RestoreRequest = RestoreRequest()) -> SandboxInfo:
        """Make a sandbox from a snapshot, given by id or name, whichever node made it.

        Raises:
            SnapshotNotFoundError: there is none.
            ImageNotFoundError: this node has not the image's layers and cannot get them; names their digests.
            StateCorruptedError: a chunk or manifest is missing or does not verify; names it. Nothing was made.
        """

    async def remove_snapshot(self, snapshot: str) -> None:
        """Forget a snapshot; chunks that no other needs are collected later. Those made upon it stay readable."""

    async def pack(self, sandbox_id: str, request: PackRequest) -> PackReport:
        """Make a new image of the sandbox's layers and what the session changed, scrubbed of residue."""

    # -- the whole -----------------------------------------------------------------------------------------------

    async def migrate(self, sandbox_id: str, request: MigrationRequest) -> MigrationReport:
        """Move a sandbox to another node; on failure it goes on here as before."""

    async def fingerprint(self, sandbox_id: str) -> FingerprintReport:
        """Compare a sandbox with the clean state recorded at its beginning."""

    async def list_jobs(self) -> Sequence[JobInfo]:
        """Return the jobs that live sandboxes name, by name."""

    def change_job(
        self, job: str, action: JobAction, *, keep_memory: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[JobEvent]]:
        """Pause or resume every sandbox of a job, in parallel. Progress comes first, the report last; leaving does
        not stop it. Idempotent; a job without sandboxes raises `NotFoundError`. `keep_memory` is as in
        `dsec.service.port.SandboxService.pause`; where memory does not fit, those sandboxes run on and are named."""


@runtime_checkable
class HasState(Protocol):
    """A service whose node keeps state."""

    state: StateService
