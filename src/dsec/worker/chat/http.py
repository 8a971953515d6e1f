"""The driver for any OpenAI-compatible chat endpoint: one connection for each answer, streamed, bounded in all ways.

A service that is full or sends garbage is asked again a few times, the same each time. One that nobody listens for, or
that is silent, is asked again once: then whoever asked hears of it, can show it, and waits longer. An answer that does
not end is no such failure: it is what the model says. It is cut, and the model hears of it.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import anyio
import httptools
import msgspec
from anyio.abc import ByteStream

from dsec.base.errors import BackendFailedError, BackendRefusedError, BackendTimeoutError, InvalidRequestError
from dsec.base.units import KIB, MIB
from dsec.episode.content import recordable
from dsec.episode.operations import TokenUsage
from dsec.episode.retry import next_delay_s
from dsec.episode.totals import add_usage
from dsec.worker.chat.assembly import MAXIMUM_ANSWER_BYTES, AnswerAssembly
from dsec.worker.chat.port import ChatAnswer, ChatRequest, used_in_vain

_READ_BYTES = 64 * KIB
_STREAM_BYTES = 64 * MIB
"""Of a stream: its chunks weigh far more than the words in them."""
_DOCUMENT_BYTES = 16 * MIB
"""Of a reply in one piece: the longest answer, with each character escaped."""
_HEAD_BYTES = 256 * KIB
_NAME_CHARACTERS = 200
"""Of a model's name that is listed; what is longer is none."""
_END_S = 0.2
"""For so long the end of a stream may be behind its last event."""
LONGEST_WISH_S = 60.0
"""A service that wants to be left alone for longer is asked again after so long."""
_COMPLAINT_BYTES = 64 * KIB
"""Read of what a service says when it refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """How a model is asked.

    Attributes:
        url: of the endpoint, up to and with its version, such as ``http://127.0.0.1:8000/v1``.
        model: name of the model there; empty: the first that the endpoint lists.
        key: sent as bearer token; empty: none.
        maximum_tokens: of an answer.
        temperature: None: the service's own.
        answer_s: seconds until an answer that goes on is cut.
        connect_s: seconds until a connection stands; where none does nobody is there.
        silence_s: seconds without a byte until the service is given up.
        maximum_bytes: of an answer's words and calls.
        backoff_s: waits before it is asked again after a failure; of a service that cannot be reached or is silent,
            only the first.
    """

    url: str
    model: str = ""
    key: str = ""
    maximum_tokens: int = 8192
    temperature: float | None = None
    answer_s: float = 600.0
    connect_s: float = 10.0
    silence_s: float = 120.0
    maximum_bytes: int = MAXIMUM_ANSWER_BYTES
    backoff_s: Sequence[float] = (1.0, 4.0, 15.0)


class _BusyError(BackendFailedError):
    """The service has too much to do.

    Attributes:
        after_s: when it wants to be asked again; 0: it did not say.
    """

    after_s = 0.0


class _UnreachableError(BackendFailedError):
    """Nobody listens."""


class _Listed(msgspec.Struct):
    id: str


class _Listing(msgspec.Struct):
    data: list[_Listed]


def _listed(sequence: Sequence[Any]) -> list[Any]:
    """Read a sequence once: `list` asks for its length first, and what is made when it is read would be made twice."""
    return list(iter(sequence))


class _Reply:
    """Callbacks of the parser."""

    def __init__(self) -> None:
        self.content_type = b""
        self.encoding = b""
        self.after_s = 0.0
        self.body: list[bytes] = []
        self.is_complete = False
        self.has_headers = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.content_type = value.lower()
        elif name.lower() == b"content-encoding":
            self.encoding = value.strip().lower()
        elif name.lower() == b"retry-after" and value.strip().isdigit():
            # A date is as good as nothing: clocks differ. Nobody is waited for longer than this.
            self.after_s = min(float(value.strip()[:6]), LONGEST_WISH_S)

    def on_headers_complete(self) -> None:
        self.has_headers = True

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True

    def take(self) -> bytes:
        body = b"".join(self.body)
        self.body.clear()
        return body


def _parsed(url: str) -> tuple[SplitResult, int | None]:
    """Take a URL apart; it becomes a line of a request as it is."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _no_url(url) from error
    if not url.isascii() or not url.isprintable() or " " in url:
        raise _no_url(url)
    return parts, port


def _no_url(url: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{url[:200]!r} is no URL of a chat endpoint", resolution="it looks like http://127.0.0.1:8000/v1"
    )


