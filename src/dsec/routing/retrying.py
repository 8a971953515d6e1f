"""Which failure of an attempt is tried again, where and when.

Two things decide before all else. When a byte of the answer went to the caller, nothing is tried again: two answers are
never spliced. And what is the call's own fault would fail everywhere.

Otherwise the first further attempt is made at once, since another backend has no part in the failure; later ones wait,
longer each time and by chance, so that calls which failed together do not come back together. A backend that is limited
or overloaded is paused by the router (`dsec.routing.state`) for as long as it asks. It is therefore not excluded: the
next decision finds another one that is open, or waits for the first that opens.

Every attempt is paid for and recorded by itself. A policy says how many there may be.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value

_RANDOM_BITS = 64
_DOUBLINGS = 30


class FailureKind(enum.Enum):
    """What went wrong with an attempt."""

    UNREACHABLE = "unreachable"  # No connection, or none in time: nothing was sent.
    LIMITED = "limited"  # 429: a limit of the backend.
    OVERLOADED = "overloaded"  # 503, 529: it has no room now.
    BROKEN = "broken"  # 5xx, a broken event, invalid UTF-8, a connection lost while it worked.
    SILENT = "silent"  # No byte in time.
    STALLED = "stalled"  # It began, then nothing came in time.
    WRONG_MODEL = "wrong_model"  # It answered as another model.
    DENIED = "denied"  # 401, 403: the gateway's own key at this backend.
    REFUSED = "refused"  # 4xx: the call itself; every backend would say the same.
    TOO_LONG = "too_long"  # The call is longer than its context.
    CANCELLED = "cancelled"  # The caller went away.
    EXPIRED = "expired"  # The caller's deadline passed.


class Failure(Value, frozen=True):
    """An attempt that did not end well.

    Attributes:
        kind: what went wrong.
        brief: the same in a line.
        status: the HTTP status; None: there was none.
        retry_after_s: how long the backend asked to be left alone; None: it did not say.
        may_retry: what the backend said of trying again; None: nothing.
        began: whether a byte of the answer went to the caller.
    """

    kind: FailureKind
    brief: str
    status: int | None = None
    retry_after_s: float | None = None
    may_retry: bool | None = None
    began: bool = False


class Where(enum.Enum):
    """Where the next attempt goes."""

    SAME = "same"  # Wherever the router says; the backend it failed at is not excluded.
    ANOTHER = "another"  # Not where it failed.


class Again(Value, frozen=True):
    """Try again.

    Attributes:
        where: whether the backend it failed at may be taken again.
        delay_s: after this time.
        reason: in words.
    """

    where: Where
    delay_s: float
    reason: str


class GiveUp(Value, frozen=True):
    """Tell the caller.

    Attributes:
        reason: in words.
    """

    reason: str


_FINAL = {
    FailureKind.REFUSED: "every backend would refuse the call",
    FailureKind.CANCELLED: "the caller went away",
    FailureKind.EXPIRED: "the deadline passed",
}
_PAUSING = frozenset({FailureKind.LIMITED, FailureKind.OVERLOADED})


class RetryPolicy(Value, frozen=True):
    """How attempts are tried again.

    Attributes:
        attempts: the most for one call, the first among them.
        backoff_s: pause before the third attempt; doubled before each further one. Half of it is by chance.
        backoff_limit_s: the longest.
        hedge_after_s: a second attempt runs beside the first when no byte came in this time; both are paid for. None:
            never, which is the default because it spends money to win time.
    """

    attempts: int = 4
    backoff_s: float = 0.25
    backoff_limit_s: float = 8.0
    hedge_after_s: float | None = None

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidRequestError(f"retry: attempts is {self.attempts}", resolution="give 1 or more")
        for name in ("backoff_s", "backoff_limit_s"):
            if not getattr(self, name) >= 0:
                raise InvalidRequestError(
                    f"retry: {name} is {getattr(self, name)}", resolution="give seconds of 0 or more"
                )
        if self.hedge_after_s is not None and not self.hedge_after_s > 0:
            raise InvalidRequestError(
                f"retry: hedge_after_s is {self.hedge_after_s}", resolution="give seconds above 0, or leave it out"
            )

    def after(
        self, failures: Sequence[Failure], *, now_s: float, deadline_s: float | None, bits: int, others: int = 1
    ) -> Again | GiveUp:
        """Say what to do after a failure.

        Args:
            failures: of this call so far, the last one last; at least one.
            now_s: the present.
            deadline_s: when the caller's time is over, on the same clock; None: never.
            bits: 64 random bits.
            others: backends that the call was not at yet. With none left it may go back to where it failed.
        """
        last = failures[-1]
        if last.began:
            return GiveUp(reason="a part of the answer went to the caller; two answers are never spliced")
        if last.kind in _FINAL:
            return GiveUp(reason=_FINAL[last.kind])
        if len(failures) >= self.attempts:
            return GiveUp(reason=f"it failed {len(failures)} times; the last time: {last.brief}")
        is_pausing = last.kind in _PAUSING and last.may_retry is not False
        if not is_pausing and others < 1 and (last.may_retry is False or last.kind is FailureKind.TOO_LONG):
            return GiveUp(reason=f"no other backend is left: {last.brief}")
        where = Where.SAME if is_pausing or others < 1 else Where.ANOTHER
        delay_s = self._delay_s(len(failures) + (where is Where.SAME and not is_pausing), bits)
        if deadline_s is not None and now_s + delay_s >= deadline_s:
            return GiveUp(reason="the deadline passes before another attempt")
        return Again(where=where, delay_s=delay_s, reason=f"failure {len(failures)}: {last.brief}")

    def _delay_s(self, failures: int, bits: int) -> float:
        if failures < 2:
            return 0.0
        whole_s = min(math.ldexp(self.backoff_s, min(failures - 2, _DOUBLINGS)), self.backoff_limit_s)
        return whole_s * (0.5 + 0.5 * (bits % (1 << _RANDOM_BITS)) / (1 << _RANDOM_BITS))
