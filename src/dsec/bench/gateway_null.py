"""A model service that does nothing, as quickly as that goes: `python -m dsec.bench.gateway_null`.

It prints its port and answers chat completions until its standard input ends: at once with one fixed answer, or, if
the body has ``"stream":true``, with as many events at such intervals as its member `dsec_null` says. The content of an
event is the time at which it was written, in nanoseconds of the monotonic clock, which all processes of a host share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

_ANSWER = json.dumps(
    {
        "id": "chatcmpl-null",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13},
    }
).encode()
_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(_ANSWER), _ANSWER)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = (
    b'data: {"id":"chatcmpl-null","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"%d"},"finish_reason":%s}]}\n\n'
)
_USAGE = (
    b'data: {"id":"chatcmpl-null","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
    b'"usage":{"prompt_tokens":12,"completion_tokens":9,"total_tokens":21}}\n\n'
)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class NullService(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._data = b""
        self._transport: Any = None
        self._streams: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        for stream in self._streams:
            stream.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._data) < end + 4 + length:
                return
            body = self._data[end + 4 : end + 4 + length]
            self._data = self._data[end + 4 + length :]
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        if b'"stream":true' not in body and b'"stream": true' not in body:
            self._transport.write(_WHOLE)
            return
        stream = asyncio.get_running_loop().create_task(self._stream(json.loads(body).get("dsec_null") or {}))
        self._streams.add(stream)
        stream.add_done_callback(self._streams.discard)

    async def _stream(self, wish: dict[str, Any]) -> None:
        self._transport.write(_HEAD)
        interval_s = float(wish.get("interval_s", 0.0))
        for _ in range(int(wish.get("events", 1))):
            self._transport.write(_chunk(_EVENT % (time.monotonic_ns(), b"null")))
            await asyncio.sleep(interval_s)
        last = _EVENT % (time.monotonic_ns(), b'"stop"')
        self._transport.write(_chunk(last) + _chunk(_USAGE) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(NullService, "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve())
