"""Two nodes of fakes in one process conform."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dsec.testing.fleet import fleet_of
from dsec.testing.migration_suite import MigrationSuite, Pair


class TestMemory(MigrationSuite):
    @pytest.fixture
    async def pair(self) -> AsyncIterator[Pair]:
        async with fleet_of("nodea", "nodeb") as fleet:
            yield Pair(here=fleet.nodes["nodea"], there=fleet.nodes["nodeb"], source="nodea", target="nodeb")
