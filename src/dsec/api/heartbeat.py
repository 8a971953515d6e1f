"""A stream of events that says that it is alive while nothing happens.

Events and heartbeats meet in a stream that holds nothing: whoever reads slowly holds up the producer, as without
heartbeats, and no event is lost to a wait that was given up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

T = TypeVar("T")


class _Beating(Generic[T]):
    def __init__(self, events: AsyncIterator[T], beat: T, every_s: float) -> None:
        self._events = events
        self._beat = beat
        self._every_s = every_s
        self._is_quiet = True
        self._pulse = anyio.CancelScope()
        self._error: Exception | None = None

    async def produce(self, send: MemoryObjectSendStream[T]) -> None:
        with send:
            try:
                async for event in self._events:
                    self._is_quiet = False
                    await send.send(event)
            except Exception as error:  # noqa: BLE001 - raised as it is by `heard`: a task group would wrap it.
                self._error = error
        self._pulse.cancel()

    async def pulse(self, send: MemoryObjectSendStream[T]) -> None:
        with send, self._pulse:
            while True:
                await anyio.sleep(self._every_s)
                if self._is_quiet:
                    await send.send(self._beat)
                self._is_quiet = True

    async def heard(self, receive: MemoryObjectReceiveStream[T]) -> AsyncIterator[T]:
        async for event in receive:
            yield event
        if self._error is not None:
            raise self._error


@asynccontextmanager
async def beating(events: AsyncIterator[T], beat: T, every_s: float) -> AsyncIterator[AsyncIterator[T]]:
    """Yield what `events` yields, and `beat` where nothing came for `every_s` seconds (or for less than twice that).

    Raises:
        What `events` raises, and what is raised inside, as it is.
    """
    both = _Beating(events, beat, every_s)
    send, receive = anyio.create_memory_object_stream[T](0)
    beats = send.clone()
    failure: Exception | None = None
    with send, beats, receive:  # Here as well: a task that is cancelled before its first step closes nothing.
        async with anyio.create_task_group() as group:
            group.start_soon(both.produce, send)
            group.start_soon(both.pulse, beats)
            try:
                yield both.heard(receive)
            except Exception as error:  # noqa: BLE001 - raised below: a task group would wrap it.
                failure = error
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure
