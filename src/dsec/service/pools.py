"""The contract by which pools of ready sandboxes are set and watched, beside `dsec.service.port.SandboxService`.

Nobody needs it to use a pool: a creation whose spec matches is served by one. `dsec.node.pools.pools.Pools`
implements it on a host, `dsec.sdk.pools.HttpPools` against a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from dsec.model.event import NodeEvent
from dsec.model.pool import PoolChange, PoolInfo
from dsec.model.sandbox import SandboxSpec


class PoolService(Protocol):
    """Set, list and take away pools, and hear what happened to creations."""

    async def list_pools(self) -> Sequence[PoolInfo]:
        """Return all pools with a reading of each, by name."""

    async def set_pool(self, spec: SandboxSpec, change: PoolChange = PoolChange()) -> PoolInfo:
        """Make the pool of this spec's shape, or set it anew. Of `spec` counts what must match: image, layers, disk
        quota, open files, processor class and network policy; its other limits are those that ready sandboxes stand
        with. Idempotent.

        Raises:
            InvalidRequestError: a value is out of its bounds; names it and its unit.
            ImageNotFoundError, CapabilityMissingError: this host could make no such sandbox.
        """

    async def remove_pool(self, name: str) -> None:
        """Take a pool away. What stands ready is destroyed; what tasks have is theirs until they end.

        Raises:
            NotFoundError: there is none of this name.
        """

    async def events(self, *, since_s: float = 0.0, task: str = "") -> Sequence[NodeEvent]:
        """Return the newest events that the node remembers, the oldest first.

        Args:
            since_s: wall-clock seconds; earlier ones are left out.
            task: only those of this task, and those of no task.
        """


@runtime_checkable
class HasPools(Protocol):
    """A service whose node keeps pools."""

    pools: PoolService