class HttpChatModel:
    """Implements `dsec.worker.chat.port.ChatModel` over HTTP.

    Raises:
        InvalidRequestError: the URL is none.
    """

    def __init__(self, settings: ChatSettings) -> None:
        parts, port = _parsed(settings.url)
        if not settings.key.isprintable():
            raise InvalidRequestError("the key of the chat endpoint holds what no header can", resolution="trim it")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _no_url(settings.url)
        self._settings = settings
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = port or (443 if self._tls else 80)
        self._netloc = parts.netloc.rpartition("@")[2]
        self._base = parts.path.rstrip("/")
        self._name = settings.model

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        """See the port."""
        used, tries = TokenUsage(calls=0), 0
        while True:
            tries += 1
            try:
                if not self._name:
                    self._name = await self.first_listed()
                answer = await self._ask(request)
            except BackendRefusedError as error:
                _count(error, add_usage(used, used_in_vain(error)))
                raise
            except BackendFailedError as error:
                used = add_usage(used, used_in_vain(error))
                is_away = isinstance(error, _UnreachableError | BackendTimeoutError)
                backoff_s = self._settings.backoff_s[:1] if is_away else self._settings.backoff_s
                delay_s = next_delay_s(tries, backoff_s=backoff_s)
                if delay_s is None:
                    _count(error, used)
                    raise
                await anyio.sleep(max(delay_s, error.after_s if isinstance(error, _BusyError) else 0.0))
            else:
                # What was paid for answers of no use belongs to the one that is of use.
                return msgspec.structs.replace(answer, usage=add_usage(used, answer.usage))

    def _question(self, request: ChatRequest) -> bytes:
        settings = self._settings
        body: dict[str, Any] = {
            "model": self._name,
            "messages": request.messages,
            "max_tokens": settings.maximum_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.tools:
            body["tools"] = request.tools
        if request.seed is not None:
            body["seed"] = request.seed
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        return self._message("POST", "/chat/completions", msgspec.json.encode(body, enc_hook=_listed))

    def _message(self, method: str, path: str, data: bytes = b"") -> bytes:
        lines = [
            f"{method} {self._base}{path} HTTP/1.1",
            f"host: {self._netloc}",
            "content-type: application/json",
            "accept: text/event-stream, application/json",
            "accept-encoding: identity",
            f"content-length: {len(data)}",
            "connection: close",
        ]
        if self._settings.key:
            lines.append(f"authorization: Bearer {self._settings.key}")
        return "\r\n".join([*lines, "", ""]).encode() + data

    async def _ask(self, request: ChatRequest) -> ChatAnswer:
        assembly = AnswerAssembly(self._settings.maximum_bytes, hear=request.hear)
        try:
            with anyio.move_on_after(self._settings.answer_s) as scope:
                await self._exchange(lambda: self._question(request), assembly)
            if scope.cancelled_caught:
                assembly.stop(f"it did not end within {self._settings.answer_s:g} s")
            return assembly.answer(asked_for=self._name, calls=1)
        except BackendFailedError as error:
            _count(error, assembly.used())
            raise

    async def first_listed(self) -> str:
        """Return the name of the first model that the endpoint lists.

        Raises:
            BackendFailedError: it lists none.
        """
        data = b""
        with anyio.move_on_after(self._settings.silence_s) as scope:
            data = await self._exchange(lambda: self._message("GET", "/models"), None)
        if scope.cancelled_caught:
            raise self._silent()
        try:
            listed = [one.id for one in msgspec.json.decode(data, type=_Listing).data]
            names = [name for name in listed if 0 < len(name) <= _NAME_CHARACTERS and recordable(name) == name]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            names = []
        if not names:
            raise BackendRefusedError(
                f"{self._settings.url} lists no model", resolution="give the name of the model that is to be asked"
            )
        return names[0]

    async def _exchange(self, message: Callable[[], bytes], assembly: AnswerAssembly | None) -> bytes:
        """Send a request; the answer goes to `assembly`, or is returned where there is none.

        The request is made here and not kept: hundreds of models think at once, and each has been sent a long history.
        """
        try:
            stream = await self._connect()
            async with stream:
                await stream.send(message())
                whole = await self._receive(stream, assembly)
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, ssl.SSLError) as error:
            raise BackendFailedError(f"{self._settings.url} cannot be reached", detail=str(error)) from error
        if assembly is not None and whole and not assembly.is_over:
            assembly.feed_document(whole)
        return whole

    async def _connect(self) -> ByteStream:
        said = f"no connection within {self._settings.connect_s:g} s"
        try:
            with anyio.move_on_after(self._settings.connect_s):
                if self._tls is None:
                    return await anyio.connect_tcp(self._host, self._port)
                return await anyio.connect_tcp(
                    self._host, self._port, tls=True, ssl_context=self._tls, tls_standard_compatible=False
                )
        except (OSError, anyio.BrokenResourceError) as error:
            said = _why(error)
        raise _UnreachableError(
            f"{self._settings.url} cannot be reached",
            detail=said,
            resolution="see that the service runs, and that the address is right where the worker is",
        )

    async def _receive(self, stream: ByteStream, assembly: AnswerAssembly | None) -> bytes:
        """Read a reply, of which nothing is believed; a stream of events goes to `assembly`."""
        reply = _Reply()
        parser = httptools.HttpResponseParser(reply)
        whole, length = bytearray(), 0
        while not (reply.is_complete or (assembly is not None and assembly.is_over)):
            data = await self._read(stream)
            if not data:
                break  # Whether anything is missing is seen by what there is.
            length += len(data)
            self._feed(parser, data)
            if not reply.has_headers:
                self._check_head(length)
                continue
            status, streamed = parser.get_status_code(), reply.content_type.startswith(b"text/event-stream")
            if status != 200 or assembly is None or not streamed:
                whole += reply.take()
                if len(whole) > (_DOCUMENT_BYTES if status == 200 else _COMPLAINT_BYTES):
                    break
            else:
                self._check_encoding(reply)
                assembly.feed(reply.take())
                if length > _STREAM_BYTES:
                    assembly.stop(f"it was longer than {_STREAM_BYTES} bytes")
        if assembly is not None and assembly.is_whole and not reply.is_complete:
            await self._hear_out(stream, parser, reply)
        if not reply.has_headers:
            raise BackendFailedError(f"{self._settings.url} broke off before it answered")
        self._check_status(parser.get_status_code(), bytes(whole), reply.after_s)
        self._check_encoding(reply)
        if len(whole) > _DOCUMENT_BYTES:
            if assembly is None:
                raise BackendFailedError(f"{self._settings.url} sent more than {_DOCUMENT_BYTES} bytes")
            assembly.stop(f"it was longer than {_DOCUMENT_BYTES} bytes")
        return bytes(whole)

    async def _hear_out(self, stream: ByteStream, parser: httptools.HttpResponseParser, reply: _Reply) -> None:
        """Take the last bytes of a stream whose last event is here: who records it would take it for one cut off."""
        with anyio.move_on_after(_END_S):
            while not reply.is_complete and (data := await self._read(stream)):
                self._feed(parser, data)
                if len(reply.take()) > _HEAD_BYTES:
                    return

    def _feed(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BackendFailedError(f"{self._settings.url} does not speak HTTP", detail=str(error)) from error

    def _check_head(self, length: int) -> None:
        if length > _HEAD_BYTES:
            raise BackendFailedError(f"{self._settings.url} sends a head of more than {_HEAD_BYTES} bytes")

    def _check_encoding(self, reply: _Reply) -> None:
        if reply.encoding not in (b"", b"identity"):
            raise BackendFailedError(
                f"{self._settings.url} compresses its answer, which it was not asked for",
                detail=reply.encoding[:100].decode(errors="replace"),
            )

    async def _read(self, stream: ByteStream) -> bytes:
        with anyio.move_on_after(self._settings.silence_s):
            try:
                return await stream.receive(_READ_BYTES)
            except anyio.EndOfStream:
                return b""
        raise self._silent()

    def _check_status(self, status: int, body: bytes, after_s: float) -> None:
        if status == 200:
            return
        kind = _BusyError if status in (408, 409, 425, 429) or status >= 500 else BackendRefusedError
        error = kind(
            f"{self._settings.url} answered {status}",
            detail=body[:500].decode(errors="replace"),
            resolution="look at the service's own message",
        )
        if isinstance(error, _BusyError):
            error.after_s = after_s
        raise error

    def _silent(self) -> BackendTimeoutError:
        return BackendTimeoutError(f"{self._settings.url} was silent for {self._settings.silence_s:g} s")


def _why(error: BaseException) -> str:
    """Return why a connection could not be made, in the kernel's or the resolver's words: of each address, the last."""
    cause: BaseException | None = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[-1]
    if isinstance(cause, ConnectionError) and cause.errno:
        return os.strerror(cause.errno)
    return str(cause if isinstance(cause, OSError) else error)


def _count(error: BackendFailedError, used: TokenUsage) -> None:
    error.calls, error.input_tokens = used.calls, used.input_tokens
    error.cached_tokens, error.output_tokens = used.cached_tokens, used.output_tokens
