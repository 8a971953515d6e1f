"""A node over the in-memory fakes, for tests of everything that drives one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dsec.base.clock import Clock, ManualClock
from dsec.base.units import GIB
from dsec.images.memory import MemoryImages
from dsec.images.port import ImageStore
from dsec.node.node import Node
from dsec.node.parts import NodeParts
from dsec.node.settings import NodeSettings
from dsec.runtimes.memory import MemoryRuntime
from dsec.runtimes.port import Runtime
from dsec.service.peers import NoPeers, Peers
from dsec.state.exports import MemoryExports
from dsec.state.memory import MemoryWritableLayers
from dsec.state.port import WritableLayers
from dsec.stores.memory import MemoryJournal
from dsec.stores.objects_memory import MemoryObjectStore
from dsec.stores.port import Journal
from dsec.testing.memory_swap import MemorySwap


@dataclass(slots=True)
class FakeHost:
    """A `HostProbe` that says what it is told to."""

    disk_bytes: int = 100 * GIB
    memory_bytes: int = 16 * GIB
    shares: dict[str, float] = field(default_factory=dict)
    processor: float = 0.0

    def free_disk_bytes(self) -> int:
        return self.disk_bytes

    def free_memory_bytes(self) -> int:
        return self.memory_bytes

    def stalls(self) -> dict[str, float]:
        return self.shares

    def capacity(self) -> tuple[int, int]:
        return 4000, 32 * GIB

    def processor_share(self) -> float:
        return self.processor


class CountingBytes:
    """A random source that repeats itself in every run: ids differ, and are the same each time.

    Args:
        first: what is counted from; sources that are to differ from each other begin far apart.
    """

    def __init__(self, first: int = 0) -> None:
        self._count = first

    def __call__(self, length: int) -> bytes:
        self._count += 1
        # An id shows each byte as one of 33 symbols: with fewer than that in each, no two counts look the same.
        return bytes(self._count // 32**place % 32 for place in range(length))


@dataclass(slots=True)
class MemoryHost:
    """A host of fakes, on which one node after another can run.

    Attributes:
        node_id: of its nodes.
        peers: of its nodes.
        runtime, layers, images, journal, host, clock: the fakes; they outlive every node.
        swap: room for the memory of paused sandboxes; None: there is none.
        spool_dir: None, or where nodes keep the output of background processes.
        drain_file: None, or where nodes keep that they are drained.
    """

    runtime: MemoryRuntime = field(default_factory=MemoryRuntime)
    images: MemoryImages = field(default_factory=MemoryImages)
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    host: FakeHost = field(default_factory=FakeHost)
    clock: ManualClock = field(default_factory=ManualClock)
    settings: NodeSettings = field(default_factory=lambda: NodeSettings(runtime="memory"))
    spool_dir: Path | None = None
    exports: MemoryExports = field(default_factory=MemoryExports)
    random_bytes: CountingBytes = field(default_factory=CountingBytes)
    layers: MemoryWritableLayers = field(init=False)
    store: MemoryObjectStore = field(init=False)
    swap: MemorySwap | None = field(init=False)
    node_id: str = "test0"
    peers: Peers = field(default_factory=NoPeers)
    drain_file: Path | None = None

    def __post_init__(self) -> None:
        self.swap = MemorySwap(lambda: self.runtime.swapped_bytes())
        self.store = MemoryObjectStore(clock=self.clock)
        self.layers = MemoryWritableLayers(self.runtime.contents, self.runtime.quotas)
        self.images.contents = self.runtime.contents

    def parts(
        self,
        *,
        runtime: Runtime | None = None,
        layers: WritableLayers | None = None,
        images: ImageStore | None = None,
        journal: Journal | None = None,
        clock: Clock | None = None,
    ) -> NodeParts:
        """Return parts of a node on this host; tests replace some of them."""
        return NodeParts(
            node_id=self.node_id,
            runtime=runtime or self.runtime,
            layers=layers or self.layers,
            images=images or self.images,
            journal=journal or self.journal,
            host=self.host,
            settings=self.settings,
            spool_dir=self.spool_dir,
            exports=self.exports,
            peers=self.peers,
            drain_file=self.drain_file,
            store=self.store,
            swap=self.swap,
            clock=clock or self.clock,
            random_bytes=self.random_bytes,
            boot_id="boot-1",
        )

    @asynccontextmanager
    async def node(self) -> AsyncIterator[Node]:
        async with Node.open(self.parts()) as node:
            yield node
