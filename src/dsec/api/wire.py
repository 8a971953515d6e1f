"""What travels: request bodies, events, frames, and how they are encoded.

Bodies are JSON unless a client sends or accepts ``application/msgpack``. Bytes are base64 in JSON and raw in msgpack.
Streams of events are lines of JSON, or msgpack records behind a 4-byte big-endian length. Terminals are WebSockets:
data travels in binary frames, everything else in JSON text frames (docs/http-api.md has the tables).

Server and client both encode and decode through this module, so that they cannot disagree.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from dsec.base.errors import DsecError, InvalidRequestError, SandboxMovedError, error_from_code, error_types
from dsec.model.files import FileChange
from dsec.model.fleet import DrainProgress, DrainReport
from dsec.model.image_work import ImageEvent
from dsec.model.pool import PoolChange
from dsec.model.process import (
    CommandRequest,
    ErrorEvent,
    ExitEvent,
    OutputEvent,
    Stream,
)
from dsec.model.sandbox import SandboxSpec
from dsec.model.state import JobProgress, JobReport
from dsec.model.value import Value
from dsec.service.port import DEFAULT_CREATE_TIMEOUT_S

JSON = "application/json"
MSGPACK = "application/msgpack"
JSON_LINES = "application/x-ndjson"
OCTETS = "application/octet-stream"
TAR = "application/x-tar"

MAXIMUM_EVENT_BYTES = 16 << 20
"""Longest record of an event stream: a command's read is at most 64 KiB, a change holds one path; the rest is slack."""

STDIN_WINDOW_BYTES = 1 << 20
"""How much input a well-behaved client has under way before the command consumed it."""

STDIN_LIMIT_BYTES = 8 << 20
"""How much unconsumed input the server holds before it ends the connection of a client that ignores the window."""


class ErrorBody(Value, frozen=True):
    """An error as it travels. `code` is a registered code of `dsec.base.errors`; `retry_after_s` stands in the header
    ``retry-after`` too; `url` is where a sandbox that moved is to be found."""

    code: str
    brief: str
    detail: str = ""
    resolution: str = ""
    retry_after_s: float | None = None
    url: str = ""


class Health(Value, frozen=True):
    """The server answers. `version` is DSec's."""

    status: str
    version: str


class CreateRequest(Value, frozen=True):
    """Create a sandbox. `sandbox_id` is the idempotency key; `timeout_s` bounds the wait for readiness."""

    spec: SandboxSpec = SandboxSpec()
    sandbox_id: str | None = None
    timeout_s: float = DEFAULT_CREATE_TIMEOUT_S


class RollbackRequest(Value, frozen=True):
    """Return to the clean state, or to the named checkpoint."""

    snapshot: str | None = None


class SetPoolRequest(Value, frozen=True):
    """Make the pool of the spec's shape, or set it anew; what `change` leaves out stays as it is."""

    spec: SandboxSpec
    change: PoolChange = PoolChange()


class WaitRequest(Value, frozen=True):
    """Wait for a background process, for at most `timeout_s` seconds (the server's own bound still holds)."""

    timeout_s: float | None = None


class SignalRequest(Value, frozen=True):
    """Send the signal of this number."""

    number: int


class DirectoryMade(Value, frozen=True):
    """Whether the directory is new."""

    created: bool


class StartedEvent(Value, frozen=True, tag="started"):
    """The first event of a command."""

    process_id: str


class ChangeEvent(Value, frozen=True, tag="change"):
    """A change under a watched directory."""

    change: FileChange


class WatchingEvent(Value, frozen=True, tag="watching"):
    """The first event of a watch: changes from now on are reported."""


CommandEvent = StartedEvent | OutputEvent | ExitEvent | ErrorEvent
WatchEvent = WatchingEvent | ChangeEvent | ErrorEvent
JobStreamEvent = JobProgress | JobReport | ErrorEvent
DrainStreamEvent = DrainProgress | DrainReport | ErrorEvent
ImageStreamEvent = ImageEvent | ErrorEvent


class StartControl(Value, frozen=True, tag="start"):
    """First text frame of a terminal: the command to run."""

    command: CommandRequest


class ResizeControl(Value, frozen=True, tag="resize"):
    columns: int
    rows: int


class SignalControl(Value, frozen=True, tag="signal"):
    number: int


class EofControl(Value, frozen=True, tag="eof"):
    """No more input follows."""


class LeaveControl(Value, frozen=True, tag="leave"):
    """End the command (or only the attachment); the server closes the connection once that is done."""


class ConsumedControl(Value, frozen=True, tag="consumed"):
    """The server's word that the command took this many more bytes of input."""

    count: int


ClientControl = StartControl | ResizeControl | SignalControl | EofControl | LeaveControl
ServerControl = StartedEvent | ExitEvent | ErrorEvent | ConsumedControl

client_control: msgspec.json.Decoder[ClientControl] = msgspec.json.Decoder(ClientControl)
server_control: msgspec.json.Decoder[ServerControl] = msgspec.json.Decoder(ServerControl)

