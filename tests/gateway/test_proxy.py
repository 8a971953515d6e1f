"""Calls through a gateway: what backends get, what callers get, what the ledger says."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from dsec.gateway.ledger_record import Cut, Outcome

pytestmark = pytest.mark.anyio


async def test_an_answer_passes_byte_for_byte_and_is_in_the_ledger(open_gateway: Any, backends: Any) -> None:
    gateway = await open_gateway(
        only_first=True, backend='prices = { input = "2 USD/Mtoken", output = "10 USD/Mtoken" }'
    )
    answer = await gateway.chat(temperature=0.5, unknown_field={"a": [1, 2]})
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    assert backends[0].bodies[0]["unknown_field"] == {"a": [1, 2]}
    (attempt,) = gateway.attempts()
    assert attempt.ended.outcome is Outcome.ANSWERED
    assert (attempt.ended.usage.plain_input.tokens, attempt.ended.usage.visible.tokens) == (12, 3)
    assert attempt.ended.cost.total == pytest.approx(12 * 2e-6 + 3 * 10e-6)
    assert answer.headers["x-request-id"] == attempt.began.call


async def test_a_model_is_called_at_the_backend_by_the_name_it_has_there(
    open_gateway: Any, backends: Any, shapes: Any
) -> None:
    backends[0].act = shapes.answering(shapes.chat_answer(model="org/M-2026"))
    gateway = await open_gateway(only_first=True, first='model = "org/M"\naliases = ["org/M-2026"]')
    assert (await gateway.chat()).status_code == 200
    assert backends[0].bodies[0]["model"] == "org/M"


async def test_a_member_given_twice_is_sent_once_as_it_was_read(open_gateway: Any, backends: Any) -> None:
    gateway = await open_gateway(only_first=True)
    body = b'{"model":"other","messages":[{"role":"user","content":"hi"}],"model":"m"}'
    answer = await gateway.http.post("/v1/chat/completions", content=body)
    assert answer.status_code == 200
    assert backends[0].raw[0].count(b'"model"') == 1


async def test_streams_pass_event_by_event_without_a_usage_that_was_not_asked_for(
    open_gateway: Any, backends: Any, shapes: Any
) -> None:
    backends[0].act = shapes.streaming(shapes.chat_events())
    gateway = await open_gateway(only_first=True)
    answer = await gateway.chat(stream=True)
    assert backends[0].bodies[0]["stream_options"] == {"include_usage": True}
    assert b'"usage"' not in answer.content
    assert answer.content.endswith(b"data: [DONE]\n\n")
    asked = await gateway.chat(stream=True, stream_options={"include_usage": True})
    assert b'"completion_tokens": 3' in asked.content
    assert [attempt.ended.usage.output_tokens for attempt in gateway.attempts()] == [3, 3]


async def test_before_the_first_byte_a_failure_goes_to_another_backend_and_both_are_records(
    open_gateway: Any, backends: Any, shapes: Any
) -> None:
    backends[0].act = shapes.answering({"error": {"message": "boom"}}, status=500)
    gateway = await open_gateway()
    answer = await gateway.chat()
    assert answer.status_code == 200
    assert answer.headers["x-dsec-backend"] == "second"
    failed, answered = gateway.attempts()
    assert (failed.ended.outcome, failed.ended.status, failed.began.number) == (Outcome.FAILED, 500, 1)
    assert (answered.ended.outcome, answered.began.number) == (Outcome.ANSWERED, 2)
    assert failed.began.call == answered.began.call


async def test_after_the_first_byte_nothing_is_spliced_and_the_stream_ends_with_an_error(
    open_gateway: Any, backends: Any, shapes: Any
) -> None:
    backends[0].act = shapes.streaming([shapes.chunk({"content": "half"})], then="abort")
    gateway = await open_gateway()
    answer = await gateway.chat(stream=True)
    assert b"half" in answer.content
    last = json.loads(answer.content.split(b"data: ")[-1])
    assert last["error"]["type"] == "server_error"
    assert not backends[1].bodies
    (attempt,) = gateway.attempts()
    assert (attempt.ended.outcome, attempt.ended.failure) == (Outcome.FAILED, "broken")
    assert attempt.ended.usage.is_estimated
    assert attempt.ended.usage.visible.tokens == 1


@pytest.mark.parametrize(
    ("events", "failure"),
    [
        ([b"data: {not json}\n\n"], "broken"),
        ([b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n'], "broken"),
        ([b'data: {"error":{"message":"overloaded","type":"overloaded_error"}}\n\n'], "overloaded"),
        ([], "broken"),
    ],
    ids=["broken event", "invalid UTF-8", "error event", "no event"],
)
async def test_a_stream_that_is_broken_from_its_beginning_fails_over(
    open_gateway: Any, backends: Any, shapes: Any, events: list[bytes], failure: str
) -> None:
    backends[0].act = shapes.streaming(events)
    backends[1].act = shapes.streaming(shapes.chat_events())
    gateway = await open_gateway()
    answer = await gateway.chat(stream=True)
    assert answer.content.endswith(b"[DONE]\n\n")
    assert gateway.attempts()[0].ended.failure == failure


async def test_a_backend_that_answers_with_another_model_is_not_believed(
    open_gateway: Any, backends: Any, shapes: Any
) -> None:
    backends[0].act = shapes.answering(shapes.chat_answer(model="another"))
    gateway = await open_gateway()
    assert (await gateway.chat()).headers["x-dsec-backend"] == "second"
    wrong = gateway.attempts()[0].ended
    assert (wrong.failure, wrong.answered_model) == ("wrong_model", "another")
    assert wrong.usage.output_tokens == 3  # It worked, and will be paid.


async def test_a_stalled_stream_is_ended_in_time_with_an_error(open_gateway: Any, backends: Any, shapes: Any) -> None:
    backends[0].act = shapes.streaming([shapes.chunk({"content": "half"})], then="hang")
    gateway = await open_gateway(only_first=True, model='stall_timeout = "50ms"')
    answer = await gateway.chat(stream=True)
    assert json.loads(answer.content.split(b"data: ")[-1])["error"]["code"] == "timeout"
    assert gateway.attempts()[0].ended.failure == "stalled"
    await backends[0].gone.wait()


async def test_silence_before_the_first_byte_fails_over(open_gateway: Any, backends: Any, shapes: Any) -> None:
    backends[0].act = shapes.hanging()
    gateway = await open_gateway(model='first_byte_timeout = "50ms"')
    assert (await gateway.chat()).headers["x-dsec-backend"] == "second"
    assert gateway.attempts()[0].ended.failure == "silent"


async def test_a_callers_deadline_ends_the_call_and_is_passed_on(open_gateway: Any, backends: Any, shapes: Any) -> None:
    backends[0].act = shapes.hanging()
    gateway = await open_gateway(only_first=True)
    answer = await gateway.chat(headers={"X-DSec-Deadline-S": "0.2"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "deadline_exceeded")
    assert 0 < float(backends[0].headers[0]["x-dsec-deadline-s"]) <= 0.2
    (attempt,) = gateway.attempts()
    assert (attempt.ended.outcome, attempt.ended.cut) == (Outcome.CUT, Cut.DEADLINE)
    await backends[0].gone.wait()


async def test_a_caller_that_goes_away_ends_the_backends_work(
    open_gateway: Any, backends: Any, shapes: Any, until: Any
) -> None:
    backends[0].act = shapes.streaming([shapes.chunk({"content": "half"})], then="hang")
    gateway = await open_gateway(only_first=True)
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with gateway.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for part in answer.aiter_bytes():
            assert b"half" in part
            break
    await backends[0].gone.wait()
    await until(lambda: gateway.attempts())
    (attempt,) = gateway.attempts()
    assert (attempt.ended.outcome, attempt.ended.failure) == (Outcome.CANCELLED, "cancelled")
    assert not gateway.serving.proxy.under_way


async def test_a_refusal_of_the_call_itself_is_passed_on_and_tried_nowhere_else(
    open_gateway: Any, backends: Any, shapes: Any
) -> None:
    error = {
        "error": {"message": "temperature must be positive", "type": "invalid_request_error", "param": "temperature"}
    }
    backends[0].act = shapes.answering(error, status=400)
    gateway = await open_gateway()
    answer = await gateway.chat()
    assert (answer.status_code, answer.json()) == (400, error)
    assert answer.headers["x-should-retry"] == "false"
    assert not backends[1].bodies
    assert gateway.attempts()[0].ended.outcome is Outcome.REFUSED
    assert gateway.attempts()[0].ended.cost.total == 0


async def test_a_limit_everywhere_is_told_with_the_time_to_come_again(
    open_gateway: Any, backends: Any, shapes: Any
) -> None:
    for backend in backends:
        backend.act = shapes.answering({"error": {"message": "slow down"}}, status=429, headers={"retry-after": "7"})
    gateway = await open_gateway(model='queue_timeout = "1s"')
    answer = await gateway.chat()
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 7
    assert {attempt.ended.failure for attempt in gateway.attempts()} == {"limited"}


async def test_a_minutes_limit_of_a_backend_is_kept_and_told(open_gateway: Any, backends: Any) -> None:
    gateway = await open_gateway(only_first=True, first="requests_per_minute = 2", model='queue_timeout = "1s"')
    assert [(await gateway.chat()).status_code for _ in range(3)] == [200, 200, 429]
    answer = await gateway.chat()
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert 30 < int(answer.headers["retry-after"]) <= 62
    assert len(backends[0].bodies) == 2


async def test_an_unknown_model_is_told_with_those_that_there_are(open_gateway: Any) -> None:
    gateway = await open_gateway()
    answer = await gateway.http.post(
        "/v1/chat/completions", json={"model": "mm", "messages": [{"role": "user", "content": "x"}]}
    )
    assert answer.status_code == 404
    assert "ask for one of: m" in answer.json()["error"]["message"]


async def test_a_group_that_a_model_stands_for_is_reached_through_it_alone(open_gateway: Any) -> None:
    gateway = await open_gateway(first='group = "a"', second='group = "b"', model='groups = ["a"]')
    assert [one["id"] for one in (await gateway.http.get("/v1/models")).json()["data"]] == ["b", "m"]
    assert (await gateway.chat(model="a")).status_code == 404


async def test_a_protocol_that_no_backend_of_the_model_speaks_is_an_error(open_gateway: Any, backends: Any) -> None:
    gateway = await open_gateway()
    answer = await gateway.http.post("/v1/responses", json={"model": "m", "input": "hi"})
    assert answer.status_code == 503
    assert "speaks this protocol" in answer.json()["error"]["message"]
    assert not backends[0].bodies


async def test_calls_wait_for_a_slot_and_take_turns(open_gateway: Any, backends: Any, shapes: Any, until: Any) -> None:
    backends[0].act = shapes.hanging()
    gateway = await open_gateway(only_first=True, first="slots = 1")
    calls = [asyncio.create_task(gateway.chat(f"call {number}")) for number in range(3)]
    await until(lambda: len(gateway.serving.proxy.under_way) == 3 and backends[0].bodies)
    assert len(backends[0].bodies) == 1
    backends[0].release.set()
    assert [answer.status_code for answer in await asyncio.gather(*calls)] == [200, 200, 200]
    assert gateway.serving.proxy.lines["first"].turnstile.running == 0


async def test_a_full_queue_refuses_at_once(open_gateway: Any, backends: Any, shapes: Any, until: Any) -> None:
    backends[0].act = shapes.hanging()
    gateway = await open_gateway(only_first=True, first="slots = 1\nwaiting = 1")
    calls = [asyncio.create_task(gateway.chat()) for _ in range(2)]
    await until(lambda: len(gateway.serving.proxy.under_way) == 2)
    answer = await gateway.chat()
    assert answer.status_code == 503
    backends[0].release.set()
    await asyncio.gather(*calls)


async def test_who_waits_and_goes_away_leaves_no_trace(
    open_gateway: Any, backends: Any, shapes: Any, until: Any
) -> None:
    backends[0].act = shapes.hanging()
    gateway = await open_gateway(only_first=True, first="slots = 1")
    served = asyncio.create_task(gateway.chat())
    await until(lambda: backends[0].bodies)
    gone = asyncio.create_task(gateway.chat())
    await until(lambda: len(gateway.serving.proxy.under_way) == 2)
    gone.cancel()
    await until(lambda: len(gateway.serving.proxy.under_way) == 1)
    backends[0].release.set()
    assert (await served).status_code == 200
    assert len(gateway.attempts()) == 1
    assert (await gateway.chat()).status_code == 200


async def test_a_second_attempt_beside_a_silent_first_one_wins_and_both_are_records(
    open_gateway: Any, backends: Any, shapes: Any
) -> None:
    backends[0].act = shapes.hanging()
    backends[1].act = shapes.streaming(shapes.chat_events())
    gateway = await open_gateway(model='hedge_after = "30ms"')
    answer = await gateway.chat(stream=True)
    assert answer.content.endswith(b"[DONE]\n\n")
    await backends[0].gone.wait()
    lost, won = gateway.attempts()
    assert (lost.ended.outcome, lost.began.hedge) == (Outcome.CANCELLED, False)
    assert (won.ended.outcome, won.began.hedge) == (Outcome.ANSWERED, True)
    assert lost.began.call == won.began.call
    assert lost.ended.usage.input_tokens > 0  # It worked on the prompt until it was stopped.


async def test_a_first_attempt_that_answers_in_time_is_not_hedged(open_gateway: Any, backends: Any) -> None:
    gateway = await open_gateway(model='hedge_after = "10s"')
    assert (await gateway.chat()).status_code == 200
    assert len(gateway.attempts()) == 1


async def test_a_hedge_that_fails_leaves_the_first_attempt_alone(
    open_gateway: Any, backends: Any, shapes: Any, until: Any
) -> None:
    backends[0].act = shapes.hanging()
    backends[1].act = shapes.answering({"error": {"message": "boom"}}, status=500)
    gateway = await open_gateway(model='hedge_after = "30ms"')
    call = asyncio.create_task(gateway.chat())
    await until(lambda: gateway.attempts())
    backends[0].release.set()
    assert (await call).status_code == 200
    assert [attempt.ended.outcome for attempt in gateway.attempts()] == [Outcome.FAILED, Outcome.ANSWERED]


async def test_a_caller_that_takes_nothing_slows_its_backend_down_and_is_cut_off(
    open_gateway: Any, backends: Any, shapes: Any, until: Any
) -> None:
    written = 0
    event = shapes.chunk({"content": "x" * 60_000})

    async def act(backend: Any, request: Any, asked: Any) -> Any:
        nonlocal written
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(5000):  # 300 MB
            await response.write(event)
            written += len(event)
        return response

    backends[0].act = act
    gateway = await open_gateway(only_first=True, door='client_stall_timeout = "300ms"')
    address = urlsplit(gateway.url)
    _, writer = await asyncio.open_connection(address.hostname, address.port, limit=1024)
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    )
    await until(lambda: gateway.attempts())
    (attempt,) = gateway.attempts()
    assert attempt.ended.outcome is Outcome.CANCELLED
    assert "took nothing" in attempt.ended.brief
    assert written < 50_000_000  # What the kernel's buffers hold on the way, and no more.
    writer.transport.abort()
