"""The events of a server's answer: records of MessagePack behind each other, of which one may be an error."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from dsec.api import wire
from dsec.model.process import ErrorEvent
from dsec.sdk.streaming import StreamReply


async def events_of(reply: StreamReply, kind: Any) -> AsyncIterator[Any]:
    """Yield the events of an answer.

    Args:
        reply: the answer.
        kind: of the events, as `dsec.api.wire` has it: with errors among them.

    Raises:
        DsecError: the server told it as the last event.
        InvalidRequestError: a record is longer than may be.
    """
    decoder = wire.EventDecoder(kind)
    async for chunk in reply.pieces():
        for event in decoder.feed(chunk):
            if isinstance(event, ErrorEvent):
                raise wire.raise_error(event)
            yield event
