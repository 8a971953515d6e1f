"""Calls that are served side by side, and how far their tokens are. Pure.

All calls of a batch get their next token at the same rate, and the rate depends on how many they are. So one number
says it all: the tokens that a call would have got that was there from the beginning. A call that begins to generate
when this number is p has its k-th token when it is p + k. With the batch unchanged, n tokens take n times the time of a
token, which is `dsec.costs.model_service.call_time_s`.
"""

from __future__ import annotations

from dsec.routing.backend import Backend


class Batch:
    """One batch.

    Args:
        backend: for the time of a token by the number of calls.
    """

    __slots__ = ("_as_of_s", "_backend", "_tokens", "running")

    def __init__(self, backend: Backend) -> None:
        self.running = 0
        self._backend = backend
        self._tokens = 0.0
        self._as_of_s = 0.0

    def enter(self, now_s: float) -> None:
        """Count one call more."""
        self.tokens(now_s)
        self.running += 1

    def leave(self, now_s: float) -> None:
        """Count one call less."""
        self.tokens(now_s)
        self.running -= 1

    def tokens(self, now_s: float) -> float:
        """Return how far it is."""
        pace = self._backend.s_per_token(self.running) if self.running else 0.0
        if pace and now_s > self._as_of_s:
            self._tokens += (now_s - self._as_of_s) / pace
        self._as_of_s = max(now_s, self._as_of_s)
        return self._tokens

    def wait_s(self, target: float, now_s: float) -> float:
        """Return how long until it is at `target` if nothing changes; 0 where tokens take no time."""
        return max(0.0, target - self.tokens(now_s)) * self._backend.s_per_token(self.running)
