"""The stages of an attempt: what its time is counted to."""

from __future__ import annotations

import enum

from dsec.model.value import Value


class Stage(enum.Enum):
    WAIT = "wait"
    """For an image to be built, or before another try."""
    CREATE = "create"
    DECIDE = "decide"
    """The policy thinks."""
    TOOLS = "tools"
    """The policy's calls are carried out."""
    RECORD = "record"
    """A round is brought to the disk."""
    VERIFY = "verify"
    DESTROY = "destroy"


class Segment(Value, frozen=True):
    """A stretch of one stage, in seconds since the attempt began."""

    stage: Stage
    start_s: float
    end_s: float
