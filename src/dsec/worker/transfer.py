"""Streams of bytes between here and a sandbox, with bounds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

from dsec.base.errors import LimitExceededError


def _closing(source: AsyncIterator[bytes]) -> Any:
    return aclosing(cast(Any, source))


async def single_chunk(data: bytes) -> AsyncIterator[bytes]:
    """Yield `data` at once."""
    yield data


async def read_bounded(source: AsyncIterator[bytes], limit_bytes: int) -> bytes:
    """Return at most the first ``limit_bytes + 1`` bytes: one more than the limit shows that there was more."""
    data = bytearray()
    async with _closing(source) as chunks:
        async for chunk in chunks:
            data += chunk
            if len(data) > limit_bytes:
                break
    return bytes(data[: limit_bytes + 1])


async def bounded(source: AsyncIterator[bytes], limit_bytes: int, what: str) -> AsyncIterator[bytes]:
    """Pass a stream on.

    Raises:
        LimitExceededError: it is longer than `limit_bytes`.
    """
    passed = 0
    async with _closing(source) as chunks:
        async for chunk in chunks:
            passed += len(chunk)
            if passed > limit_bytes:
                raise LimitExceededError(f"{what} is larger than {limit_bytes} bytes")
            yield chunk
