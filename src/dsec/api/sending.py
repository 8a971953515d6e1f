"""Send on a plain socket with nothing in between: no copy, no buffer, waiting when the other side does not take more.

The transports of asyncio (before Python 3.12) copy what the kernel does not take at once into a buffer and move that
buffer's content with each further attempt. For megabytes that costs more than sending them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

SEND_BUFFER_BYTES = 1 << 20
"""What the kernel may hold of a unix socket's outgoing data: its default, 208 KiB, is one wake-up per 200 KiB."""


async def send_parts(connection: socket.socket, parts: Sequence[bytes | memoryview]) -> None:
    """Send all parts, one after the other.

    Args:
        connection: a non-blocking stream socket; no transport of the loop may own this descriptor (a duplicate is
            another one).

    Raises:
        OSError: the connection has ended. After an error or a cancellation it is unknown how much was sent.
    """
    try:
        sent = connection.sendmsg(parts)
    except (BlockingIOError, InterruptedError):
        sent = 0
    for part in parts:
        if sent >= len(part):
            sent -= len(part)
            continue
        await asyncio.get_running_loop().sock_sendall(connection, memoryview(part)[sent:])
        sent = 0


def enlarge_send_buffer(connection: socket.socket) -> None:
    """Let a unix socket hold more. TCP's buffers grow by themselves, and would stop doing so."""
    if connection.family == socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
