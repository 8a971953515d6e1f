"""Random forests whose sandboxes also move between two nodes: everything that they are goes along, and nothing stays.

`DSEC_TEST_EXAMPLES` makes it long.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import precondition, rule

from dsec.model.image import ImageInfo
from dsec.model.sandbox import SandboxFilter, SandboxInfo, SandboxState
from dsec.model.state import MigrationRequest
from dsec.node.node import Node
from dsec.sdk.state import state_of
from dsec.service.port import SandboxService
from dsec.testing.crash_points import settle
from dsec.testing.faults import check_no_leak
from dsec.testing.fleet import Fleet, FleetPeers
from dsec.testing.forest_machine import NUMBER, ForestMachine
from dsec.testing.forest_model import Files
from dsec.testing.memory_node import CountingBytes, MemoryHost

EXAMPLES = int(os.environ.get("DSEC_TEST_EXAMPLES", "12"))
NAMES = ("nodea", "nodeb")


class _Methods:
    """Operations of whichever node has the sandbox that is named first; those on none go to the first node."""

    def __init__(self, fleet: Fleet, part: Callable[[Node], Any]) -> None:
        self._fleet, self._part = fleet, part

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            named = kwargs.get("sandbox_id") if name == "create" else next(iter(args), None)
            return getattr(self._part(self.holder(named)), name)(*args, **kwargs)

        return call

    def holder(self, sandbox_id: object) -> Node:
        nodes = [self._fleet.nodes[name] for name in NAMES]
        return next((node for node in nodes if node._core.registry.get(str(sandbox_id)) is not None), nodes[0])


class Both(_Methods):
    """Two nodes as one service."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet, lambda node: node)
        self.state = _Methods(fleet, lambda node: node.state)
        self.fleet = fleet

    async def list(self, query: SandboxFilter = SandboxFilter()) -> Sequence[SandboxInfo]:
        return [info for node in self.fleet.nodes.values() for info in await node.list(query)]

    async def images(self) -> Sequence[ImageInfo]:
        return await self.fleet.nodes[NAMES[0]].images()


class FleetGround:
    """Two hosts in memory with one store."""

    images: Mapping[str, Files] = {"python": {}}
    is_dead = False

    def __init__(self) -> None:
        self._hosts = {
            name: MemoryHost(node_id=name, random_bytes=CountingBytes(number * 10_000))
            for number, name in enumerate(NAMES)
        }
        self._hosts[NAMES[1]].store = self._hosts[NAMES[0]].store

    @asynccontextmanager
    async def node(self) -> AsyncIterator[SandboxService]:
        async with anyio.create_task_group() as group:
            fleet = Fleet(group, self._hosts)
            for host in self._hosts.values():
                host.peers = FleetPeers(fleet)
            for name in NAMES:
                await fleet.start(name)
            yield Both(fleet)  # type: ignore[misc]
            for name in NAMES:
                await fleet.stop(name)
            group.cancel_scope.cancel()

    def arm(self, step: int) -> None:
        """Deaths in migrations are enumerated (`test_migration_crash_points`)."""

    async def settle(self, service: SandboxService) -> None:
        await settle()

    async def check(self, service: SandboxService) -> None:
        assert isinstance(service, Both)
        for name in NAMES:
            await check_no_leak(self._hosts[name], service.fleet.nodes[name])

    async def check_empty(self, service: SandboxService) -> None:
        await self.check(service)
        for host in self._hosts.values():
            assert not host.layers.names()
            assert not await host.runtime.instances()

    def close(self) -> None:
        """It is memory."""


class Machine(ForestMachine):
    make_ground = FleetGround

    @precondition(lambda self: self.forest.boxes)
    @rule(who=NUMBER)
    def migrate(self, who: int) -> None:
        if (chosen := self._live(who)) is None or chosen[1].state is not SandboxState.READY:
            return
        name, box = chosen
        assert isinstance(self.service, Both)
        here = self.service.holder(name).node_id
        there = next(each for each in NAMES if each != here)
        request = MigrationRequest(node=there)
        after = self.forest.having({name: replace(box, generation=box.generation + 1)})
        self.do(f"{name}: migrate to {there}", lambda s: state_of(s).migrate(name, request), after)

    @precondition(lambda self: False)
    @rule()
    def pack(self) -> None:
        """An image is on one node only, and what stands on it cannot move."""


TestForestThatMoves = pytest.mark.slow(Machine.TestCase)
TestForestThatMoves.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
