"""The daemon that serves layers: killed in every way, and asked by many at once."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import msgspec
import pytest

from dsec.base.errors import InvalidRequestError, ObjectNotFoundError
from dsec.images import erofs
from dsec.images.lazy.publication.conversion import LayerFile, publish
from dsec.images.lazy.serving.client import LayerDaemon, end_daemon, kill_daemon
from dsec.images.lazy.serving.daemon import EventFile
from dsec.images.lazy.serving.daemon_options import DaemonOptions
from dsec.images.lazy.serving.daemon_wire import Answer
from dsec.images.lazy.serving.fetching import LayerEvent, LayerEventKind
from dsec.linux.processes import ProcessIdentity
from dsec.stores.objects_folder import FolderObjectStore
from dsec.testing.ended_layers import layers_ended

pytestmark = [pytest.mark.root, pytest.mark.slow]

_FILES = 12
PATIENCE_S = 60.0


class Published:
    """A layer in a folder, with large files."""

    def __init__(self, root: Path) -> None:
        chance = random.Random(1)
        self.contents = {f"large-{number}": chance.randbytes(3 << 20) for number in range(_FILES)}
        (root / "tree").mkdir()
        for name, content in self.contents.items():
            (root / "tree" / name).write_bytes(content)
        erofs.make(root / "tree", root / "layer.erofs")
        store = FolderObjectStore(root / "store")
        self.url = store.url
        file = LayerFile(root / "layer.erofs", "sha256:" + "ab" * 32, _FILES + 1)
        self.manifest = anyio.run(publish, file, store).manifest


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return Published(tmp_path_factory.mktemp("published"))


@pytest.fixture
def daemon(tmp_path: Path, published: Published) -> Iterator[LayerDaemon]:
    root = tmp_path / "lazy"
    daemon = LayerDaemon(root, DaemonOptions(store_url=published.url))
    with layers_ended(root):
        yield daemon


def _wait_gone(pid: int) -> None:
    """Wait for a process that is nobody's child here."""
    ends_at = time.monotonic() + PATIENCE_S
    while ProcessIdentity.of(pid) is not None:
        assert time.monotonic() < ends_at, f"process {pid} goes on"
        time.sleep(0.01)


def _unmount(daemon: LayerDaemon, manifest: str) -> None:
    """Unmount a layer, of which whatever made a mount namespace meanwhile has a copy for a moment."""
    ends_at = time.monotonic() + PATIENCE_S
    while not daemon.unmount(manifest):
        assert time.monotonic() < ends_at, "it stays mounted"
        time.sleep(0.01)


def _kept(daemon: LayerDaemon) -> Answer:
    """Wait until what was fetched is on the disk, which no read waits for, and return the status then."""
    while (status := daemon.status()).cached_bytes < status.fetched_bytes:
        time.sleep(0.01)
    return status


def test_it_starts_when_it_is_needed_and_mounts(daemon: LayerDaemon, published: Published) -> None:
    root = daemon.mount(published.manifest)
    assert (root / "large-1").read_bytes() == published.contents["large-1"]
    assert daemon.mount(published.manifest) == root
    status = _kept(daemon)
    assert status.mounted == (published.manifest,)
    assert 0 < status.fetched_bytes == status.cached_bytes
    _unmount(daemon, published.manifest)
    assert daemon.status().mounted == ()


def test_many_who_need_it_at_once_start_one(tmp_path: Path, daemon: LayerDaemon, published: Published) -> None:
    def mount(_: int) -> tuple[Path, int]:
        own = LayerDaemon(tmp_path / "lazy", DaemonOptions(store_url=published.url))
        return own.mount(published.manifest), own.status().keeper_pid

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(mount, range(4)))) == 1


def test_no_read_fails_when_the_server_is_killed_again_and_again(daemon: LayerDaemon, published: Published) -> None:
    root = daemon.mount(published.manifest)
    failures: list[object] = []

    def read() -> None:
        for name in sorted(published.contents, key=lambda name: random.Random(name).random()):
            try:
                if (root / name).read_bytes() != published.contents[name]:
                    failures.append(name)
            except OSError as error:
                failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    killed: set[int] = set()
    while reader.is_alive() and len(killed) < 3:
        server = daemon.status().pid
        os.kill(server, signal.SIGKILL)
        killed.add(server)
    reader.join()
    assert failures == []
    assert killed


