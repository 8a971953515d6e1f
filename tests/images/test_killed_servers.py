"""Servers of layers that are killed while a call of theirs waits, in the kernel, for a read that they owe."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from dsec.images import erofs
from dsec.images.lazy.publication.conversion import LayerFile, publish
from dsec.images.lazy.serving.client import LayerDaemon, end_daemon, kill_daemon
from dsec.images.lazy.serving.daemon_options import DaemonOptions, write_options
from dsec.linux import mounts
from dsec.linux.processes import has_ended
from dsec.stores.objects_folder import FolderObjectStore
from dsec.testing.ended_layers import layers_ended

pytestmark = [pytest.mark.root, pytest.mark.slow]

_ROUNDS = int(os.environ.get("DSEC_KILL_ROUNDS", "3"))
_FILES = 4
_SOON_S = 30.0
"""Far below the two minutes after which the kernel gives a server up, and long for a busy host."""
_MOMENT_S = 3.0

_DAEMON = """
import sys
from pathlib import Path
from dsec.images.lazy.serving import daemon
from dsec.linux.fuse import ReadRequest

root = Path(sys.argv[1])
answer = ReadRequest.answer
ReadRequest.answer = lambda *given: None if (root / "hold").exists() else answer(*given)
sys.exit(daemon.main([str(root)]))
"""
"""A daemon that does not answer reads while it is told to hold them."""


@dataclass
class _Held:
    """A layer of a daemon that holds reads."""

    daemon: LayerDaemon
    manifest: str
    url: str
    contents: dict[str, bytes]
    pool: ThreadPoolExecutor

    @property
    def target(self) -> Path:
        return self.daemon.root / "mounts" / self.manifest

    def hold(self) -> None:
        (self.daemon.root / "hold").touch()

    def let_go(self) -> None:
        (self.daemon.root / "hold").unlink(missing_ok=True)

    def read(self, name: str) -> Future[bytes]:
        return self.pool.submit((self.target / name).read_bytes)

    def bring_all(self) -> Future[object]:
        """Have the layer become whole, upon which its device is given the local file."""
        file = Path("/nonexistent")
        return self.pool.submit(
            lambda: self.daemon.bring(self.manifest, origins=[self.url], file=file, within_s=_SOON_S)
        )

    def backing_file(self) -> str:
        (device,) = (entry.source for entry in mounts.mounts_under(self.target))
        return Path(f"/sys/block/{device.removeprefix('/dev/')}/loop/backing_file").read_text().strip()


@dataclass(frozen=True)
class _Published:
    """A layer in a folder."""

    url: str
    manifest: str
    contents: dict[str, bytes]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> _Published:
    root, chance = tmp_path_factory.mktemp("published"), random.Random(3)
    contents = {f"large-{number}": chance.randbytes(3 << 20) for number in range(_FILES)}
    (root / "tree").mkdir()
    for name, content in contents.items():
        (root / "tree" / name).write_bytes(content)
    erofs.make(root / "tree", root / "layer.erofs")
    store = FolderObjectStore(root / "store")
    file = LayerFile(root / "layer.erofs", "sha256:" + "ab" * 32, _FILES + 1)
    return _Published(store.url, anyio.run(publish, file, store).manifest, contents)


@pytest.fixture
def held(tmp_path: Path, published: _Published) -> Iterator[_Held]:
    root, options = tmp_path / "lazy", DaemonOptions(store_url=published.url)
    root.mkdir(mode=0o700)
    write_options(root, options)
    with layers_ended(root), ThreadPoolExecutor(3) as pool:
        with (tmp_path / "log").open("wb") as log:
            subprocess.run([sys.executable, "-c", _DAEMON, str(root)], check=True, stdout=log, stderr=log)
        held = _Held(LayerDaemon(root, options), published.manifest, published.url, published.contents, pool)
        held.daemon.mount(held.manifest)
        try:
            yield held
        finally:
            held.let_go()
            _kill(held.daemon.status().pid)  # What it never answered its successor does.


def _dropped(path: Path) -> None:
    """Have the kernel forget what it has cached of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _wait_for(is_so: Callable[[], object]) -> None:
    assert _comes_to_be(is_so, _SOON_S)


def _comes_to_be(is_so: Callable[[], object], within_s: float) -> bool:
    ends_s = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.01)
    return True


def _with_read_under_way(held: _Held) -> Future[bytes]:
    """Let a program read what is here, and no answer come."""
    assert held.read("large-0").result() == held.contents["large-0"]
    _dropped(held.target / "large-0")
    held.hold()
    return held.read("large-0")


def _hangs(server: int) -> bool:
    """Whether a thread waits and hears no signal, now and in a moment."""
    waiting = _deaf(server)
    time.sleep(0.1)
    return not waiting.isdisjoint(_deaf(server))


