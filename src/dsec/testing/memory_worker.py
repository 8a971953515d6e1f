"""A worker of episodes over a node of fakes, for tests of everything that drives episodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsec.node.node import Node
from dsec.stores.episode_log_upload import UploadSettings
from dsec.stores.objects import ObjectStore
from dsec.testing.memory_node import MemoryHost
from dsec.worker.episodes.parts import WorkerSettings
from dsec.worker.episodes.worker import EpisodeWorker

QUICK = WorkerSettings(
    threads=2,
    store_lease_s=0.3,
    backoff_s=(0.01, 0.01),
    upload=UploadSettings(interval_s=0.01, backoff_s=(0.01,)),
    upload_wait_s=2.0,
)
"""Waits that a test can bear."""


@dataclass(slots=True)
class MemoryWorker:
    """A place where one worker after another lives, over one node of fakes.

    Attributes:
        directory: of the workers.
        host: of the node.
        store: of the workers.
        settings: of the workers.
        options: further arguments of `EpisodeWorker`.
    """

    directory: Path
    host: MemoryHost = field(default_factory=MemoryHost)
    store: ObjectStore | None = None
    settings: WorkerSettings = QUICK
    options: dict[str, Any] = field(default_factory=dict)

    @asynccontextmanager
    async def node(self) -> AsyncIterator[Node]:
        """Open the node."""
        async with self.host.node() as node:
            yield node

    def worker(self, node: Node, **options: Any) -> EpisodeWorker:
        """Return a worker over the node, to be entered."""
        return EpisodeWorker(self.directory, node, node.state, self.store, self.settings, **{**self.options, **options})

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[EpisodeWorker]:
        """Open node and worker together."""
        async with self.node() as node, self.worker(node) as worker:
            yield worker
