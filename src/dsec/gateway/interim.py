"""Failures and retries until routing brings its own: this file goes then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsec.routing.retrying import Again, Failure, FailureKind, GiveUp, Where


def failure_of(status: int, headers: Mapping[str, str], body: bytes) -> Failure:
    """Return the failure that an HTTP answer tells."""
    kinds = {429: FailureKind.LIMITED, 503: FailureKind.OVERLOADED, 529: FailureKind.OVERLOADED}
    if status in (401, 403):
        kind = FailureKind.DENIED
    elif 400 <= status < 500 and status not in (408, 429):
        kind = FailureKind.REFUSED
    else:
        kind = kinds.get(status, FailureKind.BROKEN)
    after = headers.get("retry-after", "")
    return Failure(
        kind=kind, brief=f"HTTP {status}", status=status, retry_after_s=float(after) if after.isdigit() else None
    )


class RetryPolicy:
    """Every failure that is not the call's own is tried elsewhere at once."""

    def after(self, failures: Sequence[Failure], *, now_s: float, deadline_s: float, bits: int) -> Again | GiveUp:
        """Return whether and where to try again."""
        if failures[-1].kind in (FailureKind.REFUSED, FailureKind.TOO_LONG):
            return GiveUp(reason="every backend would say the same")
        return Again(where=Where.ANOTHER, delay_s=0.0, reason="it may work elsewhere")
