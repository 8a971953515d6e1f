"""A chat model over HTTP, and the policy that lets it call tools: whatever the service sends is typed and bounded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from dsec.base.errors import BackendFailedError, BackendRefusedError, BackendTimeoutError, InvalidRequestError
from dsec.episode.agent_calls import Submit, UnusableCall
from dsec.episode.identity import EpisodeIdentity, ModelIdentity, operation_id
from dsec.episode.operations import ModelDecision, Operation, RoundRecord
from dsec.episode.tools import CommandOutput, Run, ToolFailed, ToolResult
from dsec.episode.totals import Steering
from dsec.testing.episodes import result
from dsec.testing.loopback import on_loopback
from dsec.worker.chat.assembly import AnswerAssembly
from dsec.worker.chat.http import ChatSettings, HttpChatModel
from dsec.worker.chat.port import ChatAnswer, ChatRequest, WrittenCall
from dsec.worker.episodes.policies.tool_calling import ToolCallingPolicy, shown_result
from dsec.worker.episodes.policies.tools import standard_tools
from dsec.worker.episodes.ports import Proposal, Turn

pytestmark = pytest.mark.anyio
Answer = Callable[[anyio.abc.SocketStream], Awaitable[None]]
ASK = ChatRequest(messages=[{"role": "user", "content": "hello"}], seed=5)
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def event(**chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def delta(finish: str | None = None, **said: Any) -> bytes:
    return event(model="m-1", choices=[{"index": 0, "delta": said, "finish_reason": finish}])


def call(name: str | None, arguments: str, index: int = 0) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": "x", "function": {"name": name, "arguments": arguments}}]}


def says(*pieces: bytes) -> Answer:
    async def answer(stream: anyio.abc.SocketStream) -> None:
        for piece in pieces:
            await stream.send(piece)

    return answer


class Service:
    """Answers one connection after another; the last answer stays."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        self.heads: list[bytes] = []

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
                self.heads.append(head)
                self.asked.append(json.loads(body or b"{}"))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                await answer(stream)
        except (anyio.BrokenResourceError, anyio.EndOfStream):
            return  # The client has heard enough.


@asynccontextmanager
async def served(*answers: Answer, **settings: Any) -> AsyncIterator[tuple[HttpChatModel, Service]]:
    service = Service(answers)
    options = {"backoff_s": (0.0, 0.0), "silence_s": 60.0, **settings}
    async with on_loopback(service.serve) as port:
        url = f"http://127.0.0.1:{port}/v1"
        yield HttpChatModel(ChatSettings(**{"url": url, "model": "m", "key": "secret", **options})), service


