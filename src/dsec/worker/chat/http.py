"""The driver for any OpenAI-compatible chat endpoint: one connection for each answer, streamed, bounded in all ways.

A service that is down, full or sends garbage is asked again a few times, the same each time; then the loop stops, and
the episode is resumed later. An answer that does not end is no such failure: it is what the model says. It is cut, and
the model hears of it.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import anyio
import httptools
import msgspec
from anyio.abc import ByteStream

from dsec.base.errors import BackendFailedError, BackendTimeoutError, InvalidRequestError
from dsec.base.units import KIB, MIB
from dsec.episode.retry import next_delay_s
from dsec.worker.chat.assembly import MAXIMUM_ANSWER_BYTES, AnswerAssembly
from dsec.worker.chat.port import ChatAnswer, ChatRequest

_READ_BYTES = 64 * KIB
_BODY_BYTES = 64 * MIB
"""Of a whole reply: chunks of a stream weigh far more than the words in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """How a model is asked.

    Attributes:
        url: of the endpoint, up to and with its version, such as ``http://127.0.0.1:8000/v1``.
        model: name of the model there.
        key: sent as bearer token; empty: none.
        maximum_tokens: of an answer.
        temperature: None: the service's own.
        answer_s: seconds until an answer that goes on is cut.
        silence_s: seconds without a byte until the service is given up.
        maximum_bytes: of an answer's words and calls.
        backoff_s: waits before it is asked again after a failure.
    """

    url: str
    model: str
    key: str = ""
    maximum_tokens: int = 8192
    temperature: float | None = None
    answer_s: float = 600.0
    silence_s: float = 120.0
    maximum_bytes: int = MAXIMUM_ANSWER_BYTES
    backoff_s: Sequence[float] = (1.0, 4.0, 15.0)


class _RefusedError(BackendFailedError):
    """The service refused what it was asked; asking again changes nothing."""


class _Reply:
    """Callbacks of the parser."""

    def __init__(self) -> None:
        self.content_type = b""
        self.body: list[bytes] = []
        self.is_complete = False
        self.has_headers = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.content_type = value.lower()

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


class HttpChatModel:
    """Implements `dsec.worker.chat.port.ChatModel` over HTTP.

    Raises:
        InvalidRequestError: the URL is none.
    """

    def __init__(self, settings: ChatSettings) -> None:
        parts = urlsplit(settings.url)
        if not settings.key.isprintable():
            raise InvalidRequestError("the key of the chat endpoint holds what no header can", resolution="trim it")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequestError(
                f"{settings.url!r} is no URL of a chat endpoint", resolution="it looks like http://127.0.0.1:8000/v1"
            )
        self._settings = settings
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = parts.port or (443 if self._tls else 80)
        self._netloc = parts.netloc.rpartition("@")[2]
        self._path = f"{parts.path.rstrip('/')}/chat/completions"

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        """See the port."""
        tries = 0
        while True:
            tries += 1
            try:
                return await self._ask(request, tries)
            except _RefusedError as error:
                raise BackendFailedError(error.brief, detail=error.detail, resolution=error.resolution) from error
            except BackendFailedError:
                delay_s = next_delay_s(tries, backoff_s=self._settings.backoff_s)
                if delay_s is None:
                    raise
                await anyio.sleep(delay_s)

    def _message(self, request: ChatRequest) -> bytes:
        settings = self._settings
        body: dict[str, Any] = {
            "model": settings.model,
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
        data = msgspec.json.encode(body)
        lines = [
            f"POST {self._path} HTTP/1.1",
            f"host: {self._netloc}",
            "content-type: application/json",
            "accept: text/event-stream, application/json",
            f"content-length: {len(data)}",
            "connection: close",
        ]
        if settings.key:
            lines.append(f"authorization: Bearer {settings.key}")
        return "\r\n".join([*lines, "", ""]).encode() + data

    async def _ask(self, request: ChatRequest, tries: int) -> ChatAnswer:
        assembly = AnswerAssembly(self._settings.maximum_bytes)
        try:
            with anyio.move_on_after(self._settings.answer_s) as scope:
                stream = await self._connect()
                async with stream:
                    await stream.send(self._message(request))
                    await self._receive(stream, assembly)
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, ssl.SSLError) as error:
            raise BackendFailedError(f"{self._settings.url} cannot be reached", detail=str(error)) from error
        if scope.cancelled_caught:
            assembly.stop(f"it did not end within {self._settings.answer_s:g} s")
        return assembly.answer(asked_for=self._settings.model, calls=tries)

    async def _connect(self) -> ByteStream:
        with anyio.move_on_after(self._settings.silence_s):
            if self._tls is None:
                return await anyio.connect_tcp(self._host, self._port)
            return await anyio.connect_tcp(
                self._host, self._port, tls=True, ssl_context=self._tls, tls_standard_compatible=False
            )
        raise self._silent()

    async def _receive(self, stream: ByteStream, assembly: AnswerAssembly) -> None:
        reply = _Reply()
        parser = httptools.HttpResponseParser(reply)
        whole, length = bytearray(), 0
        while not (reply.is_complete or assembly.is_over):
            data = await self._read(stream)
            if not data:
                break  # Whether anything is missing is seen by what there is.
            length += len(data)
            if length > _BODY_BYTES:
                assembly.stop(f"it was longer than {_BODY_BYTES} bytes")
                break
            try:
                parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise BackendFailedError(f"{self._settings.url} does not speak HTTP", detail=str(error)) from error
            status = parser.get_status_code() if reply.has_headers else 200
            if status == 200 and reply.content_type.startswith(b"text/event-stream"):
                assembly.feed(reply.take())
            else:
                whole += reply.take()
        if not reply.has_headers:
            raise BackendFailedError(f"{self._settings.url} broke off before it answered")
        self._check_status(parser.get_status_code(), bytes(whole))
        if whole and not assembly.is_over:
            assembly.feed_document(bytes(whole))

    async def _read(self, stream: ByteStream) -> bytes:
        with anyio.move_on_after(self._settings.silence_s):
            try:
                return await stream.receive(_READ_BYTES)
            except anyio.EndOfStream:
                return b""
        raise self._silent()

    def _check_status(self, status: int, body: bytes) -> None:
        if status == 200:
            return
        kind = BackendFailedError if status in (408, 409, 425, 429) or status >= 500 else _RefusedError
        raise kind(
            f"{self._settings.url} answered {status}",
            detail=body[:500].decode(errors="replace"),
            resolution="look at the service's own message",
        )

    def _silent(self) -> BackendTimeoutError:
        return BackendTimeoutError(f"{self._settings.url} was silent for {self._settings.silence_s:g} s")
