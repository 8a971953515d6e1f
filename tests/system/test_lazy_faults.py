"""Sandboxes read lazy layers over S3, a folder, a registry and a peer while everything that serves them is killed, cut
off, corrupted and filled. A judge of its own compares every byte; what may fail when is in `dsec.testing.lazy_faults`.

A normal run does each fault about once; `DSEC_FAULT_SECONDS` makes it longer, `DSEC_FAULT_SEED` repeats a draw, and
`DSEC_FAULT_ONLY` (names between commas) does some faults only.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from dsec.images.lazy.publication.sharing import publish_image
from dsec.images.lazy.serving.client import LayerDaemon, end_daemon
from dsec.images.lazy.serving.daemon_options import DaemonOptions
from dsec.images.staging import remove_tree
from dsec.images.store import LocalImageStore
from dsec.linux import mounts
from dsec.model.image import ImageConfig
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec
from dsec.stores.objects import ObjectStore
from dsec.stores.objects_folder import FolderObjectStore
from dsec.stores.opening import open_store
from dsec.testing.lazy_faults import FaultWorld, Reader, unexcused
from dsec.testing.node_process import NodeProcess
from dsec.testing.peer_faults import PeerNode
from dsec.testing.registry_server import RegistryServer
from dsec.testing.relay import Relay, relayed
from dsec.testing.s3_server import S3Server
from dsec.testing.servers import BUCKET

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(0)]

_SECONDS = float(os.environ.get("DSEC_FAULT_SECONDS", "12"))
_SEED = os.environ.get("DSEC_FAULT_SEED", "")
_ONLY = [name for name in os.environ.get("DSEC_FAULT_ONLY", "").split(",") if name]
_FILES, _FILE_BYTES = 3, 6 << 20
_CACHE = "size=48m"
"""Of 72 MiB that are read: some layers become whole, and others never have room."""
_ORIGINS = {"s3": ["s3"], "folder": ["folder"], "registry": ["registry"], "both": ["folder", "s3"]}


@dataclass(frozen=True, slots=True)
class _Sources:
    """Where the images are published, and the way there that can be cut."""

    s3: S3Server
    s3_url: str
    folder: FolderObjectStore
    registry: RegistryServer
    relays: dict[str, Relay]

    @property
    def environment(self) -> dict[str, str]:
        """Of whoever pulls and reads: by way of the relay."""
        return self.s3.environment | {
            name: self.relays["s3"].url for name, value in self.s3.environment.items() if value == self.s3.endpoint
        }

    def opened_s3(self) -> ObjectStore:
        return open_store(self.s3_url, environment=self.s3.environment)


def _make_sources(root: Path, draw: random.Random) -> None:
    """Make what the images hold: a directory of files for each."""
    for name in _ORIGINS:
        (root / name / name).mkdir(parents=True)
        for number in range(_FILES):
            (root / name / name / f"f{number}").write_bytes(draw.randbytes(_FILE_BYTES))


def _dsec(state_dir: Path, environment: dict[str, str], *arguments: str) -> None:
    command = [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=120)
    assert done.returncode == 0, done.stderr


async def _publish(publisher: Path, root: Path, sources: _Sources, reference: str) -> dict[str, list[tuple[str, str]]]:
    """Publish the images; return for each from which stores, and by which names, it is to be pulled."""
    images = LocalImageStore(publisher / "images")
    try:
        base = [layer.digest for layer in images.get("guest").layers]
        for name in _ORIGINS:
            layer = await anyio.to_thread.run_sync(images.add_layer, root / name)
            images.add_image(f"box-{name}", [*base, layer], ImageConfig(), source="test")
        s3 = sources.opened_s3()
        folder = sources.folder
        pulls = {
            "s3": [(sources.s3_url, (await publish_image(images, "box-s3", s3)).reference)],
            "folder": [(folder.url, (await publish_image(images, "box-folder", folder)).reference)],
            "both": [
                (url, (await publish_image(images, "box-both", store)).reference)
                for url, store in ((sources.s3_url, s3), (folder.url, folder))
            ],
            "registry": [("", reference.format(sources.relays["registry"].port))],
        }
        await s3.aclose()
    finally:
        images.close()
    pushed = reference.format(sources.registry.port)
    await anyio.to_thread.run_sync(_dsec, publisher, {}, "image", "push", "box-registry", pushed)
    return pulls


@asynccontextmanager
async def _running(
    state_dir: Path, publisher: Path, root: Path, sources: _Sources, peer: PeerNode, draw: random.Random
) -> AsyncIterator[tuple[FaultWorld, list[Reader]]]:
    """Run a node with a sandbox of each image, readers in them, and a peer that has the images of stores."""
    pulls = await _publish(publisher, root, sources, "127.0.0.1:{}/faults/" + uuid.uuid4().hex + ":v1")
    shutil.rmtree(state_dir / "images")
    await anyio.to_thread.run_sync(peer.start, [pulls[name][0] for name in ("s3", "folder")])
    environment = sources.environment | peer.variables
    for name, ways in pulls.items():
        for url, what in ways:
            stores = {"DSEC_STORE": url} if url else {}
            command = ("image", "pull", what, "--name", f"box-{name}")
            await anyio.to_thread.run_sync(_dsec, state_dir, environment | stores, *command)
    lazy = state_dir / "images/lazy"
    (lazy / "cache").mkdir(parents=True, mode=0o700, exist_ok=True)
    mounts.mount("tmpfs", lazy / "cache", "tmpfs", 0, _CACHE)
    node = NodeProcess(state_dir, environment)
    await anyio.to_thread.run_sync(node.start)
    readers: list[Reader] = []
    try:
        for name, pid in (await _boxes(node)).items():
            inside = Path(f"/proc/{pid}/root/{name}")
            readers.append(Reader(name, inside, root / name / name, f"{draw.random()}"))
        yield (
            FaultWorld(
                node=node,
                daemon=LayerDaemon(lazy, DaemonOptions(store_url=sources.folder.url)),
                relays=sources.relays,
                stores={"s3": sources.opened_s3(), "folder": sources.folder},
                blobs={"registry": sources.registry.directory},
                cache_disk=lazy / "cache",
                draw=draw,
                more=peer.faults(),
            ),
            readers,
        )
    finally:
        for reader in readers:
            await anyio.to_thread.run_sync(reader.end)
        if not node.is_running:
            await anyio.to_thread.run_sync(node.start)
        async with node.service() as service:
            for info in await service.list():
                await service.remove(info.sandbox_id)
        await anyio.to_thread.run_sync(node.stop)
        await anyio.to_thread.run_sync(_leave, state_dir)


async def _boxes(node: NodeProcess) -> dict[str, int]:
    """Make a sandbox of each image; return the host's process id of a program in each."""
    found = {}
    async with node.service() as service:
        for name in _ORIGINS:
            box = (await service.create(SandboxSpec(image=f"box-{name}"))).sandbox_id
            mark = secrets.randbelow(10**9) + 10**9
            await service.start_process(box, CommandRequest(argv=("sleep", str(mark)), timeout_s=None))
            with anyio.fail_after(60):
                while (pid := _process_of(str(mark))) is None:  # noqa: ASYNC110 - another process starts it.
                    await anyio.sleep(0.05)
            found[name] = pid
    return found


