"""Make a lazy layer whole: bring what is missing of it, and take its file into the image store.

Chunks are brought by whoever keeps them anyway, the daemon: each once, however many pull or read at the same time, and
with what other layers and other nodes have of them. What it brought stays cached, so that a pull that was killed goes
on where it was. The file that the daemon has in the end is linked into the store, not copied: the same inode, which
mounts that read the cached file go on reading.

Where no daemon can be (without root) the process that pulls has a cache of its own for as long as it pulls, below
``pulls/`` in the image store, and takes the layer out of it when it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from dsec.base.errors import DsecError, StateCorruptedError, StateLockedError
from dsec.images.durable import full_disk_reported
from dsec.images.lazy.caching.bringing import Progress, bring_whole, no_room, untold
from dsec.images.lazy.caching.cache import LayerCache
from dsec.images.lazy.caching.cached_layer import CachedLayer
from dsec.images.lazy.formats.manifest import LayerManifest, decode
from dsec.images.lazy.origins import Origins
from dsec.images.lazy.peers.seeds import SEEDS, Seeds
from dsec.images.lazy.serving.client import LayerDaemon
from dsec.images.lazy.serving.fetching import LayerEvent, SourcesOf, open_fetcher
from dsec.images.lazy.source import DEFAULT_TIMEOUT_S, ChunkSource
from dsec.images.store import LocalImageStore
from dsec.model.image import LayerFormat

_ROUND_S = 1.0
_LOCK_POLL_S = 0.1
_FLUSH_S = 2.0
_KEPT_S = 7 * 86_400.0
"""For so long a pull that was killed can go on with what it had, where no daemon keeps it."""
PULLS = "pulls"
"""Name of the directory in an image store with the cache of those who pull without a daemon."""
WITHOUT_BOUND = 1 << 62
_TRIES = 3
"""So often is a layer brought of which something rots as it comes: then its disk keeps nothing."""
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)


async def fetch_whole(
    images: LocalImageStore, manifest: LayerManifest, *, origins: Sequence[str], progress: Progress = untold
) -> None:
    """Fetch all of a layer that is stored by its manifest, so that it is like one that was made here.

    Mounts of it stay as they are. One that is whole already is left alone. When this fails or is killed, what was
    fetched is not fetched again; where the disk is full it goes, unless sandboxes use it.

    Args:
        images: where it is, by `add_lazy_layer`, protected or named.
        manifest: the layer's.
        origins: where its chunks can be had (`dsec.images.lazy.origins`).
        progress: told now and then, from the event loop.

    Raises:
        HostDiskFullError: no room for it.
        StateCorruptedError: what came is another layer, or no chunk of it; names whose.
        ObjectNotFoundError, StoreUnavailableError: a chunk cannot be had.
    """
    digest = manifest.layer
    file, record = await anyio.to_thread.run_sync(images.stored_layer, digest)
    if record.format is LayerFormat.LAZY and record.manifest != manifest.id:
        # It was pulled before as it had been cut then. What is cached of it is cut so, too, and it is the same layer.
        manifest, origins = decode(file.read_bytes(), str(file), expected=record.manifest), record.origins
    if record.format is LayerFormat.LAZY:
        await anyio.to_thread.run_sync(_check_room, images, manifest)
    tries = _TRIES
    while record.format is LayerFormat.LAZY:
        brought = await anyio.to_thread.run_sync(
            lambda: images.lazy.bring(manifest.id, origins=origins, file=file, within_s=_ROUND_S)
        )
        if brought is None:
            await _fetch_here(images, manifest, origins, progress)
        else:
            progress(brought.here_bytes, manifest.size_bytes)
            if brought.path is not None:
                tries -= 1
                is_rotten = partial(images.lazy.forget_rotten, manifest.id) if tries else _never
                await anyio.to_thread.run_sync(_take, images, manifest, brought.path, is_rotten)
        record = (await anyio.to_thread.run_sync(images.stored_layer, digest))[1]
    progress(manifest.size_bytes, manifest.size_bytes)
    if isinstance(images.lazy, LayerDaemon):
        await anyio.to_thread.run_sync(_seed, images, manifest, images.lazy)


def _check_room(images: LocalImageStore, manifest: LayerManifest) -> None:
    """Refuse a layer that will not fit, before a disk is filled with it: some kilobytes may stand for a tebibyte."""
    disk = os.statvfs(images.root)
    if manifest.size_bytes - images.here_bytes(manifest.layer) > disk.f_bavail * disk.f_frsize:
        raise no_room(manifest)


def _seed(images: LocalImageStore, manifest: LayerManifest, daemon: LayerDaemon) -> None:
    """Have the chunks of a whole layer be given to peers, should this host have some, also when the cache has not got
    them any more.
    """
    with contextlib.suppress(DsecError, OSError):  # Others will have them from elsewhere.
        file, record = images.stored_layer(manifest.layer)
        if record.format is LayerFormat.EROFS:
            Seeds(daemon.root / SEEDS).add(manifest, file)


def _never() -> bool:
    """Nothing rots."""
    return False


def _take(images: LocalImageStore, manifest: LayerManifest, file: Path, is_rotten: Callable[[], bool]) -> bool:
    """Take a whole file into the store; return False where it is to be brought again, at least in part.

    One that has left the cache meanwhile is left alone. In one that is not the layer, something may have rotted since
    it came and was verified; what may also be is that its chunks are right, and the manifest lies.

    Args:
        is_rotten: reads the file again, and forgets what is not what its name says; returns whether anything is.
    """
    with images.work_directory() as work, full_disk_reported("storing a layer"):
        taken = work.path / "pulled.erofs"
        try:
            _link(file, taken)
        except FileNotFoundError:
            return False
        try:
            images.take_erofs_file(taken, work, expected=manifest.layer, protect=False)
        except StateCorruptedError:
            if not is_rotten():
                raise
            return False
    return True


def _forget_rotten(layer: CachedLayer) -> bool:
    return bool(layer.verify()[1])


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        shutil.copyfile(file, target)


async def _fetch_here(
    images: LocalImageStore, manifest: LayerManifest, origins: Sequence[str], progress: Progress
) -> None:
    """Fetch a layer into a cache of this process, and take it out of there into the store."""

    async def sources_of(layer: CachedLayer) -> Sequence[ChunkSource]:
        return sources

    sources = await Origins().sources(origins)
    async with _opened_cache(images.root / PULLS) as cache:
        if (await anyio.to_thread.run_sync(images.stored_layer, manifest.layer))[1].format is not LayerFormat.LAZY:
            return  # Whoever had the cache before pulled the same.
        layer = await anyio.to_thread.run_sync(cache.hold, manifest)
        is_kept = True
        try:
            for is_last in (*(_TRIES - 1) * (False,), True):
                is_kept = await _brought(cache, layer, sources_of, progress)
                if not is_kept:
                    raise no_room(manifest)
                with full_disk_reported("pulling an image"):
                    await anyio.to_thread.run_sync(layer.flush)
                is_rotten = _never if is_last else partial(_forget_rotten, layer)
                if await anyio.to_thread.run_sync(_take, images, manifest, layer.path, is_rotten):
                    break
            is_kept = False
        finally:
            cache.release(layer)
            if not is_kept:
                cache.remove(manifest.id)


async def _brought(cache: LayerCache, layer: CachedLayer, sources_of: SourcesOf, progress: Progress) -> bool:
    """Fetch what is missing of a layer; return whether there is room for it."""
    failure: Exception | None = None
    is_kept = False

    def unheard(event: LayerEvent) -> None:
        """Tell nobody: what cannot be had is raised."""

    async with open_fetcher(cache, sources_of, timeout_s=DEFAULT_TIMEOUT_S, on_event=unheard) as fetcher:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_flush_now_and_then, layer)
                is_kept = await bring_whole(fetcher, layer, progress=progress)
                group.cancel_scope.cancel()
        except* DsecError as errors:
            failure = errors.exceptions[0]
    if failure is not None:
        raise failure
    return is_kept


async def _flush_now_and_then(layer: CachedLayer) -> None:
    """Record what was fetched, so that less is fetched again after a kill."""
    while True:
        await anyio.sleep(_FLUSH_S)
        with contextlib.suppress(OSError):  # What it could not record is fetched again.
            await anyio.to_thread.run_sync(layer.flush)


@asynccontextmanager
async def _opened_cache(root: Path) -> AsyncIterator[LayerCache]:
    """Open the cache of pulls, once nobody else has it."""
    while True:
        try:
            with full_disk_reported("pulling an image"):
                cache = await anyio.to_thread.run_sync(lambda: LayerCache(root, limit_bytes=WITHOUT_BOUND))
            break
        except StateLockedError:
            await anyio.sleep(_LOCK_POLL_S)
    try:
        await anyio.to_thread.run_sync(_forget_given_up, cache)
        yield cache
    finally:
        cache.close()


def _forget_given_up(cache: LayerCache) -> None:
    """Take away what was left by pulls that nobody has gone on with for long."""
    oldest_s = time.time() - _KEPT_S
    for layer in cache.layers():
        if layer.directory.stat().st_mtime < oldest_s:
            cache.remove(layer.manifest.id)
