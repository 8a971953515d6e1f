"""What sharing a physical core costs the task that must not wait.

Two hardware threads of a core share its execution units. A scheduler that gives way between *threads* still lets a
best-effort task run on the second thread of the core on which a latency-sensitive one works; core scheduling keeps
strangers off that thread. Measured slowdowns x go into two questions:

    time of a step beside others          t (1 + x)
    longest step that meets a deadline    d / (1 + x)          measured alone

A step that waits for something else has to be counted apart: only its computing slows down.

What remains under core scheduling (clock frequency, memory bandwidth, last-level cache) is not isolated by it. A host
without simultaneous threads has no such interference, and half as many logical cores.

Assumes that the slowdown measured at one load of the node holds for the load asked about. Source: the chapter,
section 11.3.2, figures 11-29 and 11-30; "DeepSeek Elastic Compute", arXiv 2609.22978, sections 8.4 and 8.5.
"""

from __future__ import annotations

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_count, check_not_negative, check_positive


def slowed_step_s(*, step_s: float, slowdown: float) -> float:
    """Return how long a step takes beside others.

    Args:
        step_s: its time alone.
        slowdown: by which share it grows; 0.45 for 45% more.

    Raises:
        InvalidRequestError: the time or the slowdown is negative.

    Formula:
        t · (1 + x)

    Source:
        the chapter, section 11.3.2
    """
    return check_not_negative("step_s", step_s, "s") * (1 + check_not_negative("slowdown", slowdown))


def longest_step_s(*, deadline_s: float, slowdown: float) -> float:
    """Return how long a step may take alone so that beside others it still meets a deadline.

    Raises:
        InvalidRequestError: the deadline is not above zero, or the slowdown negative.

    Formula:
        d / (1 + x)

    Source:
        the chapter, section 11.3.2
    """
    return check_positive("deadline_s", deadline_s, "s") / (1 + check_not_negative("slowdown", slowdown))


def removed_share(*, slowdown: float, isolated_slowdown: float) -> float:
    """Return which share of a slowdown isolation removes.

    Raises:
        InvalidRequestError: a slowdown is negative, or isolation is said to slow down further.

    Formula:
        (x - x_isolated) / x

    Source:
        the chapter, section 11.3.2
    """
    check_positive("slowdown", slowdown)
    check_not_negative("isolated_slowdown", isolated_slowdown)
    if isolated_slowdown > slowdown:
        raise InvalidRequestError(
            f"isolated_slowdown is {isolated_slowdown:g}, more than the {slowdown:g} without isolation",
            resolution="give the slowdown without isolation first",
        )
    return (slowdown - isolated_slowdown) / slowdown


def logical_cores(*, physical_cores: float, threads: int) -> float:
    """Return the logical cores of a host.

    Args:
        physical_cores: its cores.
        threads: hardware threads of a core that are in use; 1 with simultaneous threads off.

    Raises:
        InvalidRequestError: there are no cores or no threads.

    Formula:
        cores · threads

    Source:
        the chapter, section 11.3.2
    """
    return check_positive("physical_cores", physical_cores, "CPU") * check_count("threads", threads)
