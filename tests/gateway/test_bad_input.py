"""What callers can do wrong, by mistake or on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not a JSON object"),
        (b"{", "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b'{"model":"m","messages":"\xff"}', "UTF-8"),
        (b'{"messages":[1]}', "`model`"),
        (b'{"messages":[1],"model":"' + b"m" * 1000 + b'"}', "`model`"),
        (b'{"model":7,"messages":[1]}', "`model`"),
        (b'{"model":"m"}', "`messages`"),
        (b'{"model":"m","messages":[]}', "`messages`"),
        (b'{"model":"m","messages":{}}', "`messages`"),
        (b'{"model":"m","messages":[1],"stream":"yes"}', "`stream`"),
        (b'{"model":"m","messages":[1],"max_tokens":"many"}', "`max_tokens`"),
        (b'{"model":"m","messages":[1],"max_tokens":-5}', "`max_tokens`"),
    ],
)
async def test_a_malformed_body_is_refused_in_the_protocols_shape_and_sent_nowhere(
    open_gateway: Any, backends: Any, body: bytes, message: str
) -> None:
    gateway = await open_gateway()
    answer = await gateway.http.post(CHAT, content=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not backends[0].bodies
    assert not gateway.attempts()


async def test_errors_on_anthropics_path_have_anthropics_shape(open_gateway: Any) -> None:
    gateway = await open_gateway()
    answer = await gateway.http.post("/v1/messages", json={"model": "m", "messages": [1]})
    assert answer.status_code == 400
    assert (answer.json()["type"], answer.json()["error"]["type"]) == ("error", "invalid_request_error")
    assert "`max_tokens`" in answer.json()["error"]["message"]


async def test_a_huge_body_is_refused_whether_or_not_it_says_its_size(open_gateway: Any, backends: Any) -> None:
    gateway = await open_gateway(door='maximum_body = "64 KiB"')
    answer = await gateway.http.post(CHAT, content=b"x" * 100_000)
    assert answer.status_code == 413

    async def endless() -> Any:
        for _ in range(1000):
            yield b"x" * 10_000

    assert await unannounced(gateway, endless()) == 413
    assert not backends[0].bodies


async def unannounced(gateway: Any, parts: Any) -> int:
    """Send a body in chunks until the gateway has had enough; return its status."""
    address = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        async for part in parts:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            if reader._buffer or writer.is_closing():  # type: ignore[attr-defined] - It has answered.
                break
            await writer.drain()
        return int((await reader.readline()).split()[1])
    finally:
        writer.transport.abort()


async def test_a_body_that_never_ends_is_given_up(open_gateway: Any) -> None:
    gateway = await open_gateway(door='body_timeout = "100ms"')
    address = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{{".encode())
    assert b"408" in await reader.readline()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    "head",
    [
        "content-length: 5\r\ntransfer-encoding: chunked",
        "content-length: 5\r\ncontent-length: 6",
        "transfer-encoding: chunked, identity",
        "content-length: +5",
        "x y: 1",
    ],
)
async def test_a_head_that_two_servers_could_read_differently_is_refused(
    open_gateway: Any, backends: Any, head: str, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await open_gateway()
    address = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\n\r\n".encode())
    assert b" 400 " in await reader.readline()
    writer.close()
    await writer.wait_closed()
    assert not backends[0].bodies
    assert not [record for record in caplog.records if record.exc_info]  # Anybody could fill the disk with traces.


async def test_a_caller_that_asks_first_is_told_to_go_on(open_gateway: Any) -> None:
    gateway = await open_gateway()
    address = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n".encode())
    writer.write(f"content-length: {len(body)}\r\n\r\n".encode())
    assert b" 100 " in await reader.readline()
    await reader.readline()
    writer.write(body)
    assert b" 200 " in await reader.readline()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    "headers",
    [
        {"X-DSec-Deadline-S": "soon"},
        {"X-DSec-Deadline-S": "-1"},
        {"X-DSec-Deadline-S": "nan"},
        {"X-DSec-Thinking-Tokens": "-1"},
        {"X-DSec-Episode": "e" * 200},
        {"content-encoding": "gzip"},
    ],
)
async def test_headers_that_make_no_sense_are_refused(open_gateway: Any, headers: dict[str, str]) -> None:
    gateway = await open_gateway()
    assert (await gateway.chat(headers=headers)).status_code == 400


async def test_paths_and_methods_that_are_not_served_are_told_with_those_that_are(open_gateway: Any) -> None:
    gateway = await open_gateway()
    for method, path in (("GET", CHAT), ("POST", "/v1/completions"), ("GET", "/"), ("DELETE", "/v1/models")):
        answer = await gateway.http.request(method, path)
        assert answer.status_code == 404
        assert "POST /v1/chat/completions" in answer.json()["error"]["message"]


async def test_an_answer_that_is_too_long_or_no_answer_is_a_failure(
    open_gateway: Any, backends: Any, shapes: Any
) -> None:
    for act in (
        shapes.answering(b"x" * 200_000),
        shapes.answering(b"<html>"),
        shapes.answering(b'{"choices":[]}'),
        shapes.answering(b'{"choices":[{"message":{"content":"\xff"}}]}'),
        shapes.answering(b"", status=302, headers={"location": "http://127.0.0.1:1/"}),
    ):
        backends[0].act = act
        gateway = await open_gateway(only_first=True, model="attempts = 1", door='maximum_answer = "100 KiB"')
        answer = await gateway.chat()
        assert answer.status_code == 502, answer.text
        gateway.serving.proxy.ledger.close()


@pytest.mark.slow
async def test_a_thousand_callers_that_go_away_leave_nothing_behind(
    open_gateway: Any, backends: Any, shapes: Any, until: Any
) -> None:
    backends[0].act = shapes.streaming([shapes.chunk({"content": "half"})], then="hang")
    gateway = await open_gateway(only_first=True, first="slots = 400\nwaiting = 5000")
    proxy = gateway.serving.proxy
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    address = urlsplit(gateway.url)
    writers = []
    for _ in range(1000):
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(head + body)
        writers.append(writer)
    await until(lambda: len(backends[0].bodies) == 400)
    await until(lambda: len(proxy.under_way) == 1000)
    for writer in writers:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.close()
    for writer in writers:
        await writer.wait_closed()
    await until(lambda: not proxy.under_way)
    line = proxy.lines["first"]
    assert line.turnstile.running == 0
    (known, *_) = proxy.router.statistics(proxy.now_s())
    assert (known.running, known.waiting) == (0, 0)
    ends = gateway.attempts()
    assert len(ends) >= 400
    assert {attempt.ended.outcome.value for attempt in ends} == {"cancelled"}
    backends[0].release.set()
    backends[0].act = shapes.answering(shapes.chat_answer())
    assert (await gateway.chat()).status_code == 200


@pytest.mark.parametrize("head", ["", "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-slow: "])
async def test_a_connection_whose_first_head_does_not_come_is_cut_off(open_gateway: Any, head: str) -> None:
    gateway = await open_gateway(door='body_timeout = "50ms"')
    address = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(head.encode())
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()


async def test_a_connection_that_was_heard_once_outlives_the_time_for_its_first_head(open_gateway: Any) -> None:
    gateway = await open_gateway(door='body_timeout = "50ms"')
    address = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b" 200 " in await reader.readline()
    silent_reader, silent_writer = await asyncio.open_connection(address.hostname, address.port)
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionResetError):
            await silent_reader.read()
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    await reader.readuntil(b'{"status":"ok"}')
    await reader.readuntil(b'{"status":"ok"}')
    for one in (writer, silent_writer):
        one.close()
