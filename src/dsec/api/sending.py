"""Send on a plain socket with nothing in between: no copy, no buffer, waiting when the other side does not take more.

The transports of asyncio (before Python 3.12) copy what the kernel does not take at once into a buffer and move that
buffer's content with each further attempt. For megabytes that costs more than sending them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import anyio

from dsec.api.framing import CHUNK_END, chunk_head
from dsec.linux.pipes import Pipe

SEND_BUFFER_BYTES = 1 << 20
"""What the kernel may hold of a unix socket's outgoing data: its default, 208 KiB, is one wake-up per 200 KiB."""

ENOUGH_BYTES = 1 << 20
"""How much is gathered in a pipe before it is worth passing on."""


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


async def send_chunk_from(connection: socket.socket, pipe: Pipe, count: int) -> None:
    """Send `count` bytes, which the pipe holds, as one chunk of a body, without copying them.

    Raises:
        OSError: the connection has ended. After an error or a cancellation it is unknown how much was sent.
    """
    await send_parts(connection, [chunk_head(count)])
    while count:
        try:
            count -= pipe.empty_to_socket(connection.fileno(), count, more=True)
        except BlockingIOError:
            await anyio.wait_writable(connection)
    await send_parts(connection, [CHUNK_END])


async def receive_into_pipe(connection: socket.socket, pipe: Pipe, limit: int, *, held: int = 0) -> int:
    """Receive into a pipe, without copying: up to `limit` bytes, which have been promised, or until it holds enough.

    A connection gives what has come, some kilobytes, and taking these on costs the same hops as a megabyte.

    Args:
        held: how many bytes the pipe holds already.

    Returns:
        How many bytes; 0 when nothing else is held: the other side sends no more. Less than promised may also mean
        that the pipe is full of small pieces, or that the next call will say that no more is sent.

    Raises:
        OSError: the connection has ended.
    """
    received, is_ready = 0, False
    while received < limit and held + received < ENOUGH_BYTES:
        try:
            count = pipe.fill_from_socket(connection.fileno(), limit - received)
        except BlockingIOError:
            if is_ready and held + received:
                break  # Not the connection: it is the pipe that is full.
            await anyio.wait_readable(connection)
            is_ready = True
            continue
        if not count:
            break
        received += count
        is_ready = False
    return received


def enlarge_send_buffer(connection: socket.socket) -> None:
    """Let a unix socket hold more. TCP's buffers grow by themselves, and would stop doing so."""
    if connection.family == socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
