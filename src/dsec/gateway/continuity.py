"""Answers that a backend keeps and later calls go on from: those calls must go where the answer is.

Only the responses protocol has them (`previous_response_id`). What is not known here goes anywhere, as before.
"""

from __future__ import annotations

from collections.abc import Iterable

from dsec.base.errors import NotFoundError
from dsec.gateway.config import Api
from dsec.gateway.fronts.asked import Asked

_REMEMBERED = 65_536


class Continuity:
    """Which backend keeps which answer, and which projects got it; the oldest are forgotten."""

    def __init__(self) -> None:
        self._homes: dict[str, tuple[str, frozenset[str]]] = {}

    def learn(self, asked: Asked, answer_id: str, backend: str, project: str) -> None:
        """Remember who gave an answer."""
        if asked.api is not Api.RESPONSES or not answer_id:
            return
        # Equal ids come from replays and from simulated backends: who got the answer may go on from it.
        got = self._homes.get(answer_id, (backend, frozenset()))[1]
        if len(self._homes) >= _REMEMBERED:
            del self._homes[next(iter(self._homes))]
        self._homes[answer_id] = backend, got | {project}

    def others(self, asked: Asked, backends: Iterable[str]) -> frozenset[str]:
        """Return the backends that a call cannot go to."""
        home = self._homes.get(asked.continues) if asked.continues else None
        return frozenset() if home is None else frozenset(backends) - {home[0]}

    def check(self, asked: Asked, project: str) -> None:
        """Refuse a call that goes on from another project's answer: the backend would tell what is in it.

        Raises:
            NotFoundError: it does.
        """
        home = self._homes.get(asked.continues) if asked.continues else None
        if home is not None and project not in home[1]:
            raise NotFoundError(
                f"there is no answer {asked.continues[:200]!r}", resolution="go on from an answer of this project"
            )
