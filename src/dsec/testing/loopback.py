"""A small TCP server of a test, in its own event loop, that ends in good order while somebody connects.

When an accept of asyncio's (Python 3.11) is cancelled in the turn of the loop in which a connection has come, it gives
its result to a future that is done: `InvalidStateError` in a callback, which fails the test, and a connection that
nobody closes, which fails the next. So nothing is accepted any more before the accept is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketAttribute, SocketStream


@asynccontextmanager
async def on_loopback(serve: Callable[[SocketStream], Awaitable[object]]) -> AsyncIterator[int]:
    """Serve connections on a free port of loopback, and yield the port. Leaving cancels what is under way."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        try:
            yield listener.extra(SocketAttribute.local_port)
        finally:
            asyncio.get_running_loop().remove_reader(listener.extra(SocketAttribute.raw_socket).fileno())
            tasks.cancel_scope.cancel()
