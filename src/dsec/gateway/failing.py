"""How an attempt says that it failed. It never leaves the gateway: what follows from it is decided by routing."""

from __future__ import annotations

from dsec.base.errors import DsecError
from dsec.routing.retrying import Failure, FailureKind


class AttemptFailedError(Exception):
    """An attempt did not end well.

    Args:
        failure: what went wrong.
        body: what the backend said, for a refusal that is passed on; None: nothing.
    """

    def __init__(self, failure: Failure, body: bytes | None = None) -> None:
        super().__init__(failure.brief)
        self.failure = failure
        self.body = body


def broken(brief: str) -> AttemptFailedError:
    """Return the failure of an answer that is not what its API says it must be."""
    return AttemptFailedError(Failure(kind=FailureKind.BROKEN, brief=brief))


class RefusedError(Exception):
    """A backend refused the call itself; what it said goes to the caller as it is."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class ToldError(Exception):
    """A caller is told of an error, with a hint when to try again."""

    def __init__(self, error: DsecError, retry_after_s: float | None = None) -> None:
        super().__init__(error.brief)
        self.error = error
        self.retry_after_s = retry_after_s
