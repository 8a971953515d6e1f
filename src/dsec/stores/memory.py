"""A journal in memory: the fake that tests restart nodes on.

Each write is applied at once and then lets other tasks run, as a real one does: cancelling it does not take it back.
"""

from __future__ import annotations

from collections.abc import Sequence

from anyio.lowlevel import checkpoint

from dsec.stores.port import (
    REMEMBERED_IDS,
    CheckpointRecord,
    JournalContent,
    MigrationRecord,
    PoolRecord,
    ProcessRecord,
    SandboxRecord,
)


class MemoryJournal:
    """A `Journal` that lives as long as this object; closing it loses nothing."""

    def __init__(self) -> None:
        self._sandboxes: dict[str, SandboxRecord] = {}
        self._processes: dict[tuple[str, str], ProcessRecord] = {}
        self._removed: list[str] = []
        self._pools: dict[str, PoolRecord] = {}
        self._checkpoints: dict[str, CheckpointRecord] = {}
        self._removed_checkpoints: list[tuple[str, str]] = []
        self._migrations: dict[str, MigrationRecord] = {}

    def load(self) -> JournalContent:
        return JournalContent(
            sandboxes=tuple(self._sandboxes.values()),
            processes=tuple(self._processes.values()),
            removed=tuple(self._removed),
            pools=tuple(self._pools.values()),
            checkpoints=tuple(self._checkpoints.values()),
            removed_checkpoints=tuple(self._removed_checkpoints),
            migrations=tuple(self._migrations.values()),
        )

    async def put_sandbox(self, record: SandboxRecord) -> None:
        self._sandboxes[record.sandbox_id] = record
        await checkpoint()

    async def exchange(
        self,
        *records: SandboxRecord,
        erased: str | None = None,
        checkpoints: Sequence[CheckpointRecord] = (),
        dropped: Sequence[CheckpointRecord] = (),
        migrations: Sequence[MigrationRecord] = (),
        given_up: Sequence[MigrationRecord] = (),
    ) -> None:
        if erased is not None:
            self._sandboxes.pop(erased, None)
        for record in records:
            self._sandboxes[record.sandbox_id] = record
        for each in checkpoints:
            self._checkpoints[each.checkpoint_id] = each
        self._drop(dropped)
        self._migrations.update({each.migration_id: each for each in migrations})
        for migration in given_up:
            self._migrations.pop(migration.migration_id, None)
        await checkpoint()

    def _drop(self, records: Sequence[CheckpointRecord]) -> None:
        for record in records:
            self._checkpoints.pop(record.checkpoint_id, None)
        gone = [(record.checkpoint_id, record.sandbox_id) for record in records]
        self._removed_checkpoints = [*self._removed_checkpoints, *gone][-REMEMBERED_IDS:]

    async def delete_sandbox(self, sandbox_id: str) -> None:
        self._sandboxes.pop(sandbox_id, None)
        self._removed = [*self._removed, sandbox_id][-REMEMBERED_IDS:]
        self._drop([record for record in self._checkpoints.values() if record.sandbox_id == sandbox_id])
        await self.delete_processes(sandbox_id)

    async def put_process(self, record: ProcessRecord) -> None:
        self._processes[record.sandbox_id, record.process_id] = record
        await checkpoint()

    async def delete_processes(self, sandbox_id: str) -> None:
        for key in [key for key in self._processes if key[0] == sandbox_id]:
            del self._processes[key]
        await checkpoint()

    async def put_pool(self, record: PoolRecord) -> None:
        self._pools[record.pool_id] = record
        await checkpoint()

    async def delete_pool(self, pool_id: str) -> None:
        self._pools.pop(pool_id, None)
        await checkpoint()

    async def close(self) -> None:
        """Nothing is held."""
