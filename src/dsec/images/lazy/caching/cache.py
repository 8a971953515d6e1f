"""The local cache of chunks: one sparse file a layer, a bound over all of them (docs/formats/layer-cache.md).

- A layer that somebody *holds* (it is mounted) keeps everything. Of the others, the longest unused go first, whole: a
  layer of which half was taken away would be fetched again for its metadata alone.
- The bound is one on content bytes. When what is held reaches it, further chunks are not kept: whoever asked has them
  in memory and serves them from there. So does a disk that is full but for a reserve.
- A chunk that another layer of the cache has is taken from there, verified: images are much alike, and nothing is
  fetched twice. On disk it is there twice.
- One process has the cache; it holds the lock. A *guest* may read it meanwhile, and waits for its turn (`take`): who
  serves in place of a process that was killed must answer reads before that one has ended, and must not write beside
  what a call of the dying one may still be writing.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dsec.base.errors import CapabilityMissingError, DsecError, StateLockedError
from dsec.base.units import GIB
from dsec.images.durable import full_disk_reported, try_lock, usable, write_atomically
from dsec.images.lazy.caching.cached_layer import CachedLayer
from dsec.images.lazy.caching.recent import RecentChunks
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import is_name, name_of
from dsec.images.staging import remove_tree

DEFAULT_LIMIT_BYTES = 64 * GIB
"""Some ten whole images of the size that agents use, or a hundred that are touched as they are."""
_VERSION = 1
_DOOMED = ".doomed-"
_RESERVE_BYTES, _RESERVE_SHARE = 2 * GIB, 0.05
"""What is left free of the disk, the lesser of the two: a guest decides what is read of an image, and must not take the
room in which others write by it. Twice what a node wants to see free before it makes a sandbox."""
_LOCK = "lock"
_MAY_BE_REMOVED = "or remove it while no node uses it: what is needed is fetched again"
_PLACES_OF_A_CHUNK = 4
"""Places of one layer that are remembered for a chunk: one that consists of zeros, or of lies, has it everywhere, and
whoever looks for it looks at all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics:
    """What a cache holds.

    Attributes:
        layers: layers of which something is there.
        held_layers: those that are held.
        content_bytes: bytes of all chunks and metadata.
        limit_bytes: the bound.
    """

    layers: int
    held_layers: int
    content_bytes: int
    limit_bytes: int


class _Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int


