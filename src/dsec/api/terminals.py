"""Commands over WebSockets: terminals, and attaching with input.

Output is binary frames, controls are JSON text frames (docs/http-api.md). Input has a window: the server tells how
many bytes the command consumed, a client keeps at most `STDIN_WINDOW_BYTES` unconsumed, and one that ignores this is
cut off at `STDIN_LIMIT_BYTES`. The socket is therefore always being read, also while the command does not read its
input: signals get through, and a client that vanished is noticed.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import msgspec
import structlog
from anyio.lowlevel import checkpoint
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from dsec.api import wire
from dsec.api.routes import ROUTES, STREAM_S, Route
from dsec.base.errors import DeadlineExceededError, DsecError, InvalidRequestError, LimitExceededError
from dsec.model.process import CommandRequest, ErrorEvent, OutputEvent, TerminalSize
from dsec.service.port import CommandStream, SandboxService

_log = structlog.get_logger("dsec.api")

START_S = 30.0
"""How long a client may take to name its command."""


async def deny(socket: WebSocket, error: DsecError, status: int) -> None:
    """Answer the handshake with an error."""
    await socket.receive()  # The handshake itself.
    data = wire.encode(wire.error_body(error), msgpack=False)
    await socket.send_denial_response(Response(data, status_code=status, media_type=wire.JSON))


async def converse(service: SandboxService, route: Route, parameters: dict[str, str], socket: WebSocket) -> None:
    """Serve one admitted WebSocket to its end."""
    try:
        await socket.accept()
        event = await _serve(service, route, parameters, socket)
        if event is not None and socket.client_state is WebSocketState.CONNECTED:
            await _send_control(socket, event)
        if socket.client_state is WebSocketState.CONNECTED:
            await socket.close()
    except (WebSocketDisconnect, OSError):
        return  # The client is gone; the command's context has ended what there was.


async def _serve(
    service: SandboxService, route: Route, parameters: dict[str, str], socket: WebSocket
) -> ErrorEvent | None:
    try:
        if route is ROUTES["attach"]:
            opened = service.attach(parameters["sandbox_id"], parameters["process_id"])
            return await _run(socket, opened, STREAM_S)
        request = await _read_start(socket)
        opened = service.stream(parameters["sandbox_id"], request)
        # The node ends the command at its timeout, which stands still while the sandbox is paused: so must this.
        return await _run(socket, opened, STREAM_S)
    except DsecError as error:
        return wire.error_event(error)
    except (WebSocketDisconnect, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - one request's defect must not leak its words, nor end the server.
        _log.error("terminal failed", path=route.path, exc_info=error)
        return wire.error_event(DsecError("internal"))


async def _read_start(socket: WebSocket) -> CommandRequest:
    with anyio.move_on_after(START_S):
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect
        control = _decode_control(message.get("text"))
        if isinstance(control, wire.StartControl):
            return control.command
    raise InvalidRequestError("the first message must be a text frame that says 'start' and names the command")


async def _run(
    socket: WebSocket, opened: AbstractAsyncContextManager[CommandStream], deadline_s: float
) -> ErrorEvent | None:
    with anyio.move_on_after(deadline_s):
        async with opened as command:
            await _send_control(socket, wire.StartedEvent(process_id=command.process_id))
            return await _Conversation(socket, command).run()
    return wire.error_event(DeadlineExceededError(f"the connection was open longer than {deadline_s:g} s"))


async def _send_control(socket: WebSocket, event: Any) -> None:
    await socket.send_text(wire.encode(event, msgpack=False).decode())


def _decode_control(text: str | None) -> wire.ClientControl:
    if text is None:
        raise InvalidRequestError("a text frame was expected")
    try:
        return wire.client_control.decode(text)
    except msgspec.MsgspecError as error:
        raise wire.invalid_body(error) from error


class _Conversation:
    """One running command and its socket: output out, input and controls in."""

    def __init__(self, socket: WebSocket, command: CommandStream) -> None:
        self._socket = socket
        self._command = command
        self._input: deque[bytes | None] = deque()
        self._input_bytes = 0
        self._arrived = anyio.Event()
        self._failure: DsecError | None = None

    async def run(self) -> ErrorEvent | None:
        """Carry everything until the command ends, the client leaves or one of them fails."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._speak, group.cancel_scope)
            group.start_soon(self._listen, group.cancel_scope)
            group.start_soon(self._feed)
        return None if self._failure is None else wire.error_event(self._failure)

    async def _speak(self, scope: anyio.CancelScope) -> None:
        try:
            async for event in self._command:
                if isinstance(event, OutputEvent):
                    await self._socket.send_bytes(wire.encode_output_frame(event))
                else:
                    await _send_control(self._socket, event)
                await checkpoint()  # Neither a ready producer nor uvicorn's send need ever suspend.
        except DsecError as error:
            self._failure = error
        except (WebSocketDisconnect, OSError):
            pass  # The client is gone: the listener notices as well.
        scope.cancel()

    async def _listen(self, scope: anyio.CancelScope) -> None:
        try:
            while await self._hear():
                pass
        except DsecError as error:
            self._failure = error
        except (WebSocketDisconnect, OSError):
            pass  # The client is gone, which ends the conversation like a farewell.
        scope.cancel()

    async def _hear(self) -> bool:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            return False
        data = message.get("bytes")
        if data is not None:
            self._queue(data)
            return True
        control = _decode_control(message.get("text"))
        if isinstance(control, wire.EofControl):
            self._queue(None)
        elif isinstance(control, wire.SignalControl):
            await self._command.signal(control.number)
        elif isinstance(control, wire.ResizeControl):
            await self._command.resize(TerminalSize(columns=control.columns, rows=control.rows))
        elif isinstance(control, wire.StartControl):
            raise InvalidRequestError("the command has already been started")
        return not isinstance(control, wire.LeaveControl)

    def _queue(self, data: bytes | None) -> None:
        self._input_bytes += len(data or b"")
        if self._input_bytes > wire.STDIN_LIMIT_BYTES:
            raise LimitExceededError(
                f"more than {wire.STDIN_LIMIT_BYTES} bytes of input are waiting for the command to read",
                resolution="wait for the 'consumed' messages before sending more",
            )
        self._input.append(data)
        self._arrived.set()

    async def _feed(self) -> None:
        while True:
            while self._input:
                await self._feed_one(self._input.popleft())
            self._arrived = anyio.Event()
            await self._arrived.wait()

    async def _feed_one(self, data: bytes | None) -> None:
        try:
            if data is None:
                await self._command.close_stdin()
            else:
                await self._command.write(data)
        except DsecError:
            pass  # The command no longer reads; how it ends is told by its exit, and later input has no reader either.
        self._input_bytes -= len(data or b"")
        try:
            await _send_control(self._socket, wire.ConsumedControl(count=len(data or b"")))
        except (WebSocketDisconnect, OSError):
            return
