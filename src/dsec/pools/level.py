"""The ready level: how many sandboxes should stand ready now.

Theory. Tasks arrive at rate r, unevenly: the counts of a second have the dispersion d (variance over mean; 1 for
independent tasks, n for groups of n). Each keeps a sandbox for a mean time h, the time to make it clean again
included. N are in use or waited for now. When nothing else changes, their number in T seconds has the mean (of an
M/G/infinity queue on its way from N to its mean r*h) and a spread::

    growth = (r*h - N) * (1 - exp(-T/h))
    spread = sqrt(d * r * min(T, h))

`growth` is what the next T seconds are expected to need beyond what they get back; zero when all is steady. What is
kept ready is the larger of the growth and some spreads: while a job begins its growth is more than any chance,
afterwards only chance is left. So a burst is served as surely when little comes as when much does; in proportion to
the rate one would keep too much in busy times and too little in quiet ones. A task that creates and drops ten
sandboxes a second has h near zero and so adds next to nothing. Before any sandbox came back h is unknown, and
nothing is expected back. The floor `max(share * N, floor)` carries the first seconds of a burst that no average has
seen yet.

Sources: DeepSeek Elastic Compute (arXiv 2609.22978), the pools of its placement engine; the training report: rate
of the last minute, mean use, ten seconds ahead, and the default `max(0.15 * concurrency, 20)`. The transient of
M/G/infinity: S. G. Eick, W. A. Massey and W. Whitt, "The Physics of the Mt/G/infinity Queue", Operations Research
41 (4), 1993. Spreads as safety stock: the newsvendor rule.
"""

from __future__ import annotations

import math

from dsec.model.pool import PoolPolicy


def ready_level(
    policy: PoolPolicy,
    *,
    arrival_rate_per_s: float,
    dispersion: float,
    hold_time_s: float | None,
    recycle_time_s: float,
    concurrency: int,
) -> int:
    """Return how many sandboxes should stand ready.

    Args:
        policy: floor, share, horizon and the caps.
        arrival_rate_per_s: tasks per second over the last minute.
        dispersion: variance over mean of their counts.
        hold_time_s: mean time that a task keeps a sandbox; None: not known.
        recycle_time_s: mean time from a return to ready.
        concurrency: sandboxes in use, and tasks that wait for one.
    """
    if policy.fixed_level is not None:
        wanted = policy.fixed_level
    else:
        busy_s = None if hold_time_s is None else hold_time_s + recycle_time_s
        need = _need(policy, arrival_rate_per_s, dispersion, busy_s, concurrency)
        wanted = max(_ceil(need), _ceil(policy.concurrency_share * concurrency), policy.floor)
    if policy.maximum_ready is not None:
        wanted = min(wanted, policy.maximum_ready)
    return wanted if policy.maximum is None else min(wanted, policy.maximum)


def _need(policy: PoolPolicy, rate_per_s: float, dispersion: float, busy_s: float | None, concurrency: int) -> float:
    horizon_s = policy.horizon_s
    if busy_s is None:
        growth, seen_s = rate_per_s * horizon_s, horizon_s
    elif busy_s <= 0:
        return 0.0
    else:
        growth = (rate_per_s * busy_s - concurrency) * -math.expm1(-horizon_s / busy_s)
        seen_s = min(horizon_s, busy_s)
    return max(growth, policy.spreads * math.sqrt(dispersion * rate_per_s * seen_s))


def _ceil(value: float) -> int:
    """Round up, but take 20.000000000000004 for the 20 that was meant."""
    return math.ceil(round(value, 9))
