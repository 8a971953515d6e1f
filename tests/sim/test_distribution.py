"""Distribution between simulated nodes: faster than central, fair, and whole whatever goes wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dsec.sim.distribution.model import DistributionModel
from dsec.sim.distribution.scenario import DistributionScenario, Troubles
from dsec.sim.result import Result
from dsec.sim.running import run

MIB = 1 << 20
SMALL = DistributionScenario(duration_s=600.0, nodes=24, image_bytes=64 * MIB)


def result_of(seed: int = 1, **changes: Any) -> Result:
    return run(msgspec.structs.replace(SMALL, **changes), seed=seed)


def test_central_takes_what_the_origin_needs_for_all_copies() -> None:
    result = result_of(way="central", origin_bytes_per_s=1e9)
    expected_s = SMALL.nodes * SMALL.image_bytes / 1e9
    assert result.counts["all_complete_s"] == pytest.approx(expected_s, rel=0.1)
    assert result.counts["origin_images"] == SMALL.nodes


@pytest.mark.parametrize("nodes", [8, 30])
def test_peers_are_three_times_as_fast_and_nobody_sends_twice_the_mean(nodes: int) -> None:
    slow: dict[str, Any] = {"nodes": nodes, "image_bytes": 64 * MIB, "origin_bytes_per_s": 2e9, "link_bytes_per_s": 2e9}
    central, peers = result_of(way="central", **slow), result_of(**slow)
    assert central.counts["all_complete_s"] > 3 * peers.counts["all_complete_s"]
    assert peers.counts["sent_most_of_mean"] < 2.0
    assert peers.counts["origin_images"] < 1.5


def test_nodes_that_come_later_take_nothing_from_the_origin() -> None:
    result = result_of(nodes=12, waves=2, wave_every_s=30.0)
    assert result.counts["complete"] == 12
    assert result.counts["origin_images"] == pytest.approx(1.0)


def test_a_seed_spares_the_origin() -> None:
    assert result_of(seeds=1).counts["origin_bytes"] == 0


def test_a_result_is_determined_by_the_seed() -> None:
    assert result_of(seed=3, nodes=8) == result_of(seed=3, nodes=8)
    assert result_of(seed=3, nodes=8) != result_of(seed=4, nodes=8)


TROUBLES = {
    "wrong": Troubles(wrong_share=0.2),
    "stalling": Troubles(stalling_share=0.2),
    "lying": Troubles(lying_share=0.2),
    "dying": Troubles(failing_share=0.2, failing_within_s=0.05),
    "slow": Troubles(slow_share=0.2, slow_bytes_per_s=2.5e8),
    "forgetful tracker": Troubles(tracker_restarts_s=(0.01, 0.02, 0.05)),
    "all at once": Troubles(
        wrong_share=0.1, stalling_share=0.1, lying_share=0.1, failing_share=0.1, slow_share=0.1,
        tracker_restarts_s=(0.02,),
    ),
    "nobody honest": Troubles(wrong_share=1.0),
    "nobody answers": Troubles(stalling_share=1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", TROUBLES)
def test_who_lives_gets_everything_whatever_goes_wrong(name: str) -> None:
    model = DistributionModel(msgspec.structs.replace(SMALL, troubles=TROUBLES[name]), 2)
    result = model.run()
    assert result.counts["complete"] >= result.counts["living"]
    for node in model.nodes:
        if node.alive:
            assert len(node.have) == SMALL.chunks
            assert not node.under_way
        assert node.uploads.sending >= 0
        assert node.uploads.held >= 0


def test_bad_peers_are_found_and_accusers_of_many_are_not_believed() -> None:
    bad = result_of(nodes=30, troubles=Troubles(wrong_share=0.1)).counts
    assert bad["block_quarantined"] > 0
    assert bad["peer_quarantined"] > 0
    assert bad["reporter_distrusted"] == 0
    lying = result_of(nodes=30, image_bytes=256 * MIB, troubles=Troubles(lying_share=0.1)).counts
    assert lying["reporter_distrusted"] > 0


def test_no_upload_is_left_over_and_nothing_is_sent_beyond_the_slots() -> None:
    model = DistributionModel(SMALL, 1)
    most = 0

    def watch(now_s: float, _: None) -> None:
        nonlocal most
        most = max(most, *(node.uploads.sending for node in model.nodes))
        model.calendar.at(now_s + 0.001, watch)

    model.calendar.at(0.001, watch)
    model.run()
    assert 0 < most <= SMALL.uploads.slots
