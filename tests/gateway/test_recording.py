"""Record a run and repeat it: the same bytes, never a live call."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.clock import ManualClock
from dsec.base.errors import InvalidRequestError, NotFoundError, StateCorruptedError, StateLockedError
from dsec.gateway.config import Api
from dsec.gateway.config_reading import parse_config
from dsec.gateway.fake.server import serve_fake
from dsec.gateway.fake.settings import FakeSettings
from dsec.gateway.ledger import pair_attempts, read_records
from dsec.gateway.ledger_record import Outcome
from dsec.gateway.recording import Recorder, RecordingAnswer, recording_files
from dsec.gateway.recording_record import Recorded, fingerprint_of, written_pieces
from dsec.gateway.replay import Recordings, ReplayAnswer, replayed
from dsec.gateway.server import serve

CONFIG = """\
[gateway]
port = 0
state_dir = "{state}"
open = true
grace = "0.1s"
{door}
[models.m]
[[backends]]
name = "one"
group = "m"
url = "{url}"
apis = ["chat", "responses", "messages"]
"""


def answer(fingerprint: str = "f", *, said: bytes = b"said", **more: Any) -> Recorded:
    pieces, encoding = written_pieces([(0.5, said[:2]), (1.0, said[2:])])
    known = {"api": "chat", "backend": "b", "model": "m", "wall_s": 1.0, "content_type": "x", "head_s": 0.25}
    usual: dict[str, Any] = {"status": 200, "ended_s": 1.25, "whole": True, **known, **more}
    return Recorded(fingerprint=fingerprint, pieces=pieces, encoding=encoding, **usual)


def record(directory: Path, *answers: Recorded) -> None:
    recorder = Recorder(directory, ManualClock())
    for one in answers:
        recorder.write(one)
    recorder.close()


# -- files ---------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4), min_size=2), st.randoms())
def test_fingerprints_do_not_depend_on_the_order_of_members_or_on_spaces(plain: dict[str, Any], draws: Any) -> None:
    import json

    items = list(plain.items())
    draws.shuffle(items)
    first = fingerprint_of(Api.CHAT, json.dumps(plain).encode())
    assert first == fingerprint_of(Api.CHAT, json.dumps(dict(items), indent=2).encode())
    assert first != fingerprint_of(Api.MESSAGES, json.dumps(plain).encode())
    assert first != fingerprint_of(Api.CHAT, json.dumps({**plain, items[0][0]: "other!"}).encode())


@given(st.binary(max_size=60))
def test_any_bytes_come_back_as_they_were(said: bytes) -> None:
    assert b"".join(data for _, data in answer(said=said).contents()) == said


def test_the_same_call_gets_its_answers_in_turn_across_files(tmp_path: Path) -> None:
    record(tmp_path, answer(said=b"first"), answer("g", said=b"other"))
    record(tmp_path, answer(said=b"second"))
    assert len(recording_files(tmp_path)) == 2
    recordings = Recordings(tmp_path)
    said = [b"".join(data for _, data in recordings.next("f").contents()) for _ in range(3)]
    assert said == [b"first", b"second", b"first"]
    assert recordings.next("h") is None


def test_what_broke_off_or_was_an_accident_is_not_repeated(tmp_path: Path) -> None:
    record(tmp_path, answer(whole=False), answer(status=429), answer(status=503), answer(status=400, said=b"no"))
    recordings = Recordings(tmp_path)
    assert len(recordings) == 1
    assert recordings.next("f").status == 400


def test_a_torn_end_is_passed_over_and_damage_before_it_is_not(tmp_path: Path) -> None:
    record(tmp_path, answer(), answer("g"))
    file = recording_files(tmp_path)[0]
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    assert len(Recordings(tmp_path)) == 1
    lines = whole.splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1][:-9] + b"\n" + lines[2])
    with pytest.raises(StateCorruptedError, match="line 2"):
        Recordings(tmp_path)


def test_one_gateway_at_a_time_records_in_a_directory(tmp_path: Path) -> None:
    first = Recorder(tmp_path, ManualClock())
    with pytest.raises(StateLockedError):
        Recorder(tmp_path, ManualClock())
    first.close()
    Recorder(tmp_path, ManualClock()).close()


def test_a_directory_without_a_recording_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no recording"):
        Recordings(tmp_path)


def test_a_full_file_is_followed_by_the_next_and_only_the_owner_may_read_them(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, ManualClock(), file_bytes=500)
    for _ in range(5):
        recorder.write(answer())
    recorder.close()
    files = recording_files(tmp_path)
    assert len(files) > 1
    assert {os.stat(file).st_mode & 0o777 for file in files} == {0o600}
    assert len(Recordings(tmp_path)) == 5


@pytest.mark.parametrize("door", ["", "[models.other]\ngroups = ['m', 'n']\n"])
def test_live_and_replayed_backends_for_one_model_are_refused(door: str) -> None:
    group = "n" if door else "m"
    text = f'{door}[[backends]]\nname = "a"\ngroup = "m"\nurl = "http://h/v1"\n'
    text += f'[[backends]]\nname = "b"\ngroup = "{group}"\nurl = "there"\nkind = "replay"\n'
    with pytest.raises(InvalidRequestError, match="live and replayed backends"):
        parse_config("gateway.toml", text)


@pytest.mark.anyio
@pytest.mark.parametrize(("speed", "expected_s"), [(1.0, [0.25, 0.5, 1.0, 1.25]), (2.0, [0.125, 0.25, 0.5, 0.625])])
async def test_pieces_come_when_they_came_or_so_many_times_faster(
    monkeypatch: pytest.MonkeyPatch, speed: float, expected_s: list[float]
) -> None:
    clock = ManualClock()
    start_s = clock.boot_s()

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    repeated = ReplayAnswer(answer(), speed, start_s, clock)
    await repeated.wait_until(0.25)
    came = [clock.boot_s() - start_s]
    for _ in range(3):
        await repeated.read()
        came.append(clock.boot_s() - start_s)
    assert came == pytest.approx(expected_s)


# -- through gateways ----------------------------------------------------------------------------------------------

Open = Callable[..., Any]


@pytest.fixture
async def fake() -> AsyncIterator[Any]:
    async with serve_fake(FakeSettings(visible_tokens=9, thinking_tokens=3, speed=float("inf"))) as serving:
        yield serving


@pytest.fixture
async def recorded_run(fake: Any, tmp_path: Path) -> AsyncIterator[Open]:
    """Open a gateway that records, or with `replays` one that repeats; the fake is behind both configurations."""
    async with AsyncExitStack() as stack:

        async def open_(*, replays: bool) -> httpx2.AsyncClient:
            door = "" if replays else 'record_to = "tape"'
            text = CONFIG.format(url=fake.url, state="replaying" if replays else "recording", door=door)
            config = parse_config("gateway.toml", text)
            if replays:
                config = replayed(config, tmp_path / "tape", float("inf"))
            serving = await stack.enter_async_context(serve(config, tmp_path, environment={}))
            return await stack.enter_async_context(httpx2.AsyncClient(base_url=serving.url, timeout=30))

        yield open_


def calls() -> list[tuple[str, dict[str, Any]]]:
    say = [{"role": "user", "content": "hi"}]
    return [
        (path, {**body, "model": "m", "stream": streaming})
        for streaming in (False, True)
        for path, body in (
            ("/v1/chat/completions", {"messages": say}),
            ("/v1/responses", {"input": "hi"}),
            ("/v1/messages", {"messages": say, "max_tokens": 50}),
        )
    ]


@pytest.mark.anyio
async def test_a_run_is_repeated_byte_by_byte_with_the_same_usage_and_no_live_call(
    recorded_run: Open, fake: Any, tmp_path: Path
) -> None:
    live = await recorded_run(replays=False)
    first = [(await live.post(path, json=body)).content for path, body in calls() * 2]
    assert fake.service.counts["begun"] == len(first)
    again = await recorded_run(replays=True)
    second = [(await again.post(path, json=body)).content for path, body in calls() * 2]
    assert second == first
    assert fake.service.counts["begun"] == len(first)
    used = [
        [attempt.ended.usage for attempt in pair_attempts(read_records(tmp_path / name))]
        for name in ("recording", "replaying")
    ]
    assert used[0] == used[1]
    assert all(usage.thinking.tokens + usage.visible.tokens >= 9 for usage in used[0])


@pytest.mark.anyio
async def test_a_call_that_was_not_recorded_is_an_error_in_its_protocol_and_no_live_call(
    recorded_run: Open, fake: Any, tmp_path: Path
) -> None:
    live = await recorded_run(replays=False)
    await live.post(calls()[0][0], json=calls()[0][1])
    again = await recorded_run(replays=True)
    async with openai.AsyncOpenAI(base_url=f"{again.base_url}/v1", api_key="k", max_retries=2) as client:
        with pytest.raises(openai.NotFoundError, match="no answer to this call was recorded") as raised:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "other"}])
        assert raised.value.code == "recording_miss"
    told = await again.post("/v1/messages", json=calls()[2][1])
    assert told.status_code == 404
    assert told.json()["error"]["type"] == "not_found_error"
    assert fake.service.counts["begun"] == 1
    attempts = list(pair_attempts(read_records(tmp_path / "replaying")))
    assert [attempt.ended.outcome for attempt in attempts] == [Outcome.REFUSED] * 2
    assert not any(attempt.ended.cost.total or attempt.ended.usage.output_tokens for attempt in attempts)


@pytest.mark.anyio
async def test_a_recording_holds_neither_keys_nor_prompts(recorded_run: Open, tmp_path: Path) -> None:
    live = await recorded_run(replays=False)
    body = {**calls()[0][1], "messages": [{"role": "user", "content": "a-secret-prompt"}]}
    await live.post(calls()[0][0], json=body, headers={"authorization": "Bearer a-secret-key"})
    text = b"".join(file.read_bytes() for file in recording_files(tmp_path / "tape"))
    assert b"chat.completion" in text
    assert b"a-secret" not in text


@pytest.mark.anyio
async def test_an_answer_that_nobody_wanted_to_the_end_is_recorded_as_such(
    recorded_run: Open, fake: Any, tmp_path: Path
) -> None:
    live = await recorded_run(replays=False)
    body = {**calls()[3][1], "dsec_fake": {"trouble": "broken-off"}}
    await live.post(calls()[3][0], json=body)
    with pytest.raises(NotFoundError):
        Recordings(tmp_path / "nowhere")
    assert len(Recordings(tmp_path / "tape")) == 0


class Endless:
    """An answer of a hundred pieces."""

    status = 200
    headers: dict[str, str] = {}
    content_type = "text/event-stream"

    def __init__(self) -> None:
        self.left = 100

    async def read(self) -> bytes:
        self.left -= 1
        return b"piece" if self.left >= 0 else b""

    def close(self, *, whole: bool) -> None:
        pass


@pytest.mark.anyio
async def test_of_an_answer_that_grows_without_end_nothing_is_kept(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, ManualClock(), answer_bytes=1000)
    begun = msgspec.structs.replace(answer(), pieces=())
    recording = RecordingAnswer(Endless(), recorder, begun, 0.0, lambda data: data)
    while await recording.read():
        pass
    recording.close(whole=True)
    recorder.close()
    written = recording_files(tmp_path)[0].read_bytes()
    assert b'piece"' not in written
    assert b'"whole":false' in written


class Ending:
    """A stream whose last event is read, and whose end is not."""

    status = 200
    headers: dict[str, str] = {}
    content_type = "text/event-stream"

    async def read(self) -> bytes:
        return b"data: {}\n\ndata: [DONE]\n\n"

    def close(self, *, whole: bool) -> None:
        pass


@pytest.mark.anyio
async def test_an_answer_whose_last_event_was_read_is_whole_though_its_client_is_gone(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, ManualClock())
    begun = msgspec.structs.replace(answer(), pieces=(), whole=False)
    recording = RecordingAnswer(Ending(), recorder, begun, 0.0, lambda data: data)
    await recording.read()
    recording.close(whole=False)
    recorder.close()
    assert len(Recordings(tmp_path)) == 1
