"""What a layer daemon is asked and answers: one JSON line each way, one exchange a connection, over a unix socket."""

from __future__ import annotations

import socket

import msgspec

from dsec.base.errors import DsecError, NodeUnavailableError, error_from_code
from dsec.distribution.prefetch import PrefetchProgress
from dsec.images.lazy.peers.report import PeersReport
from dsec.images.lazy.tracing.touches import LayerUse, Touch

_MAXIMUM_LINE_BYTES = 1 << 20


class _Tagged(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="op"):
    pass


class Mount(_Tagged, frozen=True, tag="mount"):
    """Make a layer readable.

    Attributes:
        manifest: name of its manifest.
        origins: where its chunks can be had (`dsec.images.lazy.origins`); none: where they were had before, or else in
            the daemon's store.
        file: path of a file of this host that has the manifest; empty, or it is gone: an origin has it.
    """

    manifest: str
    origins: tuple[str, ...] = ()
    file: str = ""


class Bring(_Tagged, frozen=True, tag="bring"):
    """Fetch for a while what is missing of a layer, mounted or not.

    Attributes:
        manifest, origins, file: as of `Mount`.
        within_s: for how long.
    """

    manifest: str
    origins: tuple[str, ...] = ()
    file: str = ""
    within_s: float = 1.0


class Unmount(_Tagged, frozen=True, tag="unmount"):
    """Unmount a layer.

    Attributes:
        manifest: name of its manifest.
    """

    manifest: str


class Restart(_Tagged, frozen=True, tag="restart"):
    """Record what was fetched and let another server, which reads its options anew, take this one's place."""


class Verify(_Tagged, frozen=True, tag="verify"):
    """Read what is cached of a layer, and forget what is not what its name says.

    Attributes:
        manifest: name of its manifest.
        repair: fetch again what was forgotten.
        first, count: which chunks; -1 is the metadata.
    """

    manifest: str
    repair: bool = False
    first: int = -1
    count: int = 1 << 30


class Prune(_Tagged, frozen=True, tag="prune"):
    """Take from the cache the layers that are not mounted and not needed.

    Attributes:
        keep: names of the manifests of those that are needed.
        dry_run: only say how many those are.
    """

    keep: tuple[str, ...]
    dry_run: bool = False


class Status(_Tagged, frozen=True, tag="status"):
    """Tell what is served."""


class Prefetch(_Tagged, frozen=True, tag="prefetch"):
    """Bring chunks that somebody will probably read, in place of what was to be brought for it before.

    Attributes:
        owner: on whose behalf: the id of a sandbox, or another name.
        layers: names of the manifests of mounted layers; others are passed over.
        steps: the current step and later ones, each runs of chunks in the order in which they will be read: the place
            of a layer in `layers`, the first chunk, and how many.
        is_limited: whether it keeps to the budget.
    """

    owner: str
    layers: tuple[str, ...]
    steps: tuple[tuple[tuple[int, int, int], ...], ...]
    is_limited: bool = True


class StopPrefetch(_Tagged, frozen=True, tag="stop_prefetch"):
    """Bring nothing more on somebody's behalf.

    Attributes:
        owner: whose.
    """

    owner: str


class Statistics(_Tagged, frozen=True, tag="statistics"):
    """Tell what came of layers, what of it was read, and how far a prefetch is.

    Attributes:
        manifests: names of the layers' manifests; those that the cache does not know are left out.
        owner: whose prefetch; empty: nobody's.
    """

    manifests: tuple[str, ...] = ()
    owner: str = ""


class Touched(_Tagged, frozen=True, tag="touched"):
    """Tell which chunks of a layer were read, in order.

    Attributes:
        manifest: name of its manifest.
    """

    manifest: str


Request = Mount | Bring | Unmount | Restart | Verify | Prune | Status | Prefetch | StopPrefetch | Statistics | Touched


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a request.

    Attributes:
        path: where a layer is mounted; or, to `Bring`, its file, if all of it is here.
        done: whether it was unmounted; False: something of it is open. To `Bring`: whether the cache has room for it.
            To `Verify`: whether there are no chunks after those.
        here_bytes: content bytes of a layer that are here; to `Prune`, of what was taken away.
        pieces: chunks, and metadata, that were read; to `Prune`, layers that were taken away.
        bad: numbers of those that were forgotten; -1 is the metadata.
        mapped: files, some of those of which the kernel may still have what rotted, since programs have them mapped.
        mounted: names of the manifests of all mounted layers.
        fetched_bytes: content bytes that came from sources, since this server began.
        cached_bytes: content bytes of the cache.
        pid, keeper_pid: of the server, and of the process that waits for it.
        peers: what was taken from peers and given to them; None: it has none.
        uses: what came of layers.
        progress: how far a prefetch is.
        touches: the chunks that were read.
        error, brief, detail, resolution: code and words of an error; empty: none.
    """

    path: str = ""
    done: bool = False
    here_bytes: int = 0
    pieces: int = 0
    bad: tuple[int, ...] = ()
    mapped: tuple[str, ...] = ()
    mounted: tuple[str, ...] = ()
    fetched_bytes: int = 0
    cached_bytes: int = 0
    pid: int = 0
    keeper_pid: int = 0
    peers: PeersReport | None = None
    uses: tuple[LayerUse, ...] = ()
    progress: PrefetchProgress | None = None
    touches: tuple[Touch, ...] = ()
    error: str = ""
    brief: str = ""
    detail: str = ""
    resolution: str = ""

    @classmethod
    def of(cls, error: DsecError) -> Answer:
        """Return the answer that says an error."""
        return cls(error=error.code, brief=error.brief, detail=error.detail, resolution=error.resolution)

    def checked(self) -> Answer:
        """Return this answer, or raise the error that it says."""
        if self.error:
            raise error_from_code(self.error, self.brief, detail=self.detail, resolution=self.resolution)
        return self


def send(connection: socket.socket, message: Request | Answer) -> None:
    """Send a message. Raises `OSError`."""
    connection.sendall(msgspec.json.encode(message) + b"\n")


def receive(connection: socket.socket) -> bytes:
    """Return the line that comes.

    Raises:
        NodeUnavailableError: the other side ended before it had said all, or says too much.
    """
    data = b""
    while not data.endswith(b"\n"):
        more = connection.recv(65_536)
        if not more or len(data) > _MAXIMUM_LINE_BYTES:
            raise NodeUnavailableError("the layer daemon ended in the middle of an answer", resolution="ask again")
        data += more
    return data