async def test_a_streamed_answer_is_put_together() -> None:
    usage = event(
        choices=[],
        usage={
            "prompt_tokens": 10,
            "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 1},
        },
    )
    pieces = [
        STREAM,
        b": a comment\n\n",
        delta(content="I l"),
        delta(content="ook."),
        delta(**call("shell", '{"comm')),
        delta(**call(None, 'and": "ls"}')),
        delta(**call("submit", "{}", 1)),
        delta("tool_calls"),
        usage,
        b"data: [DONE]\n\n",
    ]
    whole = b"".join(pieces)
    # However it is cut into pieces, it is the same.
    for parts in ([whole], pieces, [whole[at : at + 7] for at in range(0, len(whole), 7)]):
        async with served(says(*parts)) as (model, service):
            answer = await model.answer(ASK)
        assert answer.text == "I look."
        assert [(one.name, one.arguments) for one in answer.calls] == [("shell", '{"command": "ls"}'), ("submit", "{}")]
        assert answer.model == ModelIdentity(name="m", version="m-1")
        assert (answer.usage.input_tokens, answer.usage.cached_tokens, answer.usage.output_tokens) == (10, 8, 4)
        assert not answer.cut
        assert service.asked[0]["seed"] == 5
        assert service.heads[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
        assert b"authorization: Bearer secret" in service.heads[0]


async def test_an_answer_in_one_document_and_a_chunked_one_are_answers_too() -> None:
    message = {"role": "assistant", "content": "hi", "tool_calls": [{"function": {"name": "submit", "arguments": ""}}]}
    body = json.dumps({"model": "m-1", "choices": [{"message": message, "finish_reason": "stop"}]}).encode()
    plain = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    chunked = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    chunked += b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    for reply in (plain, chunked):
        async with served(says(reply)) as (model, _):
            answer = await model.answer(ASK)
        assert answer.text == "hi"
        assert answer.calls == (WrittenCall(name="submit", arguments=""),)


GARBAGE = {
    "not http": b"\x00\x01\x02 garbage\r\n\r\n",
    "nothing": b"",
    "no json": STREAM + b"data: {\n\n",
    "wrong types": STREAM + event(choices="none"),
    "no events": STREAM + b"<html>\n\n",
    "bytes": STREAM + b"data: \xff\xfe\n\n",
    "deep": STREAM + b"data: " + b"[" * 100_000 + b"\n\n",
    "an error": STREAM + event(error={"message": "out of memory"}),
    "broken off": STREAM + delta(content="I lo"),
    "a call far away": STREAM + delta(**call("shell", "", 10**9)),
    "a long event": STREAM + b"data: " + b"x" * 3_000_000,
    "a document of another kind": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]",
    "an empty document": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    "an endless head": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 400_000,
    "compressed": STREAM.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") + b"\x1f\x8b",
    "server error": b"HTTP/1.1 500 Oh\r\ncontent-length: 3\r\n\r\nno!",
    "too many": b"HTTP/1.1 429 Wait\r\ncontent-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_is_the_services_failure_and_is_asked_again_a_bounded_number_of_times(name: str) -> None:
    async with served(says(GARBAGE[name])) as (model, service):
        with pytest.raises(BackendFailedError):
            await model.answer(ASK)
    assert len(service.asked) == 3
    assert service.asked[0] == service.asked[2]


async def test_a_service_that_comes_back_is_heard_and_the_tries_are_counted() -> None:
    good = says(STREAM + delta("stop", content="hi") + b"data: [DONE]\n\n")
    async with served(says(GARBAGE["server error"]), says(b""), good) as (model, _):
        answer = await model.answer(ASK)
    assert answer.text == "hi"
    assert answer.usage.calls == 3


async def test_a_refusal_is_not_asked_again_and_says_what_the_service_said() -> None:
    body = b"HTTP/1.1 400 Bad\r\ncontent-length: 8\r\n\r\nno model"
    async with served(says(body)) as (model, service):
        with pytest.raises(BackendRefusedError, match="answered 400") as raised:
            await model.answer(ASK)
    assert len(service.asked) == 1
    assert raised.value.detail == "no model"
    assert not raised.value.retryable


@pytest.mark.parametrize(
    ("said", "waited_s"), [(b"7", 7.0), (b"86400", 60.0), (b"soon", 1.0), (b"", 1.0), (b"-3", 1.0)]
)
async def test_a_service_that_says_when_to_come_back_is_heard_within_reason(
    monkeypatch: pytest.MonkeyPatch, said: bytes, waited_s: float
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await anyio.lowlevel.checkpoint()

    busy = says(b"HTTP/1.1 429 Wait\r\nretry-after: " + said + b"\r\ncontent-length: 0\r\n\r\n")
    good = says(STREAM + delta("stop", content="hi") + b"data: [DONE]\n\n")
    async with served(busy, good, backoff_s=(1.0,)) as (model, _):
        monkeypatch.setattr("dsec.worker.chat.http.anyio.sleep", sleep)
        assert (await model.answer(ASK)).text == "hi"
        monkeypatch.undo()
    assert slept == [waited_s]


async def test_a_redirect_is_not_followed() -> None:
    body = b"HTTP/1.1 307 There\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n"
    async with served(says(body)) as (model, service):
        with pytest.raises(BackendFailedError, match="answered 307"):
            await model.answer(ASK)
    assert len(service.asked) == 1


async def test_a_long_complaint_is_not_read_to_its_end() -> None:
    body = b"HTTP/1.1 400 Bad\r\ncontent-length: 100000000\r\n\r\n" + b"no " * 40_000
    async with served(says(body)) as (model, _):
        with pytest.raises(BackendFailedError, match="answered 400") as raised:
            await model.answer(ASK)
    assert len(raised.value.detail) <= 500


async def test_without_a_name_the_first_model_that_is_listed_is_asked() -> None:
    body = b'{"data": [{"id": "%s"}, {"id": "first", "object": "model"}, {"id": "second"}]}' % (b"x" * 100_000)
    listing = says(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    good = says(STREAM + delta("stop", content="hi") + b"data: [DONE]\n\n")
    async with served(listing, good, model="") as (model, service):
        answers = [await model.answer(ASK) for _ in range(2)]
    assert [answer.model.name for answer in answers] == ["first", "first"]
    assert service.heads[0].startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert [asked.get("model") for asked in service.asked] == [None, "first", "first"]
    none = says(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    async with served(none, model="") as (model, _):
        with pytest.raises(BackendFailedError, match="lists no model"):
            await model.answer(ASK)


async def test_tools_are_heard_of_while_the_answer_goes_on() -> None:
    heard: list[str] = []
    pieces = [delta(**call("sh", "")), delta(**call("ell", '{"comm')), delta(**call(None, 'and": "ls"}'))]
    pieces += [delta(**call("submit", "{}", 1)), delta("tool_calls")]
    assembly = AnswerAssembly(hear=heard.append)
    for place, piece in enumerate(pieces):
        assembly.feed(piece)
        assert heard == [[], ["shell"], ["shell"], ["shell", "submit"], ["shell", "submit"]][place]


async def test_what_a_model_wrote_in_place_of_texts_is_its_answer_and_no_failure_of_the_service() -> None:
    def said(*chunks: bytes) -> ChatAnswer:
        assembly = AnswerAssembly()
        for chunk in (*chunks, delta("stop")):
            assembly.feed(chunk)
        return assembly.answer(asked_for="m", calls=1)

    wrong = [{"a": 1}, [1], 7, True, None]
    for arguments in wrong:
        written = said(event(choices=[{"delta": {"tool_calls": [{"function": {"name": 3, "arguments": arguments}}]}}]))
        assert written.calls[0].name == "3"
        assert written.calls[0].arguments == ("" if arguments is None else json.dumps(arguments).replace(" ", ""))
    half = said(b'data: {"choices": [{"delta": {"content": "\\ud83d \\u0000"}}]}\n\n')
    assert half.text == "? \0"
    parts = said(delta(content=[{"type": "text", "text": "a"}, {"type": "image"}, {"text": "b"}, 5]))
    assert parts.text == "ab"
    many = [{"index": place, "function": {"name": "submit", "arguments": "{}"}} for place in range(10_000)]
    whole = said(delta(tool_calls=many))
    assert len(whole.calls) == 256
    assert "more than 256 calls" in whole.cut


async def _for_ever(stream: anyio.abc.SocketStream) -> None:
    await stream.send(STREAM)
    while True:
        await stream.send(delta(content="and " * 100))


async def _drip(stream: anyio.abc.SocketStream) -> None:
    await stream.send(STREAM)
    while True:
        await stream.send(delta(content="."))
        await anyio.sleep(0.005)


async def _silent(stream: anyio.abc.SocketStream) -> None:
    await stream.send(STREAM)
    await anyio.sleep_forever()


async def test_an_answer_that_never_ends_is_cut() -> None:
    async with served(_for_ever, maximum_bytes=10_000) as (model, service):
        answer = await model.answer(ASK)
    assert answer.cut == "it was longer than 10000 bytes"
    assert len(answer.text) <= 10_000
    assert len(service.asked) == 1
    async with served(_drip, answer_s=0.05) as (model, _):
        assert (await model.answer(ASK)).cut == "it did not end within 0.05 s"


async def test_a_service_that_falls_silent_is_given_up() -> None:
    async with served(_silent, silence_s=0.02, backoff_s=(0.0, 60.0)) as (model, service):
        with pytest.raises(BackendTimeoutError):
            await model.answer(ASK)
    assert len(service.asked) == 2


async def test_a_service_that_is_not_there_is_a_failure_of_ours() -> None:
    model = HttpChatModel(ChatSettings(url="http://127.0.0.1:1/v1", model="m", backoff_s=(0.0, 60.0)))
    with anyio.fail_after(30), pytest.raises(BackendFailedError, match="cannot be reached") as caught:
        await model.answer(ASK)
    assert caught.value.detail == "Connection refused"
    assert caught.value.calls == 2


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://x/v1",
        "http:///v1",
        "localhost:80",
        "http://x:99999/v1",
        "http://[::1/v1",
        "http://x/v1\r\nX: y",
        "http://x/a b",
    ],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="no URL of a chat endpoint"):
        HttpChatModel(ChatSettings(url=url, model="m"))


def test_a_key_that_would_make_headers_of_its_own_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="the key"):
        HttpChatModel(ChatSettings(url="http://h/v1", model="m", key="a\r\nx: y"))


def test_usage_that_cannot_be_is_not_believed() -> None:
    assembly = AnswerAssembly()
    assembly.feed(delta("stop", content="x") + event(usage={"prompt_tokens": -5, "completion_tokens": None}))
    answer = assembly.answer(asked_for="m", calls=1)
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (0, 0)


# -- the policy --------------------------------------------------------------------------------------------------------


class Told:
    """Answers what it is told, and keeps what it was asked."""

    def __init__(self, *answers: ChatAnswer) -> None:
        self.answers = list(answers)
        self.asked: list[ChatRequest] = []

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        self.asked.append(request)
        return self.answers.pop(0)


def turn(rounds: Sequence[RoundRecord] = ()) -> Turn:
    identity = EpisodeIdentity(episode_id="ep-chat", task="t")
    return Turn(identity=identity, number=len(rounds) + 1, decision=1, seed=9, rounds=rounds)


def committed(proposal: Proposal, *results: ToolResult, number: int = 1) -> RoundRecord:
    operations = tuple(
        Operation(operation_id=operation_id("ep-chat", number=number, decision=1, call=place), call=one)
        for place, one in enumerate(proposal.calls)
    )
    decision = ModelDecision(operations=operations, message=proposal.message, answer=proposal.answer)
    return RoundRecord(number=number, decision=decision, results=results)


def written(name: str, arguments: str) -> ChatAnswer:
    return ChatAnswer(calls=(WrittenCall(name=name, arguments=arguments),))


async def decide(answer: ChatAnswer) -> Proposal:
    decided = await ToolCallingPolicy(Told(answer), standard_tools(), "Mend it.").decide(turn())
    assert isinstance(decided, Proposal)
    return decided


async def test_calls_are_shown_again_as_they_were_written_with_what_became_of_them() -> None:
    first = await decide(
        ChatAnswer(text="Both.", calls=(*written("shell", '{"command": "ls"}').calls, *written("r m", "{oh").calls))
    )
    assert isinstance(first.calls[0], Run)
    assert isinstance(first.calls[1], UnusableCall)
    record = committed(first, result("a.py"), ToolFailed(code="invalid_request", brief="there is no tool"))
    model = Told(written("submit", "{}"))
    decided = await ToolCallingPolicy(model, standard_tools(), "Mend it.").decide(turn([record]))
    assert isinstance(decided, Proposal)
    assert decided.calls == (Submit(),)
    said, *heard = model.asked[0].messages[2:]
    assert said["content"] == "Both."
    assert [one["function"] for one in said["tool_calls"]] == [
        {"name": "shell", "arguments": '{"command": "ls"}'},
        {"name": "unknown", "arguments": "{}"},
    ]
    assert [one["tool_call_id"] for one in heard] == [one["id"] for one in said["tool_calls"]]
    assert [one["content"] for one in heard] == ["a.py", "failed: there is no tool"]
    assert model.asked[0].seed == 9
    assert {tool["function"]["name"] for tool in model.asked[0].tools} == {"shell", "read", "search", "edit", "submit"}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (ChatAnswer(text="Done!"), "it called no tool"),
        (ChatAnswer(text="On and on", cut="it was longer than 9 bytes"), "it was longer than 9 bytes, and called no"),
        (ChatAnswer(calls=written("shell", '{"comma').calls, cut="it reached the limit"), "not whole: it reached the"),
        (written("teleport", "{}"), "there is no tool 'teleport'"),
        (written("shell", "ls"), "do not fit"),
        (written("", ""), "there is no tool ''"),
    ],
)
async def test_an_answer_of_no_use_becomes_a_call_that_says_why(answer: ChatAnswer, problem: str) -> None:
    proposal = await decide(answer)
    assert len(proposal.calls) == 1
    assert isinstance(proposal.calls[0], UnusableCall)
    assert problem in proposal.calls[0].problem
    record = committed(proposal, ToolFailed(code="invalid_request", brief=proposal.calls[0].problem))
    model = Told(written("submit", "{}"))
    await ToolCallingPolicy(model, standard_tools(), "Mend it.").decide(turn([record]))
    last = model.asked[0].messages[-1]
    assert problem in last["content"]
    assert last["role"] == ("tool" if answer.calls else "user")


