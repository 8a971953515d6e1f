"""The port of a front: one protocol in which callers speak.

Contract: a front is pure. It reads of a body only what `Asked` holds and passes on all else, known to it or not. Its
watcher sees every event of one answer in order and says of each whether the caller gets it; what it cannot understand
raises `AttemptFailedError`. Errors and ends that the gateway makes have the protocol's own shape, so that official
clients raise their own errors.
"""

from __future__ import annotations

from typing import Protocol

from dsec.gateway.config import Api
from dsec.gateway.fronts.asked import Asked, Members, Target
from dsec.gateway.fronts.complaint import Complaint
from dsec.gateway.fronts.observation import Observation


class Watcher(Protocol):
    """Watches one answer."""

    seen: Observation

    def event(self, name: bytes, data: bytes, raw: bytes) -> bytes:
        """Take an event of a stream; return what of it the caller gets: `raw`, as it came, or nothing.

        Raises:
            AttemptFailedError: it cannot be understood.
        """

    def whole(self, body: bytes) -> bytes:
        """Take an answer that came as a whole; return what the caller gets.

        Raises:
            AttemptFailedError: it cannot be understood.
        """

    def finish(self) -> bytes:
        """Return what the caller still has to hear when a stream ended."""

    def cut(self) -> bytes:
        """Return the events that end the stream as if a limit of length had."""


class Front(Protocol):
    """One protocol."""

    api: Api

    def ask(self, members: Members) -> Asked:
        """Read a call.

        Raises:
            InvalidRequestError: a member that is needed is absent or of another type.
        """

    def body(self, asked: Asked, target: Target) -> bytes:
        """Return the body that a backend gets."""

    def watch(self, asked: Asked) -> Watcher:
        """Return who watches the answer."""

    def status(self, complaint: Complaint) -> int:
        """Return the HTTP status of an error."""

    def error(self, complaint: Complaint) -> bytes:
        """Return the body of an error."""

    def error_event(self, complaint: Complaint) -> bytes:
        """Return the event that ends a stream with an error."""
