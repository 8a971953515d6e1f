"""Callers of a gateway that cost little themselves: prepared requests over connections that stay open."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from dsec.base.errors import BackendFailedError

_LENGTH = re.compile(rb"content-length: *(\d+)", re.I)
_STAMP = re.compile(rb'"content": ?"(\d+)"')
_LARGEST_HEAD = 1 << 20


def request(url: str, **more: Any) -> bytes:
    """Return a chat call as it goes over the wire."""
    where = urlsplit(url)
    said = "Say hello. " * 20
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": said}], **more}, separators=(",", ":"))
    head = (
        f"POST {where.path}/chat/completions HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer none\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode()


class Connection:
    """One connection, over which one call goes after the other.

    Args:
        url: of the service, with ``/v1``.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Connection:
        where = urlsplit(self._url)
        self._reader, self._writer = await asyncio.open_connection(where.hostname, where.port, limit=_LARGEST_HEAD)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._writer.transport.abort()

    async def whole(self, wire: bytes) -> None:
        """Make a call and read its answer.

        Raises:
            BackendFailedError: it was refused.
        """
        self._writer.write(wire)
        head = await self._reader.readuntil(b"\r\n\r\n")
        match = _LENGTH.search(head)
        body = await (self._reader.readexactly(int(match.group(1))) if match else self._chunks())
        if b" 200 " not in head[:16]:
            raise BackendFailedError(f"a call was not answered: {head[:40]!r}", detail=body[:300].decode("latin1"))

    async def _chunks(self) -> bytes:
        data = b""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            data += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)
        return data

    async def events(self, wire: bytes, take: Callable[[float], None]) -> None:
        """Make a call whose answer is a stream; `take` gets the seconds from writing each event to reading it.

        Raises:
            BackendFailedError: it was refused.
        """
        self._writer.write(wire)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head[:16]:
            raise BackendFailedError(f"a stream was not answered: {head[:40]!r}")
        while True:
            line = await self._reader.readuntil(b"\n")
            if (match := _STAMP.search(line)) is not None:
                take((time.monotonic_ns() - int(match.group(1))) * 1e-9)
            elif b"[DONE]" in line:
                return


async def rate(url: str, at_once: int, duration_s: float) -> float:
    """Return calls per second with so many at a time."""
    wire = request(url)
    done = 0
    until_s = time.perf_counter() + duration_s

    async def caller() -> None:
        nonlocal done
        async with Connection(url) as connection:
            while time.perf_counter() < until_s:
                await connection.whole(wire)
                done += 1

    begin_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(caller())
    return done / (time.perf_counter() - begin_s)


async def delays_s(url: str, streams: int, events: int, interval_s: float) -> list[float]:
    """Return the time of each event from the service to its caller, with so many streams side by side."""
    wire = request(url, stream=True, dsec_null={"events": events, "interval_s": interval_s})
    seen: list[float] = []

    async def caller() -> None:
        async with Connection(url) as connection:
            await connection.events(wire, seen.append)

    async with asyncio.TaskGroup() as group:
        for number in range(streams):
            await asyncio.sleep(interval_s / streams if number else 0.0)  # So that they do not all speak at once.
            group.create_task(caller())
    return seen