class LayerCache:
    """The cache of one directory. Its methods may be called from any thread.

    Args:
        root: the directory; made if missing.
        limit_bytes: bound on content bytes.
        as_guest: begin also while another process has it: what that one recorded can be read, and nothing is kept,
            begun or taken away until `take`.

    Raises:
        StateLockedError: another process has it.
        CapabilityMissingError: it is of another version.
        StoreUnavailableError: it cannot be read or written.
    """

    def __init__(self, root: Path, *, limit_bytes: int = DEFAULT_LIMIT_BYTES, as_guest: bool = False) -> None:
        self._root = root
        self._limit_bytes = limit_bytes
        self._mutex = threading.RLock()
        with usable("layer cache", root, _MAY_BE_REMOVED):
            self._lock_fd = _lock(root, as_guest=as_guest)
        self._layers: dict[str, CachedLayer] = {}
        self._holds: dict[str, int] = {}
        self._where: dict[str, list[tuple[str, int]]] = {}
        self._arriving_bytes = 0
        self._recent = RecentChunks()
        try:
            check_version(root)
            with usable("layer cache", root, _MAY_BE_REMOVED):
                self._load()
        except BaseException:
            self.close()
            raise

    @property
    def _is_ours(self) -> bool:
        return self._lock_fd >= 0

    @property
    def is_guest(self) -> bool:
        """Whether another process has it, so that nothing is kept: not for want of room."""
        return not self._is_ours

    def take(self) -> bool:
        """Wait until no other process has the cache, and have it from then on; return whether it was not ours before.

        Called by one thread. Layers that are held stay the same objects, and have what is recorded of them by then.
        """
        if self._is_ours:
            return False
        lock_fd = os.open(self._root / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
        with self._mutex:
            self._lock_fd = lock_fd
            self._where.clear()
            for name, layer in list(self._layers.items()):
                del self._layers[name]
                if name in self._holds:
                    layer.begin_anew()
                    self._add(layer)
                else:
                    layer.close()
            self._load()
        return True

    def hold(self, manifest: LayerManifest) -> CachedLayer:
        """Return a layer, which keeps what it has until as many calls of `release`.

        Raises:
            HostDiskFullError: it cannot be begun.
            StateLockedError: it would have to be begun by a guest.
        """
        with self._mutex:
            layer = self._layers.get(manifest.id)
            if layer is None and not self._is_ours:
                raise _in_use(self._root)
            if layer is None:
                with full_disk_reported("beginning a layer in the cache"):
                    layer = CachedLayer.create(self._root / manifest.id, manifest)
                self._add(layer)
            self._holds[manifest.id] = self._holds.get(manifest.id, 0) + 1
            return layer

    def manifest(self, manifest_id: str) -> LayerManifest | None:
        """Return a manifest of a layer of the cache; None when it has not got it."""
        with self._mutex:
            layer = self._layers.get(manifest_id)
            return None if layer is None else layer.manifest

    def layers(self) -> tuple[CachedLayer, ...]:
        """Return the layers of which something is there."""
        with self._mutex:
            return tuple(self._layers.values())

    def held(self, manifest_id: str) -> tuple[int, bool]:
        """Return how many content bytes of a layer are here, and whether that is all of it."""
        with self._mutex:
            layer = self._layers.get(manifest_id)
            return (0, False) if layer is None else (layer.held_bytes, layer.is_complete)

    def is_held(self, manifest_id: str) -> bool:
        """Whether somebody holds a layer."""
        with self._mutex:
            return manifest_id in self._holds

    def origins(self, manifest_id: str) -> tuple[str, ...] | None:
        """Return where a layer of the cache comes from; None when it has not got it."""
        with self._mutex:
            layer = self._layers.get(manifest_id)
            return None if layer is None else layer.origins

    def release(self, layer: CachedLayer) -> None:
        """Hold a layer no more; it may be taken away when room is needed."""
        with self._mutex:
            self._let_go(layer)
            self._make_room(0)

    def _let_go(self, layer: CachedLayer) -> None:
        name = layer.manifest.id
        self._holds[name] -= 1
        if not self._holds[name]:
            del self._holds[name]
            if self._is_ours:
                os.utime(layer.directory)

    def store(self, layer: CachedLayer, position: int, content: bytes) -> bool:
        """Keep a verified chunk of a held layer, or its metadata; return False where there is no room for it."""
        size_bytes = len(content)
        with self._holding(layer.manifest.id) as there:
            if there is not layer or not self._is_ours:
                return False  # It left the cache meanwhile, or we are a guest.
            with self._mutex:
                if layer.has(position):
                    return True
                if not self._make_room(size_bytes + self._arriving_bytes):
                    return False
                self._arriving_bytes += size_bytes
            try:
                # Without the mutex: a write may wait for the disk, and everybody else would wait for it.
                return layer.store(position, content)
            finally:
                with self._mutex:
                    self._arriving_bytes -= size_bytes

    @contextmanager
    def _holding(self, manifest_id: str) -> Iterator[CachedLayer | None]:
        """Keep a layer, if it is there, from being taken away for the duration of the block: its descriptors would be
        another file's."""
        with self._mutex:
            layer = self._layers.get(manifest_id)
            if layer is not None:
                self._holds[manifest_id] = self._holds.get(manifest_id, 0) + 1
        try:
            yield layer
        finally:
            if layer is not None:
                with self._mutex:
                    self._let_go(layer)

    def from_another(self, layer: CachedLayer, position: int) -> bytes | None:
        """Return a chunk of a layer from where the cache has the same content, verified; None where it has not."""
        name = layer.manifest.chunks[position].id
        for manifest_id, place in self._places(name):
            with self._holding(manifest_id) as other:
                if other is None or not other.has(place):
                    continue
                if name_of(content := other.read_chunk(place)) == name:
                    return content
        return None

    def is_elsewhere(self, layer: CachedLayer, position: int) -> bool:
        """Whether `from_another` has anything to look at; waits for nothing."""
        return self._is_ours and len(self._where.get(layer.manifest.chunks[position].id, ())) > 1

    def _places(self, name: str) -> list[tuple[str, int]]:
        with self._mutex:
            return list(self._where.get(name, ()))

    def has_room(self, size_bytes: int) -> bool:
        """Whether so many more bytes are within the bound, taking away what nobody holds."""
        with self._mutex:
            held = sum(self._layers[name].held_bytes for name in self._holds)
            return self._is_ours and held + size_bytes <= self._limit_bytes

    def remove(self, manifest_id: str) -> bool:
        """Take a layer away; return False when it is held, or not there."""
        with self._mutex:
            if not self._is_ours or manifest_id in self._holds or manifest_id not in self._layers:
                return False
            self._evict(manifest_id)
            return True

    def prune(self, keep: Collection[str], *, dry_run: bool = False) -> tuple[int, int]:
        """Take away the layers that nobody holds and that are not to be kept.

        Args:
            keep: names of the manifests of those to be kept.
            dry_run: only say which.

        Returns:
            How many those are, and their content bytes.
        """
        with self._mutex:
            free = [layer for name, layer in self._layers.items() if name not in self._holds and name not in keep]
            freed_bytes = sum(layer.held_bytes for layer in free)
            for layer in free if self._is_ours and not dry_run else ():
                self._evict(layer.manifest.id)
            return len(free), freed_bytes

    def statistics(self) -> CacheStatistics:
        """Say what the cache holds."""
        with self._mutex:
            return CacheStatistics(
                layers=len(self._layers),
                held_layers=len(self._holds),
                content_bytes=self._content_bytes(),
                limit_bytes=self._limit_bytes,
            )

    def flush(self) -> int:
        """Bring what was stored to the disk and record it; return how many chunks that were. Raises `OSError`."""
        with self._mutex:
            layers = list(self._layers.values())
        self._recent.age()
        return sum(layer.flush() for layer in layers)

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        with self._mutex:
            for layer in self._layers.values():
                layer.close()
            self._layers.clear()
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
                self._lock_fd = -1

    def _load(self) -> None:
        for entry in sorted(self._root.iterdir()):
            if entry.name.startswith(_DOOMED):
                if self._is_ours:
                    remove_tree(entry)
            elif is_name(entry.name) and entry.name not in self._layers:
                # Anything else is not ours, and stays: the cache may have a disk of its own, with its lost+found.
                try:
                    self._add(CachedLayer.open(entry, as_guest=not self._is_ours))
                except (DsecError, FileNotFoundError):
                    # It was being made, or is damaged. It is a cache: what is wrong is fetched again.
                    if self._is_ours:
                        self._discard(entry)
        self._make_room(0)

    def _add(self, layer: CachedLayer) -> None:
        layer.recent = self._recent
        self._layers[layer.manifest.id] = layer
        noted: Counter[str] = Counter()
        for position, ref in enumerate(layer.manifest.chunks):
            noted[ref.id] += 1
            if noted[ref.id] <= _PLACES_OF_A_CHUNK:
                self._where.setdefault(ref.id, []).append((layer.manifest.id, position))

    def _make_room(self, wanted_bytes: int) -> bool:
        """Take unheld layers away until so many bytes fit; return whether they do."""
        if not self._is_ours:
            return False
        excess = self._content_bytes() + wanted_bytes - self._limit_bytes
        if wanted_bytes:
            excess = max(excess, wanted_bytes - _room_bytes(self._root))
        if excess <= 0:
            return True
        free = [layer for name, layer in self._layers.items() if name not in self._holds]
        for layer in sorted(free, key=lambda each: each.directory.stat().st_mtime_ns):
            excess -= layer.held_bytes
            self._evict(layer.manifest.id)
            if excess <= 0:
                return True
        return False

    def _content_bytes(self) -> int:
        return sum(layer.held_bytes for layer in self._layers.values())

    def _evict(self, manifest_id: str) -> None:
        layer = self._layers.pop(manifest_id)
        for chunk in {ref.id for ref in layer.manifest.chunks}:
            left = [place for place in self._where.get(chunk, ()) if place[0] != manifest_id]
            if left:
                self._where[chunk] = left
            else:
                self._where.pop(chunk, None)
        layer.close()
        self._discard(layer.directory)

    def _discard(self, directory: Path) -> None:
        """Remove a layer: under another name first, so that a crash leaves no half of one under its own."""
        doomed = self._root / f"{_DOOMED}{secrets.token_hex(8)}"
        directory.rename(doomed)
        remove_tree(doomed)


def _lock(root: Path, *, as_guest: bool) -> int:
    """Return the descriptor that holds the lock; -1 for a guest while somebody else does."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = root / _LOCK
    path.touch(mode=0o600)
    descriptor = try_lock(path)
    if descriptor is None and not as_guest:
        raise _in_use(root)
    return -1 if descriptor is None else descriptor


def _in_use(root: Path) -> StateLockedError:
    return StateLockedError(
        f"the layer cache {root} is in use", resolution="one process serves it; wait until that one has ended"
    )


def _room_bytes(root: Path) -> int:
    """Return how many bytes may be written to a disk; fewer than none where what is to be left free is not."""
    disk = os.statvfs(root)
    reserve_bytes = min(_RESERVE_BYTES, int(_RESERVE_SHARE * disk.f_blocks * disk.f_frsize))
    return disk.f_bavail * disk.f_frsize - reserve_bytes


def check_version(root: Path) -> None:
    """Refuse another version's cache, which that version's process may go on with.

    Raises:
        CapabilityMissingError: it is one.
        StoreUnavailableError: it cannot be read or written.
    """
    path = root / "format.json"
    try:
        with usable("layer cache", root, _MAY_BE_REMOVED):
            if not path.exists():
                write_atomically(path, msgspec.json.encode(_Format(_VERSION)))
                return
            version = msgspec.json.decode(path.read_bytes(), type=_Format).version
    except msgspec.MsgspecError:
        version = -1
    if version != _VERSION:
        raise CapabilityMissingError(
            f"the layer cache {root} is not of version {_VERSION}",
            resolution=f"remove {root} while no node uses it: what is needed is fetched again",
        )
