"""What goes to the cloud: the shell around `dsec.scheduling.bursting`."""

from __future__ import annotations

from collections.abc import Sequence

from dsec.scheduling.amounts import Amounts
from dsec.scheduling.bursting import BurstRules, plan_burst
from dsec.scheduling.job import Job, Member
from dsec.sim.fleet.node import SimNode
from dsec.sim.fleet.sandbox import SimSandbox
from dsec.sim.fleet.scenario import Bursting

_KNUTH = 2_654_435_761
"""Multiplicative hashing: which images the cloud has does not depend on their popularity."""
_LOOK_S = 1.0


class CloudGate:
    """Decide for each request whether it goes to the cloud.

    Args:
        rules: thresholds.
        nodes: the whole fleet.
    """

    def __init__(self, rules: Bursting, nodes: Sequence[SimNode]) -> None:
        self._rules = BurstRules(above=rules.above_share, until=rules.until_share)
        self._own = [node for node in nodes if not node.group.cloud]
        self._cloud = [node for node in nodes if node.group.cloud]
        for node in self._cloud:
            node.opens_s = float("inf")
        self._capacity = _sum(self._own, free=False)
        self._bursting = False
        self._opens_s: float | None = None
        self._looked_s = float("-inf")
        self._used: Amounts = {}
        self._free: Amounts = {}

    def sends(self, now_s: float, sandbox: SimSandbox) -> bool:
        """Say whether this request goes to the cloud. The first that would has the machines rented; it does not wait
        for them.
        """
        job = Job(
            job_id=sandbox.sandbox_id,
            project="",
            members=(Member(amounts={"memory": sandbox.memory_bytes, "sandboxes": 1}),),
            arrived_s=now_s,
            bursts=self._has_image(sandbox),
        )
        self._look(now_s)
        plan = plan_burst(
            [job],
            used=self._used,
            capacity=self._capacity,
            cloud_free=self._free,
            rules=self._rules,
            bursting=self._bursting,
        )
        self._bursting = plan.bursting
        if plan.jobs and self._opens_s is None:
            self._opens_s = now_s + max(node.group.ready_after_s for node in self._cloud)
            for node in self._cloud:
                node.opens_s = now_s + node.group.ready_after_s
        return bool(plan.jobs) and self._opens_s is not None and now_s >= self._opens_s

    def _look(self, now_s: float) -> None:
        """Add up what is used, once a second: who decides sees no more than a watcher tells."""
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._used, self._free = _used(self._own), _sum(self._cloud, free=True)

    def _has_image(self, sandbox: SimSandbox) -> bool:
        share = sandbox.kind.workload.burst_share
        number = 0 if sandbox.image is None else sandbox.image
        return (number + 1) * _KNUTH % (1 << 32) < share * (1 << 32)


def _used(nodes: Sequence[SimNode]) -> Amounts:
    return {"memory": sum(node.memory_bytes for node in nodes), "sandboxes": sum(node.held for node in nodes)}


def _sum(nodes: Sequence[SimNode], *, free: bool) -> Amounts:
    memory = sum(node.group.memory_bytes - node.group.free_memory_bytes for node in nodes)
    sandboxes = sum(node.group.maximum_sandboxes for node in nodes)
    if not free:
        return {"memory": memory, "sandboxes": sandboxes}
    used = _used(nodes)
    return {"memory": memory - int(used["memory"]), "sandboxes": sandboxes - int(used["sandboxes"])}
