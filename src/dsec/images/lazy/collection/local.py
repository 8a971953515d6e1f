"""Take away from this host what its images do not need any more of layers that were pulled.

Layers without a name go when the image store is opened. What is left then: chunks in the cache of layers that no image
and no sandbox has, and pins in object stores with which this host still holds them. A pull or a create at the same time
is not disturbed: a layer that is mounted or being brought keeps its chunks, and one that is not fetches again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import anyio.to_thread
import msgspec

from dsec.base.errors import DsecError, StateLockedError
from dsec.images.lazy.caching.cache import LayerCache
from dsec.images.lazy.caching.whole import PULLS, WITHOUT_BOUND
from dsec.images.lazy.collection.holder import holder_of, stored_lazily, taking_back
from dsec.images.lazy.collection.roots import pin, pinned, unpin
from dsec.images.lazy.origins import REGISTRY_SCHEME
from dsec.images.lazy.publication.pulled import forget_others
from dsec.images.lazy.serving.client import LAZY, LayerDaemon
from dsec.images.registry.downloads import DOWNLOADS, Downloads
from dsec.images.store import LocalImageStore
from dsec.model.value import Value
from dsec.stores.opening import open_store


class LocalCollectionReport(Value, frozen=True):
    """What a collection on this host came to.

    Attributes:
        cached_layers: layers whose chunks were taken from the cache.
        freed_bytes: of those, and of downloads from registries that nobody works on.
        pins: with which this host holds layers in object stores, after it.
        unpinned: pins that it took back there.
        problems: stores that did not answer, in words; their pins grow old by themselves.
        is_dry_run: nothing of that was done.
    """

    cached_layers: int = 0
    freed_bytes: int = 0
    pins: int = 0
    unpinned: int = 0
    problems: tuple[str, ...] = ()
    is_dry_run: bool = False


async def collect_local(
    images: LocalImageStore,
    daemon: LayerDaemon | None,
    store_url: str,
    *,
    also: Collection[str] = (),
    dry_run: bool = False,
) -> LocalCollectionReport:
    """Take away what is not needed on this host, and renew or take back its pins in object stores.

    Args:
        images: the image store.
        daemon: of its lazy layers; None: there can be none.
        store_url: the object store of layers that name no origin.
        also: further stores in which this host may have pins that it does not need.
        dry_run: only say what would be taken from the cache.
    """
    needed = await anyio.to_thread.run_sync(stored_lazily, images.root)
    if not dry_run:
        await anyio.to_thread.run_sync(
            forget_others, images.root, lambda: frozenset(image.image_id for image in images.list())
        )
    layers, freed_bytes = await anyio.to_thread.run_sync(lambda: _prune(images, daemon, needed, dry_run=dry_run))
    report = LocalCollectionReport(cached_layers=layers, freed_bytes=freed_bytes, is_dry_run=dry_run)
    return report if dry_run else await _pins(images, needed, (store_url, *also), report)


def _prune(
    images: LocalImageStore, daemon: LayerDaemon | None, keep: Collection[str], *, dry_run: bool
) -> tuple[int, int]:
    """Take from the caches what is not to be kept: the daemon from its own, and we from that of killed pulls."""
    layers, freed_bytes = _prune_pulls(images.root / PULLS, keep, dry_run=dry_run)
    freed_bytes += Downloads(images.root / DOWNLOADS).sweep(older_than_s=0.0, dry_run=dry_run)
    if daemon is not None and (images.root / LAZY / "cache").exists():
        more, more_bytes = daemon.prune(keep, dry_run=dry_run)
        layers, freed_bytes = layers + more, freed_bytes + more_bytes
    return layers, freed_bytes


def _prune_pulls(root: Path, keep: Collection[str], *, dry_run: bool) -> tuple[int, int]:
    if not root.exists():
        return 0, 0
    try:
        cache = LayerCache(root, limit_bytes=WITHOUT_BOUND)
    except StateLockedError:
        return 0, 0  # Somebody pulls.
    try:
        return cache.prune(keep, dry_run=dry_run)
    finally:
        cache.close()


async def _pins(
    images: LocalImageStore, needed: dict[str, tuple[str, ...]], stores: Sequence[str], report: LocalCollectionReport
) -> LocalCollectionReport:
    holder = await anyio.to_thread.run_sync(holder_of, images.root)
    by_store: dict[str, list[str]] = {url: [] for url in stores}
    for manifest, origins in needed.items():
        for url in origins or stores[:1]:
            if not url.startswith(REGISTRY_SCHEME):
                by_store.setdefault(url, []).append(manifest)
    pins, unpinned, problems = 0, 0, []
    for url, manifests in by_store.items():
        try:
            unpinned += await _pins_in(url, holder, manifests, images.root)
            pins += len(manifests)
        except DsecError as error:
            problems.append(f"{url}: {error.brief}")
    return msgspec.structs.replace(report, pins=pins, unpinned=unpinned, problems=tuple(problems))


async def _pins_in(url: str, holder: str, manifests: Sequence[str], root: Path) -> int:
    store = await anyio.to_thread.run_sync(open_store, url)
    try:
        await pin(store, holder, manifests)
        idle = await pinned(store, holder) - set(manifests)
        with taking_back(root) as is_nobody_pinning:
            if not idle or not is_nobody_pinning:
                return 0  # What somebody has pinned and not stored yet cannot be told apart: the next time.
            # What was stored since we looked first is needed.
            idle -= (await anyio.to_thread.run_sync(stored_lazily, root)).keys()
            await unpin(store, holder, idle)
        return len(idle)
    finally:
        await store.aclose()
