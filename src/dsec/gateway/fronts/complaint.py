"""What goes wrong, in the words of either protocol family."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dsec.base.errors import (
    BackendFailedError,
    BackendTimeoutError,
    BodyTooLargeError,
    BudgetExhaustedError,
    DeadlineExceededError,
    DsecError,
    Fault,
    GatewayBusyError,
    ModelUnavailableError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitedError,
    RecordingMissError,
    UnauthorizedError,
)

# Error class, OpenAI's type and code, Anthropic's type and status; the first that fits counts.
_WORDS: tuple[tuple[type[DsecError], str, str | None, str, int | None], ...] = (
    (BudgetExhaustedError, "insufficient_quota", "insufficient_quota", "rate_limit_error", None),
    (UnauthorizedError, "invalid_request_error", "invalid_api_key", "authentication_error", None),
    (PermissionDeniedError, "invalid_request_error", "model_not_allowed", "permission_error", None),
    (RecordingMissError, "invalid_request_error", "recording_miss", "not_found_error", None),
    (NotFoundError, "invalid_request_error", "model_not_found", "not_found_error", None),
    (BodyTooLargeError, "invalid_request_error", "request_too_large", "request_too_large", None),
    (DeadlineExceededError, "timeout_error", "deadline_exceeded", "timeout_error", None),
    (RateLimitedError, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error", None),
    (GatewayBusyError, "server_error", "overloaded", "overloaded_error", 529),
    (ModelUnavailableError, "server_error", "overloaded", "overloaded_error", 529),
    (BackendTimeoutError, "server_error", "timeout", "timeout_error", None),
    (BackendFailedError, "server_error", "backend_failed", "api_error", None),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """An error on its way to a caller.

    Attributes:
        error: what went wrong.
        call: id of the call, so that it can be found in the ledger.
        retry_after_s: when to try again; None: not known.
    """

    error: DsecError
    call: str = ""
    retry_after_s: float | None = None

    @property
    def message(self) -> str:
        """What people read, without what only the operator should see."""
        text = self.error.brief
        return f"{text} To resolve: {self.error.resolution}" if self.error.resolution else text


def _words(error: DsecError) -> tuple[str, str | None, str, int]:
    for kind, type_, code, name, status in _WORDS:
        if isinstance(error, kind):
            return type_, code, name, status or error.http_status
    if error.fault is Fault.CALLER:
        return "invalid_request_error", error.code, "invalid_request_error", error.http_status
    return "server_error", error.code, "api_error", error.http_status


def openai_status(complaint: Complaint) -> int:
    """Return the HTTP status in which OpenAI's clients expect it."""
    return complaint.error.http_status


def openai_error(complaint: Complaint) -> dict[str, object]:
    """Return the member `error` as OpenAI's clients expect it."""
    type_, code, _, _ = _words(complaint.error)
    return {"message": complaint.message, "type": type_, "param": None, "code": code}


def anthropic_status(complaint: Complaint) -> int:
    """Return the HTTP status in which Anthropic's clients expect it."""
    return _words(complaint.error)[3]


def anthropic_error(complaint: Complaint) -> dict[str, object]:
    """Return the whole error as Anthropic's clients expect it."""
    name = _words(complaint.error)[2]
    return {"type": "error", "error": {"type": name, "message": complaint.message}, "request_id": complaint.call}


encode = msgspec.json.Encoder().encode
