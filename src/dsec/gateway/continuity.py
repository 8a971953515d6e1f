"""Answers that a backend keeps and later calls go on from: those calls must go where the answer is.

Only the responses protocol has them (`previous_response_id`). What is not known here goes anywhere, as before.
"""

from __future__ import annotations

from collections.abc import Iterable

from dsec.gateway.config import Api
from dsec.gateway.fronts.asked import Asked

_REMEMBERED = 65_536


class Continuity:
    """Which backend keeps which answer; the oldest are forgotten."""

    def __init__(self) -> None:
        self._homes: dict[str, str] = {}

    def learn(self, asked: Asked, answer_id: str, backend: str) -> None:
        """Remember who gave an answer."""
        if asked.api is not Api.RESPONSES or not answer_id:
            return
        if len(self._homes) >= _REMEMBERED:
            del self._homes[next(iter(self._homes))]
        self._homes[answer_id] = backend

    def others(self, asked: Asked, backends: Iterable[str]) -> frozenset[str]:
        """Return the backends that a call cannot go to."""
        home = self._homes.get(asked.continues) if asked.continues else None
        return frozenset() if home is None else frozenset(backends) - {home}
