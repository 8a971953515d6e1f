"""The simulated half of `peers`: 500 nodes fetch one image, from the origin alone and from each other.

Tracker, choice, quarantine and upload limits are the code that live nodes run; time is the simulator's. The scenario is
the shipped ``image-peers``; each seed draws another order of events.
"""

from __future__ import annotations

import anyio.to_thread
import msgspec

from dsec.base.errors import CapabilityMissingError
from dsec.bench.context import PureContext
from dsec.model.value import Value

SCENARIO = "image-peers"
CASES = ("central", "peers")
IN_STEP = "peers, all in step"
TROUBLES = ("peers, 5 % give wrong bytes", "peers, 5 % accuse everybody", "peers, 5 % die")


class SimulatedRun(Value, frozen=True):
    """One case under one seed.

    Attributes:
        case: of the scenario.
        seed: of all randomness.
        nodes: how many fetched.
        ready_s: until the last can run its first command.
        complete_s: until the last has everything.
        origin_images: what the origin sent, in images.
        sent_most_of_mean: the most that a node sent, in means.
        wasted_bytes: that came and were of no use.
    """

    case: str
    seed: int
    nodes: int
    ready_s: float
    complete_s: float
    origin_images: float
    sent_most_of_mean: float
    wasted_bytes: float


async def simulate(context: PureContext) -> list[SimulatedRun]:
    """Run both cases for each seed, and those in step and with troubles once.

    Raises:
        CapabilityMissingError: the simulator's libraries are not installed.
    """
    seeds = range(1, context.options.samples + 1)
    runs = [(case, seed) for seed in seeds for case in CASES] + [(case, 1) for case in (IN_STEP, *TROUBLES)]
    found = []
    with context.progress.counting("simulated runs", len(runs)) as advance:
        for case, seed in runs:
            found.append(await anyio.to_thread.run_sync(_run, case, seed, context.options.count))
            advance()
    return found


def _run(case: str, seed: int, nodes: int | None) -> SimulatedRun:
    try:
        from dsec.sim.distribution.scenario import DistributionScenario
        from dsec.sim.running import run
        from dsec.sim.shipped import find_scenario
    except ModuleNotFoundError as error:
        raise CapabilityMissingError(
            f"the simulator needs {error.name}", resolution="pip install 'dsec[planning]'"
        ) from error
    ((_, scenario),) = find_scenario(SCENARIO).only((case,)).cases
    assert isinstance(scenario, DistributionScenario)
    if nodes is not None:
        scenario = msgspec.structs.replace(scenario, nodes=nodes)
    counts = run(scenario, seed=seed, case=case).counts
    return SimulatedRun(
        case=case,
        seed=seed,
        nodes=scenario.nodes,
        ready_s=round(counts["all_ready_s"], 4),
        complete_s=round(counts["all_complete_s"], 4),
        origin_images=round(counts["origin_images"], 3),
        sent_most_of_mean=round(counts["sent_most_of_mean"], 3),
        wasted_bytes=counts["wasted_bytes"],
    )
