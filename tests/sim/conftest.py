"""Scenarios small enough for tests."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from dsec.sim.fleet.scenario import FleetScenario
from dsec.sim.result import Result
from dsec.sim.running import run
from dsec.sim.scenario_file import parse_scenario

SMALL_FLEET = """
model = "fleet"
duration = "60 s"
sample_every = "1 s"
[[nodes]]
count = 6
racks = 3
memory = "16 GiB"
maximum_sandboxes = 20
creations_at_once = 4
create = "200 ms"
link = "10 Gbit/s"
image_cache = "20 GB"
[[workloads]]
arrivals = { kind = "poisson", rate = "4 /s" }
lifetime = { kind = "exponential", mean = "10 s" }
patience = "40 s"
[workloads.images]
count = 30
size = "2 GB"
fanout = 3
[scheduling]
schedulers = 2
view_every = "1 s"
retries = { create_timeout = "5 s" }
"""


@pytest.fixture(scope="session")
def small_fleet() -> str:
    """The text of a small fleet's scenario."""
    return SMALL_FLEET


@pytest.fixture(scope="session")
def scenario() -> Callable[..., FleetScenario]:
    """Make the small fleet's scenario, with changes."""

    def make(**changes: object) -> FleetScenario:
        base = parse_scenario("test", SMALL_FLEET).base
        assert isinstance(base, FleetScenario)
        return msgspec.structs.replace(base, **changes)

    return make


@pytest.fixture
def run_text() -> Callable[[str], Result]:
    """Run the text of a scenario."""

    def run_it(text: str) -> Result:
        return run(parse_scenario("test", text).base)

    return run_it
