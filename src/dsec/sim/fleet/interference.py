"""How much best-effort work on a node slows a latency-sensitive step.

DeepSeek Elastic Compute (arXiv 2609.22978, section 8.5) gives one point: with best-effort work on half of a node's
capacity, a step takes 45.2 %
longer without protection, about the same with `SCHED_IDLE` alone (which improved it by 3.4 points at most), and 17.3 %
longer with core
scheduling as well. Two mechanisms are told apart by these figures. A neighbour on the other hardware thread of the
core takes execution units and
first-level cache; core scheduling takes it away. Clock frequency, memory bandwidth and the last level of cache are
shared by the whole chip; nothing
here takes that away. With b the share of the node's cores that best-effort work has:

    slowdown = (1 + thread * b) * (1 + chip * b)

where ``1 + chip / 2 = 1.173`` and ``(1 + thread / 2) * (1 + chip / 2) = 1.452``. That a thread whose neighbour is busy
then runs at
1 / (1 + thread) = 68 % of its speed is in the usual range of simultaneous multithreading. That both effects are linear
in b is our assumption: only the
point at one half is published, so that results at one half are what was put in, and all others are extrapolation.
"""

from __future__ import annotations

from typing import Literal

Protection = Literal["none", "idle", "core"]
"""Nothing; best-effort work in `SCHED_IDLE`; that and core scheduling for latency-sensitive work."""

CHIP = 2 * 0.173
THREAD = 2 * (1.452 / 1.173 - 1)
_IDLE_GAIN = 0.034
"""`SCHED_IDLE` alone improves a step by at most so much of its undisturbed time at b = 1/2."""


def slowdown(protection: Protection, best_effort_share: float) -> float:
    """Return by which factor a latency-sensitive step takes longer.

    Args:
        protection: what the host does.
        best_effort_share: of the node's cores, what best-effort work occupies, 0 to 1.
    """
    share = min(1.0, best_effort_share)
    chip = 1.0 + CHIP * share
    if protection == "core":
        return chip
    return (1.0 + THREAD * share) * chip - (2 * _IDLE_GAIN * share if protection == "idle" else 0.0)
