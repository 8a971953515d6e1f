"""The conformance suite of saved state over a real node: btrfs, crun."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.node.builder import open_node
from dsec.node.settings import NodeSettings
from dsec.service.port import SandboxService
from dsec.testing.state_suite import StateSuite

pytestmark = [pytest.mark.root, pytest.mark.slow]


class TestStateOverCrun(StateSuite):
    image = "guest"

    @pytest.fixture
    async def service(self, state_dir: Path) -> AsyncIterator[SandboxService]:
        async with open_node(NodeSettings(state_dir=str(state_dir))) as node:
            yield node
            await node.shutdown(destroy=True)
