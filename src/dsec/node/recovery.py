"""Starting: bring what the journal promises and what the host holds back together.

Every record leads to one of: adopted, failed, finished (a rollback), or cleared away. What no record claims is
discarded. docs/formats/journal.md has the table.
"""

from __future__ import annotations

import shutil
from collections import defaultdict

import msgspec
import structlog

from dsec.base.errors import DsecError, RuntimeFailedError
from dsec.lifecycle.machine import LIVE, Event
from dsec.model.sandbox import SandboxState
from dsec.node.core import Core
from dsec.node.ending import fail, take_apart, watch
from dsec.node.lifetimes import Lifetimes
from dsec.node.processes import take_over
from dsec.node.rollback import complete, make_layer, next_generation
from dsec.node.sandbox import Generation, Sandbox, instance_name, instance_of
from dsec.node.state import checkpoints
from dsec.node.state.migration_recovery import MigrationRecovery
from dsec.node.state.pausing import give_back_later
from dsec.runtimes.port import Instance
from dsec.stores.port import CheckpointRecord, JournalContent, PoolRecord, ProcessRecord, SandboxRecord, Tenancy

_log = structlog.get_logger(__name__)
_NEVER_ACKNOWLEDGED = frozenset({SandboxState.PENDING, SandboxState.CREATING})
_OVER = frozenset({SandboxState.STOPPED, SandboxState.FAILED})
GONE = "its processes were gone when the node started"


