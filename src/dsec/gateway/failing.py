"""How an attempt says that it failed. It never leaves the gateway: what follows from it is decided by routing."""

from __future__ import annotations

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
