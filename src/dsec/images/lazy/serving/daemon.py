"""The process that serves lazily loaded layers of one store, apart from the node, so that a node's end takes nothing
from its sandboxes.

Theory. Three processes (`keeping`). The *keeper* opens the FUSE mount and the socket, forks its *second*, which takes
its place when it is killed, and the *server*, and then only waits. When the server is killed, the keeper, which still
holds the connection to the kernel, forks another: it shows the same layers and has the kernel ask again what the dead
one had not answered (`FuseSession.resume`). Reads wait for some milliseconds, and none fails. Only when all three are
killed at once do reads fail, until somebody needs a layer and starts a new keeper, which takes the mounts over.

A killed server may be unable to end: a thread of its waits in the kernel for a read that the server owes. The keeper
does not wait for it. The next server answers that read, and has the cache once the dying one has ended
(`LazyMounts.adopt`). A new keeper finds the connection of such a one still open, and ends it.

A server that has nothing mounted, and is asked nothing for a minute, ends and its keepers with it.

Layout of `root`: ``keeper.lock``, ``serve.sock``, ``cache/`` (docs/formats/layer-cache.md), ``served/`` (FUSE),
``mounts/`` (the layers), ``shelf/`` and ``seeds/`` (for peers), ``touches/``, ``wishes/`` (what is to be brought),
``events.jsonl``, ``daemon.log``, ``seeder.log``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from functools import partial
from pathlib import Path

import msgspec

from dsec.base.errors import DsecError, InvalidRequestError
from dsec.images.durable import try_lock
from dsec.images.lazy.caching.cache import LayerCache, check_version
from dsec.images.lazy.collection.renewing import renew_pins
from dsec.images.lazy.origins import Origins
from dsec.images.lazy.peers.service import open_peer_side
from dsec.images.lazy.serving.daemon_options import DaemonOptions, read_options
from dsec.images.lazy.serving.daemon_wire import (
    Answer,
    Bring,
    Mount,
    Prefetch,
    Prune,
    Request,
    Restart,
    Statistics,
    Status,
    StopPrefetch,
    Touched,
    Unmount,
    Verify,
    receive,
    send,
)
from dsec.images.lazy.serving.fetching import LayerEvent
from dsec.images.lazy.serving.keeping import RESTART_STATUS, Keeping
from dsec.images.lazy.serving.layer_mounts import LazyMounts
from dsec.images.lazy.serving.server import LayerServer, LayerServerOptions, mount_below
from dsec.images.lazy.serving.wishes import Wishes
from dsec.images.lazy.tracing.touches import Touches
from dsec.images.staging import remove_tree
from dsec.linux.fuse import FuseMount
from dsec.linux.malloc import keep_freed_memory
from dsec.linux.mounts import unmount
from dsec.linux.processes import ProcessIdentity

_EVENTS_BYTES = 8 << 20
"""After so many, the file of events is put aside, in place of the one that was put aside before."""
_CONNECTIONS = 64
_BLOCK_BYTES, _FREE_BYTES, _ARENAS = 32 << 20, 64 << 20, 2
"""Of freed memory: up to which size of blocks, and how much of it, is kept, in how many heaps."""
_WISHES = "wishes"


def keep(root: Path) -> int:
    """Serve until SIGTERM; return an exit status. Returns at once where another keeper serves.

    The process that calls ends as soon as requests are taken, with status 0; it is a child of its that keeps.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = root / "keeper.lock"
    lock.touch(mode=0o600)
    lock_fd = try_lock(lock)
    if lock_fd is None:
        return 0
    if (root / "cache").exists():
        check_version(root / "cache")  # Here, where whoever starts us is told at once.
    listener = _listen(root)
    mount, left_over = mount_below(root / "served")
    Wishes(root / _WISHES).clear()  # Whoever wished may be gone as well, and its word with it.
    for path in left_over:
        # The keepers of these are dead, and a server that is still dying may be waiting for an answer of its own there.
        with contextlib.suppress(OSError):
            unmount(path, force=True)
    if keeper := os.fork():
        # By us, before whoever called goes on: it may want to end the keeper at once, and finds it by this.
        lock.write_text(str(ProcessIdentity.of(keeper)))
        os._exit(0)
    try:
        # Where memory is short it should end the server, which can be replaced, and not who replaces it.
        _bear_out_of_memory("-1000")
        return Keeping(lock, partial(_become_server, root, listener, mount, left_over, lock_fd)).run()
    finally:
        # Layers stay mounted, and fail their reads until the next keeper takes them over.
        mount.close()
        remove_tree(mount.target)
        os.close(lock_fd)


