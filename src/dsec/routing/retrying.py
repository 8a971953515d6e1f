"""Which failure of an attempt is tried again, where and when."""

from __future__ import annotations

import enum

from dsec.model.value import Value


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

    SAME = "same"
    ANOTHER = "another"


class Again(Value, frozen=True):
    """Try again.

    Attributes:
        where: at the same backend, or at another one.
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
