"""Commands over WebSockets, the client's side: a `CommandStream` for terminals, streams and attaching."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from dsec.api import wire
from dsec.base.errors import DsecError, NodeUnavailableError, SandboxExitedError, UnknownOutcomeError
from dsec.model.process import CommandRequest, ErrorEvent, ExitEvent, ProcessEvent, TerminalSize
from dsec.sdk.keepalive import Endpoint, unreachable

FRAME_BYTES = 256 << 10
"""Largest piece of input in one frame."""
LEAVE_TIMEOUT_S = 60.0
"""How long leaving waits for the server to end the command's tree."""


class CommandSocket:
    """A command that runs behind a WebSocket. Implements `dsec.service.port.CommandStream`.

    Input flows only as fast as the command consumes it: `write` waits while a window's worth is unconsumed. The words
    of the server that open the window are read by whoever iterates; a caller that only writes reads them itself.
    """

    def __init__(self, connection: ClientConnection, *, name: str) -> None:
        self._connection = connection
        self._name = name
        self._unconsumed = 0
        self._held: list[ProcessEvent] = []
        self._receiving = anyio.Lock()
        self._changed = anyio.Event()
        self._ended = False
        self.process_id = ""

    async def start(self, request: CommandRequest | None) -> None:
        """Name the command (None: the path already names a process) and wait until it runs."""
        if request is not None:
            await self._send(_control(wire.StartControl(command=request)))
        event = await self._receive()
        if isinstance(event, ErrorEvent):
            self._ended = True
            raise wire.raise_error(event)
        if not isinstance(event, wire.StartedEvent):
            raise NodeUnavailableError("the server broke the protocol: the command's start was expected")
        self.process_id = event.process_id

    def __aiter__(self) -> AsyncIterator[ProcessEvent]:
        return self

    async def __anext__(self) -> ProcessEvent:
        while True:
            if self._held:
                return self._held.pop(0)
            if self._ended:
                raise StopAsyncIteration
            async with self._receiving:
                if not self._held and not self._ended:
                    await self._advance()

    async def _advance(self) -> None:
        """Take one message from the connection; `_receiving` is held."""
        event = await self._receive()
        if isinstance(event, wire.ConsumedControl):
            self._unconsumed -= event.count
        elif not isinstance(event, wire.StartedEvent):
            self._held.append(event)
            self._ended = isinstance(event, ExitEvent | ErrorEvent)
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def _receive(self) -> Any:
        try:
            message = await self._connection.recv()
        except ConnectionClosed as error:
            self._ended = True
            raise UnknownOutcomeError(
                f"the connection to {self._name} was cut",
                detail=str(error),
                resolution="a foreground command ends with its connection; look at the sandbox before asking again",
            ) from error
        if isinstance(message, bytes):
            return wire.decode_output_frame(message)
        return _decode(message)

    async def write(self, data: bytes) -> None:
        """Feed the input. Raises `SandboxExitedError` when the command has ended."""
        view = memoryview(data)
        for start in range(0, len(view), FRAME_BYTES):
            piece = bytes(view[start : start + FRAME_BYTES])
            await self._wait_window()
            self._unconsumed += len(piece)
            await self._send(piece)

    async def _wait_window(self) -> None:
        while self._unconsumed >= wire.STDIN_WINDOW_BYTES and not self._ended:
            if self._receiving.locked() or len(self._held) >= MAXIMUM_HELD:
                await self._changed.wait()
                continue
            async with self._receiving:
                await self._advance()
        if self._ended:
            raise SandboxExitedError("the command has ended and takes no input")

    async def close_stdin(self) -> None:
        await self._tell(wire.EofControl())

    async def signal(self, number: int) -> None:
        await self._tell(wire.SignalControl(number=number))

    async def resize(self, size: TerminalSize) -> None:
        await self._tell(wire.ResizeControl(columns=size.columns, rows=size.rows))

    async def _tell(self, control: Any) -> None:
        if not self._ended:
            await self._send(_control(control))

    async def _send(self, data: bytes | str) -> None:
        try:
            await self._connection.send(data)
        except ConnectionClosed as error:
            self._ended = True
            raise SandboxExitedError("the connection to the command has ended", detail=str(error)) from error

    async def leave(self) -> None:
        """Let go, and return once the server has ended the command's tree (or detached)."""
        with anyio.move_on_after(LEAVE_TIMEOUT_S, shield=True):
            try:
                if not self._ended:
                    await self._connection.send(_control(wire.LeaveControl()))
                while True:
                    await self._connection.recv()
            except ConnectionClosed:
                return


MAXIMUM_HELD = 64
"""Events kept for the reader while a writer reads in its stead."""


def _control(control: Any) -> str:
    return wire.encode(control, msgpack=False).decode()


def _decode(message: str) -> Any:
    try:
        return wire.server_control.decode(message)
    except msgspec.MsgspecError as error:
        raise NodeUnavailableError("the server broke the protocol", detail=str(error)) from error


@asynccontextmanager
async def open_command(endpoint: Endpoint, target: str, request: CommandRequest | None) -> AsyncIterator[CommandSocket]:
    """Open a command behind a WebSocket; leaving early ends it (or detaches).

    Raises:
        NodeUnavailableError: the server cannot be reached. Any error of the operation itself.
    """
    connection = await _connect(endpoint, target)
    command = CommandSocket(connection, name=target)
    try:
        await command.start(request)
        yield command
    finally:
        await command.leave()
        with anyio.move_on_after(LEAVE_TIMEOUT_S, shield=True):
            await connection.close()


async def _connect(endpoint: Endpoint, target: str) -> ClientConnection:
    headers = {"authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
    options: dict[str, Any] = {
        "additional_headers": headers,
        "compression": None,
        "max_size": wire.MAXIMUM_EVENT_BYTES,
        "max_queue": 4,
        "close_timeout": 5,
        "user_agent_header": None,
        "proxy": None,
    }
    path = endpoint.socket_path
    try:
        if path is not None:
            return await unix_connect(path, f"ws://localhost{target}", **options)
        endpoint.address()
        return await connect(f"ws{endpoint.url.rstrip('/').removeprefix('http')}{target}", **options)
    except InvalidStatus as error:
        raise _refused(error) from error
    except (OSError, InvalidHandshake, TimeoutError) as error:
        raise unreachable(endpoint, error) from error


def _refused(error: InvalidStatus) -> DsecError:
    try:
        body: wire.ErrorBody = wire.decode(error.response.body or b"", wire.ErrorBody, msgpack=False)
    except DsecError:
        return NodeUnavailableError(f"the server answered with HTTP status {error.response.status_code}")
    return wire.raise_error(body)
