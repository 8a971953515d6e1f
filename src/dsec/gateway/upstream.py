"""The port of a backend: one call is sent, and its answer comes back as bytes.

Contract of every driver: `post` returns when the head of the answer is here. `read` returns bytes as they come, as few
as one and as many as are there, and nothing at the end; it reads no further ahead than a buffer, so that a slow caller
slows the backend down. `close` is called once, whatever happened, and from then on the backend works for nobody:
`whole` says that the answer was read to its end, so that the connection may be used again. Both raise
`AttemptFailedError` alone. Cancelling either leaves the answer to be closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dsec.gateway.config import Api, Service
from dsec.gateway.failing import AttemptFailedError
from dsec.routing.retrying import Failure, FailureKind

DEADLINE_HEADER = "X-DSec-Deadline-S"
"""Seconds that are left for a call: taken from callers, and told to backends."""


class Answer(Protocol):
    """One answer on its way.

    Attributes:
        status: of HTTP.
        headers: of the answer; names of any case are found.
        content_type: without parameters, such as ``text/event-stream``.
    """

    status: int
    headers: Mapping[str, str]
    content_type: str

    async def read(self) -> bytes:
        """Return the next bytes; nothing at the end.

        Raises:
            AttemptFailedError: the answer broke off.
        """

    def close(self, *, whole: bool) -> None:
        """Let go of it."""


class Upstream(Protocol):
    """One backend.

    Attributes:
        service: as configured.
    """

    service: Service

    async def post(self, api: Api, body: bytes, passed: Mapping[str, str], deadline_s: float) -> Answer:
        """Send a call.

        Args:
            api: the protocol.
            body: of the call.
            passed: the caller's headers; very few are sent on.
            deadline_s: what is left for the call.

        Raises:
            AttemptFailedError: there is no answer.
        """

    def cleaned(self, data: bytes) -> bytes:
        """Return what the backend said without its key."""


def failed(service: Service, kind: FailureKind, error: BaseException | str) -> AttemptFailedError:
    """Return the failure of a backend, without its address or key."""
    what = error if isinstance(error, str) else type(error).__name__
    return AttemptFailedError(Failure(kind=kind, brief=f"{service.name}: {what}"))
