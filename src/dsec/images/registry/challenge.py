"""What a registry wants to know before it answers: the ``WWW-Authenticate`` header of a 401. Pure.

Sources: RFC 9110, 11.6.1 (the header; several challenges may stand in one); the distribution project's "Token
Authentication Specification" (realm, service and scope of a bearer token).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsec.model.value import Value

_SCHEME = re.compile(r"\s*,?\s*([A-Za-z][A-Za-z0-9_-]*)(?:\s+|$)")
_PARAMETER = re.compile(r'\s*,?\s*([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*))')
_MAXIMUM_LENGTH = 16_384


class Challenge(Value, frozen=True):
    """One way to say who one is.

    Attributes:
        scheme: ``basic`` or ``bearer``, lower case.
        realm: of bearer tokens, the URL of who gives them.
        service: whom a token is for; empty: not said.
    """

    scheme: str
    realm: str = ""
    service: str = ""


def best_challenge(headers: Sequence[str]) -> Challenge | None:
    """Return the challenge that is to be met: a token where one is offered, shown in place of a password."""
    found = [challenge for header in headers for challenge in _challenges(header[:_MAXIMUM_LENGTH])]
    for scheme in ("bearer", "basic"):
        for challenge in found:
            if challenge.scheme == scheme and (scheme == "basic" or challenge.realm):
                return challenge
    return None


def _challenges(header: str) -> Iterator[Challenge]:
    position = 0
    while match := _SCHEME.match(header, position):
        position, parameters = match.end(), dict[str, str]()
        while pair := _PARAMETER.match(header, position):
            position = pair.end()
            value = pair[3] if pair[2] is None else re.sub(r"\\(.)", r"\1", pair[2])
            parameters.setdefault(pair[1].lower(), value)
        yield Challenge(
            scheme=match[1].lower(), realm=parameters.get("realm", ""), service=parameters.get("service", "")
        )