def _process_of(mark: str) -> int | None:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes() == b"sleep\0" + mark.encode() + b"\0":
                return int(entry.parent.name)
        except OSError:
            continue
    return None


def _leave(state_dir: Path) -> None:
    lazy = state_dir / "images/lazy"
    remove_tree(state_dir / "images/mounts")
    remove_tree(lazy / "mounts")
    end_daemon(lazy)
    left = [entry.target for entry in mounts.mounts_under(state_dir / "images") if entry.target != str(lazy / "cache")]
    mounts.unmount(lazy / "cache", detach=True)
    assert left == []


async def _wait_peer_gives(world: FaultWorld) -> None:
    """Wait until something came from the peer, so that it is asked while it dies, stalls and lies."""
    with anyio.fail_after(60):
        while not await anyio.to_thread.run_sync(_chunks_of_peers, world.daemon):  # noqa: ASYNC110 - a process.
            await anyio.sleep(0.1)


def _chunks_of_peers(daemon: LayerDaemon) -> int:
    peers = daemon.status().peers
    return 0 if peers is None else peers.chunks


async def _check_alive(world: FaultWorld) -> None:
    """No sandbox was lost, and no program in one."""
    async with world.node.service() as service:
        for info in await service.list():
            for process in await service.list_processes(info.sandbox_id):
                assert process.status is None, (info, process, world.log)


def _check_all(directory: Path, source: Path) -> None:
    for name in sorted(os.listdir(source)):
        with (directory / name).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert file.read() == (source / name).read_bytes()


def test_whatever_fails_no_byte_is_wrong_and_reads_fail_only_while_nobody_can_serve(
    state_dir: Path,
    s3_server: S3Server,
    own_registry: RegistryServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = _SEED or secrets.token_hex(4)
    with capsys.disabled():
        sys.stderr.write(f"\nseed {seed}\n")
    draw = random.Random(seed)
    publisher = tmp_path / "publisher"
    shutil.copytree(state_dir / "images", publisher / "images", symlinks=True)
    _make_sources(tmp_path / "trees", draw)
    # In a loop of its own, and not as an asynchronous test: those are ended when they take very long.
    world, readers = anyio.run(_live_through, state_dir, publisher, (s3_server, own_registry), tmp_path, draw)
    complaints = [complaint for reader in readers for complaint in reader.complaints]
    bad = unexcused(complaints, world.outages, _ORIGINS)
    reads = sum(reader.reads for reader in readers)
    with capsys.disabled():
        sys.stderr.write(f"seed {seed}: {reads} reads, {len(complaints)} failed, {world.done}\n")
    assert bad == [], f"seed {seed}\n" + "\n".join(world.log)
    assert reads > len(complaints)


async def _live_through(
    state_dir: Path, publisher: Path, servers: tuple[S3Server, RegistryServer], tmp_path: Path, draw: random.Random
) -> tuple[FaultWorld, list[Reader]]:
    s3, registry = servers
    async with AsyncExitStack() as stack:
        relays = {
            "s3": await stack.enter_async_context(relayed(int(s3.endpoint.rpartition(":")[2]))),
            "registry": await stack.enter_async_context(relayed(registry.port)),
        }
        folder = FolderObjectStore(tmp_path / "objects")
        sources = _Sources(s3, f"s3://{BUCKET}/{uuid.uuid4()}", folder, registry, relays)
        peer = PeerNode(tmp_path / "peer", s3.environment, draw)
        stack.callback(peer.end)
        async with _running(state_dir, publisher, tmp_path / "trees", sources, peer, draw) as (world, readers):
            await _wait_peer_gives(world)
            await world.run(_SECONDS, _ONLY)
            await _check_alive(world)
            # All is well again: every file of every sandbox is read from end to end, and none may fail.
            for reader in readers:
                await anyio.to_thread.run_sync(_check_all, reader.directory, reader.source)
    return world, readers
