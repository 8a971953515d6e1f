"""Packs: what a session changed becomes the top layer of a new image, scrubbed of residue.

Order: the files are frozen as they are (or a checkpoint serves), and held while the image store reads them in a thread,
writes the layer, and names the image at the very end. An error or a cancellation before that leaves nothing; when the
node was killed, its next start discards the frozen copy and the store what was half written. The sandbox does not
notice. No hook runs: an image begins with files, and what processes exported belongs to no other sandbox.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.to_thread

from dsec.images.packing import PackOrder
from dsec.images.port import layer_digest
from dsec.images.scrub import Scrub
from dsec.model.capability import Capability
from dsec.model.state import PackReport, PackRequest
from dsec.node.core import Core
from dsec.node.sandbox import Sandbox
from dsec.node.state import checkpoints
from dsec.node.state.saved_layers import frozen_name
from dsec.node.validation import require_capability

PACKS_AT_ONCE = 2
"""A pack reads and writes as fast as the disk; more at once only take turns."""


async def pack(core: Core, sandbox: Sandbox, request: PackRequest, limiter: anyio.CapacityLimiter) -> PackReport:
    """Make an image of a sandbox's layers and of what its session changed.

    Raises:
        SnapshotNotFoundError: there is no such checkpoint.
        AlreadyExistsError: there is an image of this name.
        InvalidRequestError, LimitExceededError: the name or a pattern cannot be used.
        HostDiskFullError: no space. In each of these cases nothing was made.
    """
    require_capability(Capability.CHECKPOINT, "a pack", core.reports)
    scrub = Scrub(request.scrub)
    record = sandbox.record
    paths = tuple(map(Path, record.layer_paths))
    async with _frozen(core, sandbox, request.checkpoint) as layer:
        order = PackOrder(
            name=request.name,
            upper=core.parts.layers.frozen_upper(layer),
            base=tuple(map(layer_digest, paths)),
            layer_paths=paths,
            config=record.image_config,
            scrub=scrub,
            source=f"packed from {sandbox.sandbox_id}",
            dry_run=request.dry_run,
            check=anyio.from_thread.check_cancelled,
        )
        return await anyio.to_thread.run_sync(core.parts.images.pack, order, limiter=limiter)


@asynccontextmanager
async def _frozen(core: Core, sandbox: Sandbox, checkpoint: str | None) -> AsyncIterator[str]:
    """Freeze the files as they are, or take a checkpoint; keep either while the block runs."""
    if checkpoint is not None:
        layer = checkpoints.find(core, sandbox, checkpoint).layer
        with core.saved.held(layer):
            yield layer
        return
    checkpoints.check_room(core)
    layer = frozen_name(sandbox.sandbox_id, core.parts.random_bytes)
    with core.saved.held(layer):
        async with sandbox.transition:
            sandbox.running()
            await checkpoints.freeze_copy(core, sandbox, layer)
        yield layer