async def test_old_results_give_way_and_the_calls_stay() -> None:
    proposal = await decide(written("shell", '{"command": "ls"}'))
    rounds = [committed(proposal, result(f"{number}" * 1000), number=number) for number in (1, 2, 3)]
    model = Told(written("submit", "{}"))
    await ToolCallingPolicy(model, standard_tools(), "Mend it.", history_bytes=2500).decide(turn(rounds))
    heard = [message["content"] for message in model.asked[0].messages if message["role"] == "tool"]
    assert [text[:9] for text in heard] == ["[left out", "222222222", "333333333"]
    assert sum(message["role"] == "assistant" for message in model.asked[0].messages) == 3


async def test_what_an_episode_was_told_stands_behind_the_round_after_which_it_came() -> None:
    proposal = await decide(written("shell", '{"command": "ls"}'))
    rounds = [committed(proposal, result("." * 10), number=number) for number in (5, 6, 7)]
    told = [Steering(message=text, after_round=number) for text, number in (("a", 0), ("b", 5), ("c", 6), ("d", 7))]
    model = Told(written("submit", "{}"))
    asked = dataclasses.replace(turn(rounds), steered=told)
    await ToolCallingPolicy(model, standard_tools(), "Mend it.").decide(asked)
    said = [message["content"] for message in model.asked[0].messages if message["role"] in ("user", "assistant")]
    assert said == ["Mend it.", "[4 earlier rounds are not shown]", "a", "", "b", "", "c", "", "d"]


