"""The conformance suite of the service over a node of fakes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dsec.base.clock import SystemClock
from dsec.node.node import Node
from dsec.service.port import SandboxService
from dsec.testing.memory_node import MemoryHost
from dsec.testing.service_suite import ServiceSuite


class TestNodeOverMemory(ServiceSuite):
    real_shell = False

    @pytest.fixture
    async def service(self) -> AsyncIterator[SandboxService]:
        async with Node.open(MemoryHost().parts(clock=SystemClock())) as node:
            yield node
