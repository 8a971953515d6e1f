"""Room for the base that a snapshot keeps, so that a sandbox's quota does not pay for it.

`snapshot` leaves its checkpoint standing until the next one has taken its place: the next difference is made against
it. Nobody asked for that checkpoint, but what it holds of files that were rewritten or deleted since counts against the
sandbox where a quota counts what a layer wrote and anything still holds (`WritableLayers.counts_frozen`). With 64 MiB,
40 MiB saved, deleted and written again would be 80.

Nobody tells the node when a program inside meets its quota, so that letting go of the base then would come too late.
Instead the quota is raised by what the base can hold at most: all that counted when it was made. So a sandbox that
keeps within its quota never meets it on the base's account. One that goes beyond, with the base or by itself, loses its
base at the next look, and its quota is as before once what the base held is freed; what it has beyond the quota then it
may keep, and can write nothing more before it has deleted as much. The next snapshot without a base reads all files.
Bases go as well when the host's disk is so full that checkpoints are refused.

A node that is killed leaves quotas raised; the first look of the next one puts them right.
"""

from __future__ import annotations

import anyio
import anyio.lowlevel
import anyio.to_thread
import structlog

from dsec.base.errors import DsecError, NotFoundError
from dsec.node.core import Core
from dsec.node.sandbox import Sandbox
from dsec.node.state import checkpoints
from dsec.stores.port import CheckpointRecord

_log = structlog.get_logger(__name__)
LOOK_S = 1.0
_FREED_S = 30.0
"""Longest time in which the file system frees what a base held: btrfs' cleaner follows a commit, each some seconds."""


class BaseRoom:
    """The quotas of sandboxes that have a base.

    Args:
        core: the node's inner state.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._raised: dict[str, int] = {}
        self._needless_since_s: dict[str, float] = {}
        self._looked = False
        self._changing = anyio.Lock()
        """Held while a quota is changed and that is noted: a snapshot may be made while another one is looked at."""

    def quota_bytes(self, sandbox: Sandbox) -> int | None:
        """Return what a sandbox's layer is limited to now; None: to nothing."""
        return self._raised.get(sandbox.record.layer, sandbox.record.spec.resources.disk_bytes)

    async def grant(self, sandbox: Sandbox) -> None:
        """Raise the quota of a sandbox of which a base was made, for that base alone: it holds what older ones do."""
        quota_bytes = sandbox.record.spec.resources.disk_bytes
        if quota_bytes is None or not self._core.parts.layers.counts_frozen:
            return
        async with self._changing:
            bases, layer = self._bases(sandbox), sandbox.record.layer
            if not bases:
                return
            try:
                held_bytes = max(bases[-1].written_bytes, self._core.parts.layers.used_bytes(layer))
                await self._limit(layer, quota_bytes + min(held_bytes, quota_bytes))
            except NotFoundError:
                return  # It has ended meanwhile.
            except OSError as error:
                # The snapshot is worth more than the room: it goes on.
                _log.warning("quota_not_raised", sandbox_id=sandbox.sandbox_id, error=str(error))
                return
            self._needless_since_s.pop(layer, None)

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            await self.look()
            await anyio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look at every sandbox whose quota is raised, or may be, once."""
        if not self._core.parts.layers.counts_frozen:
            return
        is_short = self._core.parts.host.free_disk_bytes() < self._core.settings.minimum_free_disk_bytes
        layers: set[str] = set()
        for sandbox in self._core.registry:
            layers.add(sandbox.record.layer)
            is_known = self._looked and sandbox.record.layer not in self._raised
            if sandbox.generation is None or (is_known and not is_short):
                continue
            try:
                await anyio.lowlevel.checkpoint()
                await self._look_at(sandbox, is_short=is_short)
            except NotFoundError:
                continue  # It has ended meanwhile.
            except (DsecError, OSError) as error:
                _log.warning("base_not_let_go", sandbox_id=sandbox.sandbox_id, error=str(error))
        self._looked = True
        for layer in self._raised.keys() - layers:
            self._raised.pop(layer, None)
            self._needless_since_s.pop(layer, None)

    async def _look_at(self, sandbox: Sandbox, *, is_short: bool) -> None:
        quota_bytes, layer = sandbox.record.spec.resources.disk_bytes, sandbox.record.layer
        bases = self._bases(sandbox)
        if is_short:
            await self._let_go(sandbox, bases)
        if quota_bytes is None:
            return
        if not self._looked:
            self._raised.setdefault(layer, quota_bytes)
            await self.grant(sandbox)
        if layer not in self._raised:
            return
        if bases and self._core.parts.layers.used_bytes(layer) > quota_bytes:
            await self._let_go(sandbox, bases)
        async with self._changing:
            await self._lower(sandbox, layer, quota_bytes)

    async def _lower(self, sandbox: Sandbox, layer: str, quota_bytes: int) -> None:
        """Give a sandbox without a base the quota that it asked for, once what the base held is freed."""
        if self._bases(sandbox) or layer not in self._raised:
            return
        since_s = self._needless_since_s.setdefault(layer, anyio.current_time())
        is_beyond = self._core.parts.layers.used_bytes(layer) > quota_bytes
        if not is_beyond or anyio.current_time() - since_s > _FREED_S:
            await self._limit(layer, quota_bytes)
            self._raised.pop(layer, None)
            self._needless_since_s.pop(layer, None)

    async def _limit(self, layer: str, quota_bytes: int) -> None:
        # In a thread: it waits for a commit of the volume that is under way.
        await anyio.to_thread.run_sync(self._core.parts.layers.limit, layer, quota_bytes)
        self._raised[layer] = quota_bytes

    async def _let_go(self, sandbox: Sandbox, bases: list[CheckpointRecord]) -> None:
        """Remove the bases that are snapshots already; one of which a snapshot is being made goes at a later look."""
        for record in bases:
            if record.snapshot:
                _log.info("base_let_go", sandbox_id=sandbox.sandbox_id, checkpoint_id=record.checkpoint_id)
                await checkpoints.remove(self._core, sandbox, record.checkpoint_id)

    def _bases(self, sandbox: Sandbox) -> list[CheckpointRecord]:
        """Return the checkpoints that hold what the present layer wrote and that nobody asked for, the oldest first."""
        generation = sandbox.record.generation
        return [each for each in sandbox.checkpoints.values() if each.automatic and each.generation == generation]
