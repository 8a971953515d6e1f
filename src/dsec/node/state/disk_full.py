"""What a full writable layer leads to where the sandbox asked for more than an error: a forced rollback.

Full is seen in two ways: a file operation from outside met the quota (EDQUOT), and a periodic look at what is used.
Nothing tells the node of an EDQUOT that a program inside met, so that one who makes room again between two looks goes
on unseen; that is the guest's good right. With the rollback every command under way ends with `SandboxDiskFullError`,
the generation is the next, the record's cause and an event tell why.
"""

from __future__ import annotations

from functools import partial

import anyio
import structlog

from dsec.base.errors import DsecError, NotFoundError, SandboxDiskFullError
from dsec.base.units import MIB, format_size
from dsec.model.event import EventKind
from dsec.model.sandbox import DiskFullAction, SandboxState
from dsec.node.core import Core
from dsec.node.rollback import rollback
from dsec.node.sandbox import Sandbox
from dsec.node.state.base_room import BaseRoom

_log = structlog.get_logger(__name__)
_MARGIN_SHARE = 64
_MARGIN_BYTES = 4 * MIB


class DiskFull:
    """Roll back what is full and asked for that."""

    def __init__(self, core: Core, room: BaseRoom) -> None:
        self._core = core
        self._room = room
        self._hopeless: dict[str, int] = {}

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            await anyio.sleep(self._core.settings.disk_full_look_s)
            await self.look()

    async def look(self) -> None:
        """Look at every sandbox that asked for it, once."""
        for sandbox in self._core.registry:
            if self._is_concerned(sandbox) and self._is_full(sandbox):
                await self._force(sandbox, sandbox.record.generation)

    def notice(self, sandbox: Sandbox) -> None:
        """Somebody met the quota."""
        if self._is_concerned(sandbox):
            force = partial(self._force, sandbox, sandbox.record.generation)
            self._core.supervisor.start(f"roll back {sandbox.sandbox_id}", force)

    def _is_concerned(self, sandbox: Sandbox) -> bool:
        record = sandbox.record
        return (
            record.spec.on_disk_full is DiskFullAction.ROLLBACK
            and record.state is SandboxState.READY
            and self._hopeless.get(record.sandbox_id) != record.generation
        )

    def _is_full(self, sandbox: Sandbox) -> bool:
        quota_bytes = self._room.quota_bytes(sandbox)
        if quota_bytes is None:
            return False
        try:
            used_bytes = self._core.parts.layers.used_bytes(sandbox.record.layer)
        except NotFoundError:
            return False  # It has ended meanwhile.
        # The last write that failed may have asked for more than one page.
        return used_bytes >= quota_bytes - min(quota_bytes // _MARGIN_SHARE, _MARGIN_BYTES)

    async def _force(self, sandbox: Sandbox, generation: int) -> None:
        if not self._is_concerned(sandbox) or sandbox.record.generation != generation:
            return
        quota = format_size(sandbox.record.spec.resources.disk_bytes or 0)
        because = SandboxDiskFullError(
            f"the writable layer of {sandbox.sandbox_id} reached its quota of {quota}",
            detail="it asked to be rolled back then (on_disk_full)",
            resolution="write less, or create it with a larger resources.disk_bytes",
        )
        self._core.recorder.add(EventKind.DISK_FULL, sandbox_id=sandbox.sandbox_id, text=because.brief)
        try:
            await rollback(self._core, sandbox, None, because=because)
        except DsecError as error:
            _log.warning("forced_rollback_failed", sandbox_id=sandbox.sandbox_id, error=str(error))
            return
        if self._is_full(sandbox):
            # Its clean state alone fills the quota: rolling back for ever would help nobody.
            self._hopeless[sandbox.sandbox_id] = sandbox.record.generation
