"""The node's way to its object store: opened when it is first needed, so that a node starts and serves without it."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio

from dsec.node.parts import NodeParts
from dsec.state.snapshots import SnapshotStore
from dsec.stores.chunks import open_chunks


class Durable:
    """The snapshots of a node's store.

    Args:
        parts: the node's, with the store.
    """

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._opening = anyio.Lock()
        self._stack = AsyncExitStack()
        self._store: SnapshotStore | None = None

    async def store(self) -> SnapshotStore:
        """Return the snapshots.

        Raises:
            StoreUnavailableError: the store does not answer; the next call tries again.
            CapabilityMissingError, StateCorruptedError: what it holds cannot be read by this program.
        """
        async with self._opening:
            if self._store is None:
                parts = self._parts
                if parts.store_cache_dir is not None:
                    parts.store_cache_dir.mkdir(mode=0o700, exist_ok=True)
                opening = open_chunks(parts.store, cache_dir=parts.store_cache_dir, clock=parts.clock)
                chunks = await self._stack.enter_async_context(opening)
                self._store = SnapshotStore(parts.store, chunks, clock=parts.clock)
            return self._store

    async def aclose(self) -> None:
        """Let go of the index. Nothing may be under way any more."""
        await self._stack.aclose()
        self._store = None
