"""Nodes that all read the same chunks in the same order, behind slow links: the hardest case for peers, and what real
nodes do that start the same command at the same moment (`dsec.bench.peers_live`).
"""

from __future__ import annotations

from typing import Any

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


def _many(**fields: Any) -> DistributionScenario:
    """250 nodes in step: the tracker would be all that is waited for if each asked it for each chunk."""
    return DistributionScenario(
        seed=1,
        nodes=250,
        first_share=1.0,
        parallel=1,
        ahead=0,
        origin_bytes_per_s=50 * 1.25e8,
        **fields,
    )


@pytest.mark.slow
def test_many_nodes_in_step_are_three_times_as_fast_and_share_the_sending() -> None:
    model = DistributionModel(_many(image_bytes=256 << 20), 1)
    peers = model.run().counts
    central = run(_many(way="central", image_bytes=256 << 20), seed=1, case="central").counts
    assert central["all_complete_s"] > 3 * peers["all_complete_s"]
    assert model.tracker.statistics(model.calendar.now_s).lookups < 250 * 64 / 2
    assert peers["origin_images"] < 1.1
    assert peers["sent_most_of_mean"] <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "troubles",
    [Troubles(wrong_share=0.05), Troubles(failing_share=0.05), Troubles(lying_share=0.05)],
    ids=["wrong bytes", "deaths", "accusers"],
)
def test_what_goes_wrong_among_many_nodes_in_step_costs_time_and_nobody_honest(troubles: Troubles) -> None:
    model = DistributionModel(_many(troubles=troubles, image_bytes=64 << 20), 1)
    counts = model.run().counts
    assert counts["complete"] >= counts["living"]
    assert counts["origin_images"] < 2
    bad = {node.name for node in model.nodes if node.nature is not Nature.HONEST or not node.alive}
    assert bad
    assert set(model.tracker.statistics(model.calendar.now_s).quarantined) <= bad
