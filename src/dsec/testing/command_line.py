"""The command line against a node on the in-memory runtime, which a thread serves on a real socket.

The node runs in a loop of its own, as it does in life: a command that ends leaves it, its sandboxes and their
background processes alone.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from click.testing import CliRunner, Result

from dsec.api.server import serve
from dsec.cli.main import cli
from dsec.images.memory import MemoryImages
from dsec.node.node import Node
from dsec.node.parts import NodeParts
from dsec.runtimes.memory import MemoryRuntime
from dsec.state.memory import MemoryWritableLayers
from dsec.stores.memory import MemoryJournal


class RoomyHost:
    """A host with room for everything."""

    def free_disk_bytes(self) -> int:
        return 1 << 40

    def free_memory_bytes(self) -> int:
        return 1 << 40

    def stalls(self) -> dict[str, float]:
        return {}

    def capacity(self) -> tuple[int, int]:
        return 64_000, 1 << 40

    def processor_share(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Dsec:
    """The command line against one server.

    Attributes:
        url: of the server's socket.
        portal: into the loop of the node.
        node: the node itself, for what the command line cannot do.
        runtime: the node's, to look inside.
    """

    url: str
    portal: BlockingPortal
    node: Node
    runtime: MemoryRuntime

    def __call__(self, *argv: str, input: bytes | str | None = None) -> Result:
        return CliRunner().invoke(cli, ["--url", self.url, *argv], input=input)

    def ok(self, *argv: str, input: bytes | str | None = None) -> str:
        """Run a command that must succeed and return what it printed."""
        result = self(*argv, input=input)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    def json(self, *argv: str) -> Any:
        return json.loads(self.ok(*argv))

    def checkpoint(self, sandbox_id: str) -> str:
        """Make a checkpoint and return its name."""
        return self.portal.call(self.node.state.checkpoint, sandbox_id).checkpoint_id

    def create(self, *argv: str) -> str:
        return self.ok("sandbox", "create", *argv).strip()


@asynccontextmanager
async def _served(socket_path: Path, runtime: MemoryRuntime) -> AsyncIterator[Node]:
    layers = MemoryWritableLayers(runtime.contents, runtime.quotas)
    images = MemoryImages()
    images.contents = runtime.contents
    parts = NodeParts(
        node_id="n0de1",
        runtime=runtime,
        layers=layers,
        images=images,
        journal=MemoryJournal(),
        host=RoomyHost(),
    )
    async with Node.open(parts) as node, serve(node, socket_path=socket_path):
        yield node


@contextmanager
def serving_in_memory(directory: Path) -> Iterator[Dsec]:
    """Serve a fresh node on a socket in `directory` until the block ends, and yield the command line against it."""
    path, runtime = directory / "node.sock", MemoryRuntime()
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(_served(path, runtime)) as node:
        yield Dsec(f"unix:{path}", portal, node, runtime)
