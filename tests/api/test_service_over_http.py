"""The conformance suite of the service, through the server and the client."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.api.server import TcpAddress, serve
from dsec.base.clock import SystemClock
from dsec.node.node import Node
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.service.port import SandboxService
from dsec.testing.memory_node import MemoryHost
from dsec.testing.service_suite import ServiceSuite

TOKEN = "a-token-for-tests"


class TestServiceOverTcp(ServiceSuite):
    real_shell = False

    @pytest.fixture
    async def service(self) -> AsyncIterator[SandboxService]:
        async with (
            Node.open(MemoryHost().parts(clock=SystemClock())) as node,
            serve(node, tcp=TcpAddress(token=TOKEN)) as serving,
        ):
            service = HttpService(Endpoint(url=serving.url, token=TOKEN))
            yield service
            await service.aclose()


class TestServiceOverUnixSocket(ServiceSuite):
    real_shell = False

    @pytest.fixture
    async def service(self) -> AsyncIterator[SandboxService]:
        with tempfile.TemporaryDirectory(prefix="dsec") as directory:
            path = Path(directory) / "node.sock"
            async with (
                Node.open(MemoryHost().parts(clock=SystemClock())) as node,
                serve(node, socket_path=path),
            ):
                service = HttpService(Endpoint(url=f"unix:{path}"))
                yield service
                await service.aclose()
