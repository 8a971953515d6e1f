"""Serve layers of the cache to the kernel: as files of a FUSE directory, which loop devices read.

What is here is read by the threads that take requests; what is missing is fetched in an event loop of the server's own.
A read that cannot be had within its deadline is answered with EIO, which is that read's alone: the next tries again.

Why a file system on a loop device on a FUSE file: see docs/images-lazy.md.
"""

from __future__ import annotations

import contextlib
import errno
import math
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import msgspec
from anyio.from_thread import BlockingPortal, start_blocking_portal

from dsec.base.errors import DsecError, InvalidRequestError, ObjectNotFoundError, StoreUnavailableError
from dsec.distribution.prefetch import PrefetchProgress, PrefetchSettings
from dsec.images.layer_mounts import Brought
from dsec.images.lazy.caching.bringing import bring_whole, no_room
from dsec.images.lazy.caching.cache import LayerCache
from dsec.images.lazy.caching.cached_layer import CachedLayer
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.manifest import BLOCK_BYTES, LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES
from dsec.images.lazy.origins import Origins
from dsec.images.lazy.peers.report import PeersReport
from dsec.images.lazy.serving.daemon_wire import Prefetch
from dsec.images.lazy.serving.fetching import Fetcher, LayerEvent, LayerEventKind, layer_event, open_fetcher
from dsec.images.lazy.serving.prefetching import Prefetching, open_prefetching
from dsec.images.lazy.serving.wishes import Wishes
from dsec.images.lazy.source import ChunkSource, Neighbours
from dsec.images.lazy.tracing.touches import LayerTouches, LayerUse, Touch, Touches
from dsec.linux.fuse import FuseMount, FuseSession, ReadOnlyFiles, ReadRequest


