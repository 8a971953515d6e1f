"""What a layer daemon is started with: a file in its directory, written by whoever starts it and read by each server
that its keeper forks.

A daemon outlives nodes, so that one started by yesterday's settings may serve a node of today's. Whoever finds other
options in the file than its own writes its own and has the server replaced (`LayerDaemon.configure`), which costs no
read anything.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from dsec.base.errors import StateCorruptedError
from dsec.distribution.prefetch import PrefetchSettings
from dsec.images.durable import write_atomically
from dsec.images.lazy.caching.cache import DEFAULT_LIMIT_BYTES
from dsec.images.lazy.peers.settings import PeerSettings

_FILE = "options.json"


class DaemonOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a layer daemon behaves (docs/formats/layer-daemon.md). Readable by its owner only.

    Attributes:
        store_url: the object store of layers that name no origin.
        cache_limit_bytes: bound on content bytes of its cache.
        idle_s: how long it goes on without a mounted layer.
        prefetch: how chunks are brought before they are read.
        peers: how chunks are given to other nodes and taken from them; None: they are not.
    """

    store_url: str
    cache_limit_bytes: int = DEFAULT_LIMIT_BYTES
    idle_s: float = 60.0
    prefetch: PrefetchSettings = PrefetchSettings()
    peers: PeerSettings | None = None


def write_options(root: Path, options: DaemonOptions) -> None:
    """Keep the options of the daemon of a directory. Raises `OSError`."""
    write_atomically(root / _FILE, msgspec.json.encode(options))


def read_options(root: Path) -> DaemonOptions:
    """Return the options of the daemon of a directory.

    Raises:
        StateCorruptedError: there are none, or not of this version.
    """
    path = root / _FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=DaemonOptions)
    except (FileNotFoundError, msgspec.MsgspecError) as error:
        raise StateCorruptedError(
            f"{path} is no file of options of a layer daemon", detail=str(error), resolution="remove it"
        ) from error
