"""Whatever breaks, no sandbox is lost from the books, caps hold, and the seed decides everything."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.sim.fleet.model import FleetModel
from dsec.sim.fleet.scenario import Failure, FleetScenario
from dsec.sim.result import Result
from dsec.sim.running import run
from dsec.sim.scenario_file import parse_scenario

Run = Callable[[str], Result]
Scenario = Callable[..., FleetScenario]

failures = st.lists(
    st.builds(
        Failure,
        at_s=st.floats(0, 50),
        kind=st.sampled_from(["node", "rack", "watcher", "scheduler"]),
        which=st.just(0),
        for_s=st.sampled_from([0.0, 5.0, 20.0]),
    ),
    max_size=4,
)


@settings(max_examples=20, deadline=None)
@given(failures=failures, seed=st.integers(0, 1000), idempotent=st.booleans())
def test_every_request_is_accounted_for(
    scenario: Scenario, failures: list[Failure], seed: int, idempotent: bool
) -> None:
    rules = msgspec.structs.replace(scenario().scheduling, idempotent=idempotent)
    counts = run(scenario(failures=tuple(failures), scheduling=rules), seed=seed).counts
    assert counts["asked"] == counts["created"] + counts["given_up"] + counts["waiting_at_end"]
    assert counts["created"] == counts["ended"] + counts["lost"] + counts["running_at_end"]


@settings(max_examples=15, deadline=None)
@given(failures=failures, seed=st.integers(0, 1000))
def test_nodes_hold_what_they_say_and_never_more_than_they_may(
    scenario: Scenario, failures: list[Failure], seed: int
) -> None:
    model = FleetModel(scenario(failures=tuple(failures)), seed)
    fullest = 0

    def look(_: float) -> None:
        nonlocal fullest
        fullest = max(fullest, *(node.held for node in model.nodes))
        for node in model.nodes:
            assert node.held == len(node.residents) + len(node.works)
            assert node.memory_bytes == node.held * (512 << 20)
            assert node.creating <= node.group.creations_at_once

    model.run(progress=look)
    assert 0 < fullest <= 20


def test_the_seed_decides_the_result(scenario: Scenario) -> None:
    one, two = run(scenario(), seed=5), run(scenario(), seed=5)
    assert one == two
    assert run(scenario(), seed=6) != one


def test_progress_changes_nothing(scenario: Scenario) -> None:
    assert run(scenario(), progress=lambda share: None) == run(scenario())


def test_a_lost_rack_is_asked_for_again_and_answered(scenario: Scenario) -> None:
    lost = scenario(failures=(Failure(at_s=30, kind="rack", which=1, for_s=10),), duration_s=120.0)
    counts = run(lost).counts
    assert counts["lost"] > 0
    assert counts["restarted"] == counts["lost"]


def test_a_lost_schedulers_requests_are_taken_over(scenario: Scenario) -> None:
    rules = msgspec.structs.replace(scenario().scheduling, takeover_s=3.0)
    lost = scenario(failures=(Failure(at_s=10, kind="scheduler", which=0),), scheduling=rules)
    counts = run(lost).counts
    assert counts["takeovers"] == 1
    assert counts["given_up"] == 0


def test_retries_without_ids_leave_sandboxes_behind_and_with_ids_do_not(scenario: Scenario) -> None:
    slow = msgspec.structs.replace(scenario().workloads[0], patience_s=30.0)
    nodes = (msgspec.structs.replace(scenario().nodes[0], link_bytes_per_s=0.3e9),)
    for idempotent in (True, False):
        rules = msgspec.structs.replace(scenario().scheduling, idempotent=idempotent)
        counts = run(scenario(nodes=nodes, workloads=(slow,), scheduling=rules)).counts
        assert counts["timed_out"] > 0
        assert (counts["leaked"] > 0) is not idempotent


def test_peers_take_load_from_the_registry(scenario: Scenario) -> None:
    shared = scenario().workloads[0]
    assert shared.images is not None
    peers = msgspec.structs.replace(shared, images=msgspec.structs.replace(shared.images, peers=True))
    alone, together = run(scenario(origin_bytes_per_s=5e9)), run(scenario(origin_bytes_per_s=5e9, workloads=(peers,)))
    assert together.counts["origin_bytes"] < alone.counts["origin_bytes"]
    assert together.counts["peer_bytes"] > 0


def test_a_whole_pull_moves_what_it_must(scenario: Scenario) -> None:
    result = run(scenario())
    assert result.counts["origin_bytes"] == result.counts["image_fetches"] * 2e9


def test_requests_go_to_the_cloud_only_above_the_threshold(small_fleet: str) -> None:
    text = small_fleet.replace(
        "[[workloads]]", '[[nodes]]\nname = "rented"\ncount = 2\ncloud = true\nmemory = "8 GiB"\n[[workloads]]', 1
    )
    text += "[bursting]\nabove_share = 0.2\nuntil_share = 0.1\n"
    base = parse_scenario("test", text.replace('patience = "40 s"', 'patience = "40 s"\nburst_share = 1.0')).base
    busy = run(base)
    assert busy.counts["sent_to_cloud"] > 0
    assert isinstance(base, FleetScenario)
    idle = msgspec.structs.replace(base.workloads[0].arrivals, rate_per_s=0.5)
    quiet = msgspec.structs.replace(base, workloads=(msgspec.structs.replace(base.workloads[0], arrivals=idle),))
    assert run(quiet).counts["sent_to_cloud"] == 0


@pytest.mark.parametrize(("protection", "low", "high"), [("none", 1.43, 1.48), ("core", 1.15, 1.2)])
def test_half_a_node_of_best_effort_work_slows_a_step_as_published(
    run_text: Run, protection: str, low: float, high: float
) -> None:
    result = run_text(f"""
        model = "fleet"
        duration = "10 min"
        warmup = "2 min"
        protection = "{protection}"
        nodes = [{{ count = 1, cores = 96, memory = "512 GiB" }}]
        [[workloads]]
        arrivals = {{ kind = "closed", concurrency = 10 }}
        rounds = 50
        model_call = "1 s"
        tool = "1 s"
        [[workloads]]
        best_effort = true
        arrivals = {{ kind = "closed", concurrency = 96 }}
        rounds = 50
        model_call = {{ kind = "exponential", mean = "5 s" }}
        tool = {{ kind = "exponential", mean = "5 s" }}
        """)
    assert low < result.figures["slowdown"].mean < high
