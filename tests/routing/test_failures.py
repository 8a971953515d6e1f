"""What failed answers mean, and when to come back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.routing.failures import failure_in_stream, failure_of
from dsec.routing.retrying import FailureKind

DATE = "Mon, 30 Nov 2026 02:00:00 GMT"


def body(**error: object) -> bytes:
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize(
    ("status", "content", "kind"),
    [
        (400, body(message="'temperature' is too high"), FailureKind.REFUSED),
        (422, b'{"detail": [{"msg": "field required"}]}', FailureKind.REFUSED),
        (400, body(code="context_length_exceeded", message="..."), FailureKind.TOO_LONG),
        (
            400,
            body(type="invalid_request_error", message="prompt is too long: 210000 tokens > 200000"),
            FailureKind.TOO_LONG,
        ),
        (
            400,
            b'{"object":"error","message":"This model\'s maximum context length is 4096 tokens."}',
            FailureKind.TOO_LONG,
        ),
        (413, b"", FailureKind.TOO_LONG),
        (400, body(message="input length and `max_tokens` exceed context limit: 1 + 2 > 3"), FailureKind.TOO_LONG),
        (400, body(type="exceed_context_size_error", message="..."), FailureKind.TOO_LONG),
        (401, body(type="authentication_error", message="invalid x-api-key"), FailureKind.DENIED),
        (403, b"", FailureKind.DENIED),
        (404, body(code="model_not_found", message="no such model"), FailureKind.DENIED),
        (404, b"nothing here", FailureKind.REFUSED),
        (429, body(type="rate_limit_error", message="slow down"), FailureKind.LIMITED),
        (429, body(code="insufficient_quota", message="check your plan"), FailureKind.DENIED),
        (500, b"<html>oops</html>", FailureKind.BROKEN),
        (500, body(type="overloaded_error", message="overloaded"), FailureKind.OVERLOADED),
        (502, b"", FailureKind.BROKEN),
        (503, b"", FailureKind.OVERLOADED),
        (529, body(type="overloaded_error", message="overloaded"), FailureKind.OVERLOADED),
        (302, b"", FailureKind.DENIED),
        (408, b"", FailureKind.BROKEN),
    ],
)
def test_status_code_and_message_say_what_went_wrong(status: int, content: bytes, kind: FailureKind) -> None:
    failure = failure_of(status, {}, content)
    assert failure.kind is kind
    assert failure.status == status
    assert failure.brief.startswith(f"HTTP {status}: ")
    assert not failure.began


@pytest.mark.parametrize(
    ("headers", "message", "seconds"),
    [
        ({}, "", None),
        ({"Retry-After": "7"}, "", 7.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, "", 0.25),
        ({"Retry-After": "Mon, 30 Nov 2026 02:00:30 GMT", "Date": DATE}, "", 30.0),
        ({"Retry-After": "Mon, 30 Nov 2026 01:00:00 GMT", "Date": DATE}, "", 0.0),
        ({"Retry-After": "Mon, 30 Nov 2026 02:00:30 GMT"}, "", None),
        ({"Retry-After": "-5"}, "", None),
        ({"Retry-After": "nan"}, "", None),
        ({"Retry-After": "inf"}, "", None),
        ({"Retry-After": "soon"}, "", None),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m2s"}, "", 62.0),
        ({"x-ratelimit-remaining-requests": "9", "x-ratelimit-reset-requests": "1m2s"}, "", None),
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "120ms",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "6m0s",
            },
            "",
            360.0,
        ),
        (
            {
                "Date": DATE,
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2026-11-30T02:00:12Z",
            },
            "",
            12.0,
        ),
        ({}, "Rate limit reached. Please try again in 1.5s.", 1.5),
        ({}, "Please retry after 20 s", 20.0),
        ({}, "try again in 6m0s", 360.0),
        ({}, "Try again in 300 ms, please.", 0.3),
        ({}, "try again in a while", None),
    ],
)
def test_every_way_of_saying_when_to_come_back_is_understood(
    headers: dict[str, str], message: str, seconds: float | None
) -> None:
    found = failure_of(429, headers, body(message=message)).retry_after_s
    assert found == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(("text", "told"), [("true", True), ("False", False), ("perhaps", None), (None, None)])
def test_what_a_backend_says_of_trying_again_is_kept(text: str | None, told: bool | None) -> None:
    assert failure_of(500, {} if text is None else {"X-Should-Retry": text}).may_retry is told


def test_an_error_in_the_middle_of_a_stream_is_read_like_one_at_its_beginning() -> None:
    event = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    failure = failure_in_stream(event, began=True)
    assert (failure.kind, failure.brief, failure.began) == (FailureKind.OVERLOADED, "Overloaded", True)
    assert failure_in_stream({"error": "out of memory"}, began=False).kind is FailureKind.BROKEN


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["error", "message", "code", "x"]), inner)
    ),
    max_leaves=8,
)


@given(
    status=st.integers(300, 599),
    headers=st.dictionaries(
        st.sampled_from(["retry-after", "Date", "x-ratelimit-reset-a", "x-ratelimit-remaining-a", "x-should-retry"]),
        st.text(max_size=30) | st.sampled_from([DATE, "0", "1h2m3s4ms", "9" * 400, "1e400", "2026-11-30"]),
    ),
    content=st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()),
)
def test_whatever_comes_is_a_failure_with_a_time_that_can_be(
    status: int, headers: dict[str, str], content: bytes
) -> None:
    failure = failure_of(status, headers, content)
    assert failure.brief
    assert len(failure.brief) < 400
    assert failure.retry_after_s is None or 0 <= failure.retry_after_s < float("inf")


@pytest.mark.parametrize("headers", [{"retry-after": "1e308"}, {"retry-after-ms": "1e300"}])
def test_a_hint_that_would_close_a_backend_for_good_counts_as_a_day(headers: dict[str, str]) -> None:
    assert failure_of(429, headers).retry_after_s == 86_400
