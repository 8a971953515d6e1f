"""What an HTTP answer that is no success says: what went wrong, whether to try again, and when.

Services tell when to come back in many ways. In the order in which they are believed: `retry-after-ms`; `retry-after`
in seconds or as a date; the time at which a limit that is used up is full again (`x-ratelimit-reset-*` as a duration,
`anthropic-ratelimit-*-reset` as a date); "try again in 20s" in the message. A date is measured against the answer's own
`Date`, so that the two hosts' clocks need not agree.

What the status leaves open, the body's error code and message decide: an account without money answers 429 like one
that is too quick, and a call that is too long 400 like one that is malformed.
"""

from __future__ import annotations

import email.utils
import json
import math
import re
from collections.abc import Mapping
from datetime import datetime

from dsec.routing.retrying import Failure, FailureKind

_BRIEF_CHARS = 300
_BODY_BYTES = 64 << 10
_LONGEST_HINT_S = 86_400.0
"""A longer hint is a mistake, and would close a backend until a restart."""
_KINDS = {
    401: FailureKind.DENIED,
    402: FailureKind.DENIED,
    403: FailureKind.DENIED,
    408: FailureKind.BROKEN,
    409: FailureKind.BROKEN,
    413: FailureKind.TOO_LONG,
    425: FailureKind.BROKEN,
    429: FailureKind.LIMITED,
    503: FailureKind.OVERLOADED,
    529: FailureKind.OVERLOADED,
}
_CODES = {
    "context_length_exceeded": FailureKind.TOO_LONG,
    "exceed_context_size_error": FailureKind.TOO_LONG,
    "request_too_large": FailureKind.TOO_LONG,
    "insufficient_quota": FailureKind.DENIED,
    "billing_error": FailureKind.DENIED,
    "billing_hard_limit_reached": FailureKind.DENIED,
    "authentication_error": FailureKind.DENIED,
    "permission_error": FailureKind.DENIED,
    "invalid_api_key": FailureKind.DENIED,
    "model_not_found": FailureKind.DENIED,
    "overloaded_error": FailureKind.OVERLOADED,
    "rate_limit_error": FailureKind.LIMITED,
    "rate_limit_exceeded": FailureKind.LIMITED,
    "api_error": FailureKind.BROKEN,
    "server_error": FailureKind.BROKEN,
}
"""Codes and types of errors that say more than their status, or come in a stream whose status was 200."""

_TOO_LONG = re.compile(
    r"maximum context length|context (length|window|limit|size)|prompt is too long|input is too long", re.I
)
_TRY_AGAIN = re.compile(r"(?:try again|retry) (?:in|after) (\d[\d.hms]*)\s?(ms|s|m|h)?", re.I)
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")


def failure_of(status: int, headers: Mapping[str, str], body: bytes = b"") -> Failure:
    """Return what went wrong.

    Args:
        status: the HTTP status.
        headers: of the answer, their names in any case.
        body: of the answer, or as much of it as was read.
    """
    named = {name.lower(): value for name, value in headers.items()}
    codes, message = _read(body)
    kind = _kind(status, codes, message)
    shown = message or ", ".join(codes) or "no message"
    return Failure(
        kind=kind,
        brief=f"HTTP {status}: {shown[:_BRIEF_CHARS]}",
        status=status,
        retry_after_s=retry_after_s(named, message),
        may_retry={"true": True, "false": False}.get(named.get("x-should-retry", "").strip().lower()),
    )


def failure_in_stream(error: Mapping[str, object], *, began: bool) -> Failure:
    """Return what went wrong from an error that came as an event of a stream, whose status was 200."""
    codes, message = _words(error)
    kind = next((_CODES[code] for code in codes if code in _CODES), FailureKind.BROKEN)
    shown = message or ", ".join(codes) or "an error without a message"
    return Failure(kind=kind, brief=shown[:_BRIEF_CHARS], retry_after_s=retry_after_s({}, message), began=began)


def _kind(status: int, codes: tuple[str, ...], message: str) -> FailureKind:
    usual = _KINDS.get(status)
    said = next((_CODES[code] for code in codes if code in _CODES), None)
    if said is not None and (usual is None or said is FailureKind.DENIED):
        return said
    if usual is not None:
        return usual
    if 400 <= status < 500:
        return FailureKind.TOO_LONG if _TOO_LONG.search(message) else FailureKind.REFUSED
    return FailureKind.DENIED if 300 <= status < 400 else FailureKind.BROKEN


def retry_after_s(headers: Mapping[str, str], message: str = "") -> float | None:
    """Return how long a backend asks to be left alone; None if it does not say, or says nothing that can be.

    Args:
        headers: their names in lower case.
        message: of the error.
    """
    hint_s = _hint_s(headers, message)
    return None if hint_s is None else min(hint_s, _LONGEST_HINT_S)


def _hint_s(headers: Mapping[str, str], message: str) -> float | None:
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1e3
    text = headers.get("retry-after", "").strip()
    if (seconds := _number(text)) is not None:
        return seconds
    date_s = _date_s(headers.get("date", ""))
    if date_s is not None and (until_s := _date_s(text)) is not None:
        return max(until_s - date_s, 0.0)
    resets = [*_resets(headers, date_s)]
    return max(resets) if resets else _said_s(message)


def _resets(headers: Mapping[str, str], date_s: float | None) -> list[float]:
    """Return when each limit that is used up is full again."""
    found = []
    for name, value in headers.items():
        prefix, _, limit = name.partition("ratelimit-")
        if prefix == "x-" and limit.startswith("reset-"):
            left, after_s = headers.get(f"x-ratelimit-remaining-{limit.removeprefix('reset-')}"), _duration_s(value)
        elif prefix == "anthropic-" and limit.endswith("-reset"):
            left = headers.get(f"anthropic-ratelimit-{limit.removesuffix('-reset')}-remaining")
            until_s = _iso_s(value)
            after_s = None if until_s is None or date_s is None else max(until_s - date_s, 0.0)
        else:
            continue
        if after_s is not None and _number(left) == 0:
            found.append(after_s)
    return found


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _duration_s(text: str) -> float | None:
    """Return seconds for texts such as ``6m0s``, ``120ms`` or ``1.5``."""
    if (plain := _number(text)) is not None:
        return plain
    match = _DURATION.fullmatch(text.strip())
    if not text.strip() or match is None:
        return None
    parts = zip(match.groups(), (3600.0, 60.0, 1.0, 1e-3), strict=True)
    return sum(float(part) * unit for part, unit in parts if part)


def _date_s(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _iso_s(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        return None


def _said_s(message: str) -> float | None:
    match = _TRY_AGAIN.search(message)
    if match is None:
        return None
    text = match.group(1).lower().rstrip(".")
    return _duration_s(f"{text}{(match.group(2) or '').lower()}")


def _read(body: bytes) -> tuple[tuple[str, ...], str]:
    """Return codes and message of an error's body; of one that is not JSON the text."""
    text = body[:_BODY_BYTES].decode(errors="replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return (), " ".join(text.split())
    return _words(value) if isinstance(value, dict) else ((), "")


def _words(value: Mapping[str, object]) -> tuple[tuple[str, ...], str]:
    inner = value.get("error", value)
    if isinstance(inner, str):
        return (), inner
    if not isinstance(inner, Mapping):
        return (), ""
    codes = tuple(code for code in (inner.get("code"), inner.get("type")) if isinstance(code, str))
    message = inner.get("message") or inner.get("detail") or value.get("message") or ""
    return codes, message if isinstance(message, str) else json.dumps(message, default=str)