_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()
_LENGTH = struct.Struct(">I")
_DATA_HEAD = struct.Struct(">BQ")
_STREAM_NUMBERS = {Stream.STDOUT: 1, Stream.STDERR: 2}
_STREAMS = {number: stream for stream, number in _STREAM_NUMBERS.items()}


def encode(value: Any, *, msgpack: bool) -> bytes:
    """Encode a value. Text that is not UTF-8 (surrogate escapes) is shown as U+FFFD: neither format can carry it."""
    encoder = _msgpack if msgpack else _json
    try:
        return encoder.encode(value)
    except UnicodeEncodeError:
        return encoder.encode(_printable(msgspec.to_builtins(value, builtin_types=(bytes,))))


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(item) for item in value]
    return value


def decode(data: bytes | bytearray, kind: Any, *, msgpack: bool) -> Any:
    """Decode a value of type `kind`.

    Raises:
        InvalidRequestError: it is malformed; the detail names the field.
    """
    try:
        return _decoder(kind, msgpack).decode(data)
    except msgspec.MsgspecError as error:
        raise invalid_body(error) from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError("the body holds text that is not UTF-8", detail=str(error.reason)) from error
    except RecursionError as error:
        raise InvalidRequestError(
            "the body is nested too deep", resolution="no value needs hundreds of levels"
        ) from error


def invalid_body(error: Exception) -> InvalidRequestError:
    """Return the error for a body that does not decode; msgspec's words name the field and never quote its value."""
    return InvalidRequestError(
        f"the request is not valid: {error}",
        resolution="GET /v1/openapi.json describes every field; unknown fields are refused",
    )


_decoders: dict[tuple[Any, bool], Any] = {}


def _decoder(kind: Any, msgpack: bool) -> Any:
    found = _decoders.get((kind, msgpack))
    if found is None:
        found = msgspec.msgpack.Decoder(kind) if msgpack else msgspec.json.Decoder(kind)
        _decoders[kind, msgpack] = found
    return found


def error_body(error: DsecError) -> ErrorBody:
    """Return what travels of an error: only a registered code with its own words, anything else as `internal`."""
    if error.code not in error_types() or error.code == DsecError.code:
        return INTERNAL_ERROR
    return ErrorBody(
        code=error.code,
        brief=error.brief,
        detail=error.detail,
        resolution=error.resolution,
        retry_after_s=error.retry_after_s,
        url=error.url if isinstance(error, SandboxMovedError) else "",
    )


INTERNAL_ERROR = ErrorBody(
    code=DsecError.code, brief="the server failed in a way it did not expect", resolution="see the server's log"
)


def error_event(error: DsecError) -> ErrorEvent:
    """Return the event that ends a stream with this error."""
    body = error_body(error)
    return ErrorEvent(code=body.code, brief=body.brief, detail=body.detail, resolution=body.resolution, url=body.url)


def raise_error(body: ErrorBody | ErrorEvent) -> DsecError:
    """Rebuild the error that travelled."""
    error = error_from_code(body.code, body.brief, detail=body.detail, resolution=body.resolution)
    if isinstance(body, ErrorBody):
        error.retry_after_s = body.retry_after_s
    if isinstance(error, SandboxMovedError):
        error.url = body.url
    return error


def encode_event(event: Any, *, msgpack: bool) -> bytes:
    """Encode one record of an event stream."""
    data = encode(event, msgpack=msgpack)
    return _LENGTH.pack(len(data)) + data if msgpack else data + b"\n"


class EventDecoder:
    """Cut the bytes of a msgpack event stream back into events.

    Args:
        kind: of the events.
        maximum_bytes: longest record that is taken.
    """

    def __init__(self, kind: Any, *, maximum_bytes: int = MAXIMUM_EVENT_BYTES) -> None:
        self._decoder = _decoder(kind, True)
        self._maximum_bytes = maximum_bytes
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the events that `data` completes.

        Raises:
            InvalidRequestError: a record is longer than `maximum_bytes`.
            msgspec.MsgspecError: a record does not decode.
        """
        self._held += data
        while len(self._held) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._held)
            if length > self._maximum_bytes:
                raise InvalidRequestError(f"a record of {length} bytes in an event stream")
            end = _LENGTH.size + length
            if len(self._held) < end:
                return
            record = bytes(memoryview(self._held)[_LENGTH.size : end])
            del self._held[:end]
            yield self._decoder.decode(record)


def encode_output_frame(event: OutputEvent) -> bytes:
    """Return the binary frame of a terminal's output: stream (1 or 2), offset (8 bytes, big-endian), data."""
    return _DATA_HEAD.pack(_STREAM_NUMBERS[event.stream], event.offset) + event.data


def decode_output_frame(frame: bytes) -> OutputEvent:
    """Read a binary frame of output back.

    Raises:
        InvalidRequestError: it is too short or names no stream.
    """
    if len(frame) < _DATA_HEAD.size or frame[0] not in _STREAMS:
        raise InvalidRequestError("a malformed output frame")
    number, offset = _DATA_HEAD.unpack_from(frame)
    return OutputEvent(stream=_STREAMS[number], data=frame[_DATA_HEAD.size :], offset=offset)
