"""A small HTTP service that acts once for each idempotency key, and fails in all the ways that services do.

It is the world of the tests of `dsec.worker.outside.http`: what it did is in `done`, whoever was told of it. It speaks
real HTTP over real sockets, in the event loop of the test.

::

    POST   /transfers              do it                  (key, epoch in headers)
    GET    /transfers/<operation>  200 with the answer, or 404
    DELETE /transfers/<operation>  undo it
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httptools
import msgspec
from anyio.abc import SocketAttribute, SocketStream

from dsec.testing.loopback import on_loopback


@dataclass(slots=True)
class _Asked:
    """Callbacks of the parser, and what they make of a request."""

    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_complete: bool = False

    def on_url(self, url: bytes) -> None:
        self.path = url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True


@dataclass(slots=True)
class HttpServiceWithKeys:
    """The service.

    Attributes:
        honours_keys: what comes with a known key is answered and not done again.
        faults: what happens to the next requests, one word each; see `_misbehave`. Empty: all is well.
        effects: operations in the order in which they took effect (1) and were undone (-1).
        done: how often each operation is in effect; counted by key, or by ``?operation=``.
        answers: by operation.
        epochs: the highest epoch seen of each episode.
        asked: method, path and headers of each request.
        late: set to let what is held back (`late`) happen.
        url: where it answers.
        serving: ports of the callers whose requests it has under way.
    """

    honours_keys: bool = True
    faults: deque[str] = field(default_factory=deque)
    effects: list[tuple[str, int]] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    answers: dict[str, bytes] = field(default_factory=dict)
    requests: dict[str, bytes] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    asked: list[_Asked] = field(default_factory=list)
    late: anyio.Event = field(default_factory=anyio.Event)
    happened_late: anyio.Event = field(default_factory=anyio.Event)
    url: str = ""
    serving: set[int] = field(default_factory=set)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[HttpServiceWithKeys]:
        """Serve on loopback until the context ends."""
        async with on_loopback(self._serve) as port:
            self.url = f"http://127.0.0.1:{port}"
            yield self

    async def wait_arrived(self) -> None:
        """Wait until whatever was sent before, by callers dead or alive, has been acted upon or dropped.

        Connections are accepted in the order in which they came, so that all earlier ones are among `serving` once our
        own is.
        """
        async with await anyio.connect_tcp("127.0.0.1", int(self.url.rpartition(":")[2])) as ours:
            own = ours.extra(SocketAttribute.local_port)
            while own not in self.serving:  # noqa: ASYNC110 - nobody tells.
                await anyio.sleep(0.005)
            earlier = self.serving - {own}
            while earlier := earlier & self.serving:  # noqa: ASYNC110 - as above.
                await anyio.sleep(0.005)

    async def _serve(self, stream: SocketStream) -> None:
        caller = stream.extra(SocketAttribute.remote_port)
        self.serving.add(caller)
        async with stream:
            asked = _Asked()
            parser = httptools.HttpRequestParser(asked)
            try:
                while not asked.is_complete:
                    parser.feed_data(await stream.receive())
                asked.method = parser.get_method().decode()
                self.asked.append(asked)
                await self._misbehave(stream, asked, self.faults.popleft() if self.faults else "")
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return
            finally:
                self.serving.discard(caller)

    async def _misbehave(self, stream: SocketStream, asked: _Asked, fault: str) -> None:
        """Answer as it should be, or as the word says."""
        match fault:
            case "drop":
                return  # It broke off before it did anything.
            case "lose":
                self._do(asked)  # It happened, and nobody hears of it.
            case "garbage":
                self._do(asked)
                await stream.send(b"\x00\xffnonsense\r\n\r\n")
            case "half":
                status, body = self._do(asked)
                await stream.send(_message(status, body)[: -(len(body) // 2 + 1)])
            case "hint":
                await stream.send(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
                await anyio.sleep(0.01)
                await stream.send(_message(*self._do(asked)))
            case "silent":
                self._do(asked)
                await anyio.sleep_forever()
            case "late":
                await self.late.wait()
                await stream.aclose()
                self._do(asked)
                self.happened_late.set()
            case "endless":
                self._do(asked)
                await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n")
                while True:
                    await stream.send(b"x" * 65536)
            case "headers":
                self._do(asked)
                while True:
                    await stream.send(b"HTTP/1.1 200 OK\r\n" if not asked.headers.pop("", None) else b"x: y\r\n" * 999)
                    asked.headers[""] = "more"
            case "":
                await stream.send(_message(*self._do(asked)))
            case _:
                await self._refuse(stream, asked, fault)

    async def _refuse(self, stream: SocketStream, asked: _Asked, fault: str) -> None:
        """Answer with a status (`503`), after having done it (`503+`), with a wait (`429@1`)."""
        status, _, wait = fault.rstrip("+").partition("@")
        if fault.endswith("+"):
            self._do(asked)
        await stream.send(_message(int(status), b'{"error":"as you were told"}', {"retry-after": wait} if wait else {}))

    def _do(self, asked: _Asked) -> tuple[int, bytes]:
        if asked.method == "GET":
            answer = self.answers.get(asked.path.rpartition("/")[2])
            return (404, b"{}") if answer is None else (200, answer)
        name = asked.headers.get("idempotency-key") or asked.path.partition("?operation=")[2]
        if asked.method == "DELETE":
            name = asked.path.rpartition("/")[2]
            known = self.done.pop(name, 0)
            self.answers.pop(name, None)
            self.effects += [(name, -1)] * known
            return (200, b"{}") if known else (404, b"{}")
        return self._transfer(asked, name or "nameless")

    def _transfer(self, asked: _Asked, name: str) -> tuple[int, bytes]:
        if told := asked.headers.get("x-epoch"):
            episode = name.partition(".")[0]
            newest = self.epochs[episode] = max(int(told), self.epochs.get(episode, 0))
            if newest > int(told):
                return 412, b'{"error":"a later writer was here"}'
        if self.honours_keys and name in self.answers:
            same = self.requests[name] == asked.body
            return (201, self.answers[name]) if same else (422, b'{"error":"the key belongs to another request"}')
        arguments: dict[str, Any] = msgspec.json.decode(asked.body)
        if arguments.get("amount", 0) > 1000:
            return 400, b'{"error":"so much is not there"}'
        self.done[name] += 1
        self.effects.append((name, 1))
        self.requests[name] = asked.body
        self.answers[name] = msgspec.json.encode(
            {"transfer": name, **arguments, "text": "x" * arguments.get("long", 0)}
        )
        return 201, self.answers[name]


def _message(status: int, body: bytes, headers: Mapping[str, str] = {}) -> bytes:
    lines = [f"HTTP/1.1 {status} Told", f"content-length: {len(body)}", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
