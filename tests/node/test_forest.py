"""Random trees of sandboxes against plain dictionaries, on a node in memory that also dies now and then.

`DSEC_TEST_EXAMPLES` makes it long.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, settings

from dsec.node.node import Node
from dsec.node.state import snapshots
from dsec.service.port import SandboxService
from dsec.testing.crash_points import settle
from dsec.testing.faults import Faults, check_no_leak
from dsec.testing.forest_machine import ForestMachine
from dsec.testing.forest_model import Files
from dsec.testing.memory_node import MemoryHost

LONGEST_CHAIN = 2
EXAMPLES = int(os.environ.get("DSEC_TEST_EXAMPLES", "60"))


class MemoryGround:
    """A host in memory."""

    images: Mapping[str, Files] = {"python": {}}

    def __init__(self) -> None:
        self.host = MemoryHost()
        self._faults = Faults()

    @asynccontextmanager
    async def node(self) -> AsyncIterator[SandboxService]:
        self._faults = Faults()
        async with Node.open(self._faults.parts(self.host)) as node:
            yield node

    @property
    def is_dead(self) -> bool:
        return self._faults.dead

    def arm(self, step: int) -> None:
        self._faults.steps, self._faults.kill_at = 0, step

    async def settle(self, service: SandboxService) -> None:
        await settle()

    async def check(self, service: SandboxService) -> None:
        assert isinstance(service, Node)
        await check_no_leak(self.host, service)

    async def check_empty(self, service: SandboxService) -> None:
        await self.check(service)
        assert not self.host.layers.names()
        assert not await self.host.runtime.instances()

    def close(self) -> None:
        """It is memory."""


@pytest.fixture(autouse=True)
def short_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let chains of snapshots be long soon, so that they are merged."""
    monkeypatch.setattr(snapshots, "MERGE_DEPTH", LONGEST_CHAIN)


class Machine(ForestMachine):
    make_ground = MemoryGround
    can_die = True


TestForestInMemory = pytest.mark.slow(Machine.TestCase)
TestForestInMemory.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
