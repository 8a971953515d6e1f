"""All pools of a node: who is served by one, what comes back to one, and what can be set about them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import anyio
import msgspec
import structlog

from dsec.base.errors import DsecError, InvalidRequestError, NotFoundError
from dsec.images.port import MountedImage
from dsec.model.capability import Capability
from dsec.model.event import EventKind, NodeEvent
from dsec.model.pool import PoolChange, PoolInfo, PoolPolicy
from dsec.model.sandbox import Resources, SandboxSpec, SandboxState
from dsec.node.core import Core
from dsec.node.creation import load_image
from dsec.node.pools.berth import occupy, vacate
from dsec.node.pools.live import LivePool
from dsec.node.pools.readings import HostReadings
from dsec.node.sandbox import Sandbox
from dsec.node.settings import NodeSettings
from dsec.node.validation import check_spec, require_capability, resolve_spec
from dsec.pools import events
from dsec.pools.bounds import changed
from dsec.pools.shape import ShapeKey, group_of, pool_id, shape_key, shape_of
from dsec.stores.port import PoolRecord, SandboxRecord

_log = structlog.get_logger(__name__)
_TICK_S = 1.0
_QUIET_TICKS = 60
"""A node that nobody asks for anything takes a reading a minute, and lets the disk sleep."""
_MOST_TRIES = 3
_GIVABLE = frozenset({SandboxState.READY, SandboxState.PAUSED})


class Pools:
    """The pools of one node. Implements `dsec.service.pools.PoolService`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._pools: dict[str, LivePool] = {}
        self._by_shape: dict[ShapeKey, LivePool] = {}
        self._readings = HostReadings(core)
        self._ended = False

    # -- starting ---------------------------------------------------------------------------------------------------

    async def open(self, records: Sequence[PoolRecord]) -> None:
        """Begin with the pools of the journal. What an earlier node left ready, and tenants, are counted again."""
        for record in records:
            self._add(record)
        for name, pool in self._pools.items():
            ready = tuple(carrier for carrier, berth in self._core.vacant.items() if berth.record.pool == name)
            await pool.adopt(ready, self._tenants(name))

    def _tenants(self, name: str) -> tuple[str, ...]:
        """Return the berths of a pool that tasks have."""
        living = (sandbox.record for sandbox in self._core.registry if sandbox.generation is not None)
        return tuple(record.carrier for record in living if record.pool == name)

    def _add(self, record: PoolRecord) -> LivePool:
        async def image() -> MountedImage:
            return await load_image(self._core, record.spec, pool=record.pool_id)

        pool = LivePool(self._core, record, self._core.recorder, image)
        self._pools[record.pool_id] = pool
        self._by_shape[shape_key(record.spec)] = pool
        return pool

    async def run(self) -> None:
        """Let time pass for every pool, for ever."""
        ticks = 0
        try:
            while True:
                is_worth_it = self._core.recorder.is_busy() or ticks % _QUIET_TICKS == 0
                for pool in list(self._pools.values()):
                    pool.tell(events.Ticked())
                    if is_worth_it:
                        reading = self._readings.take(pool.info().statistics, pool.record.policy.maximum)
                        self._core.recorder.add(EventKind.READING, pool=pool.pool_id, reading=reading)
                if is_worth_it and not self._pools:
                    self._core.recorder.add(EventKind.READING, reading=self._readings.take())
                self._core.recorder.flush()
                ticks += 1
                await anyio.sleep(_TICK_S)
        finally:
            self._core.recorder.flush()

    def end(self) -> None:
        """Serve nobody and take nothing back any more: the node destroys everything. Pools stay in the journal."""
        self._ended = True
        for pool in self._pools.values():
            pool.turn_away()

    async def destroy_vacant(self) -> None:
        """Destroy what nobody has, after `end`."""
        for berth in list(self._core.vacant.values()):
            pool = self._pools.get(berth.record.pool)
            if pool is not None:
                await pool.destroy(berth.sandbox_id, "the node was shut down")
        self._core.recorder.flush()

    # -- serving ----------------------------------------------------------------------------------------------------

    def find(self, resolved: SandboxSpec) -> LivePool | None:
        """Return the pool whose sandboxes are what a resolved spec asks for; None: there is none."""
        return self._by_shape.get(shape_key(resolved)) if self._by_shape and not self._ended else None

    def standing(self, resolved: SandboxSpec) -> str:
        """Say how it stands with the pool that a spec is served from; empty: there is none."""
        pool = self.find(resolved)
        if pool is None:
            return ""
        now, maximum = pool.info().statistics, pool.record.policy.maximum
        most = "" if maximum is None else f" of at most {maximum}"
        coming = now.creating + now.recycle_queue + now.recycling
        return f"pool {pool.pool_id}: {now.in_use} in use{most}, {now.ready} ready, {coming} coming, {now.waiting} wait"

    async def serve(self, pool: LivePool, sandbox: Sandbox, image: MountedImage) -> bool:
        """Give a sandbox of the pool to `sandbox`, waiting for one if need be; False when the pool is taken away.

        A berth that turns out to be dead is lost to the pool, and the next one is asked for.
        """
        pool.see_image(image)
        resolved = sandbox.record.spec
        group = group_of(resolved.metadata)
        for tried in range(_MOST_TRIES):
            berth = await pool.obtain(sandbox.sandbox_id, group)
            if berth is None:
                return False
            try:
                with anyio.CancelScope(shield=True):
                    await occupy(self._core, berth, sandbox, resolved)
                return True
            except DsecError as error:
                pool.lose(berth)
                if tried + 1 == _MOST_TRIES:
                    raise
                _log.warning("berth_not_given", carrier=berth.sandbox_id, error=str(error))
        return False

    def is_recyclable(self, sandbox: Sandbox) -> bool:
        """Whether a sandbox that ends goes back to a pool."""
        pool = self._pools.get(sandbox.record.pool)
        return (
            pool is not None
            and not (self._ended or self._core.closing)
            and sandbox.generation is not None
            and sandbox.state in _GIVABLE
            and pool.can_recycle(sandbox.record)
        )

    async def take_back(self, sandbox: Sandbox, cause: str) -> None:
        """Stop a sandbox and put its berth into the recycle queue. The caller holds its transition."""
        pool = self._pools[sandbox.record.pool]
        held_s = pool.held_s(sandbox.record.carrier)
        berth = await vacate(self._core, pool.record, sandbox, cause)
        self._core.recorder.add(EventKind.RETURNED, pool=pool.pool_id, sandbox_id=sandbox.sandbox_id, duration_s=held_s)
        pool.tell(events.Returned(berth.sandbox_id))
        if pool.closed:
            pool.give_up()

    def gone(self, record: SandboxRecord) -> None:
        """A sandbox of a pool was taken apart."""
        pool = self._pools.get(record.pool)
        if pool is not None:
            pool.gone(record.carrier)

    def refresh(self) -> None:
        """The node is drained, or no more: pools give up what stands ready, or fill again."""
        for pool in list(self._pools.values()):
            pool.refresh()

    def shrink(self, reason: str) -> None:
        """The host needs room: every pool gives up half of what stands ready."""
        for pool in list(self._pools.values()):
            ready = pool.info().statistics.ready
            if ready:
                pool.tell(events.ShrinkAsked((ready + 1) // 2, reason))

    # -- what can be set --------------------------------------------------------------------------------------------

    async def list_pools(self) -> Sequence[PoolInfo]:
        """Return all pools, by name."""
        return [self._pools[name].info() for name in sorted(self._pools)]

    async def set_pool(self, spec: SandboxSpec, change: PoolChange = PoolChange()) -> PoolInfo:
        """Make the pool of this spec's shape, or set it anew."""
        core = self._core
        core.check_open()
        check_spec(spec)
        require_capability(Capability.POOLS, "a pool", core.reports)
        resolved = shape_of(resolve_spec(spec, "sbx-pool", core.settings, core.reports))
        known = self._by_shape.get(shape_key(resolved))
        policy = changed(default_policy(core.settings) if known is None else known.record.policy, change)
        name = pool_id(resolved) if known is None else known.pool_id
        kept = resolved if known is None else _with_limits(known.record.spec, spec.resources)
        record = PoolRecord(pool_id=name, spec=kept, policy=policy)
        if known is None:
            # An image that is not there is the caller's to know now, not the pool's to stumble over.
            await load_image(core, resolved, pool=name)
        await core.parts.journal.put_pool(record)
        pool = self._pools.get(name)
        if pool is None:
            # Tenants of a pool of this name that was removed come back to this one.
            pool = self._add(record)
            await pool.adopt((), self._tenants(name))
        pool.change(record)
        return pool.info()

    async def remove_pool(self, name: str) -> None:
        """Take a pool away: what stands ready is destroyed, what tasks have is theirs until they end."""
        pool = self._pools.get(name)
        if pool is None:
            raise NotFoundError(f"there is no pool {name[:80]!r}", resolution="`dsec pool ls` shows those there are")
        await self._core.parts.journal.delete_pool(name)
        self._pools.pop(name, None)
        self._by_shape.pop(shape_key(pool.record.spec), None)
        await pool.close()

    async def events(self, *, since_s: float = 0.0, task: str = "") -> Sequence[NodeEvent]:
        """Return what the node remembers of its creations and pools."""
        if not math.isfinite(since_s):
            raise InvalidRequestError(f"since_s is {since_s}; it must be seconds since 1970")
        return self._core.recorder.events(since_s=since_s, task=task)


def _with_limits(known: SandboxSpec, given: Resources) -> SandboxSpec:
    """Return the spec of a pool with the limits that are given anew; those that are not stay."""
    anew = {name: value for name, value in msgspec.structs.asdict(given).items() if value is not None}
    return msgspec.structs.replace(known, resources=msgspec.structs.replace(known.resources, **anew))


def default_policy(settings: NodeSettings, *, cores: int = os.cpu_count() or 1) -> PoolPolicy:
    """Return what a new pool begins with."""
    return PoolPolicy(
        floor=settings.pool_floor,
        concurrency_share=settings.pool_concurrency_share,
        recycles_at_once=settings.pool_recycles_per_core * cores,
        creations_at_once=settings.pool_creations_per_core * cores,
    )
