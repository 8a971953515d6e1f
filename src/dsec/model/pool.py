"""Pools of ready sandboxes: what can be set about one, and what one looks like at an instant."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from dsec.model.sandbox import SandboxSpec
from dsec.model.value import Value


class PoolPolicy(Value, frozen=True):
    """What can be set about one pool.

    Attributes:
        floor: ready sandboxes that are kept at least, whatever the arrivals.
        concurrency_share: ready sandboxes kept at least, as a share of the sandboxes in use.
        window_s: how far back the arrival rate looks.
        horizon_s: how far ahead the ready level looks.
        spreads: how many spreads of the arrivals are kept ready beyond their mean.
        fixed_level: keep exactly so many ready and follow nothing; None: follow the arrivals.
        maximum: sandboxes of the pool at most: ready, in use, being made, recycled or destroyed; None: no cap of
            its own.
        maximum_ready: ready sandboxes at most; None: no cap of its own.
        maximum_waiting: tasks that may wait; one more is refused.
        creations_at_once: creations in flight at most.
        recycles_at_once: recycles in flight at most.
        slack_share: by which share the ready sandboxes may exceed the level before one is given up.
        shrink_after_s: for how long they must have exceeded it.
        failed_checks_until_fresh: failed clean checks in a row after which the pool no longer recycles.
        recycle_again_after_s: after that long one recycle is tried again.
    """

    floor: int = 20
    concurrency_share: float = 0.15
    window_s: float = 60.0
    horizon_s: float = 10.0
    spreads: float = 3.0
    fixed_level: int | None = None
    maximum: int | None = None
    maximum_ready: int | None = None
    maximum_waiting: int = 4096
    creations_at_once: int = 4
    recycles_at_once: int = 4
    slack_share: float = 0.1
    shrink_after_s: float = 10.0
    failed_checks_until_fresh: int = 3
    recycle_again_after_s: float = 300.0


class PoolChange(Value, frozen=True):
    """What to set anew about a pool; what is left out stays, and is the node's default in a new pool. See
    `PoolPolicy`."""

    floor: int | UnsetType = UNSET
    concurrency_share: float | UnsetType = UNSET
    window_s: float | UnsetType = UNSET
    horizon_s: float | UnsetType = UNSET
    spreads: float | UnsetType = UNSET
    fixed_level: int | UnsetType | None = UNSET
    maximum: int | UnsetType | None = UNSET
    maximum_ready: int | UnsetType | None = UNSET
    maximum_waiting: int | UnsetType = UNSET
    creations_at_once: int | UnsetType = UNSET
    recycles_at_once: int | UnsetType = UNSET
    slack_share: float | UnsetType = UNSET
    shrink_after_s: float | UnsetType = UNSET
    failed_checks_until_fresh: int | UnsetType = UNSET
    recycle_again_after_s: float | UnsetType = UNSET


class PoolStatistics(Value, frozen=True):
    """One reading of a pool.

    Attributes:
        level: ready sandboxes that are wanted now.
        waiting: tasks that wait.
        oldest_wait_s: how long the first of them has waited; 0 when none waits.
        ready: sandboxes that stand ready.
        in_use: sandboxes that tasks have.
        creating: creations in flight.
        recycle_queue: returned sandboxes whose recycle has not begun.
        recycling: recycles in flight.
        leaving: sandboxes being destroyed.
        arrival_rate_per_s: tasks in the last minute, per second.
        creation_rate_per_s, recycle_rate_per_s: sandboxes made and recycled in the last minute, per second.
        hold_time_s: mean time that a task keeps a sandbox; None before the first came back.
        hand_outs, creations, recycles, creation_failures, failed_checks, refusals: since the pool began.
        recycles_now: whether returned sandboxes are recycled; False after too many failed clean checks.
        warnings: what is wrong now, in words.
    """

    level: int
    waiting: int = 0
    oldest_wait_s: float = 0.0
    ready: int = 0
    in_use: int = 0
    creating: int = 0
    recycle_queue: int = 0
    recycling: int = 0
    leaving: int = 0
    arrival_rate_per_s: float = 0.0
    creation_rate_per_s: float = 0.0
    recycle_rate_per_s: float = 0.0
    hold_time_s: float | None = None
    hand_outs: int = 0
    creations: int = 0
    recycles: int = 0
    creation_failures: int = 0
    failed_checks: int = 0
    refusals: int = 0
    recycles_now: bool = True
    warnings: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Every sandbox that counts against the cap."""
        return self.ready + self.in_use + self.creating + self.recycle_queue + self.recycling + self.leaving


class PoolInfo(Value, frozen=True):
    """A pool of a node.

    Attributes:
        pool_id: its name: the image, and a digest of the shape.
        spec: what its sandboxes are made as; fields that are set at hand-out are left at their defaults.
        policy: what is set about it.
        statistics: a reading.
    """

    pool_id: str
    spec: SandboxSpec
    policy: PoolPolicy
    statistics: PoolStatistics
