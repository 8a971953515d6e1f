"""Nodes that all read the same chunks in the same order, behind slow links: the hardest case for peers, and what real
nodes do that start the same command at the same moment (`dsec.bench.peers_live`).
"""

from __future__ import annotations

import msgspec
import pytest

from dsec.sim.distribution.scenario import DistributionScenario
from dsec.sim.running import run

_LINK = 12.5e6


@pytest.mark.parametrize("parallel", [2, 3])
def test_nodes_in_step_are_three_times_as_fast_and_share_the_sending(parallel: int) -> None:
    scenario = DistributionScenario(
        seed=1,
        nodes=8,
        image_bytes=96 << 20,
        first_share=1.0,
        parallel=parallel,
        link_bytes_per_s=_LINK,
        origin_bytes_per_s=_LINK,
    )
    peers = run(scenario, seed=1, case="peers").counts
    central = run(msgspec.structs.replace(scenario, way="central"), seed=1, case="central").counts
    assert central["all_complete_s"] > 3 * peers["all_complete_s"]
    assert peers["origin_images"] < 1.2
    assert peers["sent_most_of_mean"] <= 2.0