class Recovery:
    """One start of a node."""

    def __init__(self, core: Core, lifetimes: Lifetimes) -> None:
        self._core = core
        self._lifetimes = lifetimes
        self._processes: dict[str, list[ProcessRecord]] = defaultdict(list)
        self._instances: set[str] = set()
        self._layers: set[str] = set()
        self._checkpoints: dict[str, list[CheckpointRecord]] = defaultdict(list)
        self._migrations = MigrationRecovery(core)
        self.pools: tuple[PoolRecord, ...] = ()

    async def run(self) -> None:
        parts = self._core.parts
        content = parts.journal.load()
        for sandbox_id in content.removed:
            self._core.registry.remember_removed(sandbox_id)
        for process in content.processes:
            self._processes[process.sandbox_id].append(process)
        self._instances = set(await parts.runtime.instances())
        self._layers = set(parts.layers.names())
        for checkpoint_id, owner in content.removed_checkpoints:
            self._core.removed_checkpoints[checkpoint_id] = owner
        await self._read_checkpoints(content)
        pools = frozenset(pool.pool_id for pool in content.pools)
        for record in content.sandboxes:
            if record.state not in _OVER and record.state not in _NEVER_ACKNOWLEDGED and not _is_waste(record, pools):
                self._core.slots.claim(record.slot)
        self._migrations.read(content)
        sandboxes = self._enlist(content)
        for record in content.sandboxes:
            if record.tenancy is Tenancy.OCCUPIED:
                await self._recover(record, sandboxes.get(record.sandbox_id))
            elif _is_waste(record, pools) or not await self._adopt_berth(record):
                await parts.journal.exchange(erased=record.sandbox_id)
        for sandbox in sandboxes.values():
            await self._drop_unfinished(sandbox)
        await self._discard_unclaimed()
        await self._migrations.forget_void()
        self.pools = content.pools

    async def _read_checkpoints(self, content: JournalContent) -> None:
        """Keep the checkpoints that are whole and whose sandbox lives, and drop the others from the journal."""
        living = {record.sandbox_id for record in content.sandboxes if record.state in LIVE}
        dropped: list[CheckpointRecord] = []
        for record in sorted(content.checkpoints, key=lambda each: (each.created_wall_s, each.checkpoint_id)):
            if record.saved and record.sandbox_id in living and record.layer in self._layers:
                self._checkpoints[record.sandbox_id].append(record)
            else:
                dropped.append(record)
        if dropped:
            await self._core.parts.journal.exchange(dropped=dropped)
            for record in dropped:
                self._core.remember_removed_checkpoint(record)

    def _adopt_saved(self, sandbox: Sandbox) -> None:
        """Claim what is saved of a sandbox, and let what began from a lost checkpoint begin from the clean state."""
        records = self._checkpoints[sandbox.sandbox_id]
        known = {record.checkpoint_id for record in records}
        for record in records:
            parent = record.parent if record.parent in known else None
            sandbox.checkpoints[record.checkpoint_id] = msgspec.structs.replace(record, parent=parent)
            self._core.saved.claim(record.layer)
        if sandbox.record.origin:
            self._core.saved.claim(sandbox.record.origin)
            sandbox.holds_origin = True

    def _enlist(self, content: JournalContent) -> dict[str, Sandbox]:
        """Take up everything that was acknowledged, with its claims on what is saved.

        All claims stand before the first sandbox is recovered: one that has to end gives its own up, and would take
        what others begin from with it.
        """
        sandboxes: dict[str, Sandbox] = {}
        for record in content.sandboxes:
            if record.tenancy is not Tenancy.OCCUPIED or record.state in _NEVER_ACKNOWLEDGED:
                continue
            sandbox = Sandbox(record, self._core.now_boot_s())
            sandbox.settled.set()
            self._core.registry.add(sandbox)
            sandboxes[record.sandbox_id] = sandbox
            if record.state in _OVER:
                sandbox.holds_slot = False
            else:
                self._adopt_saved(sandbox)
        return sandboxes

    async def _drop_unfinished(self, sandbox: Sandbox) -> None:
        """Remove checkpoints that were made for snapshots of which nothing is known to have come: nobody else would."""
        for record in list(sandbox.checkpoints.values()):
            if record.automatic and not record.snapshot:
                try:
                    await checkpoints.remove(self._core, sandbox, record.checkpoint_id)
                except DsecError as error:
                    _log.error("checkpoint_not_removed", checkpoint_id=record.checkpoint_id, error=str(error))

    async def _recover(self, record: SandboxRecord, sandbox: Sandbox | None) -> None:
        if sandbox is None:
            # It was never acknowledged. Its instance and layer are claimed by nobody now.
            await self._core.parts.journal.delete_sandbox(record.sandbox_id)
            return
        if record.sandbox_id in self._migrations.released:
            async with sandbox.transition:
                await self._migrations.leave(sandbox)
            return
        if record.state in _OVER:
            return
        async with sandbox.transition:
            if record.state is SandboxState.STOPPING:
                await self._finish_stop(sandbox)
                return
            try:
                await self._revive(sandbox)
            except DsecError as error:
                await self._give_up(sandbox, error)
                return
        if sandbox.state is SandboxState.MIGRATING:
            return  # Nobody is served by it before its source has said so.
        watch(self._core, sandbox)
        self._lifetimes.watch(sandbox)

    async def _adopt_berth(self, record: SandboxRecord) -> bool:
        """Adopt what stood ready in a pool, if it still is what the journal says: alive, and nothing runs in it."""
        core, name = self._core, instance_of(record)
        instance = await core.parts.runtime.adopt(name) if name in self._instances else None
        if instance is None or record.layer not in self._layers or not await _is_as_made(record, instance):
            # Its instance and layer are claimed by nobody now.
            core.slots.release(record.slot)
            return False
        berth = Sandbox(record, core.now_boot_s())
        berth.generation = Generation(record, instance)
        berth.settled.set()
        core.vacant[record.sandbox_id] = berth
        self._instances.discard(name)
        self._layers.discard(record.layer)
        watch(core, berth)
        return True

    async def _give_up(self, sandbox: Sandbox, error: DsecError) -> None:
        """Fail a sandbox that cannot be adopted; that its remains resist must not keep the node from starting."""
        _log.warning("adoption_failed", sandbox_id=sandbox.sandbox_id, error=str(error))
        try:
            await fail(self._core, sandbox, RuntimeFailedError(error.brief, detail=error.detail))
        except DsecError as again:
            _log.error("cleaning_up_failed", sandbox_id=sandbox.sandbox_id, error=str(again))

    async def _finish_stop(self, sandbox: Sandbox) -> None:
        await take_apart(self._core, sandbox, sandbox.unusable())
        await self._core.parts.journal.delete_processes(sandbox.sandbox_id)
        await self._core.move(sandbox, Event.STOPPED)

    async def _revive(self, sandbox: Sandbox) -> None:
        """Adopt a sandbox, or go the rest of the way of its rollback; or keep it for its source's word."""
        if sandbox.state is SandboxState.MIGRATING and sandbox.sandbox_id in self._migrations.prepared:
            await self._migrations.keep(sandbox, self._instances, self._layers)
            return
        if sandbox.state is SandboxState.ROLLING_BACK:
            await self._finish_rollback(sandbox)
        else:
            await self._adopt(sandbox)
        record = sandbox.record
        self._instances.discard(instance_of(record))
        self._layers.discard(record.layer)

    async def _adopt(self, sandbox: Sandbox) -> None:
        core, record = self._core, sandbox.record
        name = instance_of(record)
        instance = await core.parts.runtime.adopt(name) if name in self._instances else None
        if instance is None or record.layer not in self._layers:
            raise RuntimeFailedError(GONE)
        if record.state is SandboxState.MIGRATING:
            # It stood still for its last difference: its migration is given up.
            was_paused = sandbox.sandbox_id in self._migrations.paused
            await core.move(sandbox, Event.PAUSED if was_paused else Event.MIGRATED)
            record = sandbox.record
        sandbox.generation = Generation(record, instance)
        await self._adopt_processes(sandbox)
        # The node may have died between an effect and its record: make it as recorded.
        if record.state is SandboxState.PAUSED:
            await instance.pause()
            give_back_later(core, sandbox, adopted=True)
        else:
            await instance.resume()
        if record.boot_id != core.parts.boot_id:
            sandbox.record = msgspec.structs.replace(record, deadline_boot_s=self._new_deadline(record))

    def _new_deadline(self, record: SandboxRecord) -> float | None:
        """Boot time of another boot means nothing: let the maximum begin again."""
        maximum_s = record.spec.lifetime.maximum_s
        return None if maximum_s is None else self._core.now_boot_s() + maximum_s

    async def _adopt_processes(self, sandbox: Sandbox) -> None:
        """Find background processes again, and end the commands whose requests died with the earlier node."""
        instance = sandbox.running().instance
        records = [each for each in self._processes[sandbox.sandbox_id] if each.generation == sandbox.record.generation]
        await instance.end_orphans(frozenset(record.process_id for record in records))
        for record in sorted(records, key=lambda each: each.started_wall_s):
            await take_over(self._core, sandbox, record)

    async def _finish_rollback(self, sandbox: Sandbox) -> None:
        """Both generations may exist in part; the new one is made again from the beginning."""
        core, old = self._core, sandbox.record
        new = next_generation(old)
        new_name = instance_of(new)
        sandbox.instances.add(new_name)
        sandbox.layers.add(new.layer)
        for name in (instance_of(old), new_name):
            await core.parts.runtime.discard(name)
        core.parts.layers.discard(new.layer)
        make_layer(core, old, new.layer)
        await core.parts.journal.delete_processes(old.sandbox_id)
        sandbox.generation = await core.launch(new)
        await complete(core, sandbox, new)

    async def _discard_unclaimed(self) -> None:
        core = self._core
        for name in sorted(self._instances):
            await core.parts.runtime.discard(name)
        claimed = core.saved.claimed()
        for name in sorted((self._layers & core.parts.layers.names()) - claimed):
            core.parts.layers.discard(name)
        for name in core.parts.exports.names() - claimed:
            core.parts.exports.discard(name)
        if core.parts.spool_dir is not None and core.parts.spool_dir.is_dir():
            self._discard_spools()

    def _discard_spools(self) -> None:
        assert self._core.parts.spool_dir is not None
        kept = {
            instance_name(sandbox.sandbox_id, sandbox.record.generation)
            for sandbox in self._core.registry
            if sandbox.generation is not None
        }
        for directory in self._core.parts.spool_dir.iterdir():
            if directory.name not in kept:
                shutil.rmtree(directory, ignore_errors=True)


def _is_waste(record: SandboxRecord, pools: frozenset[str]) -> bool:
    """Whether a record tells of something that belongs to a pool and that nobody may be given any more."""
    if record.tenancy is Tenancy.OCCUPIED:
        return False
    is_ready = record.tenancy is Tenancy.CLEAN and record.state is SandboxState.READY
    return not is_ready or record.pool not in pools


async def _is_as_made(record: SandboxRecord, instance: Instance) -> bool:
    """Whether no commands run in an instance that lives. Its limits are set again: the node may have died while it gave
    it to a tenant with others."""
    try:
        if (await instance.fingerprint()).command_groups:
            return False
        await instance.limit(record.spec.resources)
    except DsecError:
        return False
    return True
