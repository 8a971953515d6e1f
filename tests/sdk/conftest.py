"""A node of fakes in a thread of its own, behind a unix socket, for programs that know nothing of event loops."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from sdk_fakes import memory_node

from dsec.api.server import serve
from dsec.node.settings import NodeSettings


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A state directory whose path leaves room for a socket's name (108 bytes)."""
    with tempfile.TemporaryDirectory(prefix="dsec") as path:
        yield Path(path)


@asynccontextmanager
async def _serving(path: Path) -> AsyncIterator[str]:
    async with memory_node(NodeSettings(state_dir=str(path))) as node, serve(node, socket_path=path / "node.sock"):
        yield f"unix:{path / 'node.sock'}"


@pytest.fixture
def server_url(state_dir: Path) -> Iterator[str]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(_serving(state_dir)) as url:
        yield url
