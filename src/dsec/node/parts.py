"""What a node is made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dsec.base.clock import Clock, SystemClock
from dsec.base.ids import RandomBytes
from dsec.images.port import ImageStore
from dsec.images.prefetches import NoPrefetches, Prefetches
from dsec.images.work import ImageWork, NoImageWork
from dsec.node.host import HostProbe
from dsec.node.settings import NodeSettings
from dsec.node.state.swap import Swap
from dsec.runtimes.port import Runtime
from dsec.service.peers import NoPeers, Peers
from dsec.state.exports import Exports, MemoryExports
from dsec.state.port import WritableLayers
from dsec.stores.objects import ObjectStore
from dsec.stores.objects_memory import MemoryObjectStore
from dsec.stores.port import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """Everything that a node does not make itself. The node closes runtime, layers and journal when it is closed.

    Attributes:
        node_id: stands in every sandbox id this node makes.
        runtime, layers, images, journal, host: the mechanisms.
        ensure_image: makes an image that is not there, if it knows how; blocks for as long as a build takes, and raises
            `ImageNotFoundError` for a name it does not know. None: nothing is made.
        settings: what can be set.
        spool_dir: where the output of background processes is kept across restarts; None: in memory only.
        store: where snapshots are kept. Whoever made the parts closes it.
        store_cache_dir: where what is known of the store is remembered (`open_chunks`); None: in memory only.
        exports: where the states that hooks exported are kept.
        swap: where the memory of paused sandboxes goes; None: nowhere.
        peers: the nodes that sandboxes may move to and come from.
        prefetches: bring what will be read of images before it is.
        image_work: pulls, publishes, pushes and checks images.
        drain_file: where it is kept that the node is being drained; None: in memory only.
        events_file: where events are kept; None: in memory only.
        fingerprints_dir: where it is kept what clean sandboxes look like; None: in memory only.
        clock, random_bytes: time and chance.
        boot_id: which boot of the kernel this is.
    """

    node_id: str
    runtime: Runtime
    layers: WritableLayers
    images: ImageStore
    journal: Journal
    host: HostProbe
    settings: NodeSettings = field(default_factory=NodeSettings)
    ensure_image: Callable[[str], object] | None = None
    spool_dir: Path | None = None
    events_file: Path | None = None
    fingerprints_dir: Path | None = None
    store: ObjectStore = field(default_factory=MemoryObjectStore)
    store_cache_dir: Path | None = None
    exports: Exports = field(default_factory=MemoryExports)
    swap: Swap | None = None
    peers: Peers = field(default_factory=NoPeers)
    prefetches: Prefetches = field(default_factory=NoPrefetches)
    image_work: ImageWork = field(default_factory=NoImageWork)
    drain_file: Path | None = None
    clock: Clock = field(default_factory=SystemClock)
    random_bytes: RandomBytes = os.urandom
    boot_id: str = ""
