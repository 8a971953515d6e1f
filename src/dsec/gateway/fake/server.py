"""A simulated backend over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from aiohttp import web

from dsec.base.clock import Clock, SystemClock
from dsec.base.errors import InvalidRequestError
from dsec.gateway.config import Api
from dsec.gateway.fake import shapes
from dsec.gateway.fake.answer import FakeAnswer
from dsec.gateway.fake.asked import FakeCall, read_call
from dsec.gateway.fake.service import FakeRefusedError, FakeService, shown_wait
from dsec.gateway.fake.settings import FakeSettings, Trouble
from dsec.gateway.fake.shapes import Timed

_APIS = {"/v1/chat/completions": Api.CHAT, "/v1/responses": Api.RESPONSES, "/v1/messages": Api.MESSAGES}
_ENDLESS_PIECE = b"x" * 65_536
_JSON = {"content-type": "application/json"}
_HALF_TROUBLES = {
    Trouble.ERROR_EVENT,
    Trouble.BROKEN_OFF,
    Trouble.CUT_SHORT,
    Trouble.STALLED,
    Trouble.NOT_UTF8,
    Trouble.BROKEN_EVENT,
    Trouble.ENDLESS_EVENT,
}


class FakeHandler:
    """Answers requests.

    Args:
        service: what is behind it.
    """

    def __init__(self, service: FakeService) -> None:
        self.service = service

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        api = _APIS.get(request.path)
        if api is None or request.method != "POST":
            return self._other(request)
        counts = self.service.counts
        counts["begun"] += 1
        try:
            return await self._call(api, request)
        except FakeRefusedError as refused:
            counts[f"refused {refused.status}"] += 1
            headers = dict(_JSON)
            if refused.retry_after_s is not None:
                headers["retry-after"] = shown_wait(refused.retry_after_s)
                headers["retry-after-ms"] = str(max(1, round(refused.retry_after_s * 1000)))
            body = shapes.error(api, refused.status, refused.kind, refused.message)
            return web.Response(status=refused.status, headers=headers, body=body)
        except InvalidRequestError as error:
            counts["refused 400"] += 1
            body = shapes.error(api, 400, "invalid_request_error", error.brief)
            return web.Response(status=400, headers=_JSON, body=body)
        except (asyncio.CancelledError, ConnectionError):
            counts["cancelled"] += 1
            raise

    def _other(self, request: web.BaseRequest) -> web.Response:
        model = {"id": self.service.settings.model, "object": "model", "created": 0, "owned_by": "dsec"}
        shown: dict[str, object] = {
            "/v1/models": {"object": "list", "data": [model]},
            "/health": {"status": "ok"},
            "/dsec/fake": self.service.statistics(),
        }
        body = shown.get(request.path)
        if body is None or request.method != "GET":
            return web.Response(
                status=404, headers=_JSON, body=shapes.error(Api.CHAT, 404, "not_found", "no such path")
            )
        return web.Response(headers=_JSON, body=msgspec.json.encode(body))

    async def _call(self, api: Api, request: web.BaseRequest) -> web.StreamResponse:
        service = self.service
        call = read_call(api, await request.read())
        repeat = service.repeat_of(call)
        trouble = service.trouble_of(call, repeat)
        if trouble is not None:
            service.counts[trouble.value] += 1
        service.check(call, trouble)
        async with service.slot(call):
            if trouble is Trouble.GONE:
                return _abort(request)
            if trouble is Trouble.SILENT:
                await _for_ever()
            if trouble is Trouble.WEB_PAGE:
                return web.Response(text="<html>It works!</html>", content_type="text/html")
            answer = await service.prefill(call, trouble, repeat)
            if call.streaming:
                return await self._stream(request, call, answer, trouble)
            return await self._whole(request, call, answer, trouble)

    async def _whole(
        self, request: web.BaseRequest, call: FakeCall, answer: FakeAnswer, trouble: Trouble | None
    ) -> web.StreamResponse:
        service = self.service
        await service.until(service.position() + answer.thinking_tokens + answer.visible_tokens)
        body = shapes.whole(call.api, answer)
        if trouble in _HALF_TROUBLES:
            return await self._half_body(request, body, trouble)
        response = web.Response(headers=_JSON, body=body)
        await response.prepare(request)
        await response.write_eof()
        service.finish(call, answer)
        return response

    async def _half_body(self, request: web.BaseRequest, body: bytes, trouble: Trouble) -> web.StreamResponse:
        """Send an answer of which the second half is wrong."""
        if trouble is Trouble.NOT_UTF8:
            return web.Response(headers=_JSON, body=body[:-2] + b"\xff" + body[-2:])
        if trouble in (Trouble.CUT_SHORT, Trouble.BROKEN_EVENT, Trouble.ERROR_EVENT):
            return web.Response(headers=_JSON, body=body[: len(body) // 2])
        response = web.StreamResponse(headers={**_JSON, "content-length": str(len(body))})
        if trouble is Trouble.ENDLESS_EVENT:
            response = web.StreamResponse(headers=_JSON)
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        await self._end_badly(request, response, trouble)
        return response

    async def _stream(
        self, request: web.BaseRequest, call: FakeCall, answer: FakeAnswer, trouble: Trouble | None
    ) -> web.StreamResponse:
        service = self.service
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-cache"})
        await response.prepare(request)
        start = service.position()
        middle = (answer.thinking_tokens + answer.visible_tokens) // 2 if trouble in _HALF_TROUBLES else None
        for tokens, data in _joined(shapes.events(call.api, answer), joins=not service.settings.waits):
            if middle is not None and tokens > middle:
                assert trouble is not None
                await self._spoil(request, response, call, trouble)
                return response
            await service.until(start + tokens)
            await response.write(data)
        await response.write_eof()
        service.finish(call, answer)
        return response

    async def _spoil(
        self, request: web.BaseRequest, response: web.StreamResponse, call: FakeCall, trouble: Trouble
    ) -> None:
        """Go on with a stream as the trouble says."""
        spoilt = {
            Trouble.NOT_UTF8: b'data: {"text": "\xff\xfe"}\n\n',
            Trouble.BROKEN_EVENT: b'data: {"choices": [{"delta"\n\n',
            Trouble.ERROR_EVENT: shapes.error_event(call.api, "server_error", "it failed in the middle"),
        }
        if trouble in spoilt:
            await response.write(spoilt[trouble])
        await self._end_badly(request, response, trouble)

    async def _end_badly(self, request: web.BaseRequest, response: web.StreamResponse, trouble: Trouble) -> None:
        if trouble is Trouble.STALLED:
            await _for_ever()
        elif trouble is Trouble.ENDLESS_EVENT:
            await response.write(b"data: ")
            while True:
                await response.write(_ENDLESS_PIECE)
        elif trouble is Trouble.BROKEN_OFF:
            await asyncio.sleep(0)  # What was written goes out first.
            _abort(request)
        else:
            await response.write_eof()


def _joined(events: Iterator[Timed], *, joins: bool) -> Iterator[Timed]:
    """Yield events; where nothing waits, those of one moment as one write."""
    if not joins:
        yield from events
        return
    waiting: list[bytes] = []
    last = 0
    for tokens, data in events:
        if waiting and tokens != last:
            yield Timed(last, b"".join(waiting))
            waiting = []
        waiting.append(data)
        last = tokens
    if waiting:
        yield Timed(last, b"".join(waiting))


async def _for_ever() -> None:
    await asyncio.Event().wait()


def _abort(request: web.BaseRequest) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionResetError("the simulated backend ends the connection")


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeServing:
    """A simulated backend that is heard.

    Attributes:
        url: the base for clients, with ``/v1``.
        service: what is behind it.
    """

    url: str
    service: FakeService


@asynccontextmanager
async def serve_fake(
    settings: FakeSettings, *, host: str = "127.0.0.1", port: int = 0, clock: Clock | None = None
) -> AsyncIterator[FakeServing]:
    """Serve a simulated backend until the context is left.

    Args:
        settings: what it is like.
        host, port: where; port 0: any free one.
        clock: instead of the host's.

    Raises:
        InvalidRequestError: the address cannot be listened on.
    """
    service = FakeService(settings, clock or SystemClock())
    server = web.Server(FakeHandler(service), handler_cancellation=True, access_log=None, keepalive_timeout=75.0)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            raise InvalidRequestError(
                f"{host}:{port} cannot be listened on: {error.strerror}", resolution="set another port"
            ) from error
        heard, number = runner.addresses[0][:2]
        yield FakeServing(url=f"http://{f'[{heard}]' if ':' in heard else heard}:{number}/v1", service=service)
    finally:
        await runner.cleanup()
