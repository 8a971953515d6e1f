"""Whose fault an error is, and so what it makes of the attempt.

The same error means different things at different times. A missing directory while the tests are started was removed by
the guest, so that the attempt failed; a missing image while the sandbox is created says nothing about the policy.

==================  =====================  ===================================  =================================
phase               fault platform         fault caller                         fault guest
==================  =====================  ===================================  =================================
create              infrastructure, again  infrastructure                       infrastructure
policy              infrastructure, again  infrastructure                       failed (its sandbox is gone)
clear               infrastructure, again  failed (deadline too)                failed
verify              infrastructure, again  failed; infrastructure, again, for   failed
                                           a deadline or a lost sandbox
==================  =====================  ===================================  =================================

"again" holds for errors that are `retryable`. An operation whose outcome is unknown makes the attempt unknown once
the policy may have acted; before that nothing can have happened twice, and the attempt is tried again.
"""

from __future__ import annotations

import enum

from dsec.base.errors import DeadlineExceededError, DsecError, Fault, SandboxNotFoundError, UnknownOutcomeError
from dsec.model.value import Value
from dsec.verification.outcome import Outcome, Verdict


class Phase(enum.Enum):
    """Where in an attempt an error came up."""

    CREATE = "create"
    POLICY = "policy"
    CLEAR = "clear"
    """Removing what the guest left where the tests will stand."""
    VERIFY = "verify"


class Judgement(Value, frozen=True):
    """What an error makes of the attempt, and whether to try again in a fresh sandbox."""

    verdict: Verdict
    retry: bool = False


_WORDS = {
    Phase.CREATE: "the sandbox could not be made",
    Phase.POLICY: "the policy could not go on",
    Phase.CLEAR: "the place for the tests could not be cleared",
    Phase.VERIFY: "the tests could not be run",
}


def _outcome(error: DsecError, phase: Phase) -> Outcome:
    if isinstance(error, UnknownOutcomeError) and phase is not Phase.CREATE:
        return Outcome.UNKNOWN
    if error.fault is Fault.PLATFORM or phase is Phase.CREATE or isinstance(error, SandboxNotFoundError):
        return Outcome.INFRASTRUCTURE_ERROR
    if phase is Phase.POLICY:
        return Outcome.FAILED if error.fault is Fault.GUEST else Outcome.INFRASTRUCTURE_ERROR
    if phase is Phase.VERIFY and isinstance(error, DeadlineExceededError):
        return Outcome.INFRASTRUCTURE_ERROR
    return Outcome.FAILED


def judge_error(error: DsecError, phase: Phase) -> Judgement:
    """Return what `error` in `phase` makes of the attempt."""
    outcome = _outcome(error, phase)
    last_line = error.detail.strip().rpartition("\n")[2][:200]
    detail = f" ({last_line})" if last_line not in error.brief else ""
    verdict = Verdict(outcome=outcome, reason=f"{_WORDS[phase]}: {error.brief}{detail}", error_code=error.code)
    again = error.retryable or isinstance(error, (SandboxNotFoundError, UnknownOutcomeError))
    return Judgement(verdict=verdict, retry=outcome is Outcome.INFRASTRUCTURE_ERROR and again)
