"""Berths: what a pool owns. A berth is an instance with its writable layer, its host ids and its name; tenants come
and go.

On the host everything is named after the berth (`carrier` in the journal), so that giving it to a tenant renames
nothing that the kernel knows: one transaction of the journal replaces the berth's record by the tenant's, and the
host name is set.

**Identity.** Nothing of a predecessor is left to be seen, because a tenant gets a generation in which nothing ran:
pid, ipc, mount, uts, network, user and cgroup namespaces, processes, /dev, /dev/shm and the writable layer are all
new. The id is the tenant's own and no file or variable inside tells another; the host name is set when it is given
out; environment, user, directory and seed are the node's to add to each command. `/etc/machine-id` is the image's,
as in any fresh sandbox of that image.

**Kill -9 at any line.** While nobody has it, the record says `clean` or `used`. Only `clean` and `ready` is
adopted. Between two records the instance always belongs to one of them, so that nothing is handed out twice and
nothing is left.
"""

from __future__ import annotations

import msgspec

from dsec.base.errors import SandboxExitedError
from dsec.base.ids import random_body
from dsec.images.port import MountedImage
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.node.core import Core, write_seed
from dsec.node.creation import bring_up_or_undo
from dsec.node.ending import end_use, remove_spool, watch
from dsec.node.sandbox import Generation, Sandbox, instance_name
from dsec.node.state.checkpoints import drop_all
from dsec.stores.port import PoolRecord, SandboxRecord, Tenancy

CARRIER_PREFIX = "pool-"
"""No id that a caller may choose begins so."""


async def make_berth(core: Core, pool: PoolRecord, image: MountedImage) -> Sandbox:
    """Launch a fresh sandbox that nobody has. Undone when it fails or is cancelled."""
    carrier = f"{CARRIER_PREFIX}{core.parts.node_id}-{random_body(10, core.parts.random_bytes)}"
    record = SandboxRecord(
        sandbox_id=carrier,
        state=SandboxState.PENDING,
        requested=pool.spec,
        spec=msgspec.structs.replace(pool.spec, hostname=carrier),
        image_config=image.info.config,
        layer_paths=tuple(map(str, image.layer_paths)),
        slot=core.slots.take(),
        layer=instance_name(carrier, 0),
        created_wall_s=core.parts.clock.wall_s(),
        boot_id=core.parts.boot_id,
        carrier=carrier,
        pool=pool.pool_id,
        tenancy=Tenancy.CLEAN,
    )
    berth = Sandbox(record, core.now_boot_s())
    core.vacant[carrier] = berth
    berth.transition.acquire_nowait()
    try:
        await bring_up_or_undo(core, berth)
    except BaseException:
        core.vacant.pop(carrier, None)
        raise
    finally:
        berth.transition.release()
        berth.settled.set()
    watch(core, berth)
    return berth


async def occupy(core: Core, berth: Sandbox, sandbox: Sandbox, resolved: SandboxSpec) -> None:
    """Make the berth's instance the sandbox's. The caller has taken the berth out of `core.vacant`, holds the sandbox's
    transition, and lets nobody cancel this.

    Raises:
        SandboxExitedError: the berth died meanwhile.
    """
    async with berth.transition:
        generation = berth.running()
        await generation.instance.set_host_name(resolved.hostname or sandbox.sandbox_id)
        if resolved.resources != berth.record.spec.resources:
            await generation.instance.limit(resolved.resources)
        old, maximum_s = berth.record, resolved.lifetime.maximum_s
        record = msgspec.structs.replace(
            old,
            sandbox_id=sandbox.sandbox_id,
            requested=sandbox.record.requested,
            spec=resolved,
            created_wall_s=sandbox.record.created_wall_s,
            boot_id=core.parts.boot_id,
            deadline_boot_s=None if maximum_s is None else core.now_boot_s() + maximum_s,
            first_generation=old.generation,
            tenancy=Tenancy.OCCUPIED,
        )
        await write_seed(generation.instance, record)
        await core.parts.journal.exchange(record, erased=old.sandbox_id)
        if berth.watch_scope is not None:
            berth.watch_scope.cancel()
        sandbox.record = record
        sandbox.generation = Generation(record, generation.instance)
        sandbox.instances, sandbox.layers = set(berth.instances), set(berth.layers)
        berth.generation = None


async def vacate(core: Core, pool: PoolRecord, sandbox: Sandbox, cause: str) -> Sandbox:
    """Take a sandbox back and return its berth. The sandbox is stopped then, and nothing that it ran is left.

    The caller holds the sandbox's transition and lets nobody cancel this.
    """
    end_use(core, sandbox, SandboxExitedError(f"{sandbox.sandbox_id} was stopped", detail=cause))
    instance = sandbox.running().instance
    await instance.kill_processes()
    await core.parts.journal.delete_processes(sandbox.sandbox_id)
    old = sandbox.record
    stopped = stopped_record(old, cause)
    vacant = msgspec.structs.replace(
        old,
        sandbox_id=old.carrier,
        state=SandboxState.READY,
        requested=pool.spec,
        spec=msgspec.structs.replace(pool.spec, hostname=old.carrier),
        deadline_boot_s=None,
        rollback_to=None,
        current=None,
        cause="",
        paused_boot_s=None,
        paused_s=0.0,
        keeps_memory=False,
        tenancy=Tenancy.USED,
    )
    await core.parts.journal.exchange(stopped, vacant)
    await drop_all(core, sandbox)
    return _moved(core, sandbox, stopped, vacant)


def stopped_record(old: SandboxRecord, cause: str) -> SandboxRecord:
    """The record of a tenant that has left: it holds nothing any more."""
    return msgspec.structs.replace(
        old, state=SandboxState.STOPPED, cause=cause, carrier="", pool="", layer="", slot=-1, current=None
    )


def _moved(core: Core, sandbox: Sandbox, stopped: SandboxRecord, vacant: SandboxRecord) -> Sandbox:
    berth = Sandbox(vacant, core.now_boot_s())
    berth.generation = Generation(vacant, sandbox.running().instance)
    berth.instances, berth.layers = set(sandbox.instances), set(sandbox.layers)
    berth.settled.set()
    remove_spool(core, sandbox.sandbox_id, sandbox.record.generation)
    sandbox.generation, sandbox.holds_slot = None, False
    sandbox.instances, sandbox.layers = set(), set()
    sandbox.record = stopped
    core.vacant[berth.sandbox_id] = berth
    watch(core, berth)
    return berth
