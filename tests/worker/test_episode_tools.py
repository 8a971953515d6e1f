"""The tools of an agent: what a model writes becomes a call, whatever it is, and calls become results."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.base.errors import PlatformError, SandboxNotFoundError
from dsec.episode.agent_calls import AgentCall, EditFile, ReadLines, Search, Submit, UnusableCall
from dsec.episode.identity import EpisodeIdentity, operation_id
from dsec.episode.log_events import EpisodeEnded
from dsec.episode.operations import Effect, Operation
from dsec.episode.tools import CommandOutput, FileContent, FileWritten, Run, ToolFailed, ToolResult
from dsec.model.sandbox import SandboxSpec
from dsec.node.node import Node
from dsec.stores.episode_log_group import GroupCommit
from dsec.stores.episode_log_place import LogPlace
from dsec.testing.episodes import ended_as
from dsec.testing.memory_node import MemoryHost
from dsec.worker.episodes.environments.workspace import SandboxWorkspace
from dsec.worker.episodes.hands import SandboxHands
from dsec.worker.episodes.loop import EpisodeLoop
from dsec.worker.episodes.policies.scripted import ScriptedPolicy, replayed
from dsec.worker.episodes.policies.tools import MAXIMUM_ARGUMENTS_BYTES, standard_tools
from dsec.worker.episodes.ports import Proposal

pytestmark = pytest.mark.anyio
BOX, EPISODE = "sbx-box", "ep-tools"
TOOLS = standard_tools()


def operation(call: AgentCall) -> Operation:
    return Operation(operation_id=operation_id(EPISODE, number=1, decision=1, call=0), call=call)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with MemoryHost().node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        yield node


async def do(node: Node, call: AgentCall) -> ToolResult:
    return await SandboxHands(node, BOX, cwd="/tmp").run(operation(call))


async def text(node: Node, path: str) -> str:
    return b"".join([chunk async for chunk in node.read_file(BOX, path)]).decode()


# -- what a model writes -----------------------------------------------------------------------------------------------


def test_calls_that_fit_are_made() -> None:
    made = [
        TOOLS.call("shell", '{"command": "make"}'),
        TOOLS.call("read", '{"path": "a", "first_line": 3, "lines": 2}'),
        TOOLS.call("search", '{"pattern": "x+"}'),
        TOOLS.call("edit", '{"path": "a", "old": "", "new": "b"}'),
        TOOLS.call("submit", ""),
    ]
    assert isinstance(made[0], Run)
    assert made[1:] == [
        ReadLines(path="a", first=3, count=2),
        Search(pattern="x+"),
        EditFile(path="a", new="b"),
        Submit(),
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("rm", "{}", "there is no tool 'rm'; there are shell, read"),
        ("x" * 100_000, "{}", "there is no tool"),
        ("\ud800", "{}", "there is no tool"),
        ("shell", "{", "do not fit"),
        ("shell", "ls -l", "do not fit"),
        ("shell", '{"command": "ls", "then": 1}', "do not fit"),
        ("shell", '{"command": 7}', "do not fit"),
        ("shell", "{}", "do not fit"),
        ("shell", '{"command": "\\ud800"}', "do not fit"),
        ("shell", '"\ud800"', "do not fit"),
        ("shell", "[" * 200_000, "do not fit"),
        ("shell", '{"command": " "}', "is empty"),
        ("shell", '{"command": "a\\u0000b"}', "NUL"),
        ("shell", '{"command": "ls", "timeout_s": -1}', "timeout_s"),
        ("shell", '{"command": "ls", "timeout_s": 1e300}', "timeout_s"),
        ("shell", '{"command": "ls", "timeout_s": NaN}', "do not fit"),
        ("shell", " " * (MAXIMUM_ARGUMENTS_BYTES + 1), "longer than"),
        ("read", '{"path": ""}', "is empty"),
        ("read", '{"path": "a", "first_line": 0}', "count from 1"),
        ("read", '{"path": "a", "lines": 1000000}', "at most 10000"),
        ("search", '{"pattern": ""}', "is empty"),
        ("edit", '{"path": "a", "old": "b", "new": "b"}', "nothing would change"),
    ],
)
def test_calls_that_do_not_fit_become_an_answer(name: str, arguments: str, problem: str) -> None:
    call = TOOLS.call(name, arguments)
    assert isinstance(call, UnusableCall)
    assert problem in call.problem
    assert len(call.name) <= 64
    json.dumps(call.problem).encode()


def test_tools_declare_what_they_do() -> None:
    declared = {tool.name: TOOLS.declare(TOOLS.call(tool.name, "{}")) for tool in TOOLS.tools}
    assert set(declared) == {"shell", "read", "search", "edit", "submit"}
    assert TOOLS.declare(Run(script="x")).effect is Effect.WORKSPACE
    assert TOOLS.declare(EditFile(path="x")).effect is Effect.WORKSPACE
    for looking in (ReadLines(path="x"), Search(pattern="x")):
        assert TOOLS.declare(looking).effect is Effect.NONE
        assert TOOLS.declare(looking).parallel
    assert not TOOLS.declare(Run(script="x")).parallel
    assert standard_tools(shell=Effect.ONCE).declare(Run(script="x")).effect is Effect.ONCE


def test_each_tool_has_a_schema_of_its_arguments() -> None:
    for tool in TOOLS.tools:
        assert tool.schema["type"] == "object"
        assert tool.schema["additionalProperties"] is False
        json.dumps(tool.schema)


# -- what becomes of it ------------------------------------------------------------------------------------------------


async def test_a_file_is_made_changed_and_read(node: Node) -> None:
    assert await do(node, EditFile(path="a.py", new="one\ntwo\nthree\n")) == FileWritten(size_bytes=14)
    assert await do(node, EditFile(path="/tmp/a.py", old="two", new="2")) == FileWritten(size_bytes=12)
    assert await text(node, "/tmp/a.py") == "one\n2\nthree\n"
    read = await do(node, ReadLines(path="a.py", first=2, count=1))
    assert isinstance(read, FileContent)
    assert read.content.text == "2\t2\n"
    assert read.truncated
    assert await do(node, ReadLines(path="a.py", first=9)) == FileContent(
        content=read.content.of(b"[it has 3 lines]\n"), truncated=False
    )


@pytest.mark.parametrize(("first", "count"), [(1, 1), (2, 200), (90_000, 2), (99_999, 5), (100_000, 1), (100_001, 1)])
async def test_lines_are_found_wherever_they_stand_in_a_file_of_very_many(node: Node, first: int, count: int) -> None:
    lines = [f"line {number}" for number in range(1, 100_001)]
    await node.write_file(BOX, "/tmp/long", "\r\n".join(lines).encode())
    read = await do(node, ReadLines(path="long", first=first, count=count))
    assert isinstance(read, FileContent)
    wanted = "".join(f"{number}\tline {number}\n" for number in range(first, min(first + count, 100_001)))
    assert read.content.text == (wanted or "[it has 100000 lines]\n")
    assert read.truncated == (first + count <= 100_000)


async def test_an_edit_keeps_the_permissions(node: Node) -> None:
    await node.write_file(BOX, "/tmp/run", b"#!/bin/sh\nfalse\n", permissions=0o755)
    await do(node, EditFile(path="run", old="false", new="true"))
    assert (await node.stat_file(BOX, "/tmp/run")).mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (EditFile(path="twice", old="ab", new="c"), "2 times"),
        (EditFile(path="twice", old="never", new="c"), "0 times"),
        (EditFile(path="twice", new="c"), "is there already"),
        (EditFile(path="absent", old="a", new="c"), "absent"),
        (ReadLines(path="absent"), "absent"),
        (ReadLines(path="/tmp"), "/tmp"),
        (ReadLines(path="binary"), "no text"),
        (UnusableCall(problem="no such tool"), "no such tool"),
    ],
)
async def test_what_cannot_be_done_is_an_answer(node: Node, call: AgentCall, problem: str) -> None:
    await node.write_file(BOX, "/tmp/twice", b"ab ab")
    await node.write_file(BOX, "/tmp/binary", b"\xff\xfe")
    answer = await do(node, call)
    assert isinstance(answer, ToolFailed)
    assert problem in answer.brief
    assert await text(node, "/tmp/twice") == "ab ab"


async def test_long_lines_are_cut_with_a_word(node: Node) -> None:
    await node.write_file(BOX, "/tmp/long", b"x" * 30_000 + b"\n" + b"y" * 30_000 + b"\n")
    read = await do(node, ReadLines(path="long"))
    assert isinstance(read, FileContent)
    assert read.truncated
    assert "[... cut in line 2 of 2 ...]" in read.content.text
    await node.write_file(BOX, "/tmp/long", b"x" * 1_000_000)
    read = await do(node, ReadLines(path="long"))
    assert isinstance(read, FileContent)
    assert read.truncated
    assert read.content.text.startswith("1\txxx")
    assert len(read.content.text) < 40_000


@pytest.mark.slow
async def test_a_command_that_prints_50_mb_is_cut(node: Node) -> None:
    call = TOOLS.call("shell", '{"command": "head -c 50000000 /dev/zero"}')
    printed = await do(node, call)
    assert isinstance(printed, CommandOutput)
    assert len(printed.stdout.data) + printed.stdout_dropped_bytes == 50_000_000
    assert len(printed.stdout.data) <= 40_000


async def test_a_sandbox_that_is_gone_is_no_answer(node: Node) -> None:
    await node.stop(BOX)
    await node.remove(BOX)
    with pytest.raises((PlatformError, SandboxNotFoundError)):
        await do(node, Run(script="echo a"))


# -- the loop over a node ----------------------------------------------------------------------------------------------

SCRIPT = ScriptedPolicy(
    [
        Proposal(calls=(EditFile(path="log", new="one\n"),)),
        Proposal(calls=(Run(script="echo two >> log"), ReadLines(path="log"), ReadLines(path="log", first=2))),
        Proposal(calls=(TOOLS.call("nothing", "{}"),)),
        Proposal(calls=(Run(script="echo three >> log"), Submit(summary="done"))),
    ]
)


class DyingHands(SandboxHands):
    """Die after the effect of a command, before anybody hears of it."""

    dies_after = 0

    async def run(self, operation: Operation) -> ToolResult:
        outcome = await super().run(operation)
        if isinstance(operation.call, Run):
            self.dies_after -= 1
            if self.dies_after == 0:
                raise PlatformError("the worker died")
        return outcome


async def _live(node: Node, directory: Path, *, dies_after: int) -> EpisodeEnded:
    workspace = SandboxWorkspace(node, node.state, BOX, EPISODE)
    place = LogPlace(directory=directory)
    async with GroupCommit(threads=1) as group:
        if directory.exists():
            log, content = await group.open(place)
            rounds = content.rounds
        else:
            identity = EpisodeIdentity(episode_id=EPISODE, task="t", workspace=await workspace.save(0))
            log, rounds = await group.create(place, identity), ()
        hands = DyingHands(node, BOX, cwd="/tmp")
        hands.dies_after = dies_after
        loop = EpisodeLoop(log, policy=SCRIPT, hands=hands, workspace=workspace, declare=TOOLS.declare, rounds=rounds)
        ended = await loop.run()
        assert isinstance(ended, EpisodeEnded)
        again = replayed(loop.rounds)
        assert isinstance(again, ScriptedPolicy)
        return ended


async def test_an_episode_on_a_node_whose_worker_dies_after_each_command_ends_with_each_done_once(
    node: Node, tmp_path: Path
) -> None:
    for _ in range(2):
        with pytest.raises(PlatformError, match="the worker died"):
            await _live(node, tmp_path / EPISODE, dies_after=1)
        assert (await text(node, "/tmp/log")).endswith("two\n")
    with pytest.raises(PlatformError, match="the worker died"):
        await _live(node, tmp_path / EPISODE, dies_after=2)
    assert ended_as(await _live(node, tmp_path / EPISODE, dies_after=0)) == "submitted"
    assert await text(node, "/tmp/log") == "one\ntwo\nthree\n"
    assert len(await node.state.list_checkpoints(BOX)) == 1
