"""What a recording says of one answer, and the fingerprint that finds it. See docs/formats/gateway-recording.md."""

from __future__ import annotations

import base64
from hashlib import blake2b
from typing import Any

import msgspec

from dsec.gateway.config import Api

FORMAT_VERSION = 1
KEPT_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry")
_FINGERPRINT_BYTES = 16
_ACCIDENTS = (408, 409, 425, 429)
"""Statuses that are no answer to the call: a gateway tries again."""


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="opened"):
    """A file begins.

    Attributes:
        version: of the format.
        wall_s: when.
    """

    version: int
    wall_s: float


class Recorded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="answer"):
    """One answer.

    Attributes:
        fingerprint: of the request.
        api: its protocol.
        backend, model: for people.
        wall_s: when it was sent.
        status, content_type, headers: of the answer.
        head_s, ended_s: when its head and its end were there, from sending.
        pieces: what came, and when.
        encoding: "base64", or empty for text.
        whole: whether it came to its end.
        conversation: its place in a conversation; see `dsec.gateway.conversation`.
        seed: of the request, if it named one.
    """

    fingerprint: str
    api: str
    backend: str
    model: str
    wall_s: float
    status: int
    content_type: str
    head_s: float
    ended_s: float
    whole: bool
    headers: dict[str, str] = {}
    pieces: tuple[tuple[float, str], ...] = ()
    encoding: str = ""
    conversation: str = ""
    seed: int | None = None

    @property
    def is_replayed(self) -> bool:
        """Whether a replay gives it: it is whole, and no accident."""
        return self.whole and self.status < 500 and self.status not in _ACCIDENTS

    def contents(self) -> list[tuple[float, bytes]]:
        """Return the pieces as bytes."""
        if self.encoding == "base64":
            return [(when_s, base64.b64decode(text)) for when_s, text in self.pieces]
        return [(when_s, text.encode()) for when_s, text in self.pieces]


def written_pieces(pieces: list[tuple[float, bytes]]) -> tuple[tuple[tuple[float, str], ...], str]:
    """Return pieces as they are written, and their encoding."""
    try:
        return tuple((when_s, data.decode()) for when_s, data in pieces), ""
    except UnicodeDecodeError:
        return tuple((when_s, base64.b64encode(data).decode()) for when_s, data in pieces), "base64"


def read_body(body: bytes) -> Any:
    """Return a body, understood."""
    return msgspec.json.decode(body)


def fingerprint_of(api: Api, body: bytes) -> str:
    """Return the fingerprint of a request: equal for bodies that differ in spaces and the order of members alone."""
    canonical = msgspec.json.encode(read_body(body), order="deterministic")
    return blake2b(api.value.encode() + b"\x00" + canonical, digest_size=_FINGERPRINT_BYTES).hexdigest()
