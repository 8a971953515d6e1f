"""Two nodes of fakes behind servers conform, asked by a client that follows sandboxes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.testing.http_fleet import http_fleet
from dsec.testing.migration_suite import MigrationSuite, Pair


class TestOverHttp(MigrationSuite):
    @pytest.fixture
    async def pair(self, tmp_path: Path) -> AsyncIterator[Pair]:
        async with http_fleet(tmp_path, "nadea", "nadeb") as fleet:
            here, there = fleet["nadea"], fleet["nadeb"]
            yield Pair(here=here.client, there=there.client, source="nadea", target="nadeb")
