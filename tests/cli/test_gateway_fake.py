"""`dsec gateway fake`, and recording and replaying from the outside."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from click.testing import CliRunner

from dsec.cli.gateway_fake import read_pace
from dsec.cli.main import cli
from dsec.routing.backend import Pace

CONFIG = """\
[gateway]
port = 0
open = true
state_dir = "{state}"
[[backends]]
name = "one"
group = "m"
url = "{url}"
"""
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


@asynccontextmanager
async def served(*arguments: str) -> AsyncIterator[str]:
    """Run a serving command until the block ends; yields its URL."""
    command = [sys.executable, "-m", "dsec", "gateway", *arguments, "--json"]
    async with await anyio.open_process(command, stderr=None) as process:
        try:
            assert process.stdout is not None
            yield json.loads(await process.stdout.receive())["url"]
        finally:
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0


@pytest.mark.anyio
@pytest.mark.slow
async def test_what_was_recorded_is_replayed_when_the_backend_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    tape = str(tmp_path / "tape")
    async with httpx2.AsyncClient(timeout=30) as http:
        async with served("fake", "--port", "0", "--speed", "inf", "--visible-tokens", "5") as backend:
            file.write_text(CONFIG.format(url=backend, state="live"))
            async with served("up", "--config", str(file), "--record", tape) as url:
                live = await http.post(f"{url}/v1/chat/completions", json=BODY)
        file.write_text(CONFIG.format(url=backend, state="again"))
        async with served("up", "--config", str(file), "--replay", tape, "--replay-speed", "inf") as url:
            again = await http.post(f"{url}/v1/chat/completions", json=BODY)
            other = await http.post(f"{url}/v1/chat/completions", json={**BODY, "seed": 1})
    assert live.status_code == again.status_code == 200
    assert again.content == live.content
    assert again.content.endswith(b"data: [DONE]\n\n")
    assert (other.status_code, other.json()["error"]["code"]) == (404, "recording_miss")


def test_recording_a_replay_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(CONFIG.format(url="http://localhost:1/v1", state="s"))
    argv = ["gateway", "up", "--config", str(file), "--record", str(tmp_path / "a"), "--replay", str(tmp_path)]
    result = CliRunner().invoke(cli, argv)
    assert "--record stands beside --replay" in (str(result.exception) + result.output)


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [("--trouble", "nope=1", "names are: failed, overloaded"), ("--trouble", "failed", "NAME=SHARE"),
     ("--pace", "16", "CALLS:TIME"), ("--pace", "4:2ms,2:1ms", "numbers of calls that ascend")],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(option: str, value: str, told: str) -> None:
    result = CliRunner().invoke(cli, ["gateway", "fake", "--port", "0", option, value])
    assert result.exit_code != 0
    assert told in (str(getattr(result.exception, "resolution", "")) + str(result.exception) + result.output)


def test_a_pace_is_read_with_its_units() -> None:
    assert read_pace("16:16.9ms,32:25.3ms") == (
        Pace(calls=16, s_per_token=0.0169),
        Pace(calls=32, s_per_token=0.0253),
    )