def _deaf(server: int) -> set[str]:
    found = set()
    for task in Path(f"/proc/{server}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # It ended meanwhile.
            if (task / "stat").read_text().rpartition(")")[2].split()[0] == "D":
                found.add(task.name)
    return found


def _kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _replaced(held: _Held, server: int) -> None:
    """A server that could not end has, and another serves."""
    _wait_for(lambda: has_ended(server))
    assert held.daemon.status().pid != server


@pytest.mark.parametrize("is_asked_to", [False, True])
def test_a_server_that_ends_while_it_exchanges_a_file_is_followed_at_once(held: _Held, is_asked_to: bool) -> None:
    reading = _with_read_under_way(held)
    bringing = held.bring_all()
    status = held.daemon.status()
    server = status.pid
    _wait_for(lambda: _hangs(server))
    held.let_go()
    if is_asked_to:
        LayerDaemon(held.daemon.root, DaemonOptions(store_url=held.url, idle_s=61)).configure()
    else:
        _kill(server)
    assert reading.result(_SOON_S) == held.contents["large-0"]
    bringing.result(_SOON_S)
    _replaced(held, server)
    _wait_for(lambda: held.backing_file().endswith(f"/cache/{held.manifest}/data"))
    for name, content in held.contents.items():
        assert (held.target / name).read_bytes() == content
    assert held.daemon.status().keeper_pid == status.keeper_pid


def test_a_server_that_is_killed_while_it_unmounts_is_followed_at_once(held: _Held) -> None:
    held.read("large-0").result()
    _dropped(held.target / "large-0")
    held.hold()
    with (held.target / "large-0").open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
    server = held.daemon.status().pid
    unmounting = held.pool.submit(held.daemon.unmount, held.manifest)
    if not _comes_to_be(lambda: _hangs(server), _MOMENT_S):
        pytest.skip("somebody else had the mount for a moment, and ends it in place of the server")
    held.let_go()
    _kill(server)
    unmounting.result(_SOON_S)
    _replaced(held, server)
    assert held.daemon.status().mounted == ()
    assert (held.daemon.mount(held.manifest) / "large-0").read_bytes() == held.contents["large-0"]


def test_when_keeper_and_server_are_killed_in_an_exchange_no_read_fails_either(held: _Held) -> None:
    reading = _with_read_under_way(held)
    bringing = held.bring_all()
    status = held.daemon.status()
    _wait_for(lambda: _hangs(status.pid))
    held.let_go()
    _kill(status.keeper_pid, status.pid)
    assert reading.result(_SOON_S) == held.contents["large-0"]
    bringing.result(_SOON_S)
    _replaced(held, status.pid)


def test_when_all_are_killed_in_an_exchange_the_next_keeper_does_not_wait_either(held: _Held) -> None:
    reading = _with_read_under_way(held)
    bringing = held.bring_all()
    server = held.daemon.status().pid
    _wait_for(lambda: _hangs(server))
    held.let_go()
    held.pool.submit(kill_daemon, held.daemon)
    bringing.result(_SOON_S)
    _replaced(held, server)
    error = reading.exception(_SOON_S)
    if error is None:
        assert reading.result() == held.contents["large-0"]
    else:
        assert isinstance(error, OSError)
        assert error.errno == errno.EIO, "that much is lost with all of them"
    for name, content in held.contents.items():
        assert (held.target / name).read_bytes() == content


class _Round:
    """Programs read a layer, from the disk each time, while it becomes whole, which it was never before."""

    def __init__(self, daemon: LayerDaemon, published: _Published, draw: random.Random) -> None:
        self._daemon = daemon
        self._published = published
        self._draw = draw
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(3)
        self.errors: list[OSError] = []
        root = daemon.mount(published.manifest)
        orders = [draw.choices(sorted(published.contents), k=1000) for _ in range(2)]
        self._readers = [self._pool.submit(self._read, root, order) for order in orders]
        file = Path("/nonexistent")
        self.bringing = self._pool.submit(
            lambda: daemon.bring(published.manifest, origins=[published.url], file=file, within_s=_SOON_S)
        )

    def _read(self, root: Path, order: list[str]) -> None:
        for name in order:
            if self._ended.is_set():
                return
            _dropped(root / name)
            try:
                content = (root / name).read_bytes()
            except OSError as error:
                self.errors.append(error)
            else:
                assert content == self._published.contents[name]

    def end(self) -> None:
        self.bringing.result(_SOON_S)
        self._ended.set()
        for reader in self._readers:
            reader.result(_SOON_S)
        self._pool.shutdown()
        # Whoever made a mount namespace meanwhile, as sandboxes of others do, has a copy of the mount for a moment.
        _wait_for(lambda: self._daemon.unmount(self._published.manifest))
        self._daemon.prune([])


def _killed_after(seconds: float, daemon: LayerDaemon, kind: str) -> None:
    status = daemon.status()
    time.sleep(seconds)
    if kind == "all":
        threading.Thread(target=kill_daemon, args=(daemon,)).start()
    else:
        _kill(*{"server": [status.pid], "keeper": [status.keeper_pid]}.get(kind, [status.keeper_pid, status.pid]))
    _wait_for(lambda: has_ended(status.pid))
    assert daemon.status().pid != status.pid


def test_whenever_a_server_is_killed_another_follows_at_once_and_no_byte_is_wrong(
    tmp_path: Path, published: _Published
) -> None:
    seed = os.environ.get("DSEC_KILL_SEED") or str(random.randrange(10**6))
    draw = random.Random(seed)
    root = tmp_path / "lazy"
    with layers_ended(root):
        sys.stderr.write(f"seed {seed}\n")
        daemon = LayerDaemon(root, DaemonOptions(store_url=published.url))
        began_s = time.monotonic()
        _Round(daemon, published, draw).end()
        lasts_s = time.monotonic() - began_s
        for number in range(_ROUNDS):
            if number % 3 == 2:
                end_daemon(root)  # A keeper whose servers are killed again and again gives up.
            living = _Round(daemon, published, draw)
            kind = draw.choice(["server", "keeper", "both", "all"])
            _killed_after(draw.random() * lasts_s, daemon, kind)
            living.end()
            assert kind == "all" or not living.errors, f"seed {seed}, round {number}"
