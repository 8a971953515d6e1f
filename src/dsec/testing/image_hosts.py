"""Several hosts' image stores in one directory, whose lazy layers come from one object store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dsec.images.lazy.serving.client import LayerDaemon
from dsec.images.lazy.serving.daemon_options import DaemonOptions
from dsec.images.store import LocalImageStore
from dsec.stores.objects_folder import FolderObjectStore
from dsec.testing.ended_layers import end_layers


class ImageHosts:
    """An object store, and hosts whose lazy layers come from it.

    Attributes:
        objects: the object store.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.objects = FolderObjectStore(root / "objects")
        self._stores: list[LocalImageStore] = []
        self._daemons: list[LayerDaemon] = []

    def host(self, name: str, *, in_use: Callable[[], frozenset[str] | None] = frozenset) -> LocalImageStore:
        """Open the image store of a host."""
        root = self._root / name
        daemon = LayerDaemon(root / "lazy", DaemonOptions(store_url=self.objects.url))
        store = LocalImageStore(root, lazy=daemon, layers_in_use=in_use)
        self._stores.append(store)
        self._daemons.append(daemon)
        return store

    def daemon(self) -> LayerDaemon:
        """Return the daemon of the host that was opened last."""
        return self._daemons[-1]

    def close(self) -> None:
        """End the daemons and unmount everything."""
        try:
            for store in self._stores:
                store.close()
        finally:
            end_layers(*(daemon.root for daemon in self._daemons))


@contextmanager
def image_hosts(root: Path) -> Iterator[ImageHosts]:
    """Have hosts in a directory for the duration of the block."""
    hosts = ImageHosts(root)
    try:
        yield hosts
    finally:
        hosts.close()
