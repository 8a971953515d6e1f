"""The small server of tests ends in good order while somebody connects."""

from __future__ import annotations

import socket

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import SocketStream

from dsec.testing.loopback import on_loopback


async def _serve(stream: SocketStream) -> None:
    await stream.aclose()


@pytest.mark.anyio
async def test_a_connection_that_comes_as_the_server_ends_is_no_failure() -> None:
    async with on_loopback(_serve) as port:
        await anyio.wait_all_tasks_blocked()
        with socket.create_connection(("127.0.0.1", port)):
            # In the turn of the loop in which the server ends, its accept is ready.
            await anyio.lowlevel.checkpoint()