def _to_nobody(told: object) -> None:
    """Pass over what is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerServerOptions:
    """How a server behaves.

    Attributes:
        read_timeout_s: deadline of one read; after it, EIO.
        source_timeout_s: for each question to a source; several fit into a read's deadline.
        flush_interval_s: how long what was fetched may be unrecorded: that much is fetched again after a crash.
        on_event: told of everything that went wrong, from any thread.
        touches: keeps what was read; None: in memory.
        prefetch: how chunks are brought before they are read.
        wishes: keeps what is to be brought, for the next server; None: that one knows of nothing.
    """

    read_timeout_s: float = 60.0
    source_timeout_s: float = 20.0
    flush_interval_s: float = 2.0
    on_event: Callable[[LayerEvent], None] = field(default=_to_nobody)
    touches: Touches | None = None
    prefetch: PrefetchSettings = field(default_factory=PrefetchSettings)
    wishes: Wishes | None = None


class LayerServer:
    """Serves the layers of one cache. Needs root.

    Args:
        cache: the layers; the caller closes it after the server.
        mount: where they are shown; the caller closes it after the server.
        sources: of chunks of every layer, asked one after the other, before the layer's origins.
        options: how it behaves.
        origins: opens the origins of layers; None: they are not asked.
        neighbours: opens the peers of this node, which are asked first; None: it has none.
    """

    def __init__(
        self,
        cache: LayerCache,
        mount: FuseMount,
        sources: Sequence[ChunkSource] = (),
        options: LayerServerOptions = LayerServerOptions(),
        *,
        origins: Origins | None = None,
        neighbours: Callable[[LayerCache], AbstractAsyncContextManager[Neighbours]] | None = None,
    ) -> None:
        self.cache = cache
        self.mount = mount
        self._sources = tuple(sources)
        self._origins = origins
        self._options = options
        self._lock = threading.Lock()
        self._layers: dict[str, CachedLayer] = {}
        self._touches = options.touches or Touches()
        self._touched: dict[str, LayerTouches] = {}
        self._complete: set[str] = set()
        self.on_complete: Callable[[str], None] = _to_nobody
        """Called once with the name of a manifest when all of its layer is here, from a thread of the server's."""
        self._stopping = threading.Event()
        self._flusher = threading.Thread(target=self._flush_now_and_then, name="layer-flush", daemon=True)
        files = ReadOnlyFiles(size_of=self._size_of, read=self._read)
        # Twice the deadline, after which the kernel ends a server that does not even say no.
        timeout_s = math.ceil(2 * options.read_timeout_s)
        self._session = FuseSession(mount, files, request_timeout_s=timeout_s)
        with ExitStack() as stack:
            self._portal: BlockingPortal = stack.enter_context(start_blocking_portal())
            opening = open_fetcher(
                cache, self._sources_of, timeout_s=options.source_timeout_s, on_event=options.on_event
            )
            self._fetcher: Fetcher = stack.enter_context(self._portal.wrap_async_context_manager(opening))
            self._fetcher.touches = self._touches
            if neighbours is not None:
                opened = self._portal.wrap_async_context_manager(neighbours(cache))
                self._fetcher.neighbours = stack.enter_context(opened)
            ahead = open_prefetching(self._fetcher, self._layers.get, options.prefetch, on_event=options.on_event)
            self._prefetching: Prefetching = stack.enter_context(self._portal.wrap_async_context_manager(ahead))
            self._stack = stack.pop_all()

    def start(self) -> None:
        """Serve. Called once."""
        self._session.start()
        self._flusher.start()
        self._open_origin()

    def resume(self) -> None:
        """Serve on in place of a server of the same mount that was killed, in place of `start`: every layer that it
        showed must be shown already. What it was asked and did not answer, this one answers.
        """
        self._session.resume()
        self._flusher.start()
        self._open_origin()

    def take_cache(self) -> bool:
        """Wait until a predecessor that had the cache has ended, answering reads meanwhile; return whether there was
        one. What comes in between is not kept."""
        if not self.cache.take():
            return False
        self._session.ask_again()
        return True

    def _open_origin(self) -> None:
        """Open the origin that most layers have while nobody waits for it: a client of S3 takes some 50 ms to load."""
        if self._origins is not None:
            self._portal.start_task_soon(self._origins.sources, ())

    @property
    def fetched_bytes(self) -> int:
        """Content bytes that came from sources since this server began."""
        return self._fetcher.fetched_bytes

    def peers_report(self) -> PeersReport | None:
        """Say what was taken from peers and given to them; None: there are none."""
        return None if self._fetcher.neighbours is None else self._fetcher.neighbours.report()

    async def _sources_of(self, layer: CachedLayer) -> Sequence[ChunkSource]:
        neighbours = self._fetcher.neighbours
        first = self._sources if neighbours is None else (neighbours.source(layer.manifest.id), *self._sources)
        if self._origins is None:
            return first
        return (*first, *await self._origins.sources(layer.origins))

    def show(self, manifest: LayerManifest, origins: Sequence[str] = ()) -> Path:
        """Show a layer as a file, with its metadata here, and return the file. Holds it until `hide`. Idempotent.

        Args:
            manifest: the layer's.
            origins: where its chunks can be had from now on; none: where they were had before.

        Raises:
            DsecError: the metadata cannot be had. It is shown all the same: reads of it try again.
        """
        layer = self.show_as_it_is(manifest)
        layer.keep_origins(origins)
        self._portal.call(self._bring_metadata, layer)
        return self.mount.target / manifest.id

    def show_as_it_is(self, manifest: LayerManifest) -> CachedLayer:
        """Show a layer without asking any source, and return it. Holds it until `hide`. Idempotent.

        Raises:
            StateLockedError: the cache is not ours yet (`take_cache`) and has not begun it; it is not shown.
        """
        with self._lock:
            layer = self._layers.get(manifest.id)
            if layer is None:
                layer = self._layers[manifest.id] = self.cache.hold(manifest)
                self._touched[manifest.id] = self._touches.of(manifest)
                self._session.know(manifest.id)
        return layer

    def bring_metadata_soon(self, manifest_id: str) -> None:
        """Fetch the metadata of a layer that is shown, should it be missing, while nobody waits for it."""
        self._portal.start_task_soon(self._try_metadata, self._layers[manifest_id])

    async def _try_metadata(self, layer: CachedLayer) -> None:
        with contextlib.suppress(DsecError):  # Reads try again, each for what it needs.
            await self._bring_metadata(layer)

    async def _bring_metadata(self, layer: CachedLayer) -> None:
        try:
            with anyio.fail_after(self._options.read_timeout_s):
                await self._fetcher.bring_metadata(layer)
        except TimeoutError as error:
            raise _as_ours(error, self._options.read_timeout_s) from error

    def manifest(self, manifest_id: str, *, origins: Sequence[str] = (), file: Path | None = None) -> LayerManifest:
        """Return a manifest: of the cache, of a file, or of an origin that has it.

        Raises:
            StateCorruptedError: the file, or an origin, has something else.
            DsecError: as `Origins.manifest`.
        """
        found = self.cache.manifest(manifest_id)
        if found is None and file is not None:
            with contextlib.suppress(FileNotFoundError):
                found = manifests.decode(file.read_bytes(), str(file), expected=manifest_id)
        if found is not None:
            return found
        return self._portal.call((self._origins or Origins()).manifest, origins, manifest_id)

    def hide(self, manifest_id: str) -> None:
        """Show a layer no more; it may leave the cache. Idempotent."""
        with self._lock:
            layer = self._layers.pop(manifest_id, None)
            self._complete.discard(manifest_id)
            self._touched.pop(manifest_id, None)
        if layer is not None:
            self._touches.forget(manifest_id)
            self.cache.release(layer)

    def shows(self, manifest_id: str) -> bool:
        """Whether a layer is shown."""
        return manifest_id in self._layers

    def beginning(self, manifest_id: str) -> bytes:
        """Return the first block of a layer that is shown. Raises as `show`."""
        layer = self._layers[manifest_id]
        packed = layer.packed(0, BLOCK_BYTES)
        return self._portal.call(self._fetcher.read, layer, 0, BLOCK_BYTES) if packed is None else bytes(packed)

    def layer(self, manifest_id: str) -> CachedLayer:
        """Return a layer that is shown."""
        return self._layers[manifest_id]

    def reopen(self, manifest_id: str) -> None:
        """Take back that a layer is complete: something of it was lost, and `on_complete` is called again one day."""
        self._complete.discard(manifest_id)

    def bring(self, manifest_id: str, positions: Sequence[int]) -> None:
        """Fetch chunks of a layer of the cache, before anybody reads them. Raises as `show`."""
        with self._held(manifest_id) as layer:
            self._portal.call(self._fetcher.bring, layer, positions)

    def verify(self, manifest_id: str, places: range | None = None) -> tuple[int, list[int]]:
        """Read what is here of a layer of the cache, shown or not; forget what is not what its name says. Return how
        much was read, and the numbers of what was forgotten.
        """
        with self._held(manifest_id) as layer:
            return layer.verify(places)

    @contextlib.contextmanager
    def _held(self, manifest_id: str) -> Iterator[CachedLayer]:
        manifest = self.cache.manifest(manifest_id)
        if manifest is None:
            raise ObjectNotFoundError(f"nothing is cached of layer {manifest_id[:12]}")
        layer = self.cache.hold(manifest)
        try:
            yield layer
        finally:
            self.cache.release(layer)

    def bring_whole(self, manifest: LayerManifest, origins: Sequence[str], *, within_s: float) -> Brought | None:
        """Fetch for a while what is missing of a layer, shown or not; None: the cache is too small for it.

        Raises:
            HostDiskFullError: no room for it. What was fetched of it goes, unless it is shown.
            DsecError: a chunk cannot be had.
        """
        layer = self.cache.hold(manifest)
        fits, has_room = True, False
        try:
            layer.keep_origins(origins)
            has_room = self._portal.call(partial(bring_whole, self._fetcher, layer, within_s=within_s))
            if not has_room:
                fits = self.cache.has_room(CHUNK_BYTES)
            elif layer.chunk_bytes == manifest.size_bytes:
                layer.flush()
                self.flush()  # If it is mounted, the kernel reads the file itself from now on.
            path = layer.path if layer.is_complete else None
            brought = Brought(here_bytes=layer.chunk_bytes, path=path)
        except OSError as error:
            has_room = error.errno not in (errno.ENOSPC, errno.EDQUOT)
            if has_room:
                raise _as_ours(error, within_s) from error
        finally:
            self.cache.release(layer)
        if has_room:
            return brought
        self.cache.remove(manifest.id)
        if fits:
            raise no_room(manifest)
        return None

    def prefetch(self, request: Prefetch) -> None:
        """Bring chunks for an owner, in place of what it wanted before; layers that are not shown are passed over.

        Raises:
            InvalidRequestError: it names what does not exist.
        """
        self._portal.call(self._prefetching.begin, request)
        if self._options.wishes is not None:
            self._options.wishes.keep(request)

    def prefetch_again(self) -> None:
        """Bring what a server that was killed was to bring."""
        for request in () if self._options.wishes is None else self._options.wishes.all():
            with contextlib.suppress(InvalidRequestError):
                self._portal.call(self._prefetching.begin, request)

    def stop_prefetch(self, owner: str) -> bool:
        """Bring nothing more for an owner; return whether it had a plan."""
        if self._options.wishes is not None:
            self._options.wishes.forget(owner)
        return self._portal.call(self._prefetching.stop, owner)

    def prefetch_progress(self, owner: str) -> PrefetchProgress:
        """Return how far an owner's plan is."""
        return self._portal.call(self._prefetching.progress, owner)

    def use(self, manifest_id: str) -> LayerUse | None:
        """Return what came of a layer and what was read, all recorded; None where the cache has nothing of it."""
        manifest = self.cache.manifest(manifest_id)
        if manifest is None:
            return None
        self.flush()
        use = self._touches.of(manifest).use()
        held_bytes, is_complete = self.cache.held(manifest_id)
        return msgspec.structs.replace(use, cached_bytes=held_bytes, is_complete=is_complete)

    def touched(self, manifest_id: str) -> tuple[Touch, ...]:
        """Return the chunks of a layer that were read, in the order of their first reads."""
        manifest = self.cache.manifest(manifest_id)
        return () if manifest is None else self._touches.of(manifest).order()

    def close(self) -> None:
        """End: unmount, so that files which are still read fail from now on; record what was fetched. Idempotent."""
        self._stopping.set()
        self.mount.close()
        self._session.join()
        self._stack.close()
        if self._flusher.is_alive():
            self._flusher.join()
        for manifest_id in list(self._layers):
            self.hide(manifest_id)

    def _size_of(self, name: str) -> int | None:
        layer = self._layers.get(name)
        return None if layer is None else layer.manifest.size_bytes

    def _read(self, request: ReadRequest) -> None:
        layer = self._layers.get(request.name)
        if layer is None:
            request.fail(errno.EIO)
            return
        touched = self._touched.get(request.name)
        if touched is not None:
            touched.read(layer.needed(request.start, request.length))
        if (data := layer.packed(request.start, request.length)) is not None:
            request.answer(data)
        elif layer.missing(request.start, request.length):
            self._portal.start_task_soon(self._fetch_and_answer, layer, request)
        else:
            self._answer(layer, request)

    def _answer(self, layer: CachedLayer, request: ReadRequest) -> None:
        try:
            data = layer.read(request.start, request.length)
        except OSError as error:
            self._refuse(layer, request, StoreUnavailableError(f"{layer.path}: {error.strerror}"))
            return
        if len(data) == request.length:
            request.answer(data)
        else:
            self._refuse(layer, request, StoreUnavailableError(f"{layer.path} became shorter"))

    async def _fetch_and_answer(self, layer: CachedLayer, request: ReadRequest) -> None:
        try:
            with anyio.fail_after(self._options.read_timeout_s):
                data = await self._fetcher.read(layer, request.start, request.length)
        except (DsecError, OSError) as error:
            self._refuse(layer, request, _as_ours(error, self._options.read_timeout_s))
        except BaseException:
            request.fail(errno.EIO)  # The server ends: nobody waits for us in vain.
            raise
        else:
            request.answer(data)

    def _refuse(self, layer: CachedLayer, request: ReadRequest, error: DsecError) -> None:
        self._options.on_event(
            layer_event(layer, LayerEventKind.READ_FAILED, start=request.start, length=request.length, error=error)
        )
        request.fail(errno.EIO)

    def _flush_now_and_then(self) -> None:
        while not self._stopping.wait(self._options.flush_interval_s):
            self._record()

    def settle(self) -> None:
        """Wait until what has come is on the disk, or cannot be."""
        self._portal.call(self._fetcher.settled)

    def flush(self) -> None:
        """Record what was fetched, and call `on_complete` for layers that are complete by it."""
        self.settle()
        self._record()

    def _record(self) -> None:
        try:
            self.cache.flush()
        except OSError:
            return  # It is not recorded, and fetched again when it is read.
        for manifest_id, layer in list(self._layers.items()):
            if layer.is_complete and manifest_id not in self._complete:
                self._complete.add(manifest_id)
                self._options.on_event(layer_event(layer, LayerEventKind.COMPLETE, length=layer.manifest.size_bytes))
                self.on_complete(manifest_id)


def _as_ours(error: DsecError | OSError, timeout_s: float) -> DsecError:
    if isinstance(error, DsecError):
        return error
    if isinstance(error, TimeoutError):
        return StoreUnavailableError(
            f"no source gave the chunk within {timeout_s:g} s", resolution="look at the sources, and at the network"
        )
    return StoreUnavailableError(f"the layer cache failed: {error}", resolution="look at the disk of the cache")


def mount_below(directory: Path) -> tuple[FuseMount, tuple[Path, ...]]:
    """Mount a new FUSE directory below a directory that holds nothing else; return it, and those that the dead left.

    The latter are to be removed (`dsec.images.staging.remove_tree`) once no device reads from them any more.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Nothing but mount points stands there; those of the dead cannot even be asked what they are.
    left_over = tuple(directory.iterdir())
    target = directory / secrets.token_hex(8)
    target.mkdir(mode=0o700)
    return FuseMount(target), left_over
