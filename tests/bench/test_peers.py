"""The simulated half of `peers` reports both ways, and whether the goals are met."""

from __future__ import annotations

import anyio

from dsec.bench.context import BenchOptions, PureContext
from dsec.bench.peers import comparison, simulated_rows
from dsec.bench.peers_simulated import CASES, IN_STEP, TROUBLES, simulate
from dsec.bench.progress import Progress


def test_a_few_simulated_nodes_meet_the_goals() -> None:
    context = PureContext(options=BenchOptions(samples=1, count=6), progress=Progress())
    compared, in_step, *runs = simulated_rows(anyio.run(simulate, context))
    assert compared["what"] == "6 simulated nodes"
    assert in_step["what"] == "6 simulated nodes in step"
    assert compared["sent_most_of_mean"] <= 2.0
    assert {row["case"] for row in runs} == {*CASES, IN_STEP, *TROUBLES}


def test_a_goal_is_met_only_when_both_are() -> None:
    def met(peers_s: float, most: float) -> bool:
        return bool(comparison("x", central_s=[9.0], peers_s=[peers_s], sent_most_of_mean=most)["met"])

    assert met(3.0, 2.0)
    assert not met(3.1, 1.0)
    assert not met(1.0, 2.1)
