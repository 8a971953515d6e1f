"""A place of its own for a benchmark: nodes with the image resident, apart from the nodes that people use.

Everything stands in one new directory and is taken away when the benchmark ends, however it ends.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from dsec.base.errors import InvalidRequestError, NodeUnavailableError
from dsec.base.ids import NODE_ID_LENGTH, random_body
from dsec.bench.progress import Progress
from dsec.images import recipes
from dsec.images.lazy.serving.client import LAZY, end_daemon
from dsec.images.names import canonical_name
from dsec.images.store import LocalImageStore
from dsec.linux.mounts import mounts_under, unmount
from dsec.model.sandbox import SandboxFilter, SandboxState
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.settings import environment_values, settings_from
from dsec.node.state.swap import SWAP_FILE, SwapFile
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint

_PREFIX = "dsec-bench-"
_REMOVALS_AT_ONCE = 4
_CLEAN_UP_TIMEOUT_S = 600.0
_PAIR_HOST_IDS, _PAIR_HOST_IDS_EACH = 0x6000_0000, 0x0400_0000
"""Two nodes of one host must not give two sandboxes the same ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A node in a process of its own, as `dsec up` runs it.

    Attributes:
        pid: of that process.
        url, token: of its TCP side.
        socket: of its unix side.
    """

    pid: int
    url: str
    token: str
    socket: Path

    @asynccontextmanager
    async def over_tcp(self) -> AsyncIterator[HttpService]:
        """A client over loopback TCP."""
        async with _open(Endpoint(url=self.url, token=self.token)) as service:
            yield service

    @asynccontextmanager
    async def over_unix_socket(self) -> AsyncIterator[HttpService]:
        """A client over the unix socket."""
        async with _open(Endpoint(url=f"unix:{self.socket}")) as service:
            yield service


@asynccontextmanager
async def _open(endpoint: Endpoint) -> AsyncIterator[HttpService]:
    service = HttpService(endpoint)
    try:
        yield service
    finally:
        await service.aclose()


class Workplace:
    """The directory of one benchmark.

    Args:
        directory: new and empty.
        images: root of the image store that the image is taken from, and built in if it has a recipe.
        image: name of the image.
        overrides: settings of the nodes.
        progress: hears what takes long.
    """

    def __init__(
        self, directory: Path, images: Path, image: str, overrides: Mapping[str, str], progress: Progress
    ) -> None:
        self.directory = directory
        self.image = image
        self._images = images
        self._overrides = dict(overrides)
        self._progress = progress
        self._nodes: list[Path] = []

    @classmethod
    @asynccontextmanager
    async def open(
        cls, parent: Path, images: Path, image: str, overrides: Mapping[str, str], progress: Progress
    ) -> AsyncIterator[Workplace]:
        """Make a workplace below `parent`, and take it away at the end."""
        parent.mkdir(parents=True, exist_ok=True)
        _check_passable(parent.absolute())
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        directory.chmod(0o711)
        workplace = cls(directory, images, image, overrides, progress)
        try:
            await anyio.to_thread.run_sync(workplace._ensure_image)
            yield workplace
        finally:
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLEAN_UP_TIMEOUT_S):
                await anyio.to_thread.run_sync(workplace._take_away)

    def _ensure_image(self) -> None:
        store = LocalImageStore(self._images)
        try:
            recipes.ensure(store, self.image, progress=self._progress.say)
        finally:
            store.close()

    def layer_paths(self) -> tuple[Path, ...]:
        """Mount the image in a store of this workplace and return its layers, from the lowest up."""
        store = LocalImageStore(self._state_dir("references") / "images")
        try:
            return store.mount([self.image]).layer_paths
        finally:
            store.close()

    def _state_dir(self, name: str) -> Path:
        """Return the state directory of a new node, the image resident in it."""
        state_dir = self.directory / name
        if state_dir not in self._nodes:
            self._nodes.append(state_dir)
            _link_image(self._images, state_dir / "images", canonical_name(self.image))
        return state_dir

    @contextmanager
    def images_of_embedded(self) -> Iterator[LocalImageStore]:
        """The image store of the node in this process, for benchmarks that bring an image of their own. Blocks."""
        with self.images_of("embedded") as store:
            yield store

    def images_root(self, name: str) -> Path:
        """Return where an image store of this workplace is, with the image in it: ``embedded`` is that of the node in
        this process. Blocks."""
        return self._state_dir(name) / "images"

    @contextmanager
    def images_of(self, name: str) -> Iterator[LocalImageStore]:
        """An image store of this workplace with the image in it. Blocks."""
        store = LocalImageStore(self.images_root(name))
        try:
            yield store
        finally:
            store.close()

    @asynccontextmanager
    async def embedded(self, **defaults: str) -> AsyncIterator[Node]:
        """A node in this process; its sandboxes are removed at the end. What nobody else sets is set by `defaults`."""
        settings = settings_from(defaults | environment_values(os.environ) | self._overrides)
        state_dir = self._state_dir("embedded")
        async with open_node(msgspec.structs.replace(settings, state_dir=str(state_dir))) as node:
            try:
                yield node
            finally:
                with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLEAN_UP_TIMEOUT_S):
                    await remove_all(node)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Served]:
        """A node in a process of its own; it and its sandboxes are gone at the end."""
        async with self._serving(self._state_dir("served"), 0, {}) as served:
            yield served

    @asynccontextmanager
    async def served_pair(self) -> AsyncIterator[tuple[Served, Served]]:
        """Two nodes in processes of their own that are each other's peers."""
        names = [random_body(NODE_ID_LENGTH, os.urandom) for _ in range(2)]
        ports = dict(zip(names, _free_ports(len(names)), strict=True))
        peers = ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in ports.items())
        secret = secrets.token_hex()
        async with AsyncExitStack() as stack:
            served = []
            for number, (name, port) in enumerate(ports.items()):
                state_dir = self._state_dir(name)
                (state_dir / "node.id").write_text(f"{name}\n")
                (state_dir / "peer-token").touch(0o600)
                (state_dir / "peer-token").write_text(secret)
                settings = {"peers": peers, "first_host_id": str(_PAIR_HOST_IDS + number * _PAIR_HOST_IDS_EACH)}
                served.append(await stack.enter_async_context(self._serving(state_dir, port, settings)))
            yield served[0], served[1]

    @asynccontextmanager
    async def _serving(self, state_dir: Path, port: int, settings: Mapping[str, str]) -> AsyncIterator[Served]:
        child = await anyio.to_thread.run_sync(self._start, state_dir, port, settings)
        try:
            assert child.stdout is not None
            where = json.loads(await anyio.to_thread.run_sync(child.stdout.readline) or b"{}")
            if "url" not in where:
                raise NodeUnavailableError("the node of the benchmark did not start", detail=f"see {state_dir}/log")
            token = Path(where["token_file"]).read_text(encoding="ascii").strip()
            yield Served(pid=child.pid, url=where["url"], token=token, socket=Path(where["socket"]))
        finally:
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLEAN_UP_TIMEOUT_S):
                await anyio.to_thread.run_sync(_end, child, state_dir)

    def _start(self, state_dir: Path, port: int, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
        chosen = {**settings, **self._overrides}
        overrides = [part for name, value in chosen.items() for part in ("--set", f"{name}={value}")]
        argv = [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), *overrides]
        argv += ["up", "--port", str(port), "--json"]
        with (state_dir / "log").open("wb") as log:
            # In a session of its own, so that a terminal's interrupt reaches us alone, and we end it in order.
            return subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )

    def _take_away(self) -> None:
        for state_dir in self._nodes:
            _destroy(state_dir)
            end_daemon(state_dir / "images" / LAZY)  # It outlives its node, and who destroyed that may have started it.
            SwapFile(state_dir / SWAP_FILE, 0).remove()  # Deleted while it is on, it would stay on.
        # What is still mounted must not be deleted through its mount.
        for entry in mounts_under(self.directory):
            unmount(entry.target, detach=True)
        shutil.rmtree(self.directory)


