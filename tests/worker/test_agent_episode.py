"""A model that mends a program in three rounds, over a chat endpoint that replays its answers, with a death between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from dsec.base.errors import BackendFailedError
from dsec.episode.identity import EpisodeIdentity, ModelIdentity
from dsec.episode.log_content import Completeness
from dsec.episode.log_events import EpisodeEnded
from dsec.model.sandbox import SandboxSpec
from dsec.node.node import Node
from dsec.stores.episode_log_group import GroupCommit
from dsec.stores.episode_log_place import LogPlace
from dsec.stores.episode_log_reading import read_episode_log
from dsec.testing.episodes import ended_as
from dsec.testing.loopback import on_loopback
from dsec.testing.memory_node import MemoryHost
from dsec.worker.chat.http import ChatSettings, HttpChatModel
from dsec.worker.episodes.environments.workspace import SandboxWorkspace
from dsec.worker.episodes.hands import SandboxHands
from dsec.worker.episodes.loop import EpisodeLoop
from dsec.worker.episodes.policies.tool_calling import ToolCallingPolicy
from dsec.worker.episodes.policies.tools import standard_tools

pytestmark = pytest.mark.anyio
BOX, EPISODE = "sbx-box", "ep-repair"
ANSWERS: list[tuple[str, dict[str, Any]]] = [
    ("read", {"path": "sum.py"}),
    ("edit", {"path": "sum.py", "old": "a - b", "new": "a + b"}),
    ("submit", {"summary": "It adds now."}),
]


class Recorded:
    """A chat endpoint that gives the recorded answer to each round, and breaks off when told to."""

    def __init__(self) -> None:
        self.broken_from = 99
        self.asked: list[int] = []

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            data = b""
            while b"\r\n\r\n" not in data:
                data += await stream.receive()
            head, _, body = data.partition(b"\r\n\r\n")
            length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
            while len(body) < length:
                body += await stream.receive()
            messages = json.loads(body)["messages"]
            number = sum(message["role"] == "assistant" for message in messages)
            self.asked.append(number)
            if number >= self.broken_from:
                return
            name, arguments = ANSWERS[number]
            said = {"content": "", "tool_calls": [{"function": {"name": name, "arguments": json.dumps(arguments)}}]}
            answer = {"model": "m-7", "choices": [{"message": said, "finish_reason": "tool_calls"}]}
            reply = json.dumps(answer).encode()
            await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(reply) + reply)


async def _live(node: Node, place: LogPlace, url: str) -> EpisodeEnded:
    workspace = SandboxWorkspace(node, node.state, BOX, EPISODE)
    tools = standard_tools()
    async with GroupCommit(threads=1) as group:
        if place.directory.exists():
            log, content = await group.open(place)
            rounds = content.rounds
        else:
            first = await workspace.save(0)
            identity = EpisodeIdentity(episode_id=EPISODE, task="sum", model=ModelIdentity(name="m"), workspace=first)
            log, rounds = await group.create(place, identity), ()
        model = HttpChatModel(ChatSettings(url=url, model="m", backoff_s=()))
        policy = ToolCallingPolicy(model, tools, "sum.py subtracts. Mend it.")
        hands = SandboxHands(node, BOX, cwd="/tmp")
        loop = EpisodeLoop(log, policy=policy, hands=hands, workspace=workspace, declare=tools.declare, rounds=rounds)
        ended = await loop.run()
    assert isinstance(ended, EpisodeEnded)
    return ended


async def test_a_program_is_mended_in_three_rounds_though_the_model_is_gone_before_each(tmp_path: Path) -> None:
    service, place = Recorded(), LogPlace(directory=tmp_path / EPISODE)
    async with MemoryHost().node() as node, on_loopback(service.serve) as port:
        url = f"http://127.0.0.1:{port}/v1"
        await node.create(SandboxSpec(), sandbox_id=BOX)
        await node.write_file(BOX, "/tmp/sum.py", b"def sum(a, b):\n    return a - b\n")
        for broken_from in range(3):
            service.broken_from = broken_from
            with pytest.raises(BackendFailedError, match="broke off"):
                await _live(node, place, url)
        service.broken_from = 99
        assert ended_as(await _live(node, place, url)) == "submitted"
        mended = b"".join([chunk async for chunk in node.read_file(BOX, "/tmp/sum.py")])
        assert mended == b"def sum(a, b):\n    return a + b\n"
    assert service.asked == [0, 0, 1, 1, 2, 2], "no round that was committed was decided again"
    content = read_episode_log(place.directory)
    assert content.completeness is Completeness.COMPLETE
    assert [record.decision.model.version for record in content.rounds] == ["m-7"] * 3
