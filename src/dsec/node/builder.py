"""Build the node of this host from its settings: the one place where ports meet their drivers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
import msgspec

from dsec.base.errors import CapabilityMissingError
from dsec.distribution.prefetch import PrefetchSettings
from dsec.distribution.prefetch_budget import BudgetSettings
from dsec.images import recipes
from dsec.images.lazy.peers.settings import PeerSettings
from dsec.images.lazy.serving.client import LayerDaemon, lazy_layers, looked_after
from dsec.images.lazy.serving.daemon_options import DaemonOptions
from dsec.images.lazy.tracing.image_prefetches import ImagePrefetches
from dsec.images.local_work import LocalImageWork
from dsec.images.prefetches import NoPrefetches
from dsec.images.store import LocalImageStore
from dsec.linux.userns import is_host_root
from dsec.node import namespace
from dsec.node.delegation import delegated_group
from dsec.node.host import SystemHost, boot_id
from dsec.node.lock import hold_state, node_id
from dsec.node.node import Node
from dsec.node.parts import NodeParts
from dsec.node.running_settings import keep_settings
from dsec.node.settings import NodeSettings, default_state_dir
from dsec.node.state.swap import SWAP_FILE, SwapFile
from dsec.node.tracking import peer_settings
from dsec.runtimes.container.ordinary import OrdinaryUser
from dsec.runtimes.container.runtime import ContainerRuntime, ContainerRuntimeSettings
from dsec.runtimes.port import Runtime
from dsec.service.peers import NoPeers, Peers
from dsec.state.btrfs import BtrfsWritableLayers
from dsec.state.directory import DirectoryWritableLayers
from dsec.state.exports import DirectoryExports
from dsec.state.port import WritableLayers
from dsec.state.volume import StateVolume, open_volume
from dsec.stores.journal import SqliteJournal
from dsec.stores.opening import open_store


@asynccontextmanager
async def open_node(settings: NodeSettings, *, peers: Callable[[str], Peers] | None = None) -> AsyncIterator[Node]:
    """Be the node of `settings.state_dir` until the context ends. Sandboxes live on.

    Args:
        settings: the node's.
        peers: returns, for the node's id, those that it moves sandboxes to and takes them from; None: it has none.

    Raises:
        StateLockedError: another process is.
        StateCorruptedError: journal, image store or volume do not verify; nothing was changed.
        CapabilityMissingError: this host can run nothing; or this is an ordinary user's process that has not entered
            the node's namespace.
    """
    state_dir = Path(settings.state_dir) if settings.state_dir else default_state_dir()
    if namespace.is_ordinary_user():
        raise CapabilityMissingError(
            "an ordinary user's node lives in a namespace of its own, which a running program cannot enter",
            resolution="start it with `dsec up`; the command line and the SDK do so in the background",
        )
    async with AsyncExitStack() as stack:
        stack.enter_context(hold_state(state_dir))
        stack.callback(namespace.leave, state_dir)
        name = node_id(state_dir, os.urandom)
        keep_settings(settings, state_dir)
        storage = await anyio.to_thread.run_sync(_open_storage, state_dir, settings)
        in_use = _LayersInUse()
        store_url = settings.store or (state_dir.absolute() / "store").as_uri()
        placed = msgspec.structs.replace(settings, state_dir=str(state_dir))
        lazy = lazy_layers(state_dir / "images", daemon_options(settings, store_url, peer_settings(placed, name)))
        images = LocalImageStore(state_dir / "images", layers_in_use=in_use, lazy=lazy)
        stack.callback(images.close)
        stack.enter_context(looked_after(lazy, images.has_lazy_layers))
        store = await anyio.to_thread.run_sync(open_store, store_url)
        stack.push_async_callback(store.aclose)
        parts = NodeParts(
            node_id=name,
            runtime=_runtime(settings, name, state_dir),
            layers=storage.layers,
            images=images,
            ensure_image=lambda image: recipes.ensure(images, image),
            journal=SqliteJournal(state_dir / "journal.sqlite"),
            host=SystemHost(state_dir, volume_free_bytes=storage.free_bytes),
            settings=settings,
            spool_dir=state_dir / "spool",
            store=store,
            store_cache_dir=state_dir / "cache",
            exports=DirectoryExports(state_dir / "exports"),
            prefetches=ImagePrefetches(images, lazy) if isinstance(lazy, LayerDaemon) else NoPrefetches(),
            image_work=LocalImageWork(
                images, lazy if isinstance(lazy, LayerDaemon) else None, store_url=store_url, node=name
            ),
            peers=NoPeers() if peers is None else peers(name),
            drain_file=state_dir / "draining",
            swap=SwapFile(state_dir.absolute() / SWAP_FILE, settings.swap_bytes) if is_host_root() else None,
            events_file=state_dir / "events.jsonl",
            fingerprints_dir=state_dir / "fingerprints",
            boot_id=boot_id(),
        )
        node = await stack.enter_async_context(Node.open(parts))
        in_use.ask(node.layers_in_use)
        yield node


def daemon_options(settings: NodeSettings, store_url: str, peers: PeerSettings | None = None) -> DaemonOptions:
    """Return what the layer daemon of a node with these settings is started with."""
    budget = BudgetSettings(share=settings.prefetch_share, bandwidth_bytes_s=float(settings.bandwidth_bytes_s))
    return DaemonOptions(store_url=store_url, prefetch=PrefetchSettings(budget=budget), peers=peers)


def _runtime(settings: NodeSettings, name: str, state_dir: Path) -> Runtime:
    if is_host_root():
        owner = str(state_dir.absolute())
        return ContainerRuntime(ContainerRuntimeSettings(node_id=name, runtime=settings.runtime, owner=owner))
    run = namespace.run_directory(state_dir)
    user = OrdinaryUser(group=delegated_group(state_dir, run))
    return ContainerRuntime(
        ContainerRuntimeSettings(node_id=name, runtime=settings.runtime, run_directory=run, ordinary_user=user)
    )


@dataclass(frozen=True, slots=True)
class _Storage:
    """Where sandboxes write, and how much more they can."""

    layers: WritableLayers
    free_bytes: Callable[[], int] | None


def _open_storage(state_dir: Path, settings: NodeSettings) -> _Storage:
    """Open the btrfs volume, or plain directories where the host has no btrfs; capabilities tell the difference."""
    try:
        volume: StateVolume = _open_volume(state_dir, settings)
    except CapabilityMissingError:
        return _Storage(DirectoryWritableLayers(state_dir / "volume"), None)
    return _Storage(BtrfsWritableLayers(volume), volume.free_bytes)


def _open_volume(state_dir: Path, settings: NodeSettings) -> StateVolume:
    try:
        return open_volume(state_dir, unwritten_bytes=settings.unwritten_bytes)
    except CapabilityMissingError:
        # Before Linux 6.3 nothing bounds it: checkpoints wait longer there. Whatever else is missing is met again.
        return open_volume(state_dir)


class _LayersInUse:
    """Tells the image store which layers sandboxes use. Until the node can be asked, nothing may be collected."""

    def __init__(self) -> None:
        self._ask: Callable[[], frozenset[str] | None] = lambda: None

    def ask(self, source: Callable[[], frozenset[str]]) -> None:
        self._ask = source

    def __call__(self) -> frozenset[str] | None:
        return self._ask()
