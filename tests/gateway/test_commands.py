"""`dsec gateway` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dsec.base.clock import ManualClock
from dsec.cli.main import cli
from dsec.gateway.ledger import Ledger
from dsec.gateway.ledger_record import Began, Considered, Cost, Ended, Outcome
from dsec.routing.usage import Count, Usage

CONFIG = """\
[gateway]
state_dir = "state"
[models.m]
[[backends]]
name = "near"
group = "m"
url = "http://127.0.0.1:9/v1"
key_env = "NO_SUCH_KEY"
prefill = "1000 token/s"
[[backends]]
name = "far"
group = "m"
url = "http://127.0.0.1:9/v1"
network = "2s"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(CONFIG)
    return path


def run(file: Path, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["gateway", *arguments, "--config", str(file)], input=stdin, prog_name="dsec")


def told(file: Path, *arguments: str, stdin: str | None = None) -> Any:
    result = run(file, *arguments, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_keys_are_made_listed_without_secrets_and_revoked(file: Path) -> None:
    made = told(
        file, "keys", "create", "alpha", "--model", "m", "--usd", "5", "--expires-in", "1h", "--thinking-per-call", "9"
    )
    (key,) = told(file, "keys", "ls")
    assert key["key_id"] == made["key_id"]
    assert (key["budget"]["usd"], key["thinking"]["tokens_per_call"]) == (5.0, 9)
    assert "secret" not in json.dumps(key)
    assert made["key"] not in run(file, "keys", "ls").stdout
    assert run(file, "keys", "revoke", made["key_id"]).exit_code == 0
    assert told(file, "keys", "ls")[0]["state"] == "revoked"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("keys", "create", "a b"), "not a project's name"),
        (("keys", "revoke", "dsk-0000000000"), "there is no key"),
        (("explain", "call-unknown"), "has no call"),
        (("explain", "no-such-file"), "cannot be read"),
    ],
)
def test_mistakes_are_typed_errors(file: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run(file, *arguments)
    assert result.exit_code in (64, 66)
    assert message in result.output


def test_a_configuration_that_is_wrong_is_said_with_its_line(file: Path) -> None:
    file.write_text(CONFIG.replace("[models.m]", "[models.n]"))
    result = run(file, "up")
    assert result.exit_code == 64
    assert "gateway.toml:3:" in result.output


def test_a_files_call_is_explained_without_keys_and_without_sending(file: Path) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word" * 500}]})
    found = told(file, "explain", "-", stdin=body)
    assert found["backend"] == "near"
    assert {one["backend"]: one["verdict"] for one in found["candidates"]} == {"near": "taken", "far": "later"}
    assert not (file.parent / "state").exists()
    assert "near" in run(file, "explain", "-", stdin=body).stdout


def test_a_made_call_is_explained_and_counted_from_the_ledger(file: Path) -> None:
    ledger = Ledger(file.parent / "state", ManualClock(), segment_bytes=1 << 20)
    why = Considered(backend="far", verdict="later", why="begins in 2000 ms")
    ledger.write(
        Began(
            attempt="att-1", call="call-1", number=1, wall_s=1.0, key="k", project="alpha", api="chat", model="m",
            backend="near", group="m", episode="e1", reason="near: shortest", considered=(why,),
        )
    )  # fmt: skip
    usage = Usage(plain_input=Count(tokens=10), visible=Count(tokens=5))
    ledger.write(Ended(attempt="att-1", wall_s=2.0, outcome=Outcome.ANSWERED, usage=usage, cost=Cost(input=0.25)))
    ledger.close()
    (attempt,) = told(file, "explain", "call-1")
    assert attempt["began"]["considered"][0]["backend"] == "far"
    shown = run(file, "explain", "call-1").stdout
    assert "near: shortest" in shown
    assert "begins in 2000 ms" in shown
    spent = told(file, "usage", "--by", "episode")
    assert (spent["rows"][0]["name"], spent["total"]["usd"], spent["total"]["calls"]) == ("e1", 0.25, 1)
    assert told(file, "usage", "--project", "beta")["total"]["attempts"] == 0
    assert told(file, "usage", "--thinking")[0]["balance"] is None
    assert "alpha" in run(file, "usage").stdout
