"""A node of fakes behind a real server."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest

from dsec.api.server import Serving, TcpAddress, serve
from dsec.node.node import Node
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.testing.memory_node import MemoryHost

TOKEN = "a-token-for-tests"


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name (108 bytes)."""
    with tempfile.TemporaryDirectory(prefix="dsec") as path:
        yield Path(path)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with MemoryHost().node() as node:
        yield node


@pytest.fixture
async def serving(node: Node, short_dir: Path) -> AsyncIterator[Serving]:
    async with serve(node, tcp=TcpAddress(token=TOKEN), socket_path=short_dir / "node.sock") as serving:
        yield serving


@pytest.fixture
async def service(serving: Serving) -> AsyncIterator[HttpService]:
    service = HttpService(Endpoint(url=serving.url, token=TOKEN))
    yield service
    await service.aclose()


@pytest.fixture
async def http(serving: Serving) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=serving.url, headers={"authorization": f"Bearer {TOKEN}"}) as client:
        yield client