async def test_what_has_just_come_is_shown_however_long_it_is() -> None:
    proposal = await decide(ChatAnswer(calls=written("shell", '{"command": "ls"}').calls * 3))
    record = committed(proposal, *(result(letter * 60_000) for letter in "abc"))
    model = Told(written("submit", "{}"))
    await ToolCallingPolicy(model, standard_tools(), "Mend it.", history_bytes=3000).decide(turn([record]))
    heard = [message["content"] for message in model.asked[0].messages if message["role"] == "tool"]
    assert [text[0] + text[-1] for text in heard] == ["aa", "bb", "cc"]
    assert all("59000 characters left out" in text and len(text) < 1100 for text in heard)


async def test_however_long_an_episode_is_what_the_model_is_shown_is_bounded() -> None:
    proposal = await decide(written("shell", '{"command": "ls"}'))
    rounds = [committed(proposal, result("x" * 100), number=number) for number in range(1, 10_001)]
    model = Told(written("submit", "{}"))
    await ToolCallingPolicy(model, standard_tools(), "Mend it.", history_bytes=10_000).decide(turn(rounds))
    messages = list(model.asked[0].messages)
    assert len(json.dumps(messages)) < 30_000
    assert messages[2]["content"].endswith("earlier rounds are not shown]")
    assert messages[-1]["content"] == "x" * 100
    shown = sum(message["role"] == "assistant" for message in messages)
    assert messages[2]["content"].startswith(f"[{10_000 - shown} ")


def test_what_a_command_did_is_told_in_words() -> None:
    shown = shown_result(CommandOutput(exit_code=2, stdout=result("abcd").stdout, stdout_dropped_bytes=50_000_000))  # type: ignore[union-attr]
    assert shown == "ab\n[... 50000000 bytes left out ...]\ncd\n[exit code 2]"
    assert shown_result(CommandOutput(exit_code=0)) == "[no output]"
    assert "time was over" in shown_result(CommandOutput(exit_code=137, timed_out=True))
