"""Follow an episode over connections that end: none of its events is missed, and none is told twice.

A worker's stream of events says that it is alive where nothing happens. One that is silent longer, is cut, or ends with
the word that its server goes away is opened again from the event after the last that was heard. A worker that said so
was ended by somebody: it is waited for, and not started again from here. The stream ends well only where the worker
ends it. A gap in the sequences is an error, unless what comes after it is a saved state, behind which the
worker has dropped the beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import msgspec

from dsec.api import episode_wire, wire
from dsec.api.episode_routes import EPISODE_ROUTES
from dsec.base.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    NodeUnavailableError,
    StateCorruptedError,
)
from dsec.episode.log_events import StateSaved
from dsec.episode.spec import EpisodeEvent
from dsec.model.process import ErrorEvent
from dsec.sdk.http import ANSWER_SLACK_S, error_of
from dsec.sdk.keepalive import Reply
from dsec.sdk.perseverance import Perseverance
from dsec.sdk.streaming import CutError, StreamClient, StreamReply, StreamRequest

SILENCE_S = 4 * episode_wire.HEARTBEAT_S
"""After how long without a word a stream is taken for dead."""

_LOST = (NodeUnavailableError, DeadlineExceededError)
"""The stream ended, not the episode: its server went away, or the longest time for which one is kept open is over."""
_HEADERS = f"accept: {wire.MSGPACK}, */*\r\n".encode()


class EpisodeFeed(AsyncIterator[EpisodeEvent]):
    """The saved events of one episode. Opened, iterated and closed by one task.

    Args:
        streams: connections to the worker.
        episode_id: of it.
        sequence: of the first event that is wanted.
        follow: go on until the episode has ended.
        patience_s: how long the worker may be away once it was there.
        silence_s: see `SILENCE_S`.
        revive: called when the worker was lost without a word, before it is asked again.
    """

    def __init__(
        self,
        streams: StreamClient,
        episode_id: str,
        sequence: int,
        *,
        follow: bool,
        patience_s: float,
        silence_s: float = SILENCE_S,
        revive: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._streams = streams
        self._episode_id = episode_id
        self._sequence = sequence
        self._follow = follow
        self._silence_s = silence_s
        self._revive = revive
        self._perseverance = Perseverance(patience_s)
        self._stream: _Stream | None = None
        self._said_goodbye = False
        self._ended = False

    async def open(self) -> None:
        """Connect for the first time: an error of that is the answer to what was asked.

        Raises:
            NotFoundError: there is no such episode.
            NodeUnavailableError: no worker answers.
        """
        self._stream = await _open(self._streams, self._target(), self._silence_s)

    def _target(self) -> str:
        query = [("from_sequence", str(self._sequence)), ("follow", "true" if self._follow else "false")]
        return EPISODE_ROUTES["events"].target(query, episode_id=self._episode_id)

    async def __anext__(self) -> EpisodeEvent:
        while not self._ended:
            try:
                event = await self._next()
            except _LOST as error:
                await self._lost(error)
                continue
            self._perseverance.renew()
            self._said_goodbye = False
            if event is None:
                self._ended = True
            elif isinstance(event, episode_wire.LoggedEvent):
                return self._heard(event)
        raise StopAsyncIteration

    async def _lost(self, error: NodeUnavailableError | DeadlineExceededError) -> None:
        self._said_goodbye |= self._stream is not None and self._stream.said_goodbye
        await self.aclose()
        await self._perseverance.wait(error)
        if self._revive is not None and not self._said_goodbye:
            await self._revive()

    async def _next(self) -> episode_wire.LoggedEvent | episode_wire.AliveEvent | None:
        if self._stream is None:
            await self.open()
        assert self._stream is not None
        return await self._stream.next()

    def _heard(self, event: episode_wire.LoggedEvent) -> EpisodeEvent:
        is_next = event.sequence == self._sequence
        if not is_next and not (event.sequence > self._sequence and isinstance(event.event, StateSaved)):
            raise StateCorruptedError(
                f"the worker told event {event.sequence} of {self._episode_id} where {self._sequence} was to come",
                resolution=f"`dsec episode watch {self._episode_id} --from {self._sequence}` asks for it again",
            )
        self._sequence = event.sequence + 1
        return EpisodeEvent(sequence=event.sequence, event=event.event)

    async def aclose(self) -> None:
        """Let go of the connection. Idempotent."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()


class _Stream:
    """One open response.

    Attributes:
        said_goodbye: its server goes away, and said so.
    """

    def __init__(self, stack: AsyncExitStack, reply: StreamReply, silence_s: float) -> None:
        self._stack = stack
        self._silence_s = silence_s
        self._pieces = aiter(reply.pieces())
        self._decoder = wire.EventDecoder(
            episode_wire.EpisodeStreamEvent, maximum_bytes=episode_wire.MAXIMUM_EVENT_BYTES
        )
        self._events: list[episode_wire.LoggedEvent | episode_wire.AliveEvent | ErrorEvent] = []
        self.said_goodbye = False

    async def next(self) -> episode_wire.LoggedEvent | episode_wire.AliveEvent | None:
        """Return the next event; None: the worker has ended the stream.

        Raises:
            NodeUnavailableError: it was cut, or fell silent.
            DsecError: the worker ended it with an error.
        """
        while not self._events:
            piece = await self._piece()
            if not piece:
                return None
            self._events = self._decoded(piece)
            self._events.reverse()
        event = self._events.pop()
        if isinstance(event, ErrorEvent):
            self.said_goodbye = event.code == NodeUnavailableError.code
            raise wire.raise_error(event)
        return event

    async def _piece(self) -> bytes:
        try:
            async with asyncio.timeout(self._silence_s):
                return await anext(self._pieces, b"")
        except CutError as error:
            raise NodeUnavailableError("the stream of events was cut", detail=str(error)) from error
        except TimeoutError as error:
            raise NodeUnavailableError(f"the worker said nothing for {self._silence_s:g} s") from error

    def _decoded(self, piece: bytes) -> list[episode_wire.LoggedEvent | episode_wire.AliveEvent | ErrorEvent]:
        try:
            return list(self._decoder.feed(piece))
        except (InvalidRequestError, msgspec.MsgspecError) as error:
            raise StateCorruptedError(
                "an event of the worker is not understood",
                detail=str(error),
                resolution="use the same version at both ends",
            ) from error

    async def aclose(self) -> None:
        if isinstance(self._pieces, AsyncGenerator):
            await self._pieces.aclose()
        await self._stack.aclose()


async def _open(streams: StreamClient, target: str, silence_s: float) -> _Stream:
    route = EPISODE_ROUTES["events"]
    request = StreamRequest(
        method=route.method,
        target=target,
        headers=_HEADERS,
        content=None,
        timeout_s=route.deadline_s + ANSWER_SLACK_S,
    )
    async with AsyncExitStack() as stack:
        try:
            reply = await stack.enter_async_context(streams.stream(request))
            if reply.status >= 400:
                raise error_of(Reply(reply.status, reply.content_type, await reply.read()))
        except CutError as error:
            raise NodeUnavailableError("the connection to the worker was cut", detail=str(error)) from error
        return _Stream(stack.pop_all(), reply, silence_s)
    raise AssertionError("unreachable: the stack swallows nothing")
