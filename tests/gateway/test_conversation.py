"""A replay by the place in a conversation: the same question gets the same answer, whatever came between."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.gateway.config import GatewayConfig
from dsec.gateway.conversation import conversation_key
from dsec.gateway.conversation_file import read_conversation
from dsec.gateway.endpoint import recorded, replaying
from dsec.gateway.fake.server import serve_fake
from dsec.gateway.fake.settings import FakeSettings
from dsec.gateway.server import serve

pytestmark = pytest.mark.anyio
INF = float("inf")
TASK = {"role": "user", "content": "mend it"}
LOOK = {"name": "shell", "arguments": {"command": "ls"}}
LINES: list[dict[str, Any]] = [
    TASK,
    {"role": "assistant", "content": "I look.", "tool_calls": [LOOK]},
    {"role": "tool", "content": "sum.py"},
    {"role": "assistant", "tool_calls": [{"name": "submit", "arguments": {}}]},
]


def written(file: Path, *lines: dict[str, Any]) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def sent_back(name: str, arguments: str, number: int = 1) -> dict[str, Any]:
    """Return an answer as an agent sends it back."""
    call = {"id": f"ep-x.r{number}.d1.c0", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "I look.", "tool_calls": [call]}


@asynccontextmanager
async def client(config: GatewayConfig, state: Path) -> AsyncIterator[httpx2.AsyncClient]:
    async with AsyncExitStack() as stack:
        serving = await stack.enter_async_context(serve(config, state, environment={"KEY": "secret"}))
        yield await stack.enter_async_context(httpx2.AsyncClient(base_url=f"{serving.url}/v1", timeout=30))


async def ask(to: httpx2.AsyncClient, *messages: dict[str, Any], **more: Any) -> Any:
    body = {"model": "recorded", "messages": [{"role": "system", "content": "You."}, *messages], **more}
    answer = await to.post("/chat/completions", json=body)
    return answer.json() if not more.get("stream") else answer.text


def said(answer: Any) -> tuple[str, list[tuple[str, str]]]:
    message = answer["choices"][0]["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return message["content"], calls


def test_what_the_world_said_is_no_part_of_a_place_and_what_the_model_said_is() -> None:
    def key(*messages: Any, **more: Any) -> str:
        return conversation_key(messages, streaming=True, **more)

    told = {"role": "tool", "tool_call_id": "a", "content": "3 passed in 0.01s"}
    answer = sent_back("shell", '{"command": "ls", "timeout_s": 1}')
    place = key(TASK, answer, told)
    assert place == key({"role": "system", "content": "x"}, TASK, answer, {**told, "content": "3 passed in 0.02s"})
    assert place == key(TASK, sent_back("shell", '{"timeout_s":1,"command":"ls"}', 7), told, TASK)
    assert place == key({"role": "user", "content": [{"type": "text", "text": "mend it"}]}, answer)
    assert place != key(TASK, sent_back("shell", '{"command": "ls"}'), told)
    assert place != key({"role": "user", "content": "mend that"}, answer)
    assert place != conversation_key([TASK, answer], streaming=False)
    assert key(TASK, answer, any_task=True) == key({"role": "user", "content": "other"}, answer, any_task=True)
    garbage = [key(TASK, sent_back(name, arguments)) for name, arguments in (("no such!", "{"), ("unknown", "{}"))]
    assert garbage[0] == garbage[1]
    assert key(None, 3, {"role": "assistant", "content": 7, "tool_calls": "?"})


async def test_a_written_conversation_answers_at_its_places_in_any_order_and_as_often_as_asked(tmp_path: Path) -> None:
    file = written(tmp_path / "conversation.jsonl", *LINES)
    config = replaying(file, names=["strong"], speed=INF, state=tmp_path / "state")
    async with client(config, tmp_path) as to:
        listed = (await to.get("/models")).json()["data"]
        assert {one["id"] for one in listed} == {"recorded", "strong"}
        back = sent_back("shell", '{"command": "ls"}')
        for _ in range(2):
            assert said(await ask(to, TASK, back, {"role": "tool", "content": "?"})) == ("", [("submit", "{}")])
            assert said(await ask(to, TASK, model="strong")) == ("I look.", [("shell", '{"command":"ls"}')])
        streamed = await ask(to, TASK, stream=True)
        assert streamed.endswith("data: [DONE]\n\n")
        assert (await ask(to, {"role": "user", "content": "another task"}))["error"]["code"] == "recording_miss"


async def test_of_several_answers_at_one_place_the_seed_decides(tmp_path: Path) -> None:
    places = tmp_path / "places"
    places.mkdir()
    for seed in (3, 4):
        written(
            places / f"conversation-{seed}.jsonl", TASK, {"role": "assistant", "content": f"seed {seed}", "seed": seed}
        )
    config = replaying(places, speed=INF, state=tmp_path / "state")
    async with client(config, tmp_path) as to:
        for seed, expected in ((4, 4), (3, 3), (5, 4), (5, 4), (6, 3), (4, 4)):
            assert said(await ask(to, TASK, seed=seed))[0] == f"seed {expected}"


async def test_a_conversation_without_a_task_answers_any(tmp_path: Path) -> None:
    file = written(tmp_path / "conversation.jsonl", *LINES[1:])
    async with client(replaying(file, speed=INF, state=tmp_path / "state"), tmp_path) as to:
        for task in ("one", "two"):
            assert said(await ask(to, {"role": "user", "content": task}))[0] == "I look."


async def test_what_an_endpoint_answered_is_answered_in_its_place_though_ids_and_results_differ(tmp_path: Path) -> None:
    tape, tool = tmp_path / "tape", {"type": "function", "function": {"name": "look", "parameters": {}}}
    answers = []
    async with serve_fake(FakeSettings(visible_tokens=3, speed=INF)) as fake:
        config = recorded(fake.url, tape, names=["fake"], key_variable="KEY", state=tmp_path / "one")
        async with client(config, tmp_path) as to:
            for messages in ([TASK], [TASK, sent_back("look", "{}", 1), {"role": "tool", "content": "0.1 s"}]):
                answers.append(await ask(to, *messages, model="fake", tools=[tool], seed=1))
    async with client(replaying(tape, speed=INF, state=tmp_path / "two"), tmp_path) as to:
        late = [TASK, sent_back("look", "{}", 9), {"role": "tool", "content": "0.2 s"}]
        assert await ask(to, *late, model="fake", tools=[], seed=8) == answers[1]
        assert await ask(to, TASK, model="fake") == answers[0]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", InvalidRequestError, ":1: no message"),
        ('{"role": "user", "content": "x"}\n{"role": "wizard"}', InvalidRequestError, ":2: no message of a chat"),
        ('{"role": "user", "content": "x"}', InvalidRequestError, "holds no answer"),
        (None, NotFoundError, "cannot be read"),
    ],
)
def test_what_is_no_conversation_is_refused_with_its_line(
    tmp_path: Path, text: str | None, error: type[Exception], message: str
) -> None:
    file = tmp_path / "conversation.jsonl"
    if text is not None:
        file.write_text(text)
    with pytest.raises(error, match=message):
        read_conversation(file)


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="url"):
        recorded("nowhere", tmp_path, names=["m"], state=tmp_path)


@pytest.mark.slow
def test_the_command_line_serves_a_conversation_and_says_where(tmp_path: Path) -> None:
    file = written(tmp_path / "conversation.jsonl", *LINES)
    command = [str(Path(sys.executable).parent / "dsec"), "model", "replay", str(file), "--speed", "inf", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            where = json.loads(process.stdout.readline())
            body = {"model": "recorded", "messages": [TASK]}
            answer = httpx2.post(f"{where['url']}/chat/completions", json=body, timeout=30).json()
        finally:
            process.terminate()
            assert process.wait(timeout=30) == 0
    assert said(answer)[0] == "I look."
