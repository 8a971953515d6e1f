"""Wait until lazy layers that nobody uses are unmounted, which a copy in another mount namespace may delay."""

from __future__ import annotations

import time

from dsec.images.lazy.client import LayerDaemon
from dsec.images.store import LocalImageStore

_LONGEST_S = 60.0


def release_all(store: LocalImageStore, daemon: LayerDaemon) -> None:
    """Release the layers of a store of which nothing is used, and fail where that does not come about."""
    deadline = time.monotonic() + _LONGEST_S
    store.release()
    while daemon.mounted():
        assert time.monotonic() < deadline, "some lazy layer stays mounted"
        store.release()
