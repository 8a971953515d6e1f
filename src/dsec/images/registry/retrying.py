"""When a registry is asked again, and after which pause. Pure.

A pause grows exponentially and is drawn at random between nothing and its bound ("full jitter": Marc Brooker,
*Exponential Backoff And Jitter*, 2015), so that a thousand nodes that were refused at one moment do not come back at
another. A registry that says when (``Retry-After``, RFC 9110, 10.2.3) is believed up to a bound: beyond it, whoever
waits is better told.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value

RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


class Backoff(Value, frozen=True):
    """How a registry is asked again.

    Attributes:
        tries: how often one thing is asked for in all, as long as nothing comes of it.
        first_pause_s: bound of the pause after the first failure; doubled after each.
        longest_pause_s: bound of them all.
        longest_retry_after_s: the longest ``Retry-After`` that is waited for.
    """

    tries: int = 6
    first_pause_s: float = 0.25
    longest_pause_s: float = 8.0
    longest_retry_after_s: float = 60.0

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise InvalidRequestError(f"a registry cannot be asked {self.tries} times", resolution="give 1 or more")

    def pause_s(self, failures: int, drawn: float, retry_after_s: float | None = None) -> float | None:
        """Return how long to wait after so many failures in a row; None: ask no more.

        Args:
            failures: how many, 1 or more.
            drawn: a random number, 0 to 1.
            retry_after_s: what the registry said; None: nothing.
        """
        if failures >= self.tries:
            return None
        pause_s = drawn * min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 30))
        if retry_after_s is None:
            return pause_s
        if retry_after_s > self.longest_retry_after_s:
            return None
        return retry_after_s + pause_s  # The random part is for those who were told the same second.


def retry_after_s(value: str | None, now_wall_s: float) -> float | None:
    """Return what a ``Retry-After`` says in seconds from now; None: nothing that can be understood.

    Args:
        value: the header: seconds, or a date.
        now_wall_s: seconds since the epoch.
    """
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return float(value.strip()[:12])
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now_wall_s)
    except (ValueError, OverflowError):
        return None
