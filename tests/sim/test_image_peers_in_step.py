"""Nodes that all read the same chunks in the same order, behind slow links: the hardest case for peers, and what real
nodes do that start the same command at the same moment (`dsec.bench.peers_live`).
"""

from __future__ import annotations

import msgspec
import pytest

from dsec.sim.distribution.model import DistributionModel
from dsec.sim.distribution.node import Nature
from dsec.sim.distribution.scenario import DistributionScenario, Troubles
from dsec.sim.running import run

_LINK = 12.5e6


@pytest.mark.parametrize(("parallel", "pause_s"), [(1, 0.0), (1, 0.2), (2, 0.05), (3, 0.0)])
@pytest.mark.parametrize("seed", [1, 2])
def test_nodes_in_step_are_three_times_as_fast_and_share_the_sending(parallel: int, pause_s: float, seed: int) -> None:
    scenario = DistributionScenario(
        seed=1,
        nodes=8,
        image_bytes=96 << 20,
        first_share=1.0,
        parallel=parallel,
        pause_s=pause_s,
        ahead=0 if parallel == 1 else 32,  # Who reads does not know what it reads next.
        link_bytes_per_s=_LINK,
        origin_bytes_per_s=_LINK,
    )
    peers = run(scenario, seed=seed, case="peers").counts
    central = run(msgspec.structs.replace(scenario, way="central"), seed=seed, case="central").counts
    assert central["all_complete_s"] > 3 * peers["all_complete_s"]
    assert peers["origin_images"] < 1.2
    assert peers["sent_most_of_mean"] <= 1.8


def test_a_chain_of_nodes_costs_little_more_than_one_of_them() -> None:
    scenario = DistributionScenario(
        seed=1,
        nodes=8,
        image_bytes=64 << 20,
        first_share=1.0,
        parallel=1,
        link_bytes_per_s=_LINK,
        origin_bytes_per_s=_LINK,
        ahead=0,
    )
    alone = run(msgspec.structs.replace(scenario, nodes=1), seed=1, case="alone").counts
    together = run(scenario, seed=1, case="together").counts
    assert together["all_complete_s"] < 1.2 * alone["all_complete_s"]
    assert together["sent_most_of_mean"] < 1.2, "all but the last of the chain send each chunk once"


@pytest.mark.parametrize("seed", [5, 6, 8])
def test_who_gives_wrong_bytes_in_the_middle_of_a_chain_is_the_only_one_that_is_accused(seed: int) -> None:
    scenario = DistributionScenario(
        seed=1,
        nodes=8,
        image_bytes=96 << 20,
        first_share=1.0,
        parallel=1,
        link_bytes_per_s=_LINK,
        origin_bytes_per_s=_LINK,
        ahead=0,
        troubles=Troubles(wrong_share=0.25),
    )
    model = DistributionModel(scenario, seed)
    counts = model.run().counts
    assert counts["complete"] == 8
    assert counts["failures_broken"] > 0, "what it gave was passed on before anybody knew"
    bad = {node.name for node in model.nodes if node.nature is Nature.WRONG}
    assert bad
    assert set(model.tracker.statistics(model.calendar.now_s).quarantined) <= bad
    assert counts["reporter_distrusted"] == 0
