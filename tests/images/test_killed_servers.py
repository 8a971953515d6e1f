"""Servers of layers that are killed while a call of theirs waits, in the kernel, for a read that they owe."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from dsec.images import erofs
from dsec.images.lazy.publication.conversion import LayerFile, publish
from dsec.images.lazy.serving.client import LayerDaemon
from dsec.images.lazy.serving.daemon_options import DaemonOptions, write_options
from dsec.linux import mounts
from dsec.stores.objects_folder import FolderObjectStore
from dsec.testing.ended_layers import layers_ended

pytestmark = [pytest.mark.root, pytest.mark.slow]

_FILES = 4
_SOON_S = 15.0
"""Far below the two minutes after which the kernel gives a server up, and long for a busy host."""

_DAEMON = """
import sys
from pathlib import Path
from dsec.images.lazy.serving import daemon, server

root = Path(sys.argv[1])
answer = server.LayerServer._answer
server.LayerServer._answer = lambda *read: None if (root / "hold").exists() else answer(*read)
sys.exit(daemon.main([str(root)]))
"""
"""A daemon that does not answer reads of what it has while it is told to hold them."""


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


@pytest.fixture
def held(tmp_path: Path) -> Iterator[_Held]:
    chance = random.Random(3)
    contents = {f"large-{number}": chance.randbytes(3 << 20) for number in range(_FILES)}
    (tmp_path / "tree").mkdir()
    for name, content in contents.items():
        (tmp_path / "tree" / name).write_bytes(content)
    erofs.make(tmp_path / "tree", tmp_path / "layer.erofs")
    store = FolderObjectStore(tmp_path / "store")
    manifest = anyio.run(publish, LayerFile(tmp_path / "layer.erofs", "sha256:" + "ab" * 32, 5), store).manifest
    root, options = tmp_path / "lazy", DaemonOptions(store_url=store.url)
    root.mkdir(mode=0o700)
    write_options(root, options)
    with layers_ended(root), ThreadPoolExecutor(3) as pool:
        with (tmp_path / "log").open("wb") as log:
            subprocess.run([sys.executable, "-c", _DAEMON, str(root)], check=True, stdout=log, stderr=log)
        held = _Held(LayerDaemon(root, options), manifest, store.url, contents, pool)
        held.daemon.mount(manifest)
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
    ends_s = time.monotonic() + _SOON_S
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def _with_read_under_way(held: _Held) -> Future[bytes]:
    """Let a program read what is here, and no answer come."""
    assert held.read("large-0").result() == held.contents["large-0"]
    _wait_for(lambda: (status := held.daemon.status()).cached_bytes == status.fetched_bytes)
    _dropped(held.target / "large-0")
    held.hold()
    return held.read("large-0")


def _hangs(server: int) -> bool:
    """Whether a thread waits and hears no signal, now and in a moment."""
    waiting = _deaf(server)
    time.sleep(0.1)
    return not waiting.isdisjoint(_deaf(server))


def _deaf(server: int) -> set[str]:
    tasks = Path(f"/proc/{server}/task").iterdir()
    return {task.name for task in tasks if (task / "stat").read_text().rpartition(")")[2].split()[0] == "D"}


def _kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _replaced(held: _Held, server: int) -> None:
    """A server that could not end has, and another serves."""
    _wait_for(lambda: not Path(f"/proc/{server}/task").exists())
    assert held.daemon.status().pid != server


@pytest.mark.parametrize("is_asked_to", [False, True])
def test_a_server_that_ends_while_it_exchanges_a_file_is_followed_at_once(held: _Held, is_asked_to: bool) -> None:
    reading = _with_read_under_way(held)
    bringing = held.bring_all()
    server = held.daemon.status().pid
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


def test_a_server_that_is_killed_while_it_unmounts_is_followed_at_once(held: _Held) -> None:
    held.read("large-0").result()
    _dropped(held.target / "large-0")
    held.hold()
    with (held.target / "large-0").open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
    server = held.daemon.status().pid
    unmounting = held.pool.submit(held.daemon.unmount, held.manifest)
    _wait_for(lambda: _hangs(server))
    held.let_go()
    _kill(server)
    unmounting.result(_SOON_S)
    _replaced(held, server)
    assert held.daemon.status().mounted == ()
    assert (held.daemon.mount(held.manifest) / "large-0").read_bytes() == held.contents["large-0"]


def test_when_both_are_killed_in_an_exchange_the_next_keeper_does_not_wait_either(held: _Held) -> None:
    reading = _with_read_under_way(held)
    bringing = held.bring_all()
    status = held.daemon.status()
    _wait_for(lambda: _hangs(status.pid))
    held.let_go()
    _kill(status.keeper_pid, status.pid)
    bringing.result(_SOON_S)
    _replaced(held, status.pid)
    error = reading.exception(_SOON_S)
    if error is None:
        assert reading.result() == held.contents["large-0"]
    else:
        assert isinstance(error, OSError)
        assert error.errno == errno.EIO, "that much is lost with both"
    for name, content in held.contents.items():
        assert (held.target / name).read_bytes() == content
