"""The mounts of layers that are loaded when touched: one a layer a node, shared by all its sandboxes.

A mount is EROFS on a read-only loop device. What the device reads is exchanged beneath it, and no sandbox notices:

- a layer of which something is missing is read through the server's FUSE file;
- once all of it is here, the device reads the local file, and no byte goes through us any more;
- when the server was killed, the next one gives the device its own file (`adopt`). Reads in between fail with EIO.

The kernel's table says which device belongs to which layer; nothing of it is written down by us.

Killed servers. Mounting, unmounting, an exchange or an eviction may wait, in the kernel and where no signal is heard,
for a read of the device, and so for an answer of the server itself. Were it killed meanwhile, its process could not end
before that read is answered. So the next server answers reads at once, as a guest of the cache (`LayerCache`), which
lets the dying one end, and only then exchanges anything and takes requests: `adopt`. Nothing of the dying one runs any
more at that time, neither a program nor a call.

A process apart mounts (mount(8)), since mounting reads most, and waits for sources. It holds a lock for as long as it
lives, in which the next server waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from dsec.base.errors import CapabilityMissingError, DsecError, StateCorruptedError
from dsec.images.lazy.caching.cached_layer import METADATA
from dsec.images.lazy.erofs.superblock import check_superblock
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES
from dsec.images.lazy.serving.server import LayerServer
from dsec.linux import loop, mounts, page_eviction

_RELEASE_S = 2.0
"""The kernel lets go of a device a moment after the last mount went, which on a busy host may be a long one. Where a
mount namespace of somebody else has a copy of the mount it does so when that ends; nobody is to wait for it here."""
_NAMED = 20
"""Files that are named of those that are mapped."""
_OPTIONS = "ro,nosuid,nodev"
_MOUNT_FAILED = 32
"""Status of mount(8) when the kernel refused."""
_LOCK = "mounting.lock"


def _already() -> None:
    """Do nothing: the server runs."""


class LazyMounts:
    """The mount points of a server's layers. Methods may be called from any thread.

    Args:
        root: their directory; each is named by its manifest.
        server: serves what is missing; this takes its `on_complete`.
    """

    def __init__(self, root: Path, server: LayerServer) -> None:
        self._root = root
        self._server = server
        self._lock = threading.Lock()
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        server.on_complete = self._use_local_file

    def ensure(self, manifest: LayerManifest, origins: Sequence[str] = ()) -> Path:
        """Make a layer readable and return where. Waits for its metadata; costs a look at the table when it is mounted.

        Args:
            manifest: the layer's.
            origins: where its chunks can be had from now on; none: where they were had before.

        Raises:
            DsecError: the metadata cannot be had.
            StateCorruptedError: what was fetched is no EROFS file that the kernel takes, or that it is to be shown.
        """
        if manifest.id not in self.mounted():
            self._prepare(manifest, origins)
        elif self._server.shows(manifest.id):
            self._server.layer(manifest.id).keep_origins(origins)
        else:
            # The last thing that a former server asked for: it came into the table after this one had adopted all.
            self._prepare(manifest, origins)
        with self._lock, self._mounting() as lock:
            target = self._root / manifest.id
            if manifest.id not in self.mounted():
                shown = self._server.show(manifest, origins)
                target.mkdir(mode=0o755, exist_ok=True)
                layer = self._server.layer(manifest.id)
                try:
                    check_superblock(self._server.beginning(manifest.id), manifest.layer)
                    with loop.attached_read_only(layer.path if layer.is_complete else shown) as device:
                        _mount(device, target, manifest.layer, lock)
                except BaseException:
                    self._server.hide(manifest.id)
                    target.rmdir()
                    raise
            return target

    @contextlib.contextmanager
    def _mounting(self) -> Iterator[int]:
        """Wait until nobody mounts any more whom a former server began, and yield the lock for who mounts now."""
        lock = os.open(self._root.parent / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock
        finally:
            os.close(lock)

    def _prepare(self, manifest: LayerManifest, origins: Sequence[str]) -> None:
        """Fetch the metadata of a layer without the lock, so that no other layer waits for this one's source."""
        try:
            self._server.show(manifest, origins)
        except DsecError:
            with self._lock:
                if manifest.id not in self.mounted():
                    self._server.hide(manifest.id)
            raise

    def adopt(
        self, manifest_of: Callable[[str], LayerManifest], *, serve: Callable[[], None] = _already
    ) -> tuple[str, ...]:
        """Serve the layers that a former server mounted and return their manifests' names. Called once, at the start.

        Reads are answered at once; then this waits until the former server has ended, whose last call may be one that
        waits for such a read, and adopts what that left. A layer whose manifest cannot be had stays mounted and fails
        its reads, since sandboxes use it; it is left out.

        Args:
            manifest_of: returns a manifest by its name, or raises `DsecError`.
            serve: starts or resumes the server, between showing the layers and letting devices read them.
        """
        with self._lock:
            # No source is asked before reads are answered: it may hang, and what is here can be read without it.
            before = self._show_mounted(self._server.cache.manifest)
            serve()
            self._server.take_cache()
            shown = self._show_mounted(manifest_of)
            for manifest_id in before - shown:
                self._server.hide(manifest_id)  # Unmounting it was the last thing that the former server did.
            devices = self._devices()
            for manifest_id in shown & devices.keys():
                layer = self._server.layer(manifest_id)
                file = layer.path if layer.is_complete else self._server.mount.target / manifest_id
                self._exchange(devices[manifest_id], file)
                self._server.bring_metadata_soon(manifest_id)
        return tuple(shown)

    def _show_mounted(self, manifest_of: Callable[[str], LayerManifest | None]) -> set[str]:
        """Show the layers that are mounted, without their metadata, which was here once and may have been lost; return
        those that are shown."""
        devices = self._devices()
        for manifest_id in devices:
            with contextlib.suppress(DsecError):
                manifest = None if self._server.shows(manifest_id) else manifest_of(manifest_id)
                if manifest is not None:
                    self._server.show_as_it_is(manifest)
        return {manifest_id for manifest_id in devices if self._server.shows(manifest_id)}

    def _exchange(self, device: str, file: Path) -> None:
        """Have a device read a file; one that does already does not wait for the reads that are under way."""
        if loop.backing_path(device) != str(file):
            loop.change_file(device, file)

    def unmount(self, manifest_id: str) -> bool:
        """Unmount a layer; return False when something of it is used: by a process, or through another mount of it, as
        an overlay's. Idempotent.
        """
        with self._lock:
            device = self._devices().get(manifest_id)
            if device is None:
                return False
            target = self._root / manifest_id
            try:
                mounts.unmount(target)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                return False
            if loop.is_released(device, within_s=_RELEASE_S):
                target.rmdir()
                self._server.hide(manifest_id)
                return True
            # Others read through the device: it must be found, and taken over, by whoever serves next.
            with self._mounting() as lock:
                _mount(device, target, manifest_id, lock)
            return False

    def verify(self, manifest_id: str, places: range | None = None) -> tuple[int, list[int]]:
        """Read what is here of a layer, mounted or not, or only of some chunks; forget what is not what its name says,
        so that it is fetched again when it is read. Return how much was read, and the numbers of what was forgotten.

        What the kernel has in its page cache it goes on using until `evict`.

        Raises:
            ObjectNotFoundError: nothing is cached of it.
        """
        with self._lock:
            device = self._devices().get(manifest_id)
        checked, bad = self._server.verify(manifest_id, places)
        if bad and device is not None:
            with self._lock:
                # The kernel may read the local file itself, where it would go on finding what was just forgotten.
                self._server.reopen(manifest_id)
                self._exchange(device, self._server.mount.target / manifest_id)
        return checked, bad

    def evict(self, manifest_id: str, bad: Sequence[int]) -> tuple[str, ...]:
        """Make the kernel read a layer again of which something rotted, after `verify`. What programs have mapped stays
        until they end (`dsec.linux.page_eviction`). May wait for sources. Idempotent.

        Args:
            manifest_id: name of its manifest.
            bad: what rotted.

        Returns:
            Paths of files in the layer, some of those of which something that rotted may still be cached.
        """
        with self._lock:
            device = self._devices().get(manifest_id)
        if device is None:
            return ()
        root, layer = self._root / manifest_id, self._server.layer(manifest_id)
        page_eviction.evict_device(device)
        page_eviction.evict_tree(root)
        if layer.holds_metadata(bad):
            page_eviction.evict_inodes()
        ranges = [range(place * CHUNK_BYTES, (place + 1) * CHUNK_BYTES) for place in bad if place != METADATA]
        return tuple(islice(page_eviction.still_cached(root, ranges), _NAMED))

    def mounted(self) -> frozenset[str]:
        """Return the names of the manifests whose layers are mounted now."""
        return frozenset(self._devices())

    def _devices(self) -> dict[str, str]:
        root = os.path.realpath(self._root)
        return {
            entry.target.rpartition("/")[2]: entry.source
            for entry in mounts.mounts_under(root)
            if entry.target != root and entry.kind == "erofs"
        }

    def _use_local_file(self, manifest_id: str) -> None:
        with self._lock:
            device = self._devices().get(manifest_id)
            # Still: something of it may have been found rotten since, and whoever found it was faster.
            if device is not None and self._server.layer(manifest_id).is_complete:
                self._exchange(device, self._server.layer(manifest_id).path)


def _mount(device: str, target: Path, layer: str, lock: int) -> None:
    """Mount a device in a process that inherits the lock.

    Raises:
        StateCorruptedError: it is no EROFS file.
        CapabilityMissingError: this host has no mount(8).
    """
    # Descriptors other than the lock are closed, so that a next server can open the cache while this one still mounts.
    try:
        done = subprocess.run(
            ["mount", "-i", "-n", "-t", "erofs", "-o", _OPTIONS, device, str(target)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            pass_fds=(lock,),
            check=False,
        )
    except FileNotFoundError as error:
        raise CapabilityMissingError("mount(8) is not installed", resolution="apt-get install mount") from error
    if done.returncode == _MOUNT_FAILED:
        raise StateCorruptedError(
            f"layer {layer} is not a sound EROFS file",
            detail=done.stderr.strip(),
            resolution="convert the image again: its chunks are what its manifest says, and that is no file system",
        )
    if done.returncode:
        raise OSError(errno.EIO, f"mount(8) ended with {done.returncode}: {done.stderr.strip()}", str(target))
