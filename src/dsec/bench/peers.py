"""`peers`: how long until every node has an image, when nodes take chunks from each other; beside taking all from the
store.

Two things are reported: what the live policies do with 500 simulated nodes (`dsec.bench.peers_simulated`), and what
real nodes do. The goals are the same for both: at least 3 times as fast as central distribution, and no node that sends
more than twice the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from dsec.bench.context import PureContext
from dsec.bench.distribution import distribution, ratio
from dsec.bench.peers_live import CENTRAL as LIVE_CENTRAL
from dsec.bench.peers_live import NODES, OWN_ORDER, SAME_AGAIN, SAME_ORDER, LiveRun, as_row, measure_live, of_way
from dsec.bench.peers_simulated import CASES, IN_STEP, TROUBLES, SimulatedRun, simulate
from dsec.bench.report import Report, make_report
from dsec.bench.tracker_cost import TrackerCost, measure_tracker

CENTRAL = "central: every node takes all from the store"
GOAL_TIMES_FASTER = 3.0
GOAL_SENT_MOST_OF_MEAN = 2.0


async def bench_peers(context: PureContext) -> Report:
    """Simulate both ways, seed after seed; then measure them on real nodes, where this host can."""
    runs = await simulate(context)
    context.note("simulated; the policies are the live ones, and time is the simulator's")
    central, peers = (_of_case(runs, case) for case in CASES)
    cost = await measure_tracker()
    context.note("what a tracker's messages cost it was measured over HTTP on this host, as busy as it is")
    return make_report(
        "peers",
        "s",
        "lower",
        ours=distribution([run.complete_s for run in peers]),
        references={CENTRAL: distribution([run.complete_s for run in central])},
        series=[*simulated_rows(runs), tracker_row(cost), *live_rows(await measure_live(context))],
        host=context.host,
    )


def simulated_rows(runs: Sequence[SimulatedRun]) -> list[dict[str, Any]]:
    """Return the rows of the simulated half: two that compare, then each run."""
    central, peers = (_of_case(runs, case) for case in CASES)
    compared = comparison(
        f"{peers[0].nodes} simulated nodes",
        central_s=[run.complete_s for run in central],
        peers_s=[run.complete_s for run in peers],
        sent_most_of_mean=max(run.sent_most_of_mean for run in peers),
    )
    compared["first_command_times_faster"] = ratio(
        max(run.ready_s for run in central), max(run.ready_s for run in peers)
    )
    compared["slowest_with_troubles_s"] = max(run.complete_s for run in runs if run.case in TROUBLES)
    in_step = _of_case(runs, IN_STEP)
    together = comparison(
        f"{peers[0].nodes} simulated nodes in step",
        central_s=[run.complete_s for run in central],
        peers_s=[run.complete_s for run in in_step],
        sent_most_of_mean=max(run.sent_most_of_mean for run in in_step),
    )
    return [compared, together, *({"what": "simulated, one run", **msgspec.to_builtins(run)} for run in runs)]


def tracker_row(cost: TrackerCost) -> dict[str, Any]:
    """Return what a tracker's messages cost it here."""
    return {"what": "a tracker's processor time", **{name: round(value, 1) for name, value in asdict(cost).items()}}


def live_rows(runs: Sequence[LiveRun]) -> list[dict[str, Any]]:
    """Return the rows of the live half: one that compares for each way, then each run; none if nothing was measured."""
    if not runs:
        return []
    central_s = [run.complete_s for run in of_way(runs, LIVE_CENTRAL)]
    compared = []
    for way in (OWN_ORDER, SAME_ORDER, SAME_AGAIN):
        mine = of_way(runs, way)
        row = comparison(
            f"{NODES} real nodes, {way}",
            central_s=central_s,
            peers_s=[run.complete_s for run in mine],
            sent_most_of_mean=max(run.sent_most_of_mean for run in mine),
        )
        compared.append(row)
    return [*compared, *map(as_row, runs)]


def comparison(
    what: str, *, central_s: Sequence[float], peers_s: Sequence[float], sent_most_of_mean: float
) -> dict[str, Any]:
    """Return a row that says whether the goals are met.

    Args:
        what: which nodes.
        central_s, peers_s: until the last node had everything, sample by sample.
        sent_most_of_mean: the most that a node sent, in means, in the worst sample.
    """
    times_faster = ratio(distribution(central_s).p50, distribution(peers_s).p50)
    return {
        "what": what,
        "central_p50_s": distribution(central_s).p50,
        "peers_p50_s": distribution(peers_s).p50,
        "times_faster": times_faster,
        "goal_times_faster": GOAL_TIMES_FASTER,
        "sent_most_of_mean": sent_most_of_mean,
        "goal_sent_most_of_mean": GOAL_SENT_MOST_OF_MEAN,
        "met": times_faster >= GOAL_TIMES_FASTER and sent_most_of_mean <= GOAL_SENT_MOST_OF_MEAN,
    }


def _of_case(runs: Sequence[SimulatedRun], case: str) -> list[SimulatedRun]:
    return [run for run in runs if run.case == case]