def _bear_out_of_memory(score: str) -> None:
    """Say how willingly this process is ended when memory is short (proc_pid_oom_score_adj(5)), where one may."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(score)


def _listen(root: Path) -> socket.socket:
    """Listen on a new socket; through the directory's descriptor, as a socket's path may have 107 bytes only."""
    listener = socket.socket(socket.AF_UNIX)
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        (root / "serve.sock").unlink(missing_ok=True)
        listener.bind(f"/proc/self/fd/{directory}/serve.sock")
    finally:
        os.close(directory)
    listener.listen(_CONNECTIONS)
    return listener


def _become_server(
    root: Path, listener: socket.socket, mount: FuseMount, left_over: tuple[Path, ...], lock_fd: int, is_first: bool
) -> None:
    """Serve in this forked process, which never returns from here."""
    status = 1
    try:
        # At once, while there is nothing to record: an exception that comes anywhere may be waited for by a thread.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.close(lock_fd)  # It says that a keeper lives, which must not wait for our end.
        _bear_out_of_memory("0")
        _serve(root, listener, mount, left_over, is_first=is_first)
    except SystemExit:
        status = 0
    except Exception:  # noqa: BLE001 - the last frame of a process: what it was goes to the log, and the keeper goes on.
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def _end_in_good_order(*_: object) -> None:
    """Leave `_serve`, wherever it is."""
    raise SystemExit


def _serve(
    root: Path, listener: socket.socket, mount: FuseMount, left_over: tuple[Path, ...], *, is_first: bool
) -> None:
    # Every chunk is decoded to new blocks of megabytes: mapped anew each time, that takes as long as the decoding.
    keep_freed_memory(block_bytes=_BLOCK_BYTES, free_bytes=_FREE_BYTES, arenas=_ARENAS)
    options = read_options(root)
    server = _server(root, options, mount)
    mounts = LazyMounts(root / "mounts", server)
    mounts.adopt(server.manifest, serve=server.start if is_first else server.resume)
    server.prefetch_again()
    for path in left_over:
        remove_tree(path)
    renew_pins(root.parent, lambda: _origins_of_mounted(server, mounts, options.store_url))
    door = _Door(server, mounts)
    listener.settimeout(options.idle_s)
    signal.signal(signal.SIGTERM, _end_in_good_order)
    try:
        _answer_until_nobody_needs_us(listener, door, mounts)
    finally:
        server.flush()


def _answer_until_nobody_needs_us(listener: socket.socket, door: _Door, mounts: LazyMounts) -> None:
    answering: list[threading.Thread] = []
    while True:
        answering = [thread for thread in answering if thread.is_alive()]
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            if mounts.mounted() or answering:
                continue
            raise SystemExit from None  # Whoever needs us starts another.
        answering.append(threading.Thread(target=door.answer, args=(connection,), daemon=True))
        answering[-1].start()


def _origins_of_mounted(server: LayerServer, mounts: LazyMounts, store_url: str) -> dict[str, tuple[str, ...]]:
    known = ((name, server.cache.origins(name)) for name in mounts.mounted())
    return {name: origins or (store_url,) for name, origins in known if origins is not None}


def _server(root: Path, options: DaemonOptions, mount: FuseMount) -> LayerServer:
    cache = LayerCache(root / "cache", limit_bytes=options.cache_limit_bytes, as_guest=True)
    events = EventFile(root / "events.jsonl")
    behaviour = LayerServerOptions(
        on_event=events.add,
        touches=Touches(root / "touches"),
        prefetch=options.prefetch,
        wishes=Wishes(root / _WISHES),
    )
    neighbours = None if options.peers is None else partial(open_peer_side, root, options.peers, events.add)
    return LayerServer(cache, mount, options=behaviour, origins=Origins(options.store_url), neighbours=neighbours)


class EventFile:
    """Layer events, a JSON object a line; the oldest go when there are too many.

    Args:
        path: the file.
        limit_bytes: from this size on it is put aside, as ``<name>.1``.
    """

    def __init__(self, path: Path, limit_bytes: int = _EVENTS_BYTES) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()

    def add(self, event: LayerEvent) -> None:
        """Write an event; where the disk is full it is lost."""
        line = msgspec.json.encode({"wall_s": time.time(), **msgspec.to_builtins(event)}) + b"\n"
        with self._lock, contextlib.suppress(OSError):
            with self._path.open("ab", buffering=0) as file:
                file.write(line)
                size = file.tell()
            if size > self._limit_bytes:
                self._path.rename(self._path.with_name(self._path.name + ".1"))


class _Door:
    """Answers requests: one a connection."""

    def __init__(self, server: LayerServer, mounts: LazyMounts) -> None:
        self._server = server
        self._mounts = mounts

    def answer(self, connection: socket.socket) -> None:
        """Read a request from a connection and answer it. A client that goes away is nobody's trouble."""
        with connection, contextlib.suppress(OSError):
            try:
                answer = self._answered(msgspec.json.decode(receive(connection), type=Request))
            except msgspec.MsgspecError as error:
                answer = Answer.of(InvalidRequestError("that is no request", detail=str(error)))
            except DsecError as error:
                answer = Answer.of(error)
            send(connection, answer)

    def _answered(self, request: Request) -> Answer:
        if isinstance(request, Mount):
            file = Path(request.file) if request.file else None
            manifest = self._server.manifest(request.manifest, origins=request.origins, file=file)
            return Answer(path=str(self._mounts.ensure(manifest, request.origins)))
        if isinstance(request, Bring):
            return self._brought(request)
        if isinstance(request, Restart):
            self._server.flush()
            os._exit(RESTART_STATUS)
        if isinstance(request, Unmount):
            return Answer(done=self._mounts.unmount(request.manifest))
        if isinstance(request, Verify):
            return self._verified(request)
        if isinstance(request, Prune):
            layers, freed_bytes = self._server.cache.prune(frozenset(request.keep), dry_run=request.dry_run)
            return Answer(pieces=layers, here_bytes=freed_bytes)
        if isinstance(request, Status):
            return self._status()
        return self._about_reads(request)

    def _verified(self, request: Verify) -> Answer:
        places = range(request.first, request.first + request.count)
        checked, bad = self._mounts.verify(request.manifest, places)
        mapped: tuple[str, ...] = ()
        if bad:
            try:
                if request.repair:
                    self._server.bring(request.manifest, bad)
                    self._server.flush()
            finally:
                mapped = self._mounts.evict(request.manifest, bad)
        manifest = self._server.cache.manifest(request.manifest)
        is_all = manifest is None or places.stop >= len(manifest.chunks)
        return Answer(pieces=checked, bad=tuple(bad), mapped=mapped, done=is_all)

    def _brought(self, request: Bring) -> Answer:
        file = Path(request.file) if request.file else None
        manifest = self._server.manifest(request.manifest, origins=request.origins, file=file)
        brought = self._server.bring_whole(manifest, request.origins, within_s=request.within_s)
        if brought is None:
            return Answer()
        path = "" if brought.path is None else str(brought.path)
        return Answer(done=True, here_bytes=brought.here_bytes, path=path)

    def _about_reads(self, request: Prefetch | StopPrefetch | Statistics | Touched) -> Answer:
        if isinstance(request, Prefetch):
            self._server.prefetch(request)
            return Answer(progress=self._server.prefetch_progress(request.owner))
        if isinstance(request, StopPrefetch):
            return Answer(done=self._server.stop_prefetch(request.owner))
        if isinstance(request, Touched):
            return Answer(touches=self._server.touched(request.manifest))
        uses = (self._server.use(manifest_id) for manifest_id in request.manifests)
        progress = self._server.prefetch_progress(request.owner) if request.owner else None
        return Answer(uses=tuple(use for use in uses if use is not None), progress=progress)

    def _status(self) -> Answer:
        self._server.settle()
        return Answer(
            mounted=tuple(sorted(self._mounts.mounted())),
            fetched_bytes=self._server.fetched_bytes,
            cached_bytes=self._server.cache.statistics().content_bytes,
            pid=os.getpid(),
            keeper_pid=os.getppid(),
            peers=self._server.peers_report(),
        )


def main(arguments: list[str]) -> int:
    """Keep the daemon of a directory that has its options: ``python -m dsec.images.lazy.serving.daemon ROOT``."""
    (root,) = arguments
    return keep(Path(root))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