def _check_passable(directory: Path) -> None:
    """References run with ids of their own, which must reach what is laid out for them."""
    for part in (directory, *directory.parents):
        if not part.stat().st_mode & stat.S_IXOTH:
            raise InvalidRequestError(
                f"not everybody may pass through {part}", resolution="choose another directory with --work-dir"
            )


async def remove_all(node: Node) -> None:
    """Remove every sandbox of a node."""
    limiter = anyio.CapacityLimiter(_REMOVALS_AT_ONCE)
    async with anyio.create_task_group() as group:

        async def remove(sandbox_id: str) -> None:
            async with limiter:
                await node.remove(sandbox_id)

        for info in await node.list(SandboxFilter(states=tuple(SandboxState))):
            group.start_soon(remove, info.sandbox_id)


def _free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def _end(child: subprocess.Popen[bytes], state_dir: Path) -> None:
    """Destroy a served node's sandboxes and let it end."""
    try:
        _destroy(state_dir)
    finally:
        child.terminate()
        child.wait(timeout=60)
        if child.stdout is not None:
            child.stdout.close()


def _destroy(state_dir: Path) -> None:
    """Leave nothing of a state directory's node on the host but its files."""
    argv = [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), "down", "--destroy"]
    subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _link_image(source: Path, target: Path, name: str) -> None:
    """Put an image of one store into a new one by hard links: layers never change (docs/formats/image-store.md)."""
    store = LocalImageStore(source)
    try:
        layers = [layer.digest.removeprefix("sha256:") for layer in store.get(name).layers]
    finally:
        store.close()
    names = target / "names"
    names.mkdir(parents=True)
    for record in (source / "names").glob("*.json"):
        shutil.copy2(record, names)
    for digest in layers:
        shutil.copytree(
            source / "layers" / digest, target / "layers" / digest, symlinks=True, copy_function=_link_or_copy
        )


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        return str(shutil.copy2(source, target, follow_symlinks=False))
    return target
