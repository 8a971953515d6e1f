"""Speak to the daemon that serves layers, starting it where none runs."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from dsec.base.errors import NodeUnavailableError, StateCorruptedError
from dsec.distribution.prefetch import PrefetchProgress
from dsec.images.durable import try_lock
from dsec.images.layer_mounts import Brought, LazyLayers, NoLazyLayers
from dsec.images.lazy.caching.cache import check_version
from dsec.images.lazy.serving.daemon_options import DaemonOptions, read_options, write_options
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
from dsec.images.lazy.tracing.touches import LayerUse, Touch
from dsec.linux.mounts import mounts_under
from dsec.linux.processes import ProcessIdentity, has_ended
from dsec.linux.userns import is_host_root

_START_TIMEOUT_S = 30.0
_ANSWER_TIMEOUT_S = 120.0
_POLL_S = 0.02
_LOOK_S = 0.5
_LOG_TAIL_BYTES = 2000
_END_TIMEOUT_S = 10.0
_VERIFIED_AT_ONCE = 256
"""Chunks: 1 GiB."""
LAZY = "lazy"
"""Name of the daemon's directory in an image store."""


def _never() -> bool:
    """Nobody expects anything."""
    return False


def _untold(chunks: int) -> None:
    """Tell nobody."""


class LayerDaemon:
    """The daemon of one directory. Its methods block; they may be called from any thread and process.

    Args:
        root: its directory.
        options: what it is started with, should it not run.
    """

    def __init__(self, root: Path, options: DaemonOptions) -> None:
        self.root = root
        self._options = options
        self._stay_again_s = 0.0

    def mount(self, manifest_id: str, *, origins: Sequence[str] = (), file: Path | None = None) -> Path:
        """Make a layer readable and return where; costs a round trip when it is mounted already. Idempotent.

        Args:
            manifest_id: name of its manifest.
            origins: where its chunks can be had; none: where they were had before, or else in the daemon's store.
            file: that has the manifest; None: an origin has it.

        Raises:
            ObjectNotFoundError: no origin has its manifest.
            StoreUnavailableError, StateCorruptedError: its manifest or metadata cannot be had.
            NodeUnavailableError: no daemon answers, and none can be started.
        """
        request = Mount(manifest=manifest_id, origins=tuple(origins), file="" if file is None else str(file))
        return Path(self._ask(request).path)

    def bring(self, manifest_id: str, *, origins: Sequence[str], file: Path, within_s: float) -> Brought | None:
        """Fetch for a while what is missing of a layer, mounted or not.

        Returns:
            How much of it is here. None: the cache is too small for it.

        Raises:
            HostDiskFullError: no room for it.
            ObjectNotFoundError, StoreUnavailableError, StateCorruptedError: a chunk cannot be had.
            NodeUnavailableError: no daemon answers, and none can be started.
        """
        request = Bring(manifest=manifest_id, origins=tuple(origins), file=str(file), within_s=within_s)
        answer = self._ask(request)
        if not answer.done:
            return None
        return Brought(here_bytes=answer.here_bytes, path=Path(answer.path) if answer.path else None)

    def unmount(self, manifest_id: str) -> bool:
        """Unmount a layer; return False when something of it is open."""
        return self._ask(Unmount(manifest=manifest_id)).done

    def verify(
        self,
        manifest_id: str,
        *,
        repair: bool = False,
        origins: Sequence[str] = (),
        file: Path | None = None,
        progress: Callable[[int], None] = _untold,
    ) -> Answer:
        """Read what is cached of a layer, mounting it first; forget what rotted, and with `repair` fetch it again.

        Args:
            manifest_id: name of its manifest.
            repair: fetch again what rotted.
            origins, file: as of `mount`.
            progress: told how many chunks were looked at.
        """
        try:
            self.mount(manifest_id, origins=origins, file=file)
        except StateCorruptedError:
            # It may be what is cached of it that keeps it from being mounted.
            if not (found := self._verified(manifest_id, repair, progress)).bad:
                raise
            return found
        return self._verified(manifest_id, repair, progress)

    def forget_rotten(self, manifest_id: str) -> bool:
        """Read what is cached of a layer, mounted or not, and forget what rotted; return whether anything did."""
        return bool(self._verified(manifest_id, False, _untold).bad)

    def _verified(self, manifest_id: str, repair: bool, progress: Callable[[int], None]) -> Answer:
        # By the part, so that no answer has to wait for a slow disk to be read from end to end.
        first, pieces = -1, 0
        bad: tuple[int, ...] = ()
        mapped: tuple[str, ...] = ()
        while True:
            answer = self._ask(Verify(manifest=manifest_id, repair=repair, first=first, count=_VERIFIED_AT_ONCE))
            pieces, bad, first = pieces + answer.pieces, bad + answer.bad, first + _VERIFIED_AT_ONCE
            mapped = tuple(dict.fromkeys((*mapped, *answer.mapped)))
            progress(first)
            if answer.done:
                return msgspec.structs.replace(answer, pieces=pieces, bad=bad, mapped=mapped)

    def revive(self) -> None:
        """Start the daemon where layers are mounted and it was killed; while it lives this costs a look at its lock.

        One with peers is kept running for them, whether or not anything is mounted here.
        """
        if self._options.peers is not None:
            self.stay()
        elif (self.root / "keeper.lock").exists() and not self._keeps_lock() and self.mounted():
            with contextlib.suppress(NodeUnavailableError):
                self.status()

    def stay(self) -> None:
        """Have the daemon run although nothing is mounted; called now and then. The first to need a layer would wait
        for half a second until it has started.
        """
        if time.monotonic() < self._stay_again_s and self._keeps_lock():
            return
        self._stay_again_s = time.monotonic() + self._options.idle_s / 3
        with contextlib.suppress(NodeUnavailableError):
            self.configure()  # Somebody without peers may have started it.
            self.status()

    def mounted(self) -> frozenset[str]:
        """Return the names of the manifests of all layers that are mounted, whether or not a daemon runs."""
        return frozenset(
            entry.target.rpartition("/")[2] for entry in mounts_under(self.root / "mounts") if entry.kind == "erofs"
        )

    def configure(self) -> None:
        """Have a daemon that was started with other options go on with ours. Costs a look at a file when they are ours.

        Raises:
            NodeUnavailableError: it runs and does not answer.
        """
        if not self._keeps_lock():
            return
        with contextlib.suppress(StateCorruptedError):
            if read_options(self.root) == self._options:
                return
        write_options(self.root, self._options)
        with contextlib.suppress(ConnectionError, FileNotFoundError, _ServerGoneError):
            self._asked(Restart()).checked()

    def _keeps_lock(self) -> bool:
        """Whether a keeper lives."""
        return _is_kept(self.root)

    def prefetch(self, request: Prefetch) -> PrefetchProgress:
        """Have chunks of mounted layers brought before they are read, and return at once.

        Raises:
            InvalidRequestError: it names what does not exist.
        """
        return self._ask(request).progress or PrefetchProgress()

    def stop_prefetch(self, owner: str) -> bool:
        """Have nothing more brought on somebody's behalf; return whether anything was to be."""
        return self._ask(StopPrefetch(owner=owner)).done

    def statistics(self, manifests: Sequence[str]) -> tuple[LayerUse, ...]:
        """Say what came of layers and what of it was read; those of which nothing is here are left out."""
        return self._ask(Statistics(manifests=tuple(manifests))).uses

    def prefetch_progress(self, owner: str) -> PrefetchProgress:
        """Say how far a prefetch is; one that is not known (any more) is over."""
        return self._ask(Statistics(owner=owner)).progress or PrefetchProgress()

    def touched(self, manifest_id: str) -> tuple[Touch, ...]:
        """Say which chunks of a layer were read, in the order of their first reads."""
        return self._ask(Touched(manifest=manifest_id)).touches

    def prune(self, keep: Collection[str], *, dry_run: bool = False) -> tuple[int, int]:
        """Have the cache give up layers that are not mounted, other than those to keep.

        Returns:
            How many those are, and their content bytes.
        """
        answer = self._ask(Prune(keep=tuple(sorted(keep)), dry_run=dry_run))
        return answer.pieces, answer.here_bytes

    def status(self) -> Answer:
        """Say what it serves."""
        return self._ask(Status())

    def _ask(self, request: Request) -> Answer:
        """Ask; a server that was killed meanwhile is asked again, which is safe as every request is idempotent."""
        deadline = math.inf
        while True:
            try:
                return self._asked(request).checked()
            except (ConnectionError, BlockingIOError, FileNotFoundError, _ServerGoneError):
                # From the first failure on: a server that was killed may have kept us waiting before.
                deadline = min(deadline, time.monotonic() + _START_TIMEOUT_S)
                if time.monotonic() > deadline or not self._is_started():
                    raise self._not_there() from None
                time.sleep(_POLL_S)

    def _asked(self, request: Request) -> Answer:
        directory = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_ANSWER_TIMEOUT_S)
                connection.connect(f"/proc/self/fd/{directory}/serve.sock")
                send(connection, request)
                self._wait_for_answer(connection)
                try:
                    return msgspec.json.decode(receive(connection), type=Answer)
                except (NodeUnavailableError, msgspec.MsgspecError) as error:
                    raise _ServerGoneError from error
        except TimeoutError as error:
            raise self._not_there() from error
        finally:
            os.close(directory)

    def _wait_for_answer(self, connection: socket.socket) -> None:
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        waiting = select.poll()  # Not select(2), which takes no descriptor above 1023.
        waiting.register(connection, select.POLLIN)
        while not waiting.poll(_LOOK_S * 1000):
            if not self._keeps_lock():
                # Killed with its server, which may be unable to end, and keeps the connection until it does.
                raise _ServerGoneError
            if time.monotonic() > deadline:
                raise TimeoutError

    def _is_started(self) -> bool:
        """Start a keeper, in a session of its own, and wait until it takes requests; one that finds another leaves."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._keeps_lock():
            write_options(self.root, self._options)
        with (self.root / "daemon.log").open("ab") as log:
            started = subprocess.run(
                [sys.executable, "-m", "dsec.images.lazy.serving.daemon", str(self.root)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                check=False,
            )
        return started.returncode == 0

    def _not_there(self) -> NodeUnavailableError:
        if (self.root / "cache").exists():
            check_version(self.root / "cache")
        log = self.root / "daemon.log"
        tail = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace") if log.exists() else ""
        return NodeUnavailableError(
            f"the layer daemon of {self.root} does not answer", detail=tail, resolution=f"look into {log}"
        )


class _ServerGoneError(Exception):
    """The server ended before it answered."""


def running_daemon(root: Path) -> LayerDaemon | None:
    """Return the daemon of a directory if it runs, without starting it.

    Raises:
        StateCorruptedError: it has no options that can be read.
    """
    return LayerDaemon(root, read_options(root)) if _is_kept(root) else None


def _is_kept(root: Path) -> bool:
    """Whether the keeper of a directory lives."""
    lock = root / "keeper.lock"
    if not lock.exists():
        return False
    descriptor = try_lock(lock)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def lazy_layers(images: Path, options: DaemonOptions) -> LazyLayers:
    """Return who mounts the lazy layers of an image store: its daemon, which needs root.

    Args:
        images: directory of the image store.
        options: of the daemon, for when it is started.
    """
    return LayerDaemon(images.absolute() / LAZY, options) if is_host_root() else NoLazyLayers()


@contextlib.contextmanager
def looked_after(
    lazy: LazyLayers, is_expected: Callable[[], bool] = _never, interval_s: float = 0.25
) -> Iterator[None]:
    """Give who serves lazy layers our options, and revive it whenever it was killed, for the duration of the block.

    It is the node that does so: whoever else needs layers takes the daemon as it is.

    Args:
        lazy: who serves them.
        is_expected: whether somebody may need one any time, so that it is kept running; called every `interval_s`.
        interval_s: how often it is looked at.
    """
    ended = threading.Event()

    def configure() -> None:
        if isinstance(lazy, LayerDaemon):
            with contextlib.suppress(NodeUnavailableError):  # It does not answer: whoever needs a layer is told.
                lazy.configure()

    configure()

    def look() -> None:
        while not ended.wait(interval_s):
            with contextlib.suppress(OSError):  # Out of descriptors or memory at the moment: it looks again.
                configure()  # A command may have started it meanwhile, which does not know what this node is set to.
                lazy.revive()
                if isinstance(lazy, LayerDaemon) and is_expected():
                    lazy.stay()

    thread = threading.Thread(target=look, name="lazy-layers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def end_daemon(root: Path) -> None:
    """End the daemon of a directory, if one runs, and wait until it has. What is mounted stays and fails its reads."""
    lock = root / "keeper.lock"
    deadline = time.monotonic() + _END_TIMEOUT_S
    # Again where the keeper was killed just now, and its second is the keeper.
    while _is_kept(root) and time.monotonic() < deadline:
        keeper = ProcessIdentity.parse(lock.read_text())
        process = None if keeper is None else keeper.open()
        if process is None:
            time.sleep(_POLL_S)
            continue
        try:
            signal.pidfd_send_signal(process, signal.SIGTERM)
            select.select([process], [], [], _END_TIMEOUT_S)
        except ProcessLookupError:
            pass
        finally:
            os.close(process)


def kill_daemon(daemon: LayerDaemon) -> None:
    """Kill all processes of a running daemon at one instant, so that none replaces another, and wait until they are
    gone: for whoever tries what happens then.
    """
    status = daemon.status()
    children = Path(f"/proc/{status.keeper_pid}/task/{status.keeper_pid}/children").read_text().split()
    processes = [each for pid in (status.keeper_pid, *map(int, children)) if (each := ProcessIdentity.of(pid))]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            process.send(number)
    deadline = time.monotonic() + _END_TIMEOUT_S
    while not all(has_ended(process.pid) for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
