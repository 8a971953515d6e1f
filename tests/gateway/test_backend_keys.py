"""A backend that repeats the gateway's own key tells it to nobody: no caller, no ledger, no recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsec.gateway.recording import recording_files

pytestmark = pytest.mark.anyio
SECRET = "sk-of-the-gateway-0123456789"
KEYED = {"environment": {"BACKEND_KEY": SECRET}, "backend": 'key_env = "BACKEND_KEY"', "only_first": True}


@pytest.mark.parametrize("words", [0, 1])
async def test_an_error_in_a_stream_is_told_and_written_without_the_key(
    open_gateway: Any, backends: Any, shapes: Any, words: int
) -> None:
    error = b'data: {"error":{"message":"no such key: ' + SECRET.encode() + b'","code":"x"}}\n\n'
    backends[0].act = shapes.streaming([*[shapes.chunk({"content": "word"})] * words, error])
    gateway = await open_gateway(**KEYED, model="attempts = 1")
    answer = await gateway.chat(stream=True)
    assert "no such key: [removed]" in answer.text
    assert SECRET not in answer.text
    (attempt,) = gateway.attempts()
    assert "[removed]" in attempt.ended.brief
    assert SECRET not in attempt.ended.brief


async def test_an_answer_is_recorded_without_the_key(
    open_gateway: Any, backends: Any, shapes: Any, tmp_path: Path
) -> None:
    events = shapes.chat_events([f"said {SECRET} so"])
    data = b"".join(events)
    middle = data.index(SECRET.encode()) + 5
    backends[0].act = shapes.streaming([data[:middle], data[middle:]])
    gateway = await open_gateway(**KEYED, door='record_to = "tape"')
    answer = await gateway.chat(stream=True)
    assert "said [removed] so" in answer.text
    (file,) = recording_files(tmp_path / "tape")
    assert b"said [removed] so" in file.read_bytes()
    assert SECRET.encode() not in file.read_bytes()
