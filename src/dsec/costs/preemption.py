"""What a preemption loses, and whether it frees a resource in time.

A job that ran for some time goes on from its last checkpoint or from its start. What was done since the checkpoint is
done again; loading the checkpoint takes its own time:

    from the checkpoint:  restore + done since the checkpoint
    from the start:       all that was done.

A waiting task is helped only if the job's state is saved before the task's patience ends; else the capacity for it
has to be held in reserve. Assumes that work runs at the same rate the second time. Source: the chapter, section
11.3.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_not_negative


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionLoss:
    """The delay of a preempted job, besides the time in which its resources are away.

    Attributes:
        from_checkpoint_s: save, restore, and the work since the checkpoint once more.
        from_start_s: all work so far once more.
        saved_by_checkpoint_s: the difference; negative when starting again is quicker.
        lost_work_s: work that is done twice on the quicker way.
        job_delay_s: delay on the quicker way.
    """

    from_checkpoint_s: float
    from_start_s: float
    saved_by_checkpoint_s: float
    lost_work_s: float
    job_delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimWait:
    """Whether preemption hands a resource over in time.

    Attributes:
        wait_s: until the resource is free.
        in_time: whether that is within the waiting task's patience.
        late_by_s: by how much it is late; 0 when it is in time.
    """

    wait_s: float
    in_time: bool
    late_by_s: float


def preemption_loss(
    *, done_s: float, since_checkpoint_s: float, restore_s: float, save_s: float = 0.0
) -> PreemptionLoss:
    """Return what a job loses that is preempted after `done_s` of work.

    Args:
        done_s: work done since the job's start.
        since_checkpoint_s: how much of it came after the last checkpoint; 0 for state saved at the preemption itself.
        restore_s: time to load the checkpoint.
        save_s: time spent on saving at the preemption.

    Raises:
        InvalidRequestError: a time is negative, or more was done since the checkpoint than in all.

    Formula:
        from checkpoint = save + restore + since checkpoint,   from start = done

    Source:
        the chapter, section 11.3.2
    """
    check_not_negative("done_s", done_s, "s")
    check_not_negative("since_checkpoint_s", since_checkpoint_s, "s")
    overhead_s = check_not_negative("restore_s", restore_s, "s") + check_not_negative("save_s", save_s, "s")
    if since_checkpoint_s > done_s:
        raise InvalidRequestError(
            f"since_checkpoint_s is {since_checkpoint_s:g}, but only {done_s:g} s of work were done",
            resolution="count the work since the last checkpoint, or since the start where there is none",
        )
    resumed_s = overhead_s + since_checkpoint_s
    resumes = resumed_s <= done_s
    return PreemptionLoss(
        from_checkpoint_s=resumed_s,
        from_start_s=done_s,
        saved_by_checkpoint_s=done_s - resumed_s,
        lost_work_s=since_checkpoint_s if resumes else done_s,
        job_delay_s=min(resumed_s, done_s),
    )


def reclaim_wait(*, patience_s: float, save_s: float) -> ReclaimWait:
    """Return whether a task that waits at most `patience_s` can use what a job gives up after saving for `save_s`.

    Raises:
        InvalidRequestError: a time is negative.

    Formula:
        late by = max(save - patience, 0)

    Source:
        the chapter, section 11.3.2
    """
    check_not_negative("patience_s", patience_s, "s")
    check_not_negative("save_s", save_s, "s")
    return ReclaimWait(wait_s=save_s, in_time=save_s <= patience_s, late_by_s=max(save_s - patience_s, 0.0))