def test_when_keeper_and_server_die_the_second_keeper_goes_on_and_no_read_fails(
    daemon: LayerDaemon, published: Published
) -> None:
    root = daemon.mount(published.manifest)
    seen = set()
    for name in sorted(published.contents)[:4]:
        status = daemon.status()
        seen.add(status.keeper_pid)
        os.kill(status.keeper_pid, signal.SIGKILL)
        os.kill(status.pid, signal.SIGKILL)
        assert (root / name).read_bytes() == published.contents[name]
    assert len(seen) == 4


def test_a_second_keeper_that_is_killed_is_replaced(daemon: LayerDaemon, published: Published) -> None:
    root = daemon.mount(published.manifest)
    status = daemon.status()
    (second,) = _children(status.keeper_pid) - {status.pid}
    os.kill(second, signal.SIGKILL)
    while not (others := _children(status.keeper_pid) - {status.pid, second}):
        time.sleep(0.01)
    os.kill(status.keeper_pid, signal.SIGKILL)
    assert (root / "large-3").read_bytes() == published.contents["large-3"]
    assert {daemon.status().keeper_pid} == others


def _children(pid: int) -> set[int]:
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_when_all_die_at_once_the_next_keeper_takes_the_mounts_over(daemon: LayerDaemon, published: Published) -> None:
    root = daemon.mount(published.manifest)
    with (root / "large-7").open("rb") as held:
        status = daemon.status()
        kill_daemon(daemon)
        with pytest.raises(OSError, match="Input/output"):
            (root / "large-7").read_bytes()
        assert daemon.mount(published.manifest) == root
        assert held.read() == published.contents["large-7"]
    assert daemon.status().keeper_pid != status.keeper_pid


def test_what_was_fetched_is_recorded_when_it_is_told_to_end(daemon: LayerDaemon, published: Published) -> None:
    root = daemon.mount(published.manifest)
    assert (root / "large-1").read_bytes() == published.contents["large-1"]
    before = _kept(daemon)
    end_daemon(daemon.root)
    _wait_gone(before.pid)
    with pytest.raises(OSError, match="Input/output"):
        (root / "large-7").read_bytes()
    daemon.mount(published.manifest)
    after = daemon.status()
    assert (after.fetched_bytes, after.cached_bytes) == (0, before.cached_bytes)


def test_it_ends_when_nothing_is_mounted_and_nobody_asks(tmp_path: Path, published: Published) -> None:
    daemon = LayerDaemon(tmp_path / "lazy", DaemonOptions(store_url=published.url, idle_s=0.2))
    with layers_ended(daemon.root):
        daemon.mount(published.manifest)
        status = daemon.status()
        time.sleep(0.5)
        assert daemon.status().pid == status.pid, "something is mounted"
        _unmount(daemon, published.manifest)
        _wait_gone(status.keeper_pid)


def test_what_it_refuses_it_refuses_in_words(tmp_path: Path, daemon: LayerDaemon) -> None:
    with pytest.raises(ObjectNotFoundError, match="manifest"):
        daemon.mount("cd" * 32)
    with pytest.raises(InvalidRequestError):
        daemon.mount("../../etc")
    assert _said(tmp_path / "lazy", b'{"op": "destroy"}\n').error == "invalid_request"
    assert _said(tmp_path / "lazy", b"\xff\n").error == "invalid_request"


def _said(root: Path, line: bytes) -> Answer:
    directory = os.open(root, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"/proc/self/fd/{directory}/serve.sock")
            connection.sendall(line)
            return msgspec.json.decode(connection.makefile("rb").readline(), type=Answer)
    finally:
        os.close(directory)


def test_events_are_kept_within_bounds(tmp_path: Path) -> None:
    events = EventFile(tmp_path / "events.jsonl", limit_bytes=1000)
    for number in range(100):
        events.add(LayerEvent(kind=LayerEventKind.READ_FAILED, layer="sha256:x", manifest="m", start=number))
    kept = [
        *(tmp_path / "events.jsonl.1").read_text().splitlines(),
        *(tmp_path / "events.jsonl").read_text().splitlines(),
    ]
    assert msgspec.json.decode(kept[-1])["start"] == 99
    assert sum(map(len, kept)) < 3000
