"""A node of fakes in a thread of its own, behind a unix socket, for programs that know nothing of event loops."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from dsec.api.server import serve
from dsec.base.clock import SystemClock
from dsec.node import builder, namespace
from dsec.node.lock import hold_state
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.testing.memory_node import MemoryHost


@asynccontextmanager
async def memory_node(settings: NodeSettings) -> AsyncIterator[Node]:
    """Do what `dsec.node.builder.open_node` does, with fakes."""
    with hold_state(Path(settings.state_dir)):
        async with Node.open(MemoryHost().parts(clock=SystemClock())) as node:
            yield node


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


@pytest.fixture
def embedded_fakes(monkeypatch: pytest.MonkeyPatch, state_dir: Path) -> None:
    """Let an embedded node be one of fakes, in `state_dir`."""
    monkeypatch.setattr(builder, "open_node", memory_node)
    monkeypatch.setattr(namespace, "is_ordinary_user", lambda: False)
    monkeypatch.delenv("DSEC_URL", raising=False)
    monkeypatch.setenv("DSEC_STATE_DIR", str(state_dir))
