"""The ready level: how many sandboxes should stand ready now.

Theory. Tasks arrive at rate r and keep a sandbox for a mean time h; made clean again (in a mean time c) it serves
another task. Within the next T seconds r*T tasks arrive. Those that end within T give their sandboxes back for the
later ones, so that by Little's law the arrivals of the horizon never hold more than::

    need = r * min(T, h + c)

at once. That many are kept ready: then the horizon's tasks are served even if no sandbox that is in use now comes
back and no creation ends. A task that creates and drops ten sandboxes a second has h near zero and so adds next to
nothing. Before any sandbox came back h is unknown and counts as long. The floor `max(share * concurrency, floor)`
carries the first seconds of a burst that no average has seen yet.

Sources: DeepSeek Elastic Compute (arXiv 2609.22978), the pools of its placement engine; the training report: rate
of the last minute, mean use, ten seconds ahead, and the default `max(0.15 * concurrency, 20)`. J. D. C. Little, "A
Proof for the Queuing Formula L = lambda W", Operations Research 9 (3), 1961.
"""

from __future__ import annotations

import math

from dsec.model.pool import PoolPolicy


def ready_level(
    policy: PoolPolicy,
    *,
    arrival_rate_per_s: float,
    hold_time_s: float | None,
    recycle_time_s: float,
    concurrency: int,
) -> int:
    """Return how many sandboxes should stand ready.

    Args:
        policy: floor, share, horizon and the caps.
        arrival_rate_per_s: tasks per second over the last minute.
        hold_time_s: mean time that a task keeps a sandbox; None: not known, counts as longer than the horizon.
        recycle_time_s: mean time from a return to ready.
        concurrency: sandboxes in use, and tasks that wait for one.
    """
    if policy.fixed_level is not None:
        wanted = policy.fixed_level
    else:
        busy_s = policy.horizon_s if hold_time_s is None else min(policy.horizon_s, hold_time_s + recycle_time_s)
        need = _ceil(arrival_rate_per_s * busy_s)
        wanted = max(need, _ceil(policy.concurrency_share * concurrency), policy.floor)
    if policy.maximum_ready is not None:
        wanted = min(wanted, policy.maximum_ready)
    return wanted if policy.maximum is None else min(wanted, policy.maximum)


def _ceil(value: float) -> int:
    """Round up, but take 20.000000000000004 for the 20 that was meant."""
    return math.ceil(round(value, 9))
