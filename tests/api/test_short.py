"""Small requests that are answered where they are received: the same answers as by the usual way, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from anyio.abc import SocketStream

from dsec.api.application import Application
from dsec.api.server import TcpAddress, serve
from dsec.base.clock import SystemClock
from dsec.distribution.messages import Announcement, LayerChange, Lookup, Report
from dsec.distribution.policy import TrackerPolicy
from dsec.model.peer_proof import PeerCall, PeerGate
from dsec.node.tracking import NodeTracker

pytestmark = pytest.mark.anyio

SECRET = b"what the nodes of the fleet share"
SERVER, CALLER, OTHER = "k3x9a", "m4y8b", "n5z7c"
LAYER, CHUNK = "a" * 64, "b" * 64
ROOT = "/v1/peer/chunks/"


class OnlyATracker:
    def __init__(self) -> None:
        self.tracker = NodeTracker(SERVER, TrackerPolicy(), SystemClock())


class Node:
    """A connection of a node, and its credential."""

    def __init__(self, stream: SocketStream, credential: str) -> None:
        self.stream = stream
        self.credential = credential

    def request(self, what: str, body: object, *fields: str, **replaced: str) -> bytes:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        head = {
            "host": "x",
            "authorization": f"Bearer {self.credential}",
            "content-type": "application/json",
            "content-length": str(len(data)),
        }
        head |= {name.replace("_", "-"): value for name, value in replaced.items()}
        lines = [f"POST {ROOT}{what} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items() if value), *fields]
        return "\r\n".join([*lines, "", ""]).encode() + data

    async def say(self, request: bytes, *, cut: bool = False) -> tuple[int, Any]:
        """Send a request, whole or in two pieces; return status and body."""
        if cut:
            await self.stream.send(request[:-1])
            await anyio.sleep(0.02)
            request = request[-1:]
        await self.stream.send(request)
        return await self.heard()

    async def heard(self) -> tuple[int, Any]:
        data = b""
        with anyio.fail_after(60):
            while b"\r\n\r\n" not in data:
                data += await self.stream.receive()
            head, _, body = data.partition(b"\r\n\r\n")
            length = next(
                (
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                ),
                0,
            )
            while len(body) < length:
                body += await self.stream.receive()
        self.left = body[length:]
        return int(head.split(b" ")[1]), msgspec.json.decode(body[:length]) if length else None


@asynccontextmanager
async def connected() -> AsyncIterator[Node]:
    gate = PeerGate(SERVER, SECRET)
    call = PeerCall(CALLER, SERVER, SECRET)
    credential = call.credential(gate.answer(call.hello))
    service: Any = OnlyATracker()
    async with serve(service, tcp=TcpAddress(token="a-token-for-tests"), gate=gate) as serving:
        host, _, port = serving.url.removeprefix("http://").partition(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            yield Node(stream, credential)


def announcement(sequence: int, node: str = CALLER) -> Announcement:
    changes = (LayerChange(layer=LAYER, gained=(CHUNK,)),) if sequence == 1 else ()
    return Announcement(
        node=node, address="http://127.0.0.1:1", life="x", sequence=sequence, full=True, changes=changes
    )


LOOKUP = Lookup(node=CALLER, layer=LAYER, chunks=(CHUNK,))


async def test_what_comes_whole_is_answered_past_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise AssertionError("it took the usual way")

    async with connected() as node:
        monkeypatch.setattr(Application, "__call__", refuse)
        status, answer = await node.say(node.request("announce", announcement(1)))
        assert (status, answer["lease_s"]) == (200, TrackerPolicy().lease_s)
        status, answer = await node.say(node.request("lookup", LOOKUP))
        assert (status, answer["answers"][0]["chunk"]) == (200, CHUNK)
        assert await node.say(node.request("report", Report(node=CALLER, failures=()))) == (204, None)


async def test_both_ways_may_follow_each_other_on_a_connection() -> None:
    async with connected() as node:
        for sequence in range(1, 7):
            request = node.request("announce", announcement(sequence))
            assert (await node.say(request, cut=bool(sequence % 2)))[0] == 200
        two = node.request("lookup", LOOKUP) + node.request("lookup", LOOKUP)
        await node.stream.send(two)
        first = await node.heard()
        if node.left:
            assert node.left.count(b"HTTP/1.1 200") == 1
        else:
            assert await node.heard() == first


@pytest.mark.parametrize(
    "wrong",
    [
        {"authorization": ""},
        {"authorization": "Bearer peer.a.b.c.d"},
        {"authorization": "Bearer a-token-for-tests"},
        {"content_type": "text/plain"},
        {"content_type": "application/msgpack"},
    ],
)
async def test_what_is_wrong_is_refused_as_by_the_usual_way(wrong: dict[str, str]) -> None:
    async with connected() as node:
        request = node.request("lookup", LOOKUP, **wrong)
        whole, cut = await node.say(request), await node.say(request, cut=True)
        assert whole == cut
        assert whole[0] >= 400


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"[" * 5000,
        b'{"node": "\xff"}',
        Lookup(node=OTHER, layer=LAYER, chunks=(CHUNK,)),
        msgspec.structs.replace(LOOKUP, layer="../.."),
    ],
)
async def test_a_wrong_body_is_refused_as_by_the_usual_way(body: object) -> None:
    async with connected() as node:
        request = node.request("lookup", body)
        whole = await node.say(request)
        assert whole[0] >= 400
        if body:
            assert whole == await node.say(request, cut=True)


async def test_who_asks_for_more_than_a_short_request_does_gets_it() -> None:
    async with connected() as node:
        await node.say(node.request("announce", announcement(1)))
        await node.stream.send(node.request("lookup", LOOKUP, "accept: application/msgpack", "connection: close"))
        data = b"".join([piece async for piece in node.stream])
        assert b"content-type: application/msgpack" in data.lower()
