"""Outcomes: what became of an attempt.

The five are kept apart everywhere, because they call for different things: a failed task is the policy's, an
infrastructure error is ours and says nothing about the policy, and an unknown one must be looked at by a person.
"""

from __future__ import annotations

import enum

from dsec.model.value import Value


class Outcome(enum.Enum):
    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    UNKNOWN = "unknown"

    @property
    def is_verdict(self) -> bool:
        """Whether the outcome says something about the policy."""
        return self not in (Outcome.INFRASTRUCTURE_ERROR, Outcome.UNKNOWN)


class Verdict(Value, frozen=True, omit_defaults=True):
    """An outcome with its reason.

    Attributes:
        outcome: which of the five.
        reason: one line for people.
        reward: the number that decided, where there is one.
        rewards: every number the tests wrote, by name.
        error_code: code of the error behind it, if one was.
    """

    outcome: Outcome
    reason: str
    reward: float | None = None
    rewards: dict[str, float] = {}
    error_code: str = ""
