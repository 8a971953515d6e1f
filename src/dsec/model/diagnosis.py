"""What was found out about creations that took too long."""

from __future__ import annotations

from dsec.model.value import Value


class Thresholds(Value, frozen=True):
    """Beyond these a figure is named as a cause.

    Attributes:
        image_load_p99_s: 99th percentile of making an image readable.
        launch_p99_s: 99th percentile of launching an instance.
        disk_wait_s: mean time of a read or write in any one second.
        network_repeated: share of TCP segments sent again, 0 to 1.
        ready_share: ready sandboxes, as a share of the level, below which they count as too few.
        horizon_s: how far a suggestion looks ahead.
    """

    image_load_p99_s: float = 8.0
    launch_p99_s: float = 5.0
    disk_wait_s: float = 0.5
    network_repeated: float = 0.02
    ready_share: float = 0.5
    horizon_s: float = 10.0


class Finding(Value, frozen=True):
    """One figure beside its threshold.

    Attributes:
        side: ``scheduler`` or ``node``.
        name: what was measured.
        measured, threshold: in `unit`; None: not known.
        unit: of both.
        is_fine: whether it is within its threshold; what is not known is fine.
        text: both in words.
    """

    side: str
    name: str
    measured: float | None
    threshold: float | None
    unit: str
    is_fine: bool
    text: str


class Asked(Value, frozen=True):
    """One creation of the task.

    Attributes:
        sandbox_id: which.
        at_s: when it was asked for, wall clock.
        waited_s: until it was answered; None: not yet.
        outcome: ``ready``, ``waits`` or the error.
    """

    sandbox_id: str
    at_s: float
    waited_s: float | None
    outcome: str


class Diagnosis(Value, frozen=True):
    """Why creations took as long as they did.

    Attributes:
        task: whose; empty: everybody's.
        begin_s, end_s: the time that was looked at, wall clock.
        asked: its creations.
        findings: figures, the scheduler's first.
        suggestions: what would help, the first most.
    """

    task: str
    begin_s: float
    end_s: float
    asked: tuple[Asked, ...]
    findings: tuple[Finding, ...]
    suggestions: tuple[str, ...]
