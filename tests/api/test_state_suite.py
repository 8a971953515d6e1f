"""The conformance suite of saved state: the node of fakes in process, and behind the server and the client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dsec.api.server import TcpAddress, serve
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.service.port import SandboxService
from dsec.testing.memory_node import MemoryHost
from dsec.testing.state_suite import StateSuite

TOKEN = "a-token-for-tests"


class TestStateInProcess(StateSuite):
    @pytest.fixture
    async def service(self) -> AsyncIterator[SandboxService]:
        async with MemoryHost().node() as node:
            yield node


class TestStateOverTcp(StateSuite):
    @pytest.fixture
    async def service(self) -> AsyncIterator[SandboxService]:
        async with MemoryHost().node() as node, serve(node, tcp=TcpAddress(token=TOKEN)) as serving:
            service = HttpService(Endpoint(url=serving.url, token=TOKEN))
            yield service
            await service.aclose()
