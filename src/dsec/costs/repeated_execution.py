"""What is spent when a result arrives twice, and when work is done twice.

A result that is delivered twice costs nothing more once it is recognised by its operation's id. Work that is run
twice costs twice, although just as one result may remain of it. An operation that is committed outside stays
committed when the environment is restored; it is queried by its id before anything is repeated.

    processor time = executions x time of one,      effects = 1 if idempotent by id, else executions.

Source: the chapter, sections 11.1.3 and 11.5.1, figure 11-43.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.costs.checks import check_count, check_not_negative


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedExecution:
    """What repetition leaves behind.

    Attributes:
        work_cpu_s: processor time spent.
        wasted_cpu_s: that of all executions but one.
        results: results that remain after those delivered again are recognised.
        effects: how often the operation takes effect outside.
    """

    work_cpu_s: float
    wasted_cpu_s: float
    results: int
    effects: int


def repeated_execution(
    *, work_cpu_s: float, executions: int = 1, deliveries: int = 1, deduplicates: bool = True, idempotent: bool = True
) -> RepeatedExecution:
    """Return what an operation costs and leaves that was executed and delivered several times.

    Args:
        work_cpu_s: processor time of one execution.
        executions: how often it was really run.
        deliveries: how often each execution's result was sent.
        deduplicates: whether the receiver recognises a result by its operation's id.
        idempotent: whether the system that it acts on does.

    Raises:
        InvalidRequestError: a number is out of range.

    Formula:
        work = executions · time,   effects = 1 if idempotent, else executions

    Source:
        the chapter, section 11.5.1
    """
    check_not_negative("work_cpu_s", work_cpu_s, "CPU*s")
    check_count("executions", executions)
    check_count("deliveries", deliveries)
    return RepeatedExecution(
        work_cpu_s=executions * work_cpu_s,
        wasted_cpu_s=(executions - 1) * work_cpu_s,
        results=1 if deduplicates else executions * deliveries,
        effects=1 if idempotent else executions,
    )
