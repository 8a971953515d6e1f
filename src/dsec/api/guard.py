"""Bound an operation by its deadline, its client and the server's life."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any

import anyio

from dsec.api.patience import Patience
from dsec.base.errors import DeadlineExceededError, NodeUnavailableError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ClientGoneError(Exception):
    """Nobody is left to answer to. Never leaves the server, and therefore no `DsecError`."""


class _Reason(enum.Enum):
    DEADLINE = "deadline"
    GONE = "gone"
    SHUTDOWN = "shutdown"


class Guard:
    """Cancel what runs inside when its deadline passes, its client disconnects, or the server shuts down.

    One scope and, where the operation ends with its client, one task that waits for the disconnect. The task is not
    awaited at the end: it is cancelled or has seen the response complete, and a turn of the loop on the hot path would
    cost more than the whole guard.

    Args:
        deadline_s: seconds from entering.
        receive: the request's ASGI receive once its body was read, or None to go on without the client.
        paused_s: tells how long the sandbox was paused that the operation waits for; that time is not counted
            (`Patience`). None: all time is.

    Raises (on leaving):
        DeadlineExceededError, NodeUnavailableError: by the reason of the cancellation.
        ClientGoneError: the client went away.
    """

    __slots__ = ("_deadline_s", "_patience", "_paused_s", "_reason", "_receive", "_scope", "_watcher")

    def __init__(
        self, deadline_s: float, receive: Receive | None, paused_s: Callable[[], Awaitable[float]] | None = None
    ) -> None:
        self._paused_s = paused_s
        self._patience: Patience | None = None
        self._deadline_s = deadline_s
        self._receive = receive
        self._reason = _Reason.DEADLINE
        self._watcher: asyncio.Task[None] | None = None
        self._scope = anyio.CancelScope()

    def __enter__(self) -> Guard:
        if self._paused_s is None:
            self._scope.deadline = anyio.current_time() + self._deadline_s
        else:
            self._patience = Patience(self._deadline_s, self._paused_s, lambda: self._cancel(_Reason.DEADLINE))
        self._scope.__enter__()
        if self._receive is not None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch(self._receive))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._watcher is not None:
            self._watcher.cancel()
        if self._patience is not None:
            self._patience.close()
        swallowed = self._scope.__exit__(kind, error, trace)
        if self._scope.cancelled_caught:
            self._raise_reason()
        return bool(swallowed)

    def shut_down(self) -> None:
        """End the operation because the server goes away."""
        self._cancel(_Reason.SHUTDOWN)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass  # What an impolite client sends after its body is dropped.
        self._cancel(_Reason.GONE)

    def _cancel(self, reason: _Reason) -> None:
        self._reason = reason
        self._scope.cancel()

    def _raise_reason(self) -> None:
        if self._reason is _Reason.GONE:
            raise ClientGoneError
        if self._reason is _Reason.SHUTDOWN:
            raise shutting_down()
        raise DeadlineExceededError(f"the operation took longer than {self._deadline_s:g} s")


def shutting_down() -> NodeUnavailableError:
    """Return the error for whoever would wait longer than the server lives."""
    return NodeUnavailableError(
        "the server is shutting down", resolution="what it looks after stays: connect again later"
    )
