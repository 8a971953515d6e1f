"""When a broken attempt is tried again."""

from __future__ import annotations

from collections.abc import Sequence

from dsec.model.retry import RetryPolicy

BACKOFF_S: tuple[float, ...] = RetryPolicy().backoff_s
"""Seconds before the second, third and fourth try: the back-off for creation."""


def next_delay_s(tries: int, *, backoff_s: Sequence[float] = BACKOFF_S) -> float | None:
    """Return the seconds to wait before another try, or None when there shall be none.

    Args:
        tries: how many tries there have been, all of them broken by the platform.
        backoff_s: waits before each further try.
    """
    return backoff_s[tries - 1] if 1 <= tries <= len(backoff_s) else None
