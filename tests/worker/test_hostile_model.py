"""Whatever a model or its service sends, over real HTTP and in a worker: a recorded round, or a stop with a code.

Nothing hangs, nothing is repeated without end, and nothing grows: of an answer of 100 MB no more is taken than fits.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from dsec.base.units import MIB
from dsec.episode.agent_calls import UnusableCall
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.log_events import RoundCommitted
from dsec.episode.operations import RoundRecord
from dsec.episode.spec import AgentPolicy, EpisodeEnvironment, EpisodeInfo, EpisodeSpec, EpisodeState
from dsec.episode.tools import CommandOutput, ToolFailed
from dsec.model.sandbox import SandboxSpec
from dsec.node.node import Node
from dsec.testing.loopback import on_loopback
from dsec.testing.memory_worker import MemoryWorker
from dsec.worker.episodes.deciding import NoStrategy
from dsec.worker.episodes.worker import EpisodeWorker

pytestmark = pytest.mark.anyio
Answer = Callable[["Service", anyio.abc.SocketStream], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\n"
STREAM = HEAD + b"content-type: text/event-stream\r\n\r\n"
PIECE = b"x" * 65_536


def event(**chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def delta(finish: str | None = None, **said: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": said, "finish_reason": finish}])


def calls(*written: tuple[Any, Any]) -> bytes:
    made = [{"index": n, "function": {"name": name, "arguments": text}} for n, (name, text) in enumerate(written)]
    return STREAM + delta(tool_calls=made) + delta("tool_calls") + b"data: [DONE]\n\n"


SUBMIT = calls(("submit", "{}"))


class Service:
    """Answers the first questions in a hostile way, and submits when that was survived.

    Attributes:
        sent: bytes of hostile answers that were taken.
    """

    def __init__(self, answer: bytes | Answer, *, times: int) -> None:
        self._answer = answer
        self._times = times
        self.asked: list[dict[str, Any]] = []
        self.sent = 0

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        try:
            async with stream:
                data = b""
                while b"\r\n\r\n" not in data:
                    data += await stream.receive()
                head, _, body = data.partition(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                while len(body) < length:
                    body += await stream.receive()
                self.asked.append(json.loads(body))
                await self._reply(stream)
        except (anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError):
            return  # Nobody wants more.

    async def _reply(self, stream: anyio.abc.SocketStream) -> None:
        if len(self.asked) > self._times:
            await stream.send(SUBMIT)
        elif isinstance(self._answer, bytes):
            await self.send(stream, self._answer)
        else:
            await self._answer(self, stream)

    async def send(self, stream: anyio.abc.SocketStream, data: bytes) -> None:
        await stream.send(data)
        self.sent += len(data)


async def endless_words(service: Service, stream: anyio.abc.SocketStream) -> None:
    await service.send(stream, STREAM)
    for _ in range(1600):
        await service.send(stream, delta(content=PIECE.decode()))


async def endless_arguments(service: Service, stream: anyio.abc.SocketStream) -> None:
    await service.send(stream, STREAM + delta(tool_calls=[{"index": 0, "function": {"name": "shell"}}]))
    for _ in range(1600):
        more = {"index": 0, "function": {"arguments": PIECE.decode()}}
        await service.send(stream, delta(tool_calls=[more]))


async def endless_empty_events(service: Service, stream: anyio.abc.SocketStream) -> None:
    await service.send(stream, STREAM)
    for _ in range(1600):
        await service.send(stream, (b": " + b"k" * 1000 + b"\n\n") * 65)


async def endless_document(service: Service, stream: anyio.abc.SocketStream) -> None:
    await service.send(
        stream, HEAD + b"content-type: application/json\r\n\r\n" + b'{"choices": [{"message": {"content": "'
    )
    for _ in range(1600):
        await service.send(stream, PIECE)


async def dripping(service: Service, stream: anyio.abc.SocketStream) -> None:
    await service.send(stream, STREAM)
    while True:
        await service.send(stream, delta(content="."))
        await anyio.sleep(0.01)


async def silent(service: Service, stream: anyio.abc.SocketStream) -> None:
    await service.send(stream, STREAM)
    await anyio.sleep_forever()


async def endless_error(service: Service, stream: anyio.abc.SocketStream) -> None:
    await service.send(stream, b"HTTP/1.1 500 Oh\r\n\r\n")
    for _ in range(1600):
        await service.send(stream, PIECE)


async def endless_head(service: Service, stream: anyio.abc.SocketStream) -> None:
    await service.send(stream, b"HTTP/1.1 200 OK\r\n")
    for _ in range(1600):
        await service.send(stream, b"x-more: " + PIECE + b"\r\n")


OF_THE_MODEL: dict[str, bytes | Answer] = {
    "no call": STREAM + delta("stop", content="I am done.") + b"data: [DONE]\n\n",
    "nothing at all": STREAM + delta("stop") + b"data: [DONE]\n\n",
    "cut at its limit": STREAM
    + delta(tool_calls=[{"index": 0, "function": {"name": "shell", "arguments": '{"comm'}}])
    + delta("length"),
    "an unknown tool": calls(("launch_missiles", "{}")),
    "a name with control characters": calls(("shell\x1b[2J\x00\n", '{"command": "ls"}')),
    "a name that is long": calls(("s" * 100_000, "{}")),
    "no JSON": calls(("shell", '{"command": "ls"')),
    "words as arguments": calls(("shell", "please list the files")),
    "a list as arguments": calls(("shell", '["ls"]')),
    "a number as arguments": calls(("shell", 7)),
    "an object as arguments": calls(("shell", {"command": 7})),
    "a name that is a list": calls((["shell"], "{}")),
    "arguments of a wrong type": calls(("read", '{"path": ["a"], "first_line": "one"}')),
    "a number out of range": calls(("read", '{"path": "a", "first_line": -1e999}')),
    "arguments that are not known": calls(("shell", '{"command": "ls", "sudo": true}')),
    "deep arguments": calls(("shell", "[" * 50_000)),
    "half a character": STREAM
    + b'data: {"choices": [{"delta": {"content": "\\ud83d"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n',
    "half a character in arguments": calls(("shell", '{"command": "echo \\ud83d"}')),
    "NULs": calls(("shell", '{"command": "echo \\u0000"}'), ("edit", '{"path": "a\\u0000", "old": "", "new": "x"}')),
    "10,000 calls": calls(*[("nothing", "{}")] * 10_000),
    "words without end": endless_words,
    "arguments without end": endless_arguments,
    "an answer that drips": dripping,
}
OF_THE_SERVICE: dict[str, bytes | Answer] = {
    "garbage": b"\x00\xff" * 1000,
    "garbage in a stream": STREAM + b"\x00\xff" * 1000 + b"\n\n",
    "closed at once": b"",
    "closed in the middle": STREAM + delta(content="I lo"),
    "an error in the stream": STREAM + event(error={"message": "out of memory"}),
    "a web page": HEAD + b"content-type: text/html\r\n\r\n<html>It works!</html>",
    "compressed": HEAD + b"content-encoding: gzip\r\n\r\n\x1f\x8b\x08",
    "too many": b"HTTP/1.1 429 Wait\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n",
    "broken": b"HTTP/1.1 503 Broken\r\ncontent-length: 2\r\n\r\nno",
    "a redirect": b"HTTP/1.1 302 There\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n",
    "forbidden": b"HTTP/1.1 403 No\r\ncontent-length: 7\r\n\r\nno key!",
    "calls far away": STREAM + delta(tool_calls=[{"index": 10**9, "function": {"name": "shell"}}]) + delta("stop"),
    "silence": silent,
    "a complaint without end": endless_error,
    "a head without end": endless_head,
    "a document without end": endless_document,
    "events without words": endless_empty_events,
}
WAITED_FOR = ("silence", "a document without end", "events without words")
"""Services that are given their time first."""


@asynccontextmanager
async def served(service: Service) -> AsyncIterator[str]:
    async with on_loopback(service.serve) as port:
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Node, EpisodeWorker]]:
    monkeypatch.setattr("dsec.worker.chat.http.next_delay_s", lambda tries, backoff_s: None if tries > 1 else 0.0)
    memory = MemoryWorker(tmp_path / "w", options={"strategy": lambda spec: NoStrategy()})
    async with memory.node() as node, memory.worker(node) as worker:
        yield node, worker


async def settled(worker: EpisodeWorker, episode_id: str) -> EpisodeInfo:
    """Wait until an episode neither runs nor is about to."""
    with anyio.fail_after(60):
        while True:
            info = await worker.get(episode_id)
            if info.state not in (EpisodeState.QUEUED, EpisodeState.RUNNING):
                return info
            await anyio.sleep(0.01)  # That an episode was stopped is told to nobody.


async def play(
    worker: EpisodeWorker, url: str, environment: EpisodeEnvironment = EpisodeEnvironment(cwd="/tmp")
) -> tuple[EpisodeInfo, list[RoundRecord]]:
    """Let an agent work until nothing goes on by itself."""
    endpoint = ModelEndpoint(url=url, name="m", answer_s=0.25, silence_s=0.15)
    spec = EpisodeSpec(task="t", policy=AgentPolicy(model=endpoint), environment=environment)
    info = await settled(worker, (await worker.start(spec)).episode_id)
    async with worker.events(info.episode_id, follow=False) as events:
        told = [each.event async for each in events]
    return info, [each.record for each in told if isinstance(each, RoundCommitted)]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == "an answer that drips" else name for name in OF_THE_MODEL],
)
async def test_what_a_model_sends_is_a_round_that_says_what_was_wrong_and_the_episode_goes_on(
    place: tuple[Node, EpisodeWorker], name: str
) -> None:
    service = Service(OF_THE_MODEL[name], times=1)
    async with served(service) as url:
        info, rounds = await play(place[1], url)
    assert (info.state, info.reason) == (EpisodeState.ENDED, "submitted")
    assert len(service.asked) == len(rounds) == 2, "it was not asked again for what it had said"
    for operation, result in zip(rounds[0].decision.operations, rounds[0].results, strict=True):
        assert isinstance(operation.call, UnusableCall)
        assert isinstance(result, ToolFailed)
    assert service.sent < 40 * MIB, "what nobody wants is not taken"
    json.dumps(service.asked[1]).encode()
    for message in service.asked[1]["messages"]:
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict), "templates of models read these"
            assert call["function"]["name"].isidentifier()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in WAITED_FOR else name for name in OF_THE_SERVICE]
)
async def test_a_service_that_sends_no_answer_stops_the_episode_with_a_code_and_it_goes_on_when_it_is_well(
    place: tuple[Node, EpisodeWorker], name: str
) -> None:
    service = Service(OF_THE_SERVICE[name], times=1_000)
    async with served(service) as url:
        info, rounds = await play(place[1], url)
        assert info.state is EpisodeState.STOPPED
        assert info.error_code in ("backend_failed", "backend_refused", "backend_timeout")
        assert info.reason
        assert not rounds
        assert len(service.asked) <= 8, "it is asked a few times, and then somebody else has to see to it"
        assert service.sent < 40 * MIB * len(service.asked)
    async with served(Service(b"", times=0)) as url:
        await place[1].resume(info.episode_id, model=ModelEndpoint(url=url, name="m"))
        assert (await settled(place[1], info.episode_id)).reason == "submitted"


async def test_a_model_that_never_makes_sense_ends_its_episode(place: tuple[Node, EpisodeWorker]) -> None:
    service = Service(OF_THE_MODEL["no JSON"], times=1_000)
    async with served(service) as url:
        info, rounds = await play(place[1], url)
    assert (info.state, info.error_code) == (EpisodeState.ENDED, "unusable_answers")
    assert len(rounds) == len(service.asked) == 5


@pytest.mark.slow
async def test_results_of_50_mb_are_cut_before_they_are_kept_or_shown(place: tuple[Node, EpisodeWorker]) -> None:
    node, worker = place
    asks = calls(
        ("shell", '{"command": "head -c 50000000 /dev/zero"}'),
        ("read", '{"path": "/tmp/large"}'),
        ("edit", '{"path": "/tmp/large", "old": "y", "new": "z"}'),
    )
    service = Service(asks, times=1)

    await node.create(SandboxSpec(), sandbox_id="sbx-large")
    await node.write_file("sbx-large", "/tmp/large", b"x" * 17 * MIB)
    async with served(service) as url:
        info, rounds = await play(worker, url, EpisodeEnvironment(cwd="/tmp", sandbox_id="sbx-large"))
    assert info.reason == "submitted"
    printed, *others = rounds[0].results
    assert isinstance(printed, CommandOutput)
    assert len(printed.stdout.data) + printed.stdout_dropped_bytes == 50_000_000
    assert len(printed.stdout.data) <= 64_000
    assert all(isinstance(result, ToolFailed) for result in others)
    assert len(json.dumps(service.asked[1])) < 1 * MIB
