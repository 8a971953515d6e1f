"""The node's background work: every task has a name, is cancelled at the end, and none takes the node down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.abc
import structlog

_log = structlog.get_logger(__name__)


class Supervisor:
    """Run background tasks of a node in one task group."""

    def __init__(self, group: anyio.abc.TaskGroup) -> None:
        self._group = group

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> anyio.CancelScope:
        """Begin `work` and return the scope that ends it."""
        scope = anyio.CancelScope()
        self._group.start_soon(self._guarded, name, work, scope, name=name)
        return scope

    def cancel_all(self) -> None:
        self._group.cancel_scope.cancel()

    async def _guarded(self, name: str, work: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
        with scope:
            try:
                await work()
            except Exception as error:  # noqa: BLE001
                # This is the supervisor: one task's failure is reported and must not end the node's other tasks.
                _log.error("background_task_failed", task=name, error=repr(error))
