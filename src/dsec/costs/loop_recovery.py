"""What a preempted agent loop has to do before it goes on, by where it ran and by what was recorded.

A loop that runs beside the preemptible accelerators loses its state with them, while its sandbox lives on. With a log
of commands it plays the log back: recorded results are returned, nothing is run again. Without one it can only run
the calls again, in a sandbox in which they have already taken effect. A loop that runs where the sandbox runs keeps
its state and only connects again.

    recovery = reconnect + n x (read of a record | tool time | 0)

Rule: state is put on the resource that lives longest. Source: the chapter, section 11.3.3, figures 11-33 and 11-34.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.costs.checks import check_count, check_not_negative


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRecovery:
    """What happens between the return of the accelerators and the next round.

    Attributes:
        recovery_s: time of it.
        replayed: calls whose recorded result is returned.
        executed_again: calls that are run a second time.
        repeated_work_s: tool time of those.
    """

    recovery_s: float
    replayed: int
    executed_again: int
    repeated_work_s: float


def loop_recovery(
    *,
    finished: int,
    tool_s: float,
    read_s: float,
    reconnect_s: float,
    loop_survives: bool,
    has_log: bool = True,
) -> LoopRecovery:
    """Return what an agent loop does after a preemption.

    Args:
        finished: tool calls that were finished before it.
        tool_s: time of one.
        read_s: time to read one recorded result.
        reconnect_s: time until loop, sandbox and model are connected.
        loop_survives: whether the loop ran where nothing was taken away.
        has_log: whether results of calls were recorded durably.

    Raises:
        InvalidRequestError: a number is negative.

    Formula:
        recovery = reconnect + n · (0 if it survives, read if logged, else tool)

    Source:
        the chapter, section 11.3.3, figures 11-33 and 11-34
    """
    check_count("finished", finished, minimum=0)
    for name, value in (("tool_s", tool_s), ("read_s", read_s), ("reconnect_s", reconnect_s)):
        check_not_negative(name, value, "s")
    replayed = finished if has_log and not loop_survives else 0
    again = finished if not has_log and not loop_survives else 0
    return LoopRecovery(
        recovery_s=reconnect_s + replayed * read_s + again * tool_s,
        replayed=replayed,
        executed_again=again,
        repeated_work_s=again * tool_s,
    )
