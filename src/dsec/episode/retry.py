"""When a broken attempt is tried again."""

from __future__ import annotations

from collections.abc import Sequence

BACKOFF_S: tuple[float, ...] = (1.0, 3.0, 9.0)
"""Seconds before the second, third and fourth try (the design's back-off for creation)."""


def next_delay_s(tries: int, *, backoff_s: Sequence[float] = BACKOFF_S) -> float | None:
    """Return the seconds to wait before another try, or None when there shall be none.

    Args:
        tries: how many tries there have been, all of them broken by the platform.
        backoff_s: waits before each further try.
    """
    return backoff_s[tries - 1] if 1 <= tries <= len(backoff_s) else None
