"""What a start does with each migration that the journal tells of: the table of docs/formats/migration.md.

A migration that had not come to its decision is given up on both sides; whatever was received or frozen for it has
names that nobody claims. One that was decided goes on: the source's sandbox is taken apart, the target's waits.
"""

from __future__ import annotations

from functools import partial

import anyio
import structlog

from dsec.base.errors import DsecError, RuntimeFailedError
from dsec.lifecycle.migration import SourceEvent, SourcePhase, TargetEvent, TargetPhase, source_after, target_after
from dsec.node.core import Core
from dsec.node.registry import Whereabouts
from dsec.node.sandbox import Generation, Sandbox, instance_of
from dsec.node.state import migration_records as records
from dsec.node.state.migration_copy import import_name
from dsec.node.state.migration_release import leave_behind, send_away
from dsec.stores.port import JournalContent, MigrationRecord

_log = structlog.get_logger(__name__)


class MigrationRecovery:
    """The migrations of one start.

    Attributes:
        released: by sandbox, those that are the targets' now, and may be here in part.
        prepared: by sandbox, those that came and wait for their source's word.
        paused: sandboxes that were paused when they began to move, and have not left.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._void: list[MigrationRecord] = []
        self.released: dict[str, MigrationRecord] = {}
        self.prepared: dict[str, MigrationRecord] = {}
        self.paused: set[str] = set()

    def read(self, content: JournalContent) -> None:
        """Take up what the journal says, the oldest first: a sandbox may have gone, come back and gone again."""
        for record in content.migrations:
            self._take_up(record)

    def _take_up(self, record: MigrationRecord) -> None:
        if record.target is not None:
            after = target_after(record.target, TargetEvent.RESTARTED)
            if after is TargetPhase.PREPARED:
                self.prepared[record.sandbox_id] = record
            elif after is TargetPhase.DONE:
                self._core.registry.forget_moved(record.sandbox_id)
        else:
            if source_after(record.source, SourceEvent.RESTARTED) is not None:
                self._core.registry.remember_moved(record.sandbox_id, Whereabouts(record.peer, record.url))
            if record.source is SourcePhase.RELEASED:
                self.released[record.sandbox_id] = record
        records.remember(self._core, record)
        if record.source is SourcePhase.COPYING and record.paused:
            self.paused.add(record.sandbox_id)
        if record.source is SourcePhase.COPYING or record.target is TargetPhase.RECEIVING:
            self._void.append(record)

    async def leave(self, sandbox: Sandbox) -> None:
        """Take apart what is left of a sandbox that is another node's; what resists is tried again later."""
        record = self.released[sandbox.sandbox_id]
        send_away(self._core, sandbox, record)
        try:
            await leave_behind(self._core, sandbox, record)
        except DsecError as error:
            _log.error("not_left_behind", sandbox_id=sandbox.sandbox_id, error=str(error))

    async def keep(self, sandbox: Sandbox, instances: set[str], layers: set[str]) -> None:
        """Keep a copy that waits, with its files; whether its processes live does not matter yet.

        Args:
            sandbox: the copy.
            instances, layers: what the host has; what is kept is taken out of them.

        Raises:
            RuntimeFailedError: its files are gone.
        """
        core, record, name = self._core, sandbox.record, instance_of(sandbox.record)
        if record.layer not in layers:
            raise RuntimeFailedError("its files were gone when the node started")
        core.saved.claim(import_name(record))
        sandbox.arrival = anyio.Event()
        layers.discard(record.layer)
        instance = await core.parts.runtime.adopt(name) if name in instances else None
        if instance is not None:
            sandbox.generation = Generation(record, instance)
            instances.discard(name)

    async def forget_void(self) -> None:
        """Forget what was given up, once nothing of it is left, and tell the targets."""
        for record in self._void:
            await records.forget(self._core, record)
            if record.source is not None and (record.peer or record.url):
                self._core.supervisor.start(f"abort {record.migration_id}", partial(self._abort, record))

    async def _abort(self, record: MigrationRecord) -> None:
        """Best effort: a target that does not hear it asks, or lets its lease end."""
        try:
            with anyio.move_on_after(self._core.settings.migration_lease_s):
                peer = await self._core.parts.peers.find(record.peer or record.url)
                await peer.abort(record.migration_id)
        except DsecError as error:
            _log.info("abort_not_heard", migration_id=record.migration_id, error=str(error))
