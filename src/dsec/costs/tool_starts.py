"""Starting tools together against starting them one after the other: peak memory against makespan.

n equal tools of d seconds and m GiB, started g seconds apart (g = 0: together) on enough cores:

    running at once   k = min(n, ceil(d / g)), n for g = 0
    peak memory       k · m
    makespan          (n - 1) g + d
    memory over time  n · d · m                    the same for every g

Staggering moves work, it does not remove any: the peak falls, the makespan grows, and the area below the memory curve
stays. It pays where the peak decides how many fit on a host.

Assumes that the tools do not slow each other down, and that each takes its whole memory for its whole time; sampled
resident sizes understate both. Source: the chapter, section 11.1.2, four processes together and apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsec.costs.checks import check_count, check_not_negative, check_positive

_ROUNDING = 1e-9
"""A tool that ends when the next one starts does not run beside it, whatever floating point says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarts:
    """What a group of tools takes.

    Attributes:
        at_once: tools running at the same time, at most.
        peak_memory_gib: memory at that moment.
        memory_gib_s: area below the memory curve.
        makespan_s: until the last tool ends.
    """

    at_once: int
    peak_memory_gib: float
    memory_gib_s: float
    makespan_s: float


def tool_starts(*, tools: int, tool_s: float, memory_gib: float, gap_s: float) -> ToolStarts:
    """Return peak, area and makespan of equal tools that start one after the other.

    Args:
        tools: how many.
        tool_s: how long each runs.
        memory_gib: what each holds while it runs.
        gap_s: time between two starts; 0 starts all together.

    Raises:
        InvalidRequestError: there are no tools, a tool takes no time, or another input is negative.

    Formula:
        peak = min(n, ceil(d / g)) · m,   makespan = (n - 1) · g + d

    Source:
        the chapter, section 11.1.2
    """
    check_count("tools", tools)
    check_positive("tool_s", tool_s, "s")
    check_not_negative("memory_gib", memory_gib, "GiB")
    check_not_negative("gap_s", gap_s, "s")
    overlap_s = tool_s * (1 - _ROUNDING)
    at_once = tools if gap_s * (tools - 1) < overlap_s else math.ceil(overlap_s / gap_s)
    return ToolStarts(
        at_once=at_once,
        peak_memory_gib=at_once * memory_gib,
        memory_gib_s=tools * tool_s * memory_gib,
        makespan_s=(tools - 1) * gap_s + tool_s,
    )


def gap_of_makespan_s(*, tools: int, tool_s: float, makespan_s: float) -> float:
    """Return the gap between starts with which the last of some tools ends after a given time.

    Raises:
        InvalidRequestError: fewer than two tools, or a makespan shorter than one tool.

    Formula:
        g = (makespan - d) / (n - 1)

    Source:
        the chapter, section 11.1.2
    """
    check_count("tools", tools, minimum=2)
    check_positive("tool_s", tool_s, "s")
    check_not_negative("makespan_s - tool_s", makespan_s - tool_s, "s")
    return (makespan_s - tool_s) / (tools - 1)


def gap_for_peak_s(*, tools: int, tool_s: float, memory_gib: float, limit_gib: float) -> float:
    """Return the least gap between starts that keeps the peak within a limit.

    Raises:
        InvalidRequestError: not even one tool fits.

    Formula:
        g = d / floor(limit / m), 0 where all fit

    Source:
        the chapter, section 11.1.2
    """
    check_count("tools", tools)
    check_positive("tool_s", tool_s, "s")
    check_positive("memory_gib", memory_gib, "GiB")
    check_not_negative("limit_gib - memory_gib", limit_gib - memory_gib, "GiB")
    fitting = math.floor(limit_gib / memory_gib * (1 + _ROUNDING))
    return 0.0 if fitting >= tools else tool_s / fitting
